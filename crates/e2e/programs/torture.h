/*
 * The torture program's memory: regions cut into chunks, and the side table that says what each
 * page must hold.
 *
 * I1. A page's content is a function of (region uid, page, version); word 0 has a version of its
 *     own (`head`) so that single-word writes are seen too. Version 0 means zero.
 * I2. `maybe` = 1: the page was given to MADV_FREE and is either wholly old or wholly zero.
 *     2: it was seen zero since, so it must stay zero until it is written.
 * I3. A chunk's lock covers its pages and their entries in the tables. Reading takes it shared,
 *     everything else exclusive. Moving, resizing or removing a region takes all of its locks.
 * Lock order: regions ascending, chunks ascending. A worker holds one lock at a time.
 */
#ifndef EBB_E2E_TORTURE_H
#define EBB_E2E_TORTURE_H

#include "common.h"

#define WORKERS 8
#define REGIONS 24
#define CHUNKS 8

struct region {
    pthread_rwlock_t locks[CHUNKS];
    char *base; /* NULL while unmapped */
    uint64_t uid;
    size_t pages;
    uint32_t *version, *head;
    uint8_t *maybe;
    uint8_t readonly[CHUNKS];
    int patched; /* a part was unmapped and mapped anew */
    size_t pinned_from[CHUNKS], pinned_pages[CHUNKS]; /* mlocked pages */
};

extern struct region regions[REGIONS];
extern size_t pages_max; /* of one region */
extern volatile int stop;
extern const char *self;

static inline volatile uint64_t *page_words(const struct region *r, size_t page) {
    return (volatile uint64_t *)(r->base + page * PAGE);
}

static inline size_t chunk_pages(void) { return pages_max / CHUNKS; }

/* The part of a chunk that the region has now. */
static inline size_t chunk_end(const struct region *r, size_t chunk) {
    size_t end = (chunk + 1) * chunk_pages();
    return end < r->pages ? end : r->pages;
}

static inline uint64_t want(const struct region *r, size_t page, size_t word) {
    uint32_t version = word == 0 ? r->head[page] : r->version[page];
    return version == 0 ? 0 : word_at(page_key(r->uid, page, version), word);
}

void check_page(struct region *r, size_t page, const char *when);
void write_page(struct region *r, size_t page);
void poke_page(struct region *r, size_t page);
void forget_pages(struct region *r, size_t from, size_t count);
void check_all(const char *when);

/* One random change to the address space; called by one thread. */
void chaos_step(uint64_t *random);
void chaos_end(void);

#endif
