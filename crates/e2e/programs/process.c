/*
 * process CASE [MIB ...]: what a program does with processes, threads, signals and its
 * surroundings, each with MIB of filled memory around it that a limit must have pushed out.
 */
#include "common.h"

#include <malloc.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>

extern char **environ;

static int *volatile nowhere;

static struct ballast load(int argc, char **argv, int index) {
    return ballast_new(number(argc, argv, index, 48), 11);
}

/* ---- endings ---------------------------------------------------------------------------- */

static int case_exit(int argc, char **argv) { return number(argc, argv, 0, 0); }

static int case_signal(int argc, char **argv) {
    struct ballast b = load(argc, argv, 1);
    ballast_check(&b, "before the signal");
    /* Whoever started the tests may have it ignored. */
    signal(number(argc, argv, 0, SIGTERM), SIG_DFL);
    kill(getpid(), number(argc, argv, 0, SIGTERM));
    pause();
    return WRONG;
}

static int case_crash(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    ballast_check(&b, "before the crash");
    *nowhere = 1;
    return WRONG;
}

/* Starts what would write the report of a crash, from a signal stack of so many bytes more than the least one, with a guard
 * below it. */
static void report_crash(int number) {
    (void)number;
    char *words[] = {"true", NULL};
    pid_t child = fork();
    if (child == 0) execv("/bin/true", words), _exit(WRONG);
    int status;
    waitpid(child, &status, 0);
    if (status == 0 && write(1, "crash-reports: ok\n", 18) == 18) _exit(0);
    _exit(WRONG);
}

static int case_crash_reports(int argc, char **argv) {
    size_t bytes = (sysconf(_SC_MINSIGSTKSZ) + number(argc, argv, 0, 3072) + 4095) & -4096;
    struct ballast b = load(argc, argv, 1);
    char *stack = mmap(NULL, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(stack != MAP_FAILED && mprotect(stack, 4096, PROT_NONE) == 0);
    stack_t beside = {.ss_sp = stack + 4096, .ss_size = bytes};
    struct sigaction action = {.sa_handler = report_crash, .sa_flags = SA_ONSTACK};
    MUST(sigaltstack(&beside, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
    ballast_check(&b, "before the crash");
    *nowhere = 1;
    return WRONG;
}

/* Ends by exit_group from another thread while the main thread is busy. */
static void *exit_soon(void *argument) {
    usleep(100000);
    exit((int)(intptr_t)argument);
}

static int case_exit_from_thread(int argc, char **argv) {
    struct ballast b = load(argc, argv, 1);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, exit_soon, (void *)number(argc, argv, 0, 5)) == 0);
    for (;;) ballast_change(&b), ballast_check(&b, "while another thread exits");
}

/* The main thread ends first; the process lives on and its status is the last thread's. */
static struct ballast kept;

static void *outlive_main(void *argument) {
    usleep(100000);
    ballast_change(&kept);
    ballast_check(&kept, "after the main thread ended");
    say("outlived\n");
    exit((int)(intptr_t)argument);
}

static int case_main_thread_ends(int argc, char **argv) {
    kept = load(argc, argv, 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, outlive_main, (void *)7L) == 0);
    pthread_exit(NULL);
}

/* ---- forks ------------------------------------------------------------------------------ */

/* The child checks everything, changes its copy, and checks again; the parent's stays. */
static void child_with_copy(struct ballast *b, const char *what) {
    ballast_check(b, what);
    struct ballast half = *b;
    half.bytes /= 2;
    ballast_change(&half);
    ballast_check(&half, what);
    half.start = (char *)b->start + half.bytes;
    half.version = b->version;
    if (memcmp(b->start, half.start, PAGE) == 0) die("%s: changed page is unchanged", what);
    _exit(0);
}

static int case_fork(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) child_with_copy(&b, "forked child");
    ballast_check(&b, "parent beside its child");
    wait_ok(child, "fork");
    ballast_check(&b, "parent after its child");
    ballast_change(&b);
    ballast_check(&b, "parent after its own change");
    puts("fork: ok");
    return 0;
}

/* The parent rewrites everything while the child still reads the old data (a database saving). */
static int case_fork_snapshot(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            ballast_check(&b, "snapshot in the child");
            _exit(0);
        }
        ballast_change(&b);
        wait_ok(child, "fork-snapshot");
        ballast_check(&b, "parent after the snapshot");
    }
    puts("fork-snapshot: ok");
    return 0;
}

/* Areas come under management while forks go on: each child checks the areas there were when it was
 * forked, after a while in which they may be taken away from under it. */
#define NEW_AREA (256 * 1024ul)

static char *new_areas[4096];
static volatile size_t new_count;
static volatile int new_done;

static void *map_areas(void *argument) {
    size_t wanted = (size_t)(intptr_t)argument * MIB / NEW_AREA;
    for (size_t n = 0; n < wanted; n++) {
        char *area = mmap(NULL, NEW_AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(area != MAP_FAILED);
        /* No neighbours: each is an area of its own. */
        MUST(mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED);
        fill(area, NEW_AREA, n, 1);
        new_areas[n] = area;
        __atomic_store_n(&new_count, n + 1, __ATOMIC_RELEASE);
    }
    new_done = 1;
    return NULL;
}

static int case_fork_new_areas(int argc, char **argv) {
    pthread_t thread;
    long mib = number(argc, argv, 0, 48);
    MUST(mib * MIB / NEW_AREA <= 4096);
    MUST(pthread_create(&thread, NULL, map_areas, (void *)(intptr_t)mib) == 0);
    while (!new_done) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child == 0) {
            size_t count = __atomic_load_n(&new_count, __ATOMIC_ACQUIRE);
            for (int round = 0; round < 2; round++) {
                for (size_t n = count > 24 ? count - 24 : 0; n < count; n++)
                    check(new_areas[n], NEW_AREA, n, 1, "a new area in a forked child");
                usleep(5000);
            }
            _exit(0);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (status) die("a child ended with wait status %#x", status);
    }
    MUST(pthread_join(thread, NULL) == 0);
    return 0;
}

/* Forks that go around the C library. */
static int case_raw_fork(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    long child = syscall(SYS_fork);
    MUST(child >= 0);
    if (child == 0) child_with_copy(&b, "child of SYS_fork");
    wait_ok(child, "SYS_fork");
    child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    MUST(child >= 0);
    if (child == 0) child_with_copy(&b, "child of SYS_clone");
    wait_ok(child, "SYS_clone");
    struct {
        uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
    } how = {.exit_signal = SIGCHLD};
    child = syscall(SYS_clone3, &how, sizeof how);
    MUST(child >= 0);
    if (child == 0) child_with_copy(&b, "child of SYS_clone3");
    wait_ok(child, "SYS_clone3");
    ballast_check(&b, "parent after raw forks");
    puts("raw-fork: ok");
    return 0;
}

/* A child made around the C library forks by the C library, and has threads of its own. */
static void *check_ballast(void *argument) {
    ballast_check(argument, "thread of a raw child");
    return argument;
}

static int case_raw_fork_fork(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    long child = syscall(SYS_fork);
    MUST(child >= 0);
    if (child > 0) {
        ballast_change(&b);
        wait_ok(child, "raw-fork-fork");
        ballast_check(&b, "parent of a raw child");
        puts("raw-fork-fork: ok");
        return 0;
    }
    for (int round = 0; round < 2; round++) {
        pid_t grandchild = fork();
        MUST(grandchild >= 0);
        if (grandchild == 0) child_with_copy(&b, "grandchild");
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, check_ballast, &b) == 0);
        MUST(pthread_join(thread, &result) == 0 && result == &b);
        wait_ok(grandchild, "grandchild");
    }
    _exit(0);
}

/* Fills memory that the C library maps for itself, of which nobody is told, again and again. */
static volatile int filling = 1;

static void *fill_untold(void *argument) {
    /* More than a limit of 16 MiB and what the brake allows beyond it. */
    enum { BLOCKS = 10, BYTES = 2 * MIB };
    mallopt(M_MMAP_THRESHOLD, MIB);
    for (uint64_t version = 1; filling; version++) {
        char *blocks[BLOCKS];
        for (int i = 0; i < BLOCKS; i++) {
            MUST((blocks[i] = malloc(BYTES)) != NULL);
            memset(blocks[i], (int)version + i, BYTES);
        }
        for (int i = 0; i < BLOCKS; i++) {
            MUST(blocks[i][BYTES / 2] == (char)(version + i));
            free(blocks[i]);
        }
    }
    return argument;
}

/* Children that are traced by whoever traces this process at that moment. */
static int case_traced_children(int argc, char **argv) {
    long count = number(argc, argv, 0, 2000);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, fill_untold, NULL) == 0);
    for (long i = 0; i < count; i++) {
        int flags = CLONE_PTRACE | (i % 2 ? CLONE_VFORK : 0) | SIGCHLD;
        pid_t child = syscall(SYS_clone, flags, 0, 0, 0, 0);
        MUST(child >= 0);
        if (child == 0) _exit(0);
        wait_ok(child, "traced-children");
    }
    filling = 0;
    MUST(pthread_join(thread, NULL) == 0);
    puts("traced-children: ok");
    return 0;
}

/* Moves memory all the time beside what fills some that nobody is told of. */
static int case_moves_untold(int argc, char **argv) {
    long count = number(argc, argv, 0, 5000);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, fill_untold, NULL) == 0);
    /* Between pages that stay: nothing larger is put where it has been. */
    char *own = (char *)map(2 * MIB + 2 * PAGE) + PAGE, *other = own + MIB;
    MUST(mprotect(own - PAGE, PAGE, PROT_NONE) == 0 && mprotect(other + MIB, PAGE, PROT_NONE) == 0);
    fill(own, MIB, 6, 1);
    for (long i = 0; i < count; i++) {
        MUST(mremap(own, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
        char *moved = other;
        other = own, own = moved;
    }
    filling = 0;
    MUST(pthread_join(thread, NULL) == 0);
    check(own, MIB, 6, 1, "moved");
    puts("moves-untold: ok");
    return 0;
}

/* A child that is stopped keeps its memory and holds up nobody else. */
static int case_stopped(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        /* It is not stopped, and does not go on, with the others of its process group. */
        MUST(setpgid(0, 0) == 0);
        struct ballast own = ballast_new(6, 3);
        raise(SIGSTOP);
        ballast_check(&own, "child that was stopped");
        ballast_check(&b, "copy in a child that was stopped");
        _exit(0);
    }
    MUST(setpgid(child, child) == 0);
    int status;
    MUST(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
    ballast_change(&b);
    ballast_check(&b, "beside a stopped child");
    MUST(kill(child, SIGCONT) == 0);
    wait_ok(child, "stopped");
    puts("stopped: ok");
    return 0;
}

static int case_many(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    long count = number(argc, argv, 1, 12);
    pid_t children[256];
    MUST(count <= 256);
    for (long i = 0; i < count; i++) {
        children[i] = fork();
        MUST(children[i] >= 0);
        if (children[i] == 0) {
            ballast_check(&b, "one child of many");
            fill((char *)b.start + i * PAGE, PAGE, 99, i);
            check((char *)b.start + i * PAGE, PAGE, 99, i, "one child's own page");
            _exit(0);
        }
    }
    for (long i = 0; i < count; i++) wait_ok(children[i], "many");
    ballast_check(&b, "parent of many");
    puts("many: ok");
    return 0;
}

static int case_deep(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    long depth = number(argc, argv, 1, 10);
    for (long level = 0; level < depth; level++) {
        pid_t child = fork();
        MUST(child >= 0);
        if (child > 0) {
            wait_ok(child, "deep");
            ballast_check(&b, "on the way back up");
            if (level > 0) _exit(0);
            puts("deep: ok");
            return 0;
        }
        ballast_check(&b, "one level deeper");
        ballast_change(&b);
    }
    ballast_check(&b, "at the bottom");
    _exit(0);
}

/* The grandchild goes on alone and leaves its word in a file. */
static int case_daemon(int argc, char **argv) {
    MUST(argc > 1);
    struct ballast b = load(argc, argv, 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child > 0) {
        wait_ok(child, "daemon");
        puts("daemon: left");
        return 0;
    }
    MUST(setsid() > 0);
    child = fork();
    MUST(child >= 0);
    if (child > 0) _exit(0);
    usleep(300000);
    ballast_check(&b, "in the daemon");
    ballast_change(&b);
    ballast_check(&b, "in the daemon after its change");
    int file = open(argv[1], O_WRONLY | O_CREAT | O_EXCL, 0600);
    MUST(file >= 0);
    MUST(write(file, "daemon: ok\n", 11) == 11);
    _exit(0);
}

static int case_crash_child(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        ballast_check(&b, "before the child's crash");
        *nowhere = 1;
    }
    int status = wait_status(child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) die("wait status %#x", status);
    ballast_check(&b, "after the child's crash");
    puts("crash-child: ok");
    return 0;
}

/* ---- other programs --------------------------------------------------------------------- */

static int case_vfork(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    wait_ok(child, "vfork");
    ballast_check(&b, "after vfork");
    char *arguments[] = {"sh", "-c", "exit 0", NULL};
    MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) == 0);
    wait_ok(child, "posix_spawn");
    int status = system("exit 7");
    if (WEXITSTATUS(status) != 7) die("system: status %#x", status);
    char line[64] = "";
    FILE *from = popen("echo popen", "r");
    MUST(from && fgets(line, sizeof line, from));
    MUST(strcmp(line, "popen\n") == 0 && pclose(from) == 0);
    ballast_check(&b, "after system and popen");
    puts("vfork: ok");
    return 0;
}

/* Memory that came under management before the process's files became root's, and is filled after that. */
static int case_undumpable(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 48) * MIB, first = bytes / 4;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    fill(memory, first, 5, 1);
    usleep(100 * 1000);
    MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
    fill(memory + first, bytes - first, 6, 1);
    for (int round = 0; round < 2; round++) {
        check(memory, first, 5, 1, "filled before");
        check(memory + first, bytes - first, 6, 1, "filled after");
    }
    puts("undumpable: ok");
    return 0;
}

/*
 * Children of a process that nobody may look into any more: they are born so, and nothing of them can be stored. Each
 * looks at a few pages, as those do that are to become other programs.
 */
static int case_hidden(int argc, char **argv) {
    size_t pages = number(argc, argv, 0, 48) * MIB / PAGE;
    uint64_t *words = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(words != MAP_FAILED);
    for (size_t page = 0; page < pages; page++) words[page * WORDS] = page + 1;
    MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
    for (size_t round = 0; round < 8; round++) {
        pid_t child = fork();
        MUST(child >= 0);
        for (size_t page = round; child == 0 && page < pages; page += pages / 4)
            if (words[page * WORDS] != page + 1) die("wrong word in a hidden child: page %zu", page);
        if (child == 0) _exit(0);
        wait_ok(child, "a hidden child");
        for (size_t page = 0; page < pages; page++)
            if (words[page * WORDS] != page + 1) die("wrong word: page %zu", page);
    }
    puts("hidden: ok");
    return 0;
}

/* A word at the beginning of each of so many pages. */
static uint64_t *numbered(size_t pages) {
    uint64_t *words = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(words != MAP_FAILED);
    for (size_t page = 0; page < pages; page++) words[page * WORDS] = page + 1;
    return words;
}

static void expect_numbered(const uint64_t *words, size_t pages, size_t step, const char *where) {
    for (size_t page = 0; page < pages; page += step)
        if (words[page * WORDS] != page + 1) die("wrong word %s: page %zu", where, page);
}

/*
 * Hides itself and becomes a daemon: nobody can tell which process the second child is, nor that which it was forked from.
 * What the first child wrote and asked to be wiped is zeros in the second.
 */
static int case_hidden_daemon(int argc, char **argv) {
    MUST(argc > 1);
    size_t pages = number(argc, argv, 0, 24) * MIB / PAGE;
    uint64_t *words = numbered(pages);
    /* Pushes that out and leaves room: nothing of a hidden child can be. */
    MUST(munmap(numbered(pages), pages * PAGE) == 0);
    MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
    pid_t child = fork();
    MUST(child >= 0);
    if (child > 0) {
        wait_ok(child, "the first child of a daemon");
        puts("hidden-daemon: left");
        return 0;
    }
    MUST(setsid() > 0);
    uint64_t *wiped = numbered(64);
    MUST(madvise(wiped, 64 * PAGE, MADV_WIPEONFORK) == 0);
    MUST(madvise(words, 64 * PAGE, MADV_WIPEONFORK) == 0);
    child = fork();
    MUST(child >= 0);
    if (child > 0) _exit(0);
    usleep(300000);
    for (size_t page = 0; page < 64; page++)
        if (wiped[page * WORDS] != 0 || words[page * WORDS] != 0) die("page %zu was not wiped", page);
    size_t step = pages / 96;
    words += 64 * WORDS;
    for (size_t page = 64; page < pages; page += step, words += step * WORDS)
        if (*words != page + 1) die("wrong word in a hidden daemon: page %zu", page);
    int file = open(argv[1], O_WRONLY | O_CREAT | O_EXCL, 0600);
    MUST(file >= 0);
    MUST(write(file, "hidden-daemon: ok\n", 18) == 18);
    _exit(0);
}

static long clone_by_instruction(unsigned long flags) {
    long result;
    register long r10 __asm__("r10") = 0;
    register long r8 __asm__("r8") = 0;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_clone), "D"(flags), "S"(0L), "d"(0L), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

/* Children in a user namespace of their own, where they have every capability: by the C library, and around it. */
static int case_new_user(int argc, char **argv) {
    size_t pages = number(argc, argv, 0, 24) * MIB / PAGE;
    uint64_t *words = numbered(pages);
    for (int round = 0; round < 4; round++) {
        unsigned long flags = CLONE_NEWUSER | SIGCHLD;
        long child = round % 2 == 0 ? syscall(SYS_clone, flags, 0, 0, 0, 0) : clone_by_instruction(flags);
        if (child == -EPERM || (child < 0 && errno == EPERM)) {
            puts("new-user: refused");
            return 0;
        }
        MUST(child >= 0);
        if (child == 0 && round % 2 == 1) {
            /* Without an agent as long as it calls nothing: what it has stays. */
            expect_numbered(words, pages, 64, "in a namespace, unpaged");
            _exit(0);
        }
        if (child == 0) {
            expect_numbered(words, pages, 1, "in a namespace");
            for (size_t page = 0; page < pages; page++) words[page * WORDS] += pages;
            for (size_t page = 0; page < pages; page++)
                if (words[page * WORDS] != page + 1 + pages) die("wrong word of its own: page %zu", page);
            _exit(0);
        }
        wait_ok(child, "a child in a namespace");
        expect_numbered(words, pages, 1, "beside a namespace");
    }
    puts("new-user: ok");
    return 0;
}

/* A child that hides itself before it does anything else. */
static int case_hides_first(int argc, char **argv) {
    size_t pages = number(argc, argv, 0, 24) * MIB / PAGE;
    uint64_t *words = numbered(pages);
    for (int round = 0; round < 4; round++) {
        long child = syscall(SYS_fork);
        MUST(child >= 0);
        if (child == 0) {
            MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
            expect_numbered(words, pages, 1, "in a child that hid itself");
            _exit(0);
        }
        wait_ok(child, "a child that hid itself");
        child = clone_by_instruction(SIGCHLD);
        MUST(child >= 0);
        if (child == 0) {
            MUST(prctl(PR_SET_DUMPABLE, 0) == 0);
            expect_numbered(words, pages, 1, "in a child of an instruction that hid itself");
            _exit(0);
        }
        wait_ok(child, "a child of an instruction that hid itself");
    }
    puts("hides-first: ok");
    return 0;
}

/* A child that borrows the memory for a while: it is there once, however many processes show it. */
static int case_borrow(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pid_t child = vfork();
    if (child == 0) {
        for (int round = 0; round < 4; round++) {
            ballast_check(&b, "in borrowed memory");
            usleep(100 * 1000);
        }
        execl("/bin/true", "true", (char *)NULL);
        _exit(9);
    }
    wait_ok(child, "borrow");
    ballast_check(&b, "after the child borrowed it");
    puts("borrow: ok");
    return 0;
}

/* The program replaces itself, COUNT times, and starts over in fresh memory each time. */
static int case_exec(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    ballast_check(&b, "before exec");
    long left = number(argc, argv, 1, 3);
    if (left == 0) {
        puts("exec: ok");
        return 0;
    }
    char mib[32], count[32];
    snprintf(mib, sizeof mib, "%zu", b.bytes / MIB);
    snprintf(count, sizeof count, "%ld", left - 1);
    execl("/proc/self/exe", "process", "exec", mib, count, (char *)NULL);
    die("exec: %s", strerror(errno));
}

static void *exec_away(void *argument) {
    execl("/proc/self/exe", "process", "exec", (char *)argument, "0", (char *)NULL);
    die("exec from a thread: %s", strerror(errno));
}

static int case_exec_from_thread(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, exec_away, argc > 0 ? argv[0] : "48") == 0);
    for (;;) ballast_change(&b), ballast_check(&b, "until exec");
}

/* ---- signals ---------------------------------------------------------------------------- */

static volatile sig_atomic_t told;

static void remember(int signal) { told = signal; }

/* Says when it is ready, then waits for a signal, looks at its memory and ends with 40. */
static int case_wait_for_signal(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    struct sigaction action = {.sa_handler = remember};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    say("ready\n");
    while (!told) usleep(1000);
    ballast_check(&b, "after the signal");
    char line[32];
    snprintf(line, sizeof line, "signal %d\n", (int)told);
    say(line);
    return 40;
}

static volatile sig_atomic_t count;

static void count_one(int signal) {
    (void)signal;
    count++;
}

/* How many SIGINTs arrive: one key press is one signal. */
static int case_count_interrupts(int argc, char **argv) {
    (void)argc, (void)argv;
    struct sigaction action = {.sa_handler = count_one};
    sigaction(SIGINT, &action, NULL);
    say("ready\n");
    while (!count) usleep(1000);
    for (int i = 0; i < 300; i++) usleep(1000);
    printf("%d interrupt\n", (int)count);
    return 0;
}

/* A timer interrupts at random points, on a stack of its own, and its handler reads memory. */
static struct ballast seen;
static volatile uint64_t ticks;

static void look(int signal) {
    (void)signal;
    size_t page = ++ticks * 7919 % (seen.bytes / PAGE);
    volatile uint64_t *words = (uint64_t *)((char *)seen.start + page * PAGE);
    uint64_t key = page_key(seen.seed, page, 1);
    for (size_t w = 0; w < WORDS; w++)
        if (words[w] != word_at(key, w)) die("wrong word: in a signal handler");
    /* The next comes when this one is done, however long that took. */
    ualarm(1000, 0);
}

static int case_timer(int argc, char **argv) {
    seen = load(argc, argv, 0);
    stack_t stack = {.ss_sp = map(64 * 1024), .ss_size = 64 * 1024};
    MUST(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = look, .sa_flags = SA_ONSTACK | SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    ualarm(1000, 0);
    for (int pass = 0; pass < 4 || ticks == 0; pass++) ballast_check(&seen, "between signals");
    MUST(signal(SIGALRM, SIG_IGN) != SIG_ERR);
    puts("timer: ok");
    return 0;
}

/* ---- surroundings ----------------------------------------------------------------------- */

static int case_environment(int argc, char **argv) {
    (void)argc, (void)argv;
    for (char **entry = environ; *entry; entry++) puts(*entry);
    return 0;
}

static void *nothing(void *with) { return with; }

/* Each function that the agent stands before, once or more. */
static int case_passed_on(int argc, char **argv) {
    (void)argc, (void)argv;
    char *const words[] = {"true", NULL};
    char *start = map(MIB);
    MUST(start != MAP_FAILED && madvise(start, MIB, MADV_NORMAL) == 0);
    start = mremap(start, MIB, 2 * MIB, MREMAP_MAYMOVE);
    MUST(start != MAP_FAILED && prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 1 && syscall(SYS_getppid) > 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
    execve("/bin/true", words, environ);
    return 1;
}

static void show_status(const char *wanted) {
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    MUST(status);
    while (fgets(line, sizeof line, status))
        if (strncmp(line, wanted, strlen(wanted)) == 0) fputs(line, stdout);
    fclose(status);
}

/* What a program can see of how it was started; the same with Ebb and without. */
static int case_surroundings(int argc, char **argv) {
    char directory[4096], name[64];
    struct rlimit files;
    MUST(getcwd(directory, sizeof directory));
    MUST(getrlimit(RLIMIT_NOFILE, &files) == 0);
    mode_t mask = umask(022);
    printf("directory %s\numask %o\nnice %d\n", directory, mask, getpriority(PRIO_PROCESS, 0));
    printf("files %lu %lu\n", (unsigned long)files.rlim_cur, (unsigned long)files.rlim_max);
    for (const char **line = (const char *[]){"SigBlk", "SigIgn", "SigCgt", "Threads", "NoNewPrivs",
                                              "Uid", "Gid", "CapEff", NULL};
         *line; line++)
        show_status(*line);
    for (int i = 0; i < argc; i++) printf("argument %s\n", argv[i]);
    FILE *comm = fopen("/proc/self/comm", "r");
    MUST(comm && fgets(name, sizeof name, comm));
    printf("name %s", name);
    fclose(comm);
    int lowest = open("/dev/null", O_RDONLY);
    printf("lowest free descriptor %d\n", lowest);
    printf("ttys %d%d%d\n", isatty(0), isatty(1), isatty(2));
    return 0;
}

/* Process group and session relative to those of the caller, given as numbers. */
static int case_group(int argc, char **argv) {
    (void)argc, (void)argv;
    printf("group %d session %d\n", getpgrp(), getsid(0));
    return 0;
}

static int case_copy(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    char *buffer = map(MIB);
    for (ssize_t got; (got = read(0, buffer, MIB)) > 0;)
        for (ssize_t done = 0, n; done < got; done += n)
            MUST((n = write(1, buffer + done, got - done)) > 0);
    MUST(write(2, "copied\n", 7) == 7);
    ballast_check(&b, "after copying");
    return 0;
}

/* Closes every descriptor that it did not open, as daemons do. */
static int case_close_all(int argc, char **argv) {
    for (int fd = 3; fd < 4096; fd++) close(fd);
    struct ballast b = load(argc, argv, 0);
    ballast_check(&b, "after closing one by one");
    syscall(SYS_close_range, 3, ~0u, 0);
    ballast_change(&b);
    ballast_check(&b, "after close_range");
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) child_with_copy(&b, "child after closing all");
    wait_ok(child, "close-all");
    puts("close-all: ok");
    return 0;
}

static const struct test_case cases[] = {
    {"exit", case_exit}, {"signal", case_signal}, {"crash", case_crash},
    {"crash-reports", case_crash_reports}, {"exit-from-thread", case_exit_from_thread}, {"main-thread-ends", case_main_thread_ends},
    {"fork", case_fork}, {"fork-snapshot", case_fork_snapshot}, {"raw-fork", case_raw_fork},
    {"fork-new-areas", case_fork_new_areas},
    {"raw-fork-fork", case_raw_fork_fork}, {"stopped", case_stopped},
    {"undumpable", case_undumpable}, {"hidden", case_hidden},
    {"hidden-daemon", case_hidden_daemon}, {"new-user", case_new_user}, {"hides-first", case_hides_first},
    {"many", case_many}, {"deep", case_deep}, {"traced-children", case_traced_children},
    {"moves-untold", case_moves_untold}, {"daemon", case_daemon},
    {"crash-child", case_crash_child}, {"vfork", case_vfork}, {"borrow", case_borrow},
    {"exec", case_exec},
    {"exec-from-thread", case_exec_from_thread},
    {"wait-for-signal", case_wait_for_signal},
    {"count-interrupts", case_count_interrupts}, {"timer", case_timer},
    {"environment", case_environment}, {"surroundings", case_surroundings}, {"group", case_group},
    {"passed-on", case_passed_on}, {"copy", case_copy}, {"close-all", case_close_all}, {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
