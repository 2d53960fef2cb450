//! A connection over which somebody greets, until it is a line to an agent.

use crate::seam::{AddressSpace, Line, Wire};
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

/// The connection. Nobody at the other end is waited for.
pub trait Connection: Debug + Send {
    /// What was said: how many bytes, 0 if the other end is gone, None if nothing was, or it was taken back. If a
    /// userfaultfd came along, it is in `brought`.
    fn hear(
        &self,
        bytes: &mut [u8],
        brought: &mut Option<Box<dyn AddressSpace>>,
    ) -> io::Result<Option<usize>>;
    /// The process at the other end.
    fn peer(&self) -> io::Result<u32>;
    /// Whether that acted as this user, or as root, when it connected: who may see and change a run.
    fn is_of_owner(&self) -> bool;
    /// Says something, if there is room for it.
    fn say(&self, bytes: &[u8]) -> io::Result<()>;
    /// The line to an agent that it is from now on. The agent knows when it is welcomed ([`Line::welcome`]).
    fn into_line(self: Box<Self>) -> io::Result<Arc<dyn Line>>;
    /// What to wait on for something to hear; a simulated one has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

impl Connection for Socket {
    fn hear(
        &self,
        bytes: &mut [u8],
        brought: &mut Option<Box<dyn AddressSpace>>,
    ) -> io::Result<Option<usize>> {
        let mut fds = Vec::new();
        let got = self.receive_now(bytes, &mut fds)?;
        *brought = only_userfaultfd(fds).map(|fd| Box::new(Uffd::new(fd)) as _);
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
        // Made here, and not in the program, whose limit on the size of files would count.
        let (shared, memory) = SharedMap::<Shared>::create("ebb-agent")?;
        shared.magic.store(MAGIC, Relaxed);
        Ok(Arc::new(Wire::new(*self, shared, memory)))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

/// What a greeting may bring.
fn only_userfaultfd(fds: Vec<OwnedFd>) -> Option<OwnedFd> {
    let (mut uffds, others): (Vec<_>, Vec<_>) = fds.into_iter().partition(is_userfaultfd);
    others.into_iter().for_each(close_aside);
    uffds.pop()
}
