//! One zone's page set on one CPU: free blocks that are allocated and freed without the zone's
//! lock.
//!
//! Blocks are popped and pushed at the hot end of a [`List`]. A refill puts blocks at the cold end
//! in the order in which they are popped, so a consumer gets them in ascending order. A drain takes
//! the coldest blocks. No frame's memory is accessed.
//!
//! A caller that uses a set holds the lock of its CPU; the fields are plain memory otherwise.
//!
//! Sizes follow one of two rules. `Kernel`: one `high` for all lists, tuned as the kernel does.
//! `Fixed`: a limit per list, so that a push is one comparison and a full set drains in
//! microseconds.

use super::kinds::{Migratetype, Order, PAGEBLOCK_ORDER};
use super::list::List;
use super::sync::Owned32;
use super::watermark::PcpSize;

/// Number of lists in a set: orders 0 to 3 of three types, and huge pages, movable or not.
pub const LISTS: usize = 14;
const HUGE_LIST: usize = 12;
const ORDERS_MAX: u8 = 3;
/// A bulk operation moves at most `batch << SCALE_MAX` pages.
const SCALE_MAX: u32 = 5;
/// Most blocks in the stack of a list by the kernel's rule. Colder blocks are in the ring.
const KERNEL_HOT: u32 = 512;
/// Ticks after which an idle set of a remote node is drained.
const EXPIRE_TICKS: u32 = 3;

/// Number of lists in a set including empty ones, so that an index in a half-byte needs no check.
pub(super) const LISTS_ALL: usize = 16;
/// Index of lists for a type that sets do not hold.
pub(super) const NO_TYPE: usize = LISTS_ALL - 1;
/// The list by the low two bits of the index of lists, and by order.
const LIST_OF: [[u8; LISTS_ALL]; 4] = {
    let mut table = [[LISTS as u8; LISTS_ALL]; 4];
    let mut t = 0;
    while t < 3 {
        let mut order = 0;
        while order <= ORDERS_MAX as usize {
            table[t][order] = (order * 3 + t) as u8;
            order += 1;
        }
        table[t][PAGEBLOCK_ORDER as usize] = if t == 1 { HUGE_LIST } else { HUGE_LIST + 1 } as u8;
        t += 1;
    }
    table
};

/// Returns the list for a block, if sets hold such blocks.
#[inline(always)]
#[must_use]
pub(super) fn list_of(order: Order, migratetype: Migratetype) -> Option<usize> {
    let list = list_index(order, migratetype.pcp_list().unwrap_or(NO_TYPE));
    (list < LISTS).then_some(list)
}

/// Returns the list for a block of a type with this index of lists ([`NO_TYPE`] for none). If sets
/// hold no such blocks, the list is one beyond [`LISTS`], which holds nothing.
#[inline(always)]
#[must_use]
pub(super) fn list_index(order: Order, t: usize) -> usize {
    if order.get() == 0 {
        return t & (LISTS_ALL - 1);
    }
    LIST_OF[t & 3][order.get() as usize & (LISTS_ALL - 1)] as usize & (LISTS_ALL - 1)
}

/// Returns the order of a list's blocks.
#[must_use]
pub(super) fn order_of(list: usize) -> Order {
    let order = if list >= HUGE_LIST { PAGEBLOCK_ORDER } else { (list / 3) as u8 };
    Order::new(order).unwrap_or(Order::ZERO)
}

/// The rule that sizes per-CPU sets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PcpRule {
    /// The kernel's automatic tuning.
    Kernel,
    /// A limit of pages per list, and of huge pages. Refills and drains are in units of `batch` and
    /// `huge_batch`.
    Fixed {
        /// Most pages in a list of small blocks.
        high: u32,
        /// Pages per refill; a drain takes twice as many.
        batch: u32,
        /// Most huge pages in a list.
        huge_high: u32,
        /// Huge pages per refill or drain.
        huge_batch: u32,
    },
}

impl PcpRule {
    /// The rule that measured best.
    pub const FAST: Self = Self::Fixed { high: 512, batch: 128, huge_high: 128, huge_batch: 64 };
}

/// The page set of one zone on one CPU.
#[derive(Debug)]
pub(super) struct Pcp {
    pub(super) lists: [List; LISTS_ALL],
    rule: PcpRule,
    batch: u32,
    high_min: u32,
    high_max: u32,
    high: Owned32,
    free_count: Owned32,
    pops_at_free: Owned32,
    alloc_factor: Owned32,
    prev_free_high: Owned32,
    expire: Owned32,
}

/// The flags of a zone that matter for its sets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    pub below_high: bool,
    pub reclaim_active: bool,
}

impl Pcp {
    /// Creates a set. `pages_max` is the number of pages of the zone that one CPU may hold,
    /// whatever the rule says.
    pub(super) fn new(rule: PcpRule, size: PcpSize, pages_max: u32) -> Self {
        let list = |i: usize| {
            let order = order_of(i);
            if i >= LISTS {
                return List::new(0, 0);
            }
            match rule {
                PcpRule::Kernel => {
                    let most = (size.high_max + 2 * (size.batch << SCALE_MAX)) >> order.get();
                    List::new(most.clamp(4, KERNEL_HOT), most.max(4))
                }
                PcpRule::Fixed { high, huge_high, .. } => {
                    let most = if order == Order::HUGE { huge_high } else { high >> order.get() };
                    List::new(most.min(pages_max >> order.get()), 0)
                }
            }
        };
        Self {
            lists: std::array::from_fn(list),
            rule,
            batch: size.batch,
            high_min: size.high_min,
            high_max: size.high_max,
            high: Owned32::new(size.high_min),
            free_count: Owned32::new(0),
            pops_at_free: Owned32::new(0),
            alloc_factor: Owned32::new(0),
            prev_free_high: Owned32::new(0),
            expire: Owned32::new(0),
        }
    }

    /// Returns the number of pages in the set.
    pub(super) fn count(&self) -> u32 {
        self.lists.iter().enumerate().map(|(i, l)| l.len() << order_of(i).get()).sum()
    }

    pub(super) fn high(&self) -> u32 {
        match self.rule {
            PcpRule::Kernel => self.high.get(),
            PcpRule::Fixed { .. } => self.lists.iter().map(List::capacity).max().unwrap_or(0),
        }
    }

    pub(super) fn size(&self) -> PcpSize {
        match self.rule {
            PcpRule::Kernel => {
                PcpSize { batch: self.batch, high_min: self.high_min, high_max: self.high_max }
            }
            PcpRule::Fixed { batch, .. } => {
                PcpSize { batch, high_min: self.high(), high_max: self.high() }
            }
        }
    }

    /// Returns the totals since creation: blocks popped, pages popped, pages pushed.
    pub(super) fn traffic(&self) -> (u64, u64, u64) {
        self.lists.iter().enumerate().fold((0, 0, 0), |(n, out, back), (i, l)| {
            let order = order_of(i).get();
            (n + l.pops(), out + (l.pops() << order), back + (l.pushes() << order))
        })
    }

    /// Returns the pages freed recently. Every allocation since the last count halves the number.
    fn freed_lately(&self) -> u32 {
        let since = self.pops_now().wrapping_sub(self.pops_at_free.get());
        self.free_count.get().checked_shr(since).unwrap_or(0)
    }

    fn set_freed_lately(&self, pages: u32) {
        self.free_count.set(pages);
        self.pops_at_free.set(self.pops_now());
    }

    fn pops_now(&self) -> u32 {
        self.lists.iter().fold(0, |sum, l| sum.wrapping_add(l.pops() as u32))
    }

    /// Returns the number of blocks to fetch for an empty list.
    pub(super) fn refill_count(&self, list: usize, pressure: Pressure) -> u32 {
        let order = order_of(list);
        let n = match self.rule {
            PcpRule::Kernel => self.kernel_refill(order, pressure.below_high),
            PcpRule::Fixed { batch, huge_batch, .. } => {
                let n = if order == Order::HUGE { huge_batch } else { batch >> order.get() };
                if pressure.below_high { n / 4 } else { n }
            }
        };
        n.max(1).min(self.lists[list].room())
    }

    fn kernel_refill(&self, order: Order, below_high: bool) -> u32 {
        let mut high = self.high.get();
        if high < self.batch {
            return 1;
        }
        let factor = self.alloc_factor.get();
        let mut b = if order == Order::ZERO { self.batch << factor } else { self.batch };
        if self.high_min != self.high_max && !below_high {
            high = (high + b).min(self.high_max);
            self.high.set(high);
        }
        if order == Order::ZERO {
            let cap = high.saturating_sub(self.count()).saturating_sub(self.batch).max(self.batch);
            if b <= cap && factor < SCALE_MAX {
                self.alloc_factor.set(factor + 1);
            }
            b = b.min(cap);
        }
        if b > 1 { (b >> order.get()).max(2) } else { b }
    }

    /// Whether a push needs nothing but room. The kernel's rule inspects every push instead.
    #[inline(always)]
    pub(super) fn pushes_freely(&self) -> bool {
        self.rule != PcpRule::Kernel
    }

    /// Returns the number of pages to drain before a push on `list`.
    pub(super) fn drain_before_push(&self, list: usize, pressure: Pressure) -> u32 {
        let (order, l) = (order_of(list), &self.lists[list]);
        let n = match self.rule {
            PcpRule::Kernel if l.room() > 0 => 0,
            PcpRule::Kernel => l.len() / 2 + 1,
            PcpRule::Fixed { batch, huge_batch, .. } => {
                let low = pressure.below_high || pressure.reclaim_active;
                let limit = if low { (l.capacity() / 4).max(1) } else { l.capacity() };
                if l.len() < limit {
                    return 0;
                }
                let n = if order == Order::HUGE { huge_batch } else { (2 * batch) >> order.get() };
                n.max(l.len() - limit + 1).min(l.len())
            }
        };
        n << order.get()
    }

    /// Pushes a block on `list`, which has room. Returns the number of pages to drain now.
    pub(super) fn push_by_rule(&self, list: usize, pfn: u32, pressure: Pressure) -> u32 {
        let pushed = self.lists[list].push_any(pfn);
        debug_assert!(pushed, "room was made before");
        match self.rule {
            PcpRule::Kernel => self.kernel_drain(order_of(list), pressure),
            PcpRule::Fixed { .. } => 0,
        }
    }

    fn kernel_drain(&self, order: Order, pressure: Pressure) -> u32 {
        let batch = self.batch;
        self.alloc_factor.set(self.alloc_factor.get() >> 1);
        let count = self.count();
        let mut free_high = false;
        if (1..=ORDERS_MAX).contains(&order.get()) {
            free_high =
                self.freed_lately() >= batch + self.high_min / 2 && self.prev_free_high.get() != 0;
            self.prev_free_high.set(1);
        } else {
            self.prev_free_high.set(0);
        }
        let most = batch << SCALE_MAX;
        self.set_freed_lately((self.freed_lately() + order.pages()).min(most));
        let high = self.kernel_high(count, free_high, pressure);
        if count < high {
            return 0;
        }
        if free_high {
            count.min(most)
        } else if high < batch {
            1
        } else {
            let n = self.freed_lately();
            n.min((high - batch).max(batch)).max(batch)
        }
    }

    /// Returns the number of pages from which on a free drains.
    fn kernel_high(&self, count: u32, free_high: bool, pressure: Pressure) -> u32 {
        let (high, batch) = (self.high.get(), self.batch);
        let less = |by: u32| high.saturating_sub(by).max(self.high_min);
        if high == 0 {
            return 0;
        }
        if free_high {
            self.high.set(less(batch << SCALE_MAX));
            return 0;
        }
        let free_count = self.freed_lately();
        if pressure.reclaim_active {
            self.high.set(less(free_count.max(batch)));
            return (batch << 2).min(high);
        }
        if self.high_min == self.high_max {
            return high;
        }
        if pressure.below_high {
            self.high.set(less(free_count.max(batch)));
            return count.max(self.high_min);
        }
        if count >= high {
            let need = free_count + batch;
            self.high.set(need.max(high).clamp(self.high_min, self.high_max));
        }
        high
    }

    /// Takes up to `pages` of the coldest blocks, from `list` on round-robin. Empties each list
    /// before the next. `give` gets each portion with its order.
    pub(super) fn drain(
        &self,
        list: usize,
        mut pages: u32,
        scratch: &mut [u32],
        mut give: impl FnMut(Order, &mut [u32]),
    ) {
        let mut at = list;
        for _ in 0..LISTS {
            if pages == 0 {
                break;
            }
            let order = order_of(at);
            while pages > 0 && self.lists[at].len() > 0 {
                let blocks = (pages.div_ceil(order.pages()) as usize).min(scratch.len());
                let n = self.lists[at].take_cold(&mut scratch[..blocks]);
                give(order, &mut scratch[..n]);
                pages = pages.saturating_sub((n as u32) << order.get());
            }
            at = (at + 1) % LISTS;
        }
    }

    /// Lowers `high` once a second. Returns the number of pages to drain.
    pub(super) fn decay(&self) -> u32 {
        if self.rule != PcpRule::Kernel {
            return 0;
        }
        let high = self.high.get();
        if high > self.high_min {
            let step = self.count().saturating_sub(self.batch << SCALE_MAX);
            let new = step.max(high - high / 8).max(self.high_min);
            self.high.set(new);
        }
        self.count().saturating_sub(self.high.get())
    }

    /// Counts a second of idle time of a remote node's set. Returns true when the set has been idle
    /// long enough to be drained.
    pub(super) fn expire_tick(&self) -> bool {
        if self.count() == 0 {
            self.expire.set(0);
            return false;
        }
        let left = self.expire.get();
        if left == 0 {
            self.expire.set(EXPIRE_TICKS);
            return false;
        }
        self.expire.set(left - 1);
        left == 1
    }

    /// Restarts the idle time, because the set was used.
    pub(super) fn touch(&self) {
        self.expire.set(EXPIRE_TICKS);
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.lists.iter().map(List::bytes).sum::<usize>()
    }
}
