//! Counters with per-CPU deltas.
//!
//! Each CPU adds its changes to a delta of its own. A delta is added to the shared count only when
//! it passes a threshold. So the cache line of a busy count does not bounce between CPUs.
//!
//! Invariants:
//! * COUNTER-1: at quiescence the shared count plus all deltas is exactly the sum of all changes.
//! * COUNTER-2: at quiescence no delta is further from 0 than the threshold in force when it last
//!   changed.
//!
//! The CPU number only chooses a delta. Two threads that use one number lose no change, because
//! deltas change by atomic addition. A flush takes a delta to 0 before it adds it to the shared
//! count. A reader between these two steps misses at most that one delta.

use super::sync::{AtomicI32, AtomicI64, AtomicU32, Relaxed};

/// The items counted per zone, in the order of zoneinfo.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(usize)]
pub enum ZoneItem {
    /// Free pages.
    FreePages,
    /// Free pages in blocks of at least a pageblock.
    FreePagesBlocks,
    /// Pages on the inactive list of anonymous pages.
    InactiveAnon,
    /// Pages on the active list of anonymous pages.
    ActiveAnon,
    /// Pages on the inactive list of file pages.
    InactiveFile,
    /// Pages on the active list of file pages.
    ActiveFile,
    /// Unevictable pages.
    Unevictable,
    /// Pages that are dirty or under writeback.
    WritePending,
    /// Pages locked in memory.
    Mlock,
    /// Free pages in CMA blocks.
    FreeCma,
}

impl ZoneItem {
    /// All items, in order.
    pub const ALL: [Self; 10] = [
        Self::FreePages,
        Self::FreePagesBlocks,
        Self::InactiveAnon,
        Self::ActiveAnon,
        Self::InactiveFile,
        Self::ActiveFile,
        Self::Unevictable,
        Self::WritePending,
        Self::Mlock,
        Self::FreeCma,
    ];

    /// Returns the name in vmstat.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FreePages => "nr_free_pages",
            Self::FreePagesBlocks => "nr_free_pages_blocks",
            Self::InactiveAnon => "nr_zone_inactive_anon",
            Self::ActiveAnon => "nr_zone_active_anon",
            Self::InactiveFile => "nr_zone_inactive_file",
            Self::ActiveFile => "nr_zone_active_file",
            Self::Unevictable => "nr_zone_unevictable",
            Self::WritePending => "nr_zone_write_pending",
            Self::Mlock => "nr_mlock",
            Self::FreeCma => "nr_free_cma",
        }
    }
}

const ITEMS: usize = ZoneItem::ALL.len();

/// One CPU's deltas, on cache lines of their own.
#[derive(Debug)]
#[repr(align(64))]
struct Deltas([AtomicI32; ITEMS]);

#[derive(Debug)]
#[repr(align(64))]
struct Shared([AtomicI64; ITEMS]);

/// The counters of a zone.
#[derive(Debug)]
pub struct Counters {
    shared: Shared,
    deltas: Box<[Deltas]>,
    threshold: AtomicU32,
}

impl Counters {
    /// Creates counters that are all zero.
    #[must_use]
    pub fn new(cpus: usize, threshold: u32) -> Self {
        Self {
            shared: Shared(std::array::from_fn(|_| AtomicI64::new(0))),
            deltas: (0..cpus.max(1))
                .map(|_| Deltas(std::array::from_fn(|_| AtomicI32::new(0))))
                .collect(),
            threshold: AtomicU32::new(threshold),
        }
    }

    /// Changes `item` by `delta` on behalf of `cpu`.
    #[inline]
    pub fn add(&self, cpu: usize, item: ZoneItem, delta: i64) {
        if delta == 0 {
            return;
        }
        let limit = i64::from(self.threshold.load(Relaxed));
        if delta.abs() > limit {
            self.shared.0[item as usize].fetch_add(delta, Relaxed);
            return;
        }
        let cell = &self.deltas[cpu % self.deltas.len()].0[item as usize];
        let sum = cell.fetch_add(delta as i32, Relaxed) as i64 + delta;
        if sum.abs() > limit {
            self.flush(cell, item);
        }
    }

    fn flush(&self, cell: &AtomicI32, item: ZoneItem) {
        let delta = cell.swap(0, Relaxed);
        if delta != 0 {
            self.shared.0[item as usize].fetch_add(i64::from(delta), Relaxed);
        }
    }

    /// Returns the shared count, never below 0. It is off by at most the sum of the deltas.
    #[must_use]
    #[inline(always)]
    pub fn read(&self, item: ZoneItem) -> u64 {
        self.shared.0[item as usize].load(Relaxed).max(0) as u64
    }

    /// Returns the shared count plus all deltas, never below 0.
    #[must_use]
    pub fn snapshot(&self, item: ZoneItem) -> u64 {
        let deltas: i64 =
            self.deltas.iter().map(|cpu| i64::from(cpu.0[item as usize].load(Relaxed))).sum();
        (self.shared.0[item as usize].load(Relaxed) + deltas).max(0) as u64
    }

    /// Moves all of `cpu`'s deltas to the shared counts.
    pub fn fold(&self, cpu: usize) {
        for item in ZoneItem::ALL {
            self.flush(&self.deltas[cpu % self.deltas.len()].0[item as usize], item);
        }
    }

    /// Changes the threshold beyond which a delta is added to the shared count.
    pub fn set_threshold(&self, threshold: u32) {
        self.threshold.store(threshold, Relaxed);
    }

    /// Returns the threshold of the deltas.
    #[must_use]
    pub fn threshold(&self) -> u32 {
        self.threshold.load(Relaxed)
    }

    /// Returns the largest distance of a delta of `item` from 0.
    #[must_use]
    pub fn drift(&self, item: ZoneItem) -> u32 {
        let of = |cpu: &Deltas| cpu.0[item as usize].load(Relaxed).unsigned_abs();
        self.deltas.iter().map(of).max().unwrap_or(0)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_delta_stays_with_its_cpu_until_it_passes_the_threshold() {
        let c = Counters::new(2, 30);
        for _ in 0..30 {
            c.add(0, ZoneItem::FreePages, 1);
        }
        assert_eq!((c.read(ZoneItem::FreePages), c.snapshot(ZoneItem::FreePages)), (0, 30));
        c.add(0, ZoneItem::FreePages, 1);
        assert_eq!(c.read(ZoneItem::FreePages), 31);
        c.add(1, ZoneItem::FreePages, -20);
        assert_eq!((c.read(ZoneItem::FreePages), c.snapshot(ZoneItem::FreePages)), (31, 11));
        c.fold(1);
        assert_eq!(c.read(ZoneItem::FreePages), 11);
    }

    #[test]
    fn a_plain_read_is_never_negative() {
        let c = Counters::new(1, 5);
        c.add(0, ZoneItem::FreeCma, -100);
        assert_eq!((c.read(ZoneItem::FreeCma), c.snapshot(ZoneItem::FreeCma)), (0, 0));
    }

    #[test]
    fn threads_that_share_a_cpu_number_lose_nothing() {
        const ROUNDS: i64 = if cfg!(miri) { 90 } else { 3000 };
        let c = Counters::new(1, 7);
        std::thread::scope(|s| {
            for sign in [1i64, 1, -1] {
                let c = &c;
                s.spawn(move || {
                    for i in 0..ROUNDS {
                        c.add(0, ZoneItem::FreePages, sign * (i % 9));
                    }
                });
            }
        });
        let per_thread: i64 = (0..ROUNDS).map(|i| i % 9).sum();
        assert_eq!(c.snapshot(ZoneItem::FreePages) as i64, per_thread);
        assert!(c.drift(ZoneItem::FreePages) <= 7);
    }
}
