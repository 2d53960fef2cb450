//! One shard: the pageblocks of an aligned stretch of a zone, under one lock.
//!
//! Invariants:
//! * SHARD-1: a block's `class` is the order of its largest free run. `PAIRED` marks the upper half
//!   of a free block of the largest order; its lower half then has class 10.
//! * SHARD-2: a block is on exactly the list of its type and class; `EMPTY` and `PAIRED` blocks are
//!   on none.
//! * SHARD-3: two whole neighbours whose types may merge are a pair.
//! * SHARD-4: `free` is the number of set bits; `totals` is their sum by type.
//! * SHARD-5: `kind` is the type in the zone's pageblock map.

use crate::frame::blocks::BlockMap;
use crate::frame::contradiction::Contradiction;
use crate::frame::kinds::{MAX_ORDER, Migratetype, ORDERS, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use crate::frame::state::Totals;

use super::bits::{Bits, EMPTY};

const NIL: u32 = u32::MAX;
const PAIRED: u8 = u8::MAX - 1;
const WHOLE: u8 = PAGEBLOCK_ORDER;

/// One pageblock of a shard: its neighbours on its list, and what is free in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Meta {
    next: u32,
    prev: u32,
    free: u16,
    class: u8,
    kind: Migratetype,
}

/// The pageblocks of one shard, with their lists by type and class.
#[derive(Debug)]
pub(super) struct Shard {
    start: u32,
    bits: Box<[Bits]>,
    meta: Box<[Meta]>,
    heads: [[u32; ORDERS]; 6],
    /// By type: a bit for each class that has a block.
    pub(super) nonempty: [u16; 6],
    pub(super) totals: Totals,
}

impl Shard {
    /// Creates an empty shard of `blocks` pageblocks from frame `start`.
    pub(super) fn new(start: u32, blocks: usize, map: &BlockMap) -> Self {
        let meta = |i: usize| Meta {
            next: NIL,
            prev: NIL,
            free: 0,
            class: EMPTY,
            kind: map.migratetype(start + i as u32 * PAGEBLOCK_PAGES),
        };
        Self {
            start,
            bits: vec![Bits::NONE; blocks].into_boxed_slice(),
            meta: (0..blocks).map(meta).collect(),
            heads: [[NIL; ORDERS]; 6],
            nonempty: [0; 6],
            totals: Totals::default(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.bits) + size_of_val(&*self.meta) + size_of::<Self>()
    }

    #[inline(always)]
    fn block_of(&self, pfn: u32) -> usize {
        ((pfn - self.start) >> PAGEBLOCK_ORDER) as usize
    }

    #[inline(always)]
    fn first(&self, block: usize) -> u32 {
        self.start + ((block as u32) << PAGEBLOCK_ORDER)
    }

    fn whole_pages(class: u8) -> i64 {
        match class {
            WHOLE => i64::from(PAGEBLOCK_PAGES),
            MAX_ORDER => 2 * i64::from(PAGEBLOCK_PAGES),
            _ => 0,
        }
    }

    #[inline]
    fn link(&mut self, block: usize, class: u8) {
        let kind = self.meta[block].kind;
        self.meta[block].class = class;
        if class > MAX_ORDER {
            return;
        }
        let head = std::mem::replace(&mut self.heads[kind.index()][class as usize], block as u32);
        self.meta[block].next = head;
        self.meta[block].prev = NIL;
        if head == NIL {
            self.nonempty[kind.index()] |= 1 << class;
        } else {
            self.meta[head as usize].prev = block as u32;
        }
        if class >= WHOLE {
            self.totals.add(kind, 0, Self::whole_pages(class));
        }
    }

    #[inline]
    fn unlink(&mut self, block: usize) {
        let Meta { next, prev, class, kind, .. } = self.meta[block];
        if class > MAX_ORDER {
            return;
        }
        if next != NIL {
            self.meta[next as usize].prev = prev;
        }
        if prev != NIL {
            self.meta[prev as usize].next = next;
        } else {
            self.heads[kind.index()][class as usize] = next;
            if next == NIL {
                self.nonempty[kind.index()] &= !(1 << class);
            }
        }
        if class >= WHOLE {
            self.totals.add(kind, 0, -Self::whole_pages(class));
        }
    }

    /// Puts a block that is on no list on the list of `class`. Makes a pair if the block has become
    /// whole and its neighbour is whole.
    fn relink(&mut self, map: &BlockMap, block: usize, class: u8) {
        if class == WHOLE {
            let other = block ^ 1;
            let kind = self.meta[block].kind;
            if let Some(m) = self.meta.get(other)
                && m.class == WHOLE
                && (m.kind == kind || (m.kind.mergeable() && kind.mergeable()))
            {
                self.unlink(other);
                if self.meta[other].kind != kind {
                    self.meta[other].kind = kind;
                    map.set_type(self.first(other), kind);
                }
                self.meta[block | 1].class = PAIRED;
                self.link(block & !1, MAX_ORDER);
                return;
            }
        }
        self.link(block, class);
    }

    /// Dissolves the pair that `block` belongs to, if there is one.
    #[inline]
    fn unpair(&mut self, block: usize) {
        if !matches!(self.meta[block].class, MAX_ORDER | PAIRED) {
            return;
        }
        self.unlink(block & !1);
        self.link(block | 1, WHOLE);
        self.link(block & !1, WHOLE);
    }

    /// Updates counts and lists after `pages` bits of `block` were cleared.
    #[inline]
    fn shrunk(&mut self, block: usize, pages: u32) {
        let class = self.bits[block].max_order();
        let meta = &mut self.meta[block];
        meta.free -= pages as u16;
        let (kind, old) = (meta.kind, meta.class);
        self.totals.add(kind, -i64::from(pages), 0);
        if class != old {
            self.unlink(block);
            self.link(block, class);
        }
    }

    /// Takes up to `out.len()` blocks of `order` from one pageblock of `kind`. Chooses the
    /// pageblock whose largest run is the smallest that fits. Returns how many blocks it took.
    #[inline]
    pub(super) fn smallest(&mut self, order: u8, kind: Migratetype, out: &mut [u32]) -> usize {
        let fit = u32::from(self.nonempty[kind.index()]) >> order << order;
        if fit == 0 || out.is_empty() {
            return 0;
        }
        let class = fit.trailing_zeros() as u8;
        let block = self.heads[kind.index()][class as usize] as usize;
        if order >= WHOLE {
            return self.take_whole(block, class, order, out);
        }
        self.unpair(block);
        let base = self.first(block);
        let n = if order == 0 {
            self.bits[block].drain(base, out)
        } else {
            let mut n = 0;
            while n < out.len()
                && let Some(at) = self.bits[block].find(order)
            {
                self.bits[block].put(at, order, false);
                out[n] = base + at;
                n += 1;
            }
            n
        };
        self.shrunk(block, (n as u32) << order);
        n
    }

    fn take_whole(&mut self, block: usize, class: u8, order: u8, out: &mut [u32]) -> usize {
        out[0] = self.first(block);
        if class == WHOLE {
            self.unlink(block);
            self.clear_whole(block);
            return 1;
        }
        self.unlink(block);
        if order == MAX_ORDER || out.len() > 1 {
            self.clear_whole(block);
            self.clear_whole(block | 1);
            if order == MAX_ORDER {
                return 1;
            }
            out[1] = out[0] + PAGEBLOCK_PAGES;
            return 2;
        }
        self.link(block | 1, WHOLE);
        self.clear_whole(block);
        1
    }

    /// Frees whole pageblocks. Returns how many were refused. Two neighbours that make a pair and
    /// come together are linked once.
    pub(super) fn put_wholes(&mut self, map: &BlockMap, frames: &[u32]) -> u32 {
        let mut refused = 0;
        let mut i = 0;
        while i < frames.len() {
            let block = self.block_of(frames[i]);
            let kind = self.meta[block].kind;
            let empty = |m: &Meta| (m.free, m.class) == (0, EMPTY) && m.kind == kind;
            let with_next = frames.get(i + 1) == Some(&(frames[i] ^ PAGEBLOCK_PAGES))
                && self.meta.get(block ^ 1).is_some_and(empty)
                && empty(&self.meta[block]);
            if !with_next {
                refused += u32::from(!self.put(map, frames[i], WHOLE));
                i += 1;
                continue;
            }
            for half in [block, block ^ 1] {
                self.bits[half] = Bits::ALL;
                self.meta[half].free = PAGEBLOCK_PAGES as u16;
            }
            self.totals.add(kind, 2 * i64::from(PAGEBLOCK_PAGES), 0);
            self.meta[block | 1].class = PAIRED;
            self.link(block & !1, MAX_ORDER);
            i += 2;
        }
        refused
    }

    #[inline]
    fn clear_whole(&mut self, block: usize) {
        self.bits[block] = Bits::NONE;
        self.meta[block].class = EMPTY;
        self.meta[block].free = 0;
        self.totals.add(self.meta[block].kind, -i64::from(PAGEBLOCK_PAGES), 0);
    }

    /// Frees single frames. Returns how many were refused because they are free already.
    #[inline]
    pub(super) fn put_singles(&mut self, map: &BlockMap, frames: &[u32]) -> u32 {
        let mut refused = 0;
        let mut i = 0;
        while i < frames.len() {
            let block = self.block_of(frames[i]);
            let first = i;
            let bits = &mut self.bits[block];
            let mut taken = 0u32;
            // Neighbours come together, so gather the bits of each word before writing it.
            while i < frames.len() && (frames[i] - self.start) >> PAGEBLOCK_ORDER == block as u32 {
                let line = frames[i] / 64;
                let mut mask = 0u64;
                while i < frames.len() && frames[i] / 64 == line {
                    mask |= 1 << (frames[i] % 64);
                    i += 1;
                }
                let word = &mut bits.0[(line % 8) as usize];
                taken += (mask & !*word).count_ones();
                *word |= mask;
            }
            refused += (i - first) as u32 - taken;
            let at = frames[first] % PAGEBLOCK_PAGES;
            let old = self.meta[block].class;
            let class = match (i - first, old) {
                (1, EMPTY) => 0,
                (1, class) if class >= WHOLE => class,
                (1, class) => self.risen(block, at, class),
                _ if old >= WHOLE && old != EMPTY => old,
                _ => self.bits[block].max_order(),
            };
            self.grown(map, block, taken, class);
        }
        refused
    }

    /// Returns the class after bit `at` was set. Only the run around the bit can have grown, and by
    /// one order at most, because its other half was free before.
    #[inline]
    fn risen(&self, block: usize, at: u32, class: u8) -> u8 {
        let start = at & !((2 << class) - 1);
        if self.bits[block].all_set(start, class + 1) { class + 1 } else { class }
    }

    #[inline]
    fn grown(&mut self, map: &BlockMap, block: usize, pages: u32, class: u8) {
        let meta = &mut self.meta[block];
        meta.free += pages as u16;
        let (kind, old) = (meta.kind, meta.class);
        self.totals.add(kind, i64::from(pages), 0);
        if class != old {
            self.unlink(block);
            self.relink(map, block, class);
        }
    }

    /// Frees one block of `order`. Returns false, with nothing changed, if part of it is free
    /// already.
    #[inline]
    pub(super) fn put(&mut self, map: &BlockMap, pfn: u32, order: u8) -> bool {
        if order == MAX_ORDER {
            let both = [pfn, pfn + PAGEBLOCK_PAGES];
            let clear = both.iter().all(|&p| self.meta[self.block_of(p)].free == 0);
            return clear && both.iter().all(|&p| self.put(map, p, WHOLE));
        }
        let block = self.block_of(pfn);
        let at = pfn % PAGEBLOCK_PAGES;
        if order == WHOLE {
            if self.meta[block].free != 0 {
                return false;
            }
            self.bits[block] = Bits::ALL;
            self.grown(map, block, PAGEBLOCK_PAGES, WHOLE);
            return true;
        }
        if self.bits[block].any_set(at, order) {
            return false;
        }
        self.bits[block].put(at, order, true);
        let class = self.bits[block].max_order();
        self.grown(map, block, 1 << order, class);
        true
    }

    /// Returns a block of `kind` whose class is exactly `class`.
    pub(super) fn of_class(&self, class: u8, kind: Migratetype) -> Option<u32> {
        let block = self.heads[kind.index()][class as usize];
        (block != NIL).then(|| self.first(block as usize))
    }

    /// Returns some block of `kind` with free frames, smallest class first.
    pub(super) fn any_of(&self, kind: Migratetype) -> Option<u32> {
        (0..=MAX_ORDER).find_map(|class| self.of_class(class, kind))
    }

    /// Counts the free frames in the pageblock of `pfn`, and the movable ones of the others.
    pub(super) fn census(&self, pfn: u32, is_movable: impl Fn(u32) -> bool) -> (u32, u32) {
        let block = self.block_of(pfn);
        let first = self.first(block);
        let used = |&at: &u32| !self.bits[block].all_set(at, 0);
        let movable = (0..PAGEBLOCK_PAGES).filter(used).filter(|&at| is_movable(first + at));
        (u32::from(self.meta[block].free), movable.count() as u32)
    }

    /// Retypes the pageblock of `pfn`. Returns its free frames.
    pub(super) fn set_migratetype(&mut self, map: &BlockMap, pfn: u32, to: Migratetype) -> u32 {
        let block = self.block_of(pfn);
        self.unpair(block);
        let Meta { free, class, kind, .. } = self.meta[block];
        self.unlink(block);
        self.totals.add(kind, -i64::from(free), 0);
        self.meta[block].kind = to;
        map.set_type(self.first(block), to);
        self.totals.add(to, i64::from(free), 0);
        self.meta[block].class = EMPTY;
        self.relink(map, block, class);
        u32::from(free)
    }

    pub(super) fn is_free(&self, pfn: u32) -> bool {
        self.bits[self.block_of(pfn)].all_set(pfn % PAGEBLOCK_PAGES, 0)
    }

    /// Takes single frames known to be free out of one pageblock.
    pub(super) fn take_exact(&mut self, first: u32, end: u32) {
        let block = self.block_of(first);
        self.unpair(block);
        for pfn in first..end {
            self.bits[block].put(pfn % PAGEBLOCK_PAGES, 0, false);
        }
        self.shrunk(block, end - first);
    }

    /// Adds this shard's free blocks by order and type.
    pub(super) fn add_counts(&self, counts: &mut [[u64; 6]; ORDERS]) {
        for (bits, meta) in self.bits.iter().zip(&self.meta) {
            let kind = meta.kind.index();
            match meta.class {
                EMPTY | PAIRED => {}
                MAX_ORDER => counts[MAX_ORDER as usize][kind] += 1,
                _ => bits.for_each(|_, order| counts[order as usize][kind] += 1),
            }
        }
    }

    /// Checks SHARD-1 to SHARD-5.
    pub(super) fn check(&self, map: &BlockMap) -> Result<(), Contradiction> {
        let mut totals = Totals::default();
        for (block, meta) in self.meta.iter().enumerate() {
            let fail = |rule| Err(Contradiction::Pageblock(rule, self.first(block), *meta));
            let max = self.bits[block].max_order();
            let paired = matches!(meta.class, MAX_ORDER | PAIRED);
            if max != if paired { WHOLE } else { meta.class } {
                return fail("SHARD-1");
            }
            if self.bits[block].count() != u32::from(meta.free) {
                return fail("SHARD-4");
            }
            if meta.kind != map.migratetype(self.first(block)) {
                return fail("SHARD-5");
            }
            if meta.class == WHOLE
                && let Some(other) = self.meta.get(block ^ 1)
                && other.class == WHOLE
                && (other.kind == meta.kind || (other.kind.mergeable() && meta.kind.mergeable()))
            {
                return fail("SHARD-3");
            }
            totals.add(meta.kind, i64::from(meta.free), Self::whole_pages(meta.class));
        }
        if totals != self.totals {
            return Err(Contradiction::ShardTotals(totals, self.totals));
        }
        self.check_lists()
    }

    fn check_lists(&self) -> Result<(), Contradiction> {
        let listed = self.meta.iter().filter(|m| m.class <= MAX_ORDER).count();
        let mut found = 0;
        for kind in Migratetype::ALL {
            for class in 0..ORDERS {
                let (mut at, mut prev) = (self.heads[kind.index()][class], NIL);
                if (at == NIL) == (self.nonempty[kind.index()] >> class & 1 == 1) {
                    return Err(Contradiction::ListBit(kind, class));
                }
                while at != NIL && found <= listed {
                    let m = &self.meta[at as usize];
                    if (m.kind, m.class, m.prev) != (kind, class as u8, prev) {
                        return Err(Contradiction::Listed(at, class, kind, *m));
                    }
                    (prev, at, found) = (at, m.next, found + 1);
                }
            }
        }
        if found == listed { Ok(()) } else { Err(Contradiction::ListedCount(found, listed)) }
    }
}
