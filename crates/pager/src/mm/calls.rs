//! Calls of a process: the shared memory by which its threads call the pager.
//!
//! A process with an agent calls by the agent's own link. A forked child has none at first, and
//! calls by the link of an ancestor. The pager does not know by which. The parent may have had no
//! shared memory of its own at the fork.
//!
//! * CALLS-1: `inherited` never changes. It has at most [`LINES_MAX`] links, the nearest ancestor's
//!   last.
//! * CALLS-2: children of one ancestor use the same call slots. A call belongs to this process for
//!   certain only if no other link has a call at the same doorbell.
//! * CALLS-3: `by` is set by a certain call. From then on the process's own children inherit that
//!   link and no older one.
//! * CALLS-4: a fault thread notes calls under `Mm::state`. The pager frees their slots after
//!   `State::ended` is set, so no later call stays.
//!
//! Lock order: `noted` comes after `Mm::state`, for single operations.

use crate::mm::link::{Ask, Caller, Link};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Maximum number of inherited links of a child. So many generations in a row may fork before their
/// agents start, and still be identified by their calls.
const LINES_MAX: usize = 8;

/// Calls of a process.
#[derive(Debug, Default)]
pub struct Calls {
    /// Links to the agents of the ancestors, the nearest last.
    pub inherited: Vec<Link>,
    /// The inherited link by which this child calls, once a call has shown it.
    by: OnceLock<Link>,
    /// Calls for an agent that may be this process's: their links and slots.
    noted: Mutex<Vec<(Link, Caller)>>,
}

impl Calls {
    /// Creates the calls of a child that is forked now; `own` is the link of this process's agent.
    pub fn of_child(&self, own: Option<&Link>) -> Self {
        let elder = self.by.get().map_or(&self.inherited[..], std::slice::from_ref);
        let mut inherited: Vec<Link> = elder.iter().chain(own).cloned().collect();
        let too_many = inherited.len().saturating_sub(LINES_MAX);
        inherited.drain(..too_many);
        Self { inherited, ..Self::default() }
    }

    /// Returns the calls that a ring of `doorbell` may announce; `own` is the link of this
    /// process's agent. If there are several, only one is this process's own (CALLS-2).
    pub fn made<'a>(
        &'a self,
        own: Option<&'a Link>,
        doorbell: usize,
    ) -> impl Iterator<Item = (&'a Link, Caller, Ask)> {
        let inherited = self.inherited.iter().rev().filter(move |_| own.is_none());
        let made = move |line| Link::call(line, doorbell).map(|(caller, ask)| (line, caller, ask));
        own.into_iter().chain(inherited).filter_map(made)
    }

    /// Notes the inherited link by which the child calls (CALLS-3).
    pub fn note_line(&self, line: &Link) {
        // The value is set already only if another thread has learnt the same.
        let _ = self.by.set(line.clone());
    }

    /// Notes a call for an agent that is this child's or a relative's.
    pub fn note(&self, link: &Link, caller: Caller) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.iter().all(|&(_, other)| other != caller) {
            noted.push((link.clone(), caller));
        }
    }

    /// Frees the slots of the noted calls. A child that has ended could not do so, and its
    /// relatives have few slots. A living relative repeats its call.
    pub fn free(&self) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.drain(..).for_each(|(link, caller)| link.free_slot(caller));
    }
}

#[cfg(test)]
mod tests {
    use crate::mm::Mm;
    use crate::mm::link::{Ask, Caller, JoinRequest, Link};
    use crate::quiet::{Mute, Quiet, line, with_pool};
    use ebb_agent::protocol::{ASK_JOIN, CALL_MADE};
    use std::sync::atomic::Ordering;

    fn made(mm: &Mm, doorbell: usize) -> impl Iterator<Item = (&Link, Caller, Ask)> {
        mm.calls.made(mm.agent.link(), doorbell)
    }

    /// Makes the call by which an agent asks for its own link.
    fn call(by: &Mute, doorbell: usize, thread: u64) {
        by.0.calls[doorbell].what.store(ASK_JOIN, Ordering::Relaxed);
        by.0.calls[doorbell].a.store(thread, Ordering::Relaxed);
        by.0.calls[doorbell].state.store(CALL_MADE, Ordering::Relaxed);
    }

    /// Returns the threads whose calls are found.
    fn askers(mm: &Mm, doorbell: usize) -> Vec<u32> {
        let thread = |ask| match ask {
            Ask::Join(JoinRequest::Join { thread, .. }) => thread,
            other => panic!("{other:?}"),
        };
        made(mm, doorbell).map(|(_, _, ask)| thread(ask)).collect()
    }

    /// Shows that a child's call is found in the memory of any ancestor. A process may fork before
    /// its agent has memory of its own. Then the third generation calls by the link of the first.
    #[test]
    fn a_call_of_a_child_is_found_in_the_memory_of_any_ancestor() {
        let child_of = |parent: &Mm| with_pool(Quiet::default()).related_to(parent);
        let first = with_pool(Quiet::default());
        let (link, table) = line();
        first.agent.join(link);
        let mut child = child_of(&first);
        for generation in 0..6 {
            child.agent.join(line().0);
            child = child_of(&child);
            call(&table, 3, generation);
            assert_eq!(askers(&child, 3), [generation as u32]);
        }
        // Once the link of a child's calls is known, a grandchild inherits that link and the
        // child's own.
        let called = made(&child, 3).next().expect("it calls").0.clone();
        child.calls.note_line(&called);
        child.agent.join(line().0);
        let grandchild = child_of(&child);
        assert_eq!(grandchild.calls.inherited.len(), 2);
        assert_eq!(askers(&grandchild, 3), [5]);
    }

    /// Shows that two callers are told apart if one uses the parent's memory and the other the
    /// grandparent's. Both use the same entry at the same time.
    #[test]
    fn calls_in_the_same_slot_of_two_ancestors_are_both_heard() {
        let child_of = |parent: &Mm| with_pool(Quiet::default()).related_to(parent);
        let (first, parent) = (line(), line());
        let root = with_pool(Quiet::default());
        root.agent.join(first.0);
        let mm = child_of(&root);
        mm.agent.join(parent.0);
        let child = child_of(&mm);
        call(&first.1, 0, 1);
        call(&parent.1, 0, 2);
        assert_eq!(askers(&child, 0), [2, 1]);
        // A process with a link of its own calls by no other.
        assert_eq!(askers(&mm, 0), [2]);
    }
}
