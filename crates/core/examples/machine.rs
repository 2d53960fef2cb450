//! A minimal machine: the cost of one program in less and less memory.
//!
//! ```text
//! cargo run --release -p ebb-mm --example machine
//! ```
//! Only standby shows whether a page is used here, as in `ebb run` ([`Evidence::Standby`]). The
//! program uses 1,000 pages again and again, and passes once over 5,000 others.

use ebb_mm::{Engine, Evidence, Fault, Space, Vpn, WakeRequests, Work};

struct Machine {
    engine: Engine,
    space: Space,
    wake_requests: WakeRequests,
    /// Accesses that found their page on standby (`reactivations`), and in the store (`loads`).
    reactivations: u64,
    loads: u64,
}

impl Machine {
    fn new(memory_pages: u64) -> Self {
        let evidence = Evidence::Standby;
        let mut engine = Engine::new(memory_pages, memory_pages, evidence.tunables(), evidence);
        let space = engine.create_space(Vpn(6_000));
        Self { engine, space, wake_requests: WakeRequests::new(), reactivations: 0, loads: 0 }
    }

    /// Accesses a page as the program.
    fn touch(&mut self, vpn: Vpn) {
        match self.engine.fault(&mut self.space, vpn) {
            Fault::Present(_) => return,
            Fault::Reactivated { .. } => {
                self.reactivations += 1;
                return;
            }
            Fault::Load(_, charge) => {
                self.loads += 1;
                self.engine.complete(&mut self.space, vpn, charge)
            }
            Fault::Fresh(charge) => self.engine.complete(&mut self.space, vpn, charge),
        };
        self.reclaim();
    }

    /// Does all work of kswapd.
    fn reclaim(&mut self) {
        let (engine, space, mut pages) = (&mut self.engine, &mut self.space, Vec::new());
        while let Some(work) = engine.work(&self.wake_requests, &mut pages) {
            assert!(matches!(work, Work::ToStandby | Work::Store), "{work:?}");
            for &pfn in &pages {
                if work == Work::ToStandby {
                    engine.stand_by(space, pfn, 0);
                } else {
                    // No page is written here, so a copy that was stored before is still valid.
                    let slot = engine.slot_for(pfn).expect("there are four billion");
                    engine.leave(space, pfn, slot);
                }
            }
        }
    }
}

/// Runs the program in `memory_pages` pages of memory.
fn run(memory_pages: u64) -> Machine {
    let mut machine = Machine::new(memory_pages);
    for round in 0..100 {
        (0..1_000).for_each(|page| machine.touch(Vpn(page)));
        (0..50).for_each(|page| machine.touch(Vpn(1_000 + round * 50 + page)));
    }
    machine
}

fn main() {
    println!(
        "105,000 touches of 6,000 pages\n{:>8} {:>8} {:>8}",
        "memory", "reactivations", "loads"
    );
    for memory_pages in [6_100, 3_000, 2_000, 1_500, 1_200, 1_000] {
        let machine = run(memory_pages);
        println!("{memory_pages:>8} {:>8} {:>8}", machine.reactivations, machine.loads);
    }
}

#[test]
fn the_pages_in_use_stay() {
    assert_eq!(run(6_100).loads, 0);
    let machine = run(2_000);
    assert!(machine.engine.set.zone.used() <= 2_000);
    assert!(machine.loads < 2_500, "{} loads", machine.loads);
}
