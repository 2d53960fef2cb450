//! Finds out which process has an address space, by an identity page.
//!
//! A caller that has a [`State`] holds the lock of that address space, and no other. All other
//! callers hold no lock, because there may be many processes.

use crate::budget::Budget;
use crate::mm::pool::Pool;
use crate::mm::{IdentityPage, Mm, State};
use crate::processes::Processes;
use crate::processes::host::Host;
use crate::seam::{AddressSpace, Process};
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_sys::uffd::PlaceError;

/// Identifies a starting child by the thread that has faulted. A debugger's thread may fault, too,
/// when it looks at the child's memory. Hence the thread's process must show that it has this
/// address space.
pub fn learn_process(host: &dyn Host, budget: &Budget, mm: &Mm, state: &mut State, thread: u32) {
    if mm.process().is_some() {
        return;
    }
    if let Some(pid) = host.process_of(thread) {
        prove(host, budget, mm, state, pid);
    }
}

/// Places an identity page in an address space. The process that shows this page has the address
/// space. Two forks of one process cannot be told apart otherwise, and the pager would read the
/// wrong memory. The page counts until its pool slot is dropped. If the slot stays empty, it is
/// free again.
pub fn show_identity(
    host: &dyn Host,
    budget: &Budget,
    mm: &Mm,
    state: &mut State,
) -> Result<IdentityPage, PlaceError> {
    let (placed, pages) = put_identity(host, mm.id, &*mm.uffd, &mut state.pool);
    mm.note_found(&mut budget.resident().zone, pages);
    placed
}

/// Places an identity page in an address space that is not served yet. Also returns the number of
/// pages that this added (0 or 1).
pub fn put_identity(
    host: &dyn Host,
    id: MmId,
    uffd: &dyn AddressSpace,
    pool: &mut Pool,
) -> (Result<IdentityPage, PlaceError>, u64) {
    let mut page = Box::new([0; PAGE_SIZE]);
    page[..4].copy_from_slice(&id.0.to_ne_bytes());
    page[4..20].copy_from_slice(&host.identity().to_ne_bytes());
    let Some(slot) = pool.take_for_identity() else { return (Err(PlaceError::NoMemory), 0) };
    let address = pool.address(slot);
    let placed = uffd.copy(address, &*page).map_err(|(_, error)| error);
    let there = matches!(placed, Ok(()) | Err(PlaceError::Exists));
    if there {
        pool.discard_later(slot);
    } else {
        pool.give_back(slot);
    }
    (placed.map(|()| IdentityPage::new(address, page)), u64::from(there))
}

/// Identifies the address space as that of process `pid`, if that process has the identity page.
fn prove(host: &dyn Host, budget: &Budget, mm: &Mm, state: &mut State, pid: u32) {
    if let Ok(identity) = show_identity(host, budget, mm, state)
        && let Ok(process) = host.open(pid)
        && identity.is_seen_by(&*process)
    {
        mm.owner.identify(process);
    }
}

/// Takes the lock and places an identity page.
pub fn show_identity_in(
    host: &dyn Host,
    budget: &Budget,
    mm: &Mm,
) -> Result<IdentityPage, PlaceError> {
    let mut state = mm.lock();
    if state.ended { Err(PlaceError::Dead) } else { show_identity(host, budget, mm, &mut state) }
}

/// Returns the identified processes.
fn known(processes: &Processes) -> Vec<u32> {
    processes.mms().iter().filter_map(|mm| mm.process().map(Process::pid)).collect()
}

/// Returns the unidentified process of the tree that has this identity page.
pub fn unknown(
    host: &dyn Host,
    processes: &Processes,
    identity: &IdentityPage,
) -> Option<Box<dyn Process>> {
    let known = known(processes);
    let mut pids = host.tree(processes);
    pids.retain(|pid| !known.contains(pid));
    who_sees(host, identity, &pids)
}

/// Returns the process among `pids` that has this identity page.
pub fn who_sees(
    host: &dyn Host,
    identity: &IdentityPage,
    pids: &[u32],
) -> Option<Box<dyn Process>> {
    let mut processes = pids.iter().filter_map(|&pid| host.open(pid).ok());
    processes.find(|process| identity.is_seen_by(&**process))
}

/// Looks for the process of a starting child in the tree and returns whether it is identified.
/// Returns None if that cannot be found out now. No lock is held, because there may be many
/// processes.
///
/// `thread` is one of the child's threads, by the number that the child itself reports. Usually the
/// thread has the same number in the pager's namespace. The process with this thread is examined
/// first, provided its parent is a known process of the run. So a false number leads to no other
/// process.
pub fn find_process(
    host: &dyn Host,
    budget: &Budget,
    processes: &Processes,
    mm: &Mm,
    thread: Option<u32>,
) -> Option<bool> {
    if mm.process().is_some() {
        return Some(true);
    }
    // The identity page comes first, because placing it may fail just now. To walk the tree takes
    // milliseconds with hundreds of processes.
    let identity = match show_identity_in(host, budget, mm) {
        Ok(identity) => identity,
        Err(PlaceError::Dead) => return Some(false),
        // The slot holds a page already, or the mapping is changing. The caller retries, with
        // another slot.
        Err(_) => return None,
    };
    let said = thread.and_then(|thread| host.child_of(thread, &known(processes)));
    let found = said.and_then(|pid| who_sees(host, &identity, &[pid]));
    if let Some(process) = found.or_else(|| unknown(host, processes, &identity)) {
        mm.owner.identify(process);
    }
    // Another thread may have identified it meanwhile, and then the search skipped it.
    Some(mm.process().is_some())
}
