//! Fixtures of unit tests: a pager without threads, and an address space with preset answers.

use crate::config::{Config, ReportTo};
use crate::mm::link::Link;
use crate::mm::pool::Pool;
use crate::mm::{Areas, Mm, State};
use crate::pager::{Pager, World};
use crate::processes::host::Machine;
use crate::seam::{AddressSpace, Event, Line};
use crate::wait::clock::Clock;
use ebb_agent::protocol::Shared;
use ebb_mm::resident::Space;
use ebb_mm::types::MmId;
use ebb_swap::{Options, Store, parse_tiers};
use ebb_sys::shared::SharedMap;
use ebb_sys::uffd::{Mode, PlaceError};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Returns the settings of a run with this limit: compressed memory only, nothing written to disk.
pub fn config(memory_max_bytes: u64) -> Config {
    Config {
        memory_max_bytes,
        memory_high_bytes: None,
        swap: "ram".into(),
        socket: PathBuf::new(),
        pool_bytes: memory_max_bytes,
        report_to: ReportTo::Stderr,
        io_uring: false,
        cpu_follow: false,
        ..Config::default()
    }
}

/// Creates a pager of a run that never begins.
pub fn pager() -> Pager {
    pager_by(Clock::real())
}

/// Creates such a pager with another clock.
pub fn pager_by(clock: Clock) -> Pager {
    pager_of(config(16 << 20), clock)
}

/// Creates such a pager with other settings.
pub fn pager_of(config: Config, clock: Clock) -> Pager {
    let store = Store::open(&parse_tiers("ram").expect("tiers"), &Options::default());
    let store = Box::new(store.expect("a store"));
    let world = World { clock, host: Box::new(Machine), store };
    Pager::new(config, world, 0).expect("a pager")
}

/// An address space with preset answers. Clones share its record.
#[derive(Clone, Debug, Default)]
pub struct Quiet {
    /// Ranges that were registered.
    pub registered: Arc<Mutex<Vec<(u64, u64)>>>,
    /// Whether every registration fails.
    pub refuses: bool,
    /// Error of every attempt to place a page; None if it succeeds.
    pub fails: Option<PlaceError>,
}

impl AddressSpace for Quiet {
    fn handshake(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, _: &mut Vec<Event>) -> io::Result<usize> {
        Ok(0)
    }

    fn register(&self, start: u64, len: u64, _: Mode) -> io::Result<()> {
        if self.refuses {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.registered.lock().expect("nobody panicked").push((start, start + len));
        Ok(())
    }

    fn copy(&self, _: u64, _: &[u8]) -> Result<(), (u64, PlaceError)> {
        self.fails.map_or(Ok(()), |error| Err((0, error)))
    }

    fn protect(&self, _: u64, _: u64) -> Result<(), PlaceError> {
        Ok(())
    }

    fn unprotect(&self, _: u64, _: u64) -> Result<(), PlaceError> {
        Ok(())
    }

    fn poison(&self, _: u64, _: u64) -> Result<(), PlaceError> {
        Ok(())
    }

    fn wake(&self, _: u64, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn is_alive(&self, _: u64) -> bool {
        true
    }

    fn is_stuck(&self) -> bool {
        false
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Creates an address space with a pool of 64 slots.
pub fn with_pool(uffd: Quiet) -> Mm {
    with_pool_by(uffd, Clock::real())
}

/// Creates such an address space with the clock `clock`.
pub fn with_pool_by(uffd: Quiet, clock: Clock) -> Mm {
    let pool = Pool::new(1 << 30, 64 * 4096, 0);
    let state = State::new(Space::new(MmId(2)), Areas::default(), pool, 8);
    Mm::new(Box::new(uffd), state, clock)
}

/// Shared memory of an agent that does nothing.
#[derive(Debug)]
pub struct Mute(pub SharedMap<Shared>);

impl Line for Mute {
    fn shared(&self) -> &Shared {
        &self.0
    }

    fn welcome(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<()> {
        Ok(())
    }

    fn send_now(&self, _: &[u8]) -> io::Result<Option<()>> {
        Ok(Some(()))
    }

    fn wait(&self, _: &AtomicU32, _: u32, _: Duration) {}

    fn wake(&self, _: &AtomicU32) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Creates a link and the shared memory through which a test calls.
pub fn line() -> (Link, Arc<Mute>) {
    let mute = Arc::new(Mute(SharedMap::create("mute").expect("a mapping").0));
    (Link::new(mute.clone(), Clock::real()), mute)
}
