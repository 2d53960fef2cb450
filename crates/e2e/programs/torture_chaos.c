/*
 * The torture program's changes of the address space, one at a time, from a seed.
 *
 * Each change takes only the locks of what it changes, so that the other threads go on reading
 * and writing the same areas next to it.
 */
#include "torture.h"

#include <spawn.h>

#define CHILDREN_MAX 2

extern char **environ;
static uint64_t uids;
static int children;

static void lock_region(struct region *r) {
    for (size_t c = 0; c < CHUNKS; c++) pthread_rwlock_wrlock(&r->locks[c]);
}

static void unlock_region(struct region *r) {
    for (size_t c = 0; c < CHUNKS; c++) pthread_rwlock_unlock(&r->locks[c]);
}

static void sample(struct region *r, uint64_t *random, const char *when) {
    for (size_t n = 0; r->base && n < 8; n++) check_page(r, below(random, r->pages), when);
}

/* ---- whole regions ---------------------------------------------------------------------- */

static void region_map(struct region *r, uint64_t *random) {
    if (r->base) return;
    r->pages = pages_max / 4 + 1 + below(random, pages_max * 3 / 4);
    r->base = map(r->pages * PAGE);
    r->uid = ++uids;
    forget_pages(r, 0, pages_max);
    memset(r->readonly, 0, sizeof r->readonly);
    memset(r->pinned_pages, 0, sizeof r->pinned_pages);
    r->patched = 0;
    for (size_t page = 0; page < r->pages; page += 1 + below(random, 3)) write_page(r, page);
}

static void region_unmap(struct region *r) {
    if (!r->base) return;
    MUST(munmap(r->base, r->pages * PAGE) == 0);
    r->base = NULL;
}

/* mremap wants one area: give every part the same protection and locking first. */
static void region_make_uniform(struct region *r) {
    MUST(mprotect(r->base, r->pages * PAGE, PROT_READ | PROT_WRITE) == 0);
    MUST(munlock(r->base, r->pages * PAGE) == 0);
    memset(r->readonly, 0, sizeof r->readonly);
    memset(r->pinned_pages, 0, sizeof r->pinned_pages);
}

static void region_resize(struct region *r, uint64_t *random) {
    if (!r->base) return;
    region_make_uniform(r);
    size_t pages = 1 + below(random, pages_max);
    void *moved = mremap(r->base, r->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (moved == MAP_FAILED && errno == EFAULT) return; /* not one area for the kernel: fine */
    if (moved == MAP_FAILED) die("mremap to %zu pages: %s", pages, strerror(errno));
    r->base = moved;
    if (pages < r->pages) forget_pages(r, pages, r->pages - pages);
    r->pages = pages;
    sample(r, random, "after mremap to another size");
}

static void region_move(struct region *r, uint64_t *random) {
    /* A region with a part mapped anew may be several areas for the kernel, and a move of several
     * areas can fail after moving some of them: nothing to build upon. */
    if (!r->base || r->patched) return;
    region_make_uniform(r);
    size_t bytes = r->pages * PAGE;
    void *there = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(there != MAP_FAILED);
    void *moved = mremap(r->base, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, there);
    if (moved == MAP_FAILED && errno == EFAULT) {
        MUST(munmap(there, bytes) == 0);
        return;
    }
    if (moved != there) die("mremap to a given place: %s", strerror(errno));
    r->base = moved;
    sample(r, random, "after mremap to another place");
}

/* The pages move, the old area stays and reads as zero. */
static void region_leave(struct region *r, uint64_t *random) {
    if (!r->base) return;
    region_make_uniform(r);
    size_t bytes = r->pages * PAGE;
    char *old = r->base;
    char *moved = mremap(old, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (moved == MAP_FAILED && errno == EFAULT) return;
    if (moved == MAP_FAILED) die("mremap that leaves the old area: %s", strerror(errno));
    r->base = moved;
    size_t page = below(random, r->pages);
    check_zero(old + page * PAGE, PAGE, "area left behind by mremap");
    MUST(munmap(old, bytes) == 0);
    sample(r, random, "after mremap that left the old area");
}

/* ---- parts of a chunk ------------------------------------------------------------------- */

struct part {
    struct region *region;
    size_t chunk, from, count;
    char *start;
    size_t bytes;
};

static void part_discard(struct part *p) {
    if (p->region->pinned_pages[p->chunk]) return;
    MUST(madvise(p->start, p->bytes, MADV_DONTNEED) == 0);
    forget_pages(p->region, p->from, p->count);
}

static void part_free(struct part *p) {
    if (p->region->pinned_pages[p->chunk]) return;
    MUST(madvise(p->start, p->bytes, MADV_FREE) == 0);
    for (size_t i = p->from; i < p->from + p->count; i++)
        if (p->region->maybe[i] == 0) p->region->maybe[i] = 1;
}

static void part_replace(struct part *p) {
    if (p->region->pinned_pages[p->chunk]) return;
    MUST(munmap(p->start, p->bytes) == 0);
    p->region->patched = 1;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    void *again = mmap(p->start, p->bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (again != p->start) die("nothing replaces an unmapped part: %s", strerror(errno));
    if (getenv("HUGE_PAGES")) madvise(again, p->bytes, MADV_HUGEPAGE);
    forget_pages(p->region, p->from, p->count);
    if (p->region->readonly[p->chunk]) MUST(mprotect(p->start, p->bytes, PROT_READ) == 0);
}

static void chunk_toggle_readonly(struct part *p) {
    struct region *r = p->region;
    size_t first = p->chunk * chunk_pages(), end = chunk_end(r, p->chunk);
    int prot = r->readonly[p->chunk] ? PROT_READ | PROT_WRITE : PROT_READ;
    MUST(mprotect(r->base + first * PAGE, (end - first) * PAGE, prot) == 0);
    r->readonly[p->chunk] ^= 1;
}

/* Nobody can reach the pages for a while; afterwards they hold what they held. */
static void part_hide(struct part *p) {
    MUST(mprotect(p->start, p->bytes, PROT_NONE) == 0);
    int ends[2];
    MUST(pipe(ends) == 0);
    if (write(ends[1], p->start, 1) != -1 || errno != EFAULT) die("hidden page was readable");
    close(ends[0]);
    close(ends[1]);
    int prot = p->region->readonly[p->chunk] ? PROT_READ : PROT_READ | PROT_WRITE;
    MUST(mprotect(p->start, p->bytes, prot) == 0);
    check_page(p->region, p->from, "after being hidden");
}

static void chunk_toggle_pin(struct part *p) {
    struct region *r = p->region;
    if (r->pinned_pages[p->chunk]) {
        char *start = r->base + r->pinned_from[p->chunk] * PAGE;
        MUST(munlock(start, r->pinned_pages[p->chunk] * PAGE) == 0);
        r->pinned_pages[p->chunk] = 0;
        return;
    }
    size_t count = p->count < 4 ? p->count : 4;
    MUST(mlock(p->start, count * PAGE) == 0);
    r->pinned_from[p->chunk] = p->from;
    r->pinned_pages[p->chunk] = count;
    for (size_t i = 0; i < count; i++) check_page(r, p->from + i, "after mlock");
}

/* Advice that must not change what is read. Some kernels refuse some of it: no matter. */
static void part_advise(struct part *p, uint64_t *random) {
    static const int advices[] = {MADV_WILLNEED, MADV_SEQUENTIAL, MADV_RANDOM, MADV_NORMAL,
                                  20 /* COLD */, 21 /* PAGEOUT */, 22 /* POPULATE_READ */};
    madvise(p->start, p->bytes, advices[below(random, 7)]);
    check_page(p->region, p->from + below(random, p->count), "after advice");
}

static void change_part(uint64_t *random, int kind) {
    struct region *r = &regions[below(random, REGIONS)];
    size_t chunk = below(random, CHUNKS), first = chunk * chunk_pages();
    pthread_rwlock_wrlock(&r->locks[chunk]);
    if (r->base && chunk_end(r, chunk) > first) {
        size_t end = chunk_end(r, chunk), from = first + below(random, end - first);
        struct part p = {.region = r, .chunk = chunk, .from = from};
        p.count = 1 + below(random, end - from);
        p.start = r->base + from * PAGE;
        p.bytes = p.count * PAGE;
        switch (kind) {
        case 0: part_discard(&p); break;
        case 1: part_free(&p); break;
        case 2: part_replace(&p); break;
        case 3: chunk_toggle_readonly(&p); break;
        case 4: part_hide(&p); break;
        case 5: chunk_toggle_pin(&p); break;
        default: part_advise(&p, random); break;
        }
    }
    pthread_rwlock_unlock(&r->locks[chunk]);
}

static void change_region(uint64_t *random, int kind) {
    struct region *r = &regions[below(random, REGIONS)];
    lock_region(r);
    switch (kind) {
    case 0: case 1: case 2: region_map(r, random); break;
    case 3: region_unmap(r); break;
    case 4: region_resize(r, random); break;
    case 5: region_move(r, random); break;
    default: region_leave(r, random); break;
    }
    unlock_region(r);
}

/* ---- processes and threads -------------------------------------------------------------- */

static void child_life(const uint8_t *held, uint64_t *random) {
    for (int n = 0; n < 300; n++) {
        struct region *r = &regions[below(random, REGIONS)];
        if (!held[r - regions] || !r->base) continue;
        size_t page = below(random, r->pages);
        check_page(r, page, "in a forked child");
        if (below(random, 4) == 0 && !r->readonly[page / chunk_pages()]) {
            write_page(r, page);
            check_page(r, page, "in a forked child after its own write");
        }
    }
    if (below(random, 3) == 0) execl(self, "torture", "brief", "7", (char *)NULL);
    _exit(0);
}

/* Half of the regions are held still, so that the child knows what they contain; in the others
 * the threads go on. */
static void fork_child(uint64_t *random) {
    if (children >= CHILDREN_MAX) return;
    uint8_t held[REGIONS];
    for (size_t i = 0; i < REGIONS; i++) {
        held[i] = below(random, 2);
        for (size_t c = 0; held[i] && c < CHUNKS; c++) pthread_rwlock_rdlock(&regions[i].locks[c]);
    }
    pid_t child = fork();
    if (child == 0) child_life(held, random);
    int error = errno;
    for (size_t i = 0; i < REGIONS; i++)
        for (size_t c = 0; held[i] && c < CHUNKS; c++) pthread_rwlock_unlock(&regions[i].locks[c]);
    if (child < 0) die("fork: %s", strerror(error));
    children++;
}

static void spawn_child(void) {
    if (children >= CHILDREN_MAX) return;
    pid_t child;
    char *arguments[] = {"torture", "brief", "9", NULL};
    int error = posix_spawn(&child, self, NULL, NULL, arguments, environ);
    if (error) die("posix_spawn: %s", strerror(error));
    children++;
}

static void reap(int flags) {
    int status;
    while (children > 0 && waitpid(-1, &status, flags) > 0) {
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            die("a child ended with wait status %#x", status);
        children--;
    }
}

static void *short_thread(void *argument) {
    volatile uint64_t deep[4096];
    for (size_t i = 0; i < 4096; i++) deep[i] = word_at((uintptr_t)argument, i);
    usleep((uintptr_t)argument % 3000);
    for (size_t i = 0; i < 4096; i++)
        if (deep[i] != word_at((uintptr_t)argument, i)) die("wrong word: on a thread's stack");
    return argument;
}

/* A few threads at a time, some waited for at once, one later. */
static void threads_step(uint64_t *random) {
    static pthread_t late;
    static void *late_value;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *value = (void *)(uintptr_t)(1 + below(random, 1000000)), *result;
        MUST(pthread_create(&thread, NULL, short_thread, value) == 0);
        if (i == 0) {
            if (late_value) {
                MUST(pthread_join(late, &result) == 0);
                if (result != late_value) die("a thread's result was lost");
            }
            late = thread;
            late_value = value;
            continue;
        }
        MUST(pthread_join(thread, &result) == 0);
        if (result != value) die("a thread's result was lost");
    }
}

void chaos_step(uint64_t *random) {
    reap(WNOHANG);
    size_t kind = below(random, 40);
    if (kind < 18) change_part(random, kind % 7);
    else if (kind < 34) change_region(random, kind % 7);
    else if (kind < 36) fork_child(random);
    else if (kind < 37) spawn_child();
    else threads_step(random);
}

void chaos_end(void) { reap(0); }
