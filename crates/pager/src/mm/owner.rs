//! Owner of an address space: its process, and the search for it.
//!
//! The process of a new program is known at once. That of a forked child is unidentified at first.
//! The child identifies itself by a request for an agent, a hello or a fault, or a search finds it.
//!
//! * OWNER-1: the process is set once, and never changes. The thread that sets it has proven it
//!   (IDENTITY-1).
//! * OWNER-2: a failed search counts from its begin, because the process may have come since
//!   (SEARCH-2).
//!
//! Lock order: no lock here.

use super::age::Age;
use crate::mm::search::Search;
use crate::seam::Process;
use crate::wait::patience::Moment;
use std::sync::OnceLock;

/// Owner of an address space.
#[derive(Debug)]
pub struct Owner {
    /// The process; absent until it is identified.
    process: OnceLock<Box<dyn Process>>,
    search: Search,
    age: Age,
}

impl Owner {
    /// Creates an unidentified owner.
    pub fn new(age: Age) -> Self {
        Self { process: OnceLock::new(), search: Search::default(), age }
    }

    /// Sets the process (OWNER-1).
    pub fn identify(&self, process: Box<dyn Process>) {
        // The value is set already only if another thread has learnt the same.
        let _ = self.process.set(process);
    }

    /// Returns the process, if it is identified.
    pub fn process(&self) -> Option<&dyn Process> {
        self.process.get().map(|process| &**process)
    }

    /// Returns the process number; 0 if the process is unidentified.
    pub fn pid(&self) -> u32 {
        self.process().map_or(0, Process::pid)
    }

    /// Begins a search for the process if one is due, for a thread that waits since `touched`.
    /// Returns whether one was due.
    pub fn begin_search(&self, touched: Moment) -> bool {
        self.search.begin(self.age.ms(), self.age.ms_at(touched))
    }

    /// Runs a search that returns whether it found the process, or None if it could not be carried
    /// out.
    pub fn search(&self, search: impl FnOnce() -> Option<bool>) {
        let began = self.age.ms();
        if search() == Some(false) {
            self.search.fail(began);
        }
    }

    /// Whether the process is unidentified and a search that began after `touched` has failed.
    pub fn is_unknown_since(&self, touched: Moment) -> bool {
        self.process().is_none() && self.search.has_failed_since(self.age.ms_at(touched))
    }
}
