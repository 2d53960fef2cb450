/*
 * verify MIB ROUNDS SEED THREADS [SPAN]: fills memory, then reads and rewrites pages at random.
 *
 * With 0 for ROUNDS it does so until SIGTERM, with pauses: who waits for something beside it needs a CPU.
 * With SPAN, words repeat after that many, so that a page can be compressed.
 * Each thread owns its pages, so every read has one right answer. Two reads in three go to a
 * tenth of the pages. Ends with one line that depends on SEED and ROUNDS alone.
 */
#include "common.h"

static size_t span = WORDS;
static volatile sig_atomic_t told;

static void remember(int signal) { told = signal; }

struct share {
    pthread_t thread;
    uint64_t *base;
    uint32_t *version;
    size_t pages;
    long rounds;
    uint64_t seed, random, digest;
};

static void check_page(struct share *s, size_t page) {
    uint64_t key = page_key(s->seed, page, s->version[page]);
    volatile uint64_t *words = s->base + page * WORDS;
    for (size_t w = 0; w < WORDS; w++) {
        uint64_t got = words[w];
        if (got != word_at(key, w % span))
            die("wrong word: page %zu word %zu at %p: read %016lx, want %016lx (version %u)", page,
                w, (void *)&words[w], got, word_at(key, w % span), s->version[page]);
    }
    s->digest = mix(s->digest ^ key);
}

static void write_page(struct share *s, size_t page) {
    uint64_t key = page_key(s->seed, page, ++s->version[page]);
    for (size_t w = 0; w < WORDS; w++) s->base[page * WORDS + w] = word_at(key, w % span);
}

static void *work(void *argument) {
    struct share *s = argument;
    for (size_t page = 0; page < s->pages; page++) write_page(s, page);
    for (size_t step = 0; s->rounds == 0 ? !told : step < s->rounds * s->pages; step++) {
        size_t reach = below(&s->random, 3) ? s->pages / 10 + 1 : s->pages;
        size_t page = below(&s->random, reach);
        check_page(s, page);
        if (s->rounds == 0 && step % 128 == 0) usleep(1000);
        if (below(&s->random, 3) != 0) continue;
        write_page(s, page);
    }
    for (size_t page = 0; page < s->pages; page++) check_page(s, page);
    return NULL;
}

int main(int argc, char **argv) {
    long mib = number(argc, argv, 1, 64), rounds = number(argc, argv, 2, 2);
    long seed = number(argc, argv, 3, 1), threads = number(argc, argv, 4, 1);
    span = number(argc, argv, 5, WORDS);
    size_t pages = mib * MIB / PAGE / threads;
    if (rounds == 0) signal(SIGTERM, remember);
    struct share *shares = calloc(threads, sizeof *shares);
    uint64_t digest = 0;
    for (long t = 0; t < threads; t++) {
        shares[t] = (struct share){.base = map(pages * PAGE), .pages = pages, .rounds = rounds};
        shares[t].version = calloc(pages, sizeof(uint32_t));
        shares[t].seed = seed + t;
        shares[t].random = mix(seed + t);
        MUST(pthread_create(&shares[t].thread, NULL, work, &shares[t]) == 0);
    }
    for (long t = 0; t < threads; t++) {
        MUST(pthread_join(shares[t].thread, NULL) == 0);
        digest = mix(digest ^ shares[t].digest);
    }
    printf("verify: ok %016lx\n", digest);
    return 0;
}
