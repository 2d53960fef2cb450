/*
 * kinds CASE [MIB]: what a page can be beside plain memory, while most of it is elsewhere.
 */
#include "common.h"

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/shm.h>
#include <linux/userfaultfd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define GUARD_INSTALL 102
#define GUARD_REMOVE 103
#define GUARDS 64
#define EVERY 16 /* pages from one guard to the next */

static struct ballast load(int argc, char **argv) {
    return ballast_new(number(argc, argv, 0, 48), 21);
}

/* Pushes everything else out by using other memory of the same size. */
static void press(size_t bytes) {
    struct ballast other = {map(bytes), bytes, 77, 1};
    for (int pass = 0; pass < 2; pass++) ballast_change(&other), ballast_check(&other, "pressing");
    MUST(munmap(other.start, other.bytes) == 0);
}

/* The call as a program makes it that has the instruction itself. */
static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

typedef long advise(void *, size_t, int);
static long by_library(void *p, size_t n, int advice) { return madvise(p, n, advice); }
static long by_syscall(void *p, size_t n, int advice) { return syscall(SYS_madvise, p, n, advice); }
static long by_instruction(void *p, size_t n, int advice) {
    return raw(SYS_madvise, (long)p, n, advice);
}
static long by_process(void *p, size_t n, int advice) {
    int self = syscall(SYS_pidfd_open, getpid(), 0);
    struct iovec {
        void *start;
        size_t bytes;
    } one = {p, n};
    long done = syscall(SYS_process_madvise, self, &one, 1, advice, 0);
    close(self);
    return done == (long)n ? 0 : -1;
}

static advise *chosen(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "library";
    if (strcmp(how, "syscall") == 0) return by_syscall;
    if (strcmp(how, "instruction") == 0) return by_instruction;
    if (strcmp(how, "process") == 0) return by_process;
    return by_library;
}

/* Whether a touch of `p` would be deadly: asked of the kernel, which says EFAULT. */
static int is_deadly(char *p) {
    static int ends[2] = {-1, -1};
    char byte;
    if (ends[0] < 0) MUST(pipe(ends) == 0);
    if (write(ends[1], p, 1) == 1) {
        MUST(read(ends[0], &byte, 1) == 1);
        return 0;
    }
    MUST(errno == EFAULT);
    return 1;
}

static void lost_guards(char *start, const char *when) {
    int lost = 0;
    for (int i = 0; i < GUARDS; i++) lost += !is_deadly(start + (i * EVERY + EVERY - 1) * PAGE);
    if (lost) die("%d of %d guards lost %s", lost, GUARDS, when);
}

static void install(advise *call, char *start) {
    for (int i = 0; i < GUARDS; i++)
        MUST(call(start + (i * EVERY + EVERY - 1) * PAGE, PAGE, GUARD_INSTALL) == 0);
}

static int is_guard(size_t page) { return page % EVERY == EVERY - 1; }

/* ---- guards ----------------------------------------------------------------------------- */

/* A pass over fresh memory, which is read ahead, stops at none of them. */
static int case_guards(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    char *start = map(GUARDS * EVERY * PAGE);
    install(chosen(argc, argv), start);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t page = 0; page < GUARDS * EVERY; page++) {
            if (is_guard(page)) continue;
            if (pass == 0)
                fill(start + page * PAGE, PAGE, page, 1);
            else
                check(start + page * PAGE, PAGE, page, 1, "between guards");
        }
        lost_guards(start, "in a pass");
        ballast_check(&b, "beside");
    }
    puts("guards: ok");
    return 0;
}

/* Put over pages that are out; what comes after them is zero, and beside them nothing changed. Put
 * there by an instruction of one's own they hold, and nothing more is promised. */
static int case_guards_over_data(int argc, char **argv) {
    advise *call = chosen(argc, argv);
    size_t bytes = GUARDS * EVERY * PAGE, mib = number(argc, argv, 0, 48);
    char *start = map(bytes);
    for (size_t page = 0; page < bytes / PAGE; page++) fill(start + page * PAGE, PAGE, page, 1);
    struct ballast b = ballast_new(mib, 5);
    press(b.bytes);
    install(call, start);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t page = 0; page < bytes / PAGE; page++)
            if (!is_guard(page)) check(start + page * PAGE, PAGE, page, 1, "beside a guard");
        lost_guards(start, "while what was beside them came back");
        ballast_check(&b, "ballast");
    }
    for (int i = 0; i < GUARDS; i++) {
        char *guard = start + (i * EVERY + EVERY - 1) * PAGE;
        MUST(call(guard, PAGE, GUARD_REMOVE) == 0);
        if (call != by_instruction) check_zero(guard, PAGE, "where a guard was");
    }
    puts("guards-over-data: ok");
    return 0;
}

/* ---- areas of other kinds --------------------------------------------------------------- */

static void area(int flags, int prot_first, const char *what, size_t bytes) {
    char *start = mmap(NULL, bytes, prot_first, flags, -1, 0);
    if (start == MAP_FAILED) die("%s: mmap: %s", what, strerror(errno));
    if (prot_first != (PROT_READ | PROT_WRITE))
        MUST(mprotect(start, bytes, PROT_READ | PROT_WRITE) == 0);
    check_zero(start, bytes, what);
    fill(start, bytes, 9, 1);
    press(16 * MIB);
    check(start, bytes, 9, 1, what);
    MUST(munmap(start, bytes) == 0);
}

static int case_areas_of_other_kinds(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    int both = PROT_READ | PROT_WRITE, own = MAP_PRIVATE | MAP_ANONYMOUS;
    area(own | MAP_GROWSDOWN, both, "grows down", 2 * MIB);
    area(own | MAP_NORESERVE, both, "not reserved", 8 * MIB);
    area(own | MAP_NORESERVE, PROT_NONE, "an arena", 8 * MIB);
    area(own | MAP_POPULATE, both, "populated", 8 * MIB);
    area(own | MAP_STACK, both, "a stack", 8 * MIB);
    area(MAP_SHARED | MAP_ANONYMOUS, both, "shared", 2 * MIB);
    /* MAP_DROPPABLE (Linux 6.11): its pages may vanish, and then are zero. */
    char *drop = mmap(NULL, MIB, both, MAP_ANONYMOUS | 0x08, -1, 0);
    if (drop != MAP_FAILED) {
        fill(drop, MIB, 9, 1);
        press(b.bytes);
        for (size_t page = 0; page < MIB / PAGE; page++) {
            uint64_t word = *(volatile uint64_t *)(drop + page * PAGE);
            if (word && word != word_at(page_key(9, page, 1), 0)) die("droppable: %lx", word);
        }
    }
    int secret = syscall(447 /* memfd_secret */, 0);
    if (secret >= 0 && ftruncate(secret, 16 * PAGE) == 0) {
        char *start = mmap(NULL, 16 * PAGE, both, MAP_SHARED, secret, 0);
        if (start != MAP_FAILED) {
            fill(start, 16 * PAGE, 4, 1);
            press(b.bytes);
            check(start, 16 * PAGE, 4, 1, "secret");
        }
    }
    ballast_check(&b, "ballast");
    puts("areas-of-other-kinds: ok");
    return 0;
}

static int case_huge(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    size_t bytes = 4 * MIB;
    char *huge = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (huge == MAP_FAILED) die("no huge pages here: %s", strerror(errno));
    for (int version = 1; version < 3; version++) {
        fill(huge, bytes, 6, version);
        press(b.bytes);
        check(huge, bytes, 6, version, "huge pages");
    }
    ballast_check(&b, "ballast");
    MUST(munmap(huge, bytes) == 0);
    /* In the place of memory that is out, and plain memory again in its place. */
    char *place = b.start;
    place += -(uintptr_t)place % (2 * MIB);
    MUST(mmap(place, bytes, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_FIXED, -1, 0) == place);
    check_zero(place, bytes, "huge pages in the place of others");
    fill(place, bytes, 6, 9);
    press(b.bytes);
    check(place, bytes, 6, 9, "huge pages in the place of others");
    MUST(mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
              0) == place);
    check_zero(place, bytes, "plain pages in the place of huge ones");
    puts("huge: ok");
    return 0;
}

static int case_put_over(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    size_t third = b.bytes / 3 & -MIB;
    char *file_at = b.start, *shared_at = file_at + third, *shm_at = shared_at + third;
    press(b.bytes);
    int file = memfd_create("kinds", 0), both = PROT_READ | PROT_WRITE;
    MUST(file >= 0 && ftruncate(file, 4 * MIB) == 0);
    MUST(mmap(file_at, 4 * MIB, both, MAP_PRIVATE | MAP_FIXED, file, 0) == file_at);
    MUST(mmap(shared_at, 4 * MIB, both, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
         shared_at);
    int segment = shmget(IPC_PRIVATE, 4 * MIB, IPC_CREAT | 0600);
    MUST(segment >= 0);
    MUST(shmat(segment, shm_at, SHM_REMAP) == shm_at);
    MUST(shmctl(segment, IPC_RMID, NULL) == 0);
    char *places[] = {file_at, shared_at, shm_at};
    for (int i = 0; i < 3; i++) {
        check_zero(places[i], 4 * MIB, "put over others");
        fill(places[i], 4 * MIB, i + 1, 1);
    }
    press(b.bytes);
    for (int i = 0; i < 3; i++) {
        check(places[i], 4 * MIB, i + 1, 1, "put over others");
        size_t first = (places[i] - (char *)b.start + 4 * MIB) / PAGE;
        for (size_t page = first; page < first + (third - 4 * MIB) / PAGE; page++) {
            volatile uint64_t *words = (uint64_t *)((char *)b.start + page * PAGE);
            if (words[5] != word_at(page_key(b.seed, page, 1), 5)) die("wrong word: behind it");
        }
    }
    MUST(shmdt(shm_at) == 0);
    MUST(mmap(shm_at, 4 * MIB, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == shm_at);
    check_zero(shm_at, 4 * MIB, "where a segment was");
    puts("put-over: ok");
    return 0;
}

/* ---- advice and protection --------------------------------------------------------------- */

/* Pages given up lazily, out or not: each reads as it was or as zeros, whole, and takes writes. */
static int case_lazily_freed(int argc, char **argv) {
    advise *call = chosen(argc, argv);
    struct ballast b = load(argc, argv);
    for (int round = 0; round < 2; round++) {
        MUST(call(b.start, b.bytes, MADV_FREE) == 0);
        if (round) press(b.bytes);
        for (size_t page = 0; page < b.bytes / PAGE; page++) {
            volatile uint64_t *words = (uint64_t *)((char *)b.start + page * PAGE);
            uint64_t key = page_key(b.seed, page, b.version), first = words[0];
            if (first && first != word_at(key, 0)) die("wrong word: freed page %zu", page);
            if (words[511] != (first ? word_at(key, 511) : 0)) die("half a page %zu", page);
        }
        ballast_change(&b);
        ballast_check(&b, "written after it was freed");
    }
    puts("lazily-freed: ok");
    return 0;
}

static int case_advice(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    int advices[] = {MADV_PAGEOUT, MADV_COLD, MADV_COLLAPSE, MADV_POPULATE_READ,
                     MADV_POPULATE_WRITE, MADV_MERGEABLE, MADV_UNMERGEABLE, MADV_HUGEPAGE,
                     MADV_NOHUGEPAGE, MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL};
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++) {
        for (size_t at = 0; at < b.bytes; at += 8 * MIB) {
            /* It may be refused, and must change nothing. */
            madvise((char *)b.start + at, 8 * MIB, advices[i]);
        }
        if (i % 3 == 0) ballast_change(&b);
        ballast_check(&b, "after advice");
    }
    MUST(madvise(b.start, 4 * MIB, 24 /* DONTNEED_LOCKED */) == 0);
    check_zero(b.start, 4 * MIB, "discarded, if locked or not");
    puts("advice: ok");
    return 0;
}

/* What is in memory of an area, in pages. */
static size_t resident(const void *start, size_t bytes) {
    unsigned char there[2048];
    size_t pages = bytes / PAGE, count = 0;
    MUST(pages <= sizeof there && mincore((void *)start, bytes, there) == 0);
    for (size_t page = 0; page < pages; page++) count += there[page] & 1;
    return count;
}

/* The kernel fills it before it is touched: the agent has it do so in slices of 2 MiB. */
static int case_filled_ahead(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    size_t bytes = 3 * MIB + PAGE;
    int shared = MAP_SHARED | MAP_ANONYMOUS, both = PROT_READ | PROT_WRITE;
    int protections[] = {both, PROT_READ};
    for (int i = 0; i < 2; i++) {
        char *area = mmap(NULL, bytes, protections[i], shared | MAP_POPULATE, -1, 0);
        MUST(area != MAP_FAILED && resident(area, bytes) == bytes / PAGE);
        check_zero(area, bytes, "filled ahead");
        if (!i) memset(area, 1, bytes);
        MUST(munmap(area, bytes) == 0);
    }
    char *area = mmap(NULL, bytes, both, shared | MAP_POPULATE | MAP_NONBLOCK, -1, 0);
    MUST(area != MAP_FAILED && resident(area, bytes) == 0);
    /* Up to a hole, which is told. */
    MUST(munmap(area + 5 * (MIB / 2), PAGE) == 0);
    errno = 0;
    MUST(madvise(area, bytes, MADV_POPULATE_WRITE) == -1 && errno == ENOMEM);
    MUST(resident(area, 2 * MIB) == 2 * MIB / PAGE);
    /* Whatever makes no sense is answered as by the kernel. */
    struct {
        char *start;
        size_t bytes;
    } odd[] = {{area, 0}, {area + 1, bytes}, {area, -PAGE}, {(char *)-PAGE, bytes}, {NULL, bytes}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        int advice = i % 2 ? MADV_POPULATE_READ : MADV_POPULATE_WRITE;
        errno = 0;
        long ours = madvise(odd[i].start, odd[i].bytes, advice) ? -errno : 0;
        long kernels = raw(SYS_madvise, (long)odd[i].start, odd[i].bytes, advice);
        if (ours != kernels) die("%zu: %ld instead of %ld", i, ours, kernels);
    }
    MUST(munmap(area, bytes) == 0);
    ballast_check(&b, "beside what is filled ahead");
    puts("filled-ahead: ok");
    return 0;
}

static int case_read_only(int argc, char **argv) {
    struct ballast b = load(argc, argv), other = ballast_new(4, 8);
    MUST(mprotect(b.start, 4 * MIB, PROT_READ) == 0);
    MUST(mprotect(other.start, other.bytes, PROT_NONE) == 0);
    press(b.bytes);
    check(b.start, 4 * MIB, b.seed, 1, "read only");
    MUST(mprotect(other.start, other.bytes, PROT_READ) == 0);
    ballast_check(&other, "no access for a while");
    MUST(mprotect(other.start, other.bytes, PROT_READ | PROT_WRITE) == 0);
    MUST(mprotect(b.start, b.bytes, PROT_READ | PROT_WRITE) == 0);
    ballast_check(&b, "writable again");
    ballast_change(&b);
    ballast_change(&other);
    ballast_check(&b, "written again");
    ballast_check(&other, "written again");
    puts("read-only: ok");
    return 0;
}

/* Private memory of /dev/zero is memory, in the program and in a child; what is wrong with a call stays wrong. */
static int case_zero_device(int argc, char **argv) {
    const size_t bytes = number(argc, argv, 0, 48) * MIB;
    const int write = PROT_READ | PROT_WRITE, device = open("/dev/zero", O_RDWR);
    char *start = mmap(NULL, bytes, write, MAP_PRIVATE, device, 0);
    MUST(start != MAP_FAILED);
    fill(start, bytes, 5, 1);
    MUST(mmap(start, 2 * MIB, write, MAP_PRIVATE | MAP_FIXED, device, 2 * PAGE) == start);
    check_zero(start, 2 * MIB, "put over others");
    fill(start, 2 * MIB, 5, 1);
    press(bytes);
    pid_t child = fork();
    check(start, bytes, 5, 1, child ? "of the device" : "of the device, in a child");
    if (child == 0) fill(start, bytes / 2, 6, 1), check(start, bytes / 2, 6, 1, "a child's"), _exit(0);
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    check(start, bytes, 5, 1, "of the device");
    MUST(munmap(start, bytes) == 0);
    const int closed = open("/dev/zero", O_WRONLY);
    MUST(mmap(NULL, PAGE, write, MAP_PRIVATE, closed, 0) == MAP_FAILED && errno == EACCES);
    MUST(mmap(NULL, PAGE, write, MAP_PRIVATE, device, 1) == MAP_FAILED && errno == EINVAL);
    puts("zero-device: ok");
    return 0;
}

/* Memory that is writable and executable at once, beside plain memory; it becomes one or the other while it is out. */
static int case_executable(int argc, char **argv) {
    const int write = PROT_READ | PROT_WRITE, all = write | PROT_EXEC;
    struct ballast b = load(argc, argv);
    const size_t half = b.bytes / 2;
    char *upper = (char *)b.start + half;
    unsigned char *code = map(PAGE);
    MUST(mprotect(code, PAGE, all) == 0);
    /* mov $42, %eax; ret */
    memcpy(code, (unsigned char[]){0xb8, 42, 0, 0, 0, 0xc3}, 6);
    for (int round = 0; round < 2; round++) {
        MUST(mprotect(upper, half, all) == 0);
        press(b.bytes);
        ballast_check(&b, "half of it executable");
        MUST(((int (*)(void))code)() == 42);
        pid_t child = fork();
        if (child == 0) {
            ballast_check(&b, "half of it executable, in a child");
            ballast_change(&b);
            press(b.bytes);
            ballast_check(&b, "a child's");
            _exit(((int (*)(void))code)() != 42);
        }
        int status;
        MUST(waitpid(child, &status, 0) == child && status == 0);
        MUST(mprotect(upper, half, write) == 0);
        MUST(mprotect(b.start, half, all) == 0);
        ballast_change(&b);
        press(b.bytes);
        ballast_check(&b, "the other half executable");
        MUST(mprotect(b.start, half, write) == 0);
    }
    puts("executable: ok");
    return 0;
}

/* Code that nobody has touched takes no memory, however much there is of it. */
static int case_code(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    for (int area = 0; area < 64; area++)
        MUST(mprotect(map(MIB), MIB, PROT_READ | PROT_EXEC) == 0);
    ballast_check(&b, "beside code");
    puts("code: ok");
    return 0;
}

static int case_locked(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    char *some = b.start, *seldom = some + 8 * MIB;
    press(b.bytes);
    MUST(mlock(some, 2 * MIB) == 0);
    MUST(mlock2(seldom, 2 * MIB, MLOCK_ONFAULT) == 0);
    press(b.bytes);
    ballast_check(&b, "locked");
    MUST(munlock(some, 2 * MIB) == 0);
    MUST(munlock(seldom, 2 * MIB) == 0);
    press(b.bytes);
    ballast_check(&b, "unlocked");
    puts("locked: ok");
    return 0;
}

/* ---- moved, merged, marked ---------------------------------------------------------------- */

static int case_moved(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    press(b.bytes);
    size_t half = b.bytes / 2;
    char *upper = (char *)b.start + half, *to = map(half);
    fill(to, half, 3, 1);
    /* Onto memory that is in use, leaving an empty area behind. */
    MUST(mremap(upper, half, half, MREMAP_MAYMOVE | MREMAP_FIXED | 4 /* DONTUNMAP */, to) == to);
    check_zero(upper, half, "left behind");
    fill(upper, half, 4, 1);
    press(half);
    check(b.start, half, b.seed, 1, "not moved");
    check(upper, half, 4, 1, "written where others left");
    MUST(mremap(to, half, half, MREMAP_MAYMOVE | MREMAP_FIXED, upper) == upper);
    ballast_check(&b, "moved back");
    puts("moved: ok");
    return 0;
}

static void tell(const char *path, const char *text) {
    int file = open(path, O_WRONLY);
    if (file < 0) return;
    if (write(file, text, strlen(text)) < 0) errno = 0;
    close(file);
}

/* Soft-dirty bits are cleared, pages moved to a policy of memory nodes. */
static int case_marked(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    unsigned long node = 1;
    tell("/proc/self/clear_refs", "4");
    ballast_change(&b);
    tell("/proc/self/clear_refs", "1");
    ballast_check(&b, "cleared references");
    /* Both may be refused: then nothing has happened. */
    syscall(SYS_mbind, b.start, b.bytes / 2, 2 /* BIND */, &node, 64, 2 /* MOVE */);
    syscall(SYS_migrate_pages, 0, 64, &node, &node);
    ballast_check(&b, "bound to a node");
    ballast_change(&b);
    ballast_check(&b, "written afterwards");
    puts("marked: ok");
    return 0;
}

static void on_signal(int number) {
    (void)number;
    char local[3 * PAGE];
    memset(local, 7, sizeof local);
    __asm__ volatile("" : : "r"(local) : "memory");
}

/* The kernel writes a signal's frame to pages that are out. */
static int case_signal_stack(int argc, char **argv) {
    struct ballast b = load(argc, argv);
    size_t bytes = 16 * PAGE;
    stack_t stack = {.ss_sp = map(bytes), .ss_size = bytes};
    MUST(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int round = 0; round < 4; round++) {
        fill(stack.ss_sp, bytes, 1, round + 1);
        press(b.bytes);
        MUST(raise(SIGUSR1) == 0);
        check(stack.ss_sp, PAGE, 1, round + 1, "below the signal's frame");
    }
    ballast_check(&b, "ballast");
    puts("signal-stack: ok");
    return 0;
}

/* ---- a userfaultfd of the program's own --------------------------------------------------- */

static int own_fd;
static void *serve_own(void *page) {
    for (;;) {
        struct uffd_msg message;
        if (read(own_fd, &message, sizeof message) != sizeof message) continue;
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        uint64_t at = message.arg.pagefault.address & -PAGE;
        fill(page, PAGE, at / PAGE, 1);
        struct uffdio_copy copy = {.dst = at, .src = (uint64_t)page, .len = PAGE};
        MUST(ioctl(own_fd, UFFDIO_COPY, &copy) == 0 || errno == EEXIST);
    }
}

/* Left alone where it was first, and refused (EBUSY) where it was not, as between any two. */
static int case_own_userfaultfd(int argc, char **argv) {
    size_t bytes = MIB;
    own_fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    MUST(own_fd >= 0 && ioctl(own_fd, UFFDIO_API, &api) == 0);
    char *mine = map(bytes);
    struct uffdio_register one = {.range = {(uint64_t)mine, bytes}, .mode = 1};
    int registered = ioctl(own_fd, UFFDIO_REGISTER, &one) == 0;
    if (!registered) MUST(errno == EBUSY);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, serve_own, map(PAGE)) == 0);
    struct ballast b = load(argc, argv);
    press(b.bytes);
    for (size_t at = 0; registered && at < bytes; at += PAGE)
        check(mine + at, PAGE, (uint64_t)(mine + at) / PAGE, 1, "served by the program");
    press(b.bytes);
    for (size_t at = 0; registered && at < bytes; at += PAGE)
        check(mine + at, PAGE, (uint64_t)(mine + at) / PAGE, 1, "served by the program, kept");
    char *late = map(bytes);
    one.range.start = (uint64_t)late;
    if (ioctl(own_fd, UFFDIO_REGISTER, &one) != 0) MUST(errno == EBUSY);
    ballast_check(&b, "ballast");
    puts("own-userfaultfd: ok");
    return 0;
}

static const struct test_case CASES[] = {
    {"guards", case_guards},
    {"guards-over-data", case_guards_over_data},
    {"areas-of-other-kinds", case_areas_of_other_kinds},
    {"executable", case_executable},
    {"huge", case_huge},
    {"put-over", case_put_over},
    {"lazily-freed", case_lazily_freed},
    {"advice", case_advice},
    {"filled-ahead", case_filled_ahead},
    {"read-only", case_read_only},
    {"locked", case_locked},
    {"zero-device", case_zero_device},
    {"code", case_code},
    {"moved", case_moved},
    {"marked", case_marked},
    {"signal-stack", case_signal_stack},
    {"own-userfaultfd", case_own_userfaultfd},
    {NULL, NULL},
};

int main(int argc, char **argv) { return run_case(CASES, argc, argv); }
