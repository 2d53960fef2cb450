/*
 * harass CASE: a process of the tree that wants the thread of the pager that lets processes join to wait for ever.
 * After that it forks, and the child, which needs that thread, maps and checks memory.
 *
 *   full     a connection that takes no answer
 *   drained  connections whose message is taken back before it is received
 *   others   descriptors that are no connections, and a greeting with one that is no userfaultfd
 *   forged   a connection that is a descriptor of another process
 *   asks     a connection that it was fetched by, over which it asks for figures and for another limit
 */
#include "ours.h"

#include <sys/socket.h>
#include <sys/un.h>

/* Requests to the pager, and its refusal (control/src/message.rs). */
#define METRICS "EBBC\1\0\0\0\"Metrics\""
#define LIMITS "EBBC\1\0\0\0{\"Limits\":{\"max\":1073741824,\"keep\":false}}"
#define REFUSED "EBBC\1\0\0\0{\"Err\":\"Refused\"}"

struct greeting {
    uint32_t magic, version, kind, bare;
    uint64_t pool_start, pool_len;
};

static uintptr_t bells;
static struct call *places;

static long raw(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

/* Says that `thread` of this process has `descriptor`, one end of a connection. The answer, or -1. */
static int ask_to_join(uint32_t thread, uint32_t descriptor) {
    int bell = BELLS - 1;
    struct call *place = &places[bell];
    place->what = ASK_JOIN, place->a = thread, place->b = descriptor;
    place->state = CALL_MADE;
    raw(SYS_madvise, bells + bell * PAGE, PAGE, MADV_DONTNEED);
    for (int tries = 0; tries < 60000 && place->state == CALL_MADE; tries++) usleep(10 * 1000);
    int answer = (place->state & 3) == CALL_ANSWERED ? (int)(place->state >> 2 & 0xfff) : -1;
    place->state = 0;
    return answer;
}

static void pair(int ends[2]) { MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0); }

static void full(void) {
    int ends[2];
    pair(ends);
    while (send(ends[1], "x", 1, MSG_DONTWAIT) == 1);
    MUST(send(ends[0], METRICS, sizeof METRICS - 1, 0) == sizeof METRICS - 1);
    MUST(ask_to_join(gettid(), ends[1]) == 0);
}

static int drain;

static void *take_back(void *argument) {
    char word;
    for (;;) {
        int fd = __atomic_load_n(&drain, __ATOMIC_RELAXED);
        if (fd < 0) return argument;
        recv(fd, &word, 1, MSG_DONTWAIT);
    }
}

static void drained(void) {
    pthread_t thread;
    int ends[2];
    pair(ends);
    drain = ends[1];
    MUST(pthread_create(&thread, NULL, take_back, NULL) == 0);
    MUST(ask_to_join(gettid(), ends[1]) == 0);
    /* The pager closes the connection at the first message that it hears, which is none. */
    for (int i = 0; i < 5000; i++) {
        if (send(ends[0], "x", 1, MSG_DONTWAIT) == 1 && i % 100 == 99) {
            usleep(1000);
            MUST(ask_to_join(gettid(), ends[1]) == 0);
        }
    }
    __atomic_store_n(&drain, -1, __ATOMIC_RELAXED);
    MUST(pthread_join(thread, NULL) == 0);
}

static void greet_with(int descriptor) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, getenv("EBB_SOCKET"), sizeof address.sun_path - 1);
    int line = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    MUST(connect(line, (struct sockaddr *)&address, sizeof address) == 0);
    struct greeting start = {MAGIC, VERSION, 0, 0, 1 << 30, 1 << 20};
    struct iovec data = {&start, sizeof start};
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.head), &descriptor, sizeof descriptor);
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    MUST(sendmsg(line, &message, 0) == sizeof start);
    uint32_t answer[2];
    MUST(recv(line, answer, sizeof answer, 0) == sizeof answer && answer[1] == 1);
    close(line);
}

static void others(void) {
    int ends[2], nothing = open("/dev/null", O_RDWR);
    MUST(nothing >= 0 && pipe(ends) == 0);
    MUST(ask_to_join(gettid(), nothing) > 0 && ask_to_join(gettid(), ends[0]) > 0);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && ask_to_join(gettid(), ends[0]) > 0);
    MUST(ask_to_join(gettid(), 12345) > 0);
    greet_with(nothing);
    greet_with(ends[0]);
}

/* A child without an agent of its own has a connection, and this process says that it is its own. */
static void forged(void) {
    int ends[2], ready[2];
    MUST(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        pair(ends);
        dup2(ends[0], 99);
        MUST(write(ready[1], "x", 1) == 1);
        pause();
    }
    char word;
    MUST(child > 0 && read(ready[0], &word, 1) == 1);
    MUST(ask_to_join(child, 99) > 0 && ask_to_join(1, 99) > 0 && ask_to_join(getppid(), 1) > 0);
    MUST(kill(child, SIGKILL) == 0);
    wait_status(child);
}

/* Who is fetched may be another user's. */
static void asks(void) {
    for (int change = 0; change < 2; change++) {
        int ends[2];
        pair(ends);
        MUST(ask_to_join(gettid(), ends[1]) == 0);
        const char *request = change ? LIMITS : METRICS;
        size_t length = change ? sizeof LIMITS - 1 : sizeof METRICS - 1;
        MUST(send(ends[0], request, length, 0) == (ssize_t)length);
        char answer[256];
        MUST(recv(ends[0], answer, sizeof answer, 0) == sizeof REFUSED - 1);
        MUST(memcmp(answer, REFUSED, sizeof REFUSED - 1) == 0);
    }
}

int main(int count, char **words) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"full", full}, {"drained", drained}, {"others", others}, {"forged", forged},
                 {"asks", asks}};
    const char *name = count > 1 ? words[1] : "";
    struct ballast b = ballast_new(32, 3);
    bells = pool_start() + strtoul(getenv("EBB_POOL_BYTES"), NULL, 10) - BELLS * PAGE;
    places = calls();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, name)) continue;
        cases[i].run();
        pid_t child = fork();
        if (child == 0) {
            struct ballast own = ballast_new(16, 4);
            ballast_check(&own, "mapped by a child");
            ballast_check(&b, "inherited");
            _exit(0);
        }
        wait_ok(child, "child");
        ballast_check(&b, "ballast");
        printf("%s: ok\n", name);
        return 0;
    }
    die("see the head of harass.c");
}
