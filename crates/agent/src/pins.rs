//! Pins pages that the kernel writes at times when it does not wait for a missing page.
//!
//! The table lies in the shared memory. The agent adds pages to it. The pager reads it and removes
//! unmapped pages.

use crate::own::own_or_join;
use crate::protocol::{PINNED_MAX, Shared};
use crate::state::{ABSENT, AGENT, COMING};
use crate::syscall::{self, call};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU64, AtomicUsize, fence};

const MADV_POPULATE_WRITE: usize = 23;

/// Largest number of pages pinned before the agent runs, for threads and mutexes of libraries that
/// are loaded first.
const EARLY_MAX: usize = PINNED_MAX;

/// Page numbers pinned before the agent runs.
static EARLY: [AtomicU64; EARLY_MAX] = [const { AtomicU64::new(0) }; EARLY_MAX];
static EARLY_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns whether pages must be pinned: there is an agent, or may be one soon.
pub fn pins_count() -> bool {
    AGENT.stage.load(Acquire) != ABSENT
}

/// Enters the pages of `[start, start + len)` in the table of pages that must stay. No page of the
/// program has left memory yet.
pub fn keep(shared: &Shared, start: u64, len: u64) {
    (start >> 12..=(start + len - 1) >> 12).for_each(|vpn| shared.keep(vpn));
}

/// Keeps the pages of `[start, start + len)` in memory until they are unmapped.
pub fn pin(start: u64, len: u64) {
    let (first, last) = (start >> 12, (start + len - 1) >> 12);
    if AGENT.stage.load(Acquire) == COMING {
        (first..=last).for_each(remember);
        // Pairs with the fence in `pin_early`. Either that function sees the pages, or this one
        // sees the new stage.
        fence(SeqCst);
        if AGENT.stage.load(Relaxed) == COMING {
            return;
        }
    }
    let Some(shared) = own_or_join() else { return };
    (first..=last).for_each(|vpn| shared.keep(vpn));
    if shared.managing.load(Acquire) == 1 {
        // The pager may have moved a page out just before it could see the pin. A write fault
        // brings the page back. The kernel makes that write, because the pinned memory may already
        // be unmapped (for example a thread's stack).
        let (start, len) = (first * 4096, (last + 1 - first) * 4096);
        // SAFETY: changes no content, and fails where nothing is mapped.
        unsafe {
            call(syscall::MADVISE, [start as usize, len as usize, MADV_POPULATE_WRITE, 0, 0, 0]);
        }
    }
}

fn remember(vpn: u64) {
    // Pages beyond the table count, too, so that `pin_early` sees the overflow.
    let at = EARLY_COUNT.fetch_add(1, Relaxed);
    if let Some(place) = EARLY.get(at) {
        place.store(vpn, Release);
    }
}

/// Pins the pages that were requested before the agent ran. The stage already says that the agent
/// runs.
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
