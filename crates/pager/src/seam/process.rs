//! A process, as it is seen from outside.

use ebb_sys::memory::Memory;
use ebb_sys::pagemap::Pagemap;
use ebb_sys::proc::{self, Area, Statm};
use ebb_sys::process;
use std::fmt::Debug;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// What can be seen. Whatever cannot be just now (the process ends, or rights are missing) is an error,
/// and never another process's.
pub trait Process: Debug + Send + Sync {
    /// Its number.
    fn pid(&self) -> u32;
    /// It has a thread that lives as long as its address space, which its first need not; the number as it
    /// sees itself.
    fn has_thread(&self, thread: u32);
    /// Reads pages that are there, and waits for none: how many, from the front.
    fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize>;
    /// Whether a page (by number) is in memory and mapped.
    fn is_present(&self, page: u64) -> io::Result<bool>;
    /// How many pages in a row from `page` on are in memory and mapped by this process alone, `most` at most.
    fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize>;
    /// How many of `count` pages from `page` on are in memory and mapped by others, too.
    fn shared(&self, page: u64, count: u64) -> io::Result<u64>;
    /// Calls `found(start, end)` for each run of pages that are there, without the kernel's zero page.
    fn scan_present(&self, start: u64, end: u64, found: &mut dyn FnMut(u64, u64))
    -> io::Result<()>;
    /// The same for the kernel's zero page.
    fn scan_zero(&self, start: u64, end: u64, found: &mut dyn FnMut(u64, u64)) -> io::Result<()>;
    /// The same for pages written since they were last asked for.
    fn harvest_written(
        &self,
        start: u64,
        end: u64,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()>;
    /// Where a stretch from `start` on ends that has `most` pages in memory: at `end` if there are not so many.
    fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64>;
    /// Resident pages of anonymous memory; 0 once the address space is gone.
    fn anonymous_pages(&self) -> io::Result<u64>;
    /// The same, each counted by its share among those who map it.
    fn proportional_anonymous_pages(&self) -> io::Result<u64>;
    /// Its areas.
    fn areas(&self) -> io::Result<Vec<Area>>;
    /// The ranges that a forked child sees empty or not at all.
    fn areas_not_inherited(&self) -> io::Result<Vec<(u64, u64)>>;
    /// Whether it was stopped by a signal or a debugger.
    fn is_stopped(&self) -> bool;
    /// Its threads with their states.
    fn threads(&self) -> Vec<(u32, char)>;
    /// Its exit code, if its first thread has ended and of the others at most one is left.
    fn deserted(&self) -> Option<u8>;
    /// What it is called.
    fn name(&self) -> String;
}

/// A process by its number.
#[derive(Debug)]
pub struct Numbered {
    pid: u32,
    thread: AtomicU32,
    statm: Statm,
    pagemap: OnceLock<Pagemap>,
    memory: OnceLock<Memory>,
}

impl Numbered {
    /// Process `pid`, if there is one.
    #[must_use]
    pub fn open(pid: u32) -> Option<Self> {
        Some(Self {
            pid,
            thread: AtomicU32::new(0),
            statm: Statm::open(pid).ok()?,
            pagemap: OnceLock::new(),
            memory: OnceLock::new(),
        })
    }

    fn task(&self) -> u32 {
        match self.thread.load(Relaxed) {
            0 => self.pid,
            thread => thread,
        }
    }

    fn pagemap(&self) -> io::Result<&Pagemap> {
        if let Some(pagemap) = self.pagemap.get() {
            return Ok(pagemap);
        }
        let opened = Pagemap::open(self.task())?;
        Ok(self.pagemap.get_or_init(|| opened))
    }
}

impl Process for Numbered {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn has_thread(&self, thread: u32) {
        self.thread.store(thread, Relaxed);
    }

    fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize> {
        if let Some(memory) = self.memory.get() {
            return memory.read_pages(addresses, pages);
        }
        match Memory::open(self.task()) {
            Ok(memory) => self.memory.get_or_init(|| memory).read_pages(addresses, pages),
            // The files of a process that made itself not dumpable are root's. It is read all the same; what
            // it shares is copied.
            Err(_) => process::read_pages(self.task(), addresses, pages),
        }
    }

    fn is_present(&self, page: u64) -> io::Result<bool> {
        self.pagemap()?.is_present(page)
    }

    fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize> {
        self.pagemap()?.exclusive_run(page, most)
    }

    fn shared(&self, page: u64, count: u64) -> io::Result<u64> {
        self.pagemap()?.shared(page, count)
    }

    fn scan_present(
        &self,
        start: u64,
        end: u64,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        self.pagemap()?.scan_present(start, end, found)
    }

    fn scan_zero(&self, start: u64, end: u64, found: &mut dyn FnMut(u64, u64)) -> io::Result<()> {
        self.pagemap()?.scan_zero(start, end, found)
    }

    fn harvest_written(
        &self,
        start: u64,
        end: u64,
        found: &mut dyn FnMut(u64, u64),
    ) -> io::Result<()> {
        self.pagemap()?.harvest_written(start, end, found)
    }

    fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64> {
        self.pagemap()?.reach(start, end, most)
    }

    fn anonymous_pages(&self) -> io::Result<u64> {
        self.statm.anonymous_pages()
    }

    fn proportional_anonymous_pages(&self) -> io::Result<u64> {
        proc::proportional_anonymous_pages(self.task())
    }

    fn areas(&self) -> io::Result<Vec<Area>> {
        proc::areas(self.task())
    }

    fn areas_not_inherited(&self) -> io::Result<Vec<(u64, u64)>> {
        proc::areas_not_inherited(self.task())
    }

    fn is_stopped(&self) -> bool {
        matches!(proc::state(self.task()), Some('T' | 't'))
    }

    fn threads(&self) -> Vec<(u32, char)> {
        proc::threads(self.pid)
    }

    fn deserted(&self) -> Option<u8> {
        proc::deserted(self.pid)
    }

    fn name(&self) -> String {
        proc::name(self.pid)
    }
}
