//! Requests of users that wait for the thread that carries them out, each with the connection for
//! its answer.
//!
//! Lock order: each lock is held for a single operation, and no lock is taken under it.

use crate::seam::Connection;
use ebb_control::{Limits, Reclaim};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// Work for kswapd, each with the connection for its answer.
#[derive(Debug, Default)]
pub struct Requests(Mutex<Vec<(Reclaim, Box<dyn Connection>)>>);

impl Requests {
    /// Takes all requests.
    pub fn take(&self) -> Vec<(Reclaim, Box<dyn Connection>)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a request.
    pub fn add(&self, work: Reclaim, line: Box<dyn Connection>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((work, line));
    }
}

/// Requests for the monitor, each with the connection for its answer.
#[derive(Debug, Default)]
pub struct LimitRequests(Mutex<VecDeque<(Limits, Box<dyn Connection>)>>);

impl LimitRequests {
    /// Adds a request.
    pub fn add(&self, request: Limits, line: Box<dyn Connection>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((request, line));
    }

    /// Requests a simulated limit of `max` pages. It may be smaller than a real request may ask
    /// for.
    #[cfg(test)]
    pub fn add_pages(&self, max: u64, keep: bool, line: Box<dyn Connection>) {
        let max = Some(max * ebb_mm::types::PAGE_SIZE as u64);
        self.add(Limits { max, keep, ..Limits::default() }, line);
    }

    /// Takes the oldest request.
    pub fn next(&self) -> Option<(Limits, Box<dyn Connection>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}
