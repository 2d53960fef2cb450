//! Passes batches to one agent and returns their results.

use crate::seam::Line;
use crate::wait::clock::Clock;
use crate::wait::patience::{Patience, Wait};
use ebb_agent::protocol::{
    ASK_ALONE, ASK_JOIN, ASK_MANAGE, ASK_STEP_ASIDE, BATCH_MAX, CALL_FREE, CALL_MADE, CALL_TAKEN,
    DISCARD_AREA_BYTES, DONE, DOORBELLS, IDLE, MAPPING_FREE, MAPPING_PAGER, MAPPING_WANTED,
    OP_DROP, OP_MOVE, OP_SET_RIGHTS, OP_UNSHARE, PINNED_MAX, PINNED_TOMBSTONE, POSTED, Shared,
    State, TELL_BATCH, TELL_DETACH, TELL_LEAVE, TELL_SMALL, TELL_STEP_ASIDE, pinned_home,
};
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// One operation of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Move a page.
    Move { to: u64, from: u64 },
    /// Drop pages.
    Drop { start: u64, len: u64 },
    /// Break copy-on-write sharing, so that the process has the pages alone.
    Unshare { start: u64, len: u64 },
    /// Set the rights of a part of the pool.
    SetRights { start: u64, len: u64, executable: bool },
}

/// Result of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The agent has executed the batch. Its results can be read.
    Done,
    /// The agent never started the batch because the process is stopped or has ended. Nothing was
    /// done.
    Cancelled,
    /// The agent started the batch and has not finished it, because the process was stopped or
    /// killed meanwhile. The caller asks again later.
    Stalled,
}

/// Request of a thread of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ask {
    /// Manage an area.
    Manage { start: u64, end: u64 },
    /// Start or end of an agent.
    Join(JoinRequest),
}

/// Request of a child. All numbers are those in the child's own namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JoinRequest {
    /// Asks for an agent, whose thread has one end of a connection as this descriptor.
    Join { thread: u32, descriptor: u32 },
    /// Reports that it cannot have an agent.
    CannotJoin { reason: i32 },
    /// Asks that its agent's thread ends, because the kernel wants a process of one thread. The
    /// process starts another such thread.
    StepAside,
}

/// Identifies a call: the doorbell and the state word of one use of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    doorbell: usize,
    state: State,
}

/// Interval at which the pager checks whether an agent takes too long and its batch must be
/// cancelled.
const LOOK: Duration = Duration::from_millis(50);

/// Connection to an agent. It carries one batch at a time, and only the kswapd thread posts. Clones
/// share one connection.
#[derive(Clone, Debug)]
pub struct Link {
    line: Arc<dyn Line>,
    clock: Clock,
    /// Whether the pager has sent `TELL_SMALL`: the kernel is to make no more huge pages.
    no_huge_pages_sent: Arc<AtomicBool>,
    /// For each call slot its state word at the last sweep, and the wait for its end.
    swept: Arc<Mutex<Vec<(u32, Wait)>>>,
}

/// Result of an operation that the agent has not reported. No errno has this value.
pub const UNREPORTED: i32 = 4095;

impl Link {
    /// Creates a link that runs the protocol over `line`.
    #[must_use]
    pub fn new(line: Arc<dyn Line>, clock: Clock) -> Self {
        Self { line, clock, no_huge_pages_sent: Arc::default(), swept: Arc::default() }
    }

    /// Returns the number of the simulated line.
    #[cfg(test)]
    pub fn number(&self) -> Option<usize> {
        format!("{:?}", self.line).strip_prefix("line ")?.parse().ok()
    }

    fn shared(&self) -> &Shared {
        self.line.shared()
    }

    /// Returns the descriptor of the connection. It hangs up when the process ends or execs another
    /// program.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.line.descriptor()
    }

    /// Whether the page must stay in memory because the kernel writes to it when a thread ends.
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

    /// Whether every page must stay, because more pages are pinned than the table has entries.
    #[must_use]
    pub fn pins_everything(&self) -> bool {
        self.shared().pins_full.load(Acquire) != 0
    }

    /// Returns the pages that must stay, in order; None if all must.
    #[must_use]
    pub fn pins(&self) -> Option<Vec<u64>> {
        if self.pins_everything() {
            return None;
        }
        let there = self.shared().pinned.iter().map(|place| place.load(Acquire));
        let mut pins: Vec<u64> = there.filter(|&vpn| vpn > PINNED_TOMBSTONE).collect();
        pins.sort_unstable();
        Some(pins)
    }

    /// Writes the pages that must stay into the shared memory of an agent that has not started yet.
    /// A forked child inherits them from its parent.
    pub fn pin(&self, pins: Option<&[u64]>) {
        let Some(pins) = pins else {
            self.shared().pins_full.store(1, Release);
            return;
        };
        pins.iter().for_each(|&vpn| self.keep(vpn));
    }

    /// Pins a page: it must stay from now on.
    pub fn keep(&self, vpn: u64) {
        self.shared().keep(vpn);
    }

    /// Unpins the pages of `[start, end)`, because they are unmapped.
    pub fn unpin(&self, start: u64, end: u64) {
        if end - start > PINNED_MAX as u64 / 16 {
            for place in &self.shared().pinned {
                let there = place.load(Acquire);
                if there >= start && there < end && there > PINNED_TOMBSTONE {
                    place.store(PINNED_TOMBSTONE, Release);
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
                        place.store(PINNED_TOMBSTONE, Release);
                        break;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Tells the agent's thread to end the process, because the program has no thread left.
    pub fn leave(&self, code: u8) {
        // If the line is full, this message is lost and the caller calls again.
        let _ = self.line.send_now(&[TELL_LEAVE, code]);
    }

    /// Tells the agent's thread to end, because every page is in place. Returns false if the line
    /// is full.
    #[must_use]
    pub fn detach(&self) -> bool {
        // If the connection is closed, the thread has ended too.
        self.line.send_now(&[TELL_DETACH]).map_or(true, |sent| sent.is_some())
    }

    /// Tells the agent's thread to step aside: it ends, and the program starts another one with its
    /// descriptors. Returns false if the line is full or closed.
    #[must_use]
    pub fn step_aside(&self) -> bool {
        self.line.send_now(&[TELL_STEP_ASIDE]).is_ok_and(|sent| sent.is_some())
    }

    /// Returns the areas that are mapped for the agent beside the pool, as `(start, length)`, by
    /// the agent's own account.
    #[must_use]
    pub fn mapped_for_it(&self) -> [(u64, u64); 2] {
        let [stack, len] = [0, 1].map(|at| self.shared().stack[at].load(Relaxed));
        [(self.shared().discard_area.load(Relaxed), DISCARD_AREA_BYTES), (stack, len)]
    }

    /// Returns how often hooks have delayed threads of the program, and the total of these delays
    /// in ticks.
    #[must_use]
    pub fn lost(&self) -> (u64, u64) {
        (self.shared().lost_calls.load(Relaxed), self.shared().lost_ticks.load(Relaxed))
    }

    /// Whether the agent's thread runs.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared().ready.load(Acquire) != 0
    }

    /// Returns the thread number of the agent's thread; 0 while that has stepped aside.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.shared().thread.load(Relaxed)
    }

    /// Tells the agent that areas come under management from now on.
    pub fn managing(&self) {
        self.shared().managing.store(1, SeqCst);
    }

    /// Tells the agent that the kernel is to make no more huge pages. Does nothing once the agent
    /// knows.
    pub fn send_no_huge_pages(&self) {
        self.shared().small.store(1, SeqCst);
        // An agent that is not ready yet reads the word itself when it is.
        if !self.no_huge_pages_sent.load(Relaxed) && self.shared().ready.load(SeqCst) != 0 {
            // If the line is full, the next call sends the message.
            let told = self.line.send_now(&[TELL_SMALL]).is_ok_and(|sent| sent.is_some());
            self.no_huge_pages_sent.store(told, Relaxed);
        }
    }

    /// Marks the run as over. A thread that would fork from now on ends instead.
    pub fn end(&self) {
        self.shared().ending.store(1, Relaxed);
    }

    /// Returns the request of the call behind a doorbell. None if there is no call or no valid one.
    #[must_use]
    pub fn call(&self, doorbell: usize) -> Option<(Caller, Ask)> {
        let call = self.shared().calls.get(doorbell)?;
        let state = State(call.state.load(Acquire));
        if state.stage() != CALL_MADE {
            return None;
        }
        let (a, b) = (call.a.load(Relaxed), call.b.load(Relaxed));
        let ask = match call.what.load(Relaxed) {
            ASK_MANAGE => Ask::Manage { start: a, end: a.saturating_add(b) },
            ASK_JOIN => Ask::Join(JoinRequest::Join { thread: a as u32, descriptor: b as u32 }),
            ASK_ALONE => Ask::Join(JoinRequest::CannotJoin { reason: a as i32 }),
            ASK_STEP_ASIDE => Ask::Join(JoinRequest::StepAside),
            _ => return None,
        };
        Some((Caller { doorbell, state }, ask))
    }

    /// Tells the agent whether the run is far from its limit.
    pub fn set_far(&self, far: bool) {
        self.shared().far.store(u32::from(far), Release);
    }

    /// Frees the slot of a call whose process has ended before it could do so.
    pub fn free_slot(&self, caller: Caller) {
        let Some(call) = self.shared().calls.get(caller.doorbell) else { return };
        let mut state = State(call.state.load(Acquire));
        while state.at(CALL_MADE) == caller.state {
            match call.state.compare_exchange(state.0, state.at(CALL_FREE).0, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => state = State(now),
            }
        }
    }

    /// Frees the slots of calls that have not ended for long. Their threads may have ended, even
    /// before the pager read the call. A thread that still waits repeats its call.
    pub fn sweep_slots(&self) {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        swept.resize_with(DOORBELLS, || (0, Wait::new(&self.clock, Patience::Call)));
        for (call, (last, wait)) in self.shared().calls.iter().zip(swept.iter_mut()) {
            let state = State(call.state.load(Acquire));
            if state.0 != *last {
                (*last, *wait) = (state.0, Wait::new(&self.clock, Patience::Call));
            } else if matches!(state.stage(), CALL_MADE | CALL_TAKEN) && wait.is_over(&self.clock) {
                // If this fails, the call has gone on.
                let free = state.at(CALL_FREE).0;
                let _ = call.state.compare_exchange(state.0, free, Release, Relaxed);
            }
        }
    }

    /// Answers the calling thread and wakes it, if it still waits.
    pub fn answer(&self, caller: Caller, answer: u32) {
        let Some(call) = self.shared().calls.get(caller.doorbell) else { return };
        let (made, answered) = (caller.state.0, caller.state.answered(answer).0);
        // The thread may have given up. The entry is then free or belongs to another call.
        if call.state.compare_exchange(made, answered, Release, Relaxed).is_ok() {
            self.line.wake(&call.state);
        }
    }

    /// Keeps the program's threads from moving areas until `mapped`. Returns false if a thread is
    /// moving one; the pager is next then.
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

    /// Ends the exclusion that `try_map` began.
    pub fn mapped(&self) {
        self.shared().mapping.store(MAPPING_FREE, Release);
    }

    /// Posts a batch and waits for it. Waits longer while the agent wants a CPU (PATIENCE-2).
    pub fn execute(&self, operations: &[Operation], wants_cpu: impl Fn() -> bool) -> Outcome {
        assert!(operations.len() <= BATCH_MAX);
        for (entry, operation) in self.shared().entries.iter().zip(operations) {
            let (op, a, b, len) = match *operation {
                Operation::Move { to, from } => (OP_MOVE, to, from, 4096),
                Operation::Drop { start, len } => (OP_DROP, start, 0, len),
                Operation::Unshare { start, len } => (OP_UNSHARE, start, 0, len),
                Operation::SetRights { start, len, executable } => {
                    (OP_SET_RIGHTS, start, u64::from(executable), len)
                }
            };
            entry.op.store(op, Relaxed);
            entry.a.store(a, Relaxed);
            entry.b.store(b, Relaxed);
            entry.len.store(len, Relaxed);
            entry.result.store(-UNREPORTED, Relaxed);
        }
        self.shared().count.store(operations.len() as u32, Relaxed);
        // Pairs with the agent's swap of POSTED.
        self.shared().state.store(POSTED, Release);
        // If the line is full, the agent has enough messages to wake it.
        if self.line.send_now(&[TELL_BATCH]).is_err() {
            return self.take_back();
        }
        let [wait, longer] = [Patience::Batch, Patience::BatchWithoutCpu]
            .map(|patience| Wait::new(&self.clock, patience));
        loop {
            let state = self.shared().state.load(Acquire);
            let is_over = wait.is_over(&self.clock);
            if state == DONE || is_over && (longer.is_over(&self.clock) || !wants_cpu()) {
                return self.take_back();
            }
            self.line.wait(&self.shared().state, state, LOOK);
        }
    }

    /// Takes back the batch under way if the agent has not started it. Returns its outcome.
    pub fn take_back(&self) -> Outcome {
        match self.shared().state.compare_exchange(POSTED, IDLE, AcqRel, Acquire) {
            Ok(_) => Outcome::Cancelled,
            Err(DONE) => {
                self.shared().state.store(IDLE, Relaxed);
                Outcome::Done
            }
            Err(_) => Outcome::Stalled,
        }
    }

    /// Returns the result of an operation of the batch just done: 0 or an errno.
    #[must_use]
    pub fn result(&self, index: usize) -> i32 {
        -self.shared().entries[index].result.load(Relaxed)
    }
}
