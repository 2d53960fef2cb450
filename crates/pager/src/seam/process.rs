//! A process, as it is seen from outside.
//!
//! Ebb may hold a right that its user does not (CAP_SYS_PTRACE), and whoever asks to be paged may lie. So:
//! * PROCESS-1: a process is known by descriptors of it ([`Handle`]), never by a number, least of all one that the
//!   program wrote somewhere: that says at most which of the run's children to look at first.
//! * PROCESS-2: its memory and page map are opened once and only shown to be the right ones by a token that is put into the
//!   address space and must be seen in them (`door::confirm_process`). They keep that address space, whatever the
//!   process becomes.
//! * PROCESS-3: the right is used only for a process that acts as the user and the group of Ebb and can do no more than
//!   those. A process in another user namespace has capabilities there that its user lacks here: it is looked into
//!   without the right, by what the kernel lets that user do, who may look into the namespaces that are theirs.

use crate::seam::Connection;
use ebb_sys::descriptor::close_aside;
use ebb_sys::handle::Handle;
use ebb_sys::lifeline::Lifeline;
use ebb_sys::memory::Memory;
use ebb_sys::pagemap::Pagemap;
use ebb_sys::proc::{Area, Passing, Statm};
use ebb_sys::process::Pidfd;
use ebb_sys::socket::Socket;
use ebb_sys::{rights, trace};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What can be seen. Whatever cannot be just now (the process ends, or rights are missing) is an error,
/// and never another process's.
pub trait Process: Debug + Send + Sync {
    /// Its number.
    fn pid(&self) -> u32;
    /// It has a thread that lives as long as its address space, which its first need not; the number as it
    /// sees itself.
    fn note_thread(&self, thread: u32);
    /// That thread is about to end, before the address space does.
    fn forget_thread(&self);
    /// That thread, as numbered here.
    fn agent(&self) -> Option<u32>;
    /// The connection that its thread `thread` (as it sees itself) has as descriptor `fd` of its own table.
    fn take_connection(&self, thread: u32, fd: u32) -> io::Result<Box<dyn Connection>>;
    /// Reads pages that are there, and waits for none: how many, from the front.
    fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize>;
    /// Whether a page (by number) is in memory and mapped.
    fn is_present(&self, page: u64) -> io::Result<bool>;
    /// Which of `count` pages from `page` on have nothing at their place: no page and no marker.
    fn vacant(&self, page: u64, count: usize) -> io::Result<Vec<bool>>;
    /// How many pages in a row from `page` on are in memory and mapped by this process alone, `most` at most.
    fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize>;
    /// How many of `count` pages from `page` on are in memory and mapped by others, too.
    fn shared(&self, page: u64, count: u64) -> io::Result<u64>;
    /// Calls `found(start, end)` for each run of pages that are there, without the kernel's zero page.
    fn scan_present(&self, start: u64, end: u64, found: &mut dyn FnMut(u64, u64))
    -> io::Result<()>;
    /// The same for the kernel's zero page.
    fn scan_zero(&self, start: u64, end: u64, found: &mut dyn FnMut(u64, u64)) -> io::Result<()>;
    /// Where a stretch from `start` on ends that has `most` pages in memory: at `end` if there are not so many.
    fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64>;
    /// Resident pages of anonymous memory; 0 once the address space is gone.
    fn anonymous_pages(&self) -> io::Result<u64> {
        self.sizes().map(|(anonymous, _)| anonymous)
    }
    /// The same, and resident pages of files and of shared memory.
    fn sizes(&self) -> io::Result<(u64, u64)>;
    /// The same, each counted by its share among those who map it.
    fn proportional_anonymous_pages(&self) -> io::Result<u64>;
    /// Its areas.
    fn areas(&self) -> io::Result<Vec<Area>>;
    /// Those that lie at least in part in one of these ranges.
    fn areas_in(&self, ranges: &[(u64, u64)]) -> io::Result<Vec<Area>>;
    /// What it passes on when it forks. Takes long.
    fn passing(&self) -> io::Result<Passing>;
    /// Whether it was stopped by a signal or a debugger. Whom the brake holds was not.
    fn is_stopped(&self) -> bool;
    /// Kills it.
    fn kill(&self);
    /// What has it killed when the line breaks, as long as somebody has that open. A simulated one has nothing.
    fn tie(&self, lifeline: &Lifeline) -> io::Result<Option<OwnedFd>>;
    /// Has threads of it stop as soon as they run in user mode. Those of them with which that can be.
    fn hold(&self, threads: &[u32]) -> Vec<u32>;
    /// Its threads with their states.
    fn threads(&self) -> Vec<(u32, char)>;
    /// Whether it has this thread.
    fn has_thread(&self, thread: u32) -> bool;
    /// Those of its threads that wait for a page that they have touched, and not in a system call.
    fn touching(&self, threads: &[u32]) -> Vec<u32>;
    /// Brings up to date which threads it has of those that have told the kernel where their list of robust mutexes begins,
    /// and where that is. An error if that may not be seen.
    fn robust_lists(&self, known: &mut BTreeMap<u32, u64>) -> io::Result<()>;
    /// Its exit code, if its first thread has ended and of the others at most one is left.
    fn deserted(&self) -> Option<u8>;
    /// What it is called.
    fn name(&self) -> String;
}

/// A process of the machine.
#[derive(Debug)]
pub struct Known {
    handle: Handle,
    memory: Memory,
    page_map: Pagemap,
    sizes: Statm,
    /// The agent's thread, as numbered here, and the sizes seen through it: those of the first are nothing once
    /// it has ended.
    thread: OnceLock<(u32, Statm)>,
    /// That thread was looked for and is not there.
    strayed: AtomicBool,
    /// It has ended before the others.
    left: AtomicBool,
}

impl Known {
    /// Process `pid`, if it may be looked into (PROCESS-3).
    pub fn open(pid: u32) -> io::Result<Self> {
        let handle = Handle::open(pid)?;
        let opened =
            look(&handle, |handle| Ok((handle.memory()?, handle.page_map()?, handle.statm(None)?)));
        let (memory, page_map, sizes) = match opened {
            Err(_) if handle.pidfd().has_ended() => return Err(Errno::SRCH.into()),
            opened => opened?,
        };
        let (thread, strayed, left) =
            (OnceLock::new(), AtomicBool::new(false), AtomicBool::new(false));
        Ok(Self { handle, memory, page_map, sizes, thread, strayed, left })
    }

    fn seen_through(&self) -> Option<&(u32, Statm)> {
        self.thread.get().filter(|_| !self.left.load(Relaxed))
    }

    fn thread(&self) -> Option<u32> {
        self.seen_through().map(|&(thread, _)| thread)
    }
}

/// By which right a process is looked into (PROCESS-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Ebb's.
    Tracing,
    /// Its user's, and no more.
    AsUser,
}

impl Way {
    /// Whether, and how.
    fn into(handle: &Handle) -> io::Result<Self> {
        if handle.credentials()?.are_of(rights::user(), rights::group(), rights::of_user()) {
            Ok(Self::Tracing)
        } else if handle.is_in_another_user_namespace()? {
            Ok(Self::AsUser)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Does something by this right.
    fn with<T>(self, action: impl FnOnce() -> T) -> T {
        let _tracing = (self == Self::Tracing).then(rights::tracing);
        action()
    }
}

/// Looks into a process with the right to do so. What was seen counts only if it may still be looked into: it
/// could have become another program in between, with rights that its user has not.
fn look<T>(handle: &Handle, look: impl FnOnce(&Handle) -> io::Result<T>) -> io::Result<T> {
    let seen = Way::into(handle)?.with(|| look(handle));
    Way::into(handle)?;
    seen
}

/// Pages of anonymous memory that process `pid` has to itself, or of which it has a share, if that may be looked
/// into.
pub fn own_pages(pid: u32, alone: bool) -> io::Result<u64> {
    look(&Handle::open(pid)?, |handle| {
        if alone { handle.private_dirty_pages() } else { handle.proportional_anonymous_pages(None) }
    })
}

impl Process for Known {
    fn pid(&self) -> u32 {
        self.handle.pid()
    }

    fn note_thread(&self, thread: u32) {
        if self.thread.get().is_some() || self.strayed.load(Relaxed) {
            return;
        }
        let found = self
            .handle
            .thread_called(thread)
            .and_then(|thread| Some((thread, self.handle.statm(Some(thread)).ok()?)));
        match found {
            // Lost only to another who found the same.
            Some(found) => drop(self.thread.set(found)),
            None => self.strayed.store(true, Relaxed),
        }
    }

    fn forget_thread(&self) {
        self.left.store(true, Relaxed);
    }

    fn agent(&self) -> Option<u32> {
        self.thread()
    }

    fn take_connection(&self, thread: u32, fd: u32) -> io::Result<Box<dyn Connection>> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let thread = self.handle.thread_called(thread).ok_or_else(gone)?;
        let pidfd = Pidfd::open_thread(thread)?;
        if !self.handle.has_thread(thread) {
            // Its number may have been another's by then.
            return Err(gone());
        }
        let taken = look(&self.handle, |_| pidfd.descriptor(fd))?;
        // It says what the descriptor is, and need not say the truth.
        let socket = Socket::of(taken).map_err(|other| {
            close_aside(other);
            io::Error::from(Errno::NOTSOCK)
        })?;
        Ok(Box::new(socket))
    }

    fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize> {
        self.memory.read_pages(addresses, pages)
    }

    fn is_present(&self, page: u64) -> io::Result<bool> {
        self.page_map.is_present(page)
    }

    fn vacant(&self, page: u64, count: usize) -> io::Result<Vec<bool>> {
        self.page_map.vacant(page, count)
    }

    fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize> {
        self.page_map.exclusive_run(page, most)
    }

    fn shared(&self, page: u64, count: u64) -> io::Result<u64> {
        self.page_map.shared(page, count)
    }

    fn scan_present(
        &self,
        start: u64,
        end: u64,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        self.page_map.scan_present(start, end, found)
    }

    fn scan_zero(&self, start: u64, end: u64, found: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
        self.page_map.scan_zero(start, end, found)
    }

    fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64> {
        self.page_map.reach(start, end, most)
    }

    fn sizes(&self) -> io::Result<(u64, u64)> {
        self.seen_through().map_or(&self.sizes, |(_, sizes)| sizes).sizes()
    }

    fn proportional_anonymous_pages(&self) -> io::Result<u64> {
        look(&self.handle, |handle| handle.proportional_anonymous_pages(self.thread()))
    }

    fn areas(&self) -> io::Result<Vec<Area>> {
        look(&self.handle, |handle| handle.areas(self.thread()))
    }

    fn areas_in(&self, ranges: &[(u64, u64)]) -> io::Result<Vec<Area>> {
        look(&self.handle, |handle| handle.areas_in(self.thread(), ranges))
    }

    fn passing(&self) -> io::Result<Passing> {
        look(&self.handle, |handle| handle.passing(self.thread()))
    }

    fn is_stopped(&self) -> bool {
        self.handle.is_stopped(self.thread())
    }

    fn kill(&self) {
        // It may have ended.
        let _ = self.handle.signal(9);
    }

    fn tie(&self, lifeline: &Lifeline) -> io::Result<Option<OwnedFd>> {
        lifeline.tie(&self.handle).map(Some)
    }

    fn hold(&self, threads: &[u32]) -> Vec<u32> {
        let Ok(way) = Way::into(&self.handle) else { return Vec::new() };
        let hold = |&thread: &u32| self.handle.has_thread(thread) && trace::hold(thread).is_ok();
        let held: Vec<u32> = way.with(|| threads.iter().copied().filter(hold).collect());
        // A number was another's by then, or it has become another program: it is let go as soon as it stands (`brake.rs`
        // FREEZER-5). Not waited for here: one that was about to wait for a child stands when that has ended.
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

    fn deserted(&self) -> Option<u8> {
        self.handle.deserted()
    }

    fn name(&self) -> String {
        self.handle.name()
    }
}
