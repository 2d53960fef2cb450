//! Turns the engine's work into time.
//!
//! Reclaim and insertion happen at one moment of virtual time. The engine's counters show the work.
//! [`costs`](super::costs) turns it into time. Work under the lru lock of a memcg makes the next
//! task that wants the lock wait.

use ebb_mm::lru::scan::{self, SWAP_CLUSTER_MAX};
use ebb_mm::tunables::LruKind;
use ebb_mm::types::Pfn;

use super::costs::Costs;
use super::mem::{COUNTED, Mem};

/// Pages handled by one run of the engine, by what the engine did with them.
#[derive(Clone, Copy, Default, Debug)]
struct Handled {
    /// Number of pages looked at on a list.
    looked: u64,
    /// Number of pages taken off for shrinking.
    taken: u64,
    /// Number of pages moved to another list, or put back.
    moved: u64,
}

/// Returns the nanoseconds under the lru lock. Each folio looked at is a cache miss. If the next
/// record is fetched early, that miss runs beside the work on the folio before.
fn hold_ns(c: &Costs, h: Handled, move_ns: u64, prefetch: bool) -> u64 {
    let misses = h.looked * c.scan_ns;
    let work = h.taken * c.isolate_ns + h.moved * move_ns;
    if prefetch { misses.max(work) } else { misses + work }
}

impl Mem {
    /// Returns the nanoseconds of the engine's work since the last call, with waits for the lru
    /// lock.
    pub(super) fn charge(&mut self, now: u64, memcg: Option<usize>, node: usize) -> u64 {
        let mut n = [0; COUNTED.len()];
        for (i, &event) in COUNTED.iter().enumerate() {
            let value = self.stat.get(event);
            n[i] = value - self.marks[i];
            self.marks[i] = value;
        }
        let [kswapd, direct, anon, file, steal_a, steal_f, refill, scanned, ..] = n;
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
            let move_ns = match (tun.mglru.counter_batch, tun.mglru.bulk_move) {
                (_, true) => c.move_bulk_ns,
                (true, false) => c.move_counter_ns,
                (false, false) => c.move_ns,
            };
            let sorted = refill + aged;
            let h = Handled { looked: scanned + aged, taken, moved: sorted };
            hold_ns(c, h, move_ns, tun.mglru.prefetch) + back * c.move_ns
        };
        // The classic LRU also looks folios up when it deactivates them. Their type is not counted.
        let more = if classic { refill } else { 0 };
        let share = |n: u64| n + more * n / (anon + file).max(1);
        let [anon_ns, file_ns] = self.out.mappings.mean_ns();
        let c = &self.costs;
        let free = share(anon) * anon_ns
            + share(file) * file_ns
            + walked * c.walk_ns
            + promoted * c.promote_ns
            + around * c.look_ns
            + self.out.spent_ns;
        self.under_lock(now, (memcg.unwrap_or(0), node), hold) + free
    }

    /// Counts a folio put into the batch that is to go on the lists. Returns the time that takes.
    /// The last folio of a batch has most of it.
    pub(super) fn charge_add(&mut self, now: u64, memcg: usize, pfn: Pfn) -> u64 {
        let node = usize::from(self.folios.node(pfn));
        let m = &mut self.memcgs[memcg].on[node];
        m.added += 1;
        if m.added < u64::from(self.tun.add_batch.max(1)) {
            return 0;
        }
        let hold = std::mem::take(&mut m.added) * self.costs.add_ns;
        self.under_lock(now, (memcg, node), hold)
    }

    /// Adds up the counters of all memcgs on all processors, and returns the time that takes. The
    /// classic LRU of Linux 5.15 does this before it judges a page that came back ("memcg: flush
    /// lruvec stats in the refault"). From 5.16 on it does so only if there is enough to add. One
    /// task does so at a time, and a task that comes meanwhile goes on without. The multi-gen LRU
    /// judges by generations and does not ask.
    pub(super) fn flush_counters(&mut self, now: u64) -> u64 {
        let classic = self.tun.lru == LruKind::Classic && self.tun.classic.flush;
        if !std::mem::take(&mut self.refaulted) || !classic {
            return 0;
        }
        let took = if now < self.flushing_ns {
            self.costs.hit_ns
        } else {
            let took = self.out.frames.cpu_count() as u64 * self.costs.flush_cpu_ns;
            self.flushing_ns = now + took;
            took
        };
        self.spent.flush_ns += took;
        took
    }

    /// Returns the cost of a pass beside the pages it handles. A pass that handles fewer pages than
    /// on the machine that this one stands for takes as much less. So a page costs as much as
    /// there.
    pub(super) fn pass_ns(&self) -> u64 {
        self.costs.pass_ns * scan::batch(&self.tun) / SWAP_CLUSTER_MAX
    }

    /// Holds a memcg's lru lock on a node for `hold`. Returns the time of waiting and holding.
    ///
    /// The kernel drops the lock after every batch, and the next waiting task gets it. So a task
    /// that comes waits only for one batch of a long hold. The rest is done in turn with the tasks
    /// that come, or while no task does.
    fn under_lock(&mut self, now: u64, (memcg, node): (usize, usize), hold: u64) -> u64 {
        let one = scan::gen_batch(&self.tun);
        let folios = (u64::from(self.tun.mglru.lock_hold) / self.time_scale.max(1)).max(one);
        let batch = folios * (self.costs.scan_ns + self.costs.move_ns);
        let wait = self.memcgs[memcg].on[node].lock.take(
            (self.clock_ns, now.saturating_sub(self.clock_ns)),
            hold,
            batch,
        );
        self.spent.lock_wait_ns += wait;
        self.spent.lock_hold_ns += hold;
        wait + hold
    }
}

/// An lru lock: the work queued for it, as of a moment of the machine's clock.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct LruLock {
    at_ns: u64,
    /// Nanoseconds of work that is done before the next task has its turn.
    ahead_ns: u64,
    /// Nanoseconds left of longer holds beside that.
    rest_ns: u64,
}

impl LruLock {
    /// Takes the lock for `hold`, in batches of `batch`, `later` after the machine's clock shows
    /// `clock`. Returns the time waited.
    ///
    /// A reclaimer is often ahead of the clock. Its hold then must not delay tasks that come before
    /// that time. Otherwise each of them would delay the next one further.
    fn take(&mut self, (clock, later): (u64, u64), hold: u64, batch: u64) -> u64 {
        self.pass(clock.saturating_sub(self.at_ns));
        self.at_ns = self.at_ns.max(clock);
        let mut then = *self;
        then.pass(later);
        let in_turn = then.rest_ns.min(hold + batch);
        let first = hold.min(batch);
        self.ahead_ns += in_turn + first;
        self.rest_ns = self.rest_ns - in_turn + hold - first;
        then.ahead_ns + in_turn
    }

    fn pass(&mut self, ns: u64) {
        let ahead = ns.min(self.ahead_ns);
        self.ahead_ns -= ahead;
        self.rest_ns = self.rest_ns.saturating_sub(ns - ahead);
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
    fn a_long_hold_lets_others_in_after_each_batch_and_takes_as_long_in_all() {
        let mut lock = LruLock::default();
        assert_eq!(lock.take((0, 0), 1000, 10), 0);
        // A task that comes during the hold waits for a batch and its turn, not for the whole.
        assert_eq!(lock.take((5, 0), 1, 10), 5 + 11);
        // Nothing is lost: the next long hold waits for all that is left.
        assert_eq!(lock.take((17, 0), 2000, 10), 1000 + 1 - 17);
    }

    #[test]
    fn a_lock_that_is_wanted_all_the_time_is_never_held_twice() {
        let (mut lock, mut end) = (LruLock::default(), 0);
        for i in 0..100 {
            end = end.max(i + lock.take((i, 0), 15, 20) + 15);
        }
        assert_eq!(end, 1500);
    }

    #[test]
    fn a_task_ahead_of_the_clock_holds_no_lock_before_its_time() {
        let mut lock = LruLock::default();
        assert_eq!(lock.take((0, 5000), 10, 20), 0);
        let wait = lock.take((1, 0), 10, 20);
        assert!(wait <= 10, "{wait}");
        // By the time the next task comes, the work of the earlier ones is done.
        assert_eq!(lock.take((0, 400), 10, 20), 0);
    }

    #[test]
    fn one_task_at_a_time_adds_up_counters_for_what_came_back() {
        let mut mem = super::super::testing::machine().mem;
        let mut flush = |lru, on, refaulted, now| {
            (mem.tun.lru, mem.tun.classic.flush, mem.refaulted) = (lru, on, refaulted);
            mem.flush_counters(now)
        };
        let (whole, miss) = (2 * Costs::default().flush_cpu_ns, Costs::default().hit_ns);
        assert_eq!(flush(LruKind::Classic, true, false, 0), 0, "nothing came back");
        assert_eq!(flush(LruKind::Classic, false, true, 0), 0, "not in that kernel");
        assert_eq!(flush(LruKind::Gen, true, true, 0), 0, "the multi-gen LRU does not ask");
        assert_eq!(flush(LruKind::Classic, true, true, 0), whole);
        assert_eq!(flush(LruKind::Classic, true, true, whole - 1), miss, "another is at it");
        assert_eq!(flush(LruKind::Classic, true, true, whole), whole);
        assert_eq!(mem.spent.flush_ns, 2 * whole + miss);
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
