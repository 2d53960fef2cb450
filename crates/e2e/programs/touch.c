/*
 * touch MIB SECONDS [FILE]: fills memory and goes through its pages at random, a few changes and checks for each, for so
 * long, or until there is such a file.
 */
#include "common.h"

#include <time.h>

int main(int argc, char **argv) {
    size_t pages = number(argc, argv, 1, 64) * MIB / PAGE;
    long seconds = number(argc, argv, 2, 12);
    uint64_t *words = map(pages * PAGE), state = 1, touched = 0;
    for (size_t page = 0; page < pages; page++) words[page * WORDS] = page;
    const char *file = argc > 3 ? argv[3] : "";
    for (time_t end = time(NULL) + seconds; time(NULL) < end; touched++) {
        if (touched % 64 == 0 && access(file, F_OK) == 0) break;
        state = state * 6364136223846793005 + 1442695040888963407;
        size_t page = (state >> 33) % pages;
        if (words[page * WORDS] != page) die("wrong word: page %zu", page);
        words[page * WORDS + 1 + touched % (WORDS - 1)] = touched;
    }
    puts("touch: ok");
    return 0;
}
