/*
 * huge: memory for which huge pages were asked, with room, then without.
 *
 * 64 MiB are filled, and written by a forked child and by its parent; then 256 MiB more, and all of it is checked; then
 * a last area is filled. Ends with "huge: ok, MiB of huge pages: EARLY at first, NEW in the last area".
 */
#include "common.h"

#include <sys/wait.h>

#define EARLY 64
#define LATER 256
#define LAST 32

static struct ballast advised(size_t mib, uint64_t seed) {
    struct ballast b = {map(mib * MIB), mib * MIB, seed, 1};
    MUST(madvise(b.start, b.bytes, MADV_HUGEPAGE) == 0);
    fill(b.start, b.bytes, b.seed, b.version);
    return b;
}

/* MiB of this process in huge pages, in the area that begins at `start` (all of them: NULL). */
static long huge_mib(const void *start) {
    char line[256];
    long kib = 0, found;
    int inside = start == NULL;
    FILE *areas = fopen(start ? "/proc/self/smaps" : "/proc/self/smaps_rollup", "r");
    MUST(areas != NULL);
    while (fgets(line, sizeof line, areas)) {
        unsigned long from, to;
        if (start && sscanf(line, "%lx-%lx ", &from, &to) == 2)
            inside = from <= (unsigned long)start && (unsigned long)start < to;
        if (inside && sscanf(line, "AnonHugePages: %ld", &found) == 1) kib += found;
    }
    fclose(areas);
    return kib >> 10;
}

/* What the two share is theirs alone once one of them has written it. */
static void fork_and_write(struct ballast *b) {
    pid_t child = fork();
    MUST(child >= 0);
    ballast_check(b, child ? "by the parent" : "by the child");
    struct ballast half = {b->start, b->bytes / 2, b->seed, b->version};
    if (child == 0) {
        ballast_change(&half);
        ballast_check(&half, "written by the child");
        _exit(0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    ballast_check(b, "after the child");
}

int main(void) {
    struct ballast early = advised(EARLY, 1);
    long at_first = huge_mib(NULL);
    fork_and_write(&early);
    ballast_change(&early);
    struct ballast later = advised(LATER, 2);
    for (int turn = 0; turn < 2; turn++) {
        ballast_check(&early, "what was filled first");
        ballast_check(&later, "what was filled later");
        ballast_change(&early);
    }
    fork_and_write(&early);
    struct ballast last = advised(LAST, 3);
    long new = huge_mib(last.start);
    ballast_check(&last, "what was filled last");
    printf("huge: ok, MiB of huge pages: %ld at first, %ld in the last area\n", at_first, new);
    return 0;
}
