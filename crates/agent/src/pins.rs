//! Pages that stay in memory: the kernel writes to them at times when it would not wait for a missing one.
//!
//! The table lies in the shared memory. The agent adds to it, the pager reads it and takes out what is
//! unmapped.

use crate::preload::AGENT;
use crate::protocol::{PINNED_GRAVE, PINNED_MAX, pinned_home};
use crate::syscall::{self, call};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const MADV_POPULATE_WRITE: usize = 23;

/// Keeps the pages of `[start, start + len)` in memory until they are unmapped.
pub fn pin(start: u64, len: u64) {
    let shared = AGENT.shared.load(Acquire);
    if shared.is_null() {
        return;
    }
    let last = (start + len - 1) >> 12;
    for vpn in start >> 12..=last {
        // SAFETY: the mapping lives as long as the process.
        insert(unsafe { &(*shared).pinned }, vpn);
    }
    // SAFETY: the mapping lives as long as the process.
    if unsafe { (*shared).managing.load(Acquire) } == 1 {
        // What the pager did to a page just before it could know of the pin is undone by a write,
        // made by the kernel: what is pinned may be gone by now, a thread's stack for one.
        let start = start & !4095;
        let len = (last + 1) * 4096 - start;
        // SAFETY: changes no content, and fails where nothing is mapped.
        unsafe {
            call(syscall::MADVISE, [start as usize, len as usize, MADV_POPULATE_WRITE, 0, 0, 0]);
        }
    }
}

fn insert(table: &[AtomicU64; PINNED_MAX], vpn: u64) {
    let home = pinned_home(vpn);
    for step in 0..PINNED_MAX {
        let place = &table[(home + step) % PINNED_MAX];
        let there = place.load(Acquire);
        if there == vpn {
            return;
        }
        let free = there == 0 || there == PINNED_GRAVE;
        if free && place.compare_exchange(there, vpn, Release, Relaxed).is_ok() {
            return;
        }
    }
}
