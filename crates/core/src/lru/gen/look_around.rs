//! Look-around: when eviction meets an accessed entry, it looks at the neighbouring entries too.
//!
//! It looks at up to 64 entries in one table and area. It clears the accessed bits of young entries
//! and promotes their folios. A table with enough young entries is added to the filter of the next
//! walk.

use super::super::scan::MIN_LRU_BATCH;
use super::super::shrink::{Around, SharedSpace};
use super::super::{Ctx, Lruvec};
use super::access::{set_refs, update_gen};
use super::walk::{folio_of, mark_dirty, suitable, table_key};
use crate::observe::vmstat::Event;
use crate::space::{Area, Pte, TABLE_ENTRIES};
use crate::types::{Pfn, Vpn};

/// Returns the window of entries to look at. It is slid to stay inside one table and the area.
pub(super) fn window(area: &Area, at: Vpn) -> (u64, u64) {
    let table = at.0 & !(TABLE_ENTRIES as u64 - 1);
    let start = table.max(area.start.0);
    let end = (table + TABLE_ENTRIES as u64).min(area.end.0);
    if end - start <= MIN_LRU_BATCH {
        return (start, end);
    }
    let half = MIN_LRU_BATCH / 2;
    if at.0 - start < half {
        (start, start + MIN_LRU_BATCH)
    } else if end - at.0 < half {
        (end - MIN_LRU_BATCH, end)
    } else {
        (at.0 - half, at.0 + half)
    }
}

/// Looks around `at`, whose own accessed bit was just cleared.
pub(crate) fn look_around(
    v: &Lruvec,
    cx: &Ctx,
    around: &mut Around,
    space: &SharedSpace,
    area: &Area,
    at: Vpn,
) {
    let (start, end) = window(area, at);
    if end - start <= 1 {
        return;
    }
    let Some(place) = space.tree().find(at) else { return };
    let max = v.r#gen.max_seq();
    let slot = (max % 4) as usize;
    let mut young = 1;
    let mut run: Option<(Pfn, bool)> = None;
    for vpn in start..end {
        let i = vpn as usize & (TABLE_ENTRIES - 1);
        let pte = place.table.get(i);
        if !pte.all(Pte::PRESENT | Pte::MAPPED | Pte::ACCESSED) {
            continue;
        }
        let Some(head) = folio_of(v, cx, pte.pfn()) else { continue };
        if !place.table.clear(i, Pte::ACCESSED).all(Pte::ACCESSED) {
            continue;
        }
        young += 1;
        let dirty = pte.all(Pte::DIRTY);
        run = match run {
            Some((last, d)) if last == head => Some((last, d | dirty)),
            other => {
                promote(v, cx, around, other, slot, area.exec);
                Some((head, dirty))
            }
        };
    }
    promote(v, cx, around, run, slot, area.exec);
    cx.stat.add(Event::EbbLookAround, young - 1);
    if suitable(end - start, young) {
        v.r#gen.bloom[(max % 2) as usize].insert(table_key(space, at));
    }
}

fn promote(
    v: &Lruvec,
    cx: &Ctx,
    around: &mut Around,
    run: Option<(Pfn, bool)>,
    slot: usize,
    exec: bool,
) {
    let Some((pfn, dirty)) = run else { return };
    if dirty {
        mark_dirty(cx, pfn);
    }
    if around.with_walk {
        if let Some(old) = update_gen(cx, pfn, slot, v.r#gen.clock()).filter(|&old| old != slot) {
            around.deltas.moved(cx.folios.word(pfn), old, slot);
        }
    } else if set_refs(cx, pfn, exec) && cx.folios.word(pfn).slot().is_some_and(|s| s != slot) {
        around.pagevec.activate(v, cx, pfn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Backing;

    #[test]
    fn the_window_slides_to_stay_in_table_and_area() {
        let area = |a, b| Area::new(Vpn(a), Vpn(b), Backing::Anon);
        assert_eq!(window(&area(0, 10_000), Vpn(1_000)), (960, 1_024));
        assert_eq!(window(&area(0, 10_000), Vpn(512)), (512, 576));
        assert_eq!(window(&area(0, 10_000), Vpn(1_023)), (960, 1_024));
        assert_eq!(window(&area(700, 720), Vpn(710)), (700, 720));
        assert_eq!(window(&area(700, 701), Vpn(700)), (700, 701));
        assert_eq!(window(&area(0, 10_000), Vpn(700)), (668, 732));
    }
}
