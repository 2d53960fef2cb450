//! Tests the store against a map: any sequence of calls and every list of tiers. The limits are so
//! small that pages take every path out of a tier.

use crate::common::{complete, get, open, page, try_put};
use ebb_mm::types::SlotId;
use ebb_swap::{Page, Store, StoreError, page_hash};
use proptest::prelude::*;
use std::collections::HashMap;

/// Number of slots, which is small so that steps meet slots again.
const SLOTS: u32 = 400;

#[derive(Clone, Debug)]
enum Step {
    /// A batch of pages from slot `first` on, with content determined by a seed.
    Put {
        first: u32,
        count: u32,
        seed: u64,
    },
    Get {
        slot: u32,
    },
    /// Asynchronous reads of slots from `first` on.
    Start {
        first: u32,
        count: u32,
    },
    Remove {
        first: u32,
        count: u32,
    },
    /// A new limit of the RAM tier, in KiB; lower ones demote.
    Limit {
        kib: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let slots = || (0..SLOTS, 1..=64u32);
    prop_oneof![
        4 => (slots(), 0..1000u64)
            .prop_map(|((first, count), seed)| Step::Put { first, count, seed }),
        3 => (0..SLOTS).prop_map(|slot| Step::Get { slot }),
        2 => slots().prop_map(|(first, count)| Step::Start { first, count }),
        2 => slots().prop_map(|(first, count)| Step::Remove { first, count }),
        1 => (0..600u64).prop_map(|kib| Step::Limit { kib }),
    ]
}

fn slots(first: u32, count: u32) -> impl Iterator<Item = u32> {
    (first..first + count).map(|slot| slot % SLOTS)
}

/// Does a step on the store and on the model, and compares the results.
fn perform(store: &Store, model: &mut HashMap<u32, Page>, step: &Step) {
    match *step {
        Step::Put { first, count, seed } => {
            let kind = |slot: u32| ebb_mm::random::mix(seed ^ u64::from(slot)) % 16;
            let pages: Vec<_> = slots(first, count)
                .map(|slot| (slot, page(seed << 32 | u64::from(slot), kind(slot))))
                .collect();
            for (result, (slot, page)) in try_put(store, &pages).into_iter().zip(pages) {
                match result {
                    Ok(()) => drop(model.insert(slot, page)),
                    Err(StoreError::Full | StoreError::NotSmaller) => {}
                    Err(error) => panic!("put: {error}"),
                }
            }
        }
        Step::Get { slot } => check(get(store, slot), model.get(&slot), slot),
        Step::Start { first, count } => {
            let reads: Vec<_> =
                slots(first, count).map(|slot| (SlotId(slot), u64::from(slot))).collect();
            store.start_batch(&reads);
            for (token, result) in complete(store, reads.len()) {
                check(result, model.get(&(token as u32)), token as u32);
            }
        }
        Step::Remove { first, count } => {
            for slot in slots(first, count) {
                store.remove(SlotId(slot));
                model.remove(&slot);
            }
        }
        Step::Limit { kib } => {
            store.set_ram_limit(kib << 10);
            for _ in 0..4 {
                try_put(store, &[]);
            }
        }
    }
}

fn check(result: Result<Page, StoreError>, expected: Option<&Page>, slot: u32) {
    match (result, expected) {
        (Ok(page), Some(expected)) => assert!(page == *expected, "slot {slot}: wrong content"),
        (Err(StoreError::NotStored { .. }), None) => {}
        (Ok(_), None) => panic!("slot {slot}: holds a page it should not"),
        (Err(error), _) => panic!("slot {slot}: {error}"),
    }
}

fn run(tiers: &str, steps: &[Step]) {
    let store = open(tiers, "", true);
    let mut model = HashMap::new();
    for step in steps {
        perform(&store, &mut model, step);
    }
    for slot in 0..SLOTS {
        assert_eq!(store.hash_of(SlotId(slot)), model.get(&slot).map(page_hash));
        check(get(&store, slot), model.get(&slot), slot);
    }
    let stats = store.stats();
    let pages: u64 = stats.tiers.iter().map(|tier| tier.pages).sum();
    assert_eq!(pages + stats.same_filled_pages, model.len() as u64, "{stats:?}");
    for slot in 0..SLOTS {
        store.remove(SlotId(slot));
    }
    let stats = store.stats();
    assert!(stats.tiers.iter().all(|tier| tier.pages == 0 && tier.stored_bytes == 0), "{stats:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn ram(steps in prop::collection::vec(step(), 1..60)) {
        run("ram:500K", &steps);
    }

    #[test]
    fn file(steps in prop::collection::vec(step(), 1..60)) {
        run("file:1000K", &steps);
    }

    #[test]
    fn ram_and_file(steps in prop::collection::vec(step(), 1..60)) {
        run("ram:200K,file:600K", &steps);
    }

    #[test]
    fn ram_and_two_files(steps in prop::collection::vec(step(), 1..60)) {
        run("ram:100K,file:300K,file", &steps);
    }
}
