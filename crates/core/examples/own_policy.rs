//! A driver's own policy over the engine's: pages that cost more to load stay longer.
//!
//! ```text
//! cargo run --release -p ebb-mm --example own_policy
//! ```
//! The engine decides which pages should leave first (`lru=gen` or `lru=classic`, and their
//! switches). The driver decides whether they leave. It may return any page
//! ([`Resident::put_back`]), and then the engine offers others. Here two programs use their pages
//! alike. The pages of one come from a disk, which is twenty times as slow as the source of the
//! other's. The driver refuses the first few offers of each slow page.
//!
//! [`Resident::put_back`]: ebb_mm::Resident::put_back

mod common;

use common::Random;
use ebb_mm::{Arrival, Did, Do, Engine, Entry, Evidence, Pfn, Seen, Space, Vpn, WakeRequests};
use std::collections::HashMap;

/// Pages of each program.
const PAGES: u64 = 3_000;
/// Pages of memory: half of all pages.
const MEMORY_PAGES: u64 = 3_000;
/// Cost of a load, by program.
const COST: [u64; 2] = [1, 20];

struct Machine {
    engine: Engine,
    programs: [Space; 2],
    wake_requests: WakeRequests,
    /// Number of times that the driver refuses the offer of a slow page.
    patience: u32,
    /// Refused offers of each page since it came.
    turned_down: HashMap<Pfn, u32>,
    loads: [u64; 2],
}

impl Machine {
    fn new(patience: u32) -> Self {
        let evidence = Evidence::AccessedBits;
        let mut engine = Engine::new(MEMORY_PAGES, MEMORY_PAGES, evidence.tunables(), evidence);
        let programs = [(); 2].map(|()| engine.create_space(Vpn(PAGES)));
        let (wake_requests, turned_down) = (WakeRequests::new(), HashMap::new());
        Self { engine, programs, wake_requests, patience, turned_down, loads: [0; 2] }
    }

    fn touch(&mut self, program: usize, vpn: Vpn) {
        let (set, space) = (&mut self.engine.set, &mut self.programs[program]);
        if space.touch(vpn) {
            return;
        }
        let (how, slot) = match space.get(vpn) {
            Entry::Stored { slot, .. } => (Arrival::Loaded, Some(slot)),
            _ => (Arrival::Fresh, None),
        };
        self.loads[program] += u64::from(slot.is_some());
        let charge = set.zone.charge(1);
        set.zone.place(charge);
        let pfn = set.map(space, vpn, how, slot);
        space.touch(vpn);
        self.turned_down.insert(pfn, 0);
        if set.zone.is_low() {
            self.engine.request_wake(&self.wake_requests);
            while self.reclaim() {}
        }
    }

    fn reclaim(&mut self) -> bool {
        let mut offered: Vec<Pfn> = Vec::new();
        match self.engine.next(&self.wake_requests, Seen::default()) {
            Do::Store(max) => self.engine.oldest_standby(max, &mut offered),
            Do::ToStandby(_) => unreachable!("where there are accessed bits nothing is on standby"),
            Do::Drop(_) | Do::Again => {}
            Do::Nap | Do::Sleep | Do::OutOfMemory | Do::Thrashing => return false,
        }
        let mut stored = 0;
        for &pfn in &offered {
            stored += u64::from(self.leaves(pfn));
        }
        // Pages that were looked at and stayed count as scanned, because that too can end a pass.
        self.engine.did(Did { pages: stored, scanned: offered.len() as u64, progress: stored });
        true
    }

    /// Whether a page that the engine offers leaves: the policy.
    fn leaves(&mut self, pfn: Pfn) -> bool {
        let set = &mut self.engine.set;
        let frame = set.frame(pfn);
        let slow = frame.mm == self.programs[1].mm();
        let turned_down = self.turned_down.entry(pfn).or_default();
        if slow && *turned_down < self.patience {
            *turned_down += 1;
            set.put_back(pfn);
            return false;
        }
        let slot = frame.slot().unwrap_or_else(|| set.take_slot().expect("there are four billion"));
        set.evict(&mut self.programs[usize::from(slow)], pfn, slot);
        set.zone.remove_resident(1);
        true
    }
}

/// Returns the loads by program, and their total cost.
fn run(patience: u32) -> ([u64; 2], u64) {
    let (mut machine, mut random) = (Machine::new(patience), Random(7));
    for _ in 0..200_000 {
        // Pages with lower numbers are used more.
        let program = random.below(2) as usize;
        let page = random.below(PAGES).min(random.below(PAGES)).min(random.below(PAGES));
        machine.touch(program, Vpn(page));
    }
    assert!(machine.engine.set.zone.used() <= MEMORY_PAGES);
    let cost = (0..2).map(|program| machine.loads[program] * COST[program]).sum();
    (machine.loads, cost)
}

fn main() {
    println!("{:>8} {:>8} {:>8} {:>8}", "patience", "fast", "slow", "cost");
    for patience in 0..=4 {
        let ([fast, slow], cost) = run(patience);
        println!("{patience:>8} {fast:>8} {slow:>8} {cost:>8}");
    }
}

#[test]
fn the_slow_pages_stay_and_that_pays() {
    let ((plain, before), (patient, after)) = (run(0), run(1));
    assert!(patient[1] < plain[1] && after < before, "{plain:?} {before}, {patient:?} {after}");
}
