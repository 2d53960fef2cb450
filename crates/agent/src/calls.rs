//! Calls: what a thread of the program wants of the pager at once. It fills in a place of a table that both see
//! and discards the page of the bell, which returns when the pager has heard it.

use crate::preload::AGENT;
use crate::protocol::{BELLS, CALL_ANSWERED, CALL_FREE, CALL_MADE, CALL_TAKEN, Call, Shared};
use crate::syscall::{self, Timespec, call};
use crate::worker::{make_quiet_uffd, register_quietly};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const MADV_DONTNEED: usize = 4;
/// How long an answer may take, in steps after which to see whether the pager still lives. What is not answered by
/// then goes on without: an area is found by looking, a child takes the pager for dead.
const STEP: Timespec = Timespec { seconds: 0, nanoseconds: 200_000_000 };
const STEPS_MAX: u32 = 50;

/// Makes a call through `table`: the answer (0, or an errno), or None if there is none.
pub fn ask(table: &Shared, what: u32, args: [u64; 2]) -> Option<u32> {
    let free = |place: &Call| {
        place.state.compare_exchange(CALL_FREE, CALL_TAKEN, Acquire, Relaxed).is_ok()
    };
    // As many callers as bells at once: no answer.
    let bell = table.calls.iter().position(free)?;
    let place = &table.calls[bell];
    place.word.store(what, Relaxed);
    for (to, value) in [&place.a, &place.b].into_iter().zip(args) {
        to.store(value, Relaxed);
    }
    // Partner: the pager's Acquire load.
    place.state.store(CALL_MADE, Release);
    if ring(bell) {
        wait(place);
    }
    // Partner: the pager's Release store.
    let answered = place.state.load(Acquire) == CALL_ANSWERED;
    let answer = place.word.load(Relaxed);
    place.state.store(CALL_FREE, Release);
    answered.then_some(answer)
}

fn ring(bell: usize) -> bool {
    let (start, len) = (AGENT.pool_start.load(Relaxed), AGENT.pool_len.load(Relaxed));
    let page = start + len - ((BELLS - bell) as u64) * 4096;
    // SAFETY: a page of the pool that never holds anything.
    unsafe { call(syscall::MADVISE, [page as usize, 4096, MADV_DONTNEED, 0, 0, 0]) == 0 }
}

fn wait(place: &Call) {
    const ETIMEDOUT: isize = -110;
    let mut steps = 0;
    while place.state.load(Acquire) == CALL_MADE && steps < STEPS_MAX {
        if syscall::wait(&place.state, CALL_MADE, &STEP) == ETIMEDOUT {
            steps += 1;
            if is_pager_gone() {
                return;
            }
        }
    }
}

/// Whether nobody has this address space's userfaultfd any more: then another can be given the bells. That needs a
/// descriptor for a moment, so it is not asked without need.
fn is_pager_gone() -> bool {
    let (start, len) = (AGENT.pool_start.load(Relaxed), AGENT.pool_len.load(Relaxed));
    let bells = BELLS as u64 * 4096;
    let Some(uffd) = make_quiet_uffd() else { return false };
    let registered = register_quietly(uffd, start + len - bells, bells);
    // SAFETY: the descriptor just made.
    unsafe { call(syscall::CLOSE, [uffd, 0, 0, 0, 0, 0]) };
    registered
}
