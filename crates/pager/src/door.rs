//! Answers whoever connects: a new program brings its userfaultfd, a forked child fetches the one that
//! the fork message delivered, and `ebb stat` and `ebb lru-gen` are told about the run.
//!
//! * LISTENER-1: whoever is at the other end, nobody is waited for: connections are read and written when they can be, and
//!   a descriptor that came is asked nothing before it is known what it is. A process of the tree has copies of
//!   both ends of its connection, and may have made what it sends.
//! * LISTENER-2: figures are told to, and wishes taken from, the user of the run and root. Others reach the socket where root has
//!   attached to a process of theirs, and may join.

use crate::counters;
use crate::events::Why;
use crate::fork;
use crate::limits::{DOOR_PATIENCE, LOOK_PAUSE};
use crate::link::Link;
use crate::mm::{Areas, Mm, State};
use crate::patience::{Patience, Wait};
use crate::pool::Pool;
use crate::seam::{AddressSpace, Connection, Process};
use crate::server::Pager;
use crate::{lru_gen, resize, stat, view};
use ebb_agent::protocol::{
    Answer, BELLS, GREET_FORKED, GREET_LRU_GEN, GREET_SET, GREET_STAT, Greeting, MAGIC,
};
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

/// The features every run relies on.
pub const FEATURES: u64 = feature::FLAG_WP
    | feature::EVENT_FORK
    | feature::EVENT_REMAP
    | feature::EVENT_REMOVE
    | feature::EVENT_UNMAP
    | feature::THREAD_ID
    | feature::POISON
    | feature::MOVE;

/// How often it is looked whether a fork message has come.
const FORK_LOOK: Duration = Duration::from_millis(100);

const OUT_OF_DESCRIPTORS: &str = "no descriptor is left to take another process in; the program was killed; \
                                  allow more (each process takes about five): ulimit -n 65536";

/// Who has connected and is to greet.
struct Caller {
    connection: Box<dyn Connection>,
    wait: Wait,
    /// The forked child that it is, if it was fetched and did not come by itself.
    child: Option<Arc<Mm>>,
}

/// Who is at the door. Who has connected may take its time to greet (it may wait for memory itself): others do not wait
/// for it.
pub struct Door {
    pager: Arc<Pager>,
    silent: Vec<Caller>,
}

/// The thread.
pub fn run(pager: &Arc<Pager>, listener: &Listener) {
    let mut door = Door::new(pager);
    loop {
        let Ok(readable) = door.wait(listener) else { continue };
        // Those that are behind these wait for the pager, too.
        pager.candidates.owe();
        let (doors, callers) = readable.split_at(2);
        door.hear(callers);
        if doors[0] {
            match listener.accept() {
                Ok(Some(socket)) => door.came(Box::new(socket)),
                Ok(None) => {}
                // Who connected would wait for ever.
                Err(error) if is_out_of_descriptors(&error) => {
                    if !pager.ending.load(SeqCst) {
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
        if doors[1] {
            door.fetch();
        }
        door.forget();
        pager.candidates.served();
    }
}

impl Door {
    /// Nobody is there.
    pub fn new(pager: &Arc<Pager>) -> Self {
        Self { pager: pager.clone(), silent: Vec::new() }
    }

    /// Waits until somebody connects, is to be fetched, or greets: two doors first, then each of those that are silent.
    fn wait(&self, listener: &Listener) -> std::io::Result<Vec<bool>> {
        let candidates = &self.pager.candidates;
        let mut waiting =
            vec![PollFd::new(listener, PollFlags::IN), PollFd::new(candidates, PollFlags::IN)];
        let callers = self.connections().filter_map(Connection::descriptor);
        waiting.extend(callers.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut waiting, (!self.silent.is_empty()).then_some(&limit))?;
        Ok(waiting.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Those that have yet to greet.
    pub fn connections(&self) -> impl Iterator<Item = &dyn Connection> {
        self.silent.iter().map(|caller| &*caller.connection)
    }

    /// Hears those that have something to say, one of `readable` for each.
    pub fn hear(&mut self, readable: &[bool]) {
        for (index, _) in readable.iter().enumerate().rev().filter(|&(_, &ready)| ready) {
            let caller = self.silent.swap_remove(index);
            match greet(&self.pager, caller) {
                Ok(silent_yet) => self.silent.extend(silent_yet),
                Err(error) if has_gone(&error) => {}
                Err(error) => self.pager.complain(&format!("an agent could not join: {error}")),
            }
        }
    }

    /// Somebody has connected.
    pub fn came(&mut self, connection: Box<dyn Connection>) {
        let wait = Wait::new(&self.pager.clock, Patience::Greeting);
        self.silent.push(Caller { connection, wait, child: None });
    }

    /// Fetches those that ask for that.
    pub fn fetch(&mut self) {
        for candidate in self.pager.candidates.take() {
            let connection = candidate.serve(&self.pager);
            self.pager.candidates.served();
            let Some(connection) = connection else { continue };
            let wait = Wait::new(&self.pager.clock, Patience::Greeting);
            self.silent.push(Caller { connection, wait, child: Some(candidate.mm) });
        }
    }

    /// Those that never greet are left.
    pub fn forget(&mut self) {
        let clock = &self.pager.clock;
        self.silent.retain(|caller| {
            // What came while others were heard is heard next.
            !caller.wait.is_over(clock) || has_spoken(&*caller.connection)
        });
    }
}

/// Whether there is something to hear.
fn has_spoken(connection: &dyn Connection) -> bool {
    let Some(fd) = connection.descriptor() else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)) == Ok(1)
}

/// Whether the process has ended since it spoke, and has nothing to be told: its address space, its number or its end of
/// the connection is gone.
fn has_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset)
        || Errno::from_io_error(error) == Some(Errno::SRCH)
}

fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether a greeting of this kind may have text.
fn asks(kind: u32) -> bool {
    matches!(kind, GREET_STAT | GREET_LRU_GEN | GREET_SET)
}

fn refuse(connection: &dyn Connection) -> std::io::Result<()> {
    connection.say(&Answer { magic: MAGIC, refused: 1 }.to_bytes())
}

/// Hears a greeting and answers. The caller, if it said nothing: what it had sent was taken back.
fn greet(pager: &Arc<Pager>, caller: Caller) -> std::io::Result<Option<Caller>> {
    let mut bytes = [0; 4096];
    let mut uffd = None;
    match caller.connection.hear(&mut bytes, &mut uffd)? {
        None => Ok(Some(caller)),
        // The process ended, or became another program, before it greeted.
        Some(0) => Ok(None),
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
    let (head, text) = bytes.split_at(bytes.len().min(size_of::<Greeting>()));
    let greeting = Greeting::from_bytes(head)
        .filter(|greeting| text.is_empty() || asks(greeting.kind))
        .ok_or_else(|| std::io::Error::other("its greeting is of another version"))?;
    // A process that was fetched may be another user's: it has nothing to ask or to change.
    if asks(greeting.kind) && (child.is_some() || !connection.is_of_owner()) {
        return refuse(&*connection);
    }
    if greeting.kind == GREET_STAT {
        if let Some(areas_of) = view::wanted(text) {
            pager.looks.add(areas_of, connection);
            return Ok(());
        }
        return connection.say(stat::answer(pager, text).as_bytes());
    }
    if greeting.kind == GREET_LRU_GEN {
        return lru_gen::asked(pager, &String::from_utf8_lossy(text), connection);
    }
    if greeting.kind == GREET_SET {
        return resize::asked(pager, &String::from_utf8_lossy(text), connection);
    }
    let joined = match (greeting.kind, child) {
        (GREET_FORKED, Some(child)) => welcome(pager, &child, connection),
        (GREET_FORKED, None) => greet_forked(pager, connection),
        (_, None) => greet_new(pager, &greeting, connection, uffd),
        // Who was fetched is a process that is known already.
        (_, Some(_)) => refuse(&*connection),
    };
    if joined.is_ok() {
        pager.monitor.raise();
    }
    joined
}

fn greet_new(
    pager: &Arc<Pager>,
    greeting: &Greeting,
    connection: Box<dyn Connection>,
    uffd: Option<Box<dyn AddressSpace>>,
) -> std::io::Result<()> {
    let Some(uffd) = uffd else {
        refuse(&*connection)?;
        return Err(std::io::Error::other("it brought no userfaultfd"));
    };
    if greeting.pool_len / 4096 <= BELLS as u64 {
        refuse(&*connection)?;
        return Err(std::io::Error::other("its pool is too small"));
    }
    if greeting.pool_len > pager.config.pool_bytes {
        // The books of its places would take what memory the pager can have.
        refuse(&*connection)?;
        return Err(std::io::Error::other("its pool is larger than it was told to make it"));
    }
    // Events of forks are for those alone that have the right to trace: nobody gets them who is refused anyway.
    if let Err(error) = uffd.handshake(FEATURES) {
        refuse(&*connection)?;
        return Err(error);
    }
    let pool = (greeting.pool_start, greeting.pool_len);
    let process = process(pager, connection.peer()?)?;
    let mm = take_on(pager, uffd, process, pool, greeting.bare != 0)?;
    open_line(pager, &mm, connection, None)
}

/// Takes a new program on, whose pool is `(start, length)`; a `bare` one has no hooks.
pub fn take_on(
    pager: &Arc<Pager>,
    uffd: Box<dyn AddressSpace>,
    process: Box<dyn Process>,
    (start, len): (u64, u64),
    bare: bool,
) -> std::io::Result<Arc<Mm>> {
    if let Err(error) = uffd.register(start, len, Mode::Quiet) {
        // Of an address space that has ended the kernel says ENOMEM here.
        return Err(if uffd.is_alive(start) { error } else { Errno::SRCH.into() });
    }
    let id = pager.new_mm_id();
    let pool = Pool::new(start, len, BELLS);
    let state = State::new(Space::new(id), Areas::default(), pool, pager.window_max());
    let mm = Arc::new(Mm::new(uffd, state, pager.clock.clone()).bare(bare));
    // Who has connected need not be whose userfaultfd this is.
    if !confirm_process(pager, &mm, &*process) {
        let has_ended = !mm.is_alive();
        // What was put there to see that is nobody's any more.
        let known = mm.known.load(Relaxed);
        mm.gone(&mut pager.resident().zone, known.max(0).unsigned_abs());
        return Err(if has_ended {
            Errno::SRCH.into()
        } else {
            std::io::Error::other("its userfaultfd is another process's")
        });
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
    connection: Box<dyn Connection>,
    uffd: Option<BorrowedFd<'_>>,
) -> std::io::Result<()> {
    let tie = mm.process().map_or(Ok(None), |process| process.tie(&pager.lifeline))?;
    let line = connection.into_line()?;
    let link = Link::new(line.clone(), pager.clock.clone());
    link.pin(mm.inherited_pins.as_deref());
    if pager.small.load(Relaxed) {
        link.small();
    }
    if pager.managing.load(Relaxed) {
        // The first area that it maps is to be announced already.
        link.managing();
    }
    // Before it knows: it may call at once, and who hears that must find the line.
    pager.attach(mm, link)?;
    // Its own userfaultfd first, if it needs one.
    let others: Vec<_> = uffd.into_iter().chain(tie.as_ref().map(AsFd::as_fd)).collect();
    line.welcome(&Answer { magic: MAGIC, refused: 0 }.to_bytes(), &others)
}

/// A forked child that came by itself, where it could not be fetched (before Linux 6.9).
fn greet_forked(pager: &Arc<Pager>, connection: Box<dyn Connection>) -> std::io::Result<()> {
    let process = process(pager, connection.peer()?)?;
    let wait = Wait::new(&pager.clock, Patience::Fork);
    let mut strangers: Vec<Arc<Mm>> = Vec::new();
    let mm = loop {
        let candidate = next_candidate(pager, &strangers, wait);
        let Some(candidate) = candidate else {
            return refuse(&*connection);
        };
        if confirm_process(pager, &candidate, &*process) {
            break candidate;
        }
        strangers.push(candidate);
    };
    adopt(pager, &mm, process);
    welcome(pager, &mm, connection)
}

/// The child that greets is this one.
fn welcome(
    pager: &Arc<Pager>,
    mm: &Arc<Mm>,
    connection: Box<dyn Connection>,
) -> std::io::Result<()> {
    if mm.link.get().is_some() {
        return refuse(&*connection);
    }
    no_longer_waits(pager, mm);
    open_line(pager, mm, connection, mm.uffd.descriptor())
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
fn next_candidate(pager: &Pager, strangers: &[Arc<Mm>], wait: Wait) -> Option<Arc<Mm>> {
    let unknown = |mm: &&Arc<Mm>| !strangers.iter().any(|stranger| Arc::ptr_eq(stranger, mm));
    loop {
        let found = {
            let forked = pager.forked.lock().unwrap_or_else(PoisonError::into_inner);
            forked.iter().find(unknown).cloned()
        };
        if found.is_some() || wait.is_over(&pager.clock) {
            return found;
        }
        pager.host.wait(&pager.fork_seen, FORK_LOOK);
    }
}

fn process(pager: &Pager, pid: u32) -> std::io::Result<Box<dyn Process>> {
    pager.host.open(pid)
}

/// Whether an address space is that of `process`: a page with a token is put into it and looked for there.
pub fn confirm_process(pager: &Pager, mm: &Mm, process: &dyn Process) -> bool {
    let wait = Wait::new(&pager.clock, Patience::Confirming);
    while !wait.is_over(&pager.clock) {
        let Some(mut state) = mm.lock_quiet(DOOR_PATIENCE) else {
            pager.host.sleep(LOOK_PAUSE);
            continue;
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quiet;
    use crate::seam::Clock;
    use ebb_sys::socket::Socket;

    #[test]
    fn who_has_yet_to_greet_is_waited_for_and_not_for_ever() {
        let pager = Arc::new(quiet::pager_by(Clock::simulated()));
        let mut door = Door::new(&pager);
        let (silent, _silents) = Socket::pair().expect("two sockets");
        let (late, its) = Socket::pair().expect("two sockets");
        door.came(Box::new(silent));
        door.came(Box::new(late));
        door.forget();
        assert_eq!(door.connections().count(), 2, "it may wait for memory itself");
        its.send(b"?", &[]).expect("it is heard");
        pager.clock.stall(Duration::from_secs(3600));
        door.forget();
        assert_eq!(door.connections().count(), 2, "the host ran nobody");
        pager.clock.advance(Duration::from_secs(31));
        door.forget();
        assert_eq!(door.connections().count(), 1, "what came late is heard next");
    }
}
