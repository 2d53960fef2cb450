//! Answers clients of the run's socket. A new program brings its userfaultfd. A forked child gets
//! the userfaultfd that the fork message delivered. Commands of the run's user (`ebb stat`, `ebb
//! set`) speak another protocol, whose first bytes tell them from agents ([`ebb_control`]).
//!
//! * LISTENER-1: the listener waits for no client. It reads and writes only a connection that is
//!   ready. It uses a received descriptor only after a check of the descriptor's type. A process of
//!   the tree has copies of both ends of its connection, and may have forged the data there.
//! * LISTENER-2: only the user of the run and root may query figures or change settings. Other
//!   users reach the socket if root has attached to a process of theirs. They may join.

use crate::control;
use crate::mm::link::Link;
use crate::mm::pool::Pool;
use crate::mm::{Areas, Mm, State};
use crate::pager::Pager;
use crate::processes::{Processes, identify};
use crate::seam::{AddressSpace, Connection, Process, answer};
use crate::telemetry::counters;
use crate::telemetry::events::Why;
use crate::wait::limits::{LISTENER_PATIENCE, LOOK_PAUSE};
use crate::wait::patience::{Patience, Wait};
use ebb_agent::protocol::{Answer, DOORBELLS, HELLO_FORKED, Hello, MAGIC};
use ebb_control::{ControlError, REQUEST_MAX, Request};
use ebb_mm::resident::Space;
use ebb_sys::socket::Listener;
use ebb_sys::uffd::{Mode, PlaceError, feature};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Userfaultfd features that every run needs.
pub const FEATURES: u64 = feature::FLAG_WP
    | feature::EVENT_FORK
    | feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::THREAD_ID
    | feature::POISON
    | feature::MOVE;

/// Interval at which the listener checks for a fork message.
const FORK_LOOK: Duration = Duration::from_millis(100);

const OUT_OF_DESCRIPTORS: &str = "no descriptor is left for another process (each takes about five); \
                                  the program is killed; allow more: ulimit -n 65536";

/// A connected process that has not said hello yet.
struct Caller {
    connection: Box<dyn Connection>,
    wait: Wait,
    /// The forked child at the other end, if the pager has fetched its connection. None if the
    /// process connected by itself.
    child: Option<Arc<Mm>>,
}

/// Connections of processes that have not said hello yet. A process may take long, because it may
/// wait for memory itself. Others do not wait for it.
pub struct AgentListener {
    pager: Arc<Pager>,
    silent: Vec<Caller>,
}

/// Runs the listener thread.
pub fn run(pager: &Arc<Pager>, listener: &Listener) {
    let mut agents = AgentListener::new(pager);
    loop {
        let Ok(readable) = agents.wait(listener) else { continue };
        // While the listener serves these callers, candidates wait for the pager, too.
        pager.processes.candidates.owe();
        let (own, callers) = readable.split_at(2);
        agents.read_hellos(callers);
        if own[0] {
            match listener.accept() {
                Ok(Some(socket)) => agents.add_caller(Box::new(socket)),
                Ok(None) => {}
                // The process that connected cannot be accepted, and would wait for ever.
                Err(error) if is_out_of_descriptors(&error) => {
                    if !pager.run.ending.load(SeqCst) {
                        pager.say(OUT_OF_DESCRIPTORS);
                        pager.kill_tree(Why::OutOfDescriptors);
                    }
                    pager.host.sleep(Duration::from_millis(100));
                }
                Err(error) => {
                    pager.complain(&format!("cannot accept an agent: {error}"));
                    pager.host.sleep(Duration::from_millis(100));
                }
            }
        }
        if own[1] {
            agents.fetch();
        }
        agents.forget();
        pager.processes.candidates.served();
    }
}

impl AgentListener {
    /// Creates a listener without callers.
    pub fn new(pager: &Arc<Pager>) -> Self {
        Self { pager: pager.clone(), silent: Vec::new() }
    }

    /// Waits until a process connects, is to be fetched, or sends its hello. Returns whether each
    /// descriptor is readable: two of the listener, then one for each caller.
    fn wait(&self, listener: &Listener) -> std::io::Result<Vec<bool>> {
        let candidates = &self.pager.processes.candidates;
        let mut waiting =
            vec![PollFd::new(listener, PollFlags::IN), PollFd::new(candidates, PollFlags::IN)];
        let callers = self.connections().filter_map(Connection::descriptor);
        waiting.extend(callers.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut waiting, (!self.silent.is_empty()).then_some(&limit))?;
        Ok(waiting.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Returns the connections of processes that have not said hello yet.
    pub fn connections(&self) -> impl Iterator<Item = &dyn Connection> {
        self.silent.iter().map(|caller| &*caller.connection)
    }

    /// Reads the hello of each caller whose entry in `readable` is true.
    pub fn read_hellos(&mut self, readable: &[bool]) {
        for (index, _) in readable.iter().enumerate().rev().filter(|&(_, &ready)| ready) {
            let caller = self.silent.swap_remove(index);
            match hello(&self.pager, caller) {
                Ok(silent_yet) => self.silent.extend(silent_yet),
                Err(error) if has_gone(&error) => {}
                Err(error) => self.pager.complain(&format!("an agent could not join: {error}")),
            }
        }
    }

    /// Adds a process that has connected.
    pub fn add_caller(&mut self, connection: Box<dyn Connection>) {
        let wait = Wait::new(&self.pager.clock, Patience::Hello);
        self.silent.push(Caller { connection, wait, child: None });
    }

    /// Serves the candidates, and fetches the connections of those that get an agent.
    pub fn fetch(&mut self) {
        for candidate in self.pager.processes.candidates.take() {
            let connection = candidate.serve(&self.pager);
            self.pager.processes.candidates.served();
            let Some(connection) = connection else { continue };
            let wait = Wait::new(&self.pager.clock, Patience::Hello);
            self.silent.push(Caller { connection, wait, child: Some(candidate.mm) });
        }
    }

    /// Drops the callers that have not said hello in time.
    pub fn forget(&mut self) {
        let clock = &self.pager.clock;
        self.silent.retain(|caller| {
            // The next `read_hellos` reads a hello that arrived meanwhile.
            !caller.wait.is_over(clock) || has_spoken(&*caller.connection)
        });
    }
}

/// Whether a connection has data to read.
fn has_spoken(connection: &dyn Connection) -> bool {
    let Some(fd) = connection.descriptor() else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)) == Ok(1)
}

/// Whether the process has ended since it sent its hello. The error then reports a missing address
/// space, process number or peer, and needs no message.
fn has_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        || Errno::from_io_error(error) == Some(Errno::SRCH)
}

fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn refuse(connection: &dyn Connection) -> std::io::Result<()> {
    connection.say(&Answer { magic: MAGIC, refused: 1 }.to_bytes())
}

/// Reads a hello and answers it. Returns the caller if there is no data, because the sender has
/// taken it back.
fn hello(pager: &Arc<Pager>, caller: Caller) -> std::io::Result<Option<Caller>> {
    let mut bytes = [0; REQUEST_MAX];
    let mut uffd = None;
    match caller.connection.receive(&mut bytes, &mut uffd)? {
        None => Ok(Some(caller)),
        // The process ended, executed another program, or lost its agent before its hello.
        Some(0) => {
            if let Some(child) = &caller.child {
                child.agent.take_back();
            }
            Ok(None)
        }
        Some(got) => heard(pager, caller, &bytes[..got], uffd).map(|()| None),
    }
}

fn heard(
    pager: &Arc<Pager>,
    caller: Caller,
    bytes: &[u8],
    uffd: Option<Box<dyn AddressSpace>>,
) -> std::io::Result<()> {
    let Caller { connection, child, .. } = caller;
    if let Some(request) = Request::from_bytes(bytes) {
        // A fetched process may belong to another user. It may neither query nor change anything.
        let may = child.is_none() && connection.is_of_owner();
        match if may { request } else { Err(ControlError::Refused) } {
            Ok(request) => control::serve(pager, request, connection),
            // `ebb top` asks all runs of its user, whatever their versions are. The program's user
            // needs no message.
            Err(error) => answer::say(&*connection, &Err(error)),
        }
        return Ok(());
    }
    if Hello::is_old_command(bytes) {
        return Ok(());
    }
    let hello = Hello::from_bytes(bytes)
        .ok_or_else(|| std::io::Error::other("its hello is not valid (another version of ebb?)"))?;
    let joined = match (hello.kind, child) {
        (HELLO_FORKED, Some(child)) => welcome(pager, &child, connection),
        (HELLO_FORKED, None) => hello_forked(pager, connection),
        (_, None) => hello_new(pager, &hello, connection, uffd),
        // A fetched process is already known.
        (_, Some(_)) => refuse(&*connection),
    };
    if joined.is_ok() {
        pager.run.wake_monitor();
    }
    joined
}

fn hello_new(
    pager: &Arc<Pager>,
    hello: &Hello,
    connection: Box<dyn Connection>,
    uffd: Option<Box<dyn AddressSpace>>,
) -> std::io::Result<()> {
    let Some(uffd) = uffd else {
        refuse(&*connection)?;
        return Err(std::io::Error::other("it brought no userfaultfd"));
    };
    if hello.pool_len / 4096 <= DOORBELLS as u64 {
        refuse(&*connection)?;
        return Err(std::io::Error::other("its pool is too small"));
    }
    if hello.pool_len > pager.config.pool_bytes {
        // The records of its slots would take all memory that the pager may have.
        refuse(&*connection)?;
        return Err(std::io::Error::other("its pool is larger than the pager allows"));
    }
    // Fork events need the right to trace. Without that right the kernel refuses the features, and
    // the program cannot join.
    if let Err(error) = uffd.handshake(FEATURES) {
        refuse(&*connection)?;
        return Err(error);
    }
    let pool = (hello.pool_start, hello.pool_len);
    let process = pager.host.open(connection.peer()?)?;
    let mm = add_program(pager, uffd, process, pool, hello.bare != 0)?;
    open_line(pager, &mm, connection, None)
}

/// Manages a new program whose pool is `(start, length)`. `lacks_hooks` says that the program has
/// no hooks.
pub fn add_program(
    pager: &Arc<Pager>,
    uffd: Box<dyn AddressSpace>,
    process: Box<dyn Process>,
    (start, len): (u64, u64),
    lacks_hooks: bool,
) -> std::io::Result<Arc<Mm>> {
    if let Err(error) = uffd.register(start, len, Mode::Quiet) {
        // The kernel reports ENOMEM here for an address space that has ended.
        return Err(if uffd.is_alive(start) { error } else { Errno::SRCH.into() });
    }
    let id = pager.processes.new_mm_id();
    let pool = Pool::new(start, len, DOORBELLS);
    let state = State::new(Space::new(id), Areas::default(), pool, pager.config.window_max());
    let mm = Arc::new(Mm::new(uffd, state, pager.clock.clone()).without_hooks(lacks_hooks));
    // The process that connected need not be the owner of the userfaultfd.
    if !confirm_process(pager, &mm, &*process) {
        let has_ended = !mm.uffd.is_alive();
        // Takes the identity page off the counts, because the pager does not manage its address
        // space.
        let known = mm.pages.known();
        mm.note_gone(&mut pager.resident().zone, known);
        return Err(if has_ended {
            Errno::SRCH.into()
        } else {
            std::io::Error::other("its userfaultfd is another process's")
        });
    }
    mm.owner.identify(process);
    counters::count(&pager.telemetry.counters.processes);
    pager.add_mm(&mm)?;
    Ok(mm)
}

/// Answers the hello with the shared memory and the descriptors that the agent needs.
fn open_line(
    pager: &Pager,
    mm: &Arc<Mm>,
    connection: Box<dyn Connection>,
    uffd: Option<BorrowedFd<'_>>,
) -> std::io::Result<()> {
    let tie = mm.process().map_or(Ok(None), |process| process.tie(&pager.processes.lifeline))?;
    let line = connection.into_line()?;
    let link = Link::new(line.clone(), pager.clock.clone());
    link.pin(mm.agent.inherited_pins.as_deref());
    link.set_far(pager.run.is_far.load(SeqCst));
    if pager.run.no_huge_pages.load(Relaxed) {
        link.send_no_huge_pages();
    }
    if pager.run.managing.load(Relaxed) {
        // The agent must announce the first area that it maps.
        link.managing();
    }
    // The link is attached before the agent gets it. The agent may call at once, and the thread
    // that reads the call must find the link.
    pager.set_link(mm, link)?;
    // The agent expects its own userfaultfd first, if it needs one.
    let others: Vec<_> = uffd.into_iter().chain(tie.as_ref().map(AsFd::as_fd)).collect();
    line.welcome(&Answer { magic: MAGIC, refused: 0 }.to_bytes(), &others)
}

/// Answers the hello of a forked child that connected by itself. Before Linux 6.9 the pager cannot
/// fetch the child's connection.
fn hello_forked(pager: &Arc<Pager>, connection: Box<dyn Connection>) -> std::io::Result<()> {
    let process = pager.host.open(connection.peer()?)?;
    let wait = Wait::new(&pager.clock, Patience::Fork);
    let mut foreign: Vec<Arc<Mm>> = Vec::new();
    let mm = loop {
        let candidate = next_candidate(pager, &foreign, wait);
        let Some(candidate) = candidate else {
            return refuse(&*connection);
        };
        if confirm_process(pager, &candidate, &*process) {
            break candidate;
        }
        foreign.push(candidate);
    };
    adopt(&pager.processes, &mm, process);
    welcome(pager, &mm, connection)
}

/// Opens the link to the forked child `mm` that has said hello.
fn welcome(
    pager: &Arc<Pager>,
    mm: &Arc<Mm>,
    connection: Box<dyn Connection>,
) -> std::io::Result<()> {
    if mm.agent.link().is_some() {
        return refuse(&*connection);
    }
    pager.processes.no_longer_waits(mm);
    open_line(pager, mm, connection, mm.uffd.descriptor())
}

/// Assigns `process` to a forked child that has said hello.
pub fn adopt(processes: &Processes, mm: &Arc<Mm>, process: Box<dyn Process>) {
    processes.no_longer_waits(mm);
    mm.owner.identify(process);
}

/// Waits for a forked child that has not said hello and is not in `foreign`, and returns it. The
/// parent of the child does not matter, and could not be compared across process namespaces.
fn next_candidate(pager: &Pager, foreign: &[Arc<Mm>], wait: Wait) -> Option<Arc<Mm>> {
    let unknown = |mm: &&Arc<Mm>| !foreign.iter().any(|process| Arc::ptr_eq(process, mm));
    loop {
        let found = {
            let forked = pager.processes.forked.lock().unwrap_or_else(PoisonError::into_inner);
            forked.iter().find(unknown).cloned()
        };
        if found.is_some() || wait.is_over(&pager.clock) {
            return found;
        }
        pager.host.wait(&pager.processes.fork_seen, FORK_LOOK);
    }
}

/// Whether an address space is that of `process`. The pager puts an identity page into the address
/// space and looks for it in the process.
pub fn confirm_process(pager: &Pager, mm: &Mm, process: &dyn Process) -> bool {
    let wait = Wait::new(&pager.clock, Patience::Confirming);
    while !wait.is_over(&pager.clock) {
        let Some(mut state) = mm.lock_quiet(LISTENER_PATIENCE) else {
            pager.host.sleep(LOOK_PAUSE);
            continue;
        };
        if state.ended {
            return false;
        }
        let token = identify::show_identity(&*pager.host, &pager.budget, mm, &mut state);
        drop(state);
        match token {
            Ok(token) => return token.is_seen_by(process),
            Err(PlaceError::Dead) => return false,
            // A page is there already, or the mapping is changing. The next attempt uses another
            // slot.
            Err(_) => pager.host.sleep(LOOK_PAUSE),
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quiet;
    use crate::wait::clock::Clock;
    use ebb_agent::protocol::VERSION;
    use ebb_control::{ANSWER_MAX, Limits, Response, answer_from_bytes};
    use ebb_sys::socket::Socket;

    /// Has the listener hear a message. Returns whether there is a message about it for the user,
    /// and the answer.
    fn says(bytes: &[u8], child: Option<Arc<Mm>>) -> (bool, Vec<u8>) {
        let pager = Arc::new(quiet::pager_by(Clock::simulated()));
        let (connection, other) = Socket::pair().expect("two sockets");
        let wait = Wait::new(&pager.clock, Patience::Hello);
        let caller = Caller { connection: Box::new(connection), wait, child };
        other.send(bytes, &[]).expect("it is heard");
        let complains = hello(&pager, caller).is_err();
        let mut answer = vec![0; ANSWER_MAX];
        let got = other.receive(&mut answer, &mut Vec::new()).expect("an answer, or its end");
        answer.truncate(got);
        (complains, answer)
    }

    /// Shows that a command of another version is turned away without a message. `ebb top` asks all
    /// runs of its user, and a message that an agent could not join appeared in each.
    #[test]
    fn a_command_of_another_version_leaves_no_message() {
        let mut other = Request::Metrics.to_bytes();
        other[ebb_control::MAGIC.len()] += 1;
        let (complains, answer) = says(&other, None);
        assert!(!complains && answer_from_bytes(&answer) == Err(ControlError::OtherVersion));
        for version in [VERSION - 1, VERSION, VERSION + 1] {
            for kind in 0..6 {
                let hello = Hello { magic: MAGIC, version, kind, ..Hello::default() };
                let bytes = [&hello.to_bytes()[..], b"faults json"].concat();
                let is_command = (2..=4).contains(&kind);
                assert_eq!(says(&bytes, None), (!is_command, vec![]), "{version} {kind}");
            }
        }
        let hello = Hello { magic: MAGIC, version: VERSION + 1, ..Hello::default() };
        assert!(says(&hello.to_bytes(), None).0, "an agent has a message");
    }

    #[test]
    fn a_message_that_is_no_request_is_an_error_for_its_client_alone() {
        let whole = Request::Metrics.to_bytes();
        let long = [&whole[..whole.len() - 1], &[b'x'; 2 * REQUEST_MAX]].concat();
        let deep = [&whole[..8], &[b'['; REQUEST_MAX]].concat();
        let cut = &whole[..whole.len() - 1];
        for bytes in [&whole[..4], &whole[..8], cut, &long, &deep, b"EBBC\x01\0\0\0{\"Enable\":-1}"]
        {
            let (complains, answer) = says(bytes, None);
            assert!(!complains && answer_from_bytes(&answer) == Err(ControlError::Unknown));
        }
        assert_eq!(says(&whole[..3], None), (true, vec![]), "of no client");
    }

    /// Shows LISTENER-2 for a connection that the pager has fetched from a child.
    #[test]
    fn a_fetched_connection_gets_no_answer_to_a_request() {
        let max = Some(1 << 30);
        let limits = Request::Limits(Limits { max, ..Limits::default() });
        for request in [Request::Metrics, limits, Request::Detach] {
            let child = Arc::new(quiet::with_pool(quiet::Quiet::default()));
            let (complains, answer) = says(&request.to_bytes(), Some(child));
            assert!(!complains && answer_from_bytes(&answer) == Err(ControlError::Refused));
        }
        let answer = answer_from_bytes(&says(&Request::Metrics.to_bytes(), None).1);
        assert!(matches!(answer, Ok(Response::Metrics(_))), "{answer:?}");
    }

    /// Shows that no copy of a shared page and no end of the run waits for the agent of such a
    /// child. Its agent never comes.
    #[test]
    fn a_child_that_hangs_up_before_its_hello_is_not_starting() {
        let pager = Arc::new(quiet::pager_by(Clock::simulated()));
        let child = Arc::new(quiet::with_pool_by(quiet::Quiet::default(), pager.clock.clone()));
        pager.clock.advance(Duration::from_secs(3));
        child.agent.ask();
        let (connection, other) = Socket::pair().expect("two sockets");
        let wait = Wait::new(&pager.clock, Patience::Hello);
        let child_of = Some(child.clone());
        let caller = Caller { connection: Box::new(connection), wait, child: child_of };
        assert!(child.agent.is_starting());
        drop(other);
        assert!(matches!(hello(&pager, caller), Ok(None)));
        assert!(!child.agent.is_starting());
    }

    #[test]
    fn a_connection_without_a_hello_is_kept_for_a_while_and_not_for_ever() {
        let pager = Arc::new(quiet::pager_by(Clock::simulated()));
        let mut agents = AgentListener::new(&pager);
        let (silent, _silents) = Socket::pair().expect("two sockets");
        let (late, its) = Socket::pair().expect("two sockets");
        agents.add_caller(Box::new(silent));
        agents.add_caller(Box::new(late));
        agents.forget();
        assert_eq!(agents.connections().count(), 2, "it may wait for memory itself");
        its.send(b"?", &[]).expect("it is heard");
        pager.clock.stall(Duration::from_secs(3600));
        agents.forget();
        assert_eq!(agents.connections().count(), 2, "the host ran nobody");
        pager.clock.advance(Duration::from_secs(31));
        agents.forget();
        assert_eq!(agents.connections().count(), 1, "what came late is heard next");
    }
}
