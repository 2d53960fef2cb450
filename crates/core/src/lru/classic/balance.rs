//! The balance of the classic LRU: how many pages to scan on each list.

use std::sync::atomic::Ordering::Relaxed;

use super::super::{Ctx, Lruvec, Scan};
use crate::folio::LruType;

/// The lists on which a round decides: those of one memcg, or in root reclaim those of all memcgs
/// together.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Seen {
    /// Pages: inactive and active anonymous, inactive and active file.
    sizes: [u64; 4],
    /// By type: whether refaulted folios were activated since the last reclaim run ended.
    activated: [bool; 2],
    /// Cost of reclaiming each type.
    cost: [u64; 2],
}

impl Seen {
    /// Adds a memcg's lists.
    pub(crate) fn add(&mut self, v: &Lruvec, cx: &Ctx) {
        let c = &v.classic;
        for (i, size) in self.sizes.iter_mut().enumerate() {
            *size += c.seen_size(v, cx, i);
        }
        for i in 0..2 {
            if cx.tun.classic.fold == 0 {
                c.seen_activated[i].store(c.activated[i].load(Relaxed), Relaxed);
            }
            self.cost[i] += c.cost[i].load(Relaxed);
            self.activated[i] |= c.seen_activated[i].load(Relaxed) != c.snapshot[i].load(Relaxed);
        }
    }

    fn inactive_is_low(&self, cx: &Ctx, ty: LruType) -> bool {
        let [inactive, active] = [0, 1].map(|i| self.sizes[ty.index() * 2 + i]);
        inactive * inactive_ratio((inactive + active) * cx.tun.classic.scale) < active
    }
}

/// The decisions of a round, made once from the counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    pub may_deactivate: [bool; 2],
    cache_trim: bool,
    /// Whether any inactive anonymous page would be scanned.
    any_anon: bool,
    cost: [u64; 2],
}

/// Whether the inactive list is too small in proportion to the active one.
pub(super) fn inactive_is_low(v: &Lruvec, cx: &Ctx, ty: LruType) -> bool {
    let mut seen = Seen::default();
    seen.add(v, cx);
    seen.inactive_is_low(cx, ty)
}

/// Returns the number of active pages allowed for each inactive one.
fn inactive_ratio(pages: u64) -> u64 {
    let gib = pages >> 18;
    if gib > 0 { (10 * gib).isqrt() } else { 1 }
}

pub(super) fn round(v: &Lruvec, cx: &Ctx, sc: &Scan) -> Round {
    let seen = sc.seen.unwrap_or_else(|| {
        let mut seen = Seen::default();
        seen.add(v, cx);
        seen
    });
    let may_deactivate = LruType::ALL.map(|ty| {
        sc.force_deactivate || seen.activated[ty.index()] || seen.inactive_is_low(cx, ty)
    });
    // Whether a share rounds down to 0 is decided on list sizes of the full machine that this one
    // models.
    let any_of = |size: u64| (size * cx.tun.classic.scale.max(1)) >> sc.priority > 0;
    let any_file = any_of(seen.sizes[2]);
    let cache_trim = any_file && !may_deactivate[1] && !sc.cache_trim_off;
    let any_anon = any_of(seen.sizes[0]);
    Round { may_deactivate, cache_trim, any_anon, cost: seen.cost }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Only(LruType),
    Equal,
    Share,
}

/// Returns the pages to scan: inactive anonymous, active anonymous, inactive file, active file.
pub(super) fn scan_counts(v: &Lruvec, cx: &Ctx, sc: &Scan, round: Round) -> [u64; 4] {
    let mode = mode(sc, round);
    let [ap, fp] = shares(u64::from(sc.swappiness), round.cost[0], round.cost[1]);
    std::array::from_fn(|i| {
        let ty = if i < 2 { LruType::Anon } else { LruType::File };
        let size = v.classic.eligible(i, sc.zone);
        let mut n = sc.share_of(sc.protection.apply(size, cx.tun).min(size));
        if n == 0 && !v.online() {
            n = size.min(super::super::scan::SWAP_CLUSTER_MAX);
        }
        match mode {
            Mode::Equal => n,
            Mode::Only(t) if t == ty => n,
            Mode::Only(_) => 0,
            Mode::Share => {
                let part = if ty == LruType::Anon { ap } else { fp };
                if v.online() { n * part / (ap + fp) } else { (n * part).div_ceil(ap + fp) }
            }
        }
    })
}

fn mode(sc: &Scan, round: Round) -> Mode {
    let swappiness = sc.swappiness_now();
    if !sc.may_swap || (!sc.root && swappiness == 0) {
        Mode::Only(LruType::File)
    } else if swappiness > 200 {
        Mode::Only(LruType::Anon)
    } else if sc.priority == 0 && swappiness > 0 {
        Mode::Equal
    } else if sc.file_is_tiny && !round.may_deactivate[0] && round.any_anon {
        Mode::Only(LruType::Anon)
    } else if round.cache_trim {
        Mode::Only(LruType::File)
    } else {
        Mode::Share
    }
}

/// Returns the weights of the types: swappiness against the cost of reclaiming each type.
fn shares(swappiness: u64, anon_cost: u64, file_cost: u64) -> [u64; 2] {
    let swappiness = swappiness.min(200);
    let total = anon_cost + file_cost;
    let (ac, fc) = (total + anon_cost, total + file_cost);
    let total = ac + fc + 1;
    [swappiness * total / (ac + 1), (200 - swappiness) * total / (fc + 1)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_follow_swappiness_and_cost() {
        assert_eq!(shares(60, 0, 0), [60, 140]);
        // All cost is anonymous: the weight of anonymous memory stays at least a third of the
        // total.
        let [a, f] = shares(100, 1_000, 0);
        assert_eq!((a, f), (149, 299));
        assert_eq!(shares(0, 5, 5)[0], 0);
        assert_eq!(shares(200, 5, 5)[1], 0);
    }

    #[test]
    fn the_active_share_grows_with_the_root_of_the_size() {
        assert_eq!(inactive_ratio(1000), 1);
        assert_eq!(inactive_ratio(1 << 18), 3);
        assert_eq!(inactive_ratio(10 << 18), 10);
    }
}
