//! Simulates the resident set of `ebb run` in virtual time. Prints loads and reactivations per
//! access, by load pattern and by the share of pages on standby.
//!
//! ```text
//! cargo run --release -p ebb-mm --example standby -- [KEY=VALUE...]
//! ```
//! It has 262,144 pages and room for 128,000, like `ebb bench paging`.

mod common;

use common::Random;
use ebb_mm::resident::{Arrival, Dropped, Entry, FrameState, Resident, Space};
use ebb_mm::tunables::Tunables;
use ebb_mm::types::{MmId, Pfn, Vpn};

const PAGES: u64 = 262_144;
const ROOM: usize = 128_000;

/// Returns a number in 0..1.
fn unit(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// Zipf ranks with exponent 0.99 (Gray et al., "Quickly generating billion-record synthetic
/// databases").
struct Zipf {
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    fn new() -> Self {
        let zeta: f64 = (1..=PAGES).map(|rank| (rank as f64).powf(-THETA)).sum();
        let two = 1.0 + 0.5f64.powf(THETA);
        let eta = (1.0 - (2.0 / PAGES as f64).powf(1.0 - THETA)) / (1.0 - two / zeta);
        Self { zeta, eta }
    }

    fn next(&self, random: &mut Random) -> u64 {
        let u = unit(random);
        if u * self.zeta < 1.0 {
            return 0;
        }
        if u * self.zeta < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let rank = PAGES as f64 * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        (rank as u64).min(PAGES - 1)
    }
}

#[derive(Default)]
struct Counts {
    loads: u64,
    reactivations: u64,
}

struct Machine {
    set: Resident,
    space: Space,
    standby_share: f64,
    counts: Counts,
}

impl Machine {
    fn new(tunables: Tunables, standby_share: f64) -> Self {
        let room = ROOM as u64;
        let set = Resident::with(room, room, u32::MAX, tunables);
        let (space, counts) = (Space::new(MmId(1)), Counts::default());
        Self { set, space, standby_share, counts }
    }

    fn touch(&mut self, page: u64) {
        let vpn = Vpn(page);
        match self.space.get(vpn) {
            Entry::Resident(_) => {}
            Entry::Standby(pfn) => {
                self.counts.reactivations += 1;
                self.set.reactivate(&mut self.space, pfn);
            }
            Entry::None => {
                self.make_room();
                self.set.map(&mut self.space, vpn, Arrival::Fresh, None);
            }
            Entry::Stored { slot, .. } => {
                self.counts.loads += 1;
                self.make_room();
                self.set.begin_load(&mut self.space, vpn, slot);
                self.set.map(&mut self.space, vpn, Arrival::Loaded, Some(slot));
                let mut dropped = Dropped::default();
                self.set.release_slot(slot, &mut dropped);
            }
        }
    }

    fn make_room(&mut self) {
        if self.set.frames_in_use() < ROOM {
            return;
        }
        let mut victims: Vec<Pfn> = Vec::new();
        let standby = (self.set.evictable() as f64 * self.standby_share) as u64;
        while self.set.count(FrameState::Standby) < standby.max(1) {
            victims.clear();
            self.set.isolate_hard(64, &mut victims);
            for &pfn in &victims {
                self.set.deactivate(&mut self.space, pfn, 0);
            }
        }
        victims.clear();
        self.set.oldest_standby(32, &mut victims);
        for &pfn in &victims {
            let slot = self.set.frame(pfn).slot().unwrap_or_else(|| self.set.take_slot().unwrap());
            self.set.evict(&mut self.space, pfn, slot);
        }
    }
}

fn run(load: &str, mut machine: Machine, zipf: &Zipf) -> Counts {
    let mut random = Random(88_172_645_463_325_252);
    let mut order: Vec<u64> = (0..PAGES).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    (0..PAGES).for_each(|page| machine.touch(page));
    let (mut scan, mut left) = (0, 0);
    let rounds: &[u64] = if load == "zipf-start" { &[600_000, 400_000] } else { &[2_000_000; 2] };
    for (round, &accesses) in (0u64..).zip(rounds) {
        machine.counts = Counts::default();
        for access in 0..accesses {
            let page = match load {
                "uniform" => random.below(PAGES),
                "loop" => access * 7 % (PAGES * 5 / 8),
                "shift" if round == 1 => {
                    (order[zipf.next(&mut random) as usize] + PAGES / 2) % PAGES
                }
                "other-78%" | "other-97%" => {
                    // A working set that fits, and after it another one.
                    let pages = if load == "other-78%" { 100_000 } else { 124_000 };
                    random.below(pages) + round * 130_000
                }
                "scanmix" => {
                    if left == 0 && access % 200_000 == 0 {
                        (scan, left) = (random.below(PAGES), 65_536);
                    }
                    if left > 0 && access % 2 == 0 {
                        (scan, left) = ((scan + 1) % PAGES, left - 1);
                        scan
                    } else {
                        order[zipf.next(&mut random) as usize]
                    }
                }
                _ => order[zipf.next(&mut random) as usize],
            };
            machine.touch(page);
        }
    }
    machine.counts
}

fn main() -> Result<(), String> {
    let pairs: Vec<String> = std::env::args().skip(1).collect();
    let mut tunables = Tunables::standby();
    for pair in &pairs {
        tunables.set(pair).map_err(|error| error.to_string())?;
    }
    let zipf = Zipf::new();
    println!("load      standby share   loads/access   reactivations/access");
    for load in
        ["zipf-start", "zipf", "shift", "other-78%", "other-97%", "scanmix", "uniform", "loop"]
    {
        for standby_share in [0.1, 0.2, 0.3] {
            let machine = Machine::new(tunables.clone(), standby_share);
            let Counts { loads, reactivations } = run(load, machine, &zipf);
            let accesses = if load == "zipf-start" { 4e5 } else { 2e6 };
            let each = |count: u64| count as f64 / accesses;
            let (loads, reactivations) = (each(loads), each(reactivations));
            println!("{load:10} {standby_share:10} {loads:14.4} {reactivations:16.4}");
        }
    }
    Ok(())
}
