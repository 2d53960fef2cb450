//! The parameters and results of a reclaim pass, and the interface to the driver that takes pages
//! out of memory.

use super::Ctx;
use super::r#gen::aging::Aging;
use super::r#gen::memcg_lru::Visits;
use crate::folio::LruType;
use crate::tunables::{Batch, Tunables};
use crate::types::Pfn;

/// Pages that one direct reclaim asks for, and the batch of the classic LRU, unless `reclaim.batch`
/// is less.
pub const SWAP_CLUSTER_MAX: u64 = Batch::MAX;
/// Most pages isolated in one multi-gen batch: twice the classic LRU's. A large folio may exceed
/// the number once.
pub const MIN_LRU_BATCH: u64 = 2 * SWAP_CLUSTER_MAX;
/// Most folios that one multi-gen pass looks at in one hold of the lock.
pub const MAX_LRU_BATCH: u64 = 4096;
/// The priority of the lowest pressure.
pub const DEF_PRIORITY: u8 = 12;

/// Returns the pages that the classic LRU isolates at a time, and that a task asks for, with these
/// switches.
#[must_use]
pub fn batch(tun: &Tunables) -> u64 {
    tun.reclaim.batch.0.clamp(1, SWAP_CLUSTER_MAX)
}

/// Returns the pages that the multi-gen LRU isolates at a time, with these switches.
#[must_use]
pub fn gen_batch(tun: &Tunables) -> u64 {
    2 * batch(tun)
}

/// Returns the pages that a task asks for. At most a batch; in small memories, memory divided by
/// `reclaim.parts` (0: always a batch).
#[must_use]
pub fn task_target(pages: u64, tun: &Tunables) -> u64 {
    let batch = batch(tun);
    pages.checked_div(tun.reclaim.parts).unwrap_or(batch).clamp(1, batch)
}

/// The kind of reclaimer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reclaimer {
    /// The background reclaimer, kswapd.
    Kswapd,
    /// An allocating task (direct reclaim).
    Direct,
    /// A command (proactive reclaim).
    Proactive,
}

/// The data that an evicted folio leaves in its page-table entry, for its refault: 63 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shadow(pub u64);

impl Shadow {
    const MEMCG_BITS: u32 = 16;
    const NODE_BITS: u32 = 6;
    /// Bits of the token: the eviction clock and further data of the LRU.
    pub const TOKEN_BITS: u32 = 63 - 1 - Self::NODE_BITS - Self::MEMCG_BITS;

    /// Packs the fields. The token is truncated.
    #[must_use]
    pub const fn pack(token: u64, memcg: u16, node: u8, workingset: bool) -> Self {
        let token = token & ((1 << Self::TOKEN_BITS) - 1);
        let v = (token << Self::MEMCG_BITS) | memcg as u64;
        let v = (v << Self::NODE_BITS) | (node as u64 & 0x3f);
        Self((v << 1) | workingset as u64)
    }

    /// Returns the part that fits beside a slot number in a page-table entry. The part is the
    /// lowest bits of the token, and whether the folio was in the working set.
    /// [`Lruvec::recall`](super::Lruvec::recall) restores the rest.
    #[must_use]
    pub const fn shorten(self) -> ShortShadow {
        let token = self.token() & ((1 << ShortShadow::TOKEN_BITS) - 1);
        ShortShadow(((token as u32) << 1) | self.workingset() as u32)
    }

    /// Returns the token.
    #[must_use]
    pub const fn token(self) -> u64 {
        self.0 >> (1 + Self::NODE_BITS + Self::MEMCG_BITS)
    }

    /// Returns the memcg that the folio was charged to.
    #[must_use]
    pub const fn memcg(self) -> u16 {
        (self.0 >> (1 + Self::NODE_BITS)) as u16
    }

    /// Returns the node that the folio was on.
    #[must_use]
    pub const fn node(self) -> u8 {
        (self.0 >> 1) as u8 & 0x3f
    }

    /// Whether the folio was in the working set.
    #[must_use]
    pub const fn workingset(self) -> bool {
        self.0 & 1 != 0
    }
}

/// A shortened shadow: 29 bits. The clock in it wraps after 2^25 evictions at the earliest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShortShadow(pub u32);

impl ShortShadow {
    /// Number of bits in a short shadow.
    pub const BITS: u32 = 29;
    const TOKEN_BITS: u32 = Self::BITS - 1;

    /// Returns the full shadow. `now` is the present value of the clock, shifted as in a token. The
    /// clock must not have wrapped since the eviction.
    #[must_use]
    pub(crate) const fn recall(self, now: u64, (memcg, node): (u16, u8)) -> Shadow {
        let behind = now.wrapping_sub(self.token()) & ((1 << Self::TOKEN_BITS) - 1);
        Shadow::pack(now.wrapping_sub(behind), memcg, node, self.0 & 1 != 0)
    }

    /// Returns the lowest bits of the token.
    #[must_use]
    pub(crate) const fn token(self) -> u64 {
        (self.0 >> 1) as u64
    }
}

/// The part of a memcg that reclaim spares.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Protection {
    /// Whether the memcg is below `min`, so that it must not be reclaimed at all.
    pub below_min: bool,
    /// Whether the memcg is below its soft protection.
    pub below_low: bool,
    /// Pages protected in this pass.
    pub pages: u64,
}

impl Protection {
    /// Returns how many of `size` pages are scanned after the protected share is taken off.
    #[must_use]
    pub fn apply(&self, size: u64, tun: &Tunables) -> u64 {
        if self.pages == 0 || size == 0 {
            return size;
        }
        let share = u128::from(size) * u128::from(self.pages) / (u128::from(size) + 1);
        size.saturating_sub(share as u64).max(batch(tun))
    }
}

/// The pages that a pass met, by their state.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ReclaimStat {
    /// Pages taken off the lists to be looked at.
    pub taken: u64,
    /// File pages among those taken.
    pub file_taken: u64,
    /// Dirty file pages, and pages under writeback.
    pub dirty: u64,
    /// Dirty file pages that are not under writeback.
    pub unqueued_dirty: u64,
    /// Pages under writeback that the pass marks to be freed after that.
    pub writeback: u64,
    /// Pages under writeback that were marked for reclaim before.
    pub congested: u64,
    /// Pages among `congested` that kswapd meets while the node is flagged for writeback.
    pub immediate: u64,
}

impl ReclaimStat {
    /// Returns the pages met after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            taken: self.taken - before.taken,
            file_taken: self.file_taken - before.file_taken,
            dirty: self.dirty - before.dirty,
            unqueued_dirty: self.unqueued_dirty - before.unqueued_dirty,
            writeback: self.writeback - before.writeback,
            congested: self.congested - before.congested,
            immediate: self.immediate - before.immediate,
        }
    }
}

/// A reclaim pass: its parameters and results.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The kind of reclaimer.
    pub reclaimer: Reclaimer,
    /// Whether the whole node is short of memory, not one memcg.
    pub root: bool,
    /// Scan priority: `size >> priority` pages of a list are scanned.
    pub priority: u8,
    /// The lists count as `2^lift` times as long. On a machine scaled down, the share at the lowest
    /// pressure would otherwise round to no page.
    pub lift: u8,
    /// Pages to free.
    pub target: u64,
    /// Order of the allocation that needs the memory.
    pub order: u8,
    /// Swappiness, 0..=201.
    pub swappiness: u32,
    /// The highest zone whose pages help.
    pub zone: usize,
    /// Whether dirty pages may be written.
    pub may_write: bool,
    /// Whether mapped pages may be unmapped.
    pub may_unmap: bool,
    /// Whether anonymous pages may be stored.
    pub may_swap: bool,
    /// Protection of this lruvec's memcg.
    pub protection: Protection,
    /// Switches off the preference for file pages that holds when there are many inactive ones.
    pub cache_trim_off: bool,
    /// Whether file pages plus free pages are so few that files are left alone.
    pub file_is_tiny: bool,
    /// Whether active lists are shrunk whatever the balance says (classic).
    pub force_deactivate: bool,
    /// Whether an active list was left alone. A failed run may then be repeated with
    /// `force_deactivate`.
    pub skipped_deactivate: bool,
    /// Whether the node is known to have dirty pages at the old end. kswapd then writes dirty pages
    /// that were marked for reclaim before.
    pub node_dirty: bool,
    /// Whether the node is known to have pages under writeback at the old end. kswapd then counts
    /// those marked for reclaim before as `immediate`.
    pub node_writeback: bool,
    /// Pages met, by their state.
    pub met: ReclaimStat,
    /// Pages freed.
    pub reclaimed: u64,
    /// Pages handed to shrinking.
    pub scanned: u64,
    /// Dirty file pages met that are not under writeback.
    pub unqueued_dirty: u64,
    /// File pages isolated, and dirty ones moved away by sorting.
    pub file_taken: u64,
    pub(crate) walk_ready: bool,
    /// Pages, by type, that could not leave and went back on probation since this priority began.
    pub(crate) put_back: [u64; 2],
    pub(crate) place: Option<ResumePoint>,
    pub(crate) visits: Option<Visits>,
    /// Sums of the classic lists over all memcgs in root reclaim. They balance the types in every
    /// memcg.
    pub(crate) seen: Option<super::classic::Seen>,
}

/// The point in a lruvec at which [`Pageout::pause`] interrupted a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResumePoint {
    /// In the classic lists.
    Classic(super::classic::Under),
    /// In the generations, in an aging or after a batch. K618 keeps the pages scanned; K72 keeps
    /// the pages left to scan and whether to rotate.
    K618(Option<Aging>, u64),
    K72(Option<Aging>, u64, bool),
}

impl Scan {
    /// Creates a pass for `target` pages at the lowest pressure.
    #[must_use]
    pub fn new(reclaimer: Reclaimer, root: bool, target: u64, swappiness: u32) -> Self {
        Self {
            reclaimer,
            root,
            priority: DEF_PRIORITY,
            lift: 0,
            target,
            order: 0,
            swappiness,
            zone: super::ZONES - 1,
            may_write: true,
            may_unmap: true,
            may_swap: true,
            protection: Protection::default(),
            cache_trim_off: false,
            file_is_tiny: false,
            force_deactivate: false,
            skipped_deactivate: false,
            node_dirty: false,
            node_writeback: false,
            met: ReclaimStat::default(),
            reclaimed: 0,
            scanned: 0,
            unqueued_dirty: 0,
            file_taken: 0,
            walk_ready: false,
            put_back: [0; 2],
            place: None,
            visits: None,
            seen: None,
        }
    }

    /// Whether [`Pageout::pause`] interrupted the pass, so that it must be called again to go on.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.place.is_some()
    }

    /// Returns how many of `size` pages this pass scans.
    #[must_use]
    pub fn share_of(&self, size: u64) -> u64 {
        if self.lift >= self.priority {
            return size;
        }
        size >> (self.priority - self.lift)
    }

    /// Returns the swappiness in force.
    #[must_use]
    pub fn swappiness_now(&self) -> u32 {
        if self.may_swap { self.swappiness } else { 0 }
    }
}

/// The result of [`Pageout::evict`] for a folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evicted {
    /// Evicted. The frame is free (or will be) and the folio is on no list.
    Freed,
    /// Taken off the lists by the driver, which later puts it back or reports it as gone
    /// ([`Lruvec::note_evicted`](super::Lruvec::note_evicted)). The pin belongs to the driver.
    Taken,
    /// Under writeback. It stays until [`Lruvec::end_writeback`](super::Lruvec::end_writeback).
    Writing,
    /// Accessed after all, so it joins the young folios.
    Young,
    /// Cannot leave now.
    Busy,
}

/// A pass's report about a batch, for a driver that records it. Counts are in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanEvent {
    /// Folios were isolated from a list.
    Isolated(Isolation),
    /// Folios of an inactive list were shrunk.
    Shrunk(ShrinkReport),
    /// Folios of an active list were scanned (classic).
    Aged(Aged),
}

/// An isolation of folios from a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isolation {
    /// The kind of reclaimer.
    pub reclaimer: Reclaimer,
    /// Node of the list.
    pub node: u8,
    /// Type of the pages.
    pub ty: LruType,
    /// Whether the list is an active one.
    pub active: bool,
    /// The highest zone whose pages help.
    pub zone: usize,
    /// Order of the allocation that needs the memory.
    pub order: u8,
    /// Most pages to look at.
    pub asked: u64,
    /// Pages looked at.
    pub looked: u64,
    /// Pages left on the list, because their zone does not help or a task holds them.
    pub skipped: u64,
    /// Pages isolated.
    pub taken: u64,
}

/// The results for folios isolated from an inactive list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShrinkReport {
    /// The kind of reclaimer.
    pub reclaimer: Reclaimer,
    /// Node of the list.
    pub node: u8,
    /// Type of the pages.
    pub ty: LruType,
    /// Scan priority of the pass.
    pub priority: u8,
    /// Pages looked at when the folios were isolated.
    pub looked: u64,
    /// Pages freed.
    pub freed: u64,
    /// Pages met, by their state.
    pub met: ReclaimStat,
    /// Pages that are activated.
    pub activated: u64,
    /// Pages that stay because they were used.
    pub used: u64,
}

/// The results for folios isolated from an active list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aged {
    /// The kind of reclaimer.
    pub reclaimer: Reclaimer,
    /// Node of the list.
    pub node: u8,
    /// Type of the pages.
    pub ty: LruType,
    /// Scan priority of the pass.
    pub priority: u8,
    /// Pages isolated.
    pub taken: u64,
    /// Pages that stay on the active list.
    pub rotated: u64,
}

/// The driver's part of reclaim: takes folios out of memory.
pub trait Pageout {
    /// Evicts an isolated folio that was not accessed. On [`Evicted::Freed`] the implementation has
    /// removed the mappings, kept `shadow` in their place, and owns the frame.
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, ty: LruType, shadow: Shadow) -> Evicted;

    /// Begins to write a dirty file folio that scans have met again and again. Returns true if the
    /// write is under way.
    fn write_file(&mut self, cx: &Ctx, pfn: Pfn) -> bool {
        let _ = (cx, pfn);
        false
    }

    /// Starts the writeback of dirty file pages, because some have reached the old end.
    fn wake_flusher(&mut self) {}

    /// Receives the reports of each batch, with no lock held. The report of the isolation comes
    /// before any folio is taken out, the report of the results after.
    fn note(&mut self, told: &ScanEvent) {
        let _ = told;
    }

    /// Whether root reclaim may stop although its target is not met (every zone is balanced again).
    fn enough(&mut self) -> bool {
        false
    }

    /// Whether to interrupt the pass. The pass asks after each batch, and after each address space
    /// that an aging walked, with no lock held. A later call with this [`Scan`] continues the pass.
    /// For drivers in whose virtual time a pass takes time.
    fn pause(&mut self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::r#gen::tests::Rig;
    use super::*;
    use crate::tunables::LruKind;

    #[test]
    fn a_shadow_unpacks_to_the_packed_values() {
        let s = Shadow::pack(u64::MAX, 0xbeef, 63, true);
        assert_eq!((s.memcg(), s.node(), s.workingset()), (0xbeef, 63, true));
        assert_eq!(s.token(), (1 << Shadow::TOKEN_BITS) - 1, "the token is truncated");
        assert!(s.0 < 1 << 63);
        assert_eq!(Shadow::TOKEN_BITS, 40);
    }

    /// Counts the folios taken out between two batches.
    #[derive(Default)]
    struct Batches(Vec<u64>, u64);

    impl Pageout for Batches {
        fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, shadow: Shadow) -> Evicted {
            cx.spaces.unmap(cx.folios, pfn, shadow.0);
            // One pin of the mapping and one of reclaim.
            cx.folios.unpin(pfn);
            cx.folios.unpin(pfn);
            self.1 += 1;
            Evicted::Freed
        }

        fn pause(&mut self) -> bool {
            self.0.push(std::mem::take(&mut self.1));
            false
        }
    }

    #[test]
    fn both_lrus_isolate_batches_of_the_configured_size() {
        for (kind, preset) in [(LruKind::Classic, "classic"), (LruKind::Gen, "k72")] {
            for batch in [32, 4] {
                let mut tun = Tunables::preset(preset).unwrap();
                (tun.classic.fold, tun.reclaim.batch) = (0, Batch(batch));
                let mut rig = Rig::of_kind(1024, tun, kind);
                while rig.fill(LruType::Anon).is_some() {}
                let mut out = Batches::default();
                for _ in 0..40 {
                    let mut sc = Scan::new(Reclaimer::Direct, false, 1024, 60);
                    sc.priority = 1;
                    rig.v.shrink(&rig.cx(), &mut sc, &mut out);
                    out.1 = 0;
                }
                let most = out.0.iter().max().copied().unwrap_or(0);
                assert_eq!(most, if kind == LruKind::Gen { 2 * batch } else { batch }, "{preset}");
            }
        }
    }

    #[test]
    fn the_target_of_a_task_is_a_share_of_a_small_memory() {
        let mut tun = Tunables::default();
        tun.reclaim.parts = 512;
        assert_eq!([1 << 20, 4096, 10].map(|pages| task_target(pages, &tun)), [32, 8, 1]);
        tun.reclaim.batch = Batch(4);
        assert_eq!([1 << 20, 4096, 10].map(|pages| task_target(pages, &tun)), [4, 4, 1]);
        tun.reclaim.parts = 0;
        assert_eq!(task_target(10, &tun), 4);
    }

    #[test]
    fn a_short_shadow_is_recalled_across_the_end_of_its_clock() {
        for (then, now) in
            [(5u64, 5u64), (5, 1_000), ((1 << 28) - 3, (1 << 28) + 7), (1 << 35, (1 << 35) + 9)]
        {
            let shadow = Shadow::pack(then, 7, 0, true);
            assert_eq!(shadow.shorten().recall(now, (7, 0)), shadow, "{then} seen at {now}");
            assert!(shadow.shorten().0 < 1 << ShortShadow::BITS);
        }
    }

    #[test]
    fn a_small_machine_scans_as_large_a_share_as_a_large_one() {
        let mut sc = Scan::new(Reclaimer::Direct, true, 32, 60);
        assert_eq!((sc.share_of(1 << 18), sc.share_of(1 << 11)), (64, 0));
        sc.lift = 4;
        assert_eq!((sc.share_of(1 << 14), sc.share_of(1 << 11)), (64, 8));
        sc.priority = 2;
        assert_eq!(sc.share_of(1000), 1000, "never more than there are");
    }

    #[test]
    fn protection_takes_its_share_but_leaves_a_batch() {
        let p = |pages| Protection { pages, ..Protection::default() };
        let mut tun = Tunables::default();
        assert_eq!(p(0).apply(1000, &tun), 1000);
        assert_eq!(p(500).apply(1000, &tun), 501);
        assert_eq!(p(1000).apply(1000, &tun), 32);
        assert_eq!(p(1000).apply(0, &tun), 0);
        tun.reclaim.batch = Batch(4);
        assert_eq!(p(1000).apply(1000, &tun), 4);
    }
}
