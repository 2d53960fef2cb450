//! Pages to store and ways to wait, for all tests of the store.
#![allow(dead_code, reason = "each test file uses its part")]

use ebb_mm::random::mix;
use ebb_mm::types::SlotId;
use ebb_swap::{Options, Page, Store, StoreError, ZERO_PAGE, inject::Plan, parse_tiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;

/// Creates a page determined by its number: random up to a share that `kind` determines, the rest
/// constant. Kind 0 repeats one word, 1 to 14 compress better to worse, 15 does not compress.
pub fn page(number: u64, kind: u64) -> Page {
    let mut page = ZERO_PAGE;
    let random = kind as usize * 512 / 15;
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = if at < random { mix(number << 16 | at as u64) } else { number };
        *word = value.to_ne_bytes();
    }
    page
}

/// Opens a store with the tiers and the fault plan given as texts.
pub fn open(tiers: &str, plan: &str, use_io_uring: bool) -> Store {
    let tiers = parse_tiers(tiers).expect("tiers");
    let inject = Some(Plan::parse(plan).expect("plan"));
    let options = Options { inject, use_io_uring, ..Options::default() };
    Store::open(&tiers, &options).expect("open")
}

/// Puts one batch of pages. The store must take all of them.
pub fn put(store: &Store, pages: &[(u32, Page)]) {
    for result in try_put(store, pages) {
        result.expect("put");
    }
}

/// Puts one batch of pages.
pub fn try_put(store: &Store, pages: &[(u32, Page)]) -> Vec<Result<(), StoreError>> {
    let batch: Vec<_> = pages.iter().map(|(slot, page)| (SlotId(*slot), page)).collect();
    let mut results = Vec::new();
    store.put_batch(&batch, &mut results);
    assert_eq!(results.len(), pages.len());
    results
}

/// Gets a page.
pub fn get(store: &Store, slot: u32) -> Result<Page, StoreError> {
    let mut page = [0x5a; 4096];
    store.get(SlotId(slot), &mut page).map(|()| page)
}

/// Waits for `count` completions; each token may come once.
pub fn complete(store: &Store, count: usize) -> HashMap<u64, Result<Page, StoreError>> {
    let mut done = HashMap::new();
    while done.len() < count {
        let fd = store.completion_fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let limit = Timespec::try_from(ebb_testing::HANG).expect("some time");
        let ready = poll(&mut fds, Some(&limit)).expect("poll");
        assert!(ready > 0, "hangs: {} of {count} completions", done.len());
        store.poll_completions(&mut |token, result| {
            let before = done.insert(token, result.copied());
            assert!(before.is_none(), "token {token} completed twice");
        });
    }
    done
}
