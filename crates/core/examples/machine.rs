//! A minimal machine: the cost of one program in less and less memory.
//!
//! ```text
//! cargo run --release -p ebb-mm --example machine
//! ```
//! Only standby shows whether a page is used here, as in `ebb run` ([`Evidence::Standby`]). The
//! program uses 1,000 pages again and again, and passes once over 5,000 others.

use ebb_mm::{Arrival, Did, Do, Engine, Entry, Evidence, Pfn, Seen, Space, Vpn, WakeRequests};

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
        let set = &mut self.engine.set;
        let (how, slot) = match self.space.get(vpn) {
            Entry::Resident(_) => return,
            Entry::Standby(pfn) => {
                self.reactivations += 1;
                set.reactivate(&mut self.space, pfn);
                return;
            }
            Entry::Stored { slot, .. } => (Arrival::Loaded, Some(slot)),
            Entry::None => (Arrival::Fresh, None),
        };
        self.loads += u64::from(slot.is_some());
        // This takes one page of the budget, perhaps the last one. The machine lets kswapd work
        // before it goes on.
        let charge = set.zone.charge(1);
        set.zone.place(charge);
        set.map(&mut self.space, vpn, how, slot);
        if set.zone.is_low() {
            self.engine.request_wake(&self.wake_requests);
            while self.reclaim() {}
        }
    }

    /// Carries out the engine's next order. Returns false if there is none.
    fn reclaim(&mut self) -> bool {
        let mut pages: Vec<Pfn> = Vec::new();
        let order = self.engine.next(&self.wake_requests, Seen::default());
        match order {
            Do::ToStandby(max) => self.engine.isolate(max, &mut pages),
            Do::Store(max) => self.engine.oldest_standby(max, &mut pages),
            Do::Drop(_) | Do::Again => {}
            Do::Nap | Do::Sleep | Do::OutOfMemory | Do::Thrashing => return false,
        }
        let set = &mut self.engine.set;
        for &pfn in &pages {
            if matches!(order, Do::ToStandby(_)) {
                set.deactivate(&mut self.space, pfn, 0);
            } else {
                // No page is written here, so a copy that was stored before is still valid.
                let copy = set.frame(pfn).slot();
                let slot = copy.unwrap_or_else(|| set.take_slot().expect("there are four billion"));
                set.evict(&mut self.space, pfn, slot);
                set.zone.remove_resident(1);
            }
        }
        let pages = pages.len() as u64;
        self.engine.did(Did { pages, scanned: pages, progress: pages });
        true
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
