//! What following a message, or answering a touch, needs that takes long: looking which process an address space is, which
//! areas a process passes on (the kernel walks its page tables for that), storing what a hidden child has in its pool.
//!
//! A thread of its own goes these errands, one at a time, with no lock held over what takes long. Meanwhile the address
//! space stands still (ORD-6) if a message of it is being followed, and fault threads serve the others.
//!
//! * SLOW-1: what is followed is in the books all the time, in one of three places: to be gone on with, to be sent on an
//!   errand, on one. Nothing else is read of that address space.

use crate::faults::Unheard;
use crate::following::Following;
use crate::fork;
use crate::mm::Mm;
use crate::pending::Pending;
use crate::server::Pager;
use std::sync::Arc;
use std::time::Duration;

/// One of them.
pub enum Errand {
    /// What a message needs that is being followed.
    Follow(Following, Unheard),
    /// Which process this is.
    Seek(Arc<Mm>),
}

/// The thread.
pub fn run(pager: &Arc<Pager>, pending: &Pending) {
    loop {
        while go(pager, pending) {}
        pager.host.wait(&pending.errand, Duration::from_secs(1));
    }
}

/// Goes the next. False if there was none.
pub fn go(pager: &Pager, pending: &Pending) -> bool {
    let next = {
        let mut books = pending.books();
        let next = books.errands.pop_front();
        if let Some(Errand::Follow(following, _)) = &next {
            books.away = Some(following.mm().clone());
        }
        next
    };
    match next {
        None => return false,
        Some(Errand::Seek(mm)) => mm.search(|| fork::find_process(pager, &mm, None)),
        Some(Errand::Follow(mut following, unheard)) => {
            following.go_errand(pager);
            let mut books = pending.books();
            books.following.push_back((following, unheard));
            books.away = None;
            drop(books);
            pager.wake_faults();
        }
    }
    true
}
