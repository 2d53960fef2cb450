//! A driver's own policy over the engine's: pages that cost more to load stay longer.
//!
//! ```text
//! cargo run --release -p ebb-mm --example own_policy
//! ```
//! The engine decides which pages should leave first (`lru=gen` or `lru=classic`, and their
//! switches). The driver decides whether they leave. It may return any page
//! ([`Engine::keep`]), and then the engine offers others. Here two programs use their pages
//! alike. The pages of one come from a disk, which is twenty times as slow as the source of the
//! other's. The driver refuses the first few offers of each slow page.
//!
//! [`Engine::keep`]: ebb_mm::Engine::keep

mod common;

use common::Random;
use ebb_mm::{Engine, Evidence, Fault, Pfn, Space, Vpn, WakeRequests, Work};
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
        let space = &mut self.programs[program];
        let pfn = match self.engine.fault(space, vpn) {
            Fault::Present(_) | Fault::Reactivated { .. } => return,
            Fault::Load(_, charge) => {
                self.loads[program] += 1;
                self.engine.complete(space, vpn, charge)
            }
            Fault::Fresh(charge) => self.engine.complete(space, vpn, charge),
        };
        self.turned_down.insert(pfn, 0);
        let mut offered = Vec::new();
        while let Some(work) = self.engine.work(&self.wake_requests, &mut offered) {
            assert_eq!(work, Work::Store, "with accessed bits nothing is on standby");
            offered.iter().for_each(|&pfn| self.decide(pfn));
        }
    }

    /// Decides whether a page that the engine offers leaves: the policy.
    fn decide(&mut self, pfn: Pfn) {
        let slow = self.engine.set.frame(pfn).mm == self.programs[1].mm();
        let turned_down = self.turned_down.entry(pfn).or_default();
        if slow && *turned_down < self.patience {
            *turned_down += 1;
            self.engine.keep(pfn);
            return;
        }
        let slot = self.engine.slot_for(pfn).expect("there are four billion");
        self.engine.leave(&mut self.programs[usize::from(slow)], pfn, slot);
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
