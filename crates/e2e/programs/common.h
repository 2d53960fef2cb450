/*
 * Shared by every test program: a pattern that says where each word belongs, and how to complain.
 *
 * A word's value is a function of (seed, position, version), so a word that is lost, old, or in
 * the wrong place is told apart from a right one. Zero is never a pattern value.
 */
#ifndef EBB_E2E_COMMON_H
#define EBB_E2E_COMMON_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / 8)
#define MIB (1024ul * 1024ul)
#define WRONG 3 /* exit status: memory held a wrong value, or a call did the wrong thing */

/* Complains and ends the whole process. Uses no heap: the heap may be what is broken. */
static __attribute__((noreturn, format(printf, 1, 2), unused)) void die(const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    if (length > (int)sizeof line - 2) length = sizeof line - 2;
    line[length] = '\n';
    if (write(2, line, length + 1) < 0) _exit(WRONG);
    _exit(WRONG);
}

#define MUST(call) \
    do { \
        if (!(call)) die("%s:%d: %s: %s", __FILE__, __LINE__, #call, strerror(errno)); \
    } while (0)

static inline uint64_t mix(uint64_t x) {
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static inline uint64_t next_random(uint64_t *state) { return mix(*state += 0x9e3779b97f4a7c15ull); }

static inline uint64_t below(uint64_t *state, uint64_t limit) { return next_random(state) % limit; }

/* The pattern of one page: word w is page_key + w * ODD, made odd so that it is never zero. */
static inline uint64_t page_key(uint64_t seed, uint64_t page, uint64_t version) {
    return mix(seed * 0x9e3779b97f4a7c15ull ^ page * 0xd1b54a32d192ed03ull ^ version << 1);
}

static inline uint64_t word_at(uint64_t key, uint64_t word) {
    return (key + word * 0xa0761d6478bd642full) | 1;
}

static __attribute__((unused)) void fill(void *start, size_t bytes, uint64_t seed,
                                         uint64_t version) {
    volatile uint64_t *words = start;
    for (size_t page = 0; page < bytes / PAGE; page++) {
        uint64_t key = page_key(seed, page, version);
        for (size_t w = 0; w < WORDS; w++) words[page * WORDS + w] = word_at(key, w);
    }
}

static __attribute__((unused)) void check(const void *start, size_t bytes, uint64_t seed,
                                          uint64_t version, const char *what) {
    const volatile uint64_t *words = start;
    for (size_t page = 0; page < bytes / PAGE; page++) {
        uint64_t key = page_key(seed, page, version);
        for (size_t w = 0; w < WORDS; w++) {
            uint64_t got = words[page * WORDS + w];
            if (got != word_at(key, w))
                die("wrong word: %s: page %zu word %zu at %p: read %016lx, want %016lx", what, page,
                    w, (void *)&words[page * WORDS + w], got, word_at(key, w));
        }
    }
}

static __attribute__((unused)) void check_zero(const void *start, size_t bytes, const char *what) {
    const volatile uint64_t *words = start;
    for (size_t w = 0; w < bytes / 8; w++)
        if (words[w] != 0)
            die("wrong word: %s: word %zu at %p: read %016lx, want zero", what, w,
                (void *)&words[w], (uint64_t)words[w]);
}

static __attribute__((unused)) void *map(size_t bytes) {
    void *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) die("mmap of %zu bytes: %s", bytes, strerror(errno));
    if (getenv("HUGE_PAGES")) madvise(start, bytes, MADV_HUGEPAGE);
    return start;
}

/* Filled memory that a limit must push out while something else happens. */
struct ballast {
    void *start;
    size_t bytes;
    uint64_t seed, version;
};

static __attribute__((unused)) struct ballast ballast_new(size_t mib, uint64_t seed) {
    struct ballast b = {map(mib * MIB), mib * MIB, seed, 1};
    fill(b.start, b.bytes, b.seed, b.version);
    return b;
}

static __attribute__((unused)) void ballast_check(const struct ballast *b, const char *what) {
    check(b->start, b->bytes, b->seed, b->version, what);
}

static __attribute__((unused)) void ballast_change(struct ballast *b) {
    fill(b->start, b->bytes, b->seed, ++b->version);
}

static __attribute__((unused)) int wait_status(pid_t child) {
    int status;
    while (waitpid(child, &status, 0) < 0) MUST(errno == EINTR);
    return status;
}

static __attribute__((unused)) void wait_ok(pid_t child, const char *what) {
    int status = wait_status(child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        die("%s: child ended with wait status %#x", what, status);
}

static __attribute__((unused)) void say(const char *text) {
    size_t left = strlen(text);
    MUST(write(1, text, left) == (ssize_t)left);
}

/* Programs made of named cases: `program CASE [ARGS]`. */
struct test_case {
    const char *name;
    int (*run)(int argc, char **argv);
};

static __attribute__((unused)) int run_case(const struct test_case *cases, int argc, char **argv) {
    for (; argc > 1 && cases->name; cases++)
        if (strcmp(cases->name, argv[1]) == 0) return cases->run(argc - 2, argv + 2);
    die("no such case: %s", argc > 1 ? argv[1] : "(none)");
}

static __attribute__((unused)) long number(int argc, char **argv, int index, long otherwise) {
    return index < argc ? strtol(argv[index], NULL, 0) : otherwise;
}

#endif
