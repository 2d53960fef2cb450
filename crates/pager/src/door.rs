//! Answers whoever connects: a new program brings its userfaultfd, a forked child fetches the one that
//! the fork message delivered, and `ebb stat` and `ebb lru-gen` are told about the run.
//!
//! * O1: whoever is at the other end, nobody is waited for: connections are read and written when they can be, and
//!   a descriptor that came is asked nothing before it is known what it is. A process of the tree has copies of
//!   both ends of its connection, and may have made what it sends.

use crate::counters;
use crate::fork;
use crate::limits::{DOOR_PATIENCE, LOOK_PAUSE, LOOKS_MAX};
use crate::link::Link;
use crate::mm::{Areas, Mm, State};
use crate::pool::Pool;
use crate::seam::{AddressSpace, Process, Wire};
use crate::server::Pager;
use crate::{lru_gen, stat};
use ebb_agent::protocol::{
    Answer, BELLS, GREET_FORKED, GREET_LRU_GEN, GREET_STAT, Greeting, MAGIC, Shared,
};
use ebb_core::resident::Space;
use ebb_sys::descriptor::{close_aside, is_userfaultfd};
use ebb_sys::rights;
use ebb_sys::shared::SharedMap;
use ebb_sys::socket::{Listener, Socket};
use ebb_sys::uffd::{Mode, PlaceError, Uffd, feature};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

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
const GREETING_PATIENCE: Duration = Duration::from_secs(30);

const OUT_OF_DESCRIPTORS: &str = "no descriptor is left to take another process in; the program was killed; \
                                  allow more (each process takes about five): ulimit -n 65536";

/// Who has connected and is to greet.
struct Caller {
    socket: Socket,
    since: Instant,
    /// The forked child that it is, if it was fetched and did not come by itself.
    child: Option<Arc<Mm>>,
}

/// The thread. Who has connected may take its time to greet (it may wait for memory itself): others
/// do not wait for it.
pub fn run(pager: &Arc<Pager>, listener: &Listener) {
    let mut silent: Vec<Caller> = Vec::new();
    loop {
        let readable = match wait(listener, pager, &silent) {
            Ok(readable) => readable,
            Err(_) => continue,
        };
        let (doors, callers) = readable.split_at(2);
        for (index, _) in callers.iter().enumerate().rev().filter(|&(_, &ready)| ready) {
            let caller = silent.swap_remove(index);
            match greet(pager, caller) {
                Ok(silent_yet) => silent.extend(silent_yet),
                Err(error) => pager.complain(&format!("an agent could not join: {error}")),
            }
        }
        let since = pager.clock.now();
        if doors[0] {
            match listener.accept() {
                Ok(Some(socket)) => silent.push(Caller { socket, since, child: None }),
                Ok(None) => {}
                // Who connected would wait for ever.
                Err(error) if is_out_of_descriptors(&error) => {
                    if !pager.ending.load(SeqCst) {
                        pager.say(OUT_OF_DESCRIPTORS);
                        pager.kill_tree();
                    }
                    pager.host.sleep(Duration::from_millis(100));
                }
                Err(error) => {
                    pager.complain(&format!("cannot accept an agent: {error}"));
                    pager.host.sleep(Duration::from_millis(100));
                }
            }
        }
        if doors[1] {
            for candidate in pager.candidates.take() {
                let Some(socket) = candidate.serve(pager) else { continue };
                silent.push(Caller { socket, since, child: Some(candidate.mm) });
            }
        }
        silent.retain(|caller| pager.clock.since(caller.since) < GREETING_PATIENCE);
    }
}

/// Waits until somebody connects, is to be fetched, or greets: two doors first, then each of `silent`.
fn wait(listener: &Listener, pager: &Pager, silent: &[Caller]) -> std::io::Result<Vec<bool>> {
    let mut waiting =
        vec![PollFd::new(listener, PollFlags::IN), PollFd::new(&pager.candidates, PollFlags::IN)];
    waiting.extend(silent.iter().map(|caller| PollFd::new(&caller.socket, PollFlags::IN)));
    let limit = rustix::event::Timespec { tv_sec: 1, tv_nsec: 0 };
    poll(&mut waiting, (!silent.is_empty()).then_some(&limit))?;
    Ok(waiting.iter().map(|fd| !fd.revents().is_empty()).collect())
}

fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether a greeting of this kind may have text.
fn asks(kind: u32) -> bool {
    matches!(kind, GREET_STAT | GREET_LRU_GEN)
}

fn refuse(socket: &Socket) -> std::io::Result<()> {
    socket.send_now(&Answer { magic: MAGIC, refused: 1 }.to_bytes(), &[]).map(drop)
}

/// Hears a greeting and answers. The caller, if it said nothing: what it had sent was taken back.
fn greet(pager: &Arc<Pager>, caller: Caller) -> std::io::Result<Option<Caller>> {
    let mut bytes = [0; 4096];
    let mut fds = Vec::new();
    let got = caller.socket.receive_now(&mut bytes, &mut fds)?;
    let uffd = only_userfaultfd(fds);
    match got {
        None => Ok(Some(caller)),
        // The process ended, or became another program, before it greeted.
        Some(0) => Ok(None),
        Some(got) => heard(pager, caller, &bytes[..got], uffd).map(|()| None),
    }
}

/// What a greeting may bring.
fn only_userfaultfd(fds: Vec<OwnedFd>) -> Option<OwnedFd> {
    let (mut uffds, others): (Vec<_>, Vec<_>) = fds.into_iter().partition(is_userfaultfd);
    others.into_iter().for_each(close_aside);
    uffds.pop()
}

fn heard(
    pager: &Arc<Pager>,
    caller: Caller,
    bytes: &[u8],
    uffd: Option<OwnedFd>,
) -> std::io::Result<()> {
    let Caller { socket, child, .. } = caller;
    let (head, text) = bytes.split_at(bytes.len().min(size_of::<Greeting>()));
    let greeting = Greeting::from_bytes(head)
        .filter(|greeting| text.is_empty() || asks(greeting.kind))
        .ok_or_else(|| std::io::Error::other("its greeting is of another version"))?;
    if greeting.kind == GREET_STAT {
        return socket.send_now(stat::answer(pager, text).as_bytes(), &[]).map(drop);
    }
    if greeting.kind == GREET_LRU_GEN {
        return lru_gen::asked(pager, &String::from_utf8_lossy(text), socket);
    }
    let joined = match (greeting.kind, child) {
        (GREET_FORKED, Some(child)) => welcome(pager, &child, socket),
        (GREET_FORKED, None) => greet_forked(pager, socket),
        (_, None) => greet_new(pager, &greeting, socket, uffd),
        // Who was fetched is a process that is known already.
        (_, Some(_)) => refuse(&socket),
    };
    if joined.is_ok() {
        pager.monitor.raise();
    }
    joined
}

fn greet_new(
    pager: &Arc<Pager>,
    greeting: &Greeting,
    socket: Socket,
    uffd: Option<OwnedFd>,
) -> std::io::Result<()> {
    let Some(uffd) = uffd.map(Uffd::new) else {
        refuse(&socket)?;
        return Err(std::io::Error::other("it brought no userfaultfd"));
    };
    // The handshake is made here and not in the program, whose rights may be less than Ebb's.
    let harvest = if pager.config.harvest { feature::WP_ASYNC } else { 0 };
    let shaken = {
        let _tracing = rights::tracing();
        uffd.handshake(FEATURES | harvest)
    };
    if let Err(error) = shaken {
        refuse(&socket)?;
        return Err(error);
    }
    if greeting.pool_len / 4096 <= BELLS as u64 {
        refuse(&socket)?;
        return Err(std::io::Error::other("its pool is too small"));
    }
    if greeting.pool_len > pager.config.pool_bytes {
        // The books of its places would take what memory the pager can have.
        refuse(&socket)?;
        return Err(std::io::Error::other("its pool is larger than it was told to make it"));
    }
    let pool = (greeting.pool_start, greeting.pool_len);
    let mm = take_on(pager, Box::new(uffd), process(pager, socket.peer()?)?, pool)?;
    open_line(pager, &mm, socket, None)
}

/// Takes a new program on, whose pool is `(start, length)`.
pub fn take_on(
    pager: &Arc<Pager>,
    uffd: Box<dyn AddressSpace>,
    process: Box<dyn Process>,
    (start, len): (u64, u64),
) -> std::io::Result<Arc<Mm>> {
    uffd.register(start, len, Mode::Quiet)?;
    let id = pager.new_mm_id();
    let pool = Pool::new(start, len, BELLS);
    let state = State::new(Space::new(id), Areas::default(), pool, pager.window_max());
    let mm = Arc::new(Mm::new(uffd, state, pager.clock.clone()));
    // Who has connected need not be whose userfaultfd this is.
    if !is_process(pager, &mm, &*process) {
        return Err(std::io::Error::other("its userfaultfd is another process's"));
    }
    mm.set_process(process);
    counters::count(&pager.counters.processes);
    pager.add_mm(&mm)?;
    Ok(mm)
}

/// Answers the greeting, with the memory in common and what else the agent needs.
fn open_line(
    pager: &Pager,
    mm: &Arc<Mm>,
    socket: Socket,
    uffd: Option<BorrowedFd<'_>>,
) -> std::io::Result<()> {
    // Made here, and not in the program, whose limit on the size of files would count.
    let (shared, memory) = SharedMap::<Shared>::create("ebb-agent")?;
    shared.magic.store(MAGIC, Relaxed);
    let fds: Vec<_> = [memory.as_fd()].into_iter().chain(uffd).collect();
    let line = Arc::new(Wire::new(socket, shared));
    let link = Link::new(line.clone(), pager.clock.clone());
    link.pin(mm.inherited_pins.as_deref());
    if pager.managing.load(Relaxed) {
        // The first area that it maps is to be announced already.
        link.managing();
    }
    // Before it knows: it may call at once, and who hears that must find the line.
    pager.attach(mm, link)?;
    line.send(&Answer { magic: MAGIC, refused: 0 }.to_bytes(), &fds)
}

/// A forked child that came by itself, where it could not be fetched (before Linux 6.9).
fn greet_forked(pager: &Arc<Pager>, socket: Socket) -> std::io::Result<()> {
    let process = process(pager, socket.peer()?)?;
    let deadline = pager.clock.now() + FORK_PATIENCE;
    let mut strangers: Vec<Arc<Mm>> = Vec::new();
    let mm = loop {
        let candidate = next_candidate(pager, &strangers, deadline);
        let Some(candidate) = candidate else {
            return refuse(&socket);
        };
        if is_process(pager, &candidate, &*process) {
            break candidate;
        }
        strangers.push(candidate);
    };
    adopt(pager, &mm, process);
    welcome(pager, &mm, socket)
}

/// The child that greets is this one.
fn welcome(pager: &Arc<Pager>, mm: &Arc<Mm>, socket: Socket) -> std::io::Result<()> {
    if mm.link.get().is_some() {
        return refuse(&socket);
    }
    no_longer_waits(pager, mm);
    open_line(pager, mm, socket, mm.uffd.descriptor())
}

/// A forked child that has greeted is this process.
pub fn adopt(pager: &Pager, mm: &Arc<Mm>, process: Box<dyn Process>) {
    no_longer_waits(pager, mm);
    mm.set_process(process);
}

fn no_longer_waits(pager: &Pager, mm: &Arc<Mm>) {
    let waiting = || pager.forked.lock().unwrap_or_else(PoisonError::into_inner);
    waiting().retain(|waiting| !Arc::ptr_eq(waiting, mm));
}

/// A forked child that has not greeted and is none of `strangers`, as soon as there is one. Whose
/// child does not matter, and could not be compared across process namespaces.
fn next_candidate(pager: &Pager, strangers: &[Arc<Mm>], deadline: Instant) -> Option<Arc<Mm>> {
    let find = |forked: &Vec<Arc<Mm>>| {
        let unknown = |mm: &Arc<Mm>| !strangers.iter().any(|stranger| Arc::ptr_eq(stranger, mm));
        forked.iter().find(|mm| unknown(mm)).cloned()
    };
    let forked = pager.forked.lock().unwrap_or_else(PoisonError::into_inner);
    let patience = deadline.saturating_duration_since(pager.clock.now());
    let (forked, _) = pager
        .fork_seen
        .wait_timeout_while(forked, patience, |forked| find(forked).is_none())
        .unwrap_or_else(PoisonError::into_inner);
    find(&forked)
}

fn process(pager: &Pager, pid: u32) -> std::io::Result<Box<dyn Process>> {
    pager.host.open(pid)
}

/// Whether an address space is that of `process`.
pub fn is_process(pager: &Pager, mm: &Mm, process: &dyn Process) -> bool {
    for _ in 0..LOOKS_MAX {
        let Some(mut state) = mm.lock_quiet(DOOR_PATIENCE) else { continue };
        if state.ended {
            return false;
        }
        let token = fork::show_token(pager, mm, &mut state);
        drop(state);
        match token {
            Ok(token) => return token.is_seen_by(process),
            Err(PlaceError::Dead) => return false,
            // Something is there already, or the mapping is changing: another place, another time.
            Err(_) => pager.host.sleep(LOOK_PAUSE),
        }
    }
    false
}
