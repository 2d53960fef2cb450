//! Shows that under injected faults a read gives the right page or an error, and never hangs.

use crate::common::{complete, get, open, page, put, try_put};
use ebb_mm::types::SlotId;
use ebb_swap::{Page, Store, StoreError, TierName};

const SLOTS: u32 = 320;

/// Puts pages until all are stored. Returns how many puts failed on the way.
fn fill(store: &Store) -> usize {
    let mut failed = 0;
    let mut left: Vec<_> = (0..SLOTS).map(|n| (n, content(n))).collect();
    for _ in 0..200 {
        let mut again = Vec::new();
        for batch in left.chunks(64) {
            let results = try_put(store, batch);
            let lost = results.iter().zip(batch).filter(|(result, _)| result.is_err());
            again.extend(lost.map(|(_, page)| *page));
        }
        failed += again.len();
        left = again;
        if left.is_empty() {
            return failed;
        }
    }
    panic!("{} pages could not be stored in 200 attempts", left.len());
}

fn content(slot: u32) -> Page {
    page(u64::from(slot), u64::from(1 + slot % 13))
}

/// Reads every slot in every way. Returns how many reads failed.
fn read_all(store: &Store) -> usize {
    let mut failed = 0;
    let mut judge = |slot: u32, result: Result<Page, StoreError>| match result {
        Ok(page) => assert!(page == content(slot), "slot {slot}: wrong content"),
        Err(StoreError::Read { slot: at, .. } | StoreError::Corrupt { slot: at, .. }) => {
            assert_eq!(at, SlotId(slot), "the error names its slot");
            failed += 1;
        }
        Err(error) => panic!("slot {slot}: {error}"),
    };
    for slot in 0..SLOTS {
        judge(slot, get(store, slot));
    }
    let mut buffer = [0; 4096];
    for slot in 0..SLOTS {
        match store.get_or_start(SlotId(slot), &mut buffer, u64::from(slot)) {
            Ok(true) => judge(slot, Ok(buffer)),
            Ok(false) => {
                let (token, result) = complete(store, 1).into_iter().next().expect("one");
                judge(token as u32, result);
            }
            Err(error) => judge(slot, Err(error)),
        }
    }
    let reads: Vec<_> = (0..SLOTS).map(|slot| (SlotId(slot), u64::from(slot))).collect();
    for reads in reads.chunks(200) {
        store.start_batch(reads);
        for (token, result) in complete(store, reads.len()) {
            judge(token as u32, result);
        }
    }
    failed
}

#[test]
fn every_fault_gives_the_right_page_or_an_error() {
    // Each line: plan, whether puts fail, whether reads fail.
    let plans = [
        ("read-error@0.05,seed=1", false, true),
        ("flip@0.05,seed=2", false, true),
        ("short-read@0.3,short-write@0.3,seed=3", false, false),
        ("slow-read=2ms@0.05,slow-write=1ms@0.2,seed=4", false, false),
        ("write-error@0.5,seed=5", true, false),
        ("full@0.5,seed=6", true, false),
        ("read-error@n7,write-error@n2,flip@n11,short-read@n3,slow-read=1ms@n50", true, true),
    ];
    for (plan, puts_fail, reads_fail) in plans {
        for tiers in ["ram", "file", "ram:400K,file"] {
            for use_io_uring in [true, false] {
                let store = open(tiers, plan, use_io_uring);
                let failed_puts = fill(&store);
                let failed_reads = read_all(&store);
                let case = format!("{plan} on {tiers}, io_uring {use_io_uring}");
                // With another location to try, a failed write need not become a failed put.
                assert!(puts_fail || failed_puts == 0, "{case}: {failed_puts} puts failed");
                assert!(!puts_fail || failed_puts > 0 || tiers != "ram", "{case}: no put failed");
                assert_eq!(reads_fail, failed_reads > 0, "{case}: {failed_reads} reads failed");
            }
        }
    }
}

#[test]
fn one_bad_block_does_not_take_its_neighbours_along() {
    for use_io_uring in [true, false] {
        // The first transfer, of 16 pages, fails. Each page is then read alone.
        let store = open("file", "read-error@once1", use_io_uring);
        put(&store, &(0..16).map(|n| (n, page(u64::from(n), 15))).collect::<Vec<_>>());
        store.start_batch(&(0..16).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
        for (token, result) in complete(&store, 16) {
            assert!(result.expect("read alone") == page(token, 15));
        }
    }
}

#[test]
fn a_write_that_fails_is_tried_elsewhere() {
    let store = open("file", "write-error@once1", true);
    put(&store, &[(0, page(0, 15))]);
    assert!(get(&store, 0).expect("get") == page(0, 15));
    // Two failures in the first file: the second file takes the page.
    let store = open("file,file", "write-error@once1,write-error@once2", true);
    put(&store, &[(0, page(0, 15))]);
    let stats = store.stats();
    assert_eq!((stats.tiers[0].pages, stats.tiers[1].pages), (0, 1));
    assert!(get(&store, 0).expect("get") == page(0, 15));
    // Every write fails: the error names the tier and slot, and nothing is stored.
    let store = open("file,file", "write-error@n1", true);
    let error = try_put(&store, &[(9, page(0, 15))]).remove(0).expect_err("no place works");
    let text = error.to_string();
    assert!(text.contains("tier file #2: cannot write slot 9"), "{text}");
    assert_eq!(store.stats().tiers[0].pages + store.stats().tiers[1].pages, 0);
    assert!(store.hash_of(SlotId(9)).is_none());
}

#[test]
fn pages_that_no_tier_takes_are_refused_and_the_others_stay() {
    let store = open("ram,file", "full@from11", true);
    put(&store, &(0..10).map(|n| (n, page(u64::from(n), 5))).collect::<Vec<_>>());
    let results = try_put(&store, &(10..20).map(|n| (n, content(n))).collect::<Vec<_>>());
    assert!(results.iter().all(|result| matches!(result, Err(StoreError::Full))));
    for n in 0..10 {
        assert!(get(&store, n).expect("get") == page(u64::from(n), 5));
    }
}

#[test]
fn errors_name_tier_slot_and_offset() {
    let store = open("file", "flip@n1", true);
    put(&store, &(0..3).map(|n| (n, page(u64::from(n), 15))).collect::<Vec<_>>());
    match get(&store, 2) {
        Err(StoreError::Corrupt { tier, slot, offset, expected, found }) => {
            assert_eq!((tier, slot, offset), (TierName::File(0), SlotId(2), 8192));
            assert_eq!(Some(expected), store.hash_of(SlotId(2)));
            assert_ne!(expected, found);
        }
        other => panic!("{other:?}"),
    }
    let store = open("ram", "read-error@n1", true);
    put(&store, &[(7, page(0, 5))]);
    let error = get(&store, 7).expect_err("injected");
    assert!(error.to_string().starts_with("tier ram: cannot read slot 7 at byte "), "{error}");
}

#[test]
fn a_page_removed_while_it_is_demoted_stays_removed() {
    let store = open("ram:300K,file", "slow-write=300ms@n1", true);
    let mut next = 0;
    while store.has_room() && store.ram_bytes() + (32 << 10) < 300 << 10 {
        put(&store, &[(next, page(u64::from(next), 7))]);
        next += 1;
    }
    let oldest: Vec<_> = (0..32).collect();
    std::thread::scope(|scope| {
        // Enough pages to need room, so that the 64 oldest pages are being written for 300 ms.
        let more: Vec<_> = (next..next + 64).map(|n| (n, page(u64::from(n), 7))).collect();
        let store = &store;
        scope.spawn(move || put(store, &more));
        // At that time the write goes on or has ended. Removed pages are gone in either case.
        ebb_testing::give_time(std::time::Duration::from_millis(100));
        oldest.iter().for_each(|slot| store.remove(SlotId(*slot)));
    });
    assert!(store.stats().tiers[0].demoted > 0);
    for slot in oldest {
        assert!(matches!(get(&store, slot), Err(StoreError::NotStored { .. })), "slot {slot}");
    }
    let pages: u64 = store.stats().tiers.iter().map(|tier| tier.pages).sum();
    assert_eq!(pages, u64::from(next) + 64 - 32, "nothing of what was removed is kept");
}

#[test]
fn demotion_survives_writes_that_fail() {
    let store = open("ram:300K,file", "write-error@0.3,seed=9", true);
    let failed = fill(&store);
    assert_eq!(read_all(&store), 0, "{failed} puts failed, no read may");
    assert!(store.stats().tiers[0].demoted > 0);
}
