//! What a fork passes on changes between forks only.
//!
//! The kernel copies a fork's memory first and tells of it then, and the pager looks up what was left out (`MADV_DONTFORK`,
//! `MADV_WIPEONFORK`) last, in the parent: advice given in between would be taken for what the fork went by, and the
//! child get pages that are not its own, or lack some that are.
//!
//! * A1: whoever gives such advice does so while no fork of this memory is under way, and after the pager has
//!   followed those that were.
//! * A2: nobody waits for ever: where the other side does not end (a signal handler that gives advice within a fork, a
//!   thread that was killed) it goes on. And neither side starves: whoever comes while the other waits lets that go first.
//! * A3: the word is in the page that the kernel wipes in a child ([`crate::own`]), where none of its forks is under way.

use crate::calls::be_heard;
use crate::own::own_passing;
use crate::syscall::{self, Timespec};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

/// Advice is being given.
const ADVISING: u32 = 1 << 31;
/// Somebody waits to give advice.
const ADVICE_WAITS: u32 = 1 << 30;
/// Somebody waits to fork.
const FORK_WAITS: u32 = 1 << 29;
/// The rest of the word: forks under way.
const FORKS: u32 = FORK_WAITS - 1;
/// How often to look, and for how many seconds.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 2_000_000 };
const PATIENCE_S: u32 = 5;

/// A fork of this memory begins: [`fork_ends`] in who made it, and in no child, as soon as it returns.
pub fn fork_begins() {
    let Some(word) = own_passing() else { return };
    let begun = |now: u32| (now & !FORK_WAITS) + 1;
    if !take(word, ADVISING, [FORK_WAITS, ADVICE_WAITS], begun) {
        // A2.
        word.fetch_add(1, AcqRel);
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
    let begun = |now: u32| (now & !ADVICE_WAITS) | ADVISING;
    let taken = take(word, ADVISING | FORKS, [ADVICE_WAITS, FORK_WAITS], begun);
    be_heard();
    let result = change();
    if taken {
        word.fetch_and(!ADVISING, Release);
        syscall::wake(word);
    }
    syscall::set_signals(&signals, None);
    result
}

/// Makes the word `begun` once nothing of `barring` is in it. Whoever comes while the other side waits lets that go first,
/// so that neither starves. False, and nothing done, where it takes too long.
fn take(
    word: &AtomicU32,
    barring: u32,
    [own, other]: [u32; 2],
    begun: impl Fn(u32) -> u32,
) -> bool {
    let began_s = syscall::seconds();
    let mut bars = barring | other;
    loop {
        let step = |now: u32| (now & bars == 0).then(|| begun(now));
        if word.fetch_update(AcqRel, Relaxed, step).is_ok() {
            return true;
        }
        if syscall::seconds().wrapping_sub(began_s) > PATIENCE_S {
            word.fetch_and(!own, Relaxed);
            return false;
        }
        let seen = word.fetch_or(own, Relaxed) | own;
        syscall::wait(word, seen, &PAUSE);
        bars = barring;
    }
}
