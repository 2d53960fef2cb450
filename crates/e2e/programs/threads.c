/*
 * threads CASE [MIB ...]: how threads end and are joined, with MIB of filled memory around them
 * that a limit must have pushed out, and their stacks and control blocks with it.
 */
#include "common.h"

#include <aio.h>
#include <dlfcn.h>
#include <malloc.h>
#include <netdb.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>

static struct ballast load(int argc, char **argv, int index) {
    return ballast_new(number(argc, argv, index, 48), 13);
}

static __thread uint64_t own[1024];

static void *thread_life(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    volatile uint64_t deep[8192];
    for (size_t i = 0; i < 1024; i++) own[i] = word_at(seed, i);
    for (size_t i = 0; i < 8192; i++) deep[i] = word_at(seed, i);
    usleep(seed % 7 * 1000);
    for (size_t i = 0; i < 1024; i++) MUST(own[i] == word_at(seed, i));
    for (size_t i = 0; i < 8192; i++) MUST(deep[i] == word_at(seed, i));
    return argument;
}

static volatile int moving = 1;

/* Between pages that stay: nothing larger is put where it has been. */
static void *move_memory(void *unused) {
    (void)unused;
    char *own = (char *)map(2 * MIB + 2 * PAGE) + PAGE, *other = own + MIB;
    MUST(mprotect(own - PAGE, PAGE, PROT_NONE) == 0 && mprotect(other + MIB, PAGE, PROT_NONE) == 0);
    fill(own, MIB, 6, 1);
    while (moving) {
        MUST(mremap(own, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
        char *moved = other;
        other = own, own = moved;
    }
    check(own, MIB, 6, 1, "moved");
    return NULL;
}

/* A program counts on the lowest number that is free, while memory moves; and closes all that are not its own. */
static int case_lowest_descriptor(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    long rounds = number(argc, argv, 1, 20000);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, move_memory, NULL) == 0);
    int lowest = dup(0);
    MUST(lowest >= 0 && close(lowest) == 0);
    for (long round = 0; round < rounds; round++) {
        int file = open("/dev/null", O_RDONLY);
        if (file != lowest) die("descriptor %d, not %d, in round %ld", file, lowest, round);
        if (round % 8 == 0) MUST(syscall(SYS_close_range, lowest, ~0u, 0) == 0);
        else MUST(close(file) == 0);
    }
    moving = 0;
    MUST(pthread_join(thread, NULL) == 0);
    ballast_check(&b, "beside moves");
    puts("lowest-descriptor: ok");
    return 0;
}

/* Threads come and go while their stacks and control blocks are pushed out. */
static int case_threads(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    long waves = number(argc, argv, 1, 20);
    for (long wave = 0; wave < waves; wave++) {
        pthread_t threads[32];
        for (long i = 0; i < 32; i++)
            MUST(pthread_create(&threads[i], NULL, thread_life, (void *)(wave * 100 + i + 1)) == 0);
        ballast_check(&b, "beside threads");
        for (long i = 0; i < 32; i++) {
            void *result;
            MUST(pthread_join(threads[i], &result) == 0);
            MUST(result == (void *)(wave * 100 + i + 1));
        }
    }
    puts("threads: ok");
    return 0;
}

static int plain_thread(void *argument) {
    thread_life(argument);
    return 5;
}

/* Threads of the C standard, which do not go through pthread_create's name. */
static int case_standard_threads(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    for (long wave = 0; wave < number(argc, argv, 1, 10); wave++) {
        thrd_t threads[16];
        for (long i = 0; i < 16; i++)
            MUST(thrd_create(&threads[i], plain_thread, (void *)(i * 40 + 1)) == thrd_success);
        ballast_check(&b, "beside threads");
        for (long i = 0; i < 16; i++) {
            int result;
            MUST(thrd_join(threads[i], &result) == thrd_success && result == 5);
        }
    }
    puts("standard-threads: ok");
    return 0;
}

/* Threads that sleep so long before they end that all of their memory is pushed out. */
static void *sleep_then_end(void *argument) {
    usleep(400000);
    return argument;
}

static int sleep_then_end_plainly(void *argument) {
    return sleep_then_end(argument) != NULL;
}

static int case_late_threads(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pthread_t thread;
    thrd_t plain;
    MUST(pthread_create(&thread, NULL, sleep_then_end, &b) == 0);
    MUST(thrd_create(&plain, sleep_then_end_plainly, &b) == thrd_success);
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += 1;
    do {
        ballast_change(&b);
        ballast_check(&b, "beside a thread that ends");
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec || (now.tv_sec == end.tv_sec && now.tv_nsec < end.tv_nsec));
    void *result;
    int plain_result;
    MUST(pthread_join(thread, &result) == 0 && result == &b);
    MUST(thrd_join(plain, &plain_result) == thrd_success && plain_result == 1);
    puts("late-threads: ok");
    return 0;
}

/* Threads end by an instruction of their own, after a time in which they have touched no more than the page of their stack
 * that they are in: their descriptors were long out, if anything lets them go. Nothing else is cleared than what joiners
 * wait for. */
enum { ENDING = 16 };

static __attribute__((noinline)) void end_after_a_while(char *far) {
    struct timespec while_ = {.tv_sec = 1, .tv_nsec = 500000000};
    long result;
    far[0] = 1;
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_nanosleep), "D"(&while_), "S"(0) : "rcx", "r11", "memory");
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_exit), "D"(0) : "rcx", "r11", "memory");
}

static void *end_far_from_the_descriptor(void *argument) {
    char far[32 * PAGE];
    end_after_a_while(far);
    return argument;
}

static int case_bare_exit(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pthread_t threads[ENDING];
    for (int i = 0; i < ENDING; i++)
        MUST(pthread_create(&threads[i], NULL, end_far_from_the_descriptor, NULL) == 0);
    struct timespec now, end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += 3;
    do {
        ballast_change(&b);
        ballast_check(&b, "beside threads that end");
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (now.tv_sec < end.tv_sec);
    for (int i = 0; i < ENDING; i++) MUST(pthread_join(threads[i], NULL) == 0);
    puts("bare-exit: ok");
    return 0;
}

/* A thread ends while it holds robust locks whose pages were pushed out: the next one to take each is
 * told. The kernel writes the locks on the thread's behalf, after its end. */
enum { ROBUST = 16 };
static pthread_mutex_t *robust[ROBUST];
static volatile int robust_held, robust_end;

static void *hold_and_end(void *argument) {
    for (int i = 0; i < ROBUST; i++) MUST(pthread_mutex_lock(robust[i]) == 0);
    robust_held = 1;
    while (!robust_end) usleep(1000);
    return argument;
}

static int case_robust_lock(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < ROBUST; i++) {
        /* Far from all that is read ahead. */
        robust[i] = (void *)((char *)map(512 * PAGE) + 256 * PAGE);
        MUST(pthread_mutex_init(robust[i], &attributes) == 0);
    }
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, hold_and_end, NULL) == 0);
    while (!robust_held) usleep(100);
    for (int round = 0; round < 3; round++) {
        ballast_change(&b);
        ballast_check(&b, "while robust locks are held");
    }
    robust_end = 1;
    MUST(pthread_join(thread, NULL) == 0);
    for (int i = 0; i < ROBUST; i++) {
        int error = pthread_mutex_lock(robust[i]);
        if (error != EOWNERDEAD) die("robust lock %d of a dead thread: %s", i, strerror(error));
    }
    puts("robust-lock: ok");
    return 0;
}

static void *end_later(void *argument) {
    usleep((uintptr_t)argument * 2000);
    return argument;
}

/* Threads that were there before a fork end after it, while a child shares all pages, their control
 * blocks with them. */
static int case_forked_threads(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    for (long wave = 0; wave < number(argc, argv, 1, 8); wave++) {
        pthread_t threads[16];
        for (long i = 0; i < 16; i++)
            MUST(pthread_create(&threads[i], NULL, end_later, (void *)(i + 10)) == 0);
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            ballast_change(&b);
            ballast_check(&b, "in the child");
            _exit(7);
        }
        for (long i = 0; i < 16; i++) {
            void *result;
            MUST(pthread_join(threads[i], &result) == 0 && result == (void *)(i + 10));
        }
        ballast_check(&b, "beside the child");
        int status;
        MUST(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    puts("forked-threads: ok");
    return 0;
}

/* A detached thread frees the job that its handle was written to, and more: the whole page. */
struct job {
    pthread_t thread;
    struct ballast *b;
    volatile int *left;
};

static void *do_job(void *argument) {
    struct job *job = argument;
    volatile int *left = job->left;
    MUST(munmap(job, PAGE) == 0);
    uint64_t deep[512];
    for (size_t i = 0; i < 512; i++) deep[i] = word_at(7, i);
    for (size_t i = 0; i < 512; i++) MUST(deep[i] == word_at(7, i));
    __sync_fetch_and_sub(left, 1);
    return NULL;
}

static int case_detached(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    long count = number(argc, argv, 1, 2000);
    volatile int left = count;
    pthread_attr_t detached;
    MUST(pthread_attr_init(&detached) == 0);
    MUST(pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED) == 0);
    for (long i = 0; i < count; i++) {
        struct job *job = map(PAGE);
        job->b = &b;
        job->left = &left;
        MUST(pthread_create(&job->thread, &detached, do_job, job) == 0);
        while (i - (count - left) > 100) usleep(100);
    }
    while (left) usleep(1000);
    ballast_check(&b, "after detached threads");
    puts("detached: ok");
    return 0;
}

/* Threads that a library made before the agent ran end when their memory is gone. */
static int case_early(int argc, char **argv) {
    void (*join)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "early_join");
    if (!join) die("the library was not loaded");
    struct ballast b = load(argc, argv, 0);
    for (int round = 0; round < 5; round++) ballast_change(&b);
    join();
    ballast_check(&b, "after early threads");
    puts("early: ok");
    return 0;
}

/* Cancelled threads unwind through what they were begun with; exiting ones too. */
static void note_end(void *argument) { __sync_fetch_and_add((int *)argument, 1); }

static void *wait_for_ever(void *argument) {
    pthread_cleanup_push(note_end, argument);
    for (;;) pause();
    pthread_cleanup_pop(0);
    return NULL;
}

static void *exit_early(void *argument) {
    pthread_cleanup_push(note_end, argument);
    pthread_exit(argument);
    pthread_cleanup_pop(0);
    return NULL;
}

static int case_cancelled(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    int ended = 0;
    pthread_t threads[32];
    for (int i = 0; i < 32; i++)
        MUST(pthread_create(&threads[i], NULL, i % 2 ? wait_for_ever : exit_early, &ended) == 0);
    ballast_check(&b, "beside threads to be cancelled");
    for (int i = 0; i < 32; i++) {
        void *result;
        if (i % 2) MUST(pthread_cancel(threads[i]) == 0);
        MUST(pthread_join(threads[i], &result) == 0);
        MUST(result == (i % 2 ? PTHREAD_CANCELED : (void *)&ended));
    }
    MUST(ended == 32);
    puts("cancelled: ok");
    return 0;
}

/* More pages that must stay than can be noted: a robust mutex in each. */
static int case_pins(int argc, char **argv) {
    long count = number(argc, argv, 0, 9000);
    char *area = map(count * PAGE);
    pthread_mutexattr_t robust;
    MUST(pthread_mutexattr_init(&robust) == 0);
    MUST(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    for (long i = 0; i < count; i++) {
        pthread_mutex_t *mutex = (pthread_mutex_t *)(area + i * PAGE);
        MUST(pthread_mutex_init(mutex, &robust) == 0 && pthread_mutex_lock(mutex) == 0);
    }
    struct ballast b = ballast_new(16, 3);
    for (int round = 0; round < 3; round++) ballast_change(&b), ballast_check(&b, "beside pins");
    for (long i = 0; i < count; i++)
        MUST(pthread_mutex_unlock((pthread_mutex_t *)(area + i * PAGE)) == 0);
    puts("pins: ok");
    return 0;
}

/* Threads that the C library makes for itself: of timers, of asynchronous reads, of names looked up. */
static volatile int rings;

static void ring(union sigval value) {
    uint64_t seed = value.sival_int;
    for (size_t i = 0; i < 1024; i++) own[i] = word_at(seed, i);
    usleep(seed * 100);
    for (size_t i = 0; i < 1024; i++) MUST(own[i] == word_at(seed, i));
    __sync_fetch_and_add(&rings, 1);
}

static long address_space_mib(void) {
    long pages;
    FILE *sizes = fopen("/proc/self/statm", "r");
    MUST(sizes && fscanf(sizes, "%ld", &pages) == 1 && fclose(sizes) == 0);
    return pages * PAGE / MIB;
}

static void read_aside(int file, size_t rounds) {
    static char buffers[16][PAGE];
    struct aiocb reads[16];
    for (size_t round = 0; round < rounds; round++) {
        memset(reads, 0, sizeof reads);
        for (int i = 0; i < 16; i++) {
            reads[i].aio_fildes = file, reads[i].aio_buf = buffers[i];
            reads[i].aio_nbytes = PAGE, reads[i].aio_offset = i * PAGE;
            MUST(aio_read(&reads[i]) == 0);
        }
        for (int i = 0; i < 16; i++) {
            const struct aiocb *one[] = {&reads[i]};
            while (aio_error(&reads[i]) == EINPROGRESS) aio_suspend(one, 1, NULL);
            MUST(aio_return(&reads[i]) == (ssize_t)PAGE);
            check(buffers[i], PAGE, 9 + i, 1, "read aside");
        }
    }
}

static void look_up(void) {
    struct gaicb name = {.ar_name = "127.0.0.1"}, *list[] = {&name};
    MUST(getaddrinfo_a(GAI_WAIT, list, 1, NULL) == 0 && gai_error(&name) == 0);
    freeaddrinfo(name.ar_result);
}

enum { TIMERS = 4 };

static int case_inner_threads(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    int file = memfd_create("threads", 0);
    char page[PAGE];
    for (int i = 0; i < 16; i++) {
        fill(page, PAGE, 9 + i, 1);
        MUST(pwrite(file, page, PAGE, i * PAGE) == (ssize_t)PAGE);
    }
    timer_t timers[TIMERS];
    /* An arena takes 64 MiB of address space for ever, and there is one for each thread of those that are there at once. */
    MUST(mallopt(M_ARENA_MAX, 1) == 1);
    for (int i = 0; i < TIMERS; i++) {
        struct sigevent event = {.sigev_notify = SIGEV_THREAD};
        event.sigev_notify_function = ring, event.sigev_value.sival_int = i * 40 + 1;
        MUST(timer_create(CLOCK_MONOTONIC, &event, &timers[i]) == 0);
        struct itimerspec often = {{0, 20000000}, {0, 20000000}};
        MUST(timer_settime(timers[i], 0, &often, NULL) == 0);
    }
    long before = 0;
    for (int round = 0; round < 6 || rings <= 100; round++) {
        ballast_change(&b);
        read_aside(file, 4);
        look_up();
        ballast_check(&b, "beside inner threads");
        /* Threads that idle for a second end: their stacks are there to be used again. */
        if (round == 2) sleep(2), before = address_space_mib();
    }
    for (int i = 0; i < TIMERS; i++) MUST(timer_delete(timers[i]) == 0);
    /* A stack of 8 MiB that is never used again would be there for each thread, and this would wait for ever. */
    while (address_space_mib() - before > 200) usleep(1000);
    puts("inner-threads: ok");
    return 0;
}

static const struct test_case cases[] = {
    {"detached", case_detached}, {"early", case_early}, {"cancelled", case_cancelled},
    {"pins", case_pins}, {"inner-threads", case_inner_threads},
    {"threads", case_threads}, {"standard-threads", case_standard_threads},
    {"late-threads", case_late_threads}, {"robust-lock", case_robust_lock},
    {"forked-threads", case_forked_threads}, {"bare-exit", case_bare_exit},
    {"lowest-descriptor", case_lowest_descriptor}, {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
