/*
 * A library of the user's that stands before functions, as build recorders, profilers and fakeroots do: it passes each call on
 * to the next that has it, and says when the program ends, or becomes another, how many of each it has seen.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define NEXT(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

static int counts[6];
static const char *const names[] = {"mmap", "mremap", "madvise", "prctl", "pthread_create", "syscall"};

static void count(int which) { __atomic_fetch_add(&counts[which], 1, __ATOMIC_RELAXED); }

static __attribute__((destructor)) void tell(void) {
    /* Not of Ebb, which is started with it, too. */
    if (!strstr(program_invocation_name, "process")) return;
    for (int which = 0; which < 6; which++) dprintf(2, "%s: %d\n", names[which], counts[which]);
}

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset) {
    count(0);
    return NEXT(mmap)(at, len, prot, flags, fd, offset);
}

void *mremap(void *old, size_t len, size_t to_len, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    void *to = va_arg(rest, void *);
    va_end(rest);
    count(1);
    return NEXT(mremap)(old, len, to_len, flags, to);
}

int madvise(void *at, size_t len, int advice) {
    count(2);
    return NEXT(madvise)(at, len, advice);
}

int prctl(int option, ...) {
    va_list rest;
    va_start(rest, option);
    unsigned long a = va_arg(rest, unsigned long), b = va_arg(rest, unsigned long);
    unsigned long c = va_arg(rest, unsigned long), d = va_arg(rest, unsigned long);
    va_end(rest);
    count(3);
    return NEXT(prctl)(option, a, b, c, d);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *with) {
    count(4);
    return NEXT(pthread_create)(thread, how, run, with);
}

long syscall(long number, ...) {
    va_list rest;
    long a[6];
    va_start(rest, number);
    for (int at = 0; at < 6; at++) a[at] = va_arg(rest, long);
    va_end(rest);
    count(5);
    return NEXT(syscall)(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int execve(const char *path, char *const words[], char *const variables[]) {
    dprintf(2, "execve %s\n", path);
    tell();
    return NEXT(execve)(path, words, variables);
}
