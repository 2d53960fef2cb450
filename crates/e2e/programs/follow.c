/*
 * follow FILE PAGES STEP_NS: fills memory, half of each page with what cannot be compressed, and then touches it as the
 * page numbers of a file (32 bits each, the top bit for a write) say, computing for some time before each.
 *
 * Prints how many pages of other memory it has, before it is sure of every page.
 */
#include "common.h"

#include <time.h>

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 4) die("follow FILE PAGES STEP_NS");
    size_t pages = strtoul(argv[2], NULL, 10);
    uint64_t step = strtoul(argv[3], NULL, 10);
    int file = open(argv[1], O_RDONLY);
    MUST(file >= 0);
    off_t bytes = lseek(file, 0, SEEK_END);
    const uint32_t *list = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE | MAP_POPULATE, file, 0);
    MUST(list != MAP_FAILED);
    size_t count = bytes / sizeof *list;

    /* How long a turn of the loop is. */
    volatile uint64_t sum = 0;
    uint64_t begun = now();
    for (int turn = 0; turn < 1000000; turn++) sum += turn;
    uint64_t turns = step * 1000000 / (now() - begun + 1);

    unsigned long all, other = 0;
    FILE *statm = fopen("/proc/self/statm", "r");
    MUST(statm && fscanf(statm, "%lu %lu", &all, &other) == 2);
    fclose(statm);
    printf("other: %lu\n", other);
    fflush(stdout);

    uint64_t *words = map(pages * PAGE), state = 1;
    for (size_t page = 0; page < pages; page++) {
        uint64_t *at = words + page * WORDS;
        for (size_t word = 0; word < WORDS; word++) at[word] = word < WORDS / 2 ? next_random(&state) : page + 1;
    }
    for (size_t at = 0; at < count; at++) {
        for (uint64_t turn = 0; turn < turns; turn++) sum += turn;
        size_t page = list[at] & 0x7fffffff;
        uint64_t *place = words + page * WORDS + WORDS / 2;
        if (place[1] != page + 1) die("wrong word: page %zu", page);
        if (list[at] >> 31) place[0] = at;
    }
    puts("follow: ok");
    return 0;
}
