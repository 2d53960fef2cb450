/*
 * stuck DIRECTORY: a process whose memory map stays locked, beside one that needs more memory than there is.
 *
 * A thread of the stuck process reads the process's own memory where a file of a silent FUSE server is mapped, and holds
 * the lock of the memory map meanwhile. Its other thread maps memory, and waits for the lock. So does every later reader.
 */
#include "common.h"

#include <linux/fuse.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>

static int fuse;

static void answer(uint64_t request, int error, const void *body, size_t bytes) {
    char message[sizeof(struct fuse_out_header) + 256];
    struct fuse_out_header head = {sizeof head + bytes, error, request};
    memcpy(message, &head, sizeof head);
    if (bytes) memcpy(message + sizeof head, body, bytes);
    MUST(write(fuse, message, head.len) == (ssize_t)head.len);
}

/* Serves a directory with one file, whose content never comes. Writes to `asked` once a reader waits. */
static __attribute__((noreturn)) void serve(int asked) {
    static char request[1 << 20];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        ssize_t got = read(fuse, request, sizeof request);
        if (got < 0 && (errno == EINTR || errno == ENOENT)) continue;
        MUST(got > 0);
        const struct fuse_in_header *head = (void *)request;
        struct fuse_attr attr = {.ino = head->nodeid, .mode = S_IFDIR | 0755, .nlink = 1, .blksize = PAGE};
        if (head->nodeid != FUSE_ROOT_ID || head->opcode == FUSE_LOOKUP)
            attr.ino = 2, attr.mode = S_IFREG | 0444, attr.size = PAGE;
        struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = PAGE};
        struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 3600, .attr_valid = 3600, .attr = attr};
        struct fuse_attr_out attributes = {.attr_valid = 3600, .attr = attr};
        struct fuse_open_out opened = {0};
        switch (head->opcode) {
        case FUSE_INIT: answer(head->unique, 0, &init, sizeof init); break;
        case FUSE_LOOKUP: answer(head->unique, 0, &entry, sizeof entry); break;
        case FUSE_GETATTR: answer(head->unique, 0, &attributes, sizeof attributes); break;
        case FUSE_OPEN: answer(head->unique, 0, &opened, sizeof opened); break;
        case FUSE_READ: MUST(write(asked, "r", 1) == 1); break;
        case FUSE_FORGET:
        case FUSE_INTERRUPT: break;
        default: answer(head->unique, -ENOSYS, NULL, 0);
        }
    }
}

static char *silent;

static void *read_own_memory(void *unused) {
    int memory = open("/proc/self/mem", O_RDONLY);
    char byte;
    MUST(memory >= 0);
    MUST(pread(memory, &byte, 1, (off_t)(uintptr_t)silent) == 1);
    return unused;
}

/* Ends only by a signal. */
static __attribute__((noreturn)) void get_stuck(const char *path, int asked) {
    /* The server alone has the connection, so its end answers the reader. */
    close(fuse);
    struct ballast own = ballast_new(4, 2);
    int file = open(path, O_RDONLY);
    char byte;
    pthread_t reader;
    MUST(file >= 0);
    MUST((silent = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0)) != MAP_FAILED);
    MUST(pthread_create(&reader, NULL, read_own_memory, NULL) == 0);
    MUST(read(asked, &byte, 1) == 1);
    map(PAGE);
    ballast_check(&own, "of a process that is free again");
    _exit(WRONG);
}

/* Waits until the first thread of the process sleeps without an end. */
static void await_stuck(pid_t pid) {
    char path[64], text[512], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    while (state != 'D') {
        int stat = open(path, O_RDONLY);
        ssize_t got = read(stat, text, sizeof text - 1);
        MUST(stat >= 0 && got > 0 && close(stat) == 0);
        text[got] = 0;
        state = strrchr(text, ')')[2];
        usleep(2000);
    }
}

int main(int argc, char **argv) {
    char options[64], path[512];
    int asked[2];
    MUST(argc == 2);
    MUST(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    MUST((fuse = open("/dev/fuse", O_RDWR)) >= 0 && pipe(asked) == 0);
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse);
    MUST(mount("silent", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) == 0);
    snprintf(path, sizeof path, "%s/file", argv[1]);
    pid_t server = fork();
    if (server == 0) serve(asked[1]);
    pid_t stuck = fork();
    if (stuck == 0) get_stuck(path, asked[0]);
    close(fuse);
    await_stuck(stuck);
    struct ballast work = ballast_new(24, 1);
    for (int round = 0; round < 3; round++) {
        ballast_check(&work, "of the other process");
        ballast_change(&work);
    }
    kill(stuck, SIGKILL);
    kill(server, SIGKILL);
    wait_status(server);
    wait_status(stuck);
    say("stuck: ok\n");
    return 0;
}
