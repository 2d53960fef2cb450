//! The page-table walk: finds accessed entries, clears them, and promotes their folios.
//!
//! The walk does not move a promoted folio between lists. It changes only the folio's slot, and
//! gathers counter deltas that it applies under the lru lock once a slice. Eviction moves the folio
//! later.
//!
//! The walk holds the area list for a slice. It skips the space while another thread changes the
//! list.

use std::sync::Arc;

use super::super::scan::MAX_LRU_BATCH;
use super::super::{Ctx, Lruvec};
use super::Deltas;
use super::access::{inc_refs, update_gen};
use crate::folio::{FRESH, TRIED, Word};
use crate::observe::vmstat::Event;
use crate::space::{Area, Backing, Directory, Pte, Space, TABLE_ENTRIES, Table};
use crate::types::{Pfn, Vpn};

/// A page-table walk in progress.
#[derive(Debug)]
pub(crate) struct Walk {
    pub seq: u64,
    pub swappiness: u32,
    /// Whether to look at every table, whatever the filter and the accessed bits of the tables say.
    pub force: bool,
    pub deltas: Deltas,
    /// Numbers of entries, young entries, tables entered, tables added.
    pub stats: [u64; 4],
    skipped: [u64; 2],
    promoted: u64,
}

impl Walk {
    pub fn new(seq: u64, swappiness: u32, force: bool) -> Self {
        Self {
            seq,
            swappiness,
            force,
            deltas: Deltas::default(),
            stats: [0; 4],
            skipped: [0; 2],
            promoted: 0,
        }
    }
}

/// Whether a table is worth walking again: on average it has one young entry per cache line.
pub(super) fn suitable(total: u64, young: u64) -> bool {
    young * 8 >= total
}

/// Returns the filter's key for a table.
pub(super) fn table_key(space: &Space, vpn: Vpn) -> u64 {
    (u64::from(space.id().0) << 32) ^ (vpn.0 >> 9)
}

fn skip_area(area: &Area, swappiness: u32) -> bool {
    if !area.recency || area.locked || area.special {
        return true;
    }
    match area.backing {
        Backing::Anon | Backing::Shmem => swappiness == 0,
        Backing::File => swappiness > 200,
    }
}

pub(super) fn walk_space(v: &Lruvec, cx: &Ctx, walk: &mut Walk, space: &Arc<Space>) {
    let before = walk.stats[0];
    let mut from = Vpn(0);
    while let Some(next) = walk_slice(v, cx, walk, space, from) {
        settle(v, walk);
        if v.r#gen.max_seq() != walk.seq {
            break;
        }
        from = next;
    }
    settle(v, walk);
    cx.stat.add(Event::EbbWalkEntries, walk.stats[0] - before);
    cx.stat.add(Event::EbbWalkSkipNonLeaf, std::mem::take(&mut walk.skipped[0]));
    cx.stat.add(Event::EbbWalkSkipBloom, std::mem::take(&mut walk.skipped[1]));
    cx.stat.add(Event::EbbWalkPromoted, std::mem::take(&mut walk.promoted));
}

fn settle(v: &Lruvec, walk: &mut Walk) {
    if walk.deltas.batched > 0 {
        let lists = v.lock();
        walk.deltas.flush(v, &lists);
    }
}

/// Walks from `from` until a slice is full. Returns where to go on.
fn walk_slice(v: &Lruvec, cx: &Ctx, walk: &mut Walk, space: &Space, from: Vpn) -> Option<Vpn> {
    let areas = space.try_areas()?;
    let first = areas.partition_point(|a| a.end <= from);
    let mut done = from;
    let swappiness = walk.swappiness;
    for area in areas[first..].iter().filter(|a| !skip_area(a, swappiness)) {
        let mut at = area.start.0.max(done.0);
        while at < area.end.0 {
            // One unit is a table: 512 pages, or the part of it that lies in the area.
            let end = ((at | 511) + 1).min(area.end.0);
            let Some(directory) = space.tree().directory(at >> 18) else {
                at = ((at | 0x3_ffff) + 1).min(area.end.0);
                continue;
            };
            walk_table(v, cx, walk, space, directory, at, end);
            if walk.deltas.batched >= MAX_LRU_BATCH {
                return Some(Vpn(end));
            }
            at = end;
        }
        done = area.end;
    }
    None
}

fn walk_table(
    v: &Lruvec,
    cx: &Ctx,
    walk: &mut Walk,
    space: &Space,
    directory: &Directory,
    at: u64,
    end: u64,
) {
    let index = (at >> 9) as usize & (TABLE_ENTRIES - 1);
    let Some(table) = directory.table(index) else { return };
    if !walk.force && cx.tun.mglru.non_leaf {
        if !directory.touched(index) {
            walk.skipped[0] += 1;
            return;
        }
        directory.untouch(index);
    }
    let key = table_key(space, Vpn(at));
    let bloom = &v.r#gen.bloom;
    if !walk.force && cx.tun.mglru.bloom && !bloom[(walk.seq % 2) as usize].may_hold(key) {
        walk.skipped[1] += 1;
        return;
    }
    walk.stats[2] += 1;
    let young = walk_entries(v, cx, walk, table, at, end);
    if suitable(end - at, young) {
        walk.stats[3] += 1;
        bloom[((walk.seq + 1) % 2) as usize].insert(key);
    }
}

fn walk_entries(v: &Lruvec, cx: &Ctx, walk: &mut Walk, table: &Table, at: u64, end: u64) -> u64 {
    const WANTED: u64 = Pte::PRESENT | Pte::MAPPED | Pte::ACCESSED;
    let slot = (walk.seq % 4) as usize;
    let first = at as usize & (TABLE_ENTRIES - 1);
    let mut young = 0;
    let mut run: Option<(Pfn, bool)> = None;
    for i in first..first + (end - at) as usize {
        let pte = table.get(i);
        if !pte.all(WANTED) {
            continue;
        }
        let Some(head) = folio_of(v, cx, pte.pfn()) else { continue };
        if !table.clear(i, Pte::ACCESSED).all(Pte::ACCESSED) {
            continue;
        }
        young += 1;
        // A row of entries of one folio promotes it once.
        let dirty = pte.all(Pte::DIRTY);
        run = match run {
            Some((last, d)) if last == head => Some((last, d | dirty)),
            other => {
                finish_run(v, cx, walk, other, slot);
                Some((head, dirty))
            }
        };
    }
    finish_run(v, cx, walk, run, slot);
    walk.stats[0] += end - at;
    walk.stats[1] += young;
    young
}

fn finish_run(v: &Lruvec, cx: &Ctx, walk: &mut Walk, run: Option<(Pfn, bool)>, slot: usize) {
    let Some((pfn, dirty)) = run else { return };
    if dirty {
        mark_dirty(cx, pfn);
    }
    if let Some(old) = update_gen(cx, pfn, slot, v.r#gen.clock()) {
        walk.promoted += 1;
        if old != slot {
            walk.deltas.moved(cx.folios.word(pfn), old, slot);
        }
    }
}

/// Promotes the folios that a walk by the driver found accessed, as a walk of this engine would. On
/// probation an access is only counted; it decides when the folio reaches the end.
pub(crate) fn accessed(v: &Lruvec, cx: &Ctx, pfns: &[Pfn]) {
    let mut walk = Walk::new(v.r#gen.max_seq(), 0, false);
    let slot = (walk.seq % 4) as usize;
    for &pfn in pfns {
        match cx.folios.word(pfn).slot() {
            Some(FRESH | TRIED) => inc_refs(cx, pfn),
            _ => finish_run(v, cx, &mut walk, Some((pfn, false)), slot),
        }
        if walk.deltas.batched >= MAX_LRU_BATCH {
            settle(v, &mut walk);
        }
    }
    settle(v, &mut walk);
    cx.stat.add(Event::EbbWalkEntries, pfns.len() as u64);
    cx.stat.add(Event::EbbWalkPromoted, walk.promoted);
}

/// Makes the folio of a dirty entry dirty, unless it has no stored copy that could be stale.
pub(super) fn mark_dirty(cx: &Ctx, pfn: Pfn) {
    let w = cx.folios.word(pfn);
    let plain = w.has(Word::SWAPBACKED) && !w.has(Word::SWAPCACHE);
    if !plain && !w.has(Word::DIRTY) {
        cx.folios.set(pfn, Word::DIRTY);
    }
}

/// Returns the folio of a frame, if it is on a generation list of this memcg and node.
pub(super) fn folio_of(v: &Lruvec, cx: &Ctx, pfn: Pfn) -> Option<Pfn> {
    let pfn = cx.folios.head(pfn);
    let slot = cx.folios.word(pfn).slot()?;
    // The end of probation decides about a folio there. Until then the walk leaves its accessed
    // bits alone.
    let judged_later = cx.tun.mglru.history && slot >= FRESH;
    (v.is_of(cx, pfn) && !judged_later).then_some(pfn)
}

#[cfg(test)]
mod tests {
    use super::super::tests::Rig;
    use super::*;
    use crate::folio::LruType;
    use crate::tunables::Tunables;

    /// Shows that a slice ends, at the end of a table, when 4096 promotions wait to be counted. The
    /// next slice goes on from there. No lock is held for longer than that.
    #[test]
    #[cfg_attr(miri, ignore = "a full batch is thousands of entries")]
    fn a_slice_ends_when_a_full_batch_of_promotions_waits() {
        let frames = TABLE_ENTRIES as u32 * 10;
        let mut rig = Rig::new(frames, Tunables::preset("k618").unwrap());
        while rig.fill(LruType::Anon).is_some() {}
        let space = rig.spaces.get(rig.mm()).unwrap();
        for round in 0..2 {
            let mut walk = Walk::new(rig.v.r#gen.max_seq() + 1, 60, true);
            let (mut from, mut slices) = (Vpn(0), Vec::new());
            loop {
                let next = walk_slice(&rig.v, &rig.cx(), &mut walk, &space, from);
                slices.push(walk.deltas.batched);
                walk.deltas.batched = 0;
                let Some(next) = next else { break };
                assert!(next > from && next.0.is_multiple_of(TABLE_ENTRIES as u64));
                from = next;
            }
            assert_eq!(walk.stats[0], u64::from(frames), "every entry once");
            assert!(slices[..slices.len() - 1].iter().all(|&n| n == MAX_LRU_BATCH), "{slices:?}");
            // The first access is only remembered; the second promotes.
            let promoted: u64 = slices.iter().sum();
            assert_eq!(promoted, if round == 0 { 0 } else { u64::from(frames) }, "{slices:?}");
            for vpn in 0..u64::from(frames) {
                let place = space.tree().find(Vpn(vpn)).unwrap();
                place.touch(place.get(), Pte::ACCESSED);
            }
        }
    }
}
