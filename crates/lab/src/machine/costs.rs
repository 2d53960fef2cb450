//! Cost of each kind of work on the simulated processor, in nanoseconds.
//!
//! Owns the cost model. Every figure is one field with its source. A scenario may replace any of
//! them in its `[costs]` table, and `--set costs.NAME=N` does so for one run.
//!
//! Sources. Work that mostly waits for memory is counted in cache misses of 80 ns. That is the
//! latency of local DRAM on servers of 2018 to 2022. "Measured" is `cargo run --release -p ebb-mm
//! --example lru_bench` on a two-core VM (docs/results.md). "Kernel" is the usual figure for x86-64
//! servers. The device latencies are in [`device`](super::device).
//!
//! Work under the lru lock delays every task that wants the lock. Other work delays only its own
//! task.

use schemars::JsonSchema;
use serde::Deserialize;

/// Costs in nanoseconds, by kind of work.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// An access to a resident page: one cache miss.
    pub hit_ns: u64,
    /// The start of a page fault: the exception, the search for the area, the page table. Kernel.
    pub fault_ns: u64,
    /// Clearing a page of new memory. Kernel: 16 GB/s.
    pub zero_ns: u64,
    /// A major fault beside the device: swap cache, submission, wake-up. Kernel.
    pub major_ns: u64,
    /// A read or write of one page through a file descriptor, copy included. Kernel.
    pub fd_ns: u64,
    /// Taking a frame from the per-CPU sets. Kernel and measured: tens of nanoseconds.
    pub alloc_ns: u64,
    /// Freeing a frame at process exit or `munmap`, with its page-table entry and its TLB entries.
    pub free_ns: u64,
    /// Adding one folio to a list, under the lru lock. Measured: part of a miss.
    pub add_ns: u64,
    /// Scanning one folio of a list, under the lru lock: one cache miss.
    pub scan_ns: u64,
    /// Isolating one folio for shrinking, under the lru lock, with its record in the cache: pin,
    /// flags, unlink, two counters. These are five atomic operations of 8 ns.
    pub isolate_ns: u64,
    /// Moving one folio to another list, under the lru lock, with its record in the cache.
    /// Measured: aging of 4096 folios in the cache, without batches.
    pub move_ns: u64,
    /// Moving one folio if counters are updated once a batch. Measured.
    pub move_counter_ns: u64,
    /// Moving one folio if counters are updated once a batch and segments are moved whole.
    /// Measured.
    pub move_bulk_ns: u64,
    /// Finding and reading the page-table entries of one folio: ten misses (record, reverse map and
    /// its lock, two of its tree, area, two levels of tables, entry, and back).
    pub rmap_ns: u64,
    /// Finding and reading the entries of a folio if the cache line of the entry was just read for
    /// another folio: three misses (record, reverse map, its lock).
    pub rmap_near_ns: u64,
    /// Finding and reading the entry of every further process that maps the folio: six misses
    /// (area, process, two levels of tables, lock of the last, entry).
    pub rmap_more_ns: u64,
    /// One neighbour that the look-around finds accessed.
    pub look_ns: u64,
    /// Reading one page-table entry in a walk. Measured: 0.8.
    pub walk_ns: u64,
    /// Promoting one folio in a walk. Measured: 12.
    pub promote_ns: u64,
    /// Taking one mapped folio out: another walk of the reverse map, its share of a TLB shootdown,
    /// and the frame.
    pub evict_ns: u64,
    /// Taking one unmapped folio out of the page cache. Kernel: kswapd reclaims 4 GB of clean page
    /// cache a second. That is a microsecond a page, including the scan and the isolation.
    pub drop_ns: u64,
    /// Swapping one page out beside the scan and the unmapping: slot, swap cache, request, end of
    /// the write. Kernel: eight processes of the swap-w-seq test write 3.7 to 4.2 GB/s to swap in
    /// memory ("mm, THP, swap: check whether THP can be split firstly" and the series around it).
    /// That is 7.9 us a page, of which faults, scan and unmapping are 3.5.
    pub swap_out_ns: u64,
    /// One pass of root reclaim beside the pages it handles: the walk from memcg to memcg, and a
    /// call of each shrinker. The cost grows with the number of memcgs of the machine.
    pub pass_ns: u64,
    /// Mapping one page by fault-around: a miss for its record.
    pub around_ns: u64,
    /// Adding up the counters of all memcgs, for each processor. By profiles of Linux 5.15
    /// (github.com/ediworks/KernelPerf, redis/5.15, baseline_no_thp_gaussian_01 and _random_01) it
    /// takes 2.67 and 2.92 % of all cycles. In these runs 9.9 k and 40 k pages refault a second.
    /// One task does it at a time. Therefore the shares are `x / (1 + x)` and `4 x / (1 + 4 x)` of
    /// one processor. Then `x` is 7.7, and one flush takes 780 us on 48 processors.
    pub flush_cpu_ns: u64,
    /// Submitting one page of a file to a device. Kernel.
    pub submit_ns: u64,
    /// Going to sleep and being woken. Kernel.
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
