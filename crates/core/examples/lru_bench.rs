//! Measures the costs of parts of the multi-gen LRU: aging a list by batching switch, the
//! page-table walk with and without its filters, hits and misses of a replay.
//!
//! `cargo run --release -p ebb-mm --example lru_bench [replay|walk|aging]`. Variants run in turn,
//! for several rounds. The least time of each is printed, because the rest is noise of the machine.

use std::hint::black_box;
use std::time::Instant;

mod common;

use common::Random;
use ebb_mm::folio::{Folios, LruType, MemcgId, Word};
use ebb_mm::lru::memory::{Access, Memory};
use ebb_mm::lru::{Ctx, Lruvec};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::space::{Area, Backing, Pte, Spaces};
use ebb_mm::tunables::{LruKind, Tunables};
use ebb_mm::types::{MmId, Pfn, Vpn};

const FOLIOS: u32 = 1 << 20;
const ROUNDS: usize = 3;

/// The fate of some of the folios since they were put on the list.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Read several times: their tier protects them, and aging counts that.
    Protected,
    /// Promoted by a walk: aging has to link them elsewhere one by one.
    Promoted,
}

/// Measures aging with every folio in the oldest generation, in random memory order. `share`
/// percent of the folios met `fate`.
fn aging(tun: &Tunables, order: &[u32], fate: Fate, share: u64) -> f64 {
    let n = order.len() as u32;
    let (folios, spaces, stat) = (Folios::new(n), Spaces::new(), VmStat::default());
    let cx = Ctx { folios: &folios, spaces: &spaces, tun, stat: &stat, now_ms: 0 };
    let v = Lruvec::new(MemcgId(1), LruKind::Gen, 0);
    for &p in order {
        let word = Word::new(LruType::File, 0, 0);
        folios.init(Pfn(p), word, MemcgId(1), MmId(0), Vpn(p.into()));
        v.add(&cx, Pfn(p));
    }
    let mut random = Random(9);
    for &p in order {
        if random.below(100) >= share {
            continue;
        }
        match fate {
            Fate::Protected => (0..3).for_each(|_| v.mark_accessed(&cx, Pfn(p))),
            Fate::Promoted => {
                folios.set(Pfn(p), Word::WORKINGSET);
                ebb_mm::lru::r#gen::update_gen(&cx, Pfn(p), 3, 0);
            }
        }
    }
    let start = Instant::now();
    v.age(&cx, 3, 60, true).expect("nobody else ages");
    let ns = start.elapsed().as_nanos() as f64;
    assert_eq!(stat.get(Event::EbbAgedFolios), u64::from(n));
    ns / f64::from(n)
}

fn bench_aging(folios: u32, rounds: usize) {
    let mut order: Vec<u32> = (0..folios).collect();
    let mut random = Random(42);
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i as u64 + 1) as usize);
    }
    let base = Tunables::preset("k618").expect("a preset");
    let with = |bulk_move, counter_batch, prefetch| {
        let mut tun = base.clone();
        (tun.mglru.bulk_move, tun.mglru.counter_batch, tun.mglru.prefetch) =
            (bulk_move, counter_batch, prefetch);
        tun
    };
    let variants = [
        ("one by one", with(false, false, false)),
        ("+ counters", with(false, true, false)),
        ("+ prefetch", with(false, true, true)),
        ("+ bulk, no prefetch", with(true, true, false)),
        ("+ bulk + prefetch", with(true, true, true)),
    ];
    let cases = [
        (Fate::Protected, 0),
        (Fate::Protected, 50),
        (Fate::Protected, 100),
        (Fate::Promoted, 50),
        (Fate::Promoted, 100),
    ];
    for (fate, share) in cases {
        let mut least = [f64::MAX; 5];
        for _ in 0..rounds {
            for (best, (_, tun)) in least.iter_mut().zip(&variants) {
                *best = best.min(aging(tun, &order, fate, share));
            }
        }
        for (ns, (name, _)) in least.iter().zip(&variants) {
            println!("inc_min {folios:7} {fate:?} {share:3} %  {name:20} {ns:7.1} ns a folio");
        }
    }
}

/// Measures one aging walk over 1 M mapped pages. 1 % of them were accessed since the last walk, in
/// runs.
fn walk(tun: &Tunables, scattered: bool) -> (f64, u64) {
    let (folios, spaces, stat) = (Folios::new(FOLIOS), Spaces::new(), VmStat::default());
    let cx = Ctx { folios: &folios, spaces: &spaces, tun, stat: &stat, now_ms: 0 };
    let v = Lruvec::new(MemcgId(1), LruKind::Gen, 0);
    let space = spaces.create(MemcgId(1));
    space.add_area(Area::new(Vpn(0), Vpn(FOLIOS.into()), Backing::Anon));
    v.generations().spaces().join(space.id());
    for p in 0..FOLIOS {
        let word = Word::new(LruType::Anon, 0, 0).with(Word::MAPPED);
        folios.init(Pfn(p), word, MemcgId(1), space.id(), Vpn(p.into()));
        spaces.map(&space, Vpn(p.into()), Pfn(p), 1, Pte::MAPPED);
        v.add(&cx, Pfn(p));
    }
    let touch = |round: u64| {
        for i in 0..u64::from(FOLIOS) / 100 {
            let vpn = if scattered { i * 100 + round } else { i };
            let place = space.tree().place(Vpn(vpn));
            place.touch(place.get(), Pte::ACCESSED);
        }
        space.note_scheduled();
    };
    // The first walk visits all tables and fills the filter; the measured one uses it.
    touch(3);
    v.age(&cx, 3, 60, false).expect("nobody else ages");
    touch(4);
    let before = stat.get(Event::EbbWalkEntries);
    let start = Instant::now();
    v.age(&cx, 4, 60, false).expect("nobody else ages");
    (start.elapsed().as_nanos() as f64, stat.get(Event::EbbWalkEntries) - before)
}

fn bench_walk() {
    let base = Tunables::preset("k618").expect("a preset");
    let with = |bloom, non_leaf| {
        let mut tun = base.clone();
        (tun.mglru.bloom, tun.mglru.non_leaf) = (bloom, non_leaf);
        tun
    };
    let variants = [
        ("all tables", with(false, false)),
        ("non-leaf bit", with(false, true)),
        ("Bloom filter", with(true, false)),
        ("both", with(true, true)),
    ];
    for scattered in [false, true] {
        let mut least = [(f64::MAX, 0); 4];
        for _ in 0..ROUNDS {
            for (best, (_, tun)) in least.iter_mut().zip(&variants) {
                let (ns, entries) = walk(tun, scattered);
                *best = (best.0.min(ns), entries);
            }
        }
        let shape = if scattered { "scattered" } else { "in runs" };
        for ((ns, entries), (name, _)) in least.iter().zip(&variants) {
            let us = ns / 1000.0;
            println!("walk 1 M, 1 % young {shape:9}  {name:12} {us:9.0} us  {entries:8} entries");
        }
    }
}

fn bench_replay() {
    for preset in ["ebb", "k618", "k72", "classic"] {
        let tun = Tunables::preset(preset).expect("a preset");
        let (mut hit, mut miss) = (f64::MAX, f64::MAX);
        for _ in 0..ROUNDS {
            let mut m = Memory::anon(tun.clone(), 1 << 16, 1 << 15);
            for page in 0..1 << 14 {
                m.touch(page, Access::AnonWrite);
            }
            let mut random = Random(5);
            let pages: Vec<u64> = (0..1 << 16).map(|_| random.below(1 << 14)).collect();
            let start = Instant::now();
            for _ in 0..64 {
                for &page in &pages {
                    black_box(m.touch(page, Access::AnonRead));
                }
            }
            hit = hit.min(start.elapsed().as_nanos() as f64 / (64 << 16) as f64);
            let misses = m.counts().misses;
            let start = Instant::now();
            for i in 0..1u64 << 20 {
                // A stride over twice the memory: nearly every access misses.
                black_box(m.touch(i * 7 % (1 << 16), Access::AnonRead));
            }
            let missed = m.counts().misses - misses;
            miss = miss.min(start.elapsed().as_nanos() as f64 / missed as f64);
        }
        let rate = |ns: f64| 1000.0 / ns;
        println!(
            "replay {preset:8} hit {hit:5.1} ns ({:.0} M/s)  miss {miss:5.0} ns ({:.2} M/s)",
            rate(hit),
            rate(miss)
        );
    }
}

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    let asked = |name: &str| only.is_empty() || only == name;
    if asked("replay") {
        bench_replay();
    }
    if asked("walk") {
        bench_walk();
    }
    if asked("aging") {
        bench_aging(1 << 12, 200);
        bench_aging(FOLIOS, ROUNDS);
    }
}
