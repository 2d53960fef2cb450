//! A process, seen from outside.
//!
//! Ebb may hold a right that its user lacks (CAP_SYS_PTRACE), and a process that asks to be paged
//! may lie. So:
//! * PROCESS-1: the pager knows a process by its descriptors ([`Handle`]), never by a number. This
//!   holds above all for numbers that the program supplies. They only say which of the run's
//!   children to examine first.
//! * PROCESS-2: the memory and page map of a process are opened once. An identity page proves that
//!   they are the right ones: the pager places it in the address space and must see it in them
//!   (`listener::confirm_process`). They keep that address space through an exec of the process.
//! * PROCESS-3: the right is used only for a process with the user and group of Ebb and no further
//!   rights. A process in another user namespace has capabilities there that its user lacks here.
//!   Ebb inspects it without the right, by what the kernel allows that user, who may inspect the
//!   user's own namespaces.

use crate::seam::{Connection, MapLock, makes_own_calls};
use ebb_sys::descriptor::close_aside;
use ebb_sys::handle::Handle;
use ebb_sys::lifeline::Lifeline;
use ebb_sys::memory::Memory;
use ebb_sys::pagemap::{Pagemap, Runs};
use ebb_sys::proc::{Area, Passing, Statm};
use ebb_sys::process::Pidfd;
use ebb_sys::socket::Socket;
use ebb_sys::{rights, sched, trace};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Whether the thread of an agent gets a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgentRuns {
    /// Number of the thread.
    pub thread: u32,
    /// State of the thread, as the kernel shows it.
    pub state: char,
    /// CPU time of the thread.
    pub ran: Duration,
}

impl AgentRuns {
    /// Whether the thread runs or waits for a CPU.
    pub fn wants_cpu(&self) -> bool {
        self.state == 'R'
    }

    /// Whether the thread sleeps, ready for the next batch.
    pub fn sleeps(&self) -> bool {
        self.state == 'S'
    }
}

/// Facts about a process. A fact that is unavailable just now (the process ends, or rights are
/// missing) is an error. It never comes from another process.
pub trait Process: Debug + Send + Sync {
    /// Returns the process number.
    fn pid(&self) -> u32;
    /// Notes the agent's thread. It may outlive the process's first thread. The number is the
    /// process's own.
    fn note_thread(&self, thread: u32);
    /// Forgets this thread, because it is about to end before the address space.
    fn forget_thread(&self);
    /// Returns the number of this thread in the pager's namespace.
    fn agent(&self) -> Option<u32>;
    /// Returns the run times of the agent's thread. Without such a thread it returns those of a
    /// thread that wants a CPU, because that may be about to start the agent.
    fn agent_runs(&self) -> Option<AgentRuns>;
    /// Returns the connection that its thread `thread` (by the process's own number) has as
    /// descriptor `fd`.
    fn take_connection(&self, thread: u32, fd: u32) -> io::Result<Box<dyn Connection>>;
    /// Reads resident pages without waiting for faults. Returns how many it has read from the
    /// start.
    fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize>;
    /// Whether a page (by number) is in memory and mapped.
    fn is_present(&self, page: u64) -> io::Result<bool>;
    /// Returns for each of `count` pages from `page` on whether its entry is empty: no page and no
    /// marker.
    fn unmapped(&self, page: u64, count: usize) -> io::Result<Vec<bool>>;
    /// Returns how many consecutive pages from `page` on are in memory and mapped by this process
    /// alone, `most` at most.
    fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize>;
    /// Returns how many of `count` pages from `page` on are in memory and mapped by other
    /// processes, too.
    fn shared(&self, page: u64, count: u64) -> io::Result<u64>;
    /// Returns the runs of present pages in a range, without the kernel's zero page, and where the
    /// scan ended. It ends after `most` such pages.
    fn present(&self, start: u64, end: u64, most: u64) -> io::Result<(Runs, u64)>;
    /// Returns the runs of pages that are the kernel's zero page.
    fn zero(&self, start: u64, end: u64) -> io::Result<Runs>;
    /// Returns the end of a range from `start` on with `most` pages in memory; `end` if there are
    /// fewer.
    fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64>;
    /// Returns the number of resident anonymous pages; 0 once the address space is gone.
    fn anonymous_pages(&self) -> io::Result<u64> {
        self.sizes().map(|(anonymous, _)| anonymous)
    }
    /// Returns the number of resident anonymous pages, and that of resident pages of files and of
    /// shared memory.
    fn sizes(&self) -> io::Result<(u64, u64)>;
    /// Returns the number of resident anonymous pages, each counted by its share among the
    /// processes that map it.
    fn proportional_anonymous_pages(&self) -> io::Result<u64>;
    /// Returns its areas.
    fn areas(&self) -> io::Result<Vec<Area>>;
    /// Returns the areas that overlap one of these ranges.
    fn areas_in(&self, ranges: &[(u64, u64)]) -> io::Result<Vec<Area>>;
    /// Returns the areas that a fork passes on. Takes long.
    fn passing(&self) -> io::Result<Passing>;
    /// Whether a signal or a debugger has stopped it; the freezer does not count.
    fn is_stopped(&self) -> bool;
    /// Whether a call waits in vain for the lock of its memory map (`map_lock.rs`).
    fn is_stuck(&self) -> bool;
    /// Kills the process.
    fn kill(&self);
    /// Returns a descriptor that ties the process to the lifeline while it is open: the process is
    /// killed when the lifeline breaks. A simulated process has none.
    fn tie(&self, lifeline: &Lifeline) -> io::Result<Option<OwnedFd>>;
    /// Freezes threads as soon as they run in user mode. Returns the threads for which that worked.
    fn freeze(&self, threads: &[u32]) -> Vec<u32>;
    /// Returns its threads with their states.
    fn threads(&self) -> Vec<(u32, char)>;
    /// Whether it has this thread.
    fn has_thread(&self, thread: u32) -> bool;
    /// Returns those of its threads that wait for a page fault outside a system call.
    fn touching(&self, threads: &[u32]) -> Vec<u32>;
    /// Updates the known threads that have a list of robust mutexes, with the addresses of these
    /// lists. Returns an error if they may not be read.
    fn robust_lists(&self, known: &mut BTreeMap<u32, u64>) -> io::Result<()>;
    /// Whether the kernel refuses to open its memory now. It refuses that for a child, too.
    fn is_hidden(&self) -> bool;
    /// Returns its exit code if its first thread has ended and at most one other is left.
    fn exit_code_of_leader(&self) -> Option<u8>;
    /// Returns its name.
    fn name(&self) -> String;
}

/// A process of the machine.
#[derive(Debug)]
pub struct Known {
    handle: Arc<Handle>,
    memory: Arc<Memory>,
    page_map: Arc<Pagemap>,
    map_lock: MapLock,
    sizes: Statm,
    /// The agent's thread in the pager's namespace, and the sizes read through it. The sizes of the
    /// first thread are zero once that has ended.
    thread: Mutex<Option<Arc<(u32, Statm)>>>,
    /// Whether a search for this thread has failed.
    strayed: AtomicBool,
}

impl Known {
    /// Opens process `pid`, if it may be inspected (PROCESS-3).
    pub fn open(pid: u32) -> io::Result<Self> {
        let handle = Handle::open(pid)?;
        let opened =
            look(&handle, |handle| Ok((handle.memory()?, handle.page_map()?, handle.statm(None)?)));
        let (memory, page_map, sizes) = match opened {
            Err(_) if handle.is_ending() => return Err(Errno::SRCH.into()),
            opened => opened?,
        };
        Ok(Self {
            handle: Arc::new(handle),
            memory: Arc::new(memory),
            page_map: Arc::new(page_map),
            map_lock: MapLock::of(pid),
            sizes,
            thread: Mutex::new(None),
            strayed: AtomicBool::new(false),
        })
    }

    /// Reads the page map, which takes the lock of the memory map.
    fn page_map<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Pagemap) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let page_map = self.page_map.clone();
        self.map_lock.read(move || read(&page_map))
    }

    /// Reads a file that takes the lock of the memory map, through the agent's thread if that is
    /// known.
    fn file<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Handle, Option<u32>) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (handle, thread) = (self.handle.clone(), self.thread());
        self.map_lock.read(move || look(&handle, |handle| read(handle, thread)))
    }

    fn seen_through(&self) -> Option<Arc<(u32, Statm)>> {
        self.thread.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn see_through(&self, thread: Option<(u32, Statm)>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = thread.map(Arc::new);
    }

    fn thread(&self) -> Option<u32> {
        self.seen_through().map(|seen| seen.0)
    }
}

/// The right by which a process is inspected (PROCESS-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Ebb's right to trace.
    Tracing,
    /// The rights of its user, and no more.
    AsUser,
}

impl Way {
    /// Returns the right by which the process may be inspected; an error if it may not.
    fn into(handle: &Handle) -> io::Result<Self> {
        if rights::user() == 0 {
            // Root may look into any process, so nothing of the process needs to be read.
            Ok(Self::Tracing)
        } else if handle.credentials()?.are_of(rights::user(), rights::group(), rights::of_user()) {
            Ok(Self::Tracing)
        } else if handle.is_in_another_user_namespace()? {
            Ok(Self::AsUser)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Performs an action with this right.
    fn with<T>(self, action: impl FnOnce() -> T) -> T {
        let _tracing = (self == Self::Tracing).then(rights::tracing);
        action()
    }
}

/// Inspects a process with the required right. The result counts only if the process may still be
/// inspected. It could have executed another program in between, with rights that its user lacks.
fn look<T>(handle: &Handle, look: impl FnOnce(&Handle) -> io::Result<T>) -> io::Result<T> {
    let seen = Way::into(handle)?.with(|| look(handle));
    Way::into(handle)?;
    seen
}

thread_local! {
    /// Buffer into which a helper reads pages.
    static BUFFER: RefCell<Vec<[u8; 4096]>> = const { RefCell::new(Vec::new()) };
}

/// Returns the number of anonymous pages that process `pid` has to itself, or by its share, if it
/// may be inspected. `map_lock` is the lock of its memory map.
pub fn own_pages(pid: u32, map_lock: &MapLock, alone: bool) -> io::Result<u64> {
    let handle = Handle::open(pid)?;
    map_lock.read(move || {
        look(&handle, |handle| match alone {
            true => handle.private_dirty_pages(),
            false => handle.proportional_anonymous_pages(None),
        })
    })
}

impl Process for Known {
    fn pid(&self) -> u32 {
        self.handle.pid()
    }

    fn note_thread(&self, thread: u32) {
        if self.thread().is_some() || self.strayed.load(Relaxed) {
            return;
        }
        let found = self
            .handle
            .thread_called(thread)
            .and_then(|thread| Some((thread, self.handle.statm(Some(thread)).ok()?)));
        match found {
            Some(_) => self.see_through(found),
            None => self.strayed.store(true, Relaxed),
        }
    }

    fn forget_thread(&self) {
        self.see_through(None);
    }

    fn agent(&self) -> Option<u32> {
        self.thread()
    }

    fn agent_runs(&self) -> Option<AgentRuns> {
        let runnable = || self.handle.threads().into_iter().find(|&(_, state)| state == 'R');
        let thread = self.thread().or_else(|| runnable().map(|(thread, _)| thread))?;
        let state = self.handle.state(Some(thread))?;
        Some(AgentRuns { thread, state, ran: sched::run_times(thread)?.ran() })
    }

    fn take_connection(&self, thread: u32, fd: u32) -> io::Result<Box<dyn Connection>> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let thread = self.handle.thread_called(thread).ok_or_else(gone)?;
        let pidfd = Pidfd::open_thread(thread)?;
        if !self.handle.has_thread(thread) {
            // The number may have belonged to another process.
            return Err(gone());
        }
        let taken = look(&self.handle, |_| pidfd.descriptor(fd))?;
        // The process names the descriptor and may lie about it.
        let socket = Socket::of(taken).map_err(|other| {
            close_aside(other);
            io::Error::from(Errno::NOTSOCK)
        })?;
        Ok(Box::new(socket))
    }

    fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize> {
        if makes_own_calls() && !self.is_stuck() {
            return self.memory.read_pages(addresses, pages);
        }
        let (memory, addresses) = (self.memory.clone(), addresses.to_vec());
        // A call that is left behind keeps the buffer.
        let mut buffer = BUFFER.take();
        buffer.resize(buffer.len().max(addresses.len()), [0; 4096]);
        let (got, buffer) = self.map_lock.read(move || {
            let got = memory.read_pages(&addresses, &mut buffer);
            Ok((got, buffer))
        })?;
        let copied = got.inspect(|&got| pages[..got].copy_from_slice(&buffer[..got]));
        BUFFER.set(buffer);
        copied
    }

    fn is_present(&self, page: u64) -> io::Result<bool> {
        self.page_map(move |map| map.is_present(page))
    }

    fn unmapped(&self, page: u64, count: usize) -> io::Result<Vec<bool>> {
        self.page_map(move |map| map.unmapped(page, count))
    }

    fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize> {
        self.page_map(move |map| map.exclusive_run(page, most))
    }

    fn shared(&self, page: u64, count: u64) -> io::Result<u64> {
        self.page_map(move |map| map.shared(page, count))
    }

    fn present(&self, start: u64, end: u64, most: u64) -> io::Result<(Runs, u64)> {
        self.page_map(move |map| map.present(start, end, most))
    }

    fn zero(&self, start: u64, end: u64) -> io::Result<Runs> {
        self.page_map(move |map| map.zero(start, end))
    }

    fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64> {
        self.page_map(move |map| map.reach(start, end, most))
    }

    fn sizes(&self) -> io::Result<(u64, u64)> {
        match self.seen_through() {
            Some(seen) => seen.1.sizes(),
            None => self.sizes.sizes(),
        }
    }

    fn proportional_anonymous_pages(&self) -> io::Result<u64> {
        self.file(Handle::proportional_anonymous_pages)
    }

    fn areas(&self) -> io::Result<Vec<Area>> {
        self.file(Handle::areas)
    }

    fn areas_in(&self, ranges: &[(u64, u64)]) -> io::Result<Vec<Area>> {
        let ranges = ranges.to_vec();
        self.file(move |handle, thread| handle.areas_in(thread, &ranges))
    }

    fn passing(&self) -> io::Result<Passing> {
        self.file(Handle::passing)
    }

    fn is_stopped(&self) -> bool {
        self.handle.is_stopped(self.thread())
    }

    fn is_stuck(&self) -> bool {
        self.map_lock.is_stuck()
    }

    fn kill(&self) {
        // The process may have ended.
        let _ = self.handle.signal(9);
    }

    fn tie(&self, lifeline: &Lifeline) -> io::Result<Option<OwnedFd>> {
        lifeline.tie(&self.handle).map(Some)
    }

    fn freeze(&self, threads: &[u32]) -> Vec<u32> {
        let Ok(way) = Way::into(&self.handle) else { return Vec::new() };
        let seize = |&thread: &u32| self.handle.has_thread(thread) && trace::seize(thread).is_ok();
        let held: Vec<u32> = way.with(|| threads.iter().copied().filter(seize).collect());
        // The number may belong to another process by now, or the process has executed another
        // program. Such a thread is released as soon as it is frozen (`monitor/freezer.rs`,
        // FREEZER-5). This does not wait for it: a thread about to wait for a child freezes only
        // when the child has ended.
        let is_there = |&thread: &u32| self.handle.has_thread(thread);
        if Way::into(&self.handle).is_err() {
            return Vec::new();
        }
        held.into_iter().filter(is_there).collect()
    }

    fn threads(&self) -> Vec<(u32, char)> {
        self.handle.threads()
    }

    fn has_thread(&self, thread: u32) -> bool {
        self.handle.has_thread(thread)
    }

    fn touching(&self, threads: &[u32]) -> Vec<u32> {
        let touches = |handle: &Handle| {
            Ok(threads.iter().copied().filter(|&thread| handle.touches(thread)).collect())
        };
        look(&self.handle, touches).unwrap_or_default()
    }

    fn robust_lists(&self, known: &mut BTreeMap<u32, u64>) -> io::Result<()> {
        match self.handle.robust_lists(known) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                look(&self.handle, |handle| handle.robust_lists(known))
            }
            seen => seen,
        }
    }

    fn is_hidden(&self) -> bool {
        look(&self.handle, Handle::memory).is_err()
    }

    fn exit_code_of_leader(&self) -> Option<u8> {
        self.handle.exit_code_of_leader()
    }

    fn name(&self) -> String {
        self.handle.name()
    }
}
