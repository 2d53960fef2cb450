//! Forked children that ask for an agent, and those that will never have one.
//!
//! A child asks by a call through the table of the ancestor it was forked from (`Link`); the bell that it rings is
//! in its own address space, so there is no doubt which child asks, whatever user, root or namespaces it has.
//! The fault thread notes it here; the door finds the process, takes one end of the child's pair of
//! sockets out of the descriptor table of its agent, and waits for the greeting there.

use crate::fork;
use crate::limits::LOOK_PAUSE;
use crate::link::{Caller, Link};
use crate::mm::Mm;
use crate::patience::{Patience, Wait};
use crate::seam::Connection;
use crate::server::Pager;
use crate::unmanaged::Kind;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// A child that asks.
#[derive(Debug)]
pub struct Candidate {
    pub mm: Arc<Mm>,
    pub wish: Wish,
    /// Where the answer goes.
    pub line: Link,
    pub caller: Caller,
    /// It is this child's call: no other could have been meant.
    pub certain: bool,
}

/// What for. All numbers are those that it has for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// An agent, whose thread has one end of a connection as this descriptor.
    Join { thread: u32, descriptor: u32 },
    /// Nothing: it cannot have one.
    Alone { reason: i32 },
}

/// Those whom the door has yet to look at.
#[derive(Debug)]
pub struct Candidates {
    waiting: Mutex<Vec<Candidate>>,
    /// Those that have not been served, the one at hand among them.
    owed: AtomicUsize,
    come: OwnedFd,
}

impl Candidates {
    /// Nobody yet.
    pub fn new() -> io::Result<Self> {
        let come = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waiting: Mutex::default(), owed: AtomicUsize::new(0), come })
    }

    /// One more; the door wakes.
    pub fn add(&self, candidate: Candidate) {
        self.owe();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(candidate);
        // A full counter is as good as a raised one.
        let _ = rustix::io::write(&self.come, &1u64.to_ne_bytes());
    }

    /// One more is to be served.
    pub fn owe(&self) {
        self.owed.fetch_add(1, Relaxed);
    }

    /// One of those that are owed has been served.
    pub fn served(&self) {
        self.owed.fetch_sub(1, Relaxed);
    }

    /// Whether somebody waits for the pager, and not the other way round.
    pub fn are_owed(&self) -> bool {
        // Relaxed: looked at now and then, and nothing else is ordered by it.
        self.owed.load(Relaxed) > 0
    }

    /// All of them; each is to be said to be served.
    pub fn take(&self) -> Vec<Candidate> {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.come, &mut counter);
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for Candidates {
    /// Readable when somebody has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.come.as_fd()
    }
}

impl Candidate {
    /// Does what it wishes and answers. The connection to it, if it is to have one.
    pub fn serve(&self, pager: &Pager) -> Option<Box<dyn Connection>> {
        let (answer, connection) = match self.wish {
            Wish::Join { thread, descriptor } => {
                match self.take_line(pager, thread, descriptor) {
                    Ok(connection) => (0, Some(connection)),
                    // Another's, who is heard, too, and must not be turned away. Of whom nothing is known no call
                    // can be told from another's: each is answered, or its own would not be.
                    Err(_) if !self.certain && self.mm.process().is_some() => return None,
                    // It is told, and tries another way.
                    Err(error) => (number_of(&error), None),
                }
            }
            Wish::Alone { reason } => {
                self.find(pager, None);
                let reason = io::Error::from_raw_os_error(reason);
                let name = self.mm.process().map_or_else(|| "?".to_owned(), |known| known.name());
                let name = format!("{name}: {reason}");
                pager.unmanaged.met(pager, Kind::CannotJoin, self.mm.pid(), &name);
                (0, None)
            }
        };
        self.line.answer(self.caller, answer);
        connection
    }

    /// Looks which process it is.
    fn find(&self, pager: &Pager, thread: Option<u32>) {
        let wait = Wait::new(&pager.clock, Patience::Confirming);
        while !wait.is_over(&pager.clock) {
            if fork::find_process(pager, &self.mm, thread).is_some() {
                return;
            }
            // The ringing of the bell itself has yet to end.
            pager.host.sleep(LOOK_PAUSE);
        }
    }

    fn take_line(
        &self,
        pager: &Pager,
        thread: u32,
        descriptor: u32,
    ) -> io::Result<Box<dyn Connection>> {
        self.find(pager, Some(thread));
        let process = self.mm.process().ok_or(Errno::SRCH)?;
        process.take_connection(thread, descriptor)
    }
}

fn number_of(error: &io::Error) -> u32 {
    Errno::from_io_error(error).unwrap_or(Errno::SRCH).raw_os_error().unsigned_abs()
}
