//! Measures the cost of a put and a get: `cargo run --release -p ebb-swap --example bench`.
//!
//! Prints nanoseconds a page (median of rounds) for each kind of page and tier, and the waste of
//! the RAM tier after many random replacements. The figures are noisy on a busy machine: compare
//! the ratios.
//!
//! With lists of tiers as arguments it compares those, each encrypted and not: `-- file
//! redis://127.0.0.1:6379`.

use ebb_mm::random::mix;
use ebb_mm::types::SlotId;
use ebb_swap::{Encrypt, Options, Page, Store, ZERO_PAGE, parse_tiers};
use rustix::event::{PollFd, PollFlags, poll};
use std::time::Instant;

const BATCH: usize = 64;
const PAGES: usize = 8192;
const ROUNDS: usize = 5;

/// Creates a page of which `random` of 512 words, spread evenly, are noise.
fn page(number: usize, random: usize) -> Page {
    let mut page = ZERO_PAGE;
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let noise = (at / 8 * 8 * random / 512) != ((at / 8 + 1) * 8 * random / 512)
            && at % 8 < random / 64;
        let value = if noise { mix((number << 16 | at) as u64) } else { number as u64 };
        *word = value.to_ne_bytes();
    }
    page
}

fn open(tiers: &str, use_io_uring: bool) -> Store {
    let options = Options { use_io_uring, ..Options::default() };
    Store::open(&parse_tiers(tiers).expect("tiers"), &options).expect("open")
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn timed(pages: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / pages as f64
}

fn put_all(store: &Store, pages: &[Page]) -> f64 {
    let mut results = Vec::new();
    timed(pages.len(), || {
        for (at, batch) in pages.chunks(BATCH).enumerate() {
            let first = at * BATCH;
            let batch: Vec<_> = batch
                .iter()
                .enumerate()
                .map(|(at, page)| (SlotId((first + at) as u32), page))
                .collect();
            store.put_batch(&batch, &mut results);
            assert!(results.iter().all(Result::is_ok), "put");
        }
    })
}

fn get_all(store: &Store, pages: &[Page], order: &[u32]) -> f64 {
    let mut page = ZERO_PAGE;
    let time = timed(order.len(), || {
        for slot in order {
            store.get(SlotId(*slot), &mut page).expect("get");
        }
    });
    assert!(page == pages[*order.last().expect("some") as usize]);
    time
}

/// Reads asynchronously with `depth` reads in flight, in groups of `group` neighbours.
fn get_async(store: &Store, order: &[u32], depth: usize, group: u32) -> f64 {
    let (mut started, mut done) = (0, 0);
    let total = order.len() * group as usize;
    timed(total, || {
        while done < total {
            while started < order.len() && started * group as usize - done < depth {
                let first = order[started] / group * group;
                let reads: Vec<_> =
                    (first..first + group).map(|slot| (SlotId(slot), u64::from(slot))).collect();
                store.start_batch(&reads);
                started += 1;
            }
            let fd = store.completion_fd();
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).expect("poll");
            store.poll_completions(&mut |_, result| {
                result.expect("read");
                done += 1;
            });
        }
    })
}

fn row(name: &str, tiers: &str, pages: &[Page], order: &[u32]) {
    let (mut fresh, mut again, mut gets) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let store = open(tiers, true);
        fresh.push(put_all(&store, pages));
        again.push(put_all(&store, pages));
        gets.push(get_all(&store, pages, order));
    }
    let [fresh, again, gets] = [fresh, again, gets].map(median);
    println!("{name:<34} put {fresh:>7.0}   put again {again:>7.0}   get {gets:>7.0}");
}

fn occupancy() {
    for (name, live) in [("16 MiB", 4096), ("64 MiB", 16384), ("256 MiB", 65536)] {
        let store = open("ram", true);
        let mut results = Vec::new();
        for step in 0..live * 3 / BATCH {
            // Lengths that vary like those of real pages: about 600 to 2600 bytes.
            let batch: Vec<_> = (0..BATCH)
                .map(|at| {
                    let random = mix((step * BATCH + at) as u64);
                    let slot = if step < live / BATCH {
                        step * BATCH + at
                    } else {
                        random as usize % live
                    };
                    let words = 80 + (random >> 32) as usize % 128 + (random >> 48) as usize % 128;
                    (SlotId(slot as u32), sized_page(random, words))
                })
                .collect();
            let batch: Vec<_> = batch.iter().map(|(slot, page)| (*slot, page)).collect();
            store.put_batch(&batch, &mut results);
        }
        let stats = store.stats();
        let tier = &stats.tiers[0];
        println!(
            "occupied / stored, {name:>7} of pages   {:.3}   ({} pages, ratio {:.2})",
            tier.occupied_bytes as f64 / tier.stored_bytes as f64,
            tier.pages,
            tier.ratio().unwrap_or(0.0),
        );
    }
}

fn sized_page(seed: u64, words: usize) -> Page {
    let mut page = ZERO_PAGE;
    for (at, word) in page.as_chunks_mut::<8>().0.iter_mut().take(words).enumerate() {
        *word = mix(seed ^ at as u64).to_ne_bytes();
    }
    page
}

/// Compares lists of tiers in turns with pages that do not compress: all written, then read at
/// random.
fn compare(lists: &[String]) {
    let noise: Vec<Page> = (0..PAGES).map(|n| page(n, 512)).collect();
    let order: Vec<u32> = (0..1024).map(|n| (mix(n) % PAGES as u64) as u32).collect();
    let ways: Vec<_> =
        (lists.iter()).flat_map(|tiers| [(tiers, Encrypt::None), (tiers, Encrypt::All)]).collect();
    let mut times = vec![[const { Vec::new() }; 4]; ways.len()];
    for _ in 0..ROUNDS {
        for ((tiers, encrypt), times) in ways.iter().zip(&mut times) {
            let options = Options { encrypt: *encrypt, ..Options::default() };
            let store = Store::open(&parse_tiers(tiers).expect("tiers"), &options).expect("open");
            times[0].push(put_all(&store, &noise));
            times[1].push(get_async(&store, &order, 1, 1));
            times[2].push(get_async(&store, &order, 8, 1));
            times[3].push(get_async(&store, &order, 64, 16));
        }
    }
    println!(
        "us a page, median of {ROUNDS} rounds of {PAGES} pages, written in batches of {BATCH}"
    );
    for ((tiers, encrypt), times) in ways.iter().zip(times) {
        let name = format!("{tiers}{}", if *encrypt == Encrypt::All { ", encrypted" } else { "" });
        let [put, one, eight, groups] = times.map(|times| median(times) / 1000.0);
        println!(
            "{name:<44} put {put:>6.1}   get {one:>6.1}   8 at once {eight:>6.1}   16 in a row {groups:>6.1}"
        );
    }
}

fn main() {
    let lists: Vec<String> = std::env::args().skip(1).collect();
    if !lists.is_empty() {
        return compare(&lists);
    }
    let half: Vec<Page> = (0..PAGES).map(|n| page(n, 256)).collect();
    let same: Vec<Page> = (0..PAGES).map(|n| page(n, 0)).collect();
    let noise: Vec<Page> = (0..PAGES).map(|n| page(n, 512)).collect();
    let order: Vec<u32> = (0..PAGES).map(|n| (mix(n as u64) % PAGES as u64) as u32).collect();
    let few = &order[..1024];
    println!("ns a page, median of {ROUNDS} rounds of {PAGES} pages in batches of {BATCH}");
    row("ram, half compressible", "ram", &half, &order);
    row("ram, same-filled", "ram", &same, &order);
    row("ram, incompressible", "ram", &noise, &order);
    row("file, incompressible", "file", &noise, few);
    row("ram 4M + file (demoting), half", "ram:4M,file", &half, few);
    for (name, uring) in [("io_uring", true), ("threads", false)] {
        let store = open("file", uring);
        put_all(&store, &noise);
        for (depth, group) in [(1, 1), (8, 1), (8, 8)] {
            let times = (0..ROUNDS).map(|_| get_async(&store, few, depth, group)).collect();
            let time = median(times);
            println!("file, {name:<8} depth {depth} groups of {group}   get {time:>7.0}");
        }
    }
    occupancy();
}
