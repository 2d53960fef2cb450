//! Intrusive lists over frame numbers.
//!
//! Owns the two links of each folio on a list. The head is the newest folio, the tail the oldest. A
//! list belongs to one lruvec and is accessed under its lru lock only.
//!
//! Invariants
//! * LIST-1: `len` is the number of nodes reachable from `head`.
//! * LIST-2: following `prev` from `tail` visits the same nodes in reverse.

use std::sync::atomic::Ordering::Relaxed;

use crate::folio::{Folios, NO_FRAME};
use crate::types::Pfn;

/// Distance in folios between a list entry and the later folio that its hint names.
pub const AHEAD: usize = 16;

/// A list's ends, length and recent arrivals.
#[derive(Clone, Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
    /// The last folios that were added at the head. Each gets as its hint the folio that is added
    /// [`AHEAD`] folios later.
    recent: [u32; AHEAD],
    turn: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NO_FRAME, tail: NO_FRAME, len: 0, recent: [NO_FRAME; AHEAD], turn: 0 }
    }
}

impl List {
    /// Returns the number of folios on the list.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the oldest folio.
    #[must_use]
    pub fn tail(&self) -> Option<Pfn> {
        (self.tail != NO_FRAME).then_some(Pfn(self.tail))
    }

    /// Returns the folio after `p` towards the head, which is newer.
    #[inline]
    #[must_use]
    pub fn newer(folios: &Folios, p: Pfn) -> Option<Pfn> {
        let n = folios.at(p.0).prev.load(Relaxed);
        (n != NO_FRAME).then_some(Pfn(n))
    }

    /// Adds a folio as the newest.
    #[inline]
    pub fn push_head(&mut self, folios: &Folios, p: Pfn) {
        let f = folios.at(p.0);
        f.prev.store(NO_FRAME, Relaxed);
        f.next.store(self.head, Relaxed);
        match self.head {
            NO_FRAME => self.tail = p.0,
            h => folios.at(h).prev.store(p.0, Relaxed),
        }
        self.head = p.0;
        self.len += 1;
        let earlier = &mut self.recent[self.turn as usize % AHEAD];
        if *earlier != NO_FRAME {
            folios.set_ahead(*earlier, p.0);
        }
        *earlier = p.0;
        self.turn = self.turn.wrapping_add(1);
    }

    /// Reads early the records of the folios that follow the next [`AHEAD`] ones from `from` on. A
    /// list in random memory order is otherwise a chain of cache misses. A load is the only
    /// prefetch that safe code has. A locked operation waits for every load before it, so all loads
    /// are issued together.
    pub fn look_ahead(folios: &Folios, from: Pfn) {
        let mut at = Some(from);
        let mut seen = 0;
        for _ in 0..AHEAD {
            let Some(p) = at else { break };
            if let Some(later) = folios.ahead(p) {
                seen ^= folios.word(later).0;
            }
            at = Self::newer(folios, p);
        }
        std::hint::black_box(seen);
    }

    /// Adds a folio as the oldest.
    #[inline]
    pub fn push_tail(&mut self, folios: &Folios, p: Pfn) {
        let f = folios.at(p.0);
        f.next.store(NO_FRAME, Relaxed);
        f.prev.store(self.tail, Relaxed);
        match self.tail {
            NO_FRAME => self.head = p.0,
            t => folios.at(t).next.store(p.0, Relaxed),
        }
        self.tail = p.0;
        self.len += 1;
    }

    /// Removes a folio.
    #[inline]
    pub fn remove(&mut self, folios: &Folios, p: Pfn) {
        let f = folios.at(p.0);
        let (prev, next) = (f.prev.load(Relaxed), f.next.load(Relaxed));
        match prev {
            NO_FRAME => self.head = next,
            q => folios.at(q).next.store(next, Relaxed),
        }
        match next {
            NO_FRAME => self.tail = prev,
            q => folios.at(q).prev.store(prev, Relaxed),
        }
        self.len -= 1;
    }

    /// Removes the oldest folio and returns it.
    pub fn pop_tail(&mut self, folios: &Folios) -> Option<Pfn> {
        let p = self.tail()?;
        self.remove(folios, p);
        Some(p)
    }

    /// Cuts out the segment `head..=tail` of `n` folios and returns it as a list of its own.
    pub fn cut(&mut self, folios: &Folios, head: Pfn, tail: Pfn, n: u32) -> Self {
        let before = folios.at(head.0).prev.load(Relaxed);
        let after = folios.at(tail.0).next.load(Relaxed);
        match before {
            NO_FRAME => self.head = after,
            q => folios.at(q).next.store(after, Relaxed),
        }
        match after {
            NO_FRAME => self.tail = before,
            q => folios.at(q).prev.store(before, Relaxed),
        }
        self.len -= n;
        folios.at(head.0).prev.store(NO_FRAME, Relaxed);
        folios.at(tail.0).next.store(NO_FRAME, Relaxed);
        Self { head: head.0, tail: tail.0, len: n, ..Self::default() }
    }

    /// Appends all of `other` after the oldest folio.
    pub fn append(&mut self, folios: &Folios, other: Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            *self = other;
            return;
        }
        folios.at(self.tail).next.store(other.head, Relaxed);
        folios.at(other.head).prev.store(self.tail, Relaxed);
        self.tail = other.tail;
        self.len += other.len;
    }

    /// Prepends all of `other` before the newest folio.
    pub fn prepend(&mut self, folios: &Folios, mut other: Self) {
        let mine = std::mem::take(self);
        other.append(folios, mine);
        *self = other;
    }

    /// Returns all folios, newest to oldest. For checks and tests.
    #[must_use]
    pub fn order(&self, folios: &Folios) -> Vec<Pfn> {
        let mut out = Vec::new();
        let mut at = self.head;
        while at != NO_FRAME {
            out.push(Pfn(at));
            at = folios.at(at).next.load(Relaxed);
        }
        out
    }

    /// Checks that both directions agree with each other and with the length.
    ///
    /// # Panics
    /// If they do not.
    pub fn check(&self, folios: &Folios) {
        let forward = self.order(folios);
        assert_eq!(forward.len(), self.len as usize, "length");
        let mut backward = Vec::new();
        let mut at = self.tail();
        while let Some(p) = at {
            backward.push(p);
            at = Self::newer(folios, p);
        }
        backward.reverse();
        assert_eq!(forward, backward, "links");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(folios: &Folios, ids: &[u32]) -> List {
        let mut l = List::default();
        for &i in ids {
            l.push_tail(folios, Pfn(i));
        }
        l
    }

    fn order(l: &List, folios: &Folios) -> Vec<u32> {
        l.check(folios);
        l.order(folios).iter().map(|p| p.0).collect()
    }

    #[test]
    fn a_list_loses_folios_at_both_ends_and_in_the_middle() {
        let f = Folios::new(8);
        let mut l = list(&f, &[1, 2, 3]);
        l.push_head(&f, Pfn(0));
        l.remove(&f, Pfn(2));
        assert_eq!(order(&l, &f), [0, 1, 3]);
        assert_eq!(l.pop_tail(&f), Some(Pfn(3)));
        l.remove(&f, Pfn(0));
        l.remove(&f, Pfn(1));
        assert!(l.is_empty() && l.tail().is_none());
    }

    #[test]
    fn a_segment_is_cut_at_every_position() {
        for (head, tail, n, rest) in
            [(0, 1, 2, vec![2, 3]), (1, 2, 2, vec![0, 3]), (2, 3, 2, vec![0, 1]), (0, 3, 4, vec![])]
        {
            let f = Folios::new(8);
            let mut l = list(&f, &[0, 1, 2, 3]);
            let mut other = list(&f, &[6, 7]);
            let cut = l.cut(&f, Pfn(head), Pfn(tail), n);
            assert_eq!(order(&l, &f), rest);
            other.append(&f, cut);
            let mut expect = vec![6, 7];
            expect.extend(head..=tail);
            assert_eq!(order(&other, &f), expect);
        }
    }

    #[test]
    fn a_folio_has_a_hint_at_the_one_that_was_added_sixteen_later() {
        let f = Folios::new(64);
        let mut l = List::default();
        (0..40).for_each(|i| l.push_head(&f, Pfn(i * 7 % 64)));
        let told: Vec<Option<u32>> =
            (0..40).map(|i| f.ahead(Pfn(i * 7 % 64)).map(|p| p.0)).collect();
        let later = |i: u32| (i + 16 < 40).then_some((i + 16) * 7 % 64);
        assert_eq!(told, (0..40).map(later).collect::<Vec<_>>());
        // A hint may name a folio that has left the list since; this is harmless.
        (0..40).for_each(|i| l.remove(&f, Pfn(i * 7 % 64)));
        List::look_ahead(&f, Pfn(0));
        assert!(l.is_empty());
    }

    #[test]
    fn joining_keeps_the_order_of_both() {
        let f = Folios::new(8);
        let mut l = list(&f, &[0, 1]);
        l.prepend(&f, list(&f, &[2, 3]));
        l.append(&f, List::default());
        assert_eq!(order(&l, &f), [2, 3, 0, 1]);
    }
}
