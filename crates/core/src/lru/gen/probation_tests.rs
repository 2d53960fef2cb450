//! Tests of probation's halves, reuse ages, the history of mapped folios, and the effect of
//! refaults.

use super::tests::{Free, Rig};
use super::*;
use crate::lru::Reclaimer;
use crate::lru::shrink::Around;
use crate::space::Pte;
use crate::tunables::Tunables;
use crate::types::Vpn;

/// Sets the clock as if so many pages had been evicted.
fn set_clock(rig: &Rig, evictions: u64) {
    rig.v.r#gen.evictions[0].store(evictions, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn accesses_count_from_the_second_half_of_probation_on() {
    let mut rig = Rig::new(64, Tunables::default());
    set_clock(&rig, 8);
    for _ in 0..16 {
        rig.fill(LruType::Anon);
    }
    let order = rig.order(FRESH);
    assert_eq!(order.len(), 16, "all are accessed, and on probation");
    probation::pass_on(&rig.v, &rig.cx());
    // The share is one page of sixteen, and a third of it rounds to none.
    assert_eq!((rig.order(FRESH).len(), rig.order(TRIED)), (0, order.clone()));
    let space = rig.spaces.get(rig.mm()).unwrap();
    let young = |pfn: u32| {
        let place = space.tree().find(Vpn(u64::from(pfn))).unwrap();
        place.get().all(Pte::ACCESSED)
    };
    assert!(!order.iter().any(|&pfn| young(pfn)), "what was touched before is forgotten");
    // One folio is accessed now, so it joins the generations. The other oldest folios leave.
    let (oldest, second) = (order[15], order[14]);
    let place = space.tree().find(Vpn(u64::from(oldest))).unwrap();
    place.touch(place.get(), Pte::ACCESSED);
    let mut free = Vec::new();
    let mut sc = Scan::new(Reclaimer::Direct, false, 1, 60);
    sc.priority = 0;
    rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut free));
    assert_eq!(free.first(), Some(&second));
    assert!(!free.contains(&oldest));
    assert!(!rig.folios.word(Pfn(oldest)).on_probation());
    rig.v.check_invariants(&rig.cx());
}

/// Shows that files under read I/O do not occupy all of reclaim at swappiness 1. The scan would
/// meet all of memory's worth of them again and again.
#[test]
fn pages_being_read_are_met_once_in_a_pass() {
    let mut rig = Rig::new(64, Tunables::default());
    set_clock(&rig, 8);
    for _ in 0..16 {
        rig.fill(LruType::Anon);
    }
    for _ in 0..4 {
        let pfn = rig.fill(LruType::File).unwrap();
        rig.folios.set(pfn, Word::LOCKED);
    }
    let mut free = Vec::new();
    let mut pass = |priority| {
        let mut sc = Scan::new(Reclaimer::Direct, false, 4, 1);
        sc.priority = priority;
        rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut free));
        (sc.scanned, sc.reclaimed)
    };
    assert_eq!(pass(3), (2, 0), "anonymous memory is spared: an eighth of 20 pages is looked at");
    let (scanned, reclaimed) = pass(0);
    assert_eq!(reclaimed, 4, "of 16 anonymous pages");
    assert!(scanned <= 8, "{scanned} pages looked at, of which 4 were being read");
    rig.v.check_invariants(&rig.cx());
}

#[test]
fn the_first_reclaim_of_a_full_memory_does_not_pass_half_of_probation_at_once() {
    // Passing all of it at once takes half a millisecond on a node of 4 GiB in which 600 frames are
    // requested.
    let mut rig = Rig::new(4096, Tunables::default());
    set_clock(&rig, 8);
    for _ in 0..2000 {
        rig.fill(LruType::Anon);
    }
    let before = rig.order(FRESH).len();
    probation::pass_on(&rig.v, &rig.cx());
    assert_eq!((rig.order(FRESH).len(), rig.order(TRIED).len()), (before - 128, 128));
    for _ in 0..100 {
        probation::pass_on(&rig.v, &rig.cx());
    }
    assert!(rig.order(FRESH).len() < before / 2, "in the end all that is too much has passed");
    rig.v.check_invariants(&rig.cx());
}

#[test]
fn a_page_joins_the_generations_if_it_was_used_again_sooner_than_their_oldest() {
    let rig = Rig::new(64, Tunables::default());
    rig.list(0, &[0, 1, 2, 3]);
    rig.v.r#gen.oldest[0].store(1_000, std::sync::atomic::Ordering::Relaxed);
    set_clock(&rig, 2_000);
    let word = |at: u64| Word::new(LruType::Anon, 0, 0).at_list_slot(FRESH).stamped(at >> 3);
    let recent = |at: u64| {
        let shadow = pid::shadow(&rig.v, &rig.cx(), word(at));
        pid::recent(&rig.v, &rig.cx(), LruType::Anon, shadow.token()) != pid::Recency::Long
    };
    // The oldest folio has been there for 1,000 evictions; 70 % of that is the bound.
    assert!(recent(2_000) && recent(1_304));
    assert!(!recent(1_288) && !recent(0));
}

#[test]
fn the_time_of_a_stamp_is_found_across_the_end_of_its_bits() {
    let rig = Rig::new(4, Tunables::default());
    let end = 8u64 << crate::folio::STAMP_BITS;
    for then in [0, 800, end - 8, end, 3 * end - 80] {
        set_clock(&rig, then);
        let word = Word::default().stamped(rig.v.r#gen.clock());
        set_clock(&rig, then + 160);
        assert_eq!(rig.v.r#gen.stamped_at(word), then, "{then}");
    }
}

#[test]
fn a_mapped_folio_stays_half_as_many_rounds_as_it_was_found_accessed() {
    let mut rig = Rig::new(8, Tunables::default());
    let pfn = rig.fill(LruType::Anon).unwrap();
    let mut around = Around::none();
    let mut round = |touched: bool| {
        let space = rig.spaces.get(rig.mm()).unwrap();
        let place = space.tree().find(Vpn(u64::from(pfn.0))).unwrap();
        place.table.clear(place.index, Pte::ACCESSED);
        if touched {
            place.touch(place.get(), Pte::ACCESSED);
        }
        // Put the folio on a list of the generations.
        rig.folios.update(pfn, |w| w.at_list_slot(0));
        let cx = rig.cx();
        crate::lru::shrink::stays_for_use(&rig.v, &cx, pfn, &mut around)
    };
    assert!(!round(false), "never accessed");
    assert!((0..6).all(|_| round(true)));
    // Four rounds are remembered, and each round without an access takes two off.
    assert_eq!([round(false), round(false), round(false)], [true, true, false]);
    assert!(round(true) && !round(false), "one round is not enough to stay for");
}

#[test]
#[cfg_attr(miri, ignore = "many pages, and only sums")]
fn refaults_move_the_share_of_probation_by_their_distance() {
    let rig = Rig::new(2_048, Tunables::default());
    let ids: Vec<u32> = (0..1_000).collect();
    rig.list(0, &ids);
    set_clock(&rig, 10_000);
    rig.v.r#gen.oldest[0].store(9_000, std::sync::atomic::Ordering::Relaxed);
    let share = || rig.v.r#gen.fresh_extra.load(std::sync::atomic::Ordering::Relaxed).max(1) - 1;
    let reused = |age: u64, failed: bool| {
        probation::reused(&rig.v, &rig.cx(), LruType::Anon, age, failed);
        share()
    };
    let tun = Tunables::default();
    let after = reused(0, true);
    assert_eq!(after, 16 * tun.mglru.probation_up, "missed by nothing: a whole step");
    assert_eq!(
        reused(125, true),
        after + 8 * tun.mglru.probation_up,
        "half way to the reach: half"
    );
    assert_eq!(reused(250, true), after + 8 * tun.mglru.probation_up, "beyond the reach: nothing");
    let before = share();
    assert_eq!(
        before - reused(1_500, false),
        8 * tun.mglru.probation_down,
        "half way, the other side"
    );
    assert_eq!(reused(1_000, false), 0, "never below the least");
}

/// Shows that reclaim still works where the type that the ratio asks for has no pages on probation
/// and hardly any in the generations. All other pages are on probation.
#[test]
fn a_type_that_has_nothing_left_does_not_stop_reclaim() {
    for switch in ["gen.type_select=ratio", "gen.clean_floor=64"] {
        let mut tun = Tunables::default();
        tun.set(switch).unwrap();
        let mut rig = Rig::new(32, tun);
        set_clock(&rig, 8);
        for _ in 0..32 {
            rig.fill(LruType::File);
        }
        // Anonymous memory must come next: none was reclaimed yet, and of files a lot.
        rig.v.r#gen.taken[1].store(1_000, std::sync::atomic::Ordering::Relaxed);
        let mut free = Vec::new();
        let mut sc = Scan::new(Reclaimer::Direct, false, 4, 60);
        for priority in (0..=12).rev() {
            sc.priority = priority;
            rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut free));
        }
        assert!(free.len() >= 4, "{switch}: {free:?}");
        rig.v.check_invariants(&rig.cx());
    }
}

#[test]
fn at_the_ends_of_swappiness_probation_takes_from_one_type_while_it_has_any() {
    for (swappiness, first) in [(1, LruType::File), (200, LruType::Anon)] {
        let mut rig = Rig::new(64, Tunables::default());
        // The folios of the other type have waited longer.
        for (ty, since) in [(first.other(), 8), (first, 80)] {
            set_clock(&rig, since);
            for _ in 0..8 {
                rig.fill(ty);
            }
        }
        set_clock(&rig, 160);
        probation::pass_on(&rig.v, &rig.cx());
        let sc = Scan::new(Reclaimer::Direct, false, 1, swappiness);
        let list = |swappiness: u32| {
            probation::next_list(&rig.v, &rig.cx(), &sc, &rig.v.lock(), swappiness)
                .map(|(ty, _)| ty)
        };
        assert_eq!(list(swappiness), Some(first));
        assert_eq!(list(60), Some(first.other()), "in between the one that waits longer");
        while let Some(pfn) = rig.order_of(TRIED, first).first().copied() {
            rig.v.remove(&rig.cx(), Pfn(pfn));
        }
        assert_eq!(list(swappiness), Some(first.other()), "there is nothing else");
    }
}

/// Shows that a page written out from probation is reclaimed when its writeback ends. If it joined
/// the generations instead, scans of probation would miss it. Reclaim would write ever more pages
/// and free few of them.
#[test]
fn a_page_written_out_from_probation_leaves_from_its_old_end() {
    let mut rig = Rig::new(64, Tunables::default());
    set_clock(&rig, 8);
    for _ in 0..16 {
        rig.fill(LruType::Anon);
    }
    probation::pass_on(&rig.v, &rig.cx());
    let oldest = Pfn(*rig.order(TRIED).last().unwrap());
    assert!(rig.v.isolate(&rig.cx(), oldest));
    rig.folios.set(oldest, Word::WRITEBACK.or(Word::RECLAIM));
    rig.v.add(&rig.cx(), oldest);
    assert!(rig.folios.word(oldest).on_probation(), "it waits there for its write");
    rig.v.end_writeback(&rig.cx(), oldest);
    assert_eq!(rig.order(TRIED).last(), Some(&oldest.0), "it is the next to go");
    rig.v.check_invariants(&rig.cx());
}
