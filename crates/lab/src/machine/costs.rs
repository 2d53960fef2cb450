//! What things cost on the simulated processor, in nanoseconds.
//!
//! Owns the cost model. Every figure is one field with where it comes from; a scenario may replace
//! any of them in its `[costs]` table, and `--set costs.NAME=N` does so for one run.
//!
//! Sources. Work that is mostly waiting for memory is counted in cache misses of 80 ns, the latency of
//! local DRAM on servers of 2018 to 2022. "Measured" is `cargo run --release -p ebb-mm --example lru_bench` on a two-core VM
//! (docs/results.md). "Kernel" is the usual figure for x86-64 servers. The device latencies are
//! in [`device`](super::device).
//!
//! What is under the lru lock delays everybody else who wants it; the rest delays only who does it.

use schemars::JsonSchema;
use serde::Deserialize;

/// Nanoseconds by kind of work.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// A touch of a resident page: one cache miss.
    pub hit_ns: u64,
    /// An exception, finding the area, taking the page table. Kernel.
    pub fault_ns: u64,
    /// Clearing a page of new memory. Kernel: 16 GB/s.
    pub zero_ns: u64,
    /// What a fault costs beside the device: swap cache, submission, wake-up. Kernel.
    pub major_ns: u64,
    /// A read or write of one page through a file descriptor, copy included. Kernel.
    pub fd_ns: u64,
    /// Getting a frame from the per-CPU sets. Kernel and measured: tens of nanoseconds.
    pub alloc_ns: u64,
    /// Giving a frame back, its entry removed and the processors' copies dropped: process exit,
    /// `munmap`.
    pub free_ns: u64,
    /// Putting one folio on a list, under the lru lock. Measured: part of a miss.
    pub add_ns: u64,
    /// Looking at one folio of a list, under the lru lock: one cache miss.
    pub scan_ns: u64,
    /// Taking one folio off for shrinking, under the lru lock, its record at hand: pin, flags, unlink,
    /// two counters; five atomic operations of 8 ns.
    pub isolate_ns: u64,
    /// Moving one folio to another list, under the lru lock, its record at hand. Measured: aging 4096
    /// folios in the cache, nothing batched.
    pub move_ns: u64,
    /// The same with counters settled once a batch. Measured.
    pub move_counter_ns: u64,
    /// The same with segments moved whole as well. Measured.
    pub move_bulk_ns: u64,
    /// Finding and reading the page-table entries of one folio: ten misses (record, reverse map and its
    /// lock, two of its tree, area, two levels of tables, entry, and back).
    pub rmap_ns: u64,
    /// The same where the line of the entry was read for another folio just before: three misses (record,
    /// reverse map, its lock).
    pub rmap_near_ns: u64,
    /// The same for every further process that maps the folio: six misses (area, process, two levels of
    /// tables, lock of the last, entry).
    pub rmap_more_ns: u64,
    /// A neighbour found accessed by the look around an entry.
    pub look_ns: u64,
    /// Reading one page-table entry in a walk. Measured: 0.8.
    pub walk_ns: u64,
    /// Promoting one folio in a walk. Measured: 12.
    pub promote_ns: u64,
    /// Taking one mapped folio out: the same walk again, its share of telling the processors, frame.
    pub evict_ns: u64,
    /// Taking one folio out of the page cache that nobody maps. Kernel: kswapd gets through 4 GB of clean
    /// page cache a second, that is a microsecond a page with looking at it and taking it off its list.
    pub drop_ns: u64,
    /// Getting one page into swap beside all that: slot, swap cache, request, end of the write. Kernel:
    /// eight processes of the swap-w-seq test write 3.7 to 4.2 GB/s to swap in memory ("mm, THP, swap:
    /// check whether THP can be split firstly" and the series around it), 7.9 us a page, of which
    /// faults, looking at it and taking it out are 3.5.
    pub swap_out_ns: u64,
    /// One pass of root reclaim beside the pages it handles: going from memcg to memcg, asking each
    /// cache that can shrink. It grows with the number of memcgs that a machine has.
    pub pass_ns: u64,
    /// Mapping a page around a fault: a miss for its record.
    pub around_ns: u64,
    /// Adding up the counters of all memcgs, for each processor. By profiles of Linux 5.15
    /// (github.com/ediworks/KernelPerf, redis/5.15, baseline_no_thp_gaussian_01 and _random_01) it takes 2.67 and
    /// 2.92 % of all cycles where 9.9 k and 40 k pages come back a second. One task does it at a time, so that
    /// these are `x / (1 + x)` and `4 x / (1 + 4 x)` of one processor: `x` is 7.7, one takes 780 us on 48 processors.
    pub flush_cpu_ns: u64,
    /// Submitting one page of a file to a device. Kernel.
    pub submit_ns: u64,
    /// Going to sleep and being woken again. Kernel.
    pub switch_ns: u64,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            hit_ns: 80,
            fault_ns: 500,
            zero_ns: 250,
            major_ns: 1500,
            fd_ns: 700,
            alloc_ns: 50,
            free_ns: 60,
            add_ns: 40,
            scan_ns: 80,
            isolate_ns: 40,
            move_ns: 18,
            move_counter_ns: 15,
            move_bulk_ns: 7,
            rmap_ns: 800,
            rmap_near_ns: 240,
            rmap_more_ns: 480,
            look_ns: 20,
            walk_ns: 1,
            promote_ns: 12,
            evict_ns: 1500,
            drop_ns: 700,
            swap_out_ns: 4400,
            pass_ns: 1000,
            around_ns: 80,
            flush_cpu_ns: 16_000,
            submit_ns: 500,
            switch_ns: 1500,
        }
    }
}
