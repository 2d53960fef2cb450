/*
 * memory CASE [MIB ...]: kinds of memory and ways of reaching it, with pages that a limit must have
 * pushed out at that moment.
 */
#include "common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/user.h>

static struct ballast load(int argc, char **argv, int index) {
    return ballast_new(number(argc, argv, index, 48), 21);
}

/* Pushes `b` out by using other memory of the same size, twice. */
static void press(size_t bytes) {
    struct ballast other = {map(bytes), bytes, 77, 1};
    for (int pass = 0; pass < 2; pass++) ballast_change(&other), ballast_check(&other, "pressing");
    MUST(munmap(other.start, other.bytes) == 0);
}

/* ---- fork and advice -------------------------------------------------------------------- */

static int case_wipe_on_fork(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0), wiped = ballast_new(4, 5);
    MUST(madvise(wiped.start, wiped.bytes, MADV_WIPEONFORK) == 0);
    press(b.bytes);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        check_zero(wiped.start, wiped.bytes, "wiped area in the child");
        ballast_check(&b, "child");
        ballast_change(&wiped);
        ballast_check(&wiped, "wiped area after the child's write");
        _exit(0);
    }
    wait_ok(child, "wipe-on-fork");
    ballast_check(&wiped, "wiped area in the parent");
    ballast_check(&b, "parent");
    puts("wipe-on-fork: ok");
    return 0;
}

static struct {
    char *start;
    size_t bytes;
    volatile int over;
} torn = {0, 4 << 20, 0};

/* Gives advice and takes it back, all the time. */
static void *give_and_take(void *unused) {
    (void)unused;
    while (!torn.over) {
        MUST(madvise(torn.start, torn.bytes, MADV_WIPEONFORK) == 0);
        MUST(madvise(torn.start, torn.bytes, MADV_KEEPONFORK) == 0);
    }
    return NULL;
}

/* The advice changes while another thread forks: a child has all of the area or nothing of it. */
static int case_advice_taken_back(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    torn.start = map(torn.bytes);
    for (size_t at = 0; at < torn.bytes; at += 4096) *(size_t *)(torn.start + at) = at + 1;
    for (int turn = 0; turn < 24; turn++) {
        if (turn % 8 == 0) press(b.bytes);
        pthread_t thread;
        torn.over = 0;
        MUST(pthread_create(&thread, NULL, give_and_take, NULL) == 0);
        usleep(turn * 97);
        pid_t child = turn % 4 == 3 ? (pid_t)syscall(SYS_fork) : fork();
        MUST(child >= 0);
        if (child == 0) {
            size_t there = 0, pages = torn.bytes / 4096;
            for (size_t at = 0; at < torn.bytes; at += 4096) {
                size_t seen = *(size_t *)(torn.start + at);
                if (seen != 0 && seen != at + 1) die("page %zu of the child has %zu", at / 4096, seen);
                there += seen != 0;
            }
            if (there != 0 && there != pages) die("%zu of %zu pages are there", there, pages);
            _exit(there != 0);
        }
        torn.over = 1;
        MUST(pthread_join(thread, NULL) == 0);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) > 1) die("turn %d: status %x", turn, status);
    }
    puts("advice-taken-back: ok");
    return 0;
}

static struct itimerval again;

static void advise_in_handler(int signal) {
    static int turn;
    (void)signal;
    MUST(madvise(torn.start, torn.bytes, turn++ % 2 ? MADV_KEEPONFORK : MADV_WIPEONFORK) == 0);
    /* The next comes when this one is done, however long that took. */
    if (again.it_value.tv_usec) MUST(setitimer(ITIMER_REAL, &again, NULL) == 0);
}

/* A signal interrupts a fork, and its handler gives advice that waits for forks: not for that one. */
static int case_advice_in_handler(int argc, char **argv) {
    (void)argc, (void)argv;
    torn.start = map(torn.bytes);
    MUST(signal(SIGALRM, advise_in_handler) != SIG_ERR);
    again.it_value.tv_usec = 1000;
    MUST(setitimer(ITIMER_REAL, &again, NULL) == 0);
    for (int turn = 0; turn < 200; turn++) {
        pid_t child = turn % 2 ? fork() : (pid_t)syscall(SYS_fork);
        MUST(child >= 0);
        if (child == 0) _exit(0);
        while (waitpid(child, NULL, 0) < 0) MUST(errno == EINTR);
    }
    MUST(signal(SIGALRM, SIG_IGN) != SIG_ERR);
    puts("advice-in-handler: ok");
    return 0;
}

/* The same at each instruction of the hooks around a fork: a debugger sends the signal there. Where the handler
   took its own thread's fork for another's it waited for five seconds. With "tell" the longest wait is told, in ms. */
static void fork_by_steps(int raw) {
    MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
    for (;;) {
        MUST(raise(SIGTRAP) == 0);
        pid_t child = raw ? (pid_t)syscall(SYS_fork) : fork();
        MUST(child >= 0);
        if (child == 0) _exit(0);
        while (waitpid(child, NULL, 0) < 0) MUST(errno == EINTR);
    }
}

static int step(pid_t tracee, int how, int signal) {
    int status;
    MUST(ptrace(how, tracee, 0, signal) == 0);
    MUST(waitpid(tracee, &status, 0) == tracee);
    if (!WIFSTOPPED(status)) die("the traced process ended: %x", status);
    return WSTOPSIG(status);
}

/* Makes up to `most` steps, less where it comes to its mark. */
static int steps_of(pid_t tracee, int most) {
    siginfo_t info;
    for (int n = 0; n < most; n++) {
        int signal = step(tracee, PTRACE_SINGLESTEP, 0);
        /* Of a stop of its process group there is no information. */
        if (signal != SIGTRAP) continue;
        MUST(ptrace(PTRACE_GETSIGINFO, tracee, 0, &info) == 0);
        if (info.si_code == SI_TKILL) return n;
    }
    return most;
}

static int case_advice_at_each_step(int argc, char **argv) {
    int parts = number(argc, argv, 0, 400), status;
    long longest_ms = 0;
    torn.start = map(torn.bytes);
    MUST(signal(SIGALRM, advise_in_handler) != SIG_ERR);
    for (int raw = 0; raw < 2; raw++) {
        pid_t tracee = fork();
        MUST(tracee >= 0);
        if (tracee == 0) fork_by_steps(raw);
        MUST(waitpid(tracee, &status, 0) == tracee);
        int all = steps_of(tracee, 1 << 20);
        for (int part = 0; part < parts; part++) {
            steps_of(tracee, (long)all * part / parts);
            struct timespec began, now;
            MUST(clock_gettime(CLOCK_MONOTONIC, &began) == 0);
            int got = step(tracee, PTRACE_CONT, SIGALRM);
            while (got != SIGTRAP) got = step(tracee, PTRACE_CONT, got);
            MUST(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
            long ms = (now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000;
            if (ms > longest_ms) longest_ms = ms;
        }
        MUST(kill(tracee, SIGKILL) == 0);
        MUST(waitpid(tracee, &status, 0) == tracee && WIFSIGNALED(status));
    }
    if (argc > 1) fprintf(stderr, "longest: %ld ms\n", longest_ms);
    puts("advice-at-each-step: ok");
    return 0;
}

static int case_dont_fork(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0), hidden = ballast_new(4, 5);
    MUST(madvise(hidden.start, hidden.bytes, MADV_DONTFORK) == 0);
    press(b.bytes);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        int ends[2];
        MUST(pipe(ends) == 0);
        if (write(ends[1], hidden.start, 1) != -1 || errno != EFAULT) die("area is in the child");
        ballast_check(&b, "child");
        _exit(0);
    }
    wait_ok(child, "dont-fork");
    ballast_check(&hidden, "area in the parent");
    ballast_check(&b, "parent");
    puts("dont-fork: ok");
    return 0;
}

static int case_discard(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    size_t half = b.bytes / 2;
    MUST(madvise(b.start, half, MADV_DONTNEED) == 0);
    check_zero(b.start, half, "discarded");
    for (size_t page = half / PAGE; page < b.bytes / PAGE; page++) {
        volatile uint64_t *words = (uint64_t *)((char *)b.start + page * PAGE);
        if (words[5] != word_at(page_key(b.seed, page, 1), 5)) die("wrong word: beside discarded");
    }
    ballast_change(&b);
    ballast_check(&b, "after writing to discarded memory");
    puts("discard: ok");
    return 0;
}

/* The break grows, shrinks, and grows again: what comes back is zero. */
static int case_break(int argc, char **argv) {
    size_t bytes = number(argc, argv, 0, 48) * MIB;
    char *start = sbrk(0);
    start += -(uintptr_t)start % PAGE;
    MUST(brk(start + bytes) == 0);
    check_zero(start, bytes, "fresh break");
    fill(start, bytes, 3, 1);
    check(start, bytes, 3, 1, "break");
    MUST(brk(start + bytes / 2) == 0);
    check(start, bytes / 2, 3, 1, "lower half of the break");
    MUST(brk(start + bytes) == 0);
    check(start, bytes / 2, 3, 1, "lower half of the break, grown again");
    check_zero(start + bytes / 2, bytes - bytes / 2, "upper half of the break, grown again");
    MUST(brk(start) == 0);
    puts("break: ok");
    return 0;
}

/* ---- the kernel reads and writes the memory --------------------------------------------- */

static int temporary(const char *directory) {
    char path[4096];
    snprintf(path, sizeof path, "%s/memory-XXXXXX", directory);
    int file = mkstemp(path);
    MUST(file >= 0);
    MUST(unlink(path) == 0);
    return file;
}

static int case_direct_io(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    int file = temporary(argc > 1 ? argv[1] : "/tmp");
    MUST(fcntl(file, F_SETFL, O_DIRECT) == 0);
    for (size_t at = 0; at < b.bytes; at += MIB)
        MUST(pwrite(file, (char *)b.start + at, MIB, at) == (ssize_t)MIB);
    char *copy = map(b.bytes);
    for (size_t at = 0; at < b.bytes; at += MIB)
        MUST(pread(file, copy + at, MIB, at) == (ssize_t)MIB);
    check(copy, b.bytes, b.seed, b.version, "read with O_DIRECT");
    ballast_check(&b, "written with O_DIRECT");
    puts("direct-io: ok");
    return 0;
}

/* Kernel AIO: the buffers are pinned while the request is under way. */
static int case_aio(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    int file = temporary(argc > 1 ? argv[1] : "/tmp");
    MUST(fcntl(file, F_SETFL, O_DIRECT) == 0);
    aio_context_t context = 0;
    MUST(syscall(SYS_io_setup, 16, &context) == 0);
    for (int reading = 0; reading < 2; reading++) {
        char *memory = reading ? map(b.bytes) : b.start;
        size_t requests = b.bytes / MIB;
        for (size_t first = 0; first < requests; first += 16) {
            struct iocb blocks[16], *list[16];
            struct io_event events[16];
            size_t count = requests - first < 16 ? requests - first : 16;
            for (size_t i = 0; i < count; i++) {
                size_t at = (first + i) * MIB;
                blocks[i] = (struct iocb){.aio_fildes = file, .aio_offset = at, .aio_nbytes = MIB};
                blocks[i].aio_buf = (uintptr_t)memory + at;
                blocks[i].aio_lio_opcode = reading ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
                list[i] = &blocks[i];
            }
            MUST(syscall(SYS_io_submit, context, count, list) == (long)count);
            MUST(syscall(SYS_io_getevents, context, count, count, events, NULL) == (long)count);
            for (size_t i = 0; i < count; i++) MUST(events[i].res == (int64_t)MIB);
        }
        check(memory, b.bytes, b.seed, b.version, reading ? "read by AIO" : "written by AIO");
    }
    MUST(syscall(SYS_io_destroy, context) == 0);
    puts("aio: ok");
    return 0;
}

/* One call with many buffers, each of them pushed out. */
static int case_vectors(int argc, char **argv) {
    enum { COUNT = 512 };
    struct ballast b = load(argc, argv, 0);
    struct iovec vectors[COUNT];
    int file = temporary(argc > 1 ? argv[1] : "/tmp");
    size_t stride = b.bytes / COUNT / PAGE * PAGE;
    for (size_t i = 0; i < COUNT; i++)
        vectors[i] = (struct iovec){(char *)b.start + i * stride, PAGE};
    MUST(writev(file, vectors, COUNT) == (ssize_t)(COUNT * PAGE));
    char *copy = map(b.bytes);
    memset(copy, 1, b.bytes);
    press(b.bytes);
    for (size_t i = 0; i < COUNT; i++) vectors[i].iov_base = copy + i * stride;
    MUST(preadv(file, vectors, COUNT, 0) == (ssize_t)(COUNT * PAGE));
    for (size_t i = 0; i < COUNT; i++)
        if (memcmp(copy + i * stride, (char *)b.start + i * stride, PAGE) != 0)
            die("wrong word: vector %zu", i);
    ballast_check(&b, "after vectors");
    puts("vectors: ok");
    return 0;
}

/* Pages lent to a pipe are seen by the reader as they were; the writer does not touch them. */
static int case_vmsplice(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    uint64_t *copy = map(PAGE);
    int ends[2];
    MUST(pipe(ends) == 0);
    for (size_t page = 0; page < b.bytes / PAGE; page += 3) {
        struct iovec vector = {(char *)b.start + page * PAGE, PAGE};
        MUST(vmsplice(ends[1], &vector, 1, 0) == (ssize_t)PAGE);
        if (page % 300 == 0) press(MIB);
        MUST(read(ends[0], copy, PAGE) == (ssize_t)PAGE);
        uint64_t key = page_key(b.seed, page, 1);
        for (size_t w = 0; w < WORDS; w++)
            if (copy[w] != word_at(key, w)) die("wrong word: page %zu through vmsplice", page);
    }
    ballast_check(&b, "after vmsplice");
    puts("vmsplice: ok");
    return 0;
}

/* Another process reads and writes pages that are pushed out, as a debugger does. */
/* Reads and writes of the program's own memory through a file, in parts as the call gives them. */
static void transfer(int memory, char *buffer, size_t bytes, char *place, int write) {
    for (size_t done = 0; done < bytes;) {
        const off_t at = (off_t)(uintptr_t)place + done;
        const ssize_t got = write ? pwrite(memory, buffer + done, bytes - done, at)
                                  : pread(memory, buffer + done, bytes - done, at);
        MUST(got > 0);
        done += got;
    }
}

static int case_own_memory(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    const int memory = open("/proc/self/mem", O_RDWR);
    MUST(memory >= 0);
    char *copy = map(MIB);
    for (size_t at = 0; at < b.bytes; at += MIB) {
        transfer(memory, copy, MIB, (char *)b.start + at, 0);
        MUST(memcmp(copy, (char *)b.start + at, MIB) == 0);
        transfer(memory, copy, MIB, (char *)b.start + at, 1);
    }
    ballast_check(&b, "read and written through the file");
    /* Code that nobody has accessed, as a compiler writes it. */
    char *code = map(64 * PAGE);
    MUST(mprotect(code, 64 * PAGE, PROT_READ | PROT_EXEC) == 0);
    for (int page = 0; page < 64; page++) {
        /* mov $page, %eax; ret */
        char text[] = {(char)0xb8, (char)page, 0, 0, 0, (char)0xc3};
        transfer(memory, text, sizeof text, code + page * PAGE, 1);
        MUST(((int (*)(void))(code + page * PAGE))() == page);
    }
    /* What fails stays as it is. */
    char byte, *closed = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(munmap(closed, PAGE) == 0);
    MUST(pread(memory, &byte, 1, (off_t)(uintptr_t)closed) == -1 && errno == EIO);
    MUST(pread(-1, &byte, 1, 0) == -1 && errno == EBADF);
    ballast_check(&b, "beside code");
    puts("own-memory: ok");
    return 0;
}

static int case_load(int argc, char **argv) {
    MUST(argc > 1 && dlopen(argv[1], RTLD_NOW) != NULL);
    puts("load: ok");
    return 0;
}

static int case_peek(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    int ends[2];
    MUST(pipe(ends) == 0);
    pid_t parent = getpid(), child = fork();
    MUST(child >= 0);
    if (child == 0) {
        char *copy = map(MIB), ready;
        MUST(read(ends[0], &ready, 1) == 1);
        for (size_t at = 0; at < b.bytes; at += MIB) {
            struct iovec here = {copy, MIB}, there = {(char *)b.start + at, MIB};
            MUST(process_vm_readv(parent, &here, 1, &there, 1, 0) == (ssize_t)MIB);
            for (size_t page = 0; page < MIB / PAGE; page++)
                MUST(*(uint64_t *)(copy + page * PAGE)
                     == word_at(page_key(b.seed, page + at / PAGE, 2), 0));
        }
        uint64_t value = 42;
        struct iovec here = {&value, 8}, there = {b.start, 8};
        MUST(process_vm_writev(parent, &here, 1, &there, 1, 0) == 8);
        _exit(0);
    }
    ballast_change(&b);
    MUST(write(ends[1], "x", 1) == 1);
    wait_ok(child, "peek");
    MUST(*(volatile uint64_t *)b.start == 42);
    *(uint64_t *)b.start = word_at(page_key(b.seed, 0, 2), 0);
    ballast_check(&b, "after being read and written from outside");
    puts("peek: ok");
    return 0;
}

/* ---- shapes ----------------------------------------------------------------------------- */

/* 1 TiB without reservation; one page in each of MIB * 256 far places. */
static int case_sparse(int argc, char **argv) {
    size_t bytes = 1ul << 40, pages = number(argc, argv, 0, 48) * MIB / PAGE;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *start = mmap(NULL, bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
    MUST(start != MAP_FAILED);
    size_t stride = bytes / pages / PAGE * PAGE;
    for (size_t i = 0; i < pages; i++) fill(start + i * stride, PAGE, i, 1);
    for (size_t i = 0; i < pages; i++) check(start + i * stride, PAGE, i, 1, "far page");
    for (size_t i = 0; i < pages; i += 97) check_zero(start + i * stride + PAGE, PAGE, "far hole");
    MUST(munmap(start, bytes) == 0);
    puts("sparse: ok");
    return 0;
}

/* COUNT separate areas, kept apart by pages without access. */
static int case_areas(int argc, char **argv) {
    size_t count = number(argc, argv, 1, 1000);
    size_t pages = number(argc, argv, 0, 48) * MIB / PAGE / count;
    char **areas = calloc(count, sizeof *areas);
    for (size_t i = 0; i < count; i++) {
        areas[i] = map((pages + 1) * PAGE);
        MUST(mprotect(areas[i] + pages * PAGE, PAGE, PROT_NONE) == 0);
        fill(areas[i], pages * PAGE, i, 1);
    }
    for (size_t i = 0; i < count; i += 2) MUST(munmap(areas[i], (pages + 1) * PAGE) == 0);
    for (size_t i = 1; i < count; i += 2) check(areas[i], pages * PAGE, i, 1, "area");
    for (size_t i = 0; i < count; i += 2) {
        areas[i] = map((pages + 1) * PAGE);
        fill(areas[i], pages * PAGE, i, 2);
    }
    for (size_t i = 0; i < count; i++) check(areas[i], pages * PAGE, i, 2 - i % 2, "area again");
    puts("areas: ok");
    return 0;
}

/* Areas come and go so fast that nothing can be told about them in advance. */
static int case_short_lived(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    for (size_t round = 0; round < 3000; round++) {
        size_t bytes = (1 + round % 64) * PAGE;
        char *area = map(bytes);
        check_zero(area, bytes, "fresh area");
        fill(area, bytes, round, 1);
        check(area, bytes, round, 1, "short-lived area");
        MUST(munmap(area, bytes) == 0);
    }
    ballast_check(&b, "after short-lived areas");
    puts("short-lived: ok");
    return 0;
}

static uint64_t descend(int depth, uint64_t seed) {
    volatile uint64_t here[4096];
    for (size_t i = 0; i < 4096; i++) here[i] = word_at(seed, i);
    uint64_t below_me = depth > 0 ? descend(depth - 1, mix(seed + 1)) : 0;
    for (size_t i = 0; i < 4096; i++)
        if (here[i] != word_at(seed, i)) die("wrong word: on the stack, depth %d", depth);
    return below_me + here[17];
}

/* Six MiB of the main thread's stack, held while other memory is used. */
static int case_stack(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    uint64_t first = descend(192, 5);
    press(b.bytes);
    if (descend(192, 5) != first) die("wrong word: stack sums differ");
    ballast_check(&b, "after deep recursion");
    puts("stack: ok");
    return 0;
}

/* ---- protection and faults of the program's own ----------------------------------------- */

static struct ballast guarded;
static volatile uint64_t barrier_hits;

static void open_barrier(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    uintptr_t page = (uintptr_t)info->si_addr & ~(PAGE - 1), start = (uintptr_t)guarded.start;
    if (page < start || page >= start + guarded.bytes) die("fault outside the guarded area");
    barrier_hits++;
    MUST(mprotect((void *)page, PAGE, PROT_READ | PROT_WRITE) == 0);
}

/* A write barrier by mprotect and SIGSEGV, as garbage collectors have. */
static int case_write_barrier(int argc, char **argv) {
    guarded = load(argc, argv, 0);
    struct sigaction action = {.sa_sigaction = open_barrier, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0);
    size_t wanted = 0;
    for (int round = 0; round < 2; round++) {
        MUST(mprotect(guarded.start, guarded.bytes, PROT_READ) == 0);
        ballast_check(&guarded, "read behind the barrier");
        for (size_t page = 0; page < guarded.bytes / PAGE; page += 5, wanted++) {
            volatile uint64_t *words = (uint64_t *)((char *)guarded.start + page * PAGE);
            words[1] = words[1];
        }
        MUST(mprotect(guarded.start, guarded.bytes, PROT_READ | PROT_WRITE) == 0);
        ballast_check(&guarded, "after the barrier");
    }
    if (barrier_hits != wanted) die("%lu barrier hits, want %zu", barrier_hits, wanted);
    puts("write-barrier: ok");
    return 0;
}

static int case_lock(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    MUST(mlock(b.start, 2 * MIB) == 0);
    press(b.bytes);
    ballast_check(&b, "with locked pages");
    MUST(munlock(b.start, 2 * MIB) == 0);
    press(b.bytes);
    ballast_check(&b, "after unlocking");
    puts("lock: ok");
    return 0;
}

/* Everything is locked for a while, also what comes later; then memory is used as before. "raw" makes the
 * call around the C library. */
static int case_lock_all(int argc, char **argv) {
    int raw = argc > 1 && strcmp(argv[1], "raw") == 0;
    struct ballast little = ballast_new(2, 8);
    int flags = MCL_CURRENT | MCL_FUTURE;
    MUST((raw ? syscall(SYS_mlockall, flags) : mlockall(flags)) == 0);
    struct ballast locked = ballast_new(1, 9);
    /* Reclaim comes upon what the call has filled. */
    usleep(500000);
    unsigned long held = 0;
    FILE *status = fopen("/proc/self/status", "r");
    char line[256];
    while (status && fgets(line, sizeof line, status)) sscanf(line, "VmLck: %lu", &held);
    MUST(status && fclose(status) == 0 && held >= 3072);
    MUST(munlockall() == 0);
    struct ballast b = load(argc, argv, 0);
    press(b.bytes);
    ballast_check(&b, "after everything was locked");
    ballast_check(&little, "what was locked");
    ballast_check(&locked, "what came locked");
    puts("lock-all: ok");
    return 0;
}

/* Reads every page that it can read, its own and whatever else is in its address space, as
 * collectors of garbage and of core files do. */
static int case_scan_self(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    uint64_t sum = 0;
    for (int pass = 0; pass < 2; pass++) {
        char line[512];
        FILE *maps = fopen("/proc/self/maps", "r");
        MUST(maps);
        while (fgets(line, sizeof line, maps)) {
            unsigned long start, end;
            char rights[5];
            MUST(sscanf(line, "%lx-%lx %4s", &start, &end, rights) == 3);
            if (rights[0] != 'r' || strstr(line, "[v")) continue;
            for (unsigned long at = start; at < end && at - start < 256 * MIB; at += PAGE)
                sum += *(volatile uint64_t *)at;
        }
        fclose(maps);
        press(b.bytes);
        ballast_check(&b, "after a look at everything");
    }
    puts(sum ? "scan-self: ok" : "scan-self: nothing there");
    return 0;
}

/* Shared memory and private file pages are not the pager's; they must stay right all the same. */
static int case_shared(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    int kind = MAP_SHARED | MAP_ANONYMOUS;
    char *shared = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, kind, -1, 0);
    MUST(shared != MAP_FAILED);
    int file = temporary(argc > 1 ? argv[1] : "/tmp");
    for (size_t at = 0; at < 4 * MIB; at += MIB)
        MUST(pwrite(file, (char *)b.start + at, MIB, at) == (ssize_t)MIB);
    char *private = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    MUST(private != MAP_FAILED);
    /* With the child's copies of them and the shared memory less than the least limit: none of it can leave. */
    fill(private, MIB, 31, 1);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        fill(shared, 4 * MIB, 30, 1);
        check(private, MIB, 31, 1, "private file pages in the child");
        fill(private, MIB, 31, 2);
        _exit(0);
    }
    wait_ok(child, "shared");
    press(b.bytes);
    check(shared, 4 * MIB, 30, 1, "shared memory after the child's write");
    check(private, MIB, 31, 1, "private file pages in the parent");
    MUST(memcmp(private + MIB, (char *)b.start + MIB, 3 * MIB) == 0);
    ballast_check(&b, "beside shared memory");
    puts("shared: ok");
    return 0;
}

/* Locks and conditions live in pages that are pushed out while threads sleep on them. */
struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t turn;
};

static struct meeting *meetings[64];

static void *take_turns(void *argument) {
    uint64_t me = (uintptr_t)argument;
    for (size_t i = 0; i < 64; i++) {
        struct meeting *m = meetings[i];
        pthread_mutex_lock(&m->lock);
        while (m->turn % 2 != me) pthread_cond_wait(&m->changed, &m->lock);
        m->turn++;
        pthread_cond_signal(&m->changed);
        pthread_mutex_unlock(&m->lock);
        if (me == 0 && i % 16 == 15) press(24 * MIB);
    }
    return NULL;
}

static int case_waiters(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    for (size_t i = 0; i < 64; i++) {
        meetings[i] = map(PAGE * 2);
        pthread_mutex_init(&meetings[i]->lock, NULL);
        pthread_cond_init(&meetings[i]->changed, NULL);
    }
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, take_turns, (void *)i) == 0);
    for (size_t i = 0; i < 2; i++) MUST(pthread_join(threads[i], NULL) == 0);
    for (size_t i = 0; i < 64; i++) MUST(meetings[i]->turn == 2);
    ballast_check(&b, "after the waiters");
    puts("waiters: ok");
    return 0;
}

/* Two threads touch the same missing page at the same time, over and over. */
static pthread_barrier_t together;
static struct ballast common_pages;

static void *touch_together(void *argument) {
    (void)argument;
    for (size_t page = 0; page < common_pages.bytes / PAGE; page += 7) {
        pthread_barrier_wait(&together);
        volatile uint64_t *words = (uint64_t *)((char *)common_pages.start + page * PAGE);
        if (words[3] != word_at(page_key(common_pages.seed, page, 1), 3))
            die("wrong word: page %zu touched by two threads", page);
    }
    return NULL;
}

static int case_together(int argc, char **argv) {
    common_pages = load(argc, argv, 0);
    pthread_t threads[4];
    MUST(pthread_barrier_init(&together, NULL, 4) == 0);
    for (size_t i = 0; i < 4; i++)
        MUST(pthread_create(&threads[i], NULL, touch_together, NULL) == 0);
    for (size_t i = 0; i < 4; i++) MUST(pthread_join(threads[i], NULL) == 0);
    ballast_check(&common_pages, "after touching together");
    puts("together: ok");
    return 0;
}

/* ---- pages that are read while the address space never stops changing --------------------- */

static volatile int restless = 1;

static void *change_mappings(void *argument) {
    (void)argument;
    char *page = map(PAGE);
    while (restless) {
        *(volatile char *)page = 1;
        MUST(madvise(page, PAGE, MADV_DONTNEED) == 0);
    }
    return NULL;
}

/* Pages with one word each, so that compressed memory can hold them. */
static int case_restless(int argc, char **argv) {
    size_t pages = number(argc, argv, 0, 48) * MIB / PAGE;
    volatile uint64_t *words = map(pages * PAGE);
    for (size_t page = 0; page < pages; page++) words[page * WORDS + 7] = mix(page) | 1;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&threads[i], NULL, change_mappings, NULL) == 0);
    for (size_t page = 0; page < pages; page++)
        if (words[page * WORDS + 7] != (mix(page) | 1))
            die("wrong word: page %zu read while mappings change", page);
    restless = 0;
    for (int i = 0; i < 2; i++) MUST(pthread_join(threads[i], NULL) == 0);
    puts("restless: ok");
    return 0;
}

/* A handler of signals moves memory while the thread it has interrupted does. */
/* Changed by the handler: calls of the C library are not known to call back. */
static char *volatile handled[2];
static volatile int handler_runs;
#define HANDLED (8 * PAGE)

static void move_in_handler(int signal) {
    (void)signal;
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (mremap(handled[0], HANDLED, HANDLED, flags, handled[1]) != handled[1]) _exit(WRONG);
    char *moved = handled[1];
    handled[1] = handled[0], handled[0] = moved;
    handler_runs++;
    /* The next comes when this one is done, however long that took. */
    ualarm(200, 0);
}

static int case_move_in_handler(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    press(b.bytes);
    handled[0] = map(2 * HANDLED), handled[1] = handled[0] + HANDLED;
    fill(handled[0], HANDLED, 5, 1);
    char *own = map(2 * MIB), *other = own + MIB;
    fill(own, MIB, 6, 1);
    struct sigaction action = {.sa_handler = move_in_handler, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    ualarm(200, 0);
    while (handler_runs < 2000) {
        MUST(mremap(own, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, other) == other);
        char *moved = other;
        other = own, own = moved;
    }
    MUST(signal(SIGALRM, SIG_IGN) != SIG_ERR);
    check(handled[0], HANDLED, 5, 1, "moved by a handler");
    check(own, MIB, 6, 1, "moved beside a handler");
    ballast_check(&b, "ballast");
    puts("move-in-handler: ok");
    return 0;
}

/* What the kernel refuses of an area that is two to it changes nothing. */
static int case_move_refused(int argc, char **argv) {
    struct ballast b = load(argc, argv, 0);
    press(b.bytes);
    const size_t half = 4 * PAGE, whole = 2 * half;
    char *area = map(2 * whole);
    fill(area, whole, 7, 1);
    MUST(mprotect(area + half, half, PROT_READ) == 0);
    char *inside = area + half, *beside = area + whole;
    MUST(mremap(area, whole, whole, MREMAP_MAYMOVE | MREMAP_FIXED, inside) == MAP_FAILED && errno == EINVAL);
    MUST(mremap(area, whole, whole, MREMAP_FIXED, beside) == MAP_FAILED && errno == EINVAL);
    MUST(mremap(area, whole, whole, MREMAP_MAYMOVE | MREMAP_FIXED, beside + 1) == MAP_FAILED && errno == EINVAL);
    MUST(mremap(area, whole, half, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL) == MAP_FAILED && errno == EINVAL);
    MUST(mremap(area, whole, whole, 64 | MREMAP_MAYMOVE, NULL) == MAP_FAILED && errno == EINVAL);
    check(area, whole, 7, 1, "that was not to move");
    /* Of several areas a kernel may refuse this, too. */
    char *moved = mremap(area, whole, whole, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    check(moved == MAP_FAILED ? area : moved, whole, 7, 1, "that moved and left its place");
    ballast_check(&b, "ballast");
    puts("move-refused: ok");
    return 0;
}

/* Threads map areas without the C library, and each begins with the C library's own for it: twice what that needs,
 * of which it gives back what is not aligned. The next areas come to lie there. */
static size_t unheard_piece;
static size_t unheard_pieces;

static void *map_unheard(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    char **areas = malloc(unheard_pieces * sizeof *areas);
    MUST(areas != NULL);
    for (size_t i = 0; i < unheard_pieces; i++) {
        long at = syscall(SYS_mmap, 0, unheard_piece, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MUST(at > 0 || at < -4095);
        areas[i] = (char *)at;
        for (size_t page = 0; page < unheard_piece; page += PAGE)
            *(uint64_t *)(areas[i] + page) = mix(seed << 40 | i << 20 | page / PAGE);
    }
    for (size_t i = 0; i < unheard_pieces; i++)
        for (size_t page = 0; page < unheard_piece; page += PAGE)
            if (*(uint64_t *)(areas[i] + page) != mix(seed << 40 | i << 20 | page / PAGE))
                die("unheard: area %zu page %zu of thread %d", i, page / PAGE, (int)seed);
    return NULL;
}

/* unheard THREADS KIB MIB */
static int case_unheard(int argc, char **argv) {
    size_t count = number(argc, argv, 0, 8);
    unheard_piece = number(argc, argv, 1, 64) * 1024;
    unheard_pieces = number(argc, argv, 2, 64) * MIB / count / unheard_piece;
    pthread_t threads[64];
    MUST(count <= 64);
    for (size_t i = 0; i < count; i++)
        MUST(pthread_create(&threads[i], NULL, map_unheard, (void *)(i + 1)) == 0);
    for (size_t i = 0; i < count; i++) MUST(pthread_join(threads[i], NULL) == 0);
    say("unheard: ok\n");
    return 0;
}

static const struct test_case cases[] = {
    {"wipe-on-fork", case_wipe_on_fork}, {"advice-taken-back", case_advice_taken_back},
    {"advice-in-handler", case_advice_in_handler}, {"move-refused", case_move_refused},
    {"advice-at-each-step", case_advice_at_each_step},
    {"dont-fork", case_dont_fork},
    {"discard", case_discard}, {"break", case_break}, {"direct-io", case_direct_io},
    {"aio", case_aio}, {"vectors", case_vectors}, {"vmsplice", case_vmsplice},
    {"own-memory", case_own_memory}, {"load", case_load}, {"peek", case_peek}, {"sparse", case_sparse}, {"areas", case_areas},
    {"short-lived", case_short_lived}, {"stack", case_stack},
    {"write-barrier", case_write_barrier}, {"lock", case_lock},
    {"lock-all", case_lock_all}, {"scan-self", case_scan_self}, {"shared", case_shared},
    {"waiters", case_waiters}, {"together", case_together},
    {"restless", case_restless}, {"move-in-handler", case_move_in_handler},
    {"unheard", case_unheard}, {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
