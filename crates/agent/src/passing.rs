//! What a fork passes on changes between forks only.
//!
//! The kernel copies a fork's memory first and tells of it then, and the pager looks up what was left out (`MADV_DONTFORK`,
//! `MADV_WIPEONFORK`) last, in the parent: advice given in between would be taken for what the fork went by, and the
//! child get pages that are not its own, or lack some that are.
//!
//! * A1: whoever gives such advice does so while no fork of this memory is under way, and after the pager has
//!   followed those that were.
//! * A2: nobody waits for ever: where the other side does not end (a signal handler that gives advice within a fork, a
//!   thread that was killed) it goes on.
//! * A3: the word is in the page that the kernel wipes in a child ([`crate::own`]), where none of its forks is under way.

use crate::calls::be_heard;
use crate::own::own_passing;
use crate::syscall::{self, Timespec};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Advice is being given. Beside it the word counts forks under way.
const ADVISING: u32 = 1 << 31;
/// How often to look, and for how many seconds.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 2_000_000 };
const PATIENCE_S: u32 = 5;

/// A fork of this memory begins: [`fork_ends`] in who made it, and in no child, as soon as it returns.
pub fn fork_begins() {
    let Some(word) = own_passing() else { return };
    let raised = |now: u32| (now & ADVISING == 0).then_some(now + 1);
    while word.fetch_update(AcqRel, Relaxed, raised).is_err() {
        if !wait_while(word, |now| now & ADVISING != 0) {
            // A2.
            word.fetch_add(1, AcqRel);
            return;
        }
    }
}

/// It has returned, or failed.
pub fn fork_ends() {
    let Some(word) = own_passing() else { return };
    word.fetch_sub(1, Release);
    syscall::wake(word);
}

/// Changes what forks pass on.
pub fn between_forks(change: impl FnOnce() -> isize) -> isize {
    let Some(word) = own_passing() else { return change() };
    // A handler that forks would wait for the thread that it interrupts.
    let signals = syscall::block_signals();
    let taken = loop {
        if word.compare_exchange(0, ADVISING, AcqRel, Relaxed).is_ok() {
            break true;
        }
        if !wait_while(word, |now| now != 0) {
            break false;
        }
    };
    be_heard();
    let result = change();
    if taken {
        word.fetch_and(!ADVISING, Release);
        syscall::wake(word);
    }
    syscall::set_signals(&signals, None);
    result
}

/// Waits while it is so; false if it stays so.
fn wait_while(word: &AtomicU32, so: impl Fn(u32) -> bool) -> bool {
    let began_s = syscall::seconds();
    loop {
        let now = word.load(Acquire);
        if !so(now) {
            return true;
        }
        if syscall::seconds().wrapping_sub(began_s) > PATIENCE_S {
            return false;
        }
        syscall::wait(word, now, &PAUSE);
    }
}
