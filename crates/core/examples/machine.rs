//! A machine as small as can be: what the same program costs in less and less memory.
//!
//! ```text
//! cargo run --release -p ebb-mm --example machine
//! ```
//! Nothing can be seen of a page's use here but that it is touched while out of sight, as in `ebb run`
//! ([`Evidence::Cooling`]). The program uses 1,000 pages again and again, and passes once over 5,000 others.

use ebb_mm::{Arrival, Desk, Did, Do, Engine, Entry, Evidence, Pfn, Seen, Space, Vpn};

struct Machine {
    engine: Engine,
    space: Space,
    desk: Desk,
    /// Touches that found their page out of sight, and in the store.
    rescues: u64,
    loads: u64,
}

impl Machine {
    fn new(memory_pages: u64) -> Self {
        let evidence = Evidence::Cooling;
        let mut engine = Engine::new(memory_pages, memory_pages, evidence.tunables(), evidence);
        let space = engine.create_space(Vpn(6_000));
        Self { engine, space, desk: Desk::new(), rescues: 0, loads: 0 }
    }

    /// The program touches a page.
    fn touch(&mut self, vpn: Vpn) {
        let set = &mut self.engine.set;
        let (how, slot) = match self.space.get(vpn) {
            Entry::Resident(_) => return,
            Entry::Cool(pfn) => {
                self.rescues += 1;
                set.rescue(&mut self.space, pfn);
                return;
            }
            Entry::Stored { slot, .. } => (Arrival::Loaded, Some(slot)),
            Entry::None => (Arrival::Fresh, None),
        };
        self.loads += u64::from(slot.is_some());
        // One page of the budget, which may be the last: this machine lets kswapd work before it goes on.
        let charge = set.zone.charge(1);
        set.zone.place(charge);
        set.map(&mut self.space, vpn, how, slot);
        if set.zone.is_low() {
            self.engine.ask(&self.desk);
            while self.reclaim() {}
        }
    }

    /// Does what the engine says is next. False if it says that there is nothing.
    fn reclaim(&mut self) -> bool {
        let mut pages: Vec<Pfn> = Vec::new();
        let order = self.engine.next(&self.desk, Seen::default());
        match order {
            Do::Cool(max) => self.engine.isolate(max, &mut pages),
            Do::Store(max) => self.engine.coolest(max, &mut pages),
            Do::Drop(_) | Do::Again => {}
            Do::Nap | Do::Sleep | Do::Despair | Do::Thrashing => return false,
        }
        let set = &mut self.engine.set;
        for &pfn in &pages {
            if matches!(order, Do::Cool(_)) {
                set.cool(&mut self.space, pfn, 0);
            } else {
                // Nothing is written here, so what was stored before is still true.
                let copy = set.frame(pfn).slot();
                let slot = copy.unwrap_or_else(|| set.take_slot().expect("there are four billion"));
                set.evict(&mut self.space, pfn, slot);
                set.zone.gone(1);
            }
        }
        let pages = pages.len() as u64;
        self.engine.did(Did { pages, scanned: pages, progress: pages });
        true
    }
}

/// The program in so much memory.
fn run(memory_pages: u64) -> Machine {
    let mut machine = Machine::new(memory_pages);
    for round in 0..100 {
        (0..1_000).for_each(|page| machine.touch(Vpn(page)));
        (0..50).for_each(|page| machine.touch(Vpn(1_000 + round * 50 + page)));
    }
    machine
}

fn main() {
    println!("105,000 touches of 6,000 pages\n{:>8} {:>8} {:>8}", "memory", "rescues", "loads");
    for memory_pages in [6_100, 3_000, 2_000, 1_500, 1_200, 1_000] {
        let machine = run(memory_pages);
        println!("{memory_pages:>8} {:>8} {:>8}", machine.rescues, machine.loads);
    }
}

#[test]
fn the_pages_in_use_stay() {
    assert_eq!(run(6_100).loads, 0);
    let machine = run(2_000);
    assert!(machine.engine.set.zone.used() <= 2_000);
    assert!(machine.loads < 2_500, "{} loads", machine.loads);
}
