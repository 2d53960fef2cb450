//! The line to one agent: batches out, results back.

use crate::children::Wish;
use crate::patience::{Patience, Wait};
use crate::seam::{Clock, Line};
use ebb_agent::protocol::{
    ASK_ALONE, ASK_JOIN, ASK_MANAGE, BATCH_MAX, BIN_BYTES, CALL_MADE, DONE, IDLE, MAPPING_FREE,
    MAPPING_PAGER, MAPPING_WANTED, OP_DROP, OP_MOVE, OP_UNSHARE, PINNED_GRAVE, PINNED_MAX, POSTED,
    Shared, State, TELL_BATCH, TELL_DETACH, TELL_LEAVE, TELL_SMALL, pinned_home,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

/// One operation of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Move a page.
    Move { to: u64, from: u64 },
    /// Drop pages.
    Drop { start: u64, len: u64 },
    /// Make pages the process's own.
    Unshare { start: u64, len: u64 },
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Executed; the results can be read.
    Done,
    /// Never started (the process is stopped or gone): nothing was done.
    Cancelled,
    /// Started and not finished (the process was stopped or killed in the middle): ask again later.
    Stalled,
}

/// What a thread of the program wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// That an area be managed.
    Manage { start: u64, end: u64 },
    /// What a forked child may.
    Wish(Wish),
}

/// Who made a call: the place, and which taking of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    bell: usize,
    state: State,
}

/// How often it is looked whether an agent takes too long, and its batch is called back.
const LOOK: Duration = Duration::from_millis(50);

/// The line. One batch at a time; only the kswapd thread posts. Copies are the same line.
#[derive(Clone, Debug)]
pub struct Link {
    line: Arc<dyn Line>,
    clock: Clock,
    /// The agent has been told that areas come under management.
    told_small: Arc<AtomicBool>,
}

/// The result of an operation that the agent had not told of when it ended: no errno is that.
pub const UNTOLD: i32 = 4095;

impl Link {
    /// The protocol over a line.
    #[must_use]
    pub fn new(line: Arc<dyn Line>, clock: Clock) -> Self {
        Self { line, clock, told_small: Arc::default() }
    }

    /// Whose line it is, simulated.
    #[cfg(test)]
    pub fn number(&self) -> Option<usize> {
        format!("{:?}", self.line).strip_prefix("line ")?.parse().ok()
    }

    fn shared(&self) -> &Shared {
        self.line.shared()
    }

    /// The connection: hangs up when the process ends or becomes another program.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.line.descriptor()
    }

    /// Whether the page must stay: it holds what the kernel writes when a thread ends.
    #[must_use]
    pub fn is_pinned(&self, vpn: u64) -> bool {
        if self.pins_everything() {
            return true;
        }
        let home = pinned_home(vpn);
        for step in 0..PINNED_MAX {
            match self.shared().pinned[(home + step) % PINNED_MAX].load(Acquire) {
                0 => return false,
                there if there == vpn => return true,
                _ => {}
            }
        }
        false
    }

    /// More pages must stay than there are places to note them: nobody knows which.
    #[must_use]
    pub fn pins_everything(&self) -> bool {
        self.shared().pins_full.load(Acquire) != 0
    }

    /// The pages that must stay, in order; None if all must.
    #[must_use]
    pub fn pins(&self) -> Option<Vec<u64>> {
        if self.pins_everything() {
            return None;
        }
        let there = self.shared().pinned.iter().map(|place| place.load(Acquire));
        let mut pins: Vec<u64> = there.filter(|&vpn| vpn > PINNED_GRAVE).collect();
        pins.sort_unstable();
        Some(pins)
    }

    /// In the memory of an agent that has yet to begin: what must stay in a forked child, as it had to in
    /// its parent.
    pub fn pin(&self, pins: Option<&[u64]>) {
        let Some(pins) = pins else {
            self.shared().pins_full.store(1, Release);
            return;
        };
        pins.iter().for_each(|&vpn| self.keep(vpn));
    }

    /// This page must stay, from now on.
    pub fn keep(&self, vpn: u64) {
        self.shared().keep(vpn);
    }

    /// The pages of `[start, end)` are unmapped: whatever was pinned there is no more.
    pub fn unpin(&self, start: u64, end: u64) {
        if end - start > PINNED_MAX as u64 / 16 {
            for place in &self.shared().pinned {
                let there = place.load(Acquire);
                if there >= start && there < end && there > PINNED_GRAVE {
                    place.store(PINNED_GRAVE, Release);
                }
            }
            return;
        }
        for vpn in start..end {
            let home = pinned_home(vpn);
            for step in 0..PINNED_MAX {
                let place = &self.shared().pinned[(home + step) % PINNED_MAX];
                match place.load(Acquire) {
                    0 => break,
                    there if there == vpn => {
                        place.store(PINNED_GRAVE, Release);
                        break;
                    }
                    _ => {}
                }
            }
        }
    }

    /// The program has no thread left: the agent's must not keep the process.
    pub fn leave(&self, code: u8) {
        // A full line is emptied first; this is called again.
        let _ = self.line.send_now(&[TELL_LEAVE, code]);
    }

    /// Every page is in its place: the agent's thread is to end. False if it could not be told yet.
    #[must_use]
    pub fn detach(&self) -> bool {
        // If the line is gone so is the thread.
        self.line.send_now(&[TELL_DETACH]).map_or(true, |sent| sent.is_some())
    }

    /// What was mapped for the agent beside the pool, as `(start, length)`: as it says itself.
    #[must_use]
    pub fn mapped_for_it(&self) -> [(u64, u64); 2] {
        let [berth, len] = [0, 1].map(|at| self.shared().berth[at].load(Relaxed));
        [(self.shared().bin.load(Relaxed), BIN_BYTES), (berth, len)]
    }

    /// How often threads of the program were in a hook for something that they had not asked for, and for how many
    /// ticks.
    #[must_use]
    pub fn lost(&self) -> (u64, u64) {
        (self.shared().lost_calls.load(Relaxed), self.shared().lost_ticks.load(Relaxed))
    }

    /// Whether the agent's thread runs.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared().ready.load(Acquire) != 0
    }

    /// The agent's thread.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.shared().thread.load(Relaxed)
    }

    /// Areas come under management from now on.
    pub fn managing(&self) {
        self.shared().managing.store(1, SeqCst);
    }

    /// The kernel is to make no huge pages from now on. Said again it does nothing, once the agent has been told.
    pub fn small(&self) {
        self.shared().small.store(1, SeqCst);
        // One that is not ready yet looks by itself when it is.
        if !self.told_small.load(Relaxed) && self.shared().ready.load(SeqCst) != 0 {
            // A full line takes it the next time.
            let told = self.line.send_now(&[TELL_SMALL]).is_ok_and(|sent| sent.is_some());
            self.told_small.store(told, Relaxed);
        }
    }

    /// The run is over: who would fork ends instead.
    pub fn end(&self) {
        self.shared().ending.store(1, Relaxed);
    }

    /// What the call behind a bell asks. None if there is no call, or none that makes sense.
    #[must_use]
    pub fn call(&self, bell: usize) -> Option<(Caller, Ask)> {
        let call = self.shared().calls.get(bell)?;
        let state = State(call.state.load(Acquire));
        if state.stage() != CALL_MADE {
            return None;
        }
        let (a, b) = (call.a.load(Relaxed), call.b.load(Relaxed));
        let ask = match call.what.load(Relaxed) {
            ASK_MANAGE => Ask::Manage { start: a, end: a.saturating_add(b) },
            ASK_JOIN => Ask::Wish(Wish::Join { thread: a as u32, descriptor: b as u32 }),
            ASK_ALONE => Ask::Wish(Wish::Alone { reason: a as i32 }),
            _ => return None,
        };
        Some((Caller { bell, state }, ask))
    }

    /// Has the thread that called go on, with this answer, if it still waits.
    pub fn answer(&self, caller: Caller, answer: u32) {
        let Some(call) = self.shared().calls.get(caller.bell) else { return };
        let (made, answered) = (caller.state.0, caller.state.answered(answer).0);
        // It may have given up: the place is free then, or another's.
        if call.state.compare_exchange(made, answered, Release, Relaxed).is_ok() {
            self.line.wake(&call.state);
        }
    }

    /// Keeps the program's threads from moving areas until `mapped`; false if one is at it: the pager is next then.
    pub fn try_map(&self) -> bool {
        let word = &self.shared().mapping;
        let now = word.load(Relaxed);
        let to = if now & !MAPPING_WANTED == MAPPING_FREE {
            MAPPING_PAGER
        } else {
            now | MAPPING_WANTED
        };
        word.compare_exchange(now, to, Acquire, Relaxed).is_ok() && to == MAPPING_PAGER
    }

    /// Ends what `try_map` began.
    pub fn mapped(&self) {
        self.shared().mapping.store(MAPPING_FREE, Release);
    }

    /// Posts a batch and waits for it.
    pub fn execute(&self, operations: &[Operation]) -> Outcome {
        assert!(operations.len() <= BATCH_MAX);
        for (entry, operation) in self.shared().entries.iter().zip(operations) {
            let (op, a, b, len) = match *operation {
                Operation::Move { to, from } => (OP_MOVE, to, from, 4096),
                Operation::Drop { start, len } => (OP_DROP, start, 0, len),
                Operation::Unshare { start, len } => (OP_UNSHARE, start, 0, len),
            };
            entry.op.store(op, Relaxed);
            entry.a.store(a, Relaxed);
            entry.b.store(b, Relaxed);
            entry.len.store(len, Relaxed);
            entry.result.store(-UNTOLD, Relaxed);
        }
        self.shared().count.store(operations.len() as u32, Relaxed);
        // Partner: the agent's swap of POSTED.
        self.shared().state.store(POSTED, Release);
        // If the line is full the agent has been told often enough.
        if self.line.send_now(&[TELL_BATCH]).is_err() {
            return self.call_back();
        }
        self.wait(Some(Wait::new(&self.clock, Patience::Batch)))
    }

    /// Waits for the batch under way, or looks whether it is over.
    pub fn wait(&self, wait: Option<Wait>) -> Outcome {
        loop {
            let state = self.shared().state.load(Acquire);
            if state == DONE {
                self.shared().state.store(IDLE, Relaxed);
                return Outcome::Done;
            }
            if wait.is_none_or(|wait| wait.is_over(&self.clock)) {
                return self.call_back();
            }
            self.line.wait(&self.shared().state, state, LOOK);
        }
    }

    fn call_back(&self) -> Outcome {
        match self.shared().state.compare_exchange(POSTED, IDLE, AcqRel, Acquire) {
            Ok(_) => Outcome::Cancelled,
            Err(DONE) => {
                self.shared().state.store(IDLE, Relaxed);
                Outcome::Done
            }
            Err(_) => Outcome::Stalled,
        }
    }

    /// Result of an operation of the batch just done: 0 or an errno.
    #[must_use]
    pub fn result(&self, index: usize) -> i32 {
        -self.shared().entries[index].result.load(Relaxed)
    }
}
