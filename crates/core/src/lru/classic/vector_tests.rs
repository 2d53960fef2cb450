//! The tables of the classic LRU: the effect of an access, and when a refault counts as young.

use super::*;
use crate::lru::r#gen::tests::{Free, Rig};
use crate::lru::{Reclaimer, Scan};
use crate::tunables::{LruKind, Tunables};

fn rig(frames: u32) -> Rig {
    let mut tun = Tunables::preset("classic").unwrap();
    tun.classic.fold = 0;
    Rig::of_kind(frames, tun, LruKind::Classic)
}

fn age(rig: &Rig) -> u64 {
    rig.v.classic.age.load(Relaxed)
}

#[test]
fn the_first_access_is_remembered_and_the_second_activates() {
    let mut rig = rig(8);
    let pfn = rig.fill(LruType::File).unwrap();
    let state = |rig: &Rig| {
        let w = rig.folios.word(pfn);
        (w.has(Word::REFERENCED), w.has(Word::ACTIVE), age(rig))
    };
    assert_eq!(state(&rig), (false, false, 0), "new: inactive");
    // Each access in turn: the flag, then the activation (which the clock counts), then the flag
    // again.
    for expected in [(true, false, 0), (false, true, 1), (true, true, 1), (true, true, 1)] {
        rig.v.mark_accessed(&rig.cx(), pfn);
        assert_eq!(state(&rig), expected);
    }
    rig.v.check_invariants(&rig.cx());
}

#[test]
fn an_access_to_a_folio_on_no_list_decides_which_list_it_joins() {
    let rig = rig(8);
    let word = Word::new(LruType::File, 0, 0).with(Word::REFERENCED);
    rig.folios.init(Pfn(1), word, rig.v.memcg(), crate::types::MmId(0), crate::types::Vpn(1));
    rig.v.mark_accessed(&rig.cx(), Pfn(1));
    assert!(rig.folios.word(Pfn(1)).has(Word::ACTIVE) && age(&rig) == 1);
    rig.v.add(&rig.cx(), Pfn(1));
    assert_eq!(rig.v.size(LruType::File, true), 1, "on the active list at once");
}

/// Compares the refault distance with the other pages that could have been kept in place of this
/// one.
#[test]
fn a_refault_is_young_while_its_distance_is_within_what_it_competes_with() {
    for ty in LruType::ALL {
        // Inactive: 3 pages of its own type and 5 of the other. Active: 1 of its own and 2 of the
        // other.
        let other = ty.other();
        let mut rig = rig(32);
        for (ty, inactive, active) in [(ty, 3, 1), (other, 5, 2)] {
            for nth in 0..inactive + active {
                let pfn = rig.fill(ty).unwrap();
                if nth < active {
                    rig.v.activate(&rig.cx(), pfn);
                }
            }
        }
        let back = Pfn(31);
        let arrive = |distance: u64, workingset: bool| {
            rig.v.classic.age.store(1_000 + distance, Relaxed);
            let word = Word::new(ty, 0, 0);
            rig.folios.init(
                back,
                word,
                rig.v.memcg(),
                crate::types::MmId(0),
                crate::types::Vpn(31),
            );
            let shadow = Shadow::pack(1_000, rig.v.memcg().0, 0, workingset);
            let young = rig.v.refault(&rig.cx(), back, shadow, true);
            let w = rig.folios.word(back);
            assert_eq!(w.has(Word::ACTIVE), young);
            // A page that joins the active list is an activation, which the clock counts.
            assert_eq!(age(&rig), 1_000 + distance + u64::from(young));
            (young, w.has(Word::WORKINGSET))
        };
        // Active pages of both types, and inactive pages of the other type.
        let room = 1 + 2 + 5;
        assert_eq!(arrive(0, false), (true, false), "{ty:?}");
        assert_eq!(arrive(room, false), (true, false), "{ty:?}");
        assert_eq!(arrive(room + 1, false), (false, false), "{ty:?}");
        assert_eq!(arrive(room, true), (true, true), "{ty:?}: it had been in the working set");
        assert_eq!(arrive(room + 1, true), (false, false), "{ty:?}");
        let refaults = [Event::WorkingsetRefaultAnon, Event::WorkingsetRefaultFile];
        assert_eq!(rig.stat.get(refaults[ty.index()]), 5, "each counts, young or not");
    }
}

#[test]
fn a_shadow_of_another_memcg_is_no_refault() {
    let mut rig = rig(8);
    let pfn = rig.fill(LruType::Anon).unwrap();
    let shadow = Shadow::pack(0, rig.v.memcg().0 + 1, 0, true);
    assert!(!rig.v.refault(&rig.cx(), pfn, shadow, true));
    assert_eq!(rig.stat.get(Event::WorkingsetRefaultAnon), 0);
}

/// Shows that the clock of the node that a page left measures its absence (`workingset_refault`).
#[test]
fn a_page_that_left_another_node_is_judged_by_that_node() {
    let mut rig = rig(8);
    let left = crate::lru::Lruvec::on_node(rig.v.memcg(), 1, LruKind::Classic, 0);
    let pfn = rig.fill(LruType::File).unwrap();
    left.classic.age.store(1_000, Relaxed);
    let shadow = left.eviction_shadow(&rig.cx(), pfn);
    assert_eq!((shadow.memcg(), shadow.node()), (rig.v.memcg().0, 1));
    assert!(!rig.v.refault(&rig.cx(), pfn, shadow, true), "it did not leave this one");
    rig.v.classic.age.store(1_000_000, Relaxed);
    assert!(rig.v.refault_from(&left, &rig.cx(), pfn, shadow, true), "nothing has left since");
    assert!(rig.folios.word(pfn).has(Word::ACTIVE));
    left.classic.age.store(1_001, Relaxed);
    assert!(!rig.v.refault_from(&left, &rig.cx(), pfn, shadow, true), "one page, and no room");
    assert_eq!(rig.stat.get(Event::WorkingsetRefaultFile), 2);
}

#[test]
fn the_clock_counts_evictions_and_activations() {
    let mut rig = rig(64);
    let pfns: Vec<Pfn> = (0..48).filter_map(|_| rig.fill(LruType::File)).collect();
    for &pfn in &pfns {
        // The pages are not accessed, so the first reclaim takes as many as it wants.
        let space = rig.spaces.get(rig.mm()).unwrap();
        let place = space.tree().find(crate::types::Vpn(pfn.0.into())).unwrap();
        place.table.clear(place.index, crate::space::Pte::ACCESSED);
    }
    rig.v.activate(&rig.cx(), pfns[0]);
    let before = age(&rig);
    let mut freed = Vec::new();
    let mut sc = Scan::new(Reclaimer::Direct, false, 8, 60);
    sc.priority = 0;
    rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut freed));
    assert!(freed.len() >= 8);
    assert_eq!(age(&rig) - before, freed.len() as u64);
    rig.v.check_invariants(&rig.cx());
}

/// Shows that a refault of the working set costs as much as a written page. Kernels before 6.2 do
/// not count pages that were scanned and kept.
#[test]
fn a_refault_costs_its_type_as_much_as_a_written_page() {
    for (rotations, io, looks) in [(true, 32, 1), (false, 1, 0)] {
        let mut rig = rig(4096);
        rig.tun.classic.rotations = rotations;
        (0..4000).for_each(|_| {
            rig.fill(LruType::Anon);
        });
        let cost = |rig: &Rig| rig.v.classic.cost[LruType::Anon.index()].load(Relaxed);
        rig.v.classic.note_cost(&rig.v, &rig.cx(), LruType::Anon, 1, 0);
        assert_eq!(cost(&rig), io);
        let word = Word::new(LruType::Anon, 0, 0);
        let (mm, vpn) = (crate::types::MmId(0), crate::types::Vpn(4090));
        rig.folios.init(Pfn(4090), word, rig.v.memcg(), mm, vpn);
        let shadow = Shadow::pack(age(&rig), rig.v.memcg().0, 0, true);
        assert!(rig.v.refault(&rig.cx(), Pfn(4090), shadow, true));
        assert_eq!(cost(&rig), 2 * io);
        rig.v.classic.note_cost(&rig.v, &rig.cx(), LruType::Anon, 0, 1);
        assert_eq!(cost(&rig), 2 * io + looks);
    }
}

/// Few file pages are left and all anonymous pages were used, so reclaim comes to its last
/// priority. When it has its 32 pages, it has scanned nearly all of its share of files. Kernels
/// before 6.1 then scanned as large a part of the anonymous pages before they checked the target
/// again.
#[test]
fn kernels_before_6_1_finish_the_larger_share_and_take_far_too_much() {
    let freed_by = |finish: bool| {
        let mut rig = rig(4096);
        rig.tun.classic.finish = finish;
        for nth in 0..4000 {
            let ty = if nth % 40 == 0 { LruType::File } else { LruType::Anon };
            let pfn = rig.fill(ty).unwrap();
            let space = rig.spaces.get(rig.mm()).unwrap();
            let place = space.tree().find(crate::types::Vpn(pfn.0.into())).unwrap();
            place.table.clear(place.index, crate::space::Pte::ACCESSED);
        }
        let mut freed = Vec::new();
        let mut sc = Scan::new(Reclaimer::Direct, true, 32, 60);
        sc.priority = 0;
        rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut freed));
        rig.v.check_invariants(&rig.cx());
        freed.len()
    };
    // One round of both types, and one more of the larger type until the smaller has nothing left.
    assert_eq!(freed_by(false), 96);
    // 68 of 100 files are left when the target is met, so 32 % of the other pages go as well.
    let all = freed_by(true);
    assert!((1_250..1_350).contains(&all), "{all}");
}

/// Shows that a pass for a low zone does not scan a share of all pages. It would scan pages of
/// higher zones for nothing, even where the low zone has none (spec 6.5: sizes are those of the
/// zones that help).
#[test]
fn a_pass_scans_a_share_of_the_zones_that_help() {
    let rig = rig(256);
    for i in 0..256 {
        // One page of eight is in the low zone.
        let word = Word::new(LruType::File, 0, u8::from(i % 8 != 0));
        rig.folios.init(Pfn(i), word, rig.v.memcg(), rig.mm(), crate::types::Vpn(i.into()));
        rig.v.add(&rig.cx(), Pfn(i));
    }
    let pass = |rig: &Rig, zone, priority| {
        let mut sc = Scan::new(Reclaimer::Kswapd, true, 256, 60);
        (sc.zone, sc.priority) = (zone, priority);
        let mut freed = Vec::new();
        let skipped = rig.stat.get(Event::PgSkip);
        rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut freed));
        rig.v.check_invariants(&rig.cx());
        (freed, rig.stat.get(Event::PgSkip) - skipped)
    };
    assert_eq!(pass(&rig, 0, 6), (vec![], 0), "32 pages >> 6 are none");
    let (freed, _) = pass(&rig, 0, 3);
    assert_eq!(freed, [0, 8, 16, 24], "32 >> 3 of the low zone, oldest first");
    let (freed, _) = pass(&rig, 1, 2);
    assert_eq!(freed.len(), 252 >> 2, "of both");
    let (_, skipped) = pass(&rig, 0, 0);
    assert!(skipped > 0);
    let none = pass(&rig, 0, 0);
    assert_eq!(none, (vec![], 0), "nothing is left there, and nothing is looked at");
}
