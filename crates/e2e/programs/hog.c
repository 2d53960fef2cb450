/*
 * hog MIB THREADS: takes memory as fast as it can, then looks at one word of every page.
 * The budget is to hold while this runs, however fast it is.
 */
#include "common.h"

struct share {
    pthread_t thread;
    size_t bytes;
    uint64_t seed;
};

static void *work(void *argument) {
    struct share *s = argument;
    uint64_t *words = map(s->bytes);
    size_t pages = s->bytes / PAGE;
    for (size_t page = 0; page < pages; page++)
        words[page * WORDS] = word_at(page_key(s->seed, page, 1), 0);
    for (size_t page = 0; page < pages; page++)
        if (words[page * WORDS] != word_at(page_key(s->seed, page, 1), 0))
            die("wrong word: page %zu: read %016lx", page, words[page * WORDS]);
    return NULL;
}

int main(int argc, char **argv) {
    long mib = number(argc, argv, 1, 128), threads = number(argc, argv, 2, 4);
    struct share shares[64];
    MUST(threads > 0 && threads <= 64);
    for (long t = 0; t < threads; t++) {
        shares[t] = (struct share){.bytes = mib * MIB / threads, .seed = t + 1};
        MUST(pthread_create(&shares[t].thread, NULL, work, &shares[t]) == 0);
    }
    for (long t = 0; t < threads; t++) MUST(pthread_join(shares[t].thread, NULL) == 0);
    puts("hog: ok");
    return 0;
}
