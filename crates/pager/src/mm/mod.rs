//! An address space under management.
//!
//! Each part has a file of its own, with its rules and its lock order:
//! * [`Userfaultfd`] (`uffd.rs`): the kernel's interface to the address space.
//! * [`StateLock`] (`lock.rs`): the page table, the pool, and the registered areas (`areas.rs`).
//! * [`Owner`] (`owner.rs`): the process, which an identity page proves (`identity.rs`).
//! * [`Agent`] (`agent.rs`): the link to the agent, its life (`life.rs`), and its answers.
//! * [`Calls`] (`calls.rs`): the links by which the process calls.
//! * [`Pages`] (`pages.rs`): the number of pages in memory, known or unknown.
//! * [`ForkGroup`] (`fork_group.rs`): the pages shared with a parent or children.
//! * [`Stall`] (`stall.rs`): threads that wait for memory.
//! * [`Stillness`] (`stillness.rs`): the time in which a long message is followed.
//! * [`Served`] (`served.rs`): figures.
//! * [`Age`] (`age.rs`): the time of all these.
//!
//! No part knows another, but each that needs time has the age. A function that needs one part is
//! the part's, and a function that needs several takes the [`Mm`].
//!
//! Files beside these act on an address space:
//! * `link.rs`, `pool.rs`: the batches to the agent, and the slots of standby pages.
//! * `charges.rs`: the page counts, changed together with those of the budget.
//! * `cow_protect.rs`, `thread_words.rs`, `unmapped.rs`: which pages are write-protected, must
//!   stay, or may be placed.
//!
//! Lock order: `Mm::state` is the lock of this file. `calls.rs` has one that comes after it.

mod age;
mod agent;
mod areas;
mod calls;
pub mod charges;
pub mod cow_protect;
mod fork_group;
mod identity;
mod life;
pub mod link;
mod lock;
mod owner;
mod pages;
pub mod pool;
mod search;
mod served;
mod stall;
mod stillness;
pub mod thread_words;
mod uffd;
pub mod unmapped;

pub use agent::{Agent, NOWHERE};
pub use areas::Areas;
pub use identity::IdentityPage;
pub use lock::{MmGuard, State, StateLock};

use crate::seam::{AddressSpace, Process};
use crate::wait::clock::Clock;
use age::Age;
use calls::Calls;
use ebb_mm::types::{MmId, PAGE_SIZE};
use fork_group::ForkGroup;
use link::Link;
use owner::Owner;
use pages::Pages;
use served::Served;
use stall::Stall;
use std::io;
use stillness::Stillness;
use uffd::Userfaultfd;

/// An address space under management.
#[derive(Debug)]
pub struct Mm {
    pub id: MmId,
    pub uffd: Userfaultfd,
    pub state: StateLock,
    pub owner: Owner,
    pub agent: Agent,
    pub calls: Calls,
    pub pages: Pages,
    pub fork_group: ForkGroup,
    pub stall: Stall,
    pub stillness: Stillness,
    pub served: Served,
    pub age: Age,
}

impl Mm {
    /// Creates an address space served through `uffd`.
    #[must_use]
    pub fn new(uffd: Box<dyn AddressSpace>, state: State, clock: Clock) -> Self {
        let (id, age) = (state.space.mm(), Age::new(&clock));
        Self {
            id,
            uffd: Userfaultfd::new(uffd, state.pool.start()),
            state: StateLock::new(state, clock),
            owner: Owner::new(age.clone()),
            agent: Agent::new(age.clone()),
            calls: Calls::default(),
            pages: Pages::new(age.clone()),
            fork_group: ForkGroup::of_one(id),
            stall: Stall::new(age.clone()),
            stillness: Stillness::new(age.clone()),
            served: Served::default(),
            age,
        }
    }

    /// Sets whether the program lacks the agent's hooks.
    #[must_use]
    pub fn without_hooks(mut self, lacks_hooks: bool) -> Self {
        self.agent.lacks_hooks = lacks_hooks;
        self
    }

    /// Makes this address space a forked child of `parent`, in its fork group.
    #[must_use]
    pub fn related_to(self, parent: &Self) -> Self {
        Self {
            agent: parent.agent.of_child(self.age.clone()),
            calls: parent.calls.of_child(parent.agent.link()),
            fork_group: parent.fork_group.of_child(),
            ..self
        }
    }

    /// Returns the process, if it is identified.
    pub fn process(&self) -> Option<&dyn Process> {
        let process = self.owner.process()?;
        self.agent.introduce(process);
        Some(process)
    }

    /// Whether a signal or a debugger has stopped the process, or the lock of its memory map is
    /// stuck; the freezer does not count.
    pub fn is_stopped(&self) -> bool {
        self.is_stuck() || self.process().is_some_and(Process::is_stopped)
    }

    /// Whether a call waits in vain for the lock of its memory map.
    pub fn is_stuck(&self) -> bool {
        self.uffd.is_stuck() || self.process().is_some_and(Process::is_stuck)
    }

    /// Whether a tracer has stopped every thread of the process. A fault then comes from another
    /// process that shares the memory.
    pub fn is_traced(&self) -> bool {
        let threads = self.process().map_or_else(Vec::new, Process::threads);
        let mut alive = threads.iter().filter(|(_, state)| !matches!(state, 'Z' | 'X')).peekable();
        alive.peek().is_some() && alive.all(|&(_, state)| state == 't')
    }

    /// Reads pages of the process from outside. Returns how many pages it has read from the start
    /// of `addresses`.
    pub fn read_pages(
        &self,
        addresses: &[u64],
        pages: &mut [[u8; PAGE_SIZE]],
    ) -> io::Result<usize> {
        let unknown = || io::Error::other("the pager has not identified it yet");
        self.process().ok_or_else(unknown)?.read_pages(addresses, pages)
    }

    /// Returns the number of anonymous pages by the kernel's count; for an unidentified process by
    /// the pager's count.
    pub fn resident_pages(&self) -> u64 {
        self.process().map_or_else(|| self.pages.known(), |process| self.pages.measure(process))
    }

    /// Whether this is a forked child without an agent, of a program without hooks. The pager must
    /// start the agent in such a child. A new program without hooks is joining already when the
    /// pager learns of it.
    pub fn needs_injection(&self) -> bool {
        self.agent.needs_injection() && !self.calls.inherited.is_empty()
    }

    /// Returns the links in all memory by which the process or its children may call.
    pub fn lines(&self) -> impl Iterator<Item = &Link> {
        self.agent.link().into_iter().chain(&self.calls.inherited)
    }

    /// Whether batches to the agent are of no use for now ([`Agent::update_silence`]). Pages that
    /// the agent of a stuck process moves cannot be read.
    pub fn update_silence(&self) -> bool {
        self.is_stuck() || self.agent.update_silence(|| self.is_stopped())
    }

    /// Returns the number of pages that it got beyond the budget; 0 if it may get no more.
    pub fn extra_pages(&self) -> u32 {
        let pages = self.stall.fed();
        if self.agent.may_get_extra_pages() { pages } else { 0 }
    }

    /// Takes one more page beyond the budget, if allowed.
    pub fn take_extra_page(&self) -> bool {
        self.agent.may_get_extra_pages() && self.stall.feed()
    }
}

#[cfg(test)]
mod tests {
    use crate::quiet::{Quiet, line, with_pool};

    /// Shows that a child without an agent gets a few pages beyond the budget. All memory may be in
    /// pages that only such a child still has, while the child waits for one more. Without extra
    /// pages the run then ends as out of memory.
    #[test]
    fn a_child_without_an_agent_gets_a_few_pages_beyond_the_budget() {
        let mm = with_pool(Quiet::default());
        mm.agent.decline();
        assert!(!mm.agent.is_starting() && mm.extra_pages() == 0);
        let taken = (0..1000).filter(|_| mm.take_extra_page()).count();
        assert_eq!((taken, mm.extra_pages()), (64, 64));
    }

    /// Shows that the pager does not start the agent in a new static program without a link. It
    /// starts the agent in a child of such a program.
    #[test]
    fn only_a_child_of_a_program_without_hooks_is_made_to_join() {
        let new = with_pool(Quiet::default()).without_hooks(true);
        assert!(!new.needs_injection(), "it is joining");
        new.agent.join(line().0);
        let child = with_pool(Quiet::default()).related_to(&new);
        assert!(child.needs_injection());
        let grandchild = with_pool(Quiet::default()).related_to(&child);
        assert!(grandchild.needs_injection());
        child.agent.join(line().0);
        assert!(!child.needs_injection());
    }
}
