/*
 * An attack on the right that `ebb` may have and its user may not: to look into other processes.
 *
 *   attack steal FOLDER MIB     fills MIB of memory, goes over it, and looks for the victim's bytes in it
 *   attack victim FOLDER        is FOLDER/victim, and holds a secret where FOLDER/pool says
 *
 * Pages on their way out lie in the agent's pool, where the pager reads them from outside. The victim has
 * its secret at the very addresses of the thief's pool, and the memory shared with the pager says that
 * the victim is the thief's agent (forge.c). A pager that believes it stores the secret, and gives it
 * to the thief as a page of its own.
 */
#include "common.h"

#include <sys/prctl.h>
#include <sys/stat.h>

#define SECRET "a secret of somebody else's"
#define PASSES 3

static const char *folder;

static const char *in_folder(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Written beside it and renamed: whoever waits for the file finds it whole. */
static void leave(const char *name, const char *text) {
    char half[512];
    snprintf(half, sizeof half, "%s/%s.half", folder, name);
    int file = open(half, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    MUST(file >= 0);
    MUST(write(file, text, strlen(text)) == (ssize_t)strlen(text));
    close(file);
    MUST(rename(half, in_folder(name)) == 0);
}

static void await(const char *name, char *text, size_t most) {
    for (int tries = 0; tries < 60000; tries++) {
        int file = open(in_folder(name), O_RDONLY);
        if (file >= 0) {
            ssize_t got = read(file, text, most - 1);
            MUST(got > 0);
            text[got] = 0;
            close(file);
            return;
        }
        usleep(10 * 1000);
    }
    die("%s never came", in_folder(name));
}

/* Where the agent's pool is, as "START LENGTH"; among this process's areas it is the one of its size. */
static void find_pool(char *text, size_t most) {
    const char *length = getenv("EBB_POOL_BYTES");
    if (!length) die("not under Ebb");
    FILE *maps = fopen("/proc/self/maps", "r");
    MUST(maps);
    char line[512], access[8];
    unsigned long start, end;
    *text = 0;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %7s", &start, &end, access) == 3 && access[3] == 'p' &&
            end - start == strtoul(length, NULL, 10))
            snprintf(text, most, "%lx %lx", start, end - start);
    fclose(maps);
    if (!*text) die("no agent found");
}

static int steal(size_t bytes) {
    char text[64];
    find_pool(text, sizeof text);
    leave("pool", text);
    await("ready", text, sizeof text);

    uint64_t pages = bytes / PAGE, wrong = 0, stolen = 0;
    char *own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(own != MAP_FAILED);
    for (int pass = 0; pass <= PASSES; pass++) {
        for (uint64_t page = 0; page < pages; page++) {
            char *at = own + page * PAGE;
            if (pass == 0) {
                for (uint64_t word = 0; word < WORDS; word++)
                    ((uint64_t *)at)[word] = mix(page * WORDS + word + 1);
            } else if (!memcmp(at, SECRET, sizeof SECRET)) {
                stolen++;
            } else {
                wrong += ((uint64_t *)at)[1] != mix(page * WORDS + 2);
            }
        }
    }
    printf("%lu stolen, %lu wrong\n", stolen, wrong);
    return stolen || wrong ? WRONG : 0;
}

static int victim(void) {
    char text[64], *end;
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
    snprintf(text, sizeof text, "%d", getpid());
    leave("victim", text);
    await("pool", text, sizeof text);
    uint64_t start = strtoull(text, &end, 16), len = strtoull(end, NULL, 16);
    char *at = mmap((void *)start, len, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    MUST(at == (char *)start);
    for (uint64_t page = 0; page < len / PAGE; page++) memcpy(at + page * PAGE, SECRET, sizeof SECRET);
    leave("ready", "1");
    for (;;) pause();
}

int main(int count, char **words) {
    if (count < 3) die("see the head of attack.c");
    folder = words[2];
    if (!strcmp(words[1], "steal") && count == 4) return steal(strtoul(words[3], NULL, 10) * MIB);
    if (!strcmp(words[1], "victim")) return victim();
    die("see the head of attack.c");
}
