//! The faithful store: free lists by order and migratetype behind one lock per zone. It places
//! every block as the kernel does. It is the reference for behaviour, and the oracle of the fast
//! store's tests.
//!
//! Invariants (hold whenever the lock is free):
//! * LISTS-1: `head_order[f]` is the order of the free block that starts at frame `f`, or
//!   `NOT_HEAD`.
//! * LISTS-2: a free block is on exactly the list of its order and of its pageblock's type.
//! * LISTS-3: two free buddies below the largest order do not coexist, unless from a pageblock up
//!   their types forbid them to merge.
//! * LISTS-4: `totals` and the list lengths agree with the contents of the lists.
//!
//! Lock order: a CPU's set, then this lock. No lock is taken under it.

mod buddy;
mod fallback;

use std::ops::Range;

use super::contradiction::Contradiction;
use super::kinds::{Migratetype, ORDERS, Order, PAGEBLOCK_PAGES};
use super::state::{FreeStore, Refill, Totals, Want, ZoneState};
use super::sync::{AtomicU32, Mutex, Relaxed, lock};
use super::watermark::BlocksFree;
use buddy::Buddy;
use fallback::Mode;
pub(super) use fallback::{may_claim, worth_claiming};

/// The store of free frames of one zone, as the kernel's free lists.
#[derive(Debug)]
pub struct Lists {
    buddy: Mutex<Buddy>,
    /// By type: a bit for each order that has a block. Written under the lock, read without it as a
    /// hint.
    nonempty: [AtomicU32; 6],
    start: u32,
    len: usize,
}

impl Lists {
    /// Creates a store for the frames of `span`, of which `memory` is free. Types are read from the
    /// zone's map, which must be complete.
    #[must_use]
    pub fn new(zone: &ZoneState, memory: &[Range<u32>]) -> Self {
        let mut buddy = Buddy::new(zone.span.clone());
        for range in memory {
            buddy.add_memory(zone, range.clone());
        }
        zone.count(0, &Totals::default(), &buddy.totals, true);
        let store = Self {
            nonempty: std::array::from_fn(|_| AtomicU32::new(0)),
            start: zone.span.start,
            len: zone.span.len(),
            buddy: Mutex::new(buddy),
        };
        store.publish(&lock(&store.buddy));
        store
    }

    fn publish(&self, buddy: &Buddy) {
        for (hint, &orders) in self.nonempty.iter().zip(&buddy.nonempty) {
            if hint.load(Relaxed) != u32::from(orders) {
                hint.store(u32::from(orders), Relaxed);
            }
        }
    }

    /// Runs `work` under the lock, and counts its changes before the lock is dropped.
    fn with<R>(&self, zone: &ZoneState, cpu: usize, work: impl FnOnce(&mut Buddy) -> R) -> R {
        let mut buddy = lock(&self.buddy);
        let before = buddy.totals;
        let result = work(&mut buddy);
        zone.count(cpu, &before, &buddy.totals, true);
        self.publish(&buddy);
        result
    }
}

impl FreeStore for Lists {
    fn take(&self, zone: &ZoneState, want: &Want, out: &mut [u32]) -> usize {
        let mut buddy = lock(&self.buddy);
        let refill = Refill::begin(zone, want, buddy.totals);
        let mut mode = Mode::Normal;
        let mut n = 0;
        while n < out.len() {
            let Some(pfn) = buddy.rmqueue(zone, want, &mut mode) else { break };
            if refill.looks_at_blocks() && !refill.accept(pfn) {
                continue;
            }
            out[n] = pfn;
            n += 1;
        }
        let late = refill.count(&buddy.totals);
        self.publish(&buddy);
        drop(buddy);
        late.finish();
        n
    }

    fn give(&self, zone: &ZoneState, cpu: usize, order: Order, frames: &mut [u32], to_tail: bool) {
        self.with(zone, cpu, |buddy| {
            for &mut pfn in frames {
                if !buddy.free(zone, pfn, order, to_tail) {
                    zone.leak(Order::ZERO);
                }
            }
        });
    }

    fn blocks_free(&self, order: Order) -> BlocksFree {
        let at_least = u32::MAX << order.get();
        let has = |t: Migratetype| self.nonempty[t.index()].load(Relaxed) & at_least != 0;
        BlocksFree {
            ordinary: has(Migratetype::Unmovable)
                || has(Migratetype::Movable)
                || has(Migratetype::Reclaimable),
            cma: has(Migratetype::Cma),
            highatomic: has(Migratetype::HighAtomic),
        }
    }

    fn counts(&self) -> [[u64; 6]; ORDERS] {
        lock(&self.buddy).counts()
    }

    fn set_migratetype(&self, zone: &ZoneState, pfn: u32, to: Migratetype) -> u32 {
        self.with(zone, 0, |buddy| buddy.set_migratetype(zone, pfn, to))
    }

    fn find_block(&self, migratetype: Migratetype) -> Option<u32> {
        let pfn = lock(&self.buddy).first_of(migratetype)?;
        Some(pfn & !(PAGEBLOCK_PAGES - 1))
    }

    fn take_range(&self, zone: &ZoneState, range: Range<u32>) -> bool {
        self.with(zone, 0, |buddy| buddy.take_range(zone, range))
    }

    fn is_free(&self, pfn: u32) -> bool {
        lock(&self.buddy).block_of(pfn).is_some()
    }

    fn bytes(&self) -> usize {
        self.len * Buddy::BYTES_PER_FRAME + std::mem::size_of::<Self>()
    }

    fn check(&self, zone: &ZoneState) -> Result<(), Contradiction> {
        let buddy = lock(&self.buddy);
        debug_assert_eq!(self.start, zone.span.start);
        buddy.check(zone)
    }
}
