//! Tests of the tiers' behaviour, seen from outside.

use crate::common::{complete, get, open, page, put, try_put};
use ebb_mm::types::SlotId;
use ebb_swap::{Options, Page, Store, StoreError, TierName, page_hash, parse_tiers};

const EACH_BACKEND: [bool; 2] = [true, false];

#[test]
fn pages_of_every_kind_come_back_from_every_list_of_tiers() {
    for tiers in ["ram", "file", "ram:1M,file", "ram:100K,file:2M,file"] {
        let store = open(tiers, "", true);
        let kinds = if tiers == "ram" { 13 } else { 16 };
        let pages: Vec<(u32, Page)> =
            // Without a file, the store refuses pages that do not compress.
            (0..1200).map(|n| (n, page(u64::from(n), u64::from(n % kinds)))).collect();
        pages.chunks(64).for_each(|batch| put(&store, batch));
        for (slot, page) in &pages {
            assert!(get(&store, *slot).expect("get") == *page, "{tiers}: slot {slot}");
            assert_eq!(store.hash_of(SlotId(*slot)), Some(page_hash(page)));
        }
    }
}

/// Shows that the count of file tiers does not overflow before the list is found too long.
#[test]
fn a_list_of_more_than_256_files_is_refused() {
    let list = |files: usize| parse_tiers(&vec!["file:4K"; files].join(",")).expect("a list");
    let options = Options { use_io_uring: false, ..Options::default() };
    let store = Store::open(&list(256), &options).expect("256 tiers");
    assert_eq!(store.stats().tiers.last().map(|tier| tier.name), Some(TierName::File(255)));
    drop(store);
    let why = Store::open(&list(257), &options).err().expect("one more").to_string();
    assert!(why.contains("more than 256"), "{why}");
}

#[test]
fn same_filled_pages_take_no_room() {
    for tiers in ["ram", "file"] {
        let store = open(tiers, "", true);
        put(&store, &(0..64).map(|n| (n, page(u64::from(n), 0))).collect::<Vec<_>>());
        let stats = store.stats();
        assert_eq!(stats.same_filled_pages, 64);
        assert_eq!((stats.tiers[0].pages, stats.tiers[0].occupied_bytes), (0, 0));
        assert!(get(&store, 63).expect("get") == page(63, 0));
        store.remove(SlotId(63));
        assert_eq!(store.stats().same_filled_pages, 63);
    }
}

#[test]
fn incompressible_pages_go_to_the_file_or_stay_where_they_are() {
    let store = open("ram,file", "", true);
    put(&store, &[(0, page(0, 15)), (1, page(1, 7))]);
    let stats = store.stats();
    assert_eq!((stats.tiers[0].pages, stats.tiers[1].pages), (1, 1));

    let store = open("ram", "", true);
    let results = try_put(&store, &[(0, page(0, 15)), (1, page(1, 7))]);
    assert!(matches!(results[..], [Err(StoreError::NotSmaller), Ok(())]), "{results:?}");
    assert_eq!(store.stats().tiers[0].pages, 1, "memory gains nothing by a copy as large");
}

#[test]
fn a_copy_stands_for_its_page_unless_ram_would_take_it_back() {
    let store = open("ram:1M,file", "", true);
    let pages: Vec<_> = (0..2000).map(|n| (n, page(u64::from(n), 7))).collect();
    pages.chunks(64).for_each(|batch| put(&store, batch));
    let (demoted, newest) = (&pages[0], &pages[1999]);
    assert!(!store.reuse_copy(SlotId(demoted.0), page_hash(&demoted.1)), "it was demoted");
    assert!(store.is_worth_keeping(SlotId(demoted.0)));
    assert!(store.reuse_copy(SlotId(newest.0), page_hash(&newest.1)));
    assert!(!store.is_worth_keeping(SlotId(newest.0)), "it takes room in RAM");
    assert!(!store.reuse_copy(SlotId(newest.0), 1), "another page's hash");
    assert!(!store.reuse_copy(SlotId(5000), 1), "nothing there");
    // A page that does not compress keeps its location in the file.
    put(&store, &[(3000, page(3000, 15))]);
    assert!(store.reuse_copy(SlotId(3000), page_hash(&page(3000, 15))));
    let plain = open("file", "", true);
    put(&plain, &[(0, page(0, 7))]);
    assert!(plain.reuse_copy(SlotId(0), page_hash(&page(0, 7))));
}

#[test]
fn the_oldest_pages_are_demoted_and_the_newest_stay_in_ram() {
    let store = open("ram:1M,file", "", true);
    let pages: Vec<_> = (0..2000).map(|n| (n, page(u64::from(n), 7))).collect();
    for batch in pages.chunks(64) {
        put(&store, batch);
        assert!(store.ram_bytes() <= 1 << 20, "{} bytes of RAM", store.ram_bytes());
    }
    let stats = store.stats();
    assert!(stats.tiers[0].demoted > 1000, "{stats:?}");
    assert_eq!(stats.tiers[0].pages + stats.tiers[1].pages, 2000);
    let in_ram = |slot: u32| {
        let mut page = [0; 4096];
        let filled = store.get_or_start(SlotId(slot), &mut page, 0).expect("get");
        if !filled {
            complete(&store, 1);
        }
        filled
    };
    assert!(!in_ram(0) && !in_ram(500));
    assert!(in_ram(1999) && in_ram(1900));
}

#[test]
fn a_lowered_limit_moves_pages_out_and_gives_memory_back() {
    let store = open("ram:4M,file", "", true);
    let pages: Vec<_> = (0..1000).map(|n| (n, page(u64::from(n), 7))).collect();
    pages.chunks(64).for_each(|batch| put(&store, batch));
    assert!(store.ram_bytes() > 1 << 20);
    store.set_ram_limit(512 << 10);
    let mut calls = 0;
    while store.ram_bytes() > 512 << 10 {
        put(&store, &[]);
        calls += 1;
        assert!(calls < 50, "still {} bytes", store.ram_bytes());
    }
    for (slot, page) in &pages {
        assert!(get(&store, *slot).expect("get") == *page, "slot {slot}");
    }
}

#[test]
fn removed_pages_free_their_room() {
    for tiers in ["ram", "file"] {
        let store = open(tiers, "", true);
        let pages: Vec<_> = (0..640).map(|n| (n, page(u64::from(n), 8))).collect();
        pages.chunks(64).for_each(|batch| put(&store, batch));
        (0..640).for_each(|slot| store.remove(SlotId(slot)));
        put(&store, &[]);
        let tier = &store.stats().tiers[0];
        assert_eq!((tier.pages, tier.stored_bytes), (0, 0));
        assert!(tier.occupied_bytes < 300 << 10, "{tier:?}");
        assert!(matches!(get(&store, 0), Err(StoreError::NotStored { slot: SlotId(0) })));
    }
}

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    for tiers in ["ram:300K", "file:256K", "ram:300K,file:256K"] {
        let store = open(tiers, "", true);
        assert!(store.has_room());
        let mut kept = Vec::new();
        for n in 0..1000 {
            let result = try_put(&store, &[(n, page(u64::from(n), 10))]).remove(0);
            match result {
                Ok(()) => kept.push(n),
                Err(StoreError::Full) => assert!(store.hash_of(SlotId(n)).is_none()),
                Err(error) => panic!("{error}"),
            }
        }
        assert!(!store.has_room(), "{tiers}");
        assert!(kept.len() >= 60 && kept.len() < 300, "{tiers}: {} kept", kept.len());
        for n in &kept {
            assert!(get(&store, *n).expect("get") == page(u64::from(*n), 10), "{tiers}: {n}");
        }
        // A put that fails leaves the old page (lib.rs, STORE-3).
        let last = *kept.last().expect("some were kept");
        if tiers == "file:256K" {
            let result = try_put(&store, &[(last, page(7777, 10))]).remove(0);
            assert!(matches!(result, Err(StoreError::Full)));
            assert!(get(&store, last).expect("get") == page(u64::from(last), 10));
        }
        kept.iter().for_each(|n| store.remove(SlotId(*n)));
        put(&store, &[(0, page(0, 10))]);
    }
}

/// Shows that the RAM tier has room again after pages are removed, although its limit is reached
/// and all its spans are in use.
#[test]
fn holes_left_by_removed_pages_are_room() {
    let store = open("ram:1M", "", true);
    let mut slots = 0;
    while store.has_room() {
        let _ = try_put(&store, &[(slots, page(u64::from(slots), 1 + u64::from(slots % 14)))]);
        slots += 1;
    }
    (0..slots).step_by(2).for_each(|slot| store.remove(SlotId(slot)));
    assert!(store.has_room());
    put(&store, &(0..64).map(|n| (n * 2, page(u64::from(n), 7))).collect::<Vec<_>>());
    for n in 0..64 {
        assert!(get(&store, n * 2).expect("get") == page(u64::from(n), 7));
    }
}

#[test]
fn asynchronous_reads_complete_with_their_tokens() {
    for use_io_uring in EACH_BACKEND {
        let store = open("file", "", use_io_uring);
        let pages: Vec<_> = (0..600).map(|n| (n, page(u64::from(n), 9))).collect();
        pages.chunks(64).for_each(|batch| put(&store, batch));
        let mut buffer = [0; 4096];
        for slot in 0..600 {
            let filled = store.get_or_start(SlotId(slot), &mut buffer, 1000 + u64::from(slot));
            assert!(!filled.expect("start"));
        }
        for (token, result) in complete(&store, 600) {
            assert!(result.expect("read") == page(token - 1000, 9), "token {token}");
        }
        let missing = store.get_or_start(SlotId(600), &mut buffer, 0);
        assert!(matches!(missing, Err(StoreError::NotStored { .. })));
    }
}

#[test]
fn a_batch_of_reads_completes_each_token_wherever_the_page_is() {
    for use_io_uring in EACH_BACKEND {
        let store = open("ram:200K,file", "", use_io_uring);
        let pages: Vec<_> = (0..500).map(|n| (n, page(u64::from(n), u64::from(n % 16)))).collect();
        pages.chunks(64).for_each(|batch| put(&store, batch));
        // In another order than the file's, with one slot twice and one without a page.
        let mut reads: Vec<_> = (0..500u32).map(|n| (SlotId(n * 7 % 500), u64::from(n))).collect();
        reads.extend([(SlotId(3), 500), (SlotId(9999), 501)]);
        store.start_batch(&reads);
        let mut done = complete(&store, reads.len());
        assert!(matches!(done.remove(&501), Some(Err(StoreError::NotStored { .. }))));
        assert!(done.remove(&500).expect("completed").expect("read") == page(3, 3));
        for (token, result) in done {
            let n = token * 7 % 500;
            assert!(result.expect("read") == page(n, n % 16), "token {token}");
        }
    }
}

#[test]
fn completions_can_be_polled_from_another_thread() {
    for use_io_uring in EACH_BACKEND {
        let store = open("file", "", use_io_uring);
        let pages: Vec<_> = (0..512).map(|n| (n, page(u64::from(n), 9))).collect();
        pages.chunks(64).for_each(|batch| put(&store, batch));
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| complete(&store, 512));
            let mut buffer = [0; 4096];
            for slot in 0..512 {
                let started = store.get_or_start(SlotId(slot), &mut buffer, u64::from(slot));
                assert!(!started.expect("start"));
            }
            for (token, result) in poller.join().expect("poller") {
                assert!(result.expect("read") == page(token, 9), "token {token}");
            }
        });
    }
}

/// Shows that reads complete although the thread that started them ends, and the kernel then
/// cancels its reads.
#[test]
fn reads_outlive_the_thread_that_started_them() {
    let store = open("file", "", true);
    let pages: Vec<_> = (0..512).map(|n| (n, page(u64::from(n), 9))).collect();
    pages.chunks(64).for_each(|batch| put(&store, batch));
    std::thread::scope(|scope| {
        for first in (0..512).step_by(32) {
            let store = &store;
            scope.spawn(move || {
                let mut buffer = [0; 4096];
                for slot in first..first + 32 {
                    let started = store.get_or_start(SlotId(slot), &mut buffer, u64::from(slot));
                    assert!(!started.expect("start"));
                }
            });
        }
    });
    for (token, result) in complete(&store, 512) {
        assert!(result.expect("read") == page(token, 9), "token {token}");
    }
}

#[test]
fn dropping_the_store_with_reads_in_flight_is_safe() {
    for use_io_uring in EACH_BACKEND {
        let store = open("file", "slow-read=20ms@n8", use_io_uring);
        put(&store, &(0..64).map(|n| (n, page(u64::from(n), 9))).collect::<Vec<_>>());
        let mut buffer = [0; 4096];
        for slot in 0..64 {
            assert!(!store.get_or_start(SlotId(slot), &mut buffer, 0).expect("start"));
        }
        drop(store);
    }
}

#[test]
fn adjacent_pages_are_read_with_few_transfers() {
    let store = open("file", "", true);
    put(&store, &(0..64).map(|n| (n, page(u64::from(n), 9))).collect::<Vec<_>>());
    let reads: Vec<_> = (0..64).step_by(2).map(|n| (SlotId(n), u64::from(n))).collect();
    store.start_batch(&reads);
    for (token, result) in complete(&store, 32) {
        assert!(result.expect("read") == page(token, 9), "token {token}");
    }
    // Four transfers of 15 pages each. Every second page is skipped, and no transfer includes the
    // last page.
    let stats = store.stats();
    assert_eq!(stats.tiers[0].name, TierName::File(0));
    assert_eq!(stats.tiers[0].reads, 4 * 15);
}

#[test]
fn tiers_that_make_no_sense_are_refused() {
    let options = ebb_swap::Options::default();
    assert!(matches!(Store::open(&[], &options), Err(StoreError::Tiers(_))));
    let (ram, file) = (
        ebb_swap::TierSpec::Ram { limit: None },
        ebb_swap::TierSpec::File { path: None, limit: None },
    );
    assert!(matches!(Store::open(&[file, ram], &options), Err(StoreError::Tiers(_))));
    for tiers in ["ram:4K", "file:4095", "ram,file:1"] {
        let tiers = ebb_swap::parse_tiers(tiers).expect("tiers");
        let error = Store::open(&tiers, &options).err().expect("too small").to_string();
        assert!(error.contains("or more, or leave it out"), "{error}");
    }
}
