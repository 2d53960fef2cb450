/*
 * settle KIND [MIB]: fills memory of one kind, checks it, says "ready", waits for SIGTERM without
 * touching it, and checks it again.
 */
#include "common.h"

#define SEED 31
#define PARTS 16
#define BLOCK (25 * PAGE)

static struct part {
    void *start;
    size_t bytes;
} parts[4096];
static size_t count;
static sigset_t term;

static void add(void *start, size_t bytes) {
    fill(start, bytes, SEED, count);
    MUST(count < sizeof parts / sizeof *parts);
    parts[count++] = (struct part){start, bytes};
}

static void check_all(const char *what) {
    for (size_t n = 0; n < count; n++) check(parts[n].start, parts[n].bytes, SEED, n, what);
}

static void wait_for_term(void) {
    int signal;
    MUST(sigwait(&term, &signal) == 0);
}

static int finish(void) {
    check_all("at first");
    say("ready\n");
    wait_for_term();
    check_all("after the rest");
    say("settle: ok\n");
    return 0;
}

static int case_heap(int argc, char **argv) {
    for (size_t left = number(argc, argv, 0, 40) * MIB; left > BLOCK; left -= BLOCK)
        add(aligned_alloc(PAGE, BLOCK), BLOCK);
    return finish();
}

static int case_break(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 40) * MIB;
    uintptr_t start = ((uintptr_t)sbrk(bytes + PAGE) + PAGE - 1) & -PAGE;
    add((void *)start, bytes);
    return finish();
}

/* A page that may not be touched keeps each apart from the next. */
static int case_areas(int argc, char **argv) {
    for (size_t left = number(argc, argv, 0, 40) * MIB; left > BLOCK; left -= BLOCK) {
        char *area = map(BLOCK + PAGE);
        MUST(mprotect(area + BLOCK, PAGE, PROT_NONE) == 0);
        add(area, BLOCK);
    }
    return finish();
}

static int case_huge(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 40) * MIB;
    uintptr_t start = ((uintptr_t)map(bytes + 2 * MIB) + 2 * MIB - 1) & -(2 * MIB);
    MUST(madvise((void *)start, bytes, MADV_HUGEPAGE) == 0);
    add((void *)start, bytes);
    return finish();
}

static int case_grown(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 40) * MIB;
    char *area = map(MIB);
    fill(area, MIB, SEED, 0);
    MUST((area = mremap(area, MIB, bytes, MREMAP_MAYMOVE)) != MAP_FAILED);
    check(area, MIB, SEED, 0, "what has moved");
    add(area, bytes);
    return finish();
}

static int case_populated(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 40) * MIB;
    char *area = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    MUST(area != MAP_FAILED);
    add(area, bytes);
    return finish();
}

/* The kernel fills it. */
static int case_read(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 40) * MIB;
    char *area = map(bytes), *page = map(PAGE);
    int ends[2];
    MUST(pipe(ends) == 0);
    for (size_t at = 0; at < bytes; at += PAGE) {
        fill(page, PAGE, SEED, count);
        MUST(write(ends[1], page, PAGE) == (ssize_t)PAGE);
        MUST(read(ends[0], area + at, PAGE) == (ssize_t)PAGE);
        if (at % (PARTS * PAGE) == 0) parts[count] = (struct part){area + at, PAGE}, count++;
    }
    return finish();
}

static size_t on_stack;
static pthread_barrier_t filled, over;

static void *run_thread(void *seed) {
    char *stack = (char *)(((uintptr_t)__builtin_alloca(on_stack + PAGE) + PAGE - 1) & -PAGE);
    fill(stack, on_stack, SEED, (uintptr_t)seed);
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&over);
    check(stack, on_stack, SEED, (uintptr_t)seed, "a stack");
    return NULL;
}

static int case_stacks(int argc, char **argv) {
    on_stack = number(argc, argv, 0, 40) * MIB / PARTS;
    pthread_t threads[PARTS];
    MUST(pthread_barrier_init(&filled, NULL, PARTS + 1) == 0);
    MUST(pthread_barrier_init(&over, NULL, PARTS + 1) == 0);
    for (uintptr_t n = 0; n < PARTS; n++)
        MUST(pthread_create(&threads[n], NULL, run_thread, (void *)n) == 0);
    pthread_barrier_wait(&filled);
    say("ready\n");
    wait_for_term();
    pthread_barrier_wait(&over);
    for (int n = 0; n < PARTS; n++) MUST(pthread_join(threads[n], NULL) == 0);
    say("settle: ok\n");
    return 0;
}

/* Each child writes to a part of its own of what all share. */
static int case_children(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 40) * MIB / 2, own = bytes / 4;
    char *area = map(bytes);
    pid_t children[4];
    int ends[2];
    char byte = 1;
    add(area, bytes);
    MUST(pipe(ends) == 0);
    for (int n = 0; n < 4; n++) {
        MUST((children[n] = fork()) >= 0);
        if (children[n] > 0) continue;
        fill(area + n * own, own, SEED, 100 + n);
        MUST(write(ends[1], &byte, 1) == 1);
        wait_for_term();
        check(area + n * own, own, SEED, 100 + n, "a child's own");
        _exit(0);
    }
    for (int n = 0; n < 4; n++) MUST(read(ends[0], &byte, 1) == 1);
    say("ready\n");
    wait_for_term();
    for (int n = 0; n < 4; n++) {
        MUST(kill(children[n], SIGTERM) == 0);
        wait_ok(children[n], "a child");
    }
    check_all("after the rest");
    say("settle: ok\n");
    return 0;
}

static const struct test_case cases[] = {
    {"heap", case_heap},   {"break", case_break},         {"areas", case_areas},
    {"huge", case_huge},   {"grown", case_grown},         {"populated", case_populated},
    {"read", case_read},   {"stacks", case_stacks},       {"children", case_children},
    {NULL, NULL},
};

int main(int argc, char **argv) {
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    MUST(sigprocmask(SIG_BLOCK, &term, NULL) == 0);
    return run_case(cases, argc, argv);
}
