//! The line to an agent: shared memory, a message to wake it, a word to wait on.

use ebb_agent::protocol::Shared;
use ebb_sys::futex;
use ebb_sys::shared::SharedMap;
use ebb_sys::socket::Socket;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A line to an agent. [`crate::mm::link`] implements the protocol over it.
pub trait Line: Debug + Send + Sync {
    /// Returns the shared memory.
    fn shared(&self) -> &Shared;
    /// Sends the first message, with the shared memory and the other descriptors that the agent
    /// needs.
    fn welcome(&self, answer: &[u8], others: &[BorrowedFd<'_>]) -> io::Result<()>;
    /// Sends a message if there is room for it; None if earlier ones still wait.
    fn send_now(&self, bytes: &[u8]) -> io::Result<Option<()>>;
    /// Waits for a wakeup of `word` while its value is `seen`, at most `limit`.
    fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration);
    /// Wakes the threads that wait on `word`.
    fn wake(&self, word: &AtomicU32);
    /// Returns a descriptor that hangs up when the process ends or executes another program; a
    /// simulated line has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// A socket connection, and memory shared with the process.
#[derive(Debug)]
pub struct Wire {
    socket: Socket,
    shared: SharedMap<Shared>,
    /// Descriptor of the shared memory, until it is sent.
    memory: Mutex<Option<OwnedFd>>,
}

impl Wire {
    /// Creates a line over a connection, through which `memory` will be sent.
    #[must_use]
    pub fn new(socket: Socket, shared: SharedMap<Shared>, memory: OwnedFd) -> Self {
        Self { socket, shared, memory: Mutex::new(Some(memory)) }
    }
}

impl Line for Wire {
    fn shared(&self) -> &Shared {
        &self.shared
    }

    fn welcome(&self, answer: &[u8], others: &[BorrowedFd<'_>]) -> io::Result<()> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fds: Vec<_> = memory.iter().map(AsFd::as_fd).chain(others.iter().copied()).collect();
        // There is room for the first message, unless another process sends there.
        self.socket.send_now(answer, &fds)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn send_now(&self, bytes: &[u8]) -> io::Result<Option<()>> {
        self.socket.send_now(bytes, &[])
    }

    fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration) {
        futex::wait(word, seen, limit);
    }

    fn wake(&self, word: &AtomicU32) {
        futex::wake(word);
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
