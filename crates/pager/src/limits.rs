//! How long anything may hold what others wait for, and how much of it is done in one hold.
//!
//! The fault thread waits for the lock of an address space; whoever takes that lock does so for a slice of its
//! work, and lets go in between. The longest hold is in the JSON report: how long it took (`longest_hold_us`), and how
//! long its thread ran in it (`longest_hold_cpu_us`), which is what a slice is for; the rest is for a thread that is not run.
//! Every hold for a slice is timed so, and one of sixteen of all others: asking for the time that a thread has run takes as
//! long as a page.

use std::time::Duration;

/// How long a batch of moves may keep others from an address space before they turn elsewhere.
pub const BATCH_PATIENCE: Duration = Duration::from_millis(2);

/// How long a fault thread that has its CPU to itself looks whether a batch ends before it sleeps: as long as most
/// batches take, and less than sleeping and being woken costs.
pub const BATCH_WATCH: Duration = Duration::from_micros(300);

/// Pages that are taken on, copied or let go in one hold of the lock. A simulated program has few.
pub const SLICE_PAGES: u64 = if cfg!(test) { 8 } else { 1024 };

/// Pages that touches are given in one hold, those ahead of a pass included; and the window of the last of them.
pub const SERVED_PAGES: u32 = if cfg!(test) { 3 } else { 128 };

/// Of holds that are for no slice one of so many is timed by what its thread has run.
pub const HOLDS_TIMED: u32 = 16;

/// Address space that is looked through for pages in one hold: page tables of 2 MiB, which may be empty, though there.
pub const REACH_BYTES: u64 = 1 << 30;

/// How often a forking process that is not known yet is looked for, how often when nothing keeps it from being seen,
/// and how long it is waited in between.
pub const FIND_TRIES: u32 = 20;
pub const SEEK_TRIES: u32 = 3;
pub const FIND_PAUSE: Duration = Duration::from_micros(100);

/// How long a batch of moves may keep the door from an address space, and how long it waits between looks which process a
/// child is.
pub const DOOR_PATIENCE: Duration = Duration::from_millis(10);
pub const LOOK_PAUSE: Duration = Duration::from_micros(100);
