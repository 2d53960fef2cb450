/*
 * keeper KIND MIB CHILDREN PATH: fills memory, and keeps it with so many children until there is a file at PATH. Says
 * "keeper: ready" when each has what it keeps, and "keeper: ok" at its end.
 *
 * KIND: own: each child writes all of it, and has a copy of its own; seen: each looks at all of it; lent: one child
 * borrows it (vfork); shared: it is shared memory, and each looks at all of it.
 */
#include "common.h"

static const char *path;
static uint64_t *words;
static size_t pages;
static int ready[2];

static void look(uint64_t more) {
    for (size_t page = 0; page < pages; page++)
        if (words[page * WORDS] != page + 1 + more) die("wrong word: page %zu", page);
}

static void write_all(uint64_t more) {
    for (size_t page = 0; page < pages; page++) words[page * WORDS] = page + 1 + more;
}

static void keep(void) {
    MUST(write(ready[1], "x", 1) == 1);
    while (access(path, F_OK) != 0) usleep(1000);
}

static void child(const char *kind) {
    uint64_t more = strcmp(kind, "own") == 0 ? pages : 0;
    look(0);
    if (more) write_all(more);
    keep();
    look(more);
    _exit(0);
}

/* Says so when so many are ready. */
static void *expect(void *count) {
    char word;
    for (long left = (intptr_t)count; left > 0; left--) MUST(read(ready[0], &word, 1) == 1);
    say("keeper: ready\n");
    return NULL;
}

int main(int argc, char **argv) {
    MUST(argc == 5);
    const char *kind = argv[1];
    long children = number(argc, argv, 3, 0);
    int flags = strcmp(kind, "shared") == 0 ? MAP_SHARED : MAP_PRIVATE;
    pages = number(argc, argv, 2, 24) * MIB / PAGE, path = argv[4];
    words = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    MUST(words != MAP_FAILED && pipe(ready) == 0);
    write_all(0);
    pthread_t thread;
    if (strcmp(kind, "lent") == 0) {
        MUST(pthread_create(&thread, NULL, expect, (void *)1) == 0);
        pid_t pid = vfork();
        if (pid == 0) {
            keep();
            _exit(0);
        }
        wait_ok(pid, "who borrows");
    } else {
        pid_t pids[64];
        MUST(children < 64);
        for (long i = 0; i < children; i++) {
            MUST((pids[i] = fork()) >= 0);
            if (pids[i] == 0) child(kind);
        }
        MUST(pthread_create(&thread, NULL, expect, (void *)(children + 1)) == 0);
        keep();
        for (long i = 0; i < children; i++) wait_ok(pids[i], "who keeps");
    }
    MUST(pthread_join(thread, NULL) == 0);
    look(0);
    puts("keeper: ok");
    return 0;
}
