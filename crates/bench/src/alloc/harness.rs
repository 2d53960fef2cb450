//! The harness: contenders, patterns of use, and the clock.

use std::hint::black_box;
use std::sync::{Barrier, Mutex};
use std::time::Instant;

use ebb_sys::percpu::thread_time_ns;

use crate::stats;

/// An allocator of frames.
pub trait Contender: Sync {
    /// Handle of one thread for the allocator.
    type Worker<'a>: Worker
    where
        Self: 'a;

    /// Returns the handle for thread `i` of `threads`.
    fn worker(&self, i: usize, threads: usize) -> Self::Worker<'_>;

    /// Brings the allocator back to its state before a round, if the allocator needs that.
    fn settle(&self) {}
}

/// Handle of one thread for an allocator.
pub trait Worker {
    /// Allocates a block; `None` if there is none.
    fn get(&mut self, order: u8) -> Option<u32>;
    /// Frees a block.
    fn put(&mut self, pfn: u32, order: u8);
}

/// Order in which blocks are allocated and freed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pattern {
    /// Allocates all blocks, then frees all in the order of allocation.
    Bulk,
    /// Allocates all blocks, then frees all in random order.
    Random,
    /// Allocates and frees one block repeatedly.
    Repeat,
    /// Allocates and frees 64 blocks repeatedly.
    Burst,
    /// Allocates all blocks, then frees the blocks of the next thread.
    Cross,
}

impl Pattern {
    /// All patterns.
    pub const ALL: [Self; 5] = [Self::Bulk, Self::Random, Self::Repeat, Self::Burst, Self::Cross];

    /// Returns the name in tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Random => "random",
            Self::Repeat => "repeat",
            Self::Burst => "burst64",
            Self::Cross => "cross",
        }
    }

    /// Returns whether the result is one number for each pair of get and put.
    #[must_use]
    pub const fn is_pair(self) -> bool {
        matches!(self, Self::Repeat | Self::Burst)
    }
}

/// Work of one cell of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Load {
    /// Number of threads.
    pub threads: usize,
    /// Order of the blocks.
    pub order: u8,
    /// Blocks per thread.
    pub blocks: usize,
    /// Order in which blocks are allocated and freed.
    pub pattern: Pattern,
    /// Passes over the blocks per sample.
    pub passes: usize,
}

/// CPU time per operation in nanoseconds. For a pair pattern `get` and `put` both hold the time of
/// the pair.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cell {
    /// CPU time per allocated block.
    pub get: f64,
    /// CPU time per freed block.
    pub put: f64,
    /// Wall time per block allocated by any of the threads, from the first thread's start to the
    /// last thread's end. Only this figure shows the cost of waiting for a lock.
    pub get_wall: f64,
}

#[derive(Default)]
struct Spent {
    get: u64,
    put: u64,
    /// For each pass, when the first allocation began and when the last ended.
    taking: Vec<(Instant, Instant)>,
}

/// Returns the sum over all passes of the time from the first start to the last end, in
/// nanoseconds.
fn wall(spent: &[Spent]) -> u64 {
    let passes = spent.iter().map(|s| s.taking.len()).max().unwrap_or(0);
    let span = |pass: usize| {
        let of_pass = || spent.iter().filter_map(|s| s.taking.get(pass));
        let from = of_pass().map(|t| t.0).min()?;
        Some(of_pass().map(|t| t.1).max()?.duration_since(from).as_nanos() as u64)
    };
    (0..passes).filter_map(span).sum()
}

/// Runs `load` once and returns the CPU time per operation over all threads.
pub fn measure<C: Contender>(contender: &C, load: &Load) -> Cell {
    let barrier = Barrier::new(load.threads);
    let parcels: Vec<Mutex<Vec<u32>>> = (0..load.threads).map(|_| Mutex::default()).collect();
    let spent: Vec<Spent> = std::thread::scope(|scope| {
        let run = |i| {
            let (barrier, parcels) = (&barrier, &parcels);
            scope.spawn(move || {
                let mut worker = contender.worker(i, load.threads);
                one_thread(&mut worker, load, i, barrier, parcels)
            })
        };
        let threads: Vec<_> = (0..load.threads).map(run).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_default()).collect()
    });
    let operations = (load.threads * load.blocks * load.passes) as f64;
    let total = |part: fn(&Spent) -> u64| spent.iter().map(part).sum::<u64>() as f64 / operations;
    let get_wall = wall(&spent) as f64 / operations;
    Cell { get: total(|s| s.get), put: total(|s| s.put), get_wall }
}

fn one_thread<W: Worker>(
    worker: &mut W,
    load: &Load,
    me: usize,
    barrier: &Barrier,
    parcels: &[Mutex<Vec<u32>>],
) -> Spent {
    let mut held = vec![0u32; load.blocks];
    let shuffle = shuffled(load.blocks, me as u64);
    let mut spent = Spent::default();
    for _ in 0..load.passes {
        barrier.wait();
        if load.pattern.is_pair() {
            let size = if load.pattern == Pattern::Burst { 64 } else { 1 };
            let from = thread_time_ns();
            pairs(worker, load, size, &mut held);
            spent.get += thread_time_ns() - from;
            continue;
        }
        let began = Instant::now();
        let from = thread_time_ns();
        take(worker, load.order, &mut held);
        spent.get += thread_time_ns() - from;
        spent.taking.push((began, Instant::now()));
        match load.pattern {
            Pattern::Random => held = shuffle.iter().map(|&i| held[i as usize]).collect(),
            Pattern::Cross => {
                let next = (me + 1) % parcels.len();
                swap_in(&parcels[next], &mut held);
                barrier.wait();
                swap_in(&parcels[me], &mut held);
            }
            _ => {}
        }
        barrier.wait();
        let from = thread_time_ns();
        for &pfn in &held {
            black_box(&mut *worker).put(pfn, load.order);
        }
        spent.put += thread_time_ns() - from;
    }
    if load.pattern.is_pair() {
        spent.put = spent.get;
    }
    spent
}

fn swap_in(parcel: &Mutex<Vec<u32>>, held: &mut Vec<u32>) {
    if let Ok(mut parcel) = parcel.lock() {
        std::mem::swap(&mut *parcel, held);
    }
}

#[inline(always)]
fn take<W: Worker>(worker: &mut W, order: u8, held: &mut [u32]) {
    for slot in held {
        match black_box(&mut *worker).get(order) {
            Some(pfn) => *slot = pfn,
            None => out_of_frames(order),
        }
    }
}

#[cold]
fn out_of_frames(order: u8) -> ! {
    panic!("no block of order {order} left: the load does not fit")
}

fn pairs<W: Worker>(worker: &mut W, load: &Load, size: usize, held: &mut [u32]) {
    if size == 1 {
        for _ in 0..load.blocks {
            let Some(pfn) = black_box(&mut *worker).get(load.order) else {
                out_of_frames(load.order)
            };
            black_box(&mut *worker).put(pfn, load.order);
        }
        return;
    }
    for _ in 0..load.blocks / size {
        take(worker, load.order, &mut held[..size]);
        for &pfn in &held[..size] {
            black_box(&mut *worker).put(pfn, load.order);
        }
    }
}

fn shuffled(n: usize, seed: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    for i in (1..n).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}

/// A function that takes one sample.
pub type Sampler<'a> = Box<dyn FnMut() -> Cell + 'a>;

/// Returns the medians of the samples, for each figure separately.
#[must_use]
pub fn median(samples: &[Cell]) -> Cell {
    let middle =
        |part: fn(&Cell) -> f64| stats::median(&samples.iter().map(part).collect::<Vec<_>>());
    Cell { get: middle(|c| c.get), put: middle(|c| c.put), get_wall: middle(|c| c.get_wall) }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(Mutex<(u64, u64)>);
    struct Way<'a>(&'a Counter);

    impl Contender for Counter {
        type Worker<'a> = Way<'a>;
        fn worker(&self, _: usize, _: usize) -> Way<'_> {
            Way(self)
        }
    }

    impl Worker for Way<'_> {
        fn get(&mut self, _: u8) -> Option<u32> {
            let mut state = self.0.0.lock().unwrap();
            state.0 += 1;
            Some(state.0 as u32)
        }
        fn put(&mut self, pfn: u32, _: u8) {
            self.0.0.lock().unwrap().1 += u64::from(pfn);
        }
    }

    #[test]
    fn every_block_taken_is_given_back_once_in_every_pattern() {
        for pattern in Pattern::ALL {
            let counter = Counter(Mutex::new((0, 0)));
            let load = Load { threads: 2, order: 0, blocks: 128, pattern, passes: 3 };
            let cell = measure(&counter, &load);
            let (gets, sum) = *counter.0.lock().unwrap();
            assert_eq!(gets, 2 * 128 * 3, "{pattern:?}");
            assert_eq!(sum, gets * (gets + 1) / 2, "{pattern:?}");
            assert!(cell.get > 0.0 && cell.put > 0.0);
        }
    }

    #[test]
    fn the_wall_is_from_the_first_start_to_the_last_end() {
        // Any moment will do as the origin.
        let (counter, barrier) = (Counter(Mutex::default()), Barrier::new(1));
        let load = Load { threads: 1, order: 0, blocks: 1, pattern: Pattern::Bulk, passes: 1 };
        let zero = one_thread(&mut counter.worker(0, 1), &load, 0, &barrier, &[]).taking[0].0;
        let at = |ms| zero + std::time::Duration::from_millis(ms);
        let of = |taking| Spent { taking, ..Spent::default() };
        let apart = [of(vec![(at(0), at(3)), (at(20), at(21))]), of(vec![(at(5), at(9))])];
        assert_eq!(wall(&apart), 10_000_000);
        assert_eq!(wall(&[]), 0);
    }

    #[test]
    fn the_median_is_taken_by_column() {
        let cells = [(1.0, 9.0), (5.0, 1.0), (3.0, 4.0)];
        let cells = cells.map(|(get, put)| Cell { get, put, get_wall: 2.0 * get });
        assert_eq!(median(&cells), Cell { get: 3.0, put: 4.0, get_wall: 6.0 });
    }
}
