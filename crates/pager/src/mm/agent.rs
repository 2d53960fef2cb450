//! Agent of an address space: the thread in the process that moves and drops its pages.
//!
//! A new program has its agent from the start. A forked child may ask for one, and gets it after
//! its hello. It may also report that it will have none.
//!
//! * LINK-1: the link is set once, and never changes. Pages of a process without a link cannot be
//!   moved out.
//! * LINK-2: the link is set before the life has joined (`life.rs`). So each thread that reads
//!   Joined finds the link.
//! * SILENCE-1: an agent that has left a batch unanswered gets no other for [`SILENCE_MS`]. An
//!   agent of a stopped process gets none while that lasts.
//!
//! Lock order: no lock here.

use super::age::Age;
use super::life::{Life, LifeWord, Request};
use crate::mm::link::Link;
use crate::seam::Process;
use crate::wait::patience::Patience;
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

/// No CPU.
pub const NOWHERE: u32 = u32::MAX;

/// Maximum time until a child's agent runs if it has a CPU.
const LATE: Duration = Duration::from_secs(1);

/// Time for which kswapd posts no batch to an agent that did not answer, in milliseconds.
const SILENCE_MS: u64 = 200;

/// Agent of an address space.
#[derive(Debug)]
pub struct Agent {
    /// Link to the agent. A forked child has none before its hello.
    link: OnceLock<Link>,
    /// Whether the program has no hooks in front of the C library's functions
    /// ([`crate::mm::thread_words`]).
    pub lacks_hooks: bool,
    /// Pages that had to stay in the parent at the fork; None means all.
    pub inherited_pins: Option<Vec<u64>>,
    life: LifeWord,
    /// Age at the last unanswered batch, or at the last check that found the process stopped; 0 if
    /// the agent does not count as silent.
    silent: AtomicU64,
    /// Number of the agent's thread that the process knows; 0 if it knows none.
    introduced: AtomicU32,
    /// Whether the agent's thread has ever been told to step aside.
    has_stepped_aside: AtomicBool,
    /// Whether the user knows that none of the pages can leave.
    reported_stuck: AtomicBool,
    /// CPU time at the last measurement, in nanoseconds.
    pub cpu_ns: AtomicU64,
    /// CPU that the agent keeps off (`fault_threads/cpu_follow.rs`, FOLLOW-4).
    pub kept_off: AtomicU32,
    age: Age,
}

impl Agent {
    /// Creates the state of a process without an agent.
    pub fn new(age: Age) -> Self {
        Self {
            link: OnceLock::new(),
            lacks_hooks: false,
            inherited_pins: Some(Vec::new()),
            life: LifeWord::new(),
            silent: AtomicU64::new(0),
            introduced: AtomicU32::new(0),
            has_stepped_aside: AtomicBool::new(false),
            reported_stuck: AtomicBool::new(false),
            cpu_ns: AtomicU64::new(0),
            kept_off: AtomicU32::new(NOWHERE),
            age,
        }
    }

    /// Creates the state of a child that is forked now, `age` old.
    pub fn of_child(&self, age: Age) -> Self {
        let (lacks_hooks, inherited_pins) = (self.lacks_hooks, self.pins_of_child());
        Self { lacks_hooks, inherited_pins, ..Self::new(age) }
    }

    /// Returns the link, once there is one.
    pub fn link(&self) -> Option<&Link> {
        self.link.get()
    }

    /// Returns the pages that must stay in a child forked now, in order; None means all.
    #[must_use]
    pub fn pins_of_child(&self) -> Option<Vec<u64>> {
        self.link().map_or_else(|| self.inherited_pins.clone(), Link::pins)
    }

    /// Notes that the process has asked for an agent.
    pub fn ask(&self) {
        let at = self.age.ms();
        self.life.change(|life| life.ask(at));
    }

    /// Notes that the process has closed its connection before its hello (LIFE-2).
    pub fn take_back(&self) {
        self.life.change(Life::take_back);
    }

    /// Notes that the process has reported that it will have no agent.
    pub fn decline(&self) {
        self.life.change(Life::decline);
    }

    /// Sets the link, unless there is one (LINK-2). Returns the link.
    pub fn join(&self, link: Link) -> &Link {
        let link = self.link.get_or_init(|| link);
        self.life.change(Life::join);
        link
    }

    /// Notes that the agent has hung up, or that the userfaultfd has failed (LIFE-4).
    pub fn close(&self) {
        self.life.change(Life::close);
    }

    /// Whether the process has reported that it will have no agent.
    pub fn has_declined(&self) -> bool {
        self.life.read().request() == Request::Declined
    }

    /// Whether the agent has hung up, or the userfaultfd has failed.
    pub fn is_closing(&self) -> bool {
        matches!(self.life.read(), Life::Closing { .. })
    }

    /// Whether there is an agent that can move pages out. The agent may have ended before the
    /// address space, if another process goes on using it.
    pub fn is_there(&self) -> bool {
        matches!(self.life.read(), Life::Joined(_))
    }

    /// Whether the agent has ended its start. Then it executes batches.
    fn is_ready(&self) -> bool {
        self.link().is_some_and(Link::is_ready)
    }

    /// Whether the agent's thread has stepped aside, and the next one has not begun.
    pub fn is_aside(&self) -> bool {
        self.has_stepped_aside.load(Relaxed) && self.link().is_some_and(|link| link.thread() == 0)
    }

    /// Whether the process is a starting child: a forked child that may still say hello, or whose
    /// agent has yet to start. A process whose agent has stepped aside is one, too.
    pub fn is_starting(&self) -> bool {
        if self.is_aside() {
            return true;
        }
        let life = self.life.read();
        let may_start = match life.request() {
            Request::Declined => false,
            Request::Asked { at } => !Patience::AwaitingAgent.is_over(self.age.since(at)),
            Request::Unasked if life.has_joined() => {
                !Patience::AwaitingAgent.is_over(self.age.since(0))
            }
            Request::Unasked => !Patience::AwaitingHello.is_over(self.age.time()),
        };
        may_start && !self.is_ready()
    }

    /// Whether the process is a starting child that asked for an agent and has waited long for it,
    /// or whose agent has stepped aside.
    pub fn is_late(&self) -> bool {
        if self.is_aside() {
            return true;
        }
        match self.life.read().request() {
            Request::Asked { at } => self.age.since(at) > LATE && self.is_starting(),
            Request::Unasked | Request::Declined => false,
        }
    }

    /// Whether the process may get a few pages beyond the budget. A starting child needs them until
    /// it can give some back. A child that gets no agent needs them until it ends. The pages that
    /// it shares may leave memory only then.
    pub fn may_get_extra_pages(&self) -> bool {
        self.has_declined() || self.is_starting()
    }

    /// Whether no hook starts the agent, and it has not joined. The pager must start the agent in a
    /// forked child then.
    pub fn needs_injection(&self) -> bool {
        self.lacks_hooks && !self.life.read().has_joined()
    }

    /// Whether `thread` is the agent's. No thread has the number 0.
    pub fn is_thread(&self, thread: u32) -> bool {
        thread != 0 && self.link().is_some_and(|link| link.thread() == thread)
    }

    /// Tells `process` which thread is the agent's, once that is known.
    pub fn introduce(&self, process: &dyn Process) {
        if let Some(thread) = self.link().map(Link::thread)
            && thread != 0
            && self.introduced.swap(thread, Relaxed) != thread
        {
            process.forget_thread();
            process.note_thread(thread);
        }
    }

    /// Notes that the agent's thread steps aside, and has `process` forget it. The next thread is
    /// introduced when its number is known.
    pub fn note_aside(&self, process: &dyn Process) {
        self.has_stepped_aside.store(true, Relaxed);
        process.forget_thread();
        self.introduced.store(0, Relaxed);
    }

    /// Notes that none of the pages can leave. Returns whether the user is yet to be told.
    pub fn note_stuck(&self) -> bool {
        !self.reported_stuck.swap(true, Relaxed)
    }

    /// Whether the user knows that none of the pages can leave.
    pub fn is_stuck(&self) -> bool {
        self.reported_stuck.load(Relaxed)
    }

    /// Notes that the agent did not answer a batch.
    pub fn note_unanswered(&self) {
        self.silent.store(self.age.ms(), Relaxed);
    }

    /// Whether batches are of no use for now. This holds while the agent does not run yet, and for
    /// [`SILENCE_MS`] after an unanswered batch. The next call checks whether the process is
    /// stopped (SILENCE-1).
    pub fn update_silence(&self, is_stopped: impl FnOnce() -> bool) -> bool {
        if self.life.read().has_joined() && !self.is_ready() || self.is_aside() {
            return true;
        }
        let since = self.silent.load(Relaxed);
        if since == 0 {
            return false;
        }
        let now = self.age.ms();
        if now < since + SILENCE_MS {
            return true;
        }
        let stopped = is_stopped();
        self.silent.store(if stopped { now } else { 0 }, Relaxed);
        stopped
    }
}

#[cfg(test)]
mod tests {
    use crate::quiet::{Quiet, line, with_pool};
    use crate::seam::{Known, Process};
    use std::sync::atomic::Ordering::Relaxed;

    /// Shows that no batch goes to an agent that has stepped aside, and that its process may get
    /// pages beyond the budget. The thread that starts the next agent may need some.
    #[test]
    fn a_process_whose_agent_has_stepped_aside_counts_as_starting() {
        let (mm, (link, shared)) = (with_pool(Quiet::default()), line());
        mm.agent.join(link);
        shared.0.ready.store(1, Relaxed);
        let process = Known::open(std::process::id()).expect("this process");
        for (thread, is_aside) in [(7, false), (0, true), (8, false)] {
            shared.0.thread.store(thread, Relaxed);
            if is_aside {
                assert!(!mm.agent.is_aside(), "the pager has not told it");
                mm.agent.note_aside(&process);
            }
            assert_eq!(mm.agent.is_aside(), is_aside);
            assert_eq!(mm.agent.is_starting(), is_aside);
            assert_eq!(mm.agent.is_late(), is_aside);
            assert_eq!(mm.agent.may_get_extra_pages(), is_aside);
            assert_eq!(mm.update_silence(), is_aside);
        }
    }

    /// Shows that the process learns of the thread that follows one that has stepped aside. The
    /// sizes read through a thread that has ended are zero.
    #[test]
    fn the_thread_that_follows_one_that_has_stepped_aside_is_introduced() {
        let (mm, (link, shared)) = (with_pool(Quiet::default()), line());
        mm.agent.join(link);
        let process = Known::open(std::process::id()).expect("this process");
        let [first, second] = [std::process::id(), ebb_sys::sched::this_thread()];
        for (thread, known) in [(first, first), (0, first), (second, second)] {
            shared.0.thread.store(thread, Relaxed);
            mm.agent.introduce(&process);
            assert_eq!(process.agent(), Some(known));
        }
        mm.agent.note_aside(&process);
        shared.0.thread.store(0, Relaxed);
        mm.agent.introduce(&process);
        assert_eq!(process.agent(), None);
        shared.0.thread.store(second, Relaxed);
        mm.agent.introduce(&process);
        assert_eq!(process.agent(), Some(second), "its number may be the same");
    }
}
