//! Does the slow parts of following a message or answering a fault:
//! * finding the process of an address space,
//! * reading the areas that a process passes on, for which the kernel walks its page tables,
//! * storing the pages that a hidden child has in its pool.
//!
//! A thread of its own does this work, one item at a time, and holds no lock meanwhile. If a
//! message of the address space is being followed, the address space stays still (ORD-6). Fault
//! threads serve the others.
//!
//! * SLOW-1: a followed message is always in the pending state, in one of three places: ready to go
//!   on, queued as slow work, or with the slow-work thread. No other message of that address space
//!   is read.

use crate::faults::pending::{Pending, SlowWork};
use crate::pager::Pager;
use std::sync::Arc;
use std::time::Duration;

/// Runs the slow-work thread.
pub fn run(pager: &Arc<Pager>, pending: &Pending) {
    loop {
        while go(pager, pending) {}
        pager.host.wait(&pending.slow_work, Duration::from_secs(1));
    }
}

/// Does the next item. Returns false if there was none.
pub fn go(pager: &Pager, pending: &Pending) -> bool {
    let next = {
        let mut pending_state = pending.lock();
        let next = pending_state.slow_work.pop_front();
        if let Some(SlowWork::Follow(following, _)) = &next {
            pending_state.away = Some(following.mm().clone());
        }
        next
    };
    match next {
        None => return false,
        Some(SlowWork::Seek(mm)) => mm.owner.search(|| pager.find_process(&mm, None)),
        Some(SlowWork::Follow(mut following, unfollowed)) => {
            following.do_slow_work(pager);
            let mut pending_state = pending.lock();
            pending_state.following.push_back((following, unfollowed));
            pending_state.away = None;
            drop(pending_state);
            pager.faults.wake();
        }
    }
    true
}
