/*
 * later: processes that begin far from the limit, where none waits for its agent, and that go on at once with what an agent
 * matters for. Most of them end before they have one. The last grow until most of what they have filled is stored.
 */
#include "common.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>

#define GROWING 6
#define GROWN_MIB 40

/* Descriptors by which growing processes tell that they have filled their memory, and learn that all have. */
#define FILLED 100
#define ALL_FILLED 101

/* Filled without a call of the C library. */
static char of_the_program[GROWN_MIB * MIB / 4] __attribute__((aligned(4096)));

static void grow(unsigned seed) {
    struct ballast area = ballast_new(GROWN_MIB * 3 / 4, seed);
    fill(of_the_program, sizeof of_the_program, seed, 2);
    char end;
    MUST(write(FILLED, "", 1) == 1 && read(ALL_FILLED, &end, 1) == 0);
    ballast_check(&area, "an area of its own");
    check(of_the_program, sizeof of_the_program, seed, 2, "the program's data");
    ballast_change(&area);
    ballast_check(&area, "a changed area");
    check(of_the_program, sizeof of_the_program, seed, 2, "the program's data, again");
}

/* Ends after a while that differs: before, while and after its agent joins. */
static void live_shortly(int turn) {
    usleep(turn * 250 % 9000);
    _exit(0);
}

/* More at a time, and more in all, than there are places for their agents' calls. */
static void many_that_end_soon(void) {
    enum { AT_A_TIME = 12 };
    for (int turn = 0; turn < 480; turn += AT_A_TIME) {
        pid_t children[AT_A_TIME];
        for (int i = 0; i < AT_A_TIME; i++) {
            children[i] = fork();
            if (children[i] == 0) live_shortly(turn + i);
        }
        for (int i = 0; i < AT_A_TIME; i++) wait_ok(children[i], "a child that ends soon");
    }
}

/* Nothing that an agent needs is left at once. */
static void limits_of_young_children(void) {
    for (int turn = 0; turn < 10; turn++) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit none = {3, 3};
            MUST(setrlimit(RLIMIT_NOFILE, &none) == 0);
            struct ballast area = ballast_new(1, turn + 1);
            ballast_check(&area, "with few descriptors");
            _exit(0);
        }
        wait_ok(child, "a child with few descriptors");
    }
}

/* A child that forks at once: its child needs the agent that it does not have yet. */
static void forks_of_young_children(void) {
    for (int turn = 0; turn < 20; turn++) {
        pid_t child = turn % 2 ? fork() : (pid_t)syscall(SYS_fork);
        if (child == 0) {
            pid_t second = turn % 4 < 2 ? fork() : (pid_t)syscall(SYS_fork);
            if (second == 0) {
                struct ballast area = ballast_new(1, turn + 1);
                ballast_check(&area, "of a grandchild");
                _exit(0);
            }
            wait_ok(second, "a grandchild");
            _exit(0);
        }
        wait_ok(child, "a child that forks at once");
    }
}

static void map_in_handler(int number) {
    (void)number;
    void *area = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED) _exit(WRONG);
    *(volatile char *)area = 1;
    munmap(area, PAGE);
}

/* Signals whose handler maps memory arrive while the agent joins, and while other calls wait for it. */
static void signals_to_young_children(void) {
    for (int turn = 0; turn < 20; turn++) {
        pid_t child = fork();
        if (child == 0) {
            struct itimerval often = {{0, 200}, {0, 200}};
            signal(SIGALRM, map_in_handler);
            MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
            for (int i = 0; i < 50; i++) {
                struct ballast area = ballast_new(1, i + 1);
                ballast_check(&area, "beside a handler");
                MUST(munmap(area.start, area.bytes) == 0);
            }
            _exit(0);
        }
        wait_ok(child, "a child with signals");
    }
}

static void *forks(void *argument) {
    for (int turn = 0; turn < 10; turn++) {
        pid_t child = fork();
        if (child == 0) live_shortly(turn);
        wait_ok(child, "a child of a thread");
    }
    return argument;
}

/* Threads of a young process that fork. */
static void threads_of_young_children(void) {
    for (int turn = 0; turn < 5; turn++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t threads[4];
            for (int i = 0; i < 4; i++) MUST(pthread_create(&threads[i], NULL, forks, NULL) == 0);
            for (int i = 0; i < 4; i++) MUST(pthread_join(threads[i], NULL) == 0);
            _exit(0);
        }
        wait_ok(child, "a child with threads");
    }
}

/* A filter for all threads that kills for what an agent calls to join. */
static void filters_of_young_children(void) {
    for (int turn = 0; turn < 10; turn++) {
        pid_t child = fork();
        if (child == 0) {
            struct sock_filter code[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 2, 0),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvmsg, 1, 0),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
            };
            struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
            MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
            MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
            struct ballast area = ballast_new(1, turn + 1);
            usleep(turn * 1000);
            ballast_check(&area, "behind a filter");
            _exit(0);
        }
        wait_ok(child, "a child that filters its calls");
    }
}

/* Programs that execute the next one at once. */
static void chain(char *own, int left) {
    char count[16], *arguments[] = {own, count, NULL};
    if (left == 0) return;
    snprintf(count, sizeof count, "%d", left - 1);
    execv("/proc/self/exe", arguments);
    die("execv: %s", strerror(errno));
}

/* Half of them are children that go on, half are programs that a child executes. */
static void grow_together(char *own) {
    int filled[2], all_filled[2];
    pid_t growing[GROWING];
    MUST(pipe(filled) == 0 && pipe(all_filled) == 0);
    MUST(dup2(filled[1], FILLED) == FILLED && dup2(all_filled[0], ALL_FILLED) == ALL_FILLED);
    MUST(fcntl(all_filled[1], F_SETFD, FD_CLOEXEC) == 0);
    for (int i = 0; i < GROWING; i++) {
        growing[i] = i % 2 ? fork() : vfork();
        if (growing[i] == 0 && i % 2) {
            close(all_filled[1]);
            usleep(i * 1500);
            grow(i + 1);
            _exit(0);
        }
        if (growing[i] == 0) {
            execl("/proc/self/exe", own, "grow", NULL);
            _exit(WRONG);
        }
    }
    for (int i = 0; i < GROWING; i++) {
        char word;
        MUST(read(filled[0], &word, 1) == 1);
    }
    close(all_filled[1]);
    for (int i = 0; i < GROWING; i++) wait_ok(growing[i], "a process that grows");
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "grow") == 0) {
        grow(GROWING + 1);
        return 0;
    }
    if (argc > 1) {
        chain(argv[0], atoi(argv[1]));
        return 0;
    }
    many_that_end_soon();
    forks_of_young_children();
    signals_to_young_children();
    threads_of_young_children();
    filters_of_young_children();
    limits_of_young_children();
    pid_t child = fork();
    if (child == 0) chain(argv[0], 40);
    wait_ok(child, "a chain of programs");
    grow_together(argv[0]);
    printf("later: ok\n");
    return 0;
}
