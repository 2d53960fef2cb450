//! The tables of the multi-gen LRU, row by row: where folios are put, and the effect of accesses.
//! Also when the window moves, which spaces are walked, and how large folios and neighbours count.

use std::sync::atomic::Ordering::Relaxed;

use super::tests::{Free, Rig};
use super::*;
use crate::folio::MemcgId;
use crate::lru::shrink::Around;
use crate::lru::{Pagevec, Reclaimer};
use crate::space::{Area, Backing, Pte};
use crate::tunables::Tunables;
use crate::types::Vpn;

fn preset(name: &str) -> Tunables {
    Tunables::preset(name).unwrap()
}

#[test]
fn every_row_of_the_insertion_table() {
    let (anon, file) = (Word::new(LruType::Anon, 0, 0), Word::new(LruType::File, 0, 0));
    let cached = anon.with(Word::SWAPCACHE);
    let unwritten = file.with(Word::RECLAIM).with(Word::DIRTY);
    let working = Word::ACTIVE.or(Word::WORKINGSET);
    let mut rig = Rig::new(4, preset("k618"));
    // The window is full, so three below the youngest generation is the oldest.
    let back = |rig: &Rig, w: Word, how: Add| {
        rig.v.r#gen.max_seq() - insert::target_seq(&rig.v, &rig.cx(), w, how)
    };
    let rows = [
        (file.with(working), Add::Normal, 0),
        (anon.with(Word::ACTIVE), Add::Normal, 1),
        (file, Add::Rotate, 3),
        (anon, Add::Normal, 1),
        (unwritten, Add::Normal, 1),
        (file.with(Word::WORKINGSET), Add::Normal, 2),
        (cached, Add::Normal, 3),
        (file, Add::Normal, 3),
        (file.with(Word::REFERENCED), Add::Normal, 3),
    ];
    for (w, how, expect) in rows {
        assert_eq!(back(&rig, w, how), expect, "{w:?} {how:?}");
    }
    rig.tun = preset("k72");
    assert_eq!(back(&rig, file.with(Word::REFERENCED), Add::Normal), 2, "K72 trusts one access");
    assert_eq!(back(&rig, file, Add::Normal), 3);
    // A folio never goes to a generation older than the oldest one.
    rig.v.r#gen.min_seq[LruType::File.index()].store(2, Relaxed);
    assert_eq!(back(&rig, file, Add::Normal), 1);
}

/// K618 puts every folio that a fault brings in among the young. K72 (6cbdd9726fb5) does so only
/// for refaults of the working set.
#[test]
fn faulted_folios_join_the_generations_of_k618_and_k72() {
    let (anon, file) = (Word::new(LruType::Anon, 0, 0), Word::new(LruType::File, 0, 0));
    let cached = anon.with(Word::SWAPCACHE);
    let shadow = |rig: &Rig, workingset| {
        Shadow::pack(rig.v.r#gen.max_seq() << 2 | 1, rig.v.memcg().0, 0, workingset)
    };
    let (none, once, again) = (None, Some(false), Some(true));
    for (w, came_back, k618, k72) in [
        (anon, none, 1, 1),
        (file, none, 1, 2),
        (cached, none, 1, 2),
        (cached, once, 1, 2),
        (file, once, 1, 2),
        (cached, again, 0, 0),
        (file, again, 0, 0),
    ] {
        for (name, expect) in [("k618", k618), ("k72", k72)] {
            let rig = Rig::new(4, preset(name));
            rig.folios.init(Pfn(0), w, MemcgId(1), rig.mm(), Vpn(0));
            if let Some(workingset) = came_back {
                assert!(rig.v.refault(&rig.cx(), Pfn(0), shadow(&rig, workingset), true));
            }
            rig.v.note_fault(&rig.cx(), Pfn(0));
            let added = rig.folios.word(Pfn(0));
            let seq = insert::target_seq(&rig.v, &rig.cx(), added, Add::Normal);
            let what = format!("{name} {w:?} {came_back:?}");
            assert_eq!(rig.v.r#gen.max_seq() - seq, expect, "{what}");
            let marked = added.has(Word::REFERENCED);
            assert_eq!(marked, name == "k72" && came_back != again, "{what}: {added:?}");
        }
    }
}

#[test]
fn accesses_through_descriptors_count_to_five() {
    let mut rig = Rig::new(4, preset("k618"));
    let pfn = rig.fill(LruType::File).unwrap();
    rig.folios.update(pfn, |w| w.without(Word::WORKINGSET).without_refs());
    let mut seen = Vec::new();
    for _ in 0..6 {
        rig.v.mark_accessed(&rig.cx(), pfn);
        let w = rig.folios.word(pfn);
        seen.push((w.refs(), w.has(Word::WORKINGSET), w.tier()));
    }
    let expect =
        [(1, false, 0), (2, false, 1), (3, false, 2), (4, false, 2), (4, true, 3), (4, true, 3)];
    assert_eq!(seen, expect);
    assert!(rig.folios.word(pfn).lazily_promoted());
}

#[test]
fn the_first_accessed_bit_is_remembered_and_the_second_promotes() {
    let mut rig = Rig::new(4, preset("k618"));
    let pfn = rig.fill(LruType::Anon).unwrap();
    rig.folios.update(pfn, |w| w.without(Word::WORKINGSET).without_refs());
    let from = rig.folios.word(pfn).slot();
    assert_eq!(update_gen(&rig.cx(), pfn, 3, 0), None);
    let w = rig.folios.word(pfn);
    assert!(w.has(Word::REFERENCED) && !w.has(Word::WORKINGSET) && w.slot() == from);
    assert_eq!(update_gen(&rig.cx(), pfn, 3, 0), from);
    let w = rig.folios.word(pfn);
    assert!(w.has(Word::WORKINGSET) && w.refs() == 0 && w.slot() == Some(3));
    assert_eq!(w.list_slot() as u64, from.unwrap() as u64, "it is not moved between lists");
}

/// Tests how an accessed entry that eviction finds changes a folio. The second time in K618 and the
/// third in K72 make it part of the working set (`folio_lru_refs(folio) > 1`, 6cbdd9726fb5). The
/// number of entries does not matter.
#[test]
fn an_accessed_entry_that_eviction_meets_activates_before_it_makes_a_working_set() {
    for (name, expect) in [
        ("k618", [(false, false), (true, true), (true, true)]),
        ("k72", [(false, false), (true, false), (true, true)]),
    ] {
        let mut rig = Rig::new(4, preset(name));
        let pfn = rig.fill(LruType::File).unwrap();
        rig.folios.update(pfn, |w| w.without(Word::WORKINGSET).without_refs());
        let seen = [(); 3].map(|()| {
            let activated = set_refs(&rig.cx(), pfn, false);
            (activated, rig.folios.word(pfn).has(Word::WORKINGSET))
        });
        assert_eq!(seen, expect, "{name}");
    }
    // Program text needs no second access in K72.
    let mut rig = Rig::new(4, preset("k72"));
    let pfn = rig.fill(LruType::File).unwrap();
    rig.folios.update(pfn, |w| w.without(Word::WORKINGSET).without_refs());
    assert!(set_refs(&rig.cx(), pfn, true) && rig.folios.word(pfn).has(Word::WORKINGSET));
}

#[test]
fn a_type_that_ran_ahead_waits_for_the_other_unless_aged_by_itself() {
    for (per_type, expect) in [(false, 1), (true, 2)] {
        let mut rig = Rig::new(16, preset("k618"));
        rig.tun.mglru.per_type_aging = per_type;
        // Anonymous memory has pages in generation 0; files have none in any.
        rig.list(0, &[0, 1]);
        let lists = rig.v.lock();
        assert!(window::try_inc_min(&rig.v, &rig.cx(), &lists, 60));
        drop(lists);
        let mins = LruType::ALL.map(|ty| rig.v.r#gen.min_seq(ty));
        assert_eq!(mins, [0, expect], "files would go to 2; s = max - 2 = 1");
    }
}

#[test]
fn refault_averages_halve_when_the_oldest_generation_ends() {
    let rig = Rig::new(4, preset("k618"));
    let t = &rig.v.r#gen.tiers;
    t.avg_refaulted[1][2].store(10, Relaxed);
    t.avg_total[1][2].store(100, Relaxed);
    t.refaulted[0][1][2].store(30, Relaxed);
    t.evicted[0][1][2].store(50, Relaxed);
    t.protected[0][1][2].store(20, Relaxed);
    t.carry_over(&rig.cx(), LruType::File, 0);
    let now = [&t.avg_refaulted[1][2], &t.avg_total[1][2], &t.refaulted[0][1][2]];
    assert_eq!(now.map(|n| n.load(Relaxed)), [20, 85, 0]);
    assert_eq!(t.evicted[0][1][2].load(Relaxed) + t.protected[0][1][2].load(Relaxed), 0);
}

#[test]
fn a_space_that_did_not_run_is_passed_over_unless_it_is_new() {
    let rig = Rig::new(16, preset("k618"));
    let walked = |seq: u64| {
        let before = rig.stat.get(crate::observe::vmstat::Event::EbbWalkEntries);
        assert_eq!(rig.v.age(&rig.cx(), seq, 60, false), Ok(()));
        rig.stat.get(crate::observe::vmstat::Event::EbbWalkEntries) - before
    };
    let space = rig.spaces.get(rig.mm()).unwrap();
    rig.spaces.map(&space, Vpn(0), Pfn(0), 1, Pte::MAPPED | Pte::ACCESSED);
    assert!(!space.is_dead() && space.take_scheduled(0), "it ran, and that was noted before");
    assert!(walked(3) > 0, "new: everything is looked at");
    assert_eq!(walked(4), 0, "known, and it did not run");
    space.note_scheduled();
    space.tree().place(Vpn(0)).touch(Pte::default(), Pte::ACCESSED);
    rig.v.r#gen.bloom[1].insert(walk::table_key(&space, Vpn(0)));
    assert!(walked(5) > 0, "it ran");
    space.kill();
    space.note_scheduled();
    assert_eq!(walked(6), 0, "dead");
}

/// Folios of four pages are counted in pages, aged and evicted whole, and promoted once for a run
/// of entries.
#[test]
fn a_large_folio_is_one_folio_and_four_pages() {
    for name in ["ebb", "k618", "k72"] {
        let rig = Rig::new(64, preset(name));
        let space = rig.spaces.get(rig.mm()).unwrap();
        let mut pagevec = Pagevec::default();
        for first in (0..64).step_by(4) {
            let word = Word::new(LruType::Anon, 2, 0).with(Word::MAPPED);
            rig.folios.init(Pfn(first), word, MemcgId(1), rig.mm(), Vpn(first.into()));
            rig.spaces.map(&space, Vpn(first.into()), Pfn(first), 4, Pte::MAPPED);
            pagevec.add(&rig.v, &rig.cx(), Pfn(first));
        }
        assert_eq!(rig.v.total(LruType::Anon), 64, "{name}");
        rig.v.check_invariants(&rig.cx());
        // All four entries of one folio are accessed.
        for vpn in 4..8 {
            let place = space.tree().place(Vpn(vpn));
            place.touch(place.get(), Pte::ACCESSED);
        }
        space.note_scheduled();
        let mut freed = Vec::new();
        for priority in (0..=12).rev() {
            let mut sc = Scan::new(Reclaimer::Direct, false, 8, 60);
            sc.priority = priority;
            rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut freed));
            assert_eq!(sc.reclaimed % 4, 0, "{name}: whole folios go");
        }
        assert!(!freed.is_empty() && freed.iter().all(|pfn| pfn % 4 == 0), "{name}: {freed:?}");
        let left = 64 - 4 * freed.len() as u64;
        assert_eq!(rig.v.total(LruType::Anon), left, "{name}");
        rig.v.check_invariants(&rig.cx());
    }
}

#[test]
fn an_accessed_entry_met_by_eviction_saves_its_neighbours_and_names_the_table() {
    let mut rig = Rig::new(64, preset("k618"));
    let pfns: Vec<Pfn> = (0..16).filter_map(|_| rig.fill(LruType::Anon)).collect();
    rig.v.r#gen.bloom[(rig.v.r#gen.max_seq() % 2) as usize].reset();
    let space = rig.spaces.get(rig.mm()).unwrap();
    let area = Area::new(Vpn(0), Vpn(64), Backing::Anon);
    let mut around = Around::none();
    around.with_walk = true;
    look_around::look_around(&rig.v, &rig.cx(), &mut around, &space, &area, Vpn(3));
    around.deltas.flush(&rig.v, &rig.v.lock());
    for &pfn in &pfns {
        let vpn = Vpn(pfn.0.into());
        assert!(!space.tree().find(vpn).unwrap().get().all(Pte::ACCESSED), "{pfn:?} is cleared");
        assert!(rig.folios.word(pfn).has(Word::REFERENCED), "{pfn:?} was seen");
    }
    let filter = &rig.v.r#gen.bloom[(rig.v.r#gen.max_seq() % 2) as usize];
    assert!(filter.may_hold(walk::table_key(&space, Vpn(3))));
    rig.v.check_invariants(&rig.cx());
}
