//! Limits of the time that a thread may hold what others wait for, and of the work in one hold.
//!
//! The fault thread waits for the lock of an address space. So every other thread takes that lock
//! for one slice of its work and releases it in between. The JSON report shows the longest hold:
//! its duration (`longest_hold_us`) and the CPU time of its thread in it (`longest_hold_cpu_us`). A
//! slice bounds the CPU time. The rest of the duration is time in which the thread did not run. The
//! pager measures the CPU time of every hold for a slice, and of one in sixteen of all others.
//! Reading the CPU time of a thread takes as long as handling a page.

use std::time::Duration;

/// Time for which a thread waits for the end of a batch of moves before it turns to other work.
pub const BATCH_PATIENCE: Duration = Duration::from_millis(2);

/// Time for which a fault thread on a CPU of its own polls for the end of a batch. Then it sleeps.
/// Most batches end within it, and it is less than a sleep and a wakeup cost.
pub const BATCH_WATCH: Duration = Duration::from_micros(300);

/// Number of pages that are adopted, copied or released in one hold of the lock. A simulated
/// program has few.
pub const SLICE_PAGES: u64 = if cfg!(test) { 8 } else { 1024 };

/// Number of pages that one hold may serve to faults, including pages ahead of a sequential pass.
/// The last of them may add its readahead window.
pub const SERVED_PAGES: u32 = if cfg!(test) { 3 } else { 128 };

/// Of the holds that are not for a slice, the pager measures the CPU time of one in this many.
pub const HOLDS_TIMED: u32 = 16;

/// Address space that one hold scans for pages. Its page tables take 2 MiB, and may exist though
/// they are empty.
pub const REACH_BYTES: u64 = 1 << 30;
/// The next hold scans twice as much after a hold that was shorter than `REACH_QUICK`, up to
/// `REACH_BYTES_MAX`. So terabytes without page tables take few holds.
pub const REACH_BYTES_MAX: u64 = 64 << 30;
pub const REACH_QUICK: Duration = Duration::from_micros(100);

/// Number of attempts to find a process during a fork. `SEEK_TRIES` is the number of failed looks
/// at the whole tree after which there is no further attempt. `FIND_PAUSE` is the pause between two
/// attempts.
pub const FIND_TRIES: u32 = 20;
pub const SEEK_TRIES: u32 = 3;
pub const FIND_PAUSE: Duration = Duration::from_micros(100);

/// Time for which a batch of moves may keep the listener from an address space; pause between two
/// attempts to find the process of a child.
pub const LISTENER_PATIENCE: Duration = Duration::from_millis(10);
pub const LOOK_PAUSE: Duration = Duration::from_micros(100);
