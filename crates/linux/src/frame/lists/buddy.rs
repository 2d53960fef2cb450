//! The buddy core: lists, merging, splitting. It has no locks and no policy.

use std::ops::Range;

use crate::frame::contradiction::Contradiction;
use crate::frame::kinds::{
    MAX_ORDER, Migratetype, ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES,
};
use crate::frame::state::{Totals, ZoneState};

const NIL: u32 = u32::MAX;
const NOT_HEAD: u8 = u8::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    next: u32,
    prev: u32,
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
}

/// The free lists of one zone. Frame numbers inside count from the zone's start.
#[derive(Debug)]
pub(super) struct Buddy {
    start: u32,
    links: Vec<Link>,
    head_order: Vec<u8>,
    lists: [[List; 6]; ORDERS],
    pub(super) nonempty: [u16; 6],
    pub(super) totals: Totals,
}

impl Buddy {
    pub(super) const BYTES_PER_FRAME: usize = size_of::<Link>() + 1;

    pub(super) fn new(span: Range<u32>) -> Self {
        let len = span.len();
        Self {
            start: span.start,
            // Zeroed memory comes untouched from the system. Links are written before they are
            // read.
            links: vec![Link { next: 0, prev: 0 }; len],
            head_order: vec![NOT_HEAD; len],
            lists: [[List { head: NIL, tail: NIL, len: 0 }; 6]; ORDERS],
            nonempty: [0; 6],
            totals: Totals::default(),
        }
    }

    /// Frees `range` in the largest aligned blocks; lower blocks come first on the lists.
    pub(super) fn add_memory(&mut self, zone: &ZoneState, range: Range<u32>) {
        let mut at = range.start;
        while at < range.end {
            let aligned = at.trailing_zeros().min(u32::from(MAX_ORDER));
            let order = aligned.min((range.end - at).ilog2()) as u8;
            let order = Order::new(order).unwrap_or(Order::ZERO);
            let done = self.free(zone, at, order, true);
            debug_assert!(done, "memory is added once");
            at += order.pages();
        }
    }

    fn index(&self, pfn: u32) -> usize {
        (pfn - self.start) as usize
    }

    fn type_of(zone: &ZoneState, pfn: u32) -> Migratetype {
        zone.blocks.migratetype(pfn)
    }

    pub(super) fn insert(&mut self, pfn: u32, order: u8, t: Migratetype, to_tail: bool) {
        let i = self.index(pfn);
        let list = &mut self.lists[order as usize][t.index()];
        let at = (pfn - self.start, list.head, list.tail);
        if list.len == 0 {
            (list.head, list.tail) = (at.0, at.0);
            self.links[i] = Link { next: NIL, prev: NIL };
            self.nonempty[t.index()] |= 1 << order;
        } else if to_tail {
            list.tail = at.0;
            self.links[i] = Link { next: NIL, prev: at.2 };
            self.links[at.2 as usize].next = at.0;
        } else {
            list.head = at.0;
            self.links[i] = Link { next: at.1, prev: NIL };
            self.links[at.1 as usize].prev = at.0;
        }
        list.len += 1;
        self.head_order[i] = order;
        self.count(order, t, 1);
    }

    pub(super) fn remove(&mut self, pfn: u32, order: u8, t: Migratetype) {
        let i = self.index(pfn);
        debug_assert_eq!(self.head_order[i], order);
        let Link { next, prev } = self.links[i];
        let list = &mut self.lists[order as usize][t.index()];
        if prev == NIL {
            list.head = next;
        } else {
            self.links[prev as usize].next = next;
        }
        if next == NIL {
            list.tail = prev;
        } else {
            self.links[next as usize].prev = prev;
        }
        list.len -= 1;
        if list.len == 0 {
            self.nonempty[t.index()] &= !(1 << order);
        }
        self.head_order[i] = NOT_HEAD;
        self.count(order, t, -1);
    }

    #[inline]
    fn count(&mut self, order: u8, t: Migratetype, sign: i64) {
        let pages = sign << order;
        self.totals.add(t, pages, if order >= PAGEBLOCK_ORDER { pages } else { 0 });
    }

    /// Returns the first block on a list.
    pub(super) fn head(&self, order: u8, t: Migratetype) -> Option<u32> {
        let list = &self.lists[order as usize][t.index()];
        (list.len > 0).then(|| self.start + list.head)
    }

    /// Returns the order of the free block that starts at `pfn`, if one does. `pfn` may be any
    /// frame number.
    fn free_order(&self, pfn: u32) -> Option<u8> {
        let i = pfn.checked_sub(self.start)?;
        self.head_order.get(i as usize).copied().filter(|&order| order != NOT_HEAD)
    }

    /// Returns the free block that contains `pfn`.
    pub(super) fn block_of(&self, pfn: u32) -> Option<(u32, u8)> {
        (0..=MAX_ORDER).find_map(|order| {
            let head = pfn & !((1 << order) - 1);
            (self.free_order(head)? >= order).then(|| (head, self.free_order(head).unwrap_or(0)))
        })
    }

    /// Frees a block: merges it with its buddies and puts it on a list. Returns false, with nothing
    /// changed, if part of the block is free already or outside this zone.
    pub(super) fn free(&mut self, zone: &ZoneState, pfn: u32, order: Order, to_tail: bool) -> bool {
        let end = self.start as usize + self.head_order.len();
        let aligned = pfn & (order.pages() - 1) == 0;
        let inside = pfn >= self.start && (pfn + order.pages()) as usize <= end;
        if !aligned || !inside || self.free_order(pfn).is_some() {
            return false;
        }
        let t = Self::type_of(zone, pfn);
        let (mut pfn, mut order) = (pfn, order.get());
        while order < MAX_ORDER {
            let buddy = pfn ^ (1 << order);
            if self.free_order(buddy) != Some(order) {
                break;
            }
            let buddy_type = Self::type_of(zone, buddy);
            if order >= PAGEBLOCK_ORDER && buddy_type != t {
                if !(buddy_type.mergeable() && t.mergeable()) {
                    break;
                }
                self.remove(buddy, order, buddy_type);
                zone.blocks.set_type(buddy, t);
            } else {
                self.remove(buddy, order, buddy_type);
            }
            pfn &= buddy;
            order += 1;
        }
        let to_tail = to_tail || self.merge_likely(pfn, order);
        self.insert(pfn, order, t, to_tail);
        true
    }

    /// Whether the block could merge further once its buddy is free. Such a block goes to the tail
    /// of its list, to be taken late.
    fn merge_likely(&self, pfn: u32, order: u8) -> bool {
        if order >= MAX_ORDER - 1 {
            return false;
        }
        let parent = pfn & !(1 << order);
        self.free_order(parent ^ (1 << (order + 1))) == Some(order + 1)
    }

    /// Splits a listed block of order `from` until its lowest part has `order`. The upper halves go
    /// to the head of the lists of `t`.
    pub(super) fn split(&mut self, pfn: u32, from: u8, order: u8, t: Migratetype) {
        for half in (order..from).rev() {
            self.insert(pfn + (1 << half), half, t, false);
        }
    }

    /// Takes the smallest block of `t` that fits, and splits it to `order`.
    pub(super) fn smallest(&mut self, order: u8, t: Migratetype) -> Option<u32> {
        let fit = u32::from(self.nonempty[t.index()]) >> order << order;
        if fit == 0 {
            return None;
        }
        let from = fit.trailing_zeros() as u8;
        let pfn = self.head(from, t)?;
        self.remove(pfn, from, t);
        self.split(pfn, from, order, t);
        Some(pfn)
    }

    /// Returns the first frame of some free block of `t`, smallest order first.
    pub(super) fn first_of(&self, t: Migratetype) -> Option<u32> {
        (0..=MAX_ORDER).find_map(|order| self.head(order, t))
    }

    /// Returns the free blocks that start in the pageblock of `pfn`.
    fn blocks_in(&self, block: u32) -> Vec<(u32, u8)> {
        let mut found = Vec::new();
        let mut at = block;
        while at < block + PAGEBLOCK_PAGES {
            match self.free_order(at) {
                Some(order) => {
                    found.push((at, order));
                    at += 1 << order;
                }
                None => at += 1,
            }
        }
        found
    }

    /// Counts the free frames in a pageblock, and the movable ones of the others.
    pub(super) fn census(&self, zone: &ZoneState, block: u32) -> (u32, u32) {
        let (mut free, mut movable) = (0, 0);
        let end = (block + PAGEBLOCK_PAGES).min(zone.span.end);
        let mut at = block.max(zone.span.start);
        while at < end {
            if let Some(order) = self.free_order(at) {
                free += 1 << order;
                at += 1 << order;
            } else {
                movable += u32::from(zone.census.is_movable(at));
                at += 1;
            }
        }
        (free, movable)
    }

    /// Retypes the pageblock of `pfn` and moves its free blocks. Splits a free block of the largest
    /// order that spans it first. Returns the number of frames moved.
    pub(super) fn set_migratetype(&mut self, zone: &ZoneState, pfn: u32, to: Migratetype) -> u32 {
        let block = pfn & !(PAGEBLOCK_PAGES - 1);
        let pair = block & !((1 << MAX_ORDER) - 1);
        if self.free_order(pair) == Some(MAX_ORDER) {
            let t = Self::type_of(zone, pair);
            self.remove(pair, MAX_ORDER, t);
            let upper = pair + PAGEBLOCK_PAGES;
            self.insert(pair, PAGEBLOCK_ORDER, t, false);
            self.insert(upper, PAGEBLOCK_ORDER, Self::type_of(zone, upper), false);
        }
        let from = Self::type_of(zone, block);
        let blocks = self.blocks_in(block);
        for &(at, order) in &blocks {
            self.remove(at, order, from);
        }
        zone.blocks.set_type(block, to);
        let mut moved = 0;
        for &(at, order) in &blocks {
            // Only a whole pageblock can merge further, with its neighbour.
            if order == PAGEBLOCK_ORDER {
                let freed = self.free(zone, at, Order::HUGE, true);
                debug_assert!(freed);
            } else {
                self.insert(at, order, to, true);
            }
            moved += 1 << order;
        }
        moved
    }

    /// Takes exactly `range` if all of it is free. Parts of its blocks outside the range stay free.
    pub(super) fn take_range(&mut self, zone: &ZoneState, range: Range<u32>) -> bool {
        let mut blocks = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Some((head, order)) = self.block_of(at) else { return false };
            blocks.push((head, order));
            at = head + (1 << order);
        }
        for (head, order) in blocks {
            self.remove(head, order, Self::type_of(zone, head));
            let end = head + (1 << order);
            if head < range.start {
                self.add_memory(zone, head..range.start);
            }
            if end > range.end {
                self.add_memory(zone, range.end..end);
            }
        }
        true
    }

    pub(super) fn counts(&self) -> [[u64; 6]; ORDERS] {
        std::array::from_fn(|order| std::array::from_fn(|t| self.lists[order][t].len))
    }

    /// Checks LISTS-1 to LISTS-4.
    pub(super) fn check(&self, zone: &ZoneState) -> Result<(), Contradiction> {
        let mut totals = Totals::default();
        let mut listed = 0u64;
        for (order, lists) in self.lists.iter().enumerate() {
            for (t, list) in Migratetype::ALL.iter().zip(lists) {
                let n = self.check_list(zone, order as u8, *t, list)?;
                let pages = (n << order) as i64;
                totals.add(*t, pages, if order >= PAGEBLOCK_ORDER as usize { pages } else { 0 });
                listed += n;
            }
        }
        if totals != self.totals {
            return Err(Contradiction::ListTotals(totals, self.totals));
        }
        let heads = self.head_order.iter().filter(|&&o| o != NOT_HEAD).count() as u64;
        if heads != listed {
            return Err(Contradiction::Heads(heads, listed));
        }
        Ok(())
    }

    fn check_list(
        &self,
        zone: &ZoneState,
        order: u8,
        t: Migratetype,
        list: &List,
    ) -> Result<u64, Contradiction> {
        let (mut at, mut n) = (list.head, 0);
        while at != NIL && n < list.len {
            let pfn = self.start + at;
            if self.free_order(pfn) != Some(order) || pfn & ((1 << order) - 1) != 0 {
                return Err(Contradiction::NoHead(pfn, order));
            }
            if Self::type_of(zone, pfn) != t {
                return Err(Contradiction::OtherType(pfn, t));
            }
            if order < MAX_ORDER && self.unmerged(zone, pfn, order) {
                return Err(Contradiction::FreeBuddy(pfn, order));
            }
            n += 1;
            at = self.links[at as usize].next;
        }
        if at != NIL || n != list.len {
            return Err(Contradiction::Length(order, t, list.len));
        }
        Ok(n)
    }

    fn unmerged(&self, zone: &ZoneState, pfn: u32, order: u8) -> bool {
        let buddy = pfn ^ (1 << order);
        if self.free_order(buddy) != Some(order) {
            return false;
        }
        let (a, b) = (Self::type_of(zone, pfn), Self::type_of(zone, buddy));
        order < PAGEBLOCK_ORDER || a == b || (a.mergeable() && b.mergeable())
    }
}
