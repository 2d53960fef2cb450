/*
 * holder MIB SECONDS [CHILDREN]: fills memory, and stays for so long. With CHILDREN the memory is shared with so
 * many of them, who look at all of it.
 */
#include "common.h"

static void look(const uint64_t *words, size_t bytes) {
    for (size_t page = 0; page < bytes / PAGE; page++)
        if (words[page * WORDS] != page + 1) die("wrong word: page %zu", page);
}

int main(int argc, char **argv) {
    size_t bytes = number(argc, argv, 1, 24) * MIB;
    long seconds = number(argc, argv, 2, 1), children = number(argc, argv, 3, 0);
    int kind = children ? MAP_SHARED : MAP_PRIVATE;
    uint64_t *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind | MAP_ANONYMOUS, -1, 0);
    MUST(words != MAP_FAILED);
    for (size_t page = 0; page < bytes / PAGE; page++) words[page * WORDS] = page + 1;
    for (long child = 0; child < children; child++) {
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            look(words, bytes);
            sleep(seconds);
            _exit(0);
        }
    }
    look(words, bytes);
    sleep(seconds);
    for (long child = 0; child < children; child++) {
        int status;
        MUST(wait(&status) > 0 && status == 0);
    }
    puts("holder: ok");
    return 0;
}
