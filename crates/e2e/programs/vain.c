/*
 * More memory than can be had, wanted in different ways: vain CASE [NUMBER]
 *
 * Pages do not compress. Only what ends by itself says so.
 */
#include "common.h"
#include <stdbool.h>
#include <sys/ptrace.h>

/* Takes pages for ever. */
static __attribute__((noreturn)) void take(uint64_t seed) {
    for (uint64_t turn = 1;; turn++) {
        char *area = map(MIB);
        for (size_t page = 0; page < MIB / PAGE; page++)
            fill(area + page * PAGE, PAGE, seed, turn * 1000 + page);
    }
}

static __attribute__((unused)) void *take_in_thread(void *seed) { take((uint64_t)(uintptr_t)seed); }

/* One process and one thread. */
static int case_alone(int argc, char **argv) {
    (void)argc, (void)argv;
    take(1);
}

static int case_threads(int argc, char **argv) {
    long count = number(argc, argv, 0, 8);
    for (long i = 1; i < count; i++) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, take_in_thread, (void *)i) == 0);
    }
    take(count);
}

/* An area that nobody tells of: it is found by looking. */
static int case_heap(int argc, char **argv) {
    (void)argc, (void)argv;
    for (uint64_t turn = 1;; turn++) {
        char *at = sbrk(MIB);
        MUST(at != (void *)-1);
        fill(at, MIB, turn, 1);
    }
}

/* Memory that must stay where it is. */
static int case_locked(int argc, char **argv) {
    (void)argc, (void)argv;
    for (uint64_t turn = 1;; turn++) {
        char *area = map(MIB);
        MUST(mlock(area, MIB) == 0);
        fill(area, MIB, turn, 1);
    }
}

/* Children that are there at once and all grow. */
static int case_children(int argc, char **argv) {
    for (long i = number(argc, argv, 0, 12); i > 0; i--)
        if (fork() == 0) take(i);
    take(0);
}

/* Children are born all the time, have a few pages each, and stay. */
static int case_births(int argc, char **argv) {
    long pages = number(argc, argv, 0, 64);
    struct ballast b = ballast_new(8, 7);
    for (uint64_t i = 1;; i++) {
        pid_t child = fork();
        if (child < 0) take(i);
        if (child == 0) {
            char *area = map(pages * PAGE);
            fill(area, pages * PAGE, i, 1);
            fill((char *)b.start + i % 512 * PAGE, PAGE, i, 2);
            pause();
        }
        usleep(2000);
    }
}

/* Several at a time come and go all the time, while their parent grows. */
static void *come_and_go(void *unused) {
    (void)unused;
    for (;;) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child > 0) waitpid(child, NULL, 0);
    }
}

static int case_turnover(int argc, char **argv) {
    for (long i = number(argc, argv, 0, 4); i > 0; i--) {
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, come_and_go, NULL) == 0);
    }
    take(1);
}

/* Processes that each make the next and end: who looks for them finds the one before. */
static int case_relay(int argc, char **argv) {
    for (long i = number(argc, argv, 0, 16); i > 0; i--) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child > 0) continue;
        for (;;) {
            child = fork();
            if (child > 0) _exit(0);
            if (child < 0) usleep(1000);
        }
    }
    say("begun\n");
    take(1);
}

/* Starts a child that has `mib` of its own and is stopped, or traced. */
static void stopped(size_t mib, bool traced) {
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        struct ballast own = ballast_new(mib, 5);
        /* It does not go on with the others of its process group. */
        MUST(setpgid(0, 0) == 0);
        if (traced) MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
        raise(SIGSTOP);
        ballast_check(&own, "child that was stopped");
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
}

/* A stopped child shares all that the parent had. */
static int case_stopped_relative(int argc, char **argv) {
    ballast_new(number(argc, argv, 0, 12), 3);
    stopped(1, false);
    take(1);
}

/* Stopped children hold most of what there may be. */
static int case_stopped_others(int argc, char **argv) {
    for (long i = number(argc, argv, 0, 1); i > 0; i--) stopped(i == 1 ? 8 : 1, false);
    take(1);
}

static int case_traced(int argc, char **argv) {
    (void)argc, (void)argv;
    stopped(8, true);
    take(1);
}

static const struct test_case cases[] = {
    {"alone", case_alone}, {"threads", case_threads}, {"heap", case_heap},
    {"locked", case_locked}, {"children", case_children}, {"births", case_births},
    {"turnover", case_turnover}, {"relay", case_relay}, {"stopped-relative", case_stopped_relative},
    {"stopped-others", case_stopped_others}, {"traced", case_traced}, {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
