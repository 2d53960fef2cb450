//! From what the engine did to how long that took.
//!
//! Reclaim and insertion happen at one moment of virtual time; what they did is read off the engine's
//! counters and turned into time by [`costs`](super::costs). Work under the lru lock of a memcg makes
//! the next who wants that lock wait.

use ebb_core::tunables::LruKind;

use super::costs::Costs;
use super::mem::{COUNTED, Mem};

/// The pages handled by one run of the engine, by what was done with them.
#[derive(Clone, Copy, Default, Debug)]
struct Handled {
    /// Looked at on a list.
    looked: u64,
    /// Taken off for shrinking.
    taken: u64,
    /// Moved to another list, or put back.
    moved: u64,
}

/// Time under the lru lock. Each folio looked at is a cache miss; with the next record fetched early
/// that miss runs beside the work on the folio before.
fn hold_ns(c: &Costs, h: Handled, move_ns: u64, prefetch: bool) -> u64 {
    let misses = h.looked * c.scan_ns;
    let work = h.taken * c.isolate_ns + h.moved * move_ns;
    if prefetch { misses.max(work) } else { misses + work }
}

impl Mem {
    /// What the engine did since the last call, in time; waits for the lru lock included.
    pub(super) fn charge(&mut self, now: u64, memcg: Option<usize>) -> u64 {
        let mut n = [0; COUNTED.len()];
        for (i, &event) in COUNTED.iter().enumerate() {
            let value = self.stat.get(event);
            n[i] = value - self.marks[i];
            self.marks[i] = value;
        }
        let [kswapd, direct, anon, steal_a, steal_f, refill, scanned, ..] = n;
        let [.., walked, promoted, aged, around, deactivated, skipped] = n;
        let c = &self.costs;
        let taken = kswapd + direct;
        let steal = steal_a + steal_f;
        let back = taken.saturating_sub(steal);
        let tun = &self.tun;
        let classic = tun.lru == LruKind::Classic;
        let hold = if classic {
            // The classic lists have always fetched the next record early.
            let moved = back + deactivated;
            // Folios of zones that do not help are looked at and moved to the other end.
            let looked = taken + refill + skipped;
            hold_ns(c, Handled { looked, taken, moved: moved + skipped }, c.move_ns, true)
        } else {
            let move_ns = match (tun.counter_batch, tun.bulk_move) {
                (_, true) => c.move_bulk_ns,
                (true, false) => c.move_counter_ns,
                (false, false) => c.move_ns,
            };
            let sorted = refill + aged;
            let h = Handled { looked: scanned + aged, taken, moved: sorted };
            hold_ns(c, h, move_ns, tun.prefetch) + back * c.move_ns
        };
        let rmaps = anon + if classic { refill } else { 0 };
        let free = rmaps * c.rmap_ns
            + steal * c.evict_ns
            + walked * c.walk_ns
            + promoted * c.promote_ns
            + around * c.look_ns
            + self.out.spent_ns;
        self.under_lock(now, memcg.unwrap_or(0), hold) + free
    }

    /// One folio was put into the batch of those that are to go on the lists. The time that takes; most
    /// of it for the last of a batch.
    pub(super) fn charge_add(&mut self, now: u64, memcg: usize) -> u64 {
        let m = &mut self.memcgs[memcg];
        m.added += 1;
        if m.added < u64::from(self.tun.add_batch.max(1)) {
            return 0;
        }
        let hold = std::mem::take(&mut m.added) * self.costs.add_ns;
        self.under_lock(now, memcg, hold)
    }

    /// Holds a memcg's lru lock for `hold`, once it is free. Returns waiting and holding.
    fn under_lock(&mut self, now: u64, memcg: usize, hold: u64) -> u64 {
        let free_at = &mut self.memcgs[memcg].lock_free_ns;
        let wait = free_at.saturating_sub(now);
        *free_at = now + wait + hold;
        self.spent.lock_wait_ns += wait;
        self.spent.lock_hold_ns += hold;
        wait + hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batching_never_makes_moving_dearer() {
        let c = Costs::default();
        assert!(c.move_ns >= c.move_counter_ns && c.move_counter_ns >= c.move_bulk_ns);
    }

    #[test]
    fn a_record_fetched_early_hides_the_smaller_of_miss_and_work() {
        let c = Costs { scan_ns: 80, isolate_ns: 30, ..Costs::default() };
        let h = Handled { looked: 10, taken: 10, moved: 0 };
        assert_eq!(hold_ns(&c, h, 0, false), 1100);
        assert_eq!(hold_ns(&c, h, 0, true), 800);
        let busy = Handled { moved: 20, ..h };
        assert_eq!(hold_ns(&c, busy, 100, true), 2300);
    }
}
