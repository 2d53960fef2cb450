//! Page faults as tracers print them: which page of which process, and when. Times are in microseconds here.

use std::collections::HashMap;

use ebb_mm::types::PAGE_SHIFT;

use super::{Kind, Op, Record};

/// Bits of a page's number in its process.
pub(super) const PAGE_BITS: u32 = 36;

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    pub pid: u64,
    pub us: u64,
    pub address: u64,
}

/// The faults so far.
#[derive(Default)]
pub(super) struct Faults {
    last_us: Option<u64>,
    processes: HashMap<u64, u64>,
}

impl Faults {
    /// The next: pages of processes are apart, and of several CPUs lines may be out of order by a little.
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
