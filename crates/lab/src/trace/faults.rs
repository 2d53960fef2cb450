//! Page faults from tracers: the page, the process and the time. Times are in microseconds here.

use std::collections::HashMap;

use ebb_mm::types::PAGE_SHIFT;

use super::{Kind, Op, Record};

/// Number of bits for a page's number in its process.
pub(super) const PAGE_BITS: u32 = 36;

/// A page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub pid: u64,
    pub us: u64,
    pub address: u64,
}

/// State over all faults read up to now.
#[derive(Default)]
pub(super) struct Faults {
    last_us: Option<u64>,
    processes: HashMap<u64, u64>,
}

impl Faults {
    /// Returns the record of the next fault. Separates the pages of different processes. Lines from
    /// several CPUs may be slightly out of order.
    pub fn record(&mut self, fault: Fault) -> Record {
        let next = self.processes.len() as u64;
        let process = *self.processes.entry(fault.pid).or_insert(next);
        let in_process = fault.address >> PAGE_SHIFT & ((1 << PAGE_BITS) - 1);
        let before = self.last_us.replace(fault.us.max(self.last_us.unwrap_or(0)));
        let dt = fault.us.saturating_sub(before.unwrap_or(fault.us));
        let page = process.wrapping_shl(PAGE_BITS) | in_process;
        Record { dt, page, op: Op::Read, kind: Kind::Anon }
    }
}
