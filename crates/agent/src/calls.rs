//! Makes calls: requests of a program's thread to the pager that cannot wait. The thread fills in a
//! slot of a shared table and discards the page of the slot's doorbell. The discard returns when
//! the pager has read the event.
//!
//! * CALL-1: the thread waits for a slow pager. It repeats an unanswered call, except one for a new
//!   area, which the pager also finds by scanning. It gives up only if no process has the
//!   userfaultfd any more, or if that has been unknown for long.

use crate::protocol::{
    ASK_MANAGE, CALL_AGE_MAX_S, CALL_ANSWERED, CALL_FREE, CALL_MADE, Call, DOORBELLS, Shared, State,
};
use crate::state::AGENT;
use crate::syscall::{self, Timespec, call};
use crate::worker::{make_quiet_uffd, register_quietly};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const MADV_DONTNEED: usize = 4;
/// Time to wait for an answer before the call is repeated: `STEPS_MAX` steps. After each step the
/// thread checks that the pager still lives. Time during which the host is suspended counts as one
/// step.
const STEP: Timespec = Timespec { seconds: 0, nanoseconds: 200_000_000 };
const STEPS_MAX: u32 = 50;
const _: () = assert!(STEPS_MAX / 5 < CALL_AGE_MAX_S);
/// Interval at which a thread looks for a free slot. After `PAUSES` looks it checks that the pager
/// still lives.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 2_000_000 };
const PAUSES: u32 = 100;

/// Reason why a call has no answer.
enum Unanswered {
    /// No slot was free, another thread took over the slot, or the answer took too long.
    Yet,
    /// The pager is gone, or cannot be called.
    Ever,
}

/// Makes a call through `table`. Returns the answer (0, or an errno), or None if there will be
/// none.
pub fn ask(table: &Shared, what: u32, args: [u64; 2]) -> Option<u32> {
    let mut unknown = 0;
    loop {
        match ask_once(table, what, args, &mut unknown) {
            Ok(answer) => return Some(answer),
            // The pager finds a new area by scanning, too. A child has no other way than the call.
            Err(Unanswered::Yet) if what != ASK_MANAGE => {}
            Err(_) => return None,
        }
    }
}

fn ask_once(
    table: &Shared,
    what: u32,
    args: [u64; 2],
    unknown: &mut u32,
) -> Result<u32, Unanswered> {
    // As many threads as there are doorbells can call at a time.
    let tries = if what == ASK_MANAGE { 1 } else { PAUSES };
    let Some((doorbell, taken)) = take(table, tries) else {
        return Err(if is_over(unknown) { Unanswered::Ever } else { Unanswered::Yet });
    };
    let place = &table.calls[doorbell];
    place.what.store(what, Relaxed);
    for (to, value) in [&place.a, &place.b].into_iter().zip(args) {
        to.store(value, Relaxed);
    }
    let made = taken.at(CALL_MADE);
    // Pairs with the pager's Acquire load. If this thread was stopped for long, another may have
    // the slot by now and keeps it.
    let placed = place.state.compare_exchange(taken.0, made.0, Release, Relaxed);
    placed.map_err(|_| Unanswered::Yet)?;
    // If a filter of system calls refuses the doorbell's discard, a repetition would not help.
    let gone = !ring(doorbell) || wait(place, made, unknown);
    // Pairs with the pager's exchange.
    let state = State(place.state.load(Acquire));
    let own = state.at(CALL_MADE) == made;
    if own {
        give_back(place, state);
    }
    match own && state.stage() == CALL_ANSWERED {
        true => Ok(state.answer()),
        false if gone => Err(Unanswered::Ever),
        false => Err(Unanswered::Yet),
    }
}

/// Takes a slot for a call. Returns its index and its state word.
fn take(table: &Shared, tries: u32) -> Option<(usize, State)> {
    let nobody_wakes = AtomicU32::new(0);
    for attempt in 0..tries {
        if attempt > 0 {
            syscall::wait(&nobody_wakes, 0, &PAUSE);
        }
        let now_s = syscall::seconds();
        for (doorbell, place) in table.calls.iter().enumerate() {
            let state = State(place.state.load(Acquire));
            let age_s = now_s.wrapping_sub(place.since_s.load(Relaxed));
            if state.stage() != CALL_FREE && age_s < CALL_AGE_MAX_S {
                continue;
            }
            let taken = state.taken();
            // Set before the slot is taken, because other threads would otherwise see an old time.
            place.since_s.store(now_s, Relaxed);
            if place.state.compare_exchange(state.0, taken.0, AcqRel, Relaxed).is_ok() {
                return Some((doorbell, taken));
            }
        }
    }
    None
}

/// Frees the slot, unless another thread has it by now.
fn give_back(place: &Call, mut state: State) {
    let made = state.at(CALL_MADE);
    while state.at(CALL_MADE) == made {
        match place.state.compare_exchange(state.0, state.at(CALL_FREE).0, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => state = State(now),
        }
    }
}

/// Returns when the pager has followed all earlier events, for example a fork.
pub fn wait_for_pager() {
    // Any doorbell will do. Without a call behind it the pager does not answer, and it accepts a
    // second ring for a call.
    ring(0);
}

fn ring(doorbell: usize) -> bool {
    let (start, len) = (AGENT.pool_start.load(Relaxed), AGENT.pool_len.load(Relaxed));
    let page = start + len - ((DOORBELLS - doorbell) as u64) * 4096;
    // SAFETY: the page is in the pool and never holds anything.
    unsafe { call(syscall::MADVISE, [page as usize, 4096, MADV_DONTNEED, 0, 0, 0]) == 0 }
}

/// Waits for the answer, or until the call is to be repeated. Returns whether there will be no
/// answer.
fn wait(place: &Call, made: State, unknown: &mut u32) -> bool {
    let mut steps = 0;
    while place.state.load(Acquire) == made.0 && steps < STEPS_MAX {
        if syscall::is_counted_wait(syscall::wait(&place.state, made.0, &STEP)) {
            steps += 1;
            if is_over(unknown) {
                return true;
            }
        }
    }
    false
}

/// Returns whether the pager is gone, or whether that has been unknown for as long as a call may
/// take (CALL-1).
fn is_over(unknown: &mut u32) -> bool {
    let gone = is_pager_gone();
    *unknown += u32::from(gone.is_none());
    gone.unwrap_or(*unknown >= STEPS_MAX)
}

/// Returns whether no process has this address space's userfaultfd any more. In that case another
/// userfaultfd can register the doorbells. The check opens a descriptor for a moment, so callers
/// make it only if needed. Returns None if no descriptor can be had.
fn is_pager_gone() -> Option<bool> {
    let (start, len) = (AGENT.pool_start.load(Relaxed), AGENT.pool_len.load(Relaxed));
    let doorbells = DOORBELLS as u64 * 4096;
    let uffd = make_quiet_uffd()?;
    let registered = register_quietly(uffd, start + len - doorbells, doorbells);
    // SAFETY: the descriptor just made.
    unsafe { call(syscall::CLOSE, [uffd, 0, 0, 0, 0, 0]) };
    Some(registered)
}
