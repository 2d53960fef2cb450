//! A connection for a hello, until it becomes the line to an agent.

use crate::seam::{AddressSpace, KnownSpace, Line, Wire};
use ebb_agent::protocol::{MAGIC, Shared};
use ebb_sys::descriptor::{close_aside, is_userfaultfd};
use ebb_sys::rights;
use ebb_sys::shared::SharedMap;
use ebb_sys::socket::Socket;
use ebb_sys::uffd::Uffd;
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A connection. No call waits for the other end.
pub trait Connection: Debug + Send {
    /// Reads a message. Returns its bytes, 0 if the other end is gone, None if there is no message
    /// or the sender took it back. Stores a received userfaultfd in `brought`.
    fn receive(
        &self,
        bytes: &mut [u8],
        brought: &mut Option<Box<dyn AddressSpace>>,
    ) -> io::Result<Option<usize>>;
    /// Returns the process at the other end.
    fn peer(&self) -> io::Result<u32>;
    /// Whether the peer was this user or root when it connected. Only these may see and change a
    /// run.
    fn is_of_owner(&self) -> bool;
    /// Sends a message, if there is room for it.
    fn say(&self, bytes: &[u8]) -> io::Result<()>;
    /// Turns the connection into the line to an agent. The agent learns that from
    /// [`Line::welcome`].
    fn into_line(self: Box<Self>) -> io::Result<Arc<dyn Line>>;
    /// Returns the descriptor to poll for messages; a simulated connection has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

impl Connection for Socket {
    fn receive(
        &self,
        bytes: &mut [u8],
        brought: &mut Option<Box<dyn AddressSpace>>,
    ) -> io::Result<Option<usize>> {
        let mut fds = Vec::new();
        let got = self.receive_now(bytes, &mut fds)?;
        *brought = only_userfaultfd(fds).map(|fd| Box::new(KnownSpace::from(Uffd::new(fd))) as _);
        Ok(got)
    }

    fn peer(&self) -> io::Result<u32> {
        Self::peer(self)
    }

    fn is_of_owner(&self) -> bool {
        self.peer_user().is_ok_and(|user| user == 0 || user == rights::user())
    }

    fn say(&self, bytes: &[u8]) -> io::Result<()> {
        self.send_now(bytes, &[]).map(drop)
    }

    fn into_line(self: Box<Self>) -> io::Result<Arc<dyn Line>> {
        // Created here because the program's limit on file sizes would apply there.
        let (shared, memory) = SharedMap::<Shared>::create("ebb-agent")?;
        shared.magic.store(MAGIC, Relaxed);
        Ok(Arc::new(Wire::new(*self, shared, memory)))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// Returns the userfaultfd among the descriptors of a hello, and closes the others.
fn only_userfaultfd(fds: Vec<OwnedFd>) -> Option<OwnedFd> {
    let (mut uffds, others): (Vec<_>, Vec<_>) = fds.into_iter().partition(is_userfaultfd);
    others.into_iter().for_each(close_aside);
    uffds.pop()
}
