//! Greets agents: a new program brings its userfaultfd, a forked child fetches the one that the fork
//! message delivered.

use crate::counters;
use crate::link::Link;
use crate::mm::{Areas, Mm};
use crate::pool::Pool;
use crate::server::Pager;
use ebb_agent::protocol::{Answer, GREET_FORKED, Greeting, MAGIC};
use ebb_core::resident::Space;
use ebb_sys::proc::Statm;
use ebb_sys::shared::SharedMap;
use ebb_sys::socket::{Listener, Socket};
use ebb_sys::uffd::{Mode, Uffd, feature};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The features every run relies on.
pub const FEATURES: u64 = feature::FLAG_WP
    | feature::EVENT_FORK
    | feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::THREAD_ID
    | feature::POISON
    | feature::MOVE;

/// How long a fork message may take to follow its child's greeting.
const FORK_PATIENCE: Duration = Duration::from_secs(5);
/// How long a greeting may take to follow its connection.
const GREETING_PATIENCE: Duration = Duration::from_secs(5);

/// The thread.
pub fn run(pager: &Arc<Pager>, listener: &Listener) {
    loop {
        let mut waiting = [PollFd::new(listener, PollFlags::IN)];
        if poll(&mut waiting, None).is_err() {
            continue;
        }
        match listener.accept() {
            Ok(Some(socket)) => {
                if let Err(error) = greet(pager, socket) {
                    pager.complain(&format!("an agent could not join: {error}"));
                }
            }
            Ok(None) => {}
            Err(error) => {
                pager.complain(&format!("cannot accept an agent: {error}"));
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn refuse(socket: &Socket) -> std::io::Result<()> {
    socket.send(&Answer { magic: MAGIC, refused: 1 }.to_bytes(), &[])
}

fn greet(pager: &Arc<Pager>, socket: Socket) -> std::io::Result<()> {
    socket.set_receive_timeout(GREETING_PATIENCE)?;
    let mut bytes = [0; 256];
    let mut fds = Vec::new();
    let got = socket.receive(&mut bytes, &mut fds)?;
    if got == 0 {
        // The process ended, or became another program, before it greeted.
        return Ok(());
    }
    let greeting = Greeting::from_bytes(&bytes[..got])
        .ok_or_else(|| std::io::Error::other("its greeting is of another version"))?;
    let pid = socket.peer()?;
    let mut fds = fds.into_iter();
    let Some(memory) = fds.next() else {
        return Err(std::io::Error::other("it brought no shared memory"));
    };
    let shared = SharedMap::new(memory.as_fd())?;
    let joined = if greeting.kind == GREET_FORKED {
        greet_forked(pager, &greeting, pid, socket, shared)
    } else {
        greet_new(pager, &greeting, pid, socket, shared, fds.next())
    };
    if joined.is_ok() {
        pager.monitor.raise();
    }
    joined
}

fn greet_new(
    pager: &Arc<Pager>,
    greeting: &Greeting,
    pid: u32,
    socket: Socket,
    shared: SharedMap<ebb_agent::protocol::Shared>,
    uffd: Option<OwnedFd>,
) -> std::io::Result<()> {
    let Some(uffd) = uffd.map(Uffd::new) else {
        refuse(&socket)?;
        return Err(std::io::Error::other("it brought no userfaultfd"));
    };
    // The handshake is made here and not in the program, whose rights may be less than Ebb's.
    if let Err(error) = uffd.handshake(FEATURES) {
        refuse(&socket)?;
        return Err(error);
    }
    uffd.register(greeting.pool_start, greeting.pool_len, Mode::Quiet)?;
    let id = pager.new_mm_id();
    let pool = Pool::new(greeting.pool_start, greeting.pool_len);
    let mm = Arc::new(Mm::new(id, uffd, Space::new(id), Areas::default(), pool));
    mm.pid.store(pid, Relaxed);
    let _ = mm.statm.set(Statm::open(pid)?);
    counters::count(&pager.counters.processes);
    pager.add_mm(&mm)?;
    socket.send(&Answer { magic: MAGIC, refused: 0 }.to_bytes(), &[])?;
    pager.attach(&mm, Link::new(socket, shared))
}

fn greet_forked(
    pager: &Arc<Pager>,
    greeting: &Greeting,
    pid: u32,
    socket: Socket,
    shared: SharedMap<ebb_agent::protocol::Shared>,
) -> std::io::Result<()> {
    let key = (greeting.parent, greeting.parent_forks);
    let forked = pager.forked.lock().unwrap_or_else(PoisonError::into_inner);
    let (mut forked, _) = pager
        .fork_seen
        .wait_timeout_while(forked, FORK_PATIENCE, |forked| !forked.contains_key(&key))
        .unwrap_or_else(PoisonError::into_inner);
    let found = forked.remove(&key);
    drop(forked);
    let Some(mm) = found else {
        return refuse(&socket);
    };
    mm.pid.store(pid, Relaxed);
    let _ = mm.statm.set(Statm::open(pid)?);
    let answer = Answer { magic: MAGIC, refused: 0 };
    socket.send(&answer.to_bytes(), &[mm.uffd.as_fd()])?;
    pager.attach(&mm, Link::new(socket, shared))
}
