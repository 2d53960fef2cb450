/*
 * A library that is named after Ebb's agent and so begins before it, as those that a program is linked with do: with EARLY=handlers it
 * registers handlers of forks that map memory, with EARLY=handler-threads one that makes threads in the child,
 * with EARLY=threads it makes threads that wait until they are joined.
 */
#include "common.h"

#include <sched.h>

#define THREADS 300

static pthread_t threads[THREADS];

static void map_early(void) {
    char *area = map(4 * MIB);
    fill(area, 4 * MIB, 3, 1);
    check(area, 4 * MIB, 3, 1, "in a handler of a fork");
    MUST(munmap(area, 4 * MIB) == 0);
}

#define IN_HANDLER 8

static pthread_t in_handler[IN_HANDLER];

static void *answer(void *argument) { return argument; }

/* On one processor: none of them begins before this thread waits. */
static void make_threads(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    MUST(sched_setaffinity(0, sizeof one, &one) == 0);
    for (long i = 0; i < IN_HANDLER; i++)
        MUST(pthread_create(&in_handler[i], NULL, answer, (void *)(i + 1)) == 0);
}

/* For the child: they have run. */
void early_join_handlers(void) {
    for (long i = 0; i < IN_HANDLER; i++) {
        void *result;
        MUST(pthread_join(in_handler[i], &result) == 0 && result == (void *)(i + 1));
    }
}

static int ends[2];

static void *last(void *argument) {
    char word;
    MUST(read(ends[0], &word, 1) == 0);
    return argument;
}

__attribute__((constructor)) static void begin(void) {
    const char *what = getenv("EARLY");
    /* What starts the programs is left alone. */
    if (strcmp(program_invocation_short_name, "threads") != 0 &&
        strcmp(program_invocation_short_name, "children") != 0)
        return;
    if (what && strcmp(what, "handlers") == 0) pthread_atfork(map_early, map_early, map_early);
    if (what && strcmp(what, "handler-threads") == 0) pthread_atfork(NULL, NULL, make_threads);
    if (what && strcmp(what, "threads") == 0) {
        MUST(pipe(ends) == 0);
        for (long i = 0; i < THREADS; i++)
            MUST(pthread_create(&threads[i], NULL, last, (void *)(i + 1)) == 0);
    }
}

/* Whether the page is in memory. */
static int is_there(uintptr_t address) {
    uint64_t entry;
    int map = open("/proc/self/pagemap", O_RDONLY);
    MUST(map >= 0 && pread(map, &entry, 8, address / PAGE * 8) == 8 && close(map) == 0);
    return entry >> 63;
}

/* For the program, which has pushed out what can be: what the kernel writes to when a thread ends has
 * stayed, and the threads end. */
void early_join(void) {
    for (long i = 0; i < THREADS; i++)
        if (!is_there(threads[i] + 720)) die("the descriptor of thread %ld is out", i);
    MUST(close(ends[1]) == 0);
    for (long i = 0; i < THREADS; i++) {
        void *result;
        MUST(pthread_join(threads[i], &result) == 0 && result == (void *)(i + 1));
    }
}
