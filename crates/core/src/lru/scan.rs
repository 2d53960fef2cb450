//! What a reclaim pass is asked for, and the one seam to whoever takes pages out of memory.

use super::Ctx;
use super::r#gen::aging::Aging;
use super::r#gen::memcg_lru::Visits;
use crate::folio::LruType;
use crate::tunables::{Batch, Tunables};
use crate::types::Pfn;

/// Pages one direct reclaim asks for, and the batch of the classic LRU, unless `reclaim.batch` is less.
pub const SWAP_CLUSTER_MAX: u64 = Batch::MAX;
/// Pages one multi-gen batch isolates at most (a large folio may exceed it once): two of the classic LRU's.
pub const MIN_LRU_BATCH: u64 = 2 * SWAP_CLUSTER_MAX;
/// Folios one multi-gen pass looks at under one lock hold.
pub const MAX_LRU_BATCH: u64 = 4096;
/// The gentlest priority.
pub const DEF_PRIORITY: u8 = 12;

/// Pages the classic LRU takes off a list at a time here, and a task asks for.
#[must_use]
pub fn batch(tun: &Tunables) -> u64 {
    tun.reclaim.batch.0.clamp(1, SWAP_CLUSTER_MAX)
}

/// Pages the multi-gen LRU takes at a time here.
#[must_use]
pub fn gen_batch(tun: &Tunables) -> u64 {
    2 * batch(tun)
}

/// Pages a task asks for: at most a batch, and for small memories one of `reclaim.parts` parts of it (0:
/// always a batch).
#[must_use]
pub fn task_target(pages: u64, tun: &Tunables) -> u64 {
    let batch = batch(tun);
    pages.checked_div(tun.reclaim.parts).unwrap_or(batch).clamp(1, batch)
}

/// Who reclaims.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// The background reclaimer.
    Kswapd,
    /// An allocating task.
    Direct,
    /// A command.
    Proactive,
}

/// What is left of a folio after it left memory: 63 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shadow(pub u64);

impl Shadow {
    const MEMCG_BITS: u32 = 16;
    const NODE_BITS: u32 = 6;
    /// Bits of the token: the eviction clock and what the LRU wants to know.
    pub const TOKEN_BITS: u32 = 63 - 1 - Self::NODE_BITS - Self::MEMCG_BITS;

    /// Packs; the token is truncated.
    #[must_use]
    pub const fn pack(token: u64, memcg: u16, node: u8, workingset: bool) -> Self {
        let token = token & ((1 << Self::TOKEN_BITS) - 1);
        let v = (token << Self::MEMCG_BITS) | memcg as u64;
        let v = (v << Self::NODE_BITS) | (node as u64 & 0x3f);
        Self((v << 1) | workingset as u64)
    }

    /// What fits beside a slot number in a page-table entry: the lowest bits of the token, and whether
    /// it was in the working set. [`Lruvec::recall`](super::Lruvec::recall) restores the rest.
    #[must_use]
    pub const fn shorten(self) -> ShortShadow {
        let token = self.token() & ((1 << ShortShadow::TOKEN_BITS) - 1);
        ShortShadow(((token as u32) << 1) | self.workingset() as u32)
    }

    /// The token.
    #[must_use]
    pub const fn token(self) -> u64 {
        self.0 >> (1 + Self::NODE_BITS + Self::MEMCG_BITS)
    }

    /// The memcg the folio was charged to.
    #[must_use]
    pub const fn memcg(self) -> u16 {
        (self.0 >> (1 + Self::NODE_BITS)) as u16
    }

    /// The node it was on.
    #[must_use]
    pub const fn node(self) -> u8 {
        (self.0 >> 1) as u8 & 0x3f
    }

    /// Whether it had been in the working set.
    #[must_use]
    pub const fn workingset(self) -> bool {
        self.0 & 1 != 0
    }
}

/// A shadow cut short: 29 bits. Its clock runs over after some ten million evictions at the earliest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ShortShadow(pub u32);

impl ShortShadow {
    /// Bits it has.
    pub const BITS: u32 = 29;
    const TOKEN_BITS: u32 = Self::BITS - 1;

    /// The shadow it was, if the clock of its kind, in the place it has in a token, has gone on to
    /// `now` since and not run over.
    #[must_use]
    pub(crate) const fn recall(self, now: u64, (memcg, node): (u16, u8)) -> Shadow {
        let behind = now.wrapping_sub(self.token()) & ((1 << Self::TOKEN_BITS) - 1);
        Shadow::pack(now.wrapping_sub(behind), memcg, node, self.0 & 1 != 0)
    }

    /// The lowest bits of the token.
    #[must_use]
    pub(crate) const fn token(self) -> u64 {
        (self.0 >> 1) as u64
    }
}

/// How much of a memcg is spared.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Protection {
    /// Not to be reclaimed at all.
    pub below_min: bool,
    /// Below its soft protection.
    pub below_low: bool,
    /// Pages protected in this pass.
    pub pages: u64,
}

impl Protection {
    /// How many of `size` pages are scanned once the protected share is taken out.
    #[must_use]
    pub fn apply(&self, size: u64, tun: &Tunables) -> u64 {
        if self.pages == 0 || size == 0 {
            return size;
        }
        let share = u128::from(size) * u128::from(self.pages) / (u128::from(size) + 1);
        size.saturating_sub(share as u64).max(batch(tun))
    }
}

/// What a pass met, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Met {
    /// Taken off the lists to be looked at.
    pub taken: u64,
    /// Of these, of files.
    pub file_taken: u64,
    /// Dirty, or being written.
    pub dirty: u64,
    /// Dirty file pages that nobody was writing.
    pub unqueued_dirty: u64,
    /// Being written, and marked to be freed after that.
    pub writeback: u64,
    /// Being written, and met so before.
    pub congested: u64,
    /// Being written, met so before, and the node knows of the trouble.
    pub immediate: u64,
}

impl Met {
    /// What was met after `before`.
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

/// A reclaim pass: what is asked, and what came of it.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Who asks.
    pub who: Who,
    /// The whole node is short, not one memcg.
    pub root: bool,
    /// Lists are scanned by `size >> priority`.
    pub priority: u8,
    /// ... as if they were 2^lift times as long: a machine scaled down to so few pages that the
    /// gentlest share of them is none is scanned like one that is not.
    pub lift: u8,
    /// Pages wanted.
    pub target: u64,
    /// The order of the allocation behind it.
    pub order: u8,
    /// 0..=201.
    pub swappiness: u32,
    /// The highest zone that helps.
    pub zone: usize,
    /// Dirty pages may be written.
    pub may_write: bool,
    /// Mapped pages may be unmapped.
    pub may_unmap: bool,
    /// Anonymous pages may be stored.
    pub may_swap: bool,
    /// How much of this lruvec is spared.
    pub protection: Protection,
    /// Files are not preferred merely because there are many cold ones.
    pub cache_trim_off: bool,
    /// File pages plus free pages are so few that files are left alone.
    pub file_is_tiny: bool,
    /// Active lists are shrunk whatever the balance says (classic).
    pub force_deactivate: bool,
    /// An active list was left alone: a failed run may be repeated with `force_deactivate`.
    pub skipped_deactivate: bool,
    /// The node is known to have dirty pages at the old end: write those met again.
    pub node_dirty: bool,
    /// The node is known to have pages under write-out at the old end: count those met again.
    pub node_writeback: bool,
    /// What was met.
    pub met: Met,
    /// Pages freed.
    pub reclaimed: u64,
    /// Pages handed to shrinking.
    pub scanned: u64,
    /// Dirty file pages met that nobody was writing.
    pub unqueued_dirty: u64,
    /// File pages isolated, and dirty ones sorted away.
    pub file_taken: u64,
    pub(crate) walk_ready: bool,
    /// Pages that could not go and went back on probation since this priority began, by type.
    pub(crate) put_back: [u64; 2],
    pub(crate) place: Option<Place>,
    pub(crate) visits: Option<Visits>,
    /// Root reclaim of classic lists: the sums over all memcgs, by which each of them is balanced.
    pub(crate) seen: Option<super::classic::Seen>,
}

/// Where in a lruvec a pass stopped that [`Pageout::pause`] interrupted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Classic lists.
    Classic(super::classic::Under),
    /// Generations, in an aging or after a batch: pages scanned so far (K618), or left to scan and whether to rotate
    /// (K72).
    K618(Option<Aging>, u64),
    K72(Option<Aging>, u64, bool),
}

impl Scan {
    /// A pass for `target` pages at the gentlest priority.
    #[must_use]
    pub fn new(who: Who, root: bool, target: u64, swappiness: u32) -> Self {
        Self {
            who,
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
            met: Met::default(),
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

    /// Whether the pass was interrupted by [`Pageout::pause`] and has to be called again to go on.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.place.is_some()
    }

    /// How many of `size` pages this pass scans.
    #[must_use]
    pub fn share_of(&self, size: u64) -> u64 {
        if self.lift >= self.priority {
            return size;
        }
        size >> (self.priority - self.lift)
    }

    /// The swappiness in force.
    #[must_use]
    pub fn swappiness_now(&self) -> u32 {
        if self.may_swap { self.swappiness } else { 0 }
    }
}

/// What became of a folio handed to [`Pageout::evict`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evicted {
    /// Gone; its frame is free (or will be) and the lists have forgotten it.
    Freed,
    /// Off the lists for as long as it takes: whoever took it puts it back on them, or says that it is
    /// gone ([`Lruvec::note_evicted`](super::Lruvec::note_evicted)). The pin is the taker's.
    Taken,
    /// Being written; it stays until [`Lruvec::end_writeback`](super::Lruvec::end_writeback).
    Writing,
    /// Touched after all: among the young with it.
    Young,
    /// Cannot go now.
    Busy,
}

/// What a pass says of a batch, for who keeps a record of it. Counts are in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// Folios were taken off a list.
    Isolated(Isolation),
    /// Those of an inactive list were looked at.
    Shrunk(Yield),
    /// Those of an active list were looked at (classic).
    Aged(Aged),
}

/// Folios taken off a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Isolation {
    /// For whom.
    pub who: Who,
    /// The list's node.
    pub node: u8,
    /// Of which pages it is.
    pub ty: LruType,
    /// Whether it is an active one.
    pub active: bool,
    /// The highest zone that helps.
    pub zone: usize,
    /// The order of the allocation behind it.
    pub order: u8,
    /// Pages to look at, at most.
    pub asked: u64,
    /// Pages looked at.
    pub looked: u64,
    /// Pages left there, since their zone does not help or somebody holds them.
    pub skipped: u64,
    /// Pages taken.
    pub taken: u64,
}

/// What became of folios taken off an inactive list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Yield {
    /// For whom.
    pub who: Who,
    /// The list's node.
    pub node: u8,
    /// Of which pages it is.
    pub ty: LruType,
    /// How hard it was tried.
    pub priority: u8,
    /// Pages looked at when they were taken.
    pub looked: u64,
    /// Pages freed.
    pub freed: u64,
    /// What was met.
    pub met: Met,
    /// Pages that go among the young.
    pub activated: u64,
    /// Pages that stay since they were used.
    pub used: u64,
}

/// What became of folios taken off an active list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aged {
    /// For whom.
    pub who: Who,
    /// The list's node.
    pub node: u8,
    /// Of which pages it is.
    pub ty: LruType,
    /// How hard it was tried.
    pub priority: u8,
    /// Pages taken.
    pub taken: u64,
    /// Pages that go round once more.
    pub rotated: u64,
}

/// Takes folios out of memory.
pub trait Pageout {
    /// Takes out an isolated folio nobody has touched. On [`Evicted::Freed`] the implementation has
    /// removed the mappings, kept `shadow` where the page was, and owns the frame.
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, ty: LruType, shadow: Shadow) -> Evicted;

    /// Begins to write a dirty file folio that was met again and again. True if its write is under way.
    fn write_file(&mut self, cx: &Ctx, pfn: Pfn) -> bool {
        let _ = (cx, pfn);
        false
    }

    /// Dirty file pages have reached the old end: have them written.
    fn wake_flusher(&mut self) {}

    /// Told of each batch, with no lock held: of its isolation before any of it is taken out, and of the rest after.
    fn note(&mut self, told: &Told) {
        let _ = told;
    }

    /// Root reclaim may stop although its target is not met (every zone is fine again).
    fn enough(&mut self) -> bool {
        false
    }

    /// Asked after each batch and each address space that an aging walked, with no lock held: true interrupts the pass, which goes on where it
    /// was when it is called again with the same [`Scan`]. For drivers in whose time a pass is not one
    /// moment.
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
    fn a_shadow_gives_back_what_was_packed() {
        let s = Shadow::pack(u64::MAX, 0xbeef, 63, true);
        assert_eq!((s.memcg(), s.node(), s.workingset()), (0xbeef, 63, true));
        assert_eq!(s.token(), (1 << Shadow::TOKEN_BITS) - 1, "the token is truncated");
        assert!(s.0 < 1 << 63);
        assert_eq!(Shadow::TOKEN_BITS, 40);
    }

    /// Counts what is taken out between two batches.
    #[derive(Default)]
    struct Batches(Vec<u64>, u64);

    impl Pageout for Batches {
        fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, shadow: Shadow) -> Evicted {
            cx.spaces.unmap(cx.folios, pfn, shadow.0);
            // The mapping's and reclaim's.
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
    fn both_lrus_take_as_many_at_a_time_as_they_are_told() {
        for (kind, preset) in [(LruKind::Classic, "classic"), (LruKind::Gen, "k72")] {
            for batch in [32, 4] {
                let mut tun = Tunables::preset(preset).unwrap();
                (tun.classic.fold, tun.reclaim.batch) = (0, Batch(batch));
                let mut rig = Rig::of_kind(1024, tun, kind);
                while rig.fill(LruType::Anon).is_some() {}
                let mut out = Batches::default();
                for _ in 0..40 {
                    let mut sc = Scan::new(Who::Direct, false, 1024, 60);
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
    fn the_target_is_a_part_of_small_memories() {
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
        let mut sc = Scan::new(Who::Direct, true, 32, 60);
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
