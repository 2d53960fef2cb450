/*
 * reuse run MIB HOT ACCESSES: fills MIB, then touches pages by lot: of a hundred touches 99 within the first HOT MiB.
 * reuse exact MIB HOT ACCESSES SIZE...: how often an LRU of each size, in MiB, would miss after the filling.
 */
#include "common.h"

static uint64_t lot = 1;

static uint64_t drawn(void) {
    lot = lot * 6364136223846793005ull + 1442695040888963407ull;
    return lot >> 33;
}

static size_t next_page(size_t pages, size_t hot) {
    return drawn() % 100 < 99 ? drawn() % hot : hot + drawn() % (pages - hot);
}

static int case_run(int argc, char **argv) {
    size_t pages = number(argc, argv, 0, 64) * MIB / PAGE, hot = number(argc, argv, 1, 16) * MIB / PAGE;
    long accesses = number(argc, argv, 2, 1000000);
    char *start = map(pages * PAGE);
    for (size_t page = 0; page < pages; page++) start[page * PAGE] = 1;
    for (long n = 0; n < accesses; n++) {
        start[next_page(pages, hot) * PAGE]++;
        for (volatile int work = 0; work < 1000; work++) {}
    }
    puts("run: ok");
    return 0;
}

static int case_exact(int argc, char **argv) {
    int pages = number(argc, argv, 0, 64) * MIB / PAGE, hot = number(argc, argv, 1, 16) * MIB / PAGE;
    long accesses = number(argc, argv, 2, 1000000);
    int *older = malloc((pages + 1) * sizeof *older), *younger = malloc((pages + 1) * sizeof *younger);
    char *there = malloc(pages);
    MUST(older && younger && there);
    for (int index = 3; index < argc; index++) {
        long size = atol(argv[index]) * (MIB / PAGE), used = 0, misses = 0;
        memset(there, 0, pages);
        lot = 1;
        /* A ring: the head stands between the youngest and the oldest. */
        int head = pages;
        older[head] = younger[head] = head;
        for (long n = -pages; n < accesses; n++) {
            int page = n < 0 ? n + pages : (int)next_page(pages, hot);
            if (there[page]) {
                younger[older[page]] = younger[page], older[younger[page]] = older[page];
            } else {
                misses += n >= 0;
                if (used == size) {
                    int oldest = younger[head];
                    younger[head] = younger[oldest], older[younger[oldest]] = head;
                    there[oldest] = 0;
                } else {
                    used++;
                }
                there[page] = 1;
            }
            older[page] = older[head], younger[page] = head;
            younger[older[page]] = page, older[head] = page;
        }
        printf("%s %ld\n", argv[index], misses);
    }
    return 0;
}

static const struct test_case cases[] = {{"run", case_run}, {"exact", case_exact}, {NULL, NULL}};

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
