/*
 * children CASE [MIB]: children made in every way there is, each of which checks every byte that it
 * inherited, maps memory of its own, fills and checks that, and changes its copy, while a limit has pushed
 * most of it out.
 */
#include "ours.h"

#include <dlfcn.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

extern char **environ;

static struct ballast load(int argc, char **argv) {
    return ballast_new(number(argc, argv, 0, 48), 17);
}

/* What a child does. It maps and fills by the C library's calls: those are what an agent stands before. */
static void live(struct ballast *b, const char *what) {
    for (int round = 0; round < 2; round++) {
        struct ballast own = ballast_new(6, 23 + round);
        ballast_check(&own, what);
        ballast_check(b, what);
        ballast_change(b);
        ballast_check(b, what);
        ballast_check(&own, what);
        MUST(munmap(own.start, own.bytes) == 0);
    }
}

static int parent_of(pid_t child, struct ballast *b, const char *name) {
    MUST(child > 0);
    ballast_check(b, "parent beside its child");
    wait_ok(child, name);
    ballast_check(b, "parent after its child");
    printf("%s: ok\n", name);
    return 0;
}

/* ---- made around fork ------------------------------------------------------------------- */

static int case_underscore_fork(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    pid_t child = _Fork();
    if (child == 0) {
        live(&b, "child of _Fork");
        _exit(0);
    }
    return parent_of(child, &b, "_Fork");
}

/* An instruction of the program's own: nobody stands before that. */
static long raw(long number, long a, long b) {
    long result;
    register long r10 __asm__("r10") = 0, r8 __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(0), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

static int case_raw_clone(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    long child = raw(SYS_clone, SIGCHLD, 0);
    if (child == 0) {
        live(&b, "child of a clone instruction");
        pid_t grandchild = fork();
        MUST(grandchild >= 0);
        if (grandchild == 0) {
            live(&b, "its child");
            _exit(0);
        }
        wait_ok(grandchild, "grandchild");
        _exit(0);
    }
    return parent_of(child, &b, "raw-clone");
}

/* As above, by the newer call. */
static int case_raw_clone3(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    /* flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls */
    uint64_t arguments[8] = {0, 0, 0, 0, SIGCHLD, 0, 0, 0};
    long child = raw(SYS_clone3, (long)arguments, sizeof arguments);
    if (child == 0) {
        live(&b, "child of a clone3 instruction");
        _exit(0);
    }
    return parent_of(child, &b, "raw-clone3");
}

/* What a child sees of memory of which a sixteenth is looked at: all of it would not fit where nothing leaves. */
static void look(const struct ballast *b, const char *what) {
    for (size_t page = 0; page < b->bytes / PAGE; page += 16) {
        uint64_t key = page_key(b->seed, page, b->version);
        for (size_t w = 0; w < WORDS; w++)
            if (((uint64_t *)b->start)[page * WORDS + w] != word_at(key, w)) die("wrong word: %s", what);
    }
}

/* Waits until some of what this process has is out. */
static void until_out(unsigned long mib) {
    unsigned long kib = ~0ul;
    while (kib / 1024 >= mib) {
        char line[128];
        FILE *status = fopen("/proc/self/status", "r");
        MUST(status);
        while (fgets(line, sizeof line, status))
            if (sscanf(line, "RssAnon: %lu", &kib) == 1) break;
        fclose(status);
        usleep(1000);
    }
}

static struct ballast inherited;
static void *wiped, *withheld;
static bool by_library;

/* Has the memory of a process that has ended, and its agent with it; forks then. */
static int go_on(void *line) {
    const int *ends = line;
    char word;
    MUST(close(ends[1]) == 0 && read(ends[0], &word, 1) == 0);
    /* Until the pager has seen that, too. */
    usleep(300 * 1000);
    look(&inherited, "memory of a process that has ended");
    pid_t child = by_library ? fork() : raw(SYS_clone, SIGCHLD, 0);
    MUST(child >= 0);
    if (child == 0) {
        look(&inherited, "child of who has a dead process's memory");
        check_zero(wiped, 64 * PAGE, "wiped on fork");
        /* An agent may have come to lie there by then. */
        MUST(by_library || (msync(withheld, 64 * PAGE, MS_ASYNC) != 0 && errno == ENOMEM));
        struct ballast own = ballast_new(1, 9);
        ballast_check(&own, "its own");
        _exit(0);
    }
    wait_ok(child, "child of a successor");
    look(&inherited, "after its child");
    MUST(((uint64_t *)wiped)[0] == 7 && ((uint64_t *)withheld)[0] == 7);
    _exit(0);
}

static int case_successor(int argc, char **argv) {
    by_library = number(argc, argv, 1, 0);
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t middle = fork();
    MUST(middle >= 0);
    if (middle == 0) {
        wiped = map(64 * PAGE), withheld = map(64 * PAGE);
        for (size_t page = 0; page < 64; page++)
            ((uint64_t *)wiped)[page * WORDS] = ((uint64_t *)withheld)[page * WORDS] = 7;
        MUST(madvise(wiped, 64 * PAGE, MADV_WIPEONFORK) == 0);
        MUST(madvise(withheld, 64 * PAGE, MADV_DONTFORK) == 0);
        inherited = load(argc, argv);
        /* Some of it is out, and there is room for what comes back. */
        struct ballast more = ballast_new(40, 29);
        until_out(78);
        MUST(munmap(more.start, more.bytes) == 0);
        void *stack = map(MIB);
        MUST(clone(go_on, (char *)stack + MIB, CLONE_VM | SIGCHLD, ends) > 0);
        raw(SYS_exit_group, 0, 0);
    }
    MUST(close(ends[1]) == 0);
    wait_ok(middle, "whose agent ends with it");
    int status;
    MUST(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    puts("successor: ok");
    return 0;
}

/* Parent, child and grandchild, none of which passes a hook before the next is made; the parents end. */
static int case_raw_chain(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    int ends[2];
    MUST(pipe(ends) == 0);
    long child = raw(SYS_clone, SIGCHLD, 0);
    MUST(child >= 0);
    if (child == 0) {
        if (raw(SYS_clone, SIGCHLD, 0) != 0) _exit(0);
        usleep(100 * 1000);
        live(&b, "grandchild whose parent is gone");
        MUST(write(ends[1], "x", 1) == 1);
        _exit(0);
    }
    wait_ok(child, "raw-chain");
    char word;
    MUST(close(ends[1]) == 0 && read(ends[0], &word, 1) == 1);
    ballast_check(&b, "parent of a chain");
    puts("raw-chain: ok");
    return 0;
}

/* Never calls anything that an agent stands before; what it reads it must get all the same. */
static int case_silent(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    long child = raw(SYS_clone, SIGCHLD, 0);
    if (child == 0) {
        ballast_check(&b, "child that calls nothing");
        ballast_check(&b, "child that calls nothing, again");
        raw(SYS_exit_group, 0, 0);
    }
    return parent_of(child, &b, "silent");
}

/* It may do less than the standard allows here, and programs do more. */
static int case_vfork(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    pid_t child = vfork();
    if (child == 0) {
        struct ballast own = ballast_new(12, 5);
        ballast_check(&own, "mapped by a borrower");
        ballast_check(&b, "borrowed");
        munmap(own.start, own.bytes);
        _exit(0);
    }
    wait_ok(child, "vfork");
    ballast_check(&b, "after a borrower");
    child = vfork();
    if (child == 0) {
        munmap(map(MIB), MIB);
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    wait_ok(child, "vfork");
    char *arguments[] = {"true", NULL};
    MUST(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0);
    wait_ok(child, "posix_spawn");
    ballast_change(&b);
    ballast_check(&b, "after all of them");
    puts("vfork: ok");
    return 0;
}

/* The C library's fork, with whatever handlers were registered. */
static int case_handlers(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    pid_t child = fork();
    if (child == 0) {
        live(&b, "child with handlers");
        _exit(0);
    }
    return parent_of(child, &b, "handlers");
}

/* The same, where a handler has made threads in the child. */
static int case_handler_threads(int argc, char **argv) {
    void (*join)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "early_join_handlers");
    if (!join) die("the library was not loaded");
    struct ballast b = load(argc, argv);
    for (int round = 0; round < 5; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            join();
            ballast_check(&b, "child with threads");
            _exit(0);
        }
        wait_ok(child, "handler-threads");
    }
    puts("handler-threads: ok");
    return 0;
}

/* Every place for a call is taken by a thread that was killed long ago, and there is no other way to join. */
static int case_dead_callers(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    struct call *places = calls();
    for (int i = 0; i < BELLS; i++) {
        places[i].since_s = 0u - 100;
        places[i].state = i % 3 + 1;
    }
    char folder[] = "/tmp/ebb-e2e-root-XXXXXX";
    MUST(mkdtemp(folder) && chdir(folder) == 0 && rmdir(folder) == 0 && chroot(".") == 0);
    pid_t child = fork();
    if (child == 0) {
        live(&b, "child among dead callers");
        _exit(0);
    }
    return parent_of(child, &b, "dead-callers");
}

/* ---- made by somebody else, somewhere else ---------------------------------------------- */

static int and_then_fork(struct ballast *b, const char *name) {
    pid_t child = fork();
    if (child == 0) {
        live(b, name);
        _exit(0);
    }
    return parent_of(child, b, name);
}

static int case_setuid(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    MUST(setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    return and_then_fork(&b, "setuid");
}

static int case_chroot(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    char folder[] = "/tmp/ebb-e2e-root-XXXXXX";
    MUST(mkdtemp(folder) && chdir(folder) == 0 && rmdir(folder) == 0 && chroot(".") == 0);
    return and_then_fork(&b, "chroot");
}

static int case_mounts(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    MUST(unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    MUST(mount("none", "/tmp", "tmpfs", 0, NULL) == 0);
    MUST(mount("none", "/run", "tmpfs", 0, NULL) == 0);
    return and_then_fork(&b, "mounts");
}

static int case_network(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    MUST(unshare(CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS) == 0);
    return and_then_fork(&b, "network");
}

static int case_processes(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    MUST(unshare(CLONE_NEWPID) == 0);
    pid_t child = fork();
    if (child == 0) {
        MUST(getpid() == 1);
        live(&b, "first process of a namespace");
        pid_t grandchild = fork();
        MUST(grandchild >= 0);
        if (grandchild == 0) {
            live(&b, "second process of a namespace");
            _exit(0);
        }
        wait_ok(grandchild, "second process");
        _exit(0);
    }
    return parent_of(child, &b, "processes");
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

/* Calls that the kernel makes for a process of one thread only, between changes of all memory. */
static int case_one_thread(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    static const int flags[] = {CLONE_THREAD, CLONE_SIGHAND, CLONE_VM, CLONE_THREAD | CLONE_FILES};
    int before = open_descriptors();
    for (int i = 0; i < 60; i++) {
        MUST(unshare(flags[i % 4]) == 0);
        MUST(syscall(SYS_unshare, flags[i % 4]) == 0);
        MUST(open_descriptors() == before);
        if (i % 6 == 0) ballast_check(&b, "after a call of a process of one thread");
        if (i % 12 == 0) ballast_change(&b);
    }
    MUST(unshare(CLONE_THREAD | 1) == -1 && errno == EINVAL);
    return and_then_fork(&b, "one-thread");
}

static void *sleeps(void *argument) {
    pause();
    return argument;
}

/* The same of a process of two threads: the kernel refuses it. */
static int case_two_threads(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    pthread_t other;
    MUST(pthread_create(&other, NULL, sleeps, NULL) == 0);
    int before = open_descriptors();
    for (int i = 0; i < 60; i++) {
        MUST(unshare(CLONE_NEWUSER) == -1 && errno == EINVAL);
        MUST(unshare(CLONE_THREAD) == -1 && errno == EINVAL);
        MUST(open_descriptors() == before);
        if (i % 10 == 0) ballast_check(&b, "after a refused call");
    }
    return and_then_fork(&b, "two-threads");
}

static void write_file(const char *path, const char *text) {
    int fd = open(path, O_WRONLY);
    MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0);
}

/* Namespaces of a user's own, the second one within the first. */
static int case_users(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    char user[32], group[32];
    for (int depth = 0; depth < 2; depth++) {
        snprintf(user, sizeof user, "0 %u 1", geteuid());
        snprintf(group, sizeof group, "0 %u 1", getegid());
        int before = open_descriptors();
        MUST(unshare(CLONE_NEWUSER | (depth ? CLONE_NEWPID | CLONE_NEWNS : 0)) == 0);
        MUST(open_descriptors() == before);
        write_file("/proc/self/setgroups", "deny");
        write_file("/proc/self/uid_map", user);
        write_file("/proc/self/gid_map", group);
        MUST(geteuid() == 0);
        ballast_check(&b, "in a namespace of users");
        ballast_change(&b);
    }
    pid_t child = fork();
    if (child == 0) {
        MUST(getpid() == 1);
        live(&b, "first process of a namespace");
        _exit(0);
    }
    return parent_of(child, &b, "users");
}

/* Namespaces that are there already: those of a child, and the time of this process. */
static int case_enter(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    int ready[2], over[2];
    char byte, path[64];
    MUST(pipe(ready) == 0 && pipe(over) == 0);
    pid_t other = fork();
    if (other == 0) {
        MUST(unshare(CLONE_NEWUSER | CLONE_NEWUTS) == 0 && close(over[1]) == 0 && write(ready[1], "", 1) == 1);
        MUST(read(over[0], &byte, 1) == 0);
        _exit(0);
    }
    MUST(other > 0 && read(ready[0], &byte, 1) == 1);
    int time = open("/proc/self/ns/time", O_RDONLY);
    MUST(time >= 0);
    if (geteuid() == 0)
        for (int i = 0; i < 20; i++) MUST(setns(time, i % 2 ? CLONE_NEWTIME : 0) == 0);
    snprintf(path, sizeof path, "/proc/%d/ns/user", other);
    int users = open(path, O_RDONLY);
    snprintf(path, sizeof path, "/proc/%d/ns/uts", other);
    int names = open(path, O_RDONLY);
    MUST(users >= 0 && names >= 0);
    MUST(setns(names, CLONE_NEWTIME) == -1 && errno == EINVAL);
    MUST(setns(users, CLONE_NEWUSER) == 0 && setns(names, CLONE_NEWUTS) == 0);
    MUST(setns(users, CLONE_NEWUSER) == -1 && errno == EINVAL);
    MUST(close(over[1]) == 0);
    wait_ok(other, "another process");
    return and_then_fork(&b, "enter");
}

/* No descriptor is left, and no more than COUNT may be. */
static int case_descriptors(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    struct {
        unsigned long now, most;
    } few = {4, 4};
    while (dup(0) >= 0 && dup(0) < 64);
    MUST(syscall(SYS_prlimit64, 0, 7 /* NOFILE */, &few, NULL) == 0);
    int before = dup(0);
    MUST(before < 0);
    return and_then_fork(&b, "descriptors");
}

/* A filter that answers some calls with `action`. */
static void refuse(const int *calls, size_t count, unsigned action) {
    struct sock_filter code[64];
    size_t at = 0;
    code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                              offsetof(struct seccomp_data, nr));
    for (size_t i = 0; i < count; i++) {
        code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
        code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    }
    code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = at, .filter = code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

static int case_filter(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    refuse((int[]){SYS_socket, SYS_connect, SYS_openat}, 3, SECCOMP_RET_ERRNO | EPERM);
    return and_then_fork(&b, "filter");
}

/* Behind a filter that ends the process for what an agent would call to step aside. */
static int case_filtered_thread(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    refuse((int[]){SYS_pidfd_open, SYS_pidfd_getfd, SYS_tgkill}, 3, SECCOMP_RET_KILL_PROCESS);
    MUST(unshare(CLONE_THREAD) == -1 && errno == EINVAL);
    return and_then_fork(&b, "filtered-thread");
}

/* Three processes in which no thread of an agent could step aside, or start again. */
static int case_refused_thread(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    struct rlimit before, few = {3, 3}, none = {0, 0};
    MUST(getrlimit(RLIMIT_NOFILE, &before) == 0);
    few.rlim_max = before.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &few) == 0 && dup(0) < 0);
    MUST(unshare(CLONE_THREAD) == -1 && errno == EINVAL);
    MUST(setrlimit(RLIMIT_NOFILE, &before) == 0 && unshare(CLONE_THREAD) == 0);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            if (i == 0)
                MUST(unshare(CLONE_NEWPID) == 0);
            else
                MUST(setrlimit(RLIMIT_NPROC, &none) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
            MUST(unshare(CLONE_THREAD) == -1 && errno == EINVAL);
            ballast_check(&b, "child after a refusal");
            ballast_change(&b);
            ballast_check(&b, "child after a refusal and a change");
            _exit(0);
        }
        wait_ok(child, "child whose agent stays");
    }
    return and_then_fork(&b, "refused-thread");
}

/* Nothing that could connect two processes. The child cannot be paged; it goes on all the same. */
static int case_strict_filter(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    refuse((int[]){SYS_socket, SYS_connect, SYS_socketpair, SYS_tgkill}, 4, SECCOMP_RET_ERRNO | EPERM);
    pid_t child = fork();
    if (child == 0) {
        ballast_check(&b, "child behind a strict filter");
        ballast_check(&b, "child behind a strict filter, again");
        munmap(ballast_new(2, 3).start, 2 * MIB);
        _exit(0);
    }
    return parent_of(child, &b, "strict-filter");
}

/* Two filters: whatever an agent would call that the child itself does not ends it. It starts a program, too. */
static int case_killing_filter(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    setenv("OTHER", "kept", 1);
    refuse((int[]){SYS_socket, SYS_socketpair, SYS_close_range, SYS_userfaultfd, SYS_sendmsg, SYS_recvmsg,
                   SYS_capset, SYS_gettid, SYS_getpid, SYS_clock_gettime, SYS_tgkill},
           11, SECCOMP_RET_KILL_PROCESS);
    refuse((int[]){SYS_ptrace}, 1, SECCOMP_RET_KILL_PROCESS);
    pid_t child = fork();
    if (child == 0) {
        ballast_check(&b, "child behind a filter that kills");
        munmap(ballast_new(2, 3).start, 2 * MIB);
        execl("/usr/bin/printenv", "printenv", "OTHER", (char *)NULL);
        _exit(1);
    }
    return parent_of(child, &b, "killing-filter");
}

static const struct test_case cases[] = {
    {"_Fork", case_underscore_fork}, {"raw-clone", case_raw_clone},
    {"raw-clone3", case_raw_clone3}, {"raw-chain", case_raw_chain},
    {"successor", case_successor}, {"silent", case_silent}, {"vfork", case_vfork},
    {"handlers", case_handlers}, {"handler-threads", case_handler_threads}, {"setuid", case_setuid}, {"chroot", case_chroot},
    {"mounts", case_mounts}, {"network", case_network}, {"processes", case_processes},
    {"one-thread", case_one_thread}, {"two-threads", case_two_threads}, {"users", case_users}, {"enter", case_enter},
    {"filtered-thread", case_filtered_thread}, {"refused-thread", case_refused_thread},
    {"descriptors", case_descriptors}, {"filter", case_filter},
    {"dead-callers", case_dead_callers},
    {"strict-filter", case_strict_filter}, {"killing-filter", case_killing_filter},
    {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
