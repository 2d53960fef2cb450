//! Allows changes of what a fork inherits only between forks.
//!
//! The kernel first copies a fork's memory and then sends the fork event. Only after that does the
//! pager look in the parent for ranges that the child did not inherit (`MADV_DONTFORK`,
//! `MADV_WIPEONFORK`). It would apply advice given in between to that fork. The child would then
//! get pages that are not its own, or lack some that are.
//!
//! * PASSING-1: a thread gives such advice only while no fork of this memory is under way, and
//!   after the pager has followed earlier forks. Forks of the advising thread itself do not count.
//!   Such a thread is in a signal handler, before or after the actual fork. To recognise its own
//!   forks, a thread blocks its signals while it counts a fork and notes its thread id.
//! * PASSING-2: no thread waits for ever. If the other side does not finish (a killed thread), the
//!   waiting thread goes on. Neither side starves: a new thread that finds the other side waiting
//!   lets the other side go first.
//! * PASSING-3: the lock word is in the page that the kernel wipes in a child ([`crate::own`]).
//!   None of the parent's forks is under way in the child.

use crate::calls::wait_for_pager;
use crate::filter;
use crate::own::{self, own_passing};
use crate::state::{AGENT, die};
use crate::syscall::{self, Timespec, call};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Flag of the lock word: a thread is giving advice.
const ADVISING: u32 = 1 << 31;
/// Flag of the lock word: a thread waits to give advice.
const ADVICE_WAITS: u32 = 1 << 30;
/// Flag of the lock word: a thread waits to fork.
const FORK_WAITS: u32 = 1 << 29;
/// Remaining bits of the lock word: number of forks under way.
const FORKS: u32 = FORK_WAITS - 1;
/// Length of one wait, and largest number of waits. Time during which the host is suspended counts
/// as one wait.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 2_000_000 };
const LOOKS_MAX: u32 = 2500;

/// Largest number of threads that are noted as forking at a time. Further forks are counted without
/// their thread.
const FORKERS_MAX: usize = 16;

/// Lock between forks and advice that changes what a fork inherits.
pub struct Passing {
    word: AtomicU32,
    /// Number of forks under way that the lock word does not count.
    unnoted: AtomicU32,
    /// Thread ids of threads within a fork, once for each fork; 0: empty slot.
    forkers: [AtomicU32; FORKERS_MAX],
}

/// Begins a fork of this memory. The parent, and no child, calls [`fork_ends`] as soon as the fork
/// returns.
pub fn fork_begins() {
    // OWN-3: the child needs its parent's agent.
    own::settle();
    end_if_killed();
    let Some(Passing { word, unnoted, forkers }) = own_passing() else { return };
    if filter::is_strict() {
        // FILTER-1: behind a strict filter the fork does not wait for advice.
        unnoted.fetch_add(1, Relaxed);
        return;
    }
    let signals = syscall::block_signals();
    let begun = |now: u32| (now & !FORK_WAITS) + 1;
    if !take(word, |now| now & ADVISING != 0, [FORK_WAITS, ADVICE_WAITS], begun) {
        // PASSING-2: the fork goes on without the lock.
        word.fetch_add(1, AcqRel);
    }
    exchange(forkers, 0, own_thread());
    syscall::set_signals(&signals, None);
}

/// Ends this process if the run is over. Otherwise a tree that forks faster than the pager kills
/// would never end. A child that has not joined yet reads its ancestor's flag.
fn end_if_killed() {
    let table = AGENT.table.load(Acquire);
    // SAFETY: the table stays mapped until another table has replaced it.
    if !table.is_null() && unsafe { &*table }.ending.load(Relaxed) != 0 {
        die();
    }
}

/// Ends a fork, which has returned or failed.
pub fn fork_ends() {
    let Some(Passing { word, unnoted, forkers }) = own_passing() else { return };
    if filter::is_strict() {
        // It does not matter which count goes down first, because in the end no fork is under way.
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

/// Makes a change of what a fork inherits, while no fork is under way.
pub fn between_forks(change: impl FnOnce() -> isize) -> isize {
    let Some(Passing { word, forkers, .. }) = own_passing() else { return change() };
    // A signal handler that forks would wait for the thread that it interrupts.
    let signals = syscall::block_signals();
    let begun = |now: u32| (now & !ADVICE_WAITS) | ADVISING;
    let thread = own_thread();
    let own = forkers.iter().filter(|forker| forker.load(Relaxed) == thread).count() as u32;
    let barred = |now: u32| now & ADVISING != 0 || now & FORKS > own;
    let taken = take(word, barred, [ADVICE_WAITS, FORK_WAITS], begun);
    wait_for_pager();
    let result = change();
    if taken {
        word.fetch_and(!ADVISING, Release);
        syscall::wake(word);
    }
    syscall::set_signals(&signals, None);
    result
}

/// Replaces `from` by `to` in the first place that holds `from`.
fn exchange(places: &[AtomicU32], from: u32, to: u32) {
    for place in places {
        if place.compare_exchange(from, to, Relaxed, Relaxed).is_ok() {
            return;
        }
    }
}

fn own_thread() -> u32 {
    // SAFETY: GETTID takes no argument.
    unsafe { call(syscall::GETTID, [0; 6]) as u32 }
}

/// Changes the lock word by `begun` once it is not `barred`. A thread that finds the other side
/// waiting lets the other side go first, so that neither starves. Returns false, without the
/// change, if the wait takes too long.
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
        looks += u32::from(syscall::is_counted_wait(syscall::wait(word, seen, &PAUSE)));
        defers = 0;
    }
}
