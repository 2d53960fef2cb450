/* reads-while-loading.so: its constructor waits for a thread that calls pread, while the loader's lock is held. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static void *read_one(void *nothing) {
    char byte = 1;
    const int zero = open("/dev/zero", O_RDONLY);
    if (zero < 0 || pread(zero, &byte, 1, 0) != 1 || byte != 0) abort();
    close(zero);
    return nothing;
}

static __attribute__((constructor)) void begin(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, read_one, NULL) != 0) abort();
    pthread_join(thread, NULL);
}
