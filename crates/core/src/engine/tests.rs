use super::*;
use crate::random::Random;
use crate::resident::{Arrival, Entry};

/// Returns an engine with a budget of `limit` pages that are all in use.
fn full(limit: u64, evidence: Evidence) -> (Engine, Space, WakeRequests) {
    let mut engine = Engine::new(limit, limit, evidence.tunables(), evidence);
    let mut space = engine.create_space(Vpn(1 << 20));
    for page in 0..limit {
        let charge = engine.set.zone.charge(1);
        engine.set.zone.place(charge);
        engine.set.map(&mut space, Vpn(page), Arrival::Fresh, None);
    }
    (engine, space, WakeRequests::new())
}

/// Requests reclaim and returns the first order of the run.
fn first(engine: &mut Engine, wake_requests: &WakeRequests) -> Do {
    engine.request_wake(wake_requests);
    for _ in 0..10 {
        match engine.next(wake_requests, Seen::default()) {
            Do::Again | Do::Nap | Do::Sleep => {}
            order => return order,
        }
    }
    panic!("nothing to do")
}

/// Shows that a pass takes no more pages than its share, without a loop of its own (ENGINE-1).
#[test]
fn a_pass_looks_at_its_share_and_no_more() {
    let (mut engine, mut space, wake_requests) = full(100_000, Evidence::Standby);
    let mut order = first(&mut engine, &wake_requests);
    let mut scanned = [0; 8];
    while let pass @ 1..=8 = engine.kswapd.stats().passes as usize {
        let mut pages = Vec::new();
        if let Do::ToStandby(max) = order {
            engine.isolate(max, &mut pages);
            assert!(pages.len() <= max);
            pages.iter().for_each(|&pfn| engine.set.deactivate(&mut space, pfn, 0));
        }
        let pages = pages.len() as u64;
        scanned[pass - 1] += pages;
        engine.did(Did { pages, scanned: pages, progress: pages });
        order = engine.next(&wake_requests, Seen::default());
    }
    // The first three passes only age. Each later pass looks at twice as many pages as the one
    // before, up to the target.
    assert_eq!(scanned[..3], [0, 0, 0]);
    for (scanned, priority) in scanned.into_iter().zip((0..=12).rev()).skip(3) {
        let share = (100_000 >> priority).min(1_970);
        assert!((share..share + BATCH as u64).contains(&scanned), "{scanned} at {priority}");
    }
}

/// Shows that the engine reports out of memory if no page can leave. It tries once under every
/// pressure, and not for ever.
#[test]
fn the_engine_reports_out_of_memory_if_no_page_can_leave() {
    for evidence in [Evidence::Standby, Evidence::AccessedBits] {
        let (mut engine, _space, wake_requests) = full(5_000, evidence);
        let mut order = first(&mut engine, &wake_requests);
        let mut looked = 0;
        while order != Do::OutOfMemory {
            let mut pages = Vec::new();
            match order {
                Do::ToStandby(max) => engine.isolate(max, &mut pages),
                Do::Store(max) if evidence == Evidence::AccessedBits => {
                    engine.isolate(max, &mut pages)
                }
                _ => {}
            }
            pages.iter().for_each(|&pfn| engine.set.make_unevictable(pfn));
            engine.did(Did { pages: 0, scanned: pages.len() as u64, progress: 0 });
            looked += 1;
            assert!(looked < 1_000, "{evidence:?} goes on for ever");
            order = engine.next(&wake_requests, Seen::default());
        }
    }
}

/// Shows that of two pages that came together the used one stays, with either kind of evidence.
#[test]
fn a_page_in_use_stays_by_either_evidence() {
    for evidence in [Evidence::Standby, Evidence::AccessedBits] {
        let (mut engine, mut space, wake_requests) = full(5_000, evidence);
        let in_use = |vpn: Vpn| vpn.0.is_multiple_of(5);
        let mut left = 0;
        while left < 2_000 {
            for page in (0..5_000).step_by(5) {
                let vpn = Vpn(page);
                if let Entry::Standby(pfn) = space.get(vpn) {
                    engine.set.reactivate(&mut space, pfn);
                }
                space.touch(vpn);
            }
            let mut pages = Vec::new();
            match first(&mut engine, &wake_requests) {
                Do::ToStandby(max) => {
                    engine.isolate(max, &mut pages);
                    pages.iter().for_each(|&pfn| engine.set.deactivate(&mut space, pfn, 0));
                }
                Do::Store(max) => {
                    engine.oldest_standby(max, &mut pages);
                    for &pfn in &pages {
                        let slot = engine.set.take_slot().expect("there are slots");
                        engine.set.evict(&mut space, pfn, slot);
                        left += 1;
                    }
                }
                Do::OutOfMemory => panic!("{evidence:?}: {left} left"),
                _ => {}
            }
            let pages = pages.len() as u64;
            engine.did(Did { pages, scanned: pages, progress: pages });
        }
        let (mut stored, mut lost) = (0, 0);
        space.for_each(|vpn, entry| {
            if let Entry::Stored { .. } = entry {
                stored += 1;
                lost += u64::from(in_use(vpn));
            }
        });
        assert!(stored > 1_500, "{evidence:?}: {stored} left");
        assert!(lost * 20 < stored, "{evidence:?}: {lost} of {stored} were in use");
        engine.set.check_invariants(&[&space], &[]);
    }
}

#[test]
fn the_cost_of_loads_is_the_mean_of_near_and_far_loads() {
    let loads = Loads { compressed: 90, far: 10, ..Loads::default() };
    assert_eq!(loads.cost_permille(), Some((90 * COMPRESSED_COST + 10 * FAR_COST) / 100));
    assert_eq!(loads.since(&loads).cost_permille(), None);
}

/// Returns the pages that an engine under `tunables` stores, in order. Memory has 2,000 pages. Half
/// of the accesses go to 1,500 pages, half to 6,000.
fn stored(tunables: Tunables, evidence: Evidence) -> Vec<Vpn> {
    let mut engine = Engine::new(2_000, 2_000, tunables, evidence);
    let mut space = engine.create_space(Vpn(1 << 20));
    let (wake_requests, mut random, mut stored) = (WakeRequests::new(), Random(1), Vec::new());
    for _ in 0..30_000 {
        let span = if random.below(2) == 0 { 1_500 } else { 6_000 };
        let vpn = Vpn(random.below(span).into());
        let (how, slot) = match space.get(vpn) {
            Entry::Resident(_) => {
                space.touch(vpn);
                continue;
            }
            Entry::Standby(pfn) => {
                engine.set.reactivate(&mut space, pfn);
                continue;
            }
            Entry::Stored { slot, .. } => (Arrival::Loaded, Some(slot)),
            Entry::None => (Arrival::Fresh, None),
        };
        let charge = engine.set.zone.charge(1);
        engine.set.zone.place(charge);
        engine.set.map(&mut space, vpn, how, slot);
        if engine.set.zone.is_low() {
            engine.request_wake(&wake_requests);
        }
        let mut pages = Vec::new();
        match engine.next(&wake_requests, Seen::default()) {
            Do::ToStandby(max) => {
                engine.isolate(max, &mut pages);
                pages.iter().for_each(|&pfn| engine.set.deactivate(&mut space, pfn, 0));
            }
            Do::Store(max) => {
                engine.oldest_standby(max, &mut pages);
                for &pfn in &pages {
                    let frame = engine.set.frame(pfn);
                    let slot =
                        frame.slot().unwrap_or_else(|| engine.set.take_slot().expect("room"));
                    engine.set.evict(&mut space, pfn, slot);
                    engine.set.zone.remove_resident(1);
                    stored.push(frame.vpn);
                }
            }
            _ => {}
        }
        let pages = pages.len() as u64;
        engine.did(Did { pages, scanned: pages, progress: pages });
    }
    stored
}

/// `ebb run --set` refuses these switches: none changes what an engine stores.
#[test]
fn switches_of_the_lab_do_not_change_what_an_engine_stores() {
    for evidence in [Evidence::Standby, Evidence::AccessedBits] {
        let before = stored(evidence.tunables(), evidence);
        assert!(before.len() > 1_000, "{}", before.len());
        let mut tunables = evidence.tunables();
        for row in evidence.tunables().rows() {
            if Tunables::LAB_ONLY.contains(&row.key) {
                let words = row.meanings.iter().map(|&(word, _)| word);
                let others = words.chain(row.expected.split('|')).chain(["7"]);
                let mut others = others.filter(|&other| other != row.value);
                let set = others.any(|other| tunables.set_pair(row.key, other).is_ok());
                assert!(set, "{row:?}");
            }
        }
        assert_ne!(tunables, evidence.tunables());
        assert!(stored(tunables, evidence) == before, "{evidence:?}");
        let mut tunables = evidence.tunables();
        tunables.set("gen.probation=40").expect("a switch");
        assert!(stored(tunables, evidence) != before, "others do: {evidence:?}");
    }
}
