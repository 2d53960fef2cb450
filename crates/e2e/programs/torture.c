/*
 * torture SECONDS SEED [MIB [spoil]]: eight threads verify every word of every page they ever
 * wrote while another thread changes the address space at random. With 0 for SECONDS: until SIGTERM.
 *
 * Ends with "torture: ok" and 0, or at the first wrong word with a line that names it and 3.
 * With HUGE_PAGES in its environment it asks for huge pages everywhere.
 * With `spoil` one word is changed behind the tables' back: the run must fail.
 */
#include "torture.h"

#include <time.h>

struct region regions[REGIONS];
size_t pages_max;
volatile int stop;
const char *self;

static void wrong(const struct region *r, size_t page, size_t word, uint64_t got,
                  const char *when) {
    die("wrong word: %s: region %lu page %zu word %zu at %p: read %016lx, want %016lx "
        "(version %u, head %u, maybe %u)",
        when, r->uid, page, word, (void *)&page_words(r, page)[word], got, want(r, page, word),
        r->version[page], r->head[page], r->maybe[page]);
}

/* A page given to MADV_FREE: all of it old, or all of it zero, and once zero always zero. It may
 * become zero while we look, so words after the first zero one must be zero too. */
static void check_maybe(struct region *r, size_t page, const char *when) {
    volatile uint64_t *words = page_words(r, page);
    int zero = __atomic_load_n(&r->maybe[page], __ATOMIC_ACQUIRE) == 2;
    int old = r->version[page] != 0 || r->head[page] != 0;
    for (size_t w = 0; w < WORDS; w++) {
        uint64_t got = words[w];
        if (!zero && got == want(r, page, w)) continue;
        if (got != 0) wrong(r, page, w, got, when);
        zero = 1;
    }
    if (zero && old) __atomic_store_n(&r->maybe[page], 2, __ATOMIC_RELEASE);
}

void check_page(struct region *r, size_t page, const char *when) {
    if (__atomic_load_n(&r->maybe[page], __ATOMIC_ACQUIRE)) return check_maybe(r, page, when);
    volatile uint64_t *words = page_words(r, page);
    if (words[0] != want(r, page, 0)) wrong(r, page, 0, words[0], when);
    uint64_t key = page_key(r->uid, page, r->version[page]);
    for (size_t w = 1; w < WORDS; w++) {
        uint64_t right = r->version[page] ? word_at(key, w) : 0;
        if (words[w] != right) wrong(r, page, w, words[w], when);
    }
}

void write_page(struct region *r, size_t page) {
    uint64_t key = page_key(r->uid, page, ++r->version[page]);
    volatile uint64_t *words = page_words(r, page);
    for (size_t w = 0; w < WORDS; w++) words[w] = word_at(key, w);
    r->head[page] = r->version[page];
    r->maybe[page] = 0;
}

/* Writes one word. What MADV_FREE left undecided is decided by writing all of it. */
void poke_page(struct region *r, size_t page) {
    if (r->maybe[page]) return write_page(r, page);
    page_words(r, page)[0] = word_at(page_key(r->uid, page, ++r->head[page]), 0);
}

void forget_pages(struct region *r, size_t from, size_t count) {
    memset(r->version + from, 0, count * sizeof *r->version);
    memset(r->head + from, 0, count * sizeof *r->head);
    memset(r->maybe + from, 0, count);
}

void check_all(const char *when) {
    for (size_t i = 0; i < REGIONS; i++)
        for (size_t page = 0; regions[i].base && page < regions[i].pages; page++)
            check_page(&regions[i], page, when);
}

/* The kernel reads the page by write(2) and writes another copy by read(2). */
static void through_pipe(struct region *r, size_t page, int *pipe_ends, uint64_t *copy) {
    if (r->maybe[page]) return;
    ssize_t sent = write(pipe_ends[1], (void *)page_words(r, page), PAGE);
    if (sent != (ssize_t)PAGE) die("write(2) from managed memory: %zd %s", sent, strerror(errno));
    ssize_t got = read(pipe_ends[0], copy, PAGE);
    if (got != (ssize_t)PAGE) die("read(2) into managed memory: %zd %s", got, strerror(errno));
    for (size_t w = 0; w < WORDS; w++)
        if (copy[w] != want(r, page, w)) wrong(r, page, w, copy[w], "through a pipe");
}

/* The heap: blocks keep their pattern until freed, and calloc gives zeros. */
struct block {
    uint64_t *words;
    size_t count, key;
};

static void churn_heap(struct block *b, uint64_t *random) {
    for (size_t w = 0; w < b->count; w++)
        if (b->words[w] != word_at(b->key, w))
            die("wrong word: heap block %p word %zu: read %016lx", (void *)b->words, w,
                b->words[w]);
    free(b->words);
    size_t limit = below(random, 8) ? 512 : 24 * 1024;
    b->count = 1 + below(random, limit);
    b->key = next_random(random);
    MUST((b->words = calloc(b->count, 8)) != NULL);
    check_zero(b->words, b->count * 8, "calloc");
    for (size_t w = 0; w < b->count; w++) b->words[w] = word_at(b->key, w);
}

static void visit(uint64_t *random, int *pipe_ends, uint64_t *copy) {
    size_t i = below(random, REGIONS), other = below(random, REGIONS);
    struct region *r = &regions[i < other ? i : other]; /* low regions are hotter */
    size_t chunk = below(random, CHUNKS), first = chunk * chunk_pages();
    int writing = below(random, 2);
    if (writing) pthread_rwlock_wrlock(&r->locks[chunk]);
    else pthread_rwlock_rdlock(&r->locks[chunk]);
    size_t end = r->base ? chunk_end(r, chunk) : 0;
    for (size_t n = 1 + below(random, 8); end > first && n > 0; n--) {
        size_t page = first + below(random, end - first);
        check_page(r, page, writing ? "before writing" : "reading");
        if (writing && !r->readonly[chunk]) {
            if (below(random, 2)) write_page(r, page);
            else poke_page(r, page);
        }
        if (below(random, 32) == 0) through_pipe(r, page, pipe_ends, copy);
    }
    pthread_rwlock_unlock(&r->locks[chunk]);
}

static void *work(void *argument) {
    uint64_t random = mix((uint64_t)(uintptr_t)argument), *copy = map(PAGE);
    struct block blocks[8] = {0};
    int pipe_ends[2];
    MUST(pipe(pipe_ends) == 0);
    while (!stop) {
        visit(&random, pipe_ends, copy);
        if (below(&random, 16) == 0) churn_heap(&blocks[below(&random, 8)], &random);
    }
    for (size_t i = 0; i < 8; i++) free(blocks[i].words);
    return NULL;
}

static void *change(void *argument) {
    uint64_t random = mix((uint64_t)(uintptr_t)argument);
    while (!stop) {
        chaos_step(&random);
        usleep(below(&random, 2000));
    }
    chaos_end();
    return NULL;
}

static void set_up(size_t mib) {
    pages_max = mib * MIB / PAGE / REGIONS / CHUNKS * CHUNKS;
    for (size_t i = 0; i < REGIONS; i++) {
        for (size_t c = 0; c < CHUNKS; c++) pthread_rwlock_init(&regions[i].locks[c], NULL);
        MUST((regions[i].version = calloc(pages_max, sizeof(uint32_t))) != NULL);
        MUST((regions[i].head = calloc(pages_max, sizeof(uint32_t))) != NULL);
        MUST((regions[i].maybe = calloc(pages_max, 1)) != NULL);
    }
}

/* What a child does after exec: memory of its own, filled and looked at. */
static int brief(uint64_t seed) {
    struct ballast b = ballast_new(4, seed);
    ballast_check(&b, "after exec");
    return 0;
}

/* Changes one bit that the tables know nothing of. */
static void spoil(void) {
    struct region *r = regions;
    while (!r->base) MUST(++r < regions + REGIONS);
    MUST(mprotect(r->base, PAGE, PROT_READ | PROT_WRITE) == 0);
    write_page(r, 0);
    page_words(r, 0)[1] ^= 4;
}

static void remember(int signal) { stop = signal; }

int main(int argc, char **argv) {
    if (argc > 2 && strcmp(argv[1], "brief") == 0) return brief(strtoull(argv[2], NULL, 0));
    self = argv[0];
    long seconds = number(argc, argv, 1, 10), seed = number(argc, argv, 2, 1);
    size_t mib = number(argc, argv, 3, 96);
    pthread_t threads[WORKERS + 1];
    if (seconds == 0) signal(SIGTERM, remember);
    set_up(mib);
    uint64_t random = seed;
    for (int i = 0; i < 400; i++) chaos_step(&random);
    for (size_t i = 0; i < WORKERS + 1; i++)
        MUST(pthread_create(&threads[i], NULL, i < WORKERS ? work : change,
                            (void *)(uintptr_t)(seed * 1000 + i + 1)) == 0);
    for (long ms = 0; seconds == 0 ? !stop : ms < seconds * 1000; ms += 10) usleep(10000);
    stop = 1;
    for (size_t i = 0; i < WORKERS + 1; i++) MUST(pthread_join(threads[i], NULL) == 0);
    if (argc > 4) spoil();
    check_all("at the end");
    puts("torture: ok");
    return 0;
}
