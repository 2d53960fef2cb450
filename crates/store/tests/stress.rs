//! Stress test: one thread puts while others read in both ways and remove.
//!
//! Every page carries its slot and a version. A reader must get a version of its slot that was
//! current at some moment of its read, or the answer that there is no page.

use crate::common::open;
use ebb_mm::random::mix;
use ebb_mm::types::SlotId;
use ebb_swap::{Page, Store, StoreError, ZERO_PAGE};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;

const SLOTS: u32 = 1000;
/// Minimum of work before all threads stop: rounds of the putter, and pages read by each reader.
const ROUNDS: u64 = 150;
const PAGES: u64 = 1500;

/// Creates a page that names its slot and version. A share that depends on both is noise.
fn versioned(slot: u32, version: u64) -> Page {
    let mut page = ZERO_PAGE;
    let noise = mix(u64::from(slot) ^ version << 20) as usize % 512;
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = match at {
            0 => u64::from(slot),
            1 => version,
            at if at < noise => mix(version << 32 | u64::from(slot) << 10 | at as u64),
            _ => 0,
        };
        *word = value.to_ne_bytes();
    }
    page
}

fn word(page: &Page, at: usize) -> u64 {
    u64::from_ne_bytes(page.as_chunks::<8>().0[at])
}

/// The versions of each slot that the putter has begun and ended to store.
struct Versions {
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
    /// Work done by the putter and the two readers.
    done: [AtomicU64; 3],
    stop: AtomicBool,
}

impl Versions {
    fn ended(&self, slot: u32) -> u64 {
        self.ended[slot as usize].load(Ordering::SeqCst)
    }

    /// Checks the result of a read that began when `ended` was the last stored version.
    fn judge(&self, slot: u32, ended: u64, result: Result<&Page, StoreError>) -> u64 {
        match result {
            Ok(page) => {
                let version = word(page, 1);
                assert_eq!(word(page, 0), u64::from(slot), "a page of another slot");
                assert!(*page == versioned(slot, version), "slot {slot}: torn");
                let begun = self.begun[slot as usize].load(Ordering::SeqCst);
                assert!(version >= ended && version <= begun, "{ended} <= {version} <= {begun}");
                1
            }
            Err(StoreError::NotStored { .. }) => 0,
            Err(error) => panic!("slot {slot}: {error}"),
        }
    }
}

fn putter(store: &Store, versions: &Versions) {
    let mut results = Vec::new();
    for round in 1u64.. {
        versions.done[0].store(round, Ordering::SeqCst);
        if versions.stop.load(Ordering::SeqCst) {
            return;
        }
        let first = mix(round) as u32 % SLOTS;
        let slots: Vec<u32> = (first..(first + 48).min(SLOTS)).collect();
        let pages: Vec<Page> = slots.iter().map(|slot| versioned(*slot, round)).collect();
        for slot in &slots {
            versions.begun[*slot as usize].store(round, Ordering::SeqCst);
        }
        let batch: Vec<_> = slots.iter().zip(&pages).map(|(s, page)| (SlotId(*s), page)).collect();
        store.put_batch(&batch, &mut results);
        for (slot, result) in slots.iter().zip(&results) {
            if result.is_ok() {
                versions.ended[*slot as usize].store(round, Ordering::SeqCst);
            }
        }
        if round % 8 == 0 {
            store.set_ram_limit((100 + mix(round) % 900) << 10);
        }
        if round % 3 == 0 {
            store.remove(SlotId(mix(round ^ 77) as u32 % SLOTS));
        }
    }
}

fn reader(store: &Store, versions: &Versions, seed: u64) {
    let (mut page, mut count) = (ZERO_PAGE, 0);
    for round in 0u64.. {
        versions.done[1].store(count, Ordering::SeqCst);
        if versions.stop.load(Ordering::SeqCst) {
            return;
        }
        let slot = mix(seed ^ round) as u32 % SLOTS;
        let ended = versions.ended(slot);
        let result = store.get(SlotId(slot), &mut page);
        count += versions.judge(slot, ended, result.map(|()| &page));
    }
}

/// Reads with `get_or_start` and `start_batch`; a token is the slot and the version stored last.
fn asynchronous_reader(store: &Store, versions: &Versions, seed: u64) {
    let (mut page, mut count) = (ZERO_PAGE, 0);
    let mut waiting = 0;
    let mut round = 0;
    let token = |slot: u32| versions.ended(slot) << 16 | u64::from(slot);
    loop {
        versions.done[2].store(count, Ordering::SeqCst);
        let stop = versions.stop.load(Ordering::SeqCst);
        if stop && waiting == 0 {
            return;
        }
        if !stop && waiting < 64 {
            round += 1;
            let slot = mix(seed ^ round) as u32 % SLOTS;
            if round % 4 == 0 {
                let slots = slot..(slot + 8).min(SLOTS);
                let reads: Vec<_> = slots.map(|slot| (SlotId(slot), token(slot))).collect();
                waiting += reads.len();
                store.start_batch(&reads);
            } else {
                let token = token(slot);
                match store.get_or_start(SlotId(slot), &mut page, token) {
                    Ok(true) => count += versions.judge(slot, token >> 16, Ok(&page)),
                    Ok(false) => waiting += 1,
                    Err(error) => count += versions.judge(slot, 0, Err(error)),
                }
            }
        }
        store.poll_completions(&mut |token, result| {
            waiting -= 1;
            count += versions.judge(token as u32 & 0xffff, token >> 16, result);
        });
    }
}

#[test]
fn readers_see_only_current_pages() {
    for (tiers, use_io_uring) in
        [("ram:400K,file", true), ("ram:400K,file", false), ("ram", true), ("file", true)]
    {
        let store = open(tiers, "", use_io_uring);
        let zeros = || (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let (done, stop) = (Default::default(), AtomicBool::new(false));
        let versions = Versions { begun: zeros(), ended: zeros(), done, stop };
        std::thread::scope(|scope| {
            let threads = [
                scope.spawn(|| putter(&store, &versions)),
                scope.spawn(|| reader(&store, &versions, 1 << 40)),
                scope.spawn(|| asynchronous_reader(&store, &versions, 2 << 40)),
            ];
            // A thread that panicked does no more work, so the wait ends.
            ebb_testing::eventually("all three to have done enough", || {
                let done = versions.done.each_ref().map(|done| done.load(Ordering::SeqCst));
                threads.iter().any(ScopedJoinHandle::is_finished)
                    || done[0] > ROUNDS && done[1] > PAGES && done[2] > PAGES
            });
            versions.stop.store(true, Ordering::SeqCst);
        });
    }
}
