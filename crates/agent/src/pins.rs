//! Pages that stay in memory: the kernel writes to them at times when it would not wait for a missing one.
//!
//! The table lies in the shared memory. The agent adds to it, the pager reads it and takes out what is
//! unmapped.

use crate::own::own;
use crate::protocol::{PINNED_MAX, Shared};
use crate::state::{ABSENT, AGENT, COMING};
use crate::syscall::{self, call};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize, fence};

const MADV_POPULATE_WRITE: usize = 23;

/// Most pages pinned before the agent runs: by threads and mutexes of libraries that are loaded before it.
const EARLY_MAX: usize = PINNED_MAX;

/// They.
static EARLY: [AtomicU64; EARLY_MAX] = [const { AtomicU64::new(0) }; EARLY_MAX];
static EARLY_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether pages need to be pinned: there is an agent, or may be one soon.
pub fn pins_count() -> bool {
    AGENT.stage.load(Acquire) != ABSENT
}

/// Keeps the pages of `[start, start + len)` in memory until they are unmapped.
pub fn pin(start: u64, len: u64) {
    let (first, last) = (start >> 12, (start + len - 1) >> 12);
    if AGENT.stage.load(Acquire) == COMING {
        (first..=last).for_each(remember);
        // Partner: the fence in `pin_early`. Either that sees the pages or this sees that it comes.
        fence(SeqCst);
        if AGENT.stage.load(Relaxed) == COMING {
            return;
        }
    }
    let Some(shared) = own() else { return };
    (first..=last).for_each(|vpn| shared.keep(vpn));
    if shared.managing.load(Acquire) == 1 {
        // What the pager did to a page just before it could know of the pin is undone by a write,
        // made by the kernel: what is pinned may be gone by now, a thread's stack for one.
        let (start, len) = (first * 4096, (last + 1 - first) * 4096);
        // SAFETY: changes no content, and fails where nothing is mapped.
        unsafe {
            call(syscall::MADVISE, [start as usize, len as usize, MADV_POPULATE_WRITE, 0, 0, 0]);
        }
    }
}

fn remember(vpn: u64) {
    // What there is no place for is counted all the same: see `pin_early`.
    let at = EARLY_COUNT.fetch_add(1, Relaxed);
    if let Some(place) = EARLY.get(at) {
        place.store(vpn, Release);
    }
}

/// Pins what was to be pinned before the agent ran. The stage says already that it does.
pub fn pin_early(shared: &Shared) {
    fence(SeqCst);
    let count = EARLY_COUNT.load(Relaxed);
    if count > EARLY_MAX {
        shared.pins_full.store(1, Release);
    }
    for place in &EARLY[..count.min(EARLY_MAX)] {
        let vpn = place.load(Acquire);
        if vpn != 0 {
            shared.keep(vpn);
        }
    }
}
