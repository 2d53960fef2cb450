//! What a fork passes on changes between forks only.
//!
//! The kernel copies a fork's memory first and tells of it then, and the pager looks up what was left out (`MADV_DONTFORK`,
//! `MADV_WIPEONFORK`) last, in the parent: advice given in between would be taken for what the fork went by, and the
//! child get pages that are not its own, or lack some that are.
//!
//! * PASSING-1: whoever gives such advice does so while no fork of this memory is under way, and after the pager has
//!   followed those that were.
//!   Forks of the advising thread itself do not count: it is in a signal handler, before or after the fork itself. So
//!   that it knows its own, no handler runs between the count of forks and the note of whose one is.
//! * PASSING-2: nobody waits for ever: where the other side does not end (a thread that was killed) it goes on. And neither
//!   side starves: whoever comes while the other waits lets that go first.
//! * PASSING-3: the word is in the page that the kernel wipes in a child ([`crate::own`]), where none of its forks is under way.

use crate::calls::be_heard;
use crate::filter;
use crate::own::own_passing;
use crate::state::{AGENT, die};
use crate::syscall::{self, Timespec, call};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Advice is being given.
const ADVISING: u32 = 1 << 31;
/// Somebody waits to give advice.
const ADVICE_WAITS: u32 = 1 << 30;
/// Somebody waits to fork.
const FORK_WAITS: u32 = 1 << 29;
/// The rest of the word: forks under way.
const FORKS: u32 = FORK_WAITS - 1;
/// How often to look, and how many times. A host that stops makes one look of it.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 2_000_000 };
const LOOKS_MAX: u32 = 2500;

/// Threads noted as forking, at once. Of others it is not known.
const FORKERS_MAX: usize = 16;

/// Who forks, and who changes what forks pass on.
pub struct Passing {
    word: AtomicU32,
    /// Forks under way that nothing was noted of.
    unnoted: AtomicU32,
    /// Threads within a fork, once for each; 0: nobody.
    forkers: [AtomicU32; FORKERS_MAX],
}

/// A fork of this memory begins: [`fork_ends`] in who made it, and in no child, as soon as it returns.
pub fn fork_begins() {
    end_if_killed();
    let Some(Passing { word, unnoted, forkers }) = own_passing() else { return };
    if filter::is_strict() {
        // FILTER-1. Advice beside it is not waited for.
        unnoted.fetch_add(1, Relaxed);
        return;
    }
    let signals = syscall::block_signals();
    let begun = |now: u32| (now & !FORK_WAITS) + 1;
    if !take(word, |now| now & ADVISING != 0, [FORK_WAITS, ADVICE_WAITS], begun) {
        // PASSING-2.
        word.fetch_add(1, AcqRel);
    }
    exchange(forkers, 0, own_thread());
    syscall::set_signals(&signals, None);
}

/// A tree that forks faster than its processes are found and killed would never end. A child that has yet to join reads what
/// its ancestor was told.
fn end_if_killed() {
    let table = AGENT.table.load(Acquire);
    // SAFETY: what is in there stays mapped until another has taken its place.
    if !table.is_null() && unsafe { &*table }.ending.load(Relaxed) != 0 {
        die();
    }
}

/// It has returned, or failed.
pub fn fork_ends() {
    let Some(Passing { word, unnoted, forkers }) = own_passing() else { return };
    if filter::is_strict() {
        // Which of them it is does not matter: in the end none is under way.
        let one_less = |count: u32| count.checked_sub(1);
        if unnoted.fetch_update(Relaxed, Relaxed, one_less).is_err() {
            word.fetch_sub(1, Release);
        }
        return;
    }
    let signals = syscall::block_signals();
    exchange(forkers, own_thread(), 0);
    word.fetch_sub(1, Release);
    syscall::wake(word);
    syscall::set_signals(&signals, None);
}

/// Changes what forks pass on.
pub fn between_forks(change: impl FnOnce() -> isize) -> isize {
    let Some(Passing { word, forkers, .. }) = own_passing() else { return change() };
    // A handler that forks would wait for the thread that it interrupts.
    let signals = syscall::block_signals();
    let begun = |now: u32| (now & !ADVICE_WAITS) | ADVISING;
    let thread = own_thread();
    let own = forkers.iter().filter(|forker| forker.load(Relaxed) == thread).count() as u32;
    let barred = |now: u32| now & ADVISING != 0 || now & FORKS > own;
    let taken = take(word, barred, [ADVICE_WAITS, FORK_WAITS], begun);
    be_heard();
    let result = change();
    if taken {
        word.fetch_and(!ADVISING, Release);
        syscall::wake(word);
    }
    syscall::set_signals(&signals, None);
    result
}

/// Writes `to` in one place that has `from`.
fn exchange(places: &[AtomicU32], from: u32, to: u32) {
    for place in places {
        if place.compare_exchange(from, to, Relaxed, Relaxed).is_ok() {
            return;
        }
    }
}

fn own_thread() -> u32 {
    // SAFETY: takes nothing.
    unsafe { call(syscall::GETTID, [0; 6]) as u32 }
}

/// Makes the word `begun` once it is not `barred`. Whoever comes while the other side waits lets that go first,
/// so that neither starves. False, and nothing done, where it takes too long.
fn take(
    word: &AtomicU32,
    barred: impl Fn(u32) -> bool,
    [own, other]: [u32; 2],
    begun: impl Fn(u32) -> u32,
) -> bool {
    let (mut looks, mut defers) = (0, other);
    loop {
        let free = |now: u32| !barred(now) && now & defers == 0;
        let step = |now: u32| free(now).then(|| begun(now));
        if word.fetch_update(AcqRel, Relaxed, step).is_ok() {
            return true;
        }
        if looks > LOOKS_MAX {
            word.fetch_and(!own, Relaxed);
            return false;
        }
        let seen = word.fetch_or(own, Relaxed) | own;
        looks += u32::from(syscall::is_look(syscall::wait(word, seen, &PAUSE)));
        defers = 0;
    }
}
