//! The state of one page in one word: its latch, its frame, and whether it is dirty.
//!
//! ```text
//! bits 0..8    latch: 0 free, 1..=READERS_MAX number of readers, EXCLUSIVE a thread that writes,
//!              loads or evicts
//! bit  8       WAITERS: a thread sleeps until the latch is free
//! bit  9       DIRTY: differs from the files
//! bits 16..48  number of the frame plus one; 0: the page is in no frame
//! ```
//! Invariants:
//! * WORD-1: the frame changes only while the latch is exclusive, or by the step from "free and
//!   clean" to "in no frame". No other thread can get the latch during that step.
//! * WORD-2: the thread that releases the last latch clears WAITERS in the same atomic step, and
//!   then wakes all waiters. A thread that sleeps has set WAITERS in a step that saw the latch
//!   taken. So no thread sleeps beside a free latch.
//! * WORD-3: no thread joins the readers while a thread waits, so writers do not starve.

use crate::park::WaitQueue;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

const LATCH: u64 = 0xff;
const EXCLUSIVE: u64 = 0xff;
const READERS_MAX: u64 = 0xf0;
const WAITERS: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
const FRAME_SHIFT: u32 = 16;
const FRAME: u64 = 0xffff_ffff << FRAME_SHIFT;
/// Number of tries before a thread sleeps. Most latches are held for less than a microsecond. A
/// latch that is held for a read of a disk is worth a sleep.
const SPINS: u32 = if cfg!(loom) { 0 } else { 32 };

/// The value of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(u64);

impl State {
    /// Returns the frame of the page.
    pub fn frame(self) -> Option<u32> {
        ((self.0 & FRAME) >> FRAME_SHIFT).checked_sub(1).map(|frame| frame as u32)
    }

    /// Returns whether no thread has the latch, and none waits.
    pub fn is_free(self) -> bool {
        self.0 & (LATCH | WAITERS) == 0
    }

    /// Returns whether the page was written to since it was last in the files.
    pub fn is_dirty(self) -> bool {
        self.0 & DIRTY != 0
    }

    /// Returns whether the page is being loaded.
    pub fn is_loading(self) -> bool {
        self.frame().is_none() && self.0 & LATCH == EXCLUSIVE
    }

    fn is_latched(self) -> bool {
        self.0 & LATCH != 0
    }

    fn may_join(self) -> bool {
        self.0 & LATCH < READERS_MAX && self.0 & WAITERS == 0
    }
}

/// Kind of a latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Latch {
    /// Shared with other readers.
    Shared,
    /// Exclusive.
    Exclusive,
}

impl Latch {
    fn bits(self) -> u64 {
        match self {
            Self::Shared => 1,
            Self::Exclusive => EXCLUSIVE,
        }
    }
}

/// Result of latching a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The page is latched as requested, in this frame.
    Here(u32),
    /// The page is in no frame, and latched exclusively. The caller must load it, and call
    /// [`Word::publish`].
    Missing,
}

/// The state word of a page.
#[derive(Default, Debug)]
pub struct Word(AtomicU64, WaitQueue);

impl Word {
    /// Returns the present value.
    pub fn state(&self) -> State {
        State(self.0.load(SeqCst))
    }

    fn swap(&self, old: State, new: u64) -> bool {
        self.0.compare_exchange_weak(old.0, new, SeqCst, Relaxed).is_ok()
    }

    /// Takes a latch, and waits for it.
    pub fn latch(&self, how: Latch) -> Found {
        let mut spins = 0;
        loop {
            if let Some(found) = self.try_latch(how) {
                return found;
            }
            self.wait(&mut spins, |state| match how {
                Latch::Shared => !state.may_join(),
                Latch::Exclusive => state.is_latched(),
            });
        }
    }

    /// Takes a latch if it is available at once.
    pub fn try_latch(&self, how: Latch) -> Option<Found> {
        loop {
            let state = State(self.0.load(Acquire));
            let frame = state.frame();
            let free = match how {
                Latch::Shared if frame.is_some() => state.may_join(),
                Latch::Shared | Latch::Exclusive => !state.is_latched(),
            };
            if !free {
                return None;
            }
            let new = match (how, frame) {
                (Latch::Shared, Some(_)) => state.0 + 1,
                (Latch::Exclusive, _) | (_, None) => state.0 | EXCLUSIVE,
            };
            if self.swap(state, new) {
                return Some(frame.map_or(Found::Missing, Found::Here));
            }
        }
    }

    /// Latches a page exclusively for a load, if it is in no frame and not latched. Returns whether
    /// it did so. The caller loads the page and calls [`Word::publish`].
    pub fn claim(&self) -> bool {
        let state = State(self.0.load(Acquire));
        let idle = state.frame().is_none() && state.is_free();
        idle && self.0.compare_exchange(state.0, state.0 | EXCLUSIVE, SeqCst, Relaxed).is_ok()
    }

    /// Records that the missing page was loaded into `frame`, and changes its latch to `how`.
    pub fn publish(&self, frame: u32, how: Option<Latch>) {
        let latch = how.map_or(0, Latch::bits);
        self.end_exclusive(|bits| bits | (u64::from(frame) + 1) << FRAME_SHIFT | latch);
    }

    /// Releases an exclusive latch.
    pub fn unlatch_exclusive(&self) {
        self.end_exclusive(|bits| bits);
    }

    fn end_exclusive(&self, with: impl Fn(u64) -> u64) {
        let mut state = State(self.0.load(Relaxed));
        debug_assert_eq!(state.0 & LATCH, EXCLUSIVE);
        while !self.swap(state, with(state.0 & !(LATCH | WAITERS))) {
            state = State(self.0.load(Relaxed));
        }
        self.wake(state);
    }

    /// Releases a shared latch.
    pub fn unlatch_shared(&self) {
        loop {
            let state = State(self.0.load(Relaxed));
            debug_assert!((1..=READERS_MAX).contains(&(state.0 & LATCH)));
            let last = state.0 & LATCH == 1;
            // WORD-2
            let new = if last { (state.0 - 1) & !WAITERS } else { state.0 - 1 };
            if self.swap(state, new) {
                if last {
                    self.wake(state);
                }
                return;
            }
        }
    }

    /// Marks the page dirty. Only under an exclusive latch. Returns false if it was dirty before.
    pub fn set_dirty(&self) -> bool {
        self.0.fetch_or(DIRTY, SeqCst) & DIRTY == 0
    }

    /// Marks the page clean, because the files have its contents. Only under a latch.
    pub fn set_clean(&self) {
        self.0.fetch_and(!DIRTY, SeqCst);
    }

    /// Takes the step from "free and clean" to "in no frame" (WORD-1). Returns false if the page is
    /// not in that state any more.
    pub fn evict(&self, state: State) -> bool {
        state.is_free()
            && !state.is_dirty()
            && self.0.compare_exchange(state.0, 0, SeqCst, Relaxed).is_ok()
    }

    fn wait(&self, spins: &mut u32, must: impl Fn(State) -> bool) {
        if *spins < SPINS {
            *spins += 1;
            return std::hint::spin_loop();
        }
        let state = State(self.0.load(Relaxed));
        if !must(state) || !state.is_latched() || !self.swap(state, state.0 | WAITERS) {
            return;
        }
        let sleeps = || {
            let state = State(self.0.load(SeqCst));
            state.0 & WAITERS != 0 && state.is_latched()
        };
        self.1.sleep(&self.0, sleeps);
    }

    fn wake(&self, before: State) {
        if before.0 & WAITERS != 0 {
            self.1.wake(&self.0);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn the_word_of_a_page_passes_through_its_states() {
        let word = Word::default();
        assert_eq!(word.latch(Latch::Shared), Found::Missing);
        assert!(word.state().is_loading());
        assert_eq!(word.try_latch(Latch::Shared), None);
        word.publish(0, Some(Latch::Shared));
        assert_eq!(word.latch(Latch::Shared), Found::Here(0));
        assert_eq!(word.try_latch(Latch::Exclusive), None);
        word.unlatch_shared();
        word.unlatch_shared();
        assert_eq!(word.latch(Latch::Exclusive), Found::Here(0));
        assert!(word.set_dirty() && !word.set_dirty());
        word.unlatch_exclusive();
        assert!(!word.evict(word.state()), "what is dirty does not leave");
        word.set_clean();
        assert!(word.evict(word.state()));
        assert_eq!(word.state(), State(0));
    }

    #[test]
    fn no_more_readers_share_a_latch_than_can_be_counted() {
        let word = Word::default();
        word.latch(Latch::Exclusive);
        word.publish(u32::MAX - 1, Some(Latch::Shared));
        for _ in 1..READERS_MAX {
            assert_eq!(word.latch(Latch::Shared), Found::Here(u32::MAX - 1));
        }
        assert_eq!(word.try_latch(Latch::Shared), None);
        word.unlatch_shared();
        assert!(word.try_latch(Latch::Shared).is_some());
    }

    /// Shows that writers are exclusive and no thread sleeps for ever. Threads add to two counters
    /// that agree whenever the latch is free, read them, evict and load.
    #[test]
    fn writers_are_exclusive_and_no_thread_sleeps_for_ever() {
        let word = Word::default();
        let (one, two) = (AtomicU64::new(0), AtomicU64::new(0));
        let had = |how| {
            if word.latch(how) == Found::Missing {
                word.publish(7, Some(how));
            }
        };
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for turn in 0..20_000u32 {
                        had(Latch::Exclusive);
                        one.store(one.load(Relaxed) + 1, Relaxed);
                        if turn % 64 == 0 {
                            std::thread::yield_now();
                        }
                        two.store(two.load(Relaxed) + 1, Relaxed);
                        word.unlatch_exclusive();
                    }
                });
                threads.spawn(|| {
                    for _ in 0..20_000 {
                        had(Latch::Shared);
                        assert_eq!(one.load(Relaxed), two.load(Relaxed));
                        word.unlatch_shared();
                        word.evict(word.state());
                    }
                });
            }
        });
        assert_eq!((one.into_inner(), two.into_inner()), (60_000, 60_000));
    }
}
