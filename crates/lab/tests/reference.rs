//! Tests the misses of every textbook policy on a generated trace against other simulators.
//!
//! The counts of all but the last three policies are libCacheSim 0.3.5's on this very trace. CAR,
//! CLOCK-Pro and DClock were compared with Caffeine's simulator on recorded traces (`ebb lab
//! check-baseline`). Their counts here were measured when all of those were equal.

use std::path::Path;
use std::sync::Arc;

use ebb_lab::policy::{PolicyInfo, Settings};
use ebb_lab::replay::{self, Job};
use ebb_lab::trace::{Format, Reader, Spool, load};
use ebb_mm::random::Random;

/// Generates the trace: skewed accesses, a loop, a scan mixed with skewed accesses, and skewed
/// accesses to a small set, six times over.
fn trace() -> Spool {
    let mut random = Random(7);
    let mut text = String::new();
    let mut fresh = 4000;
    for phase in 0..24 {
        for i in 0..2500 {
            let page = match phase % 4 {
                0 => {
                    let limit = random.below(3000) + 1;
                    random.below(limit)
                }
                1 => 1000 + i % 900,
                2 if random.below(4) == 0 => {
                    fresh += 1;
                    fresh - 1
                }
                _ => {
                    let limit = random.below(600) + 1;
                    random.below(limit)
                }
            };
            text += &format!("{page}\n");
        }
    }
    let format = Some(Format::Pages);
    let mut reader = Reader::from_bytes("generated", text.into_bytes(), format).unwrap();
    load(Path::new("generated"), &mut reader, u64::MAX, |_| true).unwrap().0
}

const MEMORY_PAGES: [u32; 3] = [200, 1000, 2500];
const MISSES: [(&str, [u64; 3]); 14] = [
    ("fifo", [46577, 20954, 11123]),
    ("lru", [45477, 18130, 8069]),
    ("clock", [44907, 19171, 7250]),
    ("arc", [41678, 20459, 6684]),
    ("lirs", [41148, 22805, 6849]),
    ("2q", [42430, 21396, 8592]),
    ("s3-fifo", [41020, 23771, 6887]),
    ("sieve", [40372, 21331, 6862]),
    ("w-tinylfu", [40982, 18834, 6898]),
    ("lecar", [45159, 18364, 7325]),
    ("belady", [30268, 12606, 6259]),
    ("car", [41423, 20923, 6683]),
    ("clock-pro", [41122, 23083, 6748]),
    ("dclock", [43114, 22214, 7276]),
];

#[test]
fn misses_equal_the_reference_simulators() {
    let spool = trace();
    assert_eq!((spool.len(), spool.pages()), (60_000, 6259));
    let settings = Arc::new(Settings::default());
    for (name, expected) in MISSES {
        let policy = PolicyInfo::find(name).unwrap();
        let job = |memory_pages| Job { policy, memory_pages, settings: Arc::clone(&settings) };
        let outcomes = replay::run(&spool, &MEMORY_PAGES.map(job), 1, &|_| ()).unwrap();
        let misses: Vec<u64> = outcomes.iter().map(|outcome| outcome.misses).collect();
        assert_eq!(misses, expected, "{name}");
    }
}
