//! Refault feedback: decides which tiers to protect and which type to scan.
//!
//! Owns, for each type and tier, the numbers of evicted and refaulted pages. They exist for the
//! current oldest generation, and as a halving average of the past. The controller has a
//! proportional and an integral term, but no derivative term.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::super::scan::MIN_LRU_BATCH;
use super::super::{Ctx, Lruvec, Shadow};
use super::probation;
use crate::folio::{LruType, MAX_NR_GENS, MAX_NR_TIERS, Word, tier_of};
use crate::observe::vmstat::Event;
use crate::tunables::{Admission, Placement, RefaultDistance};
use crate::types::Pfn;

type PerTier = [[AtomicU64; MAX_NR_TIERS]; 2];

/// Counts of evictions and refaults, by type and tier.
#[derive(Debug, Default)]
pub struct Tiers {
    pub(crate) avg_refaulted: PerTier,
    pub(crate) avg_total: PerTier,
    /// Protected pages, by history slot; only slot 0 is used unless statistics are kept
    /// (`gen.stats`).
    pub(crate) protected: [PerTier; 4],
    pub(crate) evicted: [PerTier; 4],
    pub(crate) refaulted: [PerTier; 4],
}

/// A measured refault rate and its weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rate {
    pub refaulted: u64,
    pub total: u64,
    pub gain: u64,
}

/// Whether `pv` refaults no more than `sp`, both weighted by their gains, or hardly at all.
pub(super) fn no_worse(sp: Rate, pv: Rate) -> bool {
    let w = |a: u64, b: u64, c: u64| (u128::from(a) * u128::from(b)).saturating_mul(c.into());
    pv.refaulted < MIN_LRU_BATCH
        || w(pv.refaulted, sp.total.saturating_add(MIN_LRU_BATCH), sp.gain)
            <= w(sp.refaulted.saturating_add(1), pv.total, pv.gain)
}

/// Returns the history slot of a generation.
pub(super) fn hist(cx: &Ctx, seq: u64) -> usize {
    if cx.tun.mglru.stats { (seq % 4) as usize } else { 0 }
}

impl Tiers {
    /// Returns the refaults of a tier as the controller counts them: the recent ones plus the
    /// halving average.
    #[must_use]
    pub fn refaults(&self, ty: LruType, tier: usize) -> u64 {
        let late = self.refaulted.iter().map(|hist| hist[ty.index()][tier].load(Relaxed));
        late.sum::<u64>() + self.avg_refaulted[ty.index()][tier].load(Relaxed)
    }

    fn rate(&self, hist: usize, ty: usize, tiers: std::ops::Range<usize>, gain: u64) -> Rate {
        let mut rate = Rate { refaulted: 0, total: 0, gain };
        for t in tiers {
            rate.refaulted +=
                self.avg_refaulted[ty][t].load(Relaxed) + self.refaulted[hist][ty][t].load(Relaxed);
            rate.total += self.avg_total[ty][t].load(Relaxed)
                + self.protected[hist][ty][t].load(Relaxed)
                + self.evicted[hist][ty][t].load(Relaxed);
        }
        rate
    }

    /// Adds the counters of a type's oldest generation to the averages, because that generation
    /// ends.
    pub(super) fn carry_over(&self, cx: &Ctx, ty: LruType, seq: u64) {
        let (h, ty) = (hist(cx, seq), ty.index());
        for t in 0..MAX_NR_TIERS {
            let r = self.rate(h, ty, t..t + 1, 0);
            self.avg_refaulted[ty][t].store(r.refaulted / 2, Relaxed);
            self.avg_total[ty][t].store(r.total / 2, Relaxed);
            if !cx.tun.mglru.stats {
                self.clear(h, ty, t);
            }
        }
    }

    fn clear(&self, h: usize, ty: usize, t: usize) {
        self.refaulted[h][ty][t].store(0, Relaxed);
        self.evicted[h][ty][t].store(0, Relaxed);
        self.protected[h][ty][t].store(0, Relaxed);
    }

    /// Clears the history slot that a new youngest generation takes over.
    pub(super) fn begin(&self, cx: &Ctx, seq: u64) {
        if cx.tun.mglru.stats {
            for ty in 0..2 {
                for t in 0..MAX_NR_TIERS {
                    self.clear(hist(cx, seq), ty, t);
                }
            }
        }
    }
}

/// Returns the tier above which folios are protected.
pub(super) fn tier_limit(v: &Lruvec, cx: &Ctx, ty: LruType) -> usize {
    if !cx.tun.mglru.tiers {
        return MAX_NR_TIERS - 1;
    }
    let h = hist(cx, v.r#gen.min_seq(ty));
    let tiers = &v.r#gen.tiers;
    let sp = tiers.rate(h, ty.index(), 0..1, 2);
    let worse = |&t: &usize| !no_worse(sp, tiers.rate(h, ty.index(), t..t + 1, 3));
    (1..MAX_NR_TIERS).find(worse).unwrap_or(MAX_NR_TIERS) - 1
}

/// Returns the type to scan first.
pub(super) fn type_to_scan(v: &Lruvec, cx: &Ctx, swappiness: u32) -> LruType {
    if swappiness <= 1 {
        return LruType::File;
    }
    if swappiness >= 200 {
        return LruType::Anon;
    }
    let g = &v.r#gen;
    let rate = |ty: LruType, gain: u32| {
        let h = hist(cx, g.min_seq(ty));
        g.tiers.rate(h, ty.index(), 0..MAX_NR_TIERS, u64::from(gain))
    };
    let sp = rate(LruType::Anon, swappiness);
    let pv = rate(LruType::File, 200 - swappiness);
    if no_worse(sp, pv) { LruType::File } else { LruType::Anon }
}

/// Returns the shadow of a folio with word `w`.
pub(super) fn shadow(v: &Lruvec, cx: &Ctx, w: Word) -> Shadow {
    let fresh = w.on_probation();
    let token = match cx.tun.mglru.refault_distance {
        RefaultDistance::Off => v.r#gen.min_seq(w.ty()) << 2,
        RefaultDistance::Place => clock(v, cx, u64::from(fresh) << 2) & !3,
        RefaultDistance::Reuse => (v.r#gen.stamped_at(w) << 3) | (u64::from(fresh) << 2),
    };
    let token = token | w.refs().saturating_sub(1);
    Shadow::pack(token, v.memcg().0, v.node(), w.has(Word::WORKINGSET))
}

/// Returns the present value of the clock behind `token`, at its position in a token. The value is
/// no less than that of any token the clock has made. The clock is the youngest generation, or the
/// evictions (all, or those from probation if the folio left there).
pub(super) fn clock(v: &Lruvec, cx: &Ctx, token: u64) -> u64 {
    let fresh = token & 4;
    let evictions = |i: usize| (v.r#gen.evictions[i].load(Relaxed) << 3) | fresh | 3;
    match cx.tun.mglru.refault_distance {
        RefaultDistance::Off => (v.r#gen.max_seq() << 2) | 3,
        RefaultDistance::Place => evictions((fresh >> 2) as usize),
        RefaultDistance::Reuse => evictions(0),
    }
}

/// Counts that a folio with word `w` left memory.
pub(super) fn note_evicted(v: &Lruvec, cx: &Ctx, w: Word) {
    let ty = w.ty();
    let h = hist(cx, v.r#gen.min_seq(ty));
    v.r#gen.tiers.evicted[h][ty.index()][w.tier()].fetch_add(w.pages(), Relaxed);
    v.r#gen.evictions[0].fetch_add(w.pages(), Relaxed);
    if w.on_probation() {
        v.r#gen.evictions[1].fetch_add(w.pages(), Relaxed);
    }
    v.r#gen.taken[ty.index()].fetch_add(w.pages(), Relaxed);
}

/// How recently a page was evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Recency {
    Long,
    /// Recently, but so that only a second refault is enough to join the generations.
    Soon,
    VerySoon,
}

impl Recency {
    fn when(recent: bool) -> Self {
        if recent { Self::VerySoon } else { Self::Long }
    }
}

/// Returns how recently the page with shadow `token` was evicted.
pub(super) fn recent(v: &Lruvec, cx: &Ctx, ty: LruType, token: u64) -> Recency {
    if cx.tun.mglru.refault_distance == RefaultDistance::Off {
        let mask = (1 << (Shadow::TOKEN_BITS - 2)) - 1;
        let now = v.r#gen.max_seq() & mask;
        return Recency::when(now.abs_diff(token >> 2) < MAX_NR_GENS);
    }
    let mask = (1 << (Shadow::TOKEN_BITS - 3)) - 1;
    let fresh = token & 4 != 0;
    if cx.tun.mglru.refault_distance == RefaultDistance::Reuse {
        let age = v.r#gen.evictions[0].load(Relaxed).wrapping_sub(token >> 3) & mask;
        return Recency::when(probation::reused(v, cx, ty, age, fresh));
    }
    let now = v.r#gen.evictions[usize::from(fresh)].load(Relaxed) & mask;
    let distance = now.wrapping_sub(token >> 3) & mask;
    let within = |percent: u64| distance * 100 <= v.memory() * percent;
    if !within(cx.tun.mglru.near) {
        return Recency::Long;
    }
    probation::learn(v, cx, fresh, 16);
    if within(cx.tun.mglru.near_once) { Recency::VerySoon } else { Recency::Soon }
}

/// Handles a refault: counts it, and restores the flags from the shadow. Returns true if it is
/// recent.
pub(super) fn refault(v: &Lruvec, cx: &Ctx, pfn: Pfn, shadow: Shadow, in_fault: bool) -> bool {
    let w = cx.folios.word(pfn);
    let (ty, n) = (w.ty(), w.pages());
    if !v.is_left_by(shadow) {
        return false;
    }
    let by = |anon, file| if ty == LruType::Anon { anon } else { file };
    cx.stat.add(by(Event::WorkingsetRefaultAnon, Event::WorkingsetRefaultFile), n);
    let recency = recent(v, cx, ty, shadow.token());
    if recency == Recency::Long {
        return false;
    }
    if cx.tun.mglru.admission == Admission::Probation {
        let again = recency == Recency::VerySoon || shadow.workingset();
        // The first such refault is only remembered.
        cx.folios.set(pfn, if again { Word::RETURNED } else { Word::WORKINGSET });
    }
    let refs = (shadow.token() & 3) + 1;
    let h = hist(cx, v.r#gen.min_seq(ty));
    let tier = tier_of(refs, shadow.workingset());
    v.r#gen.tiers.refaulted[h][ty.index()][tier].fetch_add(n, Relaxed);
    let k72 = cx.tun.mglru.placement == Placement::K72;
    if in_fault && (!k72 || shadow.workingset()) {
        cx.stat.add(by(Event::WorkingsetActivateAnon, Event::WorkingsetActivateFile), n);
    }
    if shadow.workingset() {
        let set =
            if in_fault && k72 { Word::WORKINGSET.or(Word::ACTIVE) } else { Word::WORKINGSET };
        cx.folios.set(pfn, set);
        cx.stat.add(by(Event::WorkingsetRestoreAnon, Event::WorkingsetRestoreFile), n);
    } else {
        cx.folios.update(pfn, |w| w.with_refs_field(refs - 1));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(refaulted: u64, total: u64, gain: u64) -> Rate {
        Rate { refaulted, total, gain }
    }

    #[test]
    fn few_refaults_protect_nothing() {
        assert!(no_worse(rate(0, 0, 2), rate(63, 1, 3)));
        assert!(!no_worse(rate(0, 1_000_000, 2), rate(64, 100, 3)));
    }

    #[test]
    fn a_tier_is_protected_above_one_and_a_half_times_the_rate_of_tier_zero() {
        // 1,000 of 100,000 pages refault from tier 0. The boundary of tier 1 is at about 1,500.
        let sp = rate(1_000, 100_000, 2);
        assert!(no_worse(sp, rate(1_490, 100_000, 3)));
        assert!(!no_worse(sp, rate(1_510, 100_000, 3)));
    }

    #[test]
    fn at_swappiness_60_files_may_refault_2_33_times_as_much() {
        let anon = rate(10_000, 1_000_000, 60);
        assert!(no_worse(anon, rate(23_300, 1_000_000, 140)));
        assert!(!no_worse(anon, rate(23_400, 1_000_000, 140)));
    }

    #[test]
    fn huge_counts_do_not_overflow() {
        let big = rate(u64::MAX, u64::MAX, 200);
        assert!(no_worse(big, big), "both sides saturate");
        assert!(!no_worse(rate(0, 1, 1), rate(u64::MAX, u64::MAX, 1)));
    }
}
