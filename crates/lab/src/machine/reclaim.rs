//! Reclaim on the simulated machine: who does it, how long it takes, and who waits meanwhile.
//!
//! A run of the engine happens at one moment of virtual time; what it did is read off its counters and
//! turned into time by the cost model. The part under the lru lock makes the next run on the same lists
//! wait.

use std::sync::Arc;

use ebb_core::folio::Word;
use ebb_core::lru::scan::DEF_PRIORITY;
use ebb_core::lru::{Ctx, Scan, Who};
use ebb_core::tunables::{Dirty, LruKind};
use ebb_core::types::Pfn;

use super::mem::{COUNTED, Mem, cx};

/// Rounds of reclaim before a fault gives up.
const RETRIES_MAX: u32 = 16;
/// Frames looked at for a slot to take back.
const RECOVER_FRAMES: u32 = 1024;
/// How long a task waits for writes when it cannot know which ends first.
const WRITE_WAIT_NS: u64 = 1_000_000;

impl Mem {
    /// Whether a memcg has room for `pages` without reclaim.
    fn fits(&self, memcg: usize, pages: u64) -> bool {
        self.out.charged[memcg] + pages <= self.memcgs[memcg].limit
    }

    /// Reclaims until `pages` fit, at least one. Returns how many fit and what that cost.
    pub(super) fn make_room(&mut self, now: u64, memcg: usize, pages: u64) -> (u64, u64) {
        let mut cost = 0;
        for _ in 0..RETRIES_MAX {
            if !self.fits(memcg, pages) {
                let (freed, took) = self.direct(now + cost, Some(memcg));
                cost += took;
                if self.fits(memcg, 1) || freed > 0 {
                    continue;
                }
            } else if let Some(pfn) = self.alloc() {
                self.out.release(pfn);
                return (pages, cost);
            } else {
                let (freed, took) = self.direct(now + cost, None);
                cost += took;
                if freed > 0 {
                    continue;
                }
            }
            if self.next_write().is_some() {
                break;
            }
        }
        let left = self.memcgs[memcg].limit.saturating_sub(self.out.charged[memcg]);
        (left.min(pages).min(1), cost)
    }

    /// Direct reclaim in a task, from one memcg or from all.
    fn direct(&mut self, now: u64, memcg: Option<usize>) -> (u64, u64) {
        let parts = self.tun.reclaim_parts;
        let size = match memcg {
            Some(id) => self.memcgs[id].limit,
            None => self.memcgs.iter().map(|m| m.limit).min().unwrap_or(0),
        };
        let part = size.checked_div(parts).unwrap_or(32);
        let target = part.clamp(1, 32);
        let mut sc = Scan::new(Who::Direct, memcg.is_none(), target, self.tun.swappiness.0);
        let cost = self.shrink(now, memcg, &mut sc, DEF_PRIORITY, 0);
        self.spent.direct_runs += 1;
        self.spent.direct_ns += cost;
        (self.out.freed, cost)
    }

    /// A reclaim run at priorities `from` to `to`. Returns what it cost; `out.freed` is its yield.
    pub fn shrink(
        &mut self,
        now: u64,
        memcg: Option<usize>,
        sc: &mut Scan,
        from: u8,
        to: u8,
    ) -> u64 {
        self.out.now_ns = now;
        self.out.spent_ns = 0;
        self.out.freed = 0;
        self.recover_slots();
        let room = self.out.swap_has_room();
        sc.may_swap &= room;
        self.stranded |= !room;
        let cx = cx!(self, now);
        let begun = self.out.started.len();
        for m in &mut self.memcgs {
            m.pagevec.drain(&m.lruvec, &cx);
        }
        for space in &self.list {
            space.note_scheduled();
        }
        for priority in (to..=from).rev() {
            sc.priority = priority;
            match memcg {
                Some(id) => {
                    let v = Arc::clone(&self.memcgs[id].lruvec);
                    v.shrink(&cx, sc, &mut self.out);
                }
                None => self.lru.shrink(&cx, sc, &mut self.out),
            }
            let begun = (self.out.started.len() - begun) as u64;
            if self.out.freed + begun >= sc.target {
                break;
            }
        }
        for m in &self.memcgs {
            m.lruvec.end_reclaim();
        }
        self.charge(now, memcg)
    }

    /// Takes slots back from resident pages while swap is more than half full, as the kernel does when it
    /// looks for a free one: some frames further each time.
    fn recover_slots(&mut self) {
        let full = self.out.swap.as_ref().is_some_and(|d| self.out.slots * 2 > d.pages_max);
        if !full || !self.tun.keep_slot {
            return;
        }
        let frames = self.folios.frames();
        for looked in 0..frames {
            // All of them only when there is no other way to store anything.
            if looked >= RECOVER_FRAMES && self.out.swap_has_room() {
                break;
            }
            let pfn = Pfn(self.slot_hand);
            self.slot_hand = (self.slot_hand + 1) % frames;
            let w = self.folios.word(pfn);
            let kept = w.has(Word::LRU) && w.has(Word::SWAPBACKED) && w.has(Word::SWAPCACHE);
            if kept && w.has(Word::MAPPED) && !w.has(Word::WRITEBACK) {
                self.folios.clear(pfn, Word::SWAPCACHE);
                self.out.drop_slot();
            }
        }
    }

    /// What the engine did since the last call, in time; waits for the lru lock included.
    fn charge(&mut self, now: u64, memcg: Option<usize>) -> u64 {
        let c = &self.costs;
        let mut n = [0; COUNTED.len()];
        for (i, &event) in COUNTED.iter().enumerate() {
            let value = self.stat.get(event);
            n[i] = value - self.marks[i];
            self.marks[i] = value;
        }
        let [kswapd, direct, anon, steal_a, steal_f, refill, scanned, ..] = n;
        let [.., walked, promoted, aged, around, deactivated] = n;
        let taken = kswapd + direct;
        let steal = steal_a + steal_f;
        let classic = self.tun.lru == LruKind::Classic;
        let looked = if classic { taken + refill } else { scanned };
        let moved = if classic { deactivated } else { refill } + taken.saturating_sub(steal);
        let age = match (self.tun.counter_batch, self.tun.bulk_move, self.tun.prefetch) {
            (_, true, true) => c.age_prefetch_ns,
            (_, true, false) => c.age_bulk_ns,
            (true, false, _) => c.age_counter_ns,
            (false, false, _) => c.age_ns,
        };
        let hold = looked * c.scan_ns + moved * c.sort_ns + aged * age;
        let rmaps = anon + if classic { refill } else { 0 };
        let free = rmaps * c.rmap_ns
            + steal * c.evict_ns
            + walked * c.walk_ns
            + promoted * c.promote_ns
            + around * c.look_ns
            + self.out.spent_ns;
        let lock = &mut self.memcgs[memcg.unwrap_or(0)].lock_free_ns;
        let wait = lock.saturating_sub(now);
        *lock = now + wait + hold;
        self.spent.lock_wait_ns += wait;
        self.spent.lock_hold_ns += hold;
        wait + hold + free
    }

    pub(super) fn fold(&mut self) {
        // The classic LRU reads memcg counters that are settled only now and then.
        if self.tun.classic_fold > 0 {
            self.next_fold = self.next_fold.saturating_sub(1);
            if self.next_fold == 0 {
                self.next_fold = self.tun.classic_fold;
                self.memcgs.iter().for_each(|m| m.lruvec.fold());
            }
        }
    }

    /// When a task that found nothing to reclaim tries again; none if nothing will change by waiting.
    ///
    /// Who waits for file pages to be written is what the treatments of dirty pages differ in: 6.18's
    /// multi-gen LRU goes round without waiting, the classic one and 7.2's wait.
    pub(super) fn next_write(&self) -> Option<u64> {
        let files = self.flusher.writeback;
        let waits = self.tun.dirty != Dirty::K618;
        let flushing = waits && (files > 0 || self.out.flusher_wanted);
        if self.out.writing <= files && !flushing {
            return None;
        }
        let first = self.out.started.iter().map(|&(done, _)| done).min();
        Some(first.unwrap_or(self.out.now_ns + WRITE_WAIT_NS))
    }
}
