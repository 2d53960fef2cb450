//! Calls: what a thread of the program wants of the pager at once. It fills in a place of a table that both see
//! and discards the page of the bell, which returns when the pager has heard it.
//!
//! * CALL-1: A pager that is slow is waited for. A call that is not answered is made again; it ends without an answer only where
//!   nobody has the userfaultfd any more, or where that cannot be found out for long.

use crate::protocol::{
    ASK_MANAGE, BELLS, CALL_AGE_MAX_S, CALL_ANSWERED, CALL_FREE, CALL_MADE, Call, Shared, State,
};
use crate::state::AGENT;
use crate::syscall::{self, Timespec, call};
use crate::worker::{make_quiet_uffd, register_quietly};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

const MADV_DONTNEED: usize = 4;
/// How long an answer may take before the call is made again, in steps after which to see whether the pager still lives. A
/// host that stops makes one step of it.
const STEP: Timespec = Timespec { seconds: 0, nanoseconds: 200_000_000 };
const STEPS_MAX: u32 = 50;
const _: () = assert!(STEPS_MAX / 5 < CALL_AGE_MAX_S);
/// How often to look for a place, and after how many looks to see whether the pager still lives.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 2_000_000 };
const PAUSES: u32 = 100;

/// Why a call has no answer.
enum Unanswered {
    /// There was no place for it, or the place was given to another, or it took too long.
    Yet,
    /// The pager is gone, or cannot be called.
    Ever,
}

/// Makes a call through `table`: the answer (0, or an errno), or None if there will be none.
pub fn ask(table: &Shared, what: u32, args: [u64; 2]) -> Option<u32> {
    let mut unknown = 0;
    loop {
        match ask_once(table, what, args, &mut unknown) {
            Ok(answer) => return Some(answer),
            // An area is found by looking; a child has no other way.
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
    // As many callers as bells at once.
    let tries = if what == ASK_MANAGE { 1 } else { PAUSES };
    let Some((bell, taken)) = take(table, tries) else {
        return Err(if is_over(unknown) { Unanswered::Ever } else { Unanswered::Yet });
    };
    let place = &table.calls[bell];
    place.what.store(what, Relaxed);
    for (to, value) in [&place.a, &place.b].into_iter().zip(args) {
        to.store(value, Relaxed);
    }
    let made = taken.at(CALL_MADE);
    // Partner: the pager's Acquire load. A place that is another's by now stays so: this thread was stopped for long.
    let placed = place.state.compare_exchange(taken.0, made.0, Release, Relaxed);
    placed.map_err(|_| Unanswered::Yet)?;
    // A bell that cannot be rung (a filter of system calls refuses it) is heard by nobody, however often it is tried.
    let gone = !ring(bell) || wait(place, made, unknown);
    // Partner: the pager's exchange.
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

/// A place for a call, with its word.
fn take(table: &Shared, tries: u32) -> Option<(usize, State)> {
    let nobody_wakes = AtomicU32::new(0);
    for attempt in 0..tries {
        if attempt > 0 {
            syscall::wait(&nobody_wakes, 0, &PAUSE);
        }
        let now_s = syscall::seconds();
        for (bell, place) in table.calls.iter().enumerate() {
            let state = State(place.state.load(Acquire));
            let age_s = now_s.wrapping_sub(place.since_s.load(Relaxed));
            if state.stage() != CALL_FREE && age_s < CALL_AGE_MAX_S {
                continue;
            }
            let taken = state.taken();
            // Before it is taken, or others would see it taken long ago.
            place.since_s.store(now_s, Relaxed);
            if place.state.compare_exchange(state.0, taken.0, AcqRel, Relaxed).is_ok() {
                return Some((bell, taken));
            }
        }
    }
    None
}

/// Unless it is another's by now.
fn give_back(place: &Call, mut state: State) {
    let made = state.at(CALL_MADE);
    while state.at(CALL_MADE) == made {
        match place.state.compare_exchange(state.0, state.at(CALL_FREE).0, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => state = State(now),
        }
    }
}

/// Returns when all that the pager was told before is followed: a fork, for one.
pub fn be_heard() {
    // Whose bell it is does not matter: where there is no call behind it nobody answers, and a call is heard twice.
    ring(0);
}

fn ring(bell: usize) -> bool {
    let (start, len) = (AGENT.pool_start.load(Relaxed), AGENT.pool_len.load(Relaxed));
    let page = start + len - ((BELLS - bell) as u64) * 4096;
    // SAFETY: a page of the pool that never holds anything.
    unsafe { call(syscall::MADVISE, [page as usize, 4096, MADV_DONTNEED, 0, 0, 0]) == 0 }
}

/// Waits for the answer, or until the call is to be made again. Whether there will be none.
fn wait(place: &Call, made: State, unknown: &mut u32) -> bool {
    let mut steps = 0;
    while place.state.load(Acquire) == made.0 && steps < STEPS_MAX {
        if syscall::is_look(syscall::wait(&place.state, made.0, &STEP)) {
            steps += 1;
            if is_over(unknown) {
                return true;
            }
        }
    }
    false
}

/// Whether the pager is gone, or that could not be found out for as long as a call may take (CALL-1).
fn is_over(unknown: &mut u32) -> bool {
    let gone = is_pager_gone();
    *unknown += u32::from(gone.is_none());
    gone.unwrap_or(*unknown >= STEPS_MAX)
}

/// Whether nobody has this address space's userfaultfd any more: then another can be given the bells. That needs a
/// descriptor for a moment, so it is not asked without need. None where there is none to be had.
fn is_pager_gone() -> Option<bool> {
    let (start, len) = (AGENT.pool_start.load(Relaxed), AGENT.pool_len.load(Relaxed));
    let bells = BELLS as u64 * 4096;
    let uffd = make_quiet_uffd()?;
    let registered = register_quietly(uffd, start + len - bells, bells);
    // SAFETY: the descriptor just made.
    unsafe { call(syscall::CLOSE, [uffd, 0, 0, 0, 0, 0]) };
    Some(registered)
}
