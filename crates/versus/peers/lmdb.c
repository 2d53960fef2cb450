/* Random reads through LMDB, for `versus-pool`.
 *
 *   lmdb PATH load RECORDS          makes the file: RECORDS keys of 8 bytes with values of 120, in order
 *   lmdb PATH run RECORDS THREADS SECONDS    a line each second: which, and how many lookups were done in it
 */
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(call)                                                     \
    do {                                                                \
        int rc_ = (call);                                               \
        if (rc_) {                                                      \
            fprintf(stderr, "lmdb: %s: %s\n", #call, mdb_strerror(rc_)); \
            exit(1);                                                    \
        }                                                               \
    } while (0)

static MDB_env *env;
static MDB_dbi dbi;
static uint64_t records;
static atomic_ulong done;

static void load(void) {
    uint8_t value[120] = {0};
    for (uint64_t n = 0; n < records;) {
        MDB_txn *txn;
        CHECK(mdb_txn_begin(env, NULL, 0, &txn));
        CHECK(mdb_dbi_open(txn, NULL, 0, &dbi));
        for (int i = 0; i < 100000 && n < records; i++, n++) {
            uint64_t key = __builtin_bswap64(n);
            memcpy(value, &key, 8);
            MDB_val k = {8, &key}, v = {sizeof value, value};
            CHECK(mdb_put(txn, dbi, &k, &v, MDB_APPEND));
        }
        CHECK(mdb_txn_commit(txn));
    }
}

static void *lookups(void *seed) {
    uint64_t x = (uint64_t)(uintptr_t)seed * 0x9E3779B97F4A7C15u + 1;
    MDB_txn *txn;
    CHECK(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    for (;;) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        uint64_t key = __builtin_bswap64(x % records);
        MDB_val k = {8, &key}, v;
        CHECK(mdb_get(txn, dbi, &k, &v));
        uint8_t copy[120];
        memcpy(copy, v.mv_data, sizeof copy);
        if (memcmp(copy, &key, 8)) {
            fprintf(stderr, "lmdb: a value is wrong\n");
            exit(1);
        }
        atomic_fetch_add_explicit(&done, 1, memory_order_relaxed);
    }
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    records = strtoull(argv[3], NULL, 10);
    int reads = !strcmp(argv[2], "run");
    CHECK(mdb_env_create(&env));
    CHECK(mdb_env_set_mapsize(env, (size_t)64 << 30));
    /* Without read-ahead: its makers advise that where the data is larger than memory. */
    CHECK(mdb_env_open(env, argv[1], MDB_NOSUBDIR | (reads ? MDB_RDONLY | MDB_NORDAHEAD : MDB_NOSYNC), 0644));
    if (!reads) {
        load();
        CHECK(mdb_env_sync(env, 1));
        return 0;
    }
    MDB_txn *txn;
    CHECK(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    CHECK(mdb_dbi_open(txn, NULL, 0, &dbi));
    CHECK(mdb_txn_commit(txn));
    int fd = open(argv[1], O_RDONLY);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    int threads = atoi(argv[4]), seconds = atoi(argv[5]);
    for (int i = 0; i < threads; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, lookups, (void *)(uintptr_t)(i + 1)));
    }
    for (int second = 0; second < seconds; second++) {
        sleep(1);
        printf("%d,%lu\n", second, atomic_exchange(&done, 0));
        fflush(stdout);
    }
    _exit(0);
}
