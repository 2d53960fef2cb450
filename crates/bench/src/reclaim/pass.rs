//! Measures passes over one lruvec whose folios lie in memory in random order.

use ebb_mm::folio::{Folios, LruType, MemcgId, Word};
use ebb_mm::lru::{Ctx, Evicted, Lruvec, Pageout, Reclaimer, Scan, Shadow};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::space::{Area, Backing, Pte, Spaces};
use ebb_mm::tunables::{LruKind, Tunables};
use ebb_mm::types::{MmId, Pfn, Vpn};
use ebb_sys::percpu::thread_time_ns;

use crate::stats::median;

/// Result for one kind of list.
pub struct Row {
    /// Name of the kind.
    pub lists: String,
    /// Nanoseconds per folio: evicted, evicted while a page-table entry maps it, and skipped.
    pub ns: [f64; 3],
}

/// Frees and counts the evicted folios.
#[derive(Default)]
struct Gone(u64);

impl Pageout for Gone {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, shadow: Shadow) -> Evicted {
        if cx.folios.word(pfn).has(Word::MAPPED) {
            cx.spaces.unmap(cx.folios, pfn, shadow.0);
        }
        cx.folios.unpin(pfn);
        cx.folios.unpin(pfn);
        self.0 += 1;
        Evicted::Freed
    }
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Evict,
    EvictMapped,
    Skip,
}

/// Measures each kind in turn, round by round.
pub fn rows(presets: &[String], folios: u32, rounds: usize) -> Vec<Row> {
    let order = shuffled(folios);
    let kinds = [What::Evict, What::EvictMapped, What::Skip];
    let mut seen: Vec<[Vec<f64>; 3]> = vec![Default::default(); presets.len()];
    for _ in 0..rounds {
        for (p, preset) in presets.iter().enumerate() {
            for (k, &what) in kinds.iter().enumerate() {
                seen[p][k].push(once(preset, &order, what));
            }
        }
    }
    let row = |(lists, times): (&String, [Vec<f64>; 3])| Row {
        lists: lists.clone(),
        ns: std::array::from_fn(|k| median(&times[k])),
    };
    presets.iter().zip(seen).map(row).collect()
}

fn shuffled(n: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    let mut x = 42u64;
    for i in (1..order.len()).rev() {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        order.swap(i, (x % (i as u64 + 1)) as usize);
    }
    order
}

/// Number of folios in the zone that is short of memory.
const LOW: usize = 32;

fn once(preset: &str, order: &[u32], what: What) -> f64 {
    let tun = Tunables::preset(preset).unwrap_or_default();
    let n = order.len() as u32;
    let (folios, spaces, stat) = (Folios::new(n), Spaces::new(), VmStat::default());
    let cx = Ctx { folios: &folios, spaces: &spaces, tun: &tun, stat: &stat, now_ms: 0 };
    let v = Lruvec::new(MemcgId(1), tun.lru, 0);
    let space = spaces.create(MemcgId(1));
    space.add_area(Area::new(Vpn(0), Vpn(n.into()), Backing::File));
    v.generations().spaces().join(space.id());
    for (vpn, &p) in order.iter().enumerate() {
        // Skipped folios lie in a zone above the one that is short. The short zone has a few folios
        // at the young end. The classic lists do not scan for an empty zone.
        let above = what == What::Skip && (tun.lru == LruKind::Gen || vpn + LOW < order.len());
        let word = Word::new(LruType::File, 0, u8::from(above));
        let vpn = Vpn(vpn as u64);
        if what == What::EvictMapped {
            folios.init(Pfn(p), word.with(Word::MAPPED), MemcgId(1), space.id(), vpn);
            let place = space.tree().place(vpn);
            place.table.set(place.index, Pte::of_frame(Pfn(p), Pte::MAPPED));
        } else {
            folios.init(Pfn(p), word, MemcgId(1), MmId(1 << 20), vpn);
        }
        v.add(&cx, Pfn(p));
    }
    let mut gone = Gone::default();
    // Only half of the folios are evicted, because a window that runs dry ages, and ageing is not
    // measured here.
    let half = u64::from(n) / 2;
    let mut sc = Scan::new(Reclaimer::Kswapd, true, if what == What::Skip { 64 } else { half }, 60);
    if what == What::Skip {
        sc.zone = 0;
    }
    let looked = |stat: &VmStat| match tun.lru {
        LruKind::Gen => stat.get(Event::EbbScanned),
        LruKind::Classic => stat.get(Event::PgSkip) + stat.get(Event::PgScanKswapd),
    };
    let count = |gone: &Gone| if what == What::Skip { looked(&stat) } else { gone.0 };
    // A pass may age instead of evicting. So the loop ends only after eight passes in a row without
    // effect.
    let mut fruitless = 0;
    // The classic lists skip 32,768 folios before they count one as scanned.
    let all = what == What::Skip && tun.lru == LruKind::Classic;
    let start = thread_time_ns();
    while count(&gone) < half && fruitless < 8 {
        sc.priority = if all { 0 } else { 1 };
        let before = (looked(&stat), gone.0);
        v.shrink(&cx, &mut sc, &mut gone);
        fruitless = if (looked(&stat), gone.0) == before { fruitless + 1 } else { 0 };
    }
    let ns = (thread_time_ns() - start) as f64;
    let count = count(&gone);
    ns / count.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_folio_is_met() {
        let lists = ["ebb", "k618", "k72", "classic"].map(String::from);
        for row in rows(&lists, 1 << 13, 1) {
            assert!(row.ns.iter().all(|&ns| ns > 0.1 && ns < 1e6), "{}: {:?}", row.lists, row.ns);
        }
    }
}
