/*
 * waits [SECONDS]: for so long, and until there was enough of it, threads wait in calls that give up when their thread is made to stand, and
 * others take and leave memory by themselves so fast that all are held all the time. No call may
 * give up, and none may do less than it was asked for.
 */
#include "common.h"

#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#define BIG (256 * 1024)
#define BLOCKS 96
#define BLOCK_PAGES 16
/* Of a call with a time limit: more than it takes on any host. */
#define LIMIT_S 600

enum { BYTES, STREAM, MESSAGES, PARTS, ENDS };

static int ends[ENDS][2];
static int poll_set, event, semaphores;
static atomic_ulong calls;

/* What a call must return. */
static void expect(const char *what, long got, long want) {
    atomic_fetch_add(&calls, 1);
    if (got < 0) die("%s: %s", what, strerror(errno));
    if (got != want) die("%s: %ld of %ld", what, got, want);
}

static void *writes(void *buffer) {
    for (;;) expect("write", write(ends[BYTES][1], buffer, BIG), BIG);
    return buffer;
}

static void *sends(void *buffer) {
    for (;;) expect("send", send(ends[STREAM][1], buffer, BIG, 0), BIG);
    return buffer;
}

/* As slowly as makes who fills it wait. */
static void *reads(void *end) {
    char buffer[8192];
    for (;;) MUST(read(*(int *)end, buffer, sizeof buffer) > 0);
    return end;
}

static void *receives_all(void *unused) {
    char buffer[4096];
    for (;;) expect("recv of all", recv(ends[PARTS][0], buffer, sizeof buffer, MSG_WAITALL), sizeof buffer);
    return unused;
}

static void *sends_parts(void *unused) {
    char part[1000] = {0};
    for (;; usleep(20)) MUST(write(ends[PARTS][1], part, sizeof part) > 0);
    return unused;
}

static void *asks(void *unused) {
    char word = 0;
    struct timeval limit = {.tv_sec = LIMIT_S};
    MUST(setsockopt(ends[MESSAGES][0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    for (;;) {
        expect("send of a word", send(ends[MESSAGES][0], &word, 1, 0), 1);
        expect("recv within a time", recv(ends[MESSAGES][0], &word, 1, 0), 1);
    }
    return unused;
}

static void *answers(void *unused) {
    char word;
    for (;;) MUST(read(ends[MESSAGES][1], &word, 1) == 1 && write(ends[MESSAGES][1], &word, 1) == 1);
    return unused;
}

static void *waits_for_events(void *unused) {
    struct epoll_event found;
    uint64_t count;
    for (;;) {
        expect("epoll_wait", epoll_wait(poll_set, &found, 1, LIMIT_S * 1000), 1);
        MUST(read(event, &count, sizeof count) == sizeof count);
    }
    return unused;
}

static void *makes_events(void *unused) {
    uint64_t one = 1;
    struct sembuf up = {.sem_op = 1};
    for (;; usleep(30)) {
        MUST(write(event, &one, sizeof one) == sizeof one);
        if (semop(semaphores, &up, 1) < 0 && errno != ERANGE) return unused; /* It is over. */
    }
    return unused;
}

static void *waits_for_semaphores(void *unused) {
    struct sembuf down = {.sem_op = -1};
    for (;;) {
        int got = semop(semaphores, &down, 1);
        if (got < 0 && errno != EINTR) return unused; /* It is over. */
        expect("semop", got, 0);
    }
}

static void *waits_for_signals(void *unused) {
    struct timespec limit = {.tv_sec = LIMIT_S};
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    for (;;) expect("sigtimedwait", sigtimedwait(&set, NULL, &limit), SIGUSR1);
    return unused;
}

static void *sends_signals(void *thread) {
    for (;; usleep(50)) pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return thread;
}

/* Takes and leaves memory by system calls of its own. */
static void *grows(void *seed) {
    uint64_t random = (uintptr_t)seed;
    uint64_t *blocks[BLOCKS] = {0};
    for (;;) {
        uint64_t which = below(&random, BLOCKS), *block = blocks[which];
        if (block) {
            for (size_t page = 0; page < BLOCK_PAGES; page++)
                if (block[page * WORDS] != which + page + 1) die("a wrong word");
            syscall(SYS_munmap, block, BLOCK_PAGES * PAGE);
            blocks[which] = NULL;
            continue;
        }
        block = (void *)syscall(SYS_mmap, NULL, BLOCK_PAGES * PAGE, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(block != MAP_FAILED);
        for (size_t page = 0; page < BLOCK_PAGES; page++) block[page * WORDS] = which + page + 1;
        blocks[which] = block;
    }
}

static pthread_t start(void *(*what)(void *), void *argument) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, what, argument) == 0);
    return thread;
}

int main(int argc, char **argv) {
    sigset_t set;
    /* A stop of its process group ends such calls on any system. */
    MUST(setpgid(0, 0) == 0);
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    MUST(pipe(ends[BYTES]) == 0);
    for (int end = STREAM; end < ENDS; end++) MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[end]) == 0);
    struct epoll_event wanted = {.events = EPOLLIN};
    MUST((event = eventfd(0, 0)) >= 0 && (poll_set = epoll_create1(0)) >= 0);
    MUST(epoll_ctl(poll_set, EPOLL_CTL_ADD, event, &wanted) == 0);
    MUST((semaphores = semget(IPC_PRIVATE, 1, 0600)) >= 0);
    char *buffer = calloc(1, BIG);
    start(writes, buffer);
    start(reads, &ends[BYTES][0]);
    start(sends, buffer);
    start(reads, &ends[STREAM][0]);
    start(receives_all, NULL);
    start(sends_parts, NULL);
    start(asks, NULL);
    start(answers, NULL);
    start(waits_for_events, NULL);
    start(makes_events, NULL);
    start(waits_for_semaphores, NULL);
    pthread_t waiter = start(waits_for_signals, NULL);
    start(sends_signals, &waiter);
    for (uintptr_t seed = 1; seed <= 4; seed++) start(grows, (void *)seed);
    sleep(argc > 1 ? atoi(argv[1]) : 3);
    while (calls < 1000) usleep(1000);
    semctl(semaphores, 0, IPC_RMID);
    puts("waits: ok");
    fflush(stdout);
    _exit(0);
}
