/*
 * What a program finds in its own memory that is Ebb's: the memory shared with the pager, and the agent's pool.
 * For programs that mean harm. The layout is that of agent/src/protocol.rs.
 */
#ifndef EBB_E2E_OURS_H
#define EBB_E2E_OURS_H

#include "common.h"

#define MAGIC 0x31424245u /* first word of the memory shared with the pager, and of a greeting */
#define VERSION 9
#define AT_THREAD 4   /* its word with the number of the agent's thread */
#define AT_CALLS 2112 /* bytes to the table of calls */
#define BELLS 64
#define CALL_MADE 1
#define CALL_ANSWERED 2
#define CALL_TAKEN 3
#define ASK_JOIN 1

struct call {
    volatile uint32_t state, what, since_s, unused;
    volatile uint64_t a, b;
};

/* Calls `each` with every area of this process. */
static __attribute__((unused)) void each_area(void (*each)(uintptr_t, uintptr_t, const char *, void *),
                                              void *argument) {
    static char text[1 << 18];
    int maps = open("/proc/self/maps", O_RDONLY);
    MUST(maps >= 0);
    size_t length = 0;
    ssize_t got;
    while (length < sizeof text - 1 && (got = read(maps, text + length, sizeof text - 1 - length)) > 0)
        length += got;
    close(maps);
    text[length] = 0;
    for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        unsigned long start, end;
        char access[8];
        if (sscanf(line, "%lx-%lx %7s", &start, &end, access) == 3) each(start, end, access, argument);
    }
}

static void if_shared(uintptr_t start, uintptr_t end, const char *access, void *found) {
    (void)end;
    if (!strcmp(access, "rw-s") && *(volatile uint32_t *)start == MAGIC) *(uintptr_t *)found = start;
}

/* NULL while there is none. */
static __attribute__((unused)) volatile uint32_t *shared_memory(void) {
    uintptr_t found = 0;
    each_area(if_shared, &found);
    return (volatile uint32_t *)found;
}

static void if_pool(uintptr_t start, uintptr_t end, const char *access, void *found) {
    if (access[3] == 'p' && end - start == strtoul(getenv("EBB_POOL_BYTES"), NULL, 10))
        *(uintptr_t *)found = start;
}

/* Where the agent's pool is: the area of its size. */
static __attribute__((unused)) uintptr_t pool_start(void) {
    uintptr_t found = 0;
    if (getenv("EBB_POOL_BYTES")) each_area(if_pool, &found);
    if (!found) die("no agent found");
    return found;
}

static __attribute__((unused)) struct call *calls(void) {
    volatile uint32_t *shared = shared_memory();
    if (!shared) die("no memory shared with the pager");
    return (struct call *)((char *)shared + AT_CALLS);
}

#endif
