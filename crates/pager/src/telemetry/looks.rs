//! Requests of `ebb top` for the view thread, each with the connection for its answer.
//!
//! Lock order: the lock is held for a single operation, and no lock is taken under it.

use crate::seam::{Connection, answer};
use crate::wait::signal::Signal;
use std::sync::{Mutex, PoisonError};

/// Maximum number of waiting requests.
const WAITING_MAX: usize = 16;

/// Requests for the view thread, each with the connection for its answer.
#[derive(Debug, Default)]
pub struct Looks {
    waiting: Mutex<Vec<(u32, Box<dyn Connection>)>>,
    pub signal: Signal,
}

impl Looks {
    /// Adds a request for a view, including the areas of process `areas_of` unless that is 0.
    /// Refuses a request if too many wait.
    pub fn add(&self, areas_of: u32, line: Box<dyn Connection>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.len() < WAITING_MAX {
            waiting.push((areas_of, line));
            drop(waiting);
            self.signal.raise();
        } else {
            drop(waiting);
            let why = "too many instances of ebb top ask this run at once; end some";
            answer::done(&*line, Err(why.into()));
        }
    }

    /// Takes all requests.
    pub fn take(&self) -> Vec<(u32, Box<dyn Connection>)> {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
