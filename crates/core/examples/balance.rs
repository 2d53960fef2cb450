//! Tests the switches that decide between anonymous memory and files, each for its purpose.
//!
//! ```text
//! cargo run --release -p ebb-mm --example balance [ratio|floor]
//! ```
//! * `ratio`: both types have as many pages, all equally hot, and there is memory for half of all.
//!   Reclaim should follow `swappiness`: `S` pages of anonymous memory to `200 - S` of files
//!   (`gen.type_select=ratio`, `gen.per_type_aging`).
//! * `floor`: a program streams through anonymous memory. Its text and data are files of 1,024
//!   pages, each accessed now and then (`gen.clean_floor`).
//!
//! Counts are in pages, and every run gives the same ones.

mod common;

use common::Random;
use ebb_mm::folio::LruType;
use ebb_mm::lru::memory::{Access, Memory, Region};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::space::Backing;
use ebb_mm::tunables::Tunables;

fn switches(preset: &str, sets: &[&str]) -> Tunables {
    let mut tun = Tunables::preset(preset).expect("a preset");
    sets.iter().for_each(|set| tun.set(set).expect("a switch"));
    tun
}

fn machine(tun: Tunables, anon: u64, file: u64, limit: u32) -> Memory {
    let region = |start, end, backing| Region { start, end, backing, recency: true };
    let regions = [region(0, anon, Backing::Anon), region(anon, anon + file, Backing::File)];
    Memory::new(tun, &regions, limit)
}

fn stolen(m: &Memory) -> [u64; 2] {
    [Event::PgStealAnon, Event::PgStealFile].map(|event| m.vmstat().get(event))
}

/// Returns the anonymous pages reclaimed for each file page, and the misses per access.
fn equally_hot(tun: Tunables) -> (f64, f64) {
    const EACH: u64 = 16_384;
    let mut m = machine(tun, EACH, EACH, EACH as u32);
    let mut random = Random(7);
    let mut run = |m: &mut Memory, touches: u64| {
        for _ in 0..touches {
            let page = random.below(2 * EACH);
            let access = if page < EACH { Access::AnonRead } else { Access::MmapRead };
            m.touch(page, access);
        }
    };
    run(&mut m, 400_000);
    let (before, misses) = (stolen(&m), m.counts().misses);
    run(&mut m, 400_000);
    let after = stolen(&m);
    let [anon, file] = [after[0] - before[0], after[1] - before[1]].map(|n| n as f64);
    (anon / file.max(1.0), (m.counts().misses - misses) as f64 / 400_000.0)
}

fn ratio() {
    println!(
        "reclaimed anonymous : file over what swappiness asks for (1.00 is exact), and misses"
    );
    let sides: [(&str, &str, &[&str]); 6] = [
        ("k618", "k618", &[]),
        ("k618, per type", "k618", &["gen.per_type_aging=on"]),
        ("k618, ratio", "k618", &["gen.type_select=ratio"]),
        ("k618, ratio, per type", "k618", &["gen.type_select=ratio", "gen.per_type_aging=on"]),
        ("ebb", "ebb", &[]),
        ("ebb, ratio", "ebb", &["gen.type_select=ratio"]),
    ];
    for (name, preset, sets) in sides {
        print!("{name:24}");
        for swappiness in [20, 60, 100, 140, 180] {
            let mut tun = switches(preset, sets);
            tun.set(&format!("swappiness={swappiness}")).expect("a number in range");
            let (got, misses) = equally_hot(tun);
            let want = f64::from(swappiness) / f64::from(200 - swappiness);
            print!("  {swappiness:3}: {:5.2} ({:4.1} %)", got / want, misses * 100.0);
        }
        println!();
    }
}

/// Returns the refaults of files and of anonymous memory, and the lowest number of file pages.
fn text_and_stream(tun: Tunables) -> [u64; 3] {
    const FILE: u64 = 1_024;
    const ANON: u64 = 1 << 15;
    let mut m = machine(tun, ANON, FILE, 8_192);
    let mut random = Random(11);
    let mut least = u64::MAX;
    for turn in 0..1_000_000u64 {
        // Twelve accesses of the stream for one of the files, so a file page is used every 12,288
        // accesses.
        if turn % 13 == 0 {
            m.touch(ANON + random.below(FILE), Access::MmapRead);
        } else {
            m.touch(turn % ANON, Access::AnonWrite);
        }
        if turn > 100_000 {
            least = least.min(m.lruvec().total(LruType::File));
        }
    }
    let of = |event| m.vmstat().get(event);
    [of(Event::WorkingsetRefaultFile), of(Event::WorkingsetRefaultAnon), least]
}

fn floor() {
    println!("refaults of files, of anonymous memory, fewest file pages in memory");
    for preset in ["k618", "k72", "ebb"] {
        for floor in [0, 512, 1_024] {
            let tun = switches(preset, &[&format!("gen.clean_floor={floor}")]);
            let [file, anon, least] = text_and_stream(tun);
            println!("{preset:5} floor {floor:5}  {file:8} {anon:8} {least:6}");
        }
    }
}

fn main() {
    let only = std::env::args().nth(1).unwrap_or_default();
    if only != "floor" {
        ratio();
    }
    if only != "ratio" {
        floor();
    }
}
