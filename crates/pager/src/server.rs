//! The pager process: what its threads share, its start and its end.

use crate::account::Account;
use crate::children::Candidates;
use crate::config::Config;
use crate::counters::{self, Counters};
use crate::detach::{self, Detach};
use crate::events::{Event, Events, Why};
use crate::limits::SLICE_PAGES;
use crate::lineage::{self, Lineage};
use crate::link::Link;
use crate::lru_gen::Requests;
use crate::messages;
use crate::mm::Mm;
use crate::patience::{self, Patience, Wait};
use crate::pending::Pending;
use crate::pressure::Pressure;
use crate::record::Recorder;
use crate::resize::Wishes;
use crate::sampling::Sampling;
use crate::seam::{Clock, Host, Machine, Storage};
use crate::signal::Signal;
use crate::solo::{CPUS_MAX, Solo};
use crate::thrashing::Finding;
use crate::unmanaged::Unmanaged;
use crate::view::{self, Looks};
use crate::{door, errand, faults, inject, monitor, reclaim, report, spin};
use ebb_mm::engine::{Engine, Evidence};
use ebb_mm::folio::MM_END;
use ebb_mm::reclaim::{Asked, Desk};
use ebb_mm::resident::{Dropped, Resident};
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_swap::{Notice, Store};
use ebb_sys::lifeline::Lifeline;
use ebb_sys::process;
use ebb_sys::sched::CpuSet;
use ebb_sys::socket::Socket;
use ebb_sys::{proc, signals};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The exit status of a run that Ebb did not let go on.
const FAILED: i32 = 125;
/// How often it is looked whether a program that has stopped goes on.
const STOPPED_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// What front and pager tell each other, one JSON message each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FrontMessage {
    /// Front: this is the run.
    Start(Box<Config>),
    /// Pager: agents may come.
    Ready,
    /// Either: it cannot be done.
    Failed(String),
    /// Front: the program runs as this process.
    Running(u32),
    /// Front: the program is this process, which runs already. Pager: `Ready`, or `Failed`.
    Attach(u32),
    /// Front: give it back. Pager: `Reported`, or `Failed`, and it goes on.
    Detach,
    /// Front: the program has stopped, and it will.
    Stopping,
    /// Front: it has been continued.
    GoesOn,
    /// Front: every process has ended; the program's own exit status (as a shell shows it).
    Ended(i32),
    /// Front: the program that it is not the parent of has ended, with this status if that can be known. Others of the run
    /// may go on.
    Left(Option<i32>),
    /// Pager: the report is written.
    Reported {
        /// Ebb failed the program: the exit status is 125.
        failed: bool,
    },
}

impl FrontMessage {
    /// Sends it.
    pub fn send(&self, socket: &Socket) -> std::io::Result<()> {
        socket.send(&serde_json::to_vec(self)?, &[])
    }

    /// Receives one; an error if the other end is gone.
    pub fn receive(socket: &Socket) -> std::io::Result<Self> {
        let mut bytes = vec![0; 64 * 1024];
        let got = socket.receive(&mut bytes, &mut Vec::new())?;
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&bytes[..got])?)
    }
}

/// The first number of an address space: tokens of smaller ones have a meaning of their own.
const MM_FIRST: u32 = 2;

/// Token of the wake-up eventfd in the epoll set.
pub const TOKEN_WAKE: u64 = 0;
/// Token of the store's completions.
pub const TOKEN_STORE: u64 = 4;

/// Token of an address space's userfaultfd.
pub fn token_uffd(mm: MmId) -> u64 {
    (u64::from(mm.0) << 2) | 1
}

/// Token of an agent's connection.
pub fn token_link(mm: MmId) -> u64 {
    (u64::from(mm.0) << 2) | 2
}

/// What a pager stands on.
pub struct World {
    pub clock: Clock,
    pub host: Box<dyn Host>,
    pub store: Box<dyn Storage>,
}

/// The resident set of the engine, which is locked as long as it is looked at.
pub struct Set<'a>(MutexGuard<'a, Engine>);

impl Deref for Set<'_> {
    type Target = Resident;

    fn deref(&self) -> &Resident {
        &self.0.set
    }
}

impl DerefMut for Set<'_> {
    fn deref_mut(&mut self) -> &mut Resident {
        &mut self.0.set
    }
}

/// What the threads share.
pub struct Pager {
    pub config: Config,
    pub clock: Clock,
    pub host: Box<dyn Host>,
    pub started: Instant,
    pub engine: Mutex<Engine>,
    pub store: Box<dyn Storage>,
    pub counters: Counters,
    pub account: Account,
    pub mms: RwLock<BTreeMap<u32, Arc<Mm>>>,
    next_mm: AtomicU32,
    /// Children of forks that have not greeted yet.
    pub forked: Mutex<Vec<Arc<Mm>>>,
    pub fork_seen: Signal,
    /// Those that ask for an agent.
    pub candidates: Candidates,
    pub epoll: OwnedFd,
    /// What the fault threads of single CPUs look at: address spaces alone.
    pub epoll_beside: Vec<OwnedFd>,
    wake: OwnedFd,
    pub kswapd: Signal,
    /// Where those who are short of memory ask kswapd for more.
    pub desk: Desk,
    pub monitor: Signal,
    /// Areas are brought under management.
    pub managing: AtomicBool,
    /// The kernel is to make no huge pages: said a little before that.
    pub small: AtomicBool,
    /// Faults that wait for memory.
    pub starving: AtomicU32,
    /// Faults that wait for anything that is no page: memory, the end of a batch or of a change.
    pub waiting: AtomicU32,
    /// When the one that has waited longest began to ([`patience::Moment::ms`]); 0: none does.
    pub starved_since_ms: AtomicU64,
    /// Threads held by the brake.
    pub held: AtomicU32,
    /// Since when it has held the one that it holds for longest, as `starved_since_ms`.
    pub held_since_ms: AtomicU64,
    pub program: AtomicU32,
    /// The front process.
    pub front: u32,
    pub lineage: Lineage,
    /// Ends who waits for this process in the kernel when it ends.
    pub lifeline: Lifeline,
    pub detach: Detach,
    pub ending: AtomicBool,
    /// The run is ended by killing its processes.
    pub killing: AtomicBool,
    pub resident_history: Mutex<report::History>,
    /// A process that shared pages has ended: what the others share must be counted again.
    pub sharing_changed: AtomicBool,
    pub solo: Solo,
    pub pressure: Arc<Pressure>,
    pub unmanaged: Unmanaged,
    /// The run was found to thrash.
    pub thrashing: OnceLock<Finding>,
    /// What `ebb lru-gen` wants done.
    pub requests: Requests,
    /// What the run is to have instead, for the monitor.
    pub wishes: Wishes,
    /// Who wants to see where pages are.
    pub looks: Looks,
    pub recorder: Option<Recorder>,
    /// How soon pages are used again, if that is wanted.
    pub sampling: Option<Sampling>,
    /// Who wants to know what happens.
    pub events: Option<Events>,
    /// Held while the program is being killed by a lost page and that is said.
    pub last_words: Mutex<()>,
    complained: AtomicU32,
}

impl Pager {
    pub fn new(config: Config, world: World, front: u32) -> std::io::Result<Self> {
        let World { clock, host, store } = world;
        let new_epoll = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let epoll = new_epoll()?;
        let cpus = CpuSet::of_this_thread().map_or(0, |cpus| cpus.count() as usize);
        let beside = if config.solo && cpus > 1 && cpus <= CPUS_MAX { cpus } else { 0 };
        let epoll_beside = (0..beside).map(|_| new_epoll()).collect::<Result<_, _>>()?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let pages = config.memory_max_bytes / PAGE_SIZE as u64;
        let high = config.memory_high_bytes.map_or(pages, |high| high / PAGE_SIZE as u64);
        let recorder = config.record.as_deref().map(Recorder::new).transpose()?;
        let events =
            config.events.as_deref().map(|path| Events::new(path, messages::say)).transpose()?;
        let tunables = config.tunables().map_err(std::io::Error::other)?;
        let lineage = Lineage::new(config.root, config.tree)?;
        let engine = Engine::new(pages, high, tunables, Evidence::Cooling)
            .with_cool_most(config.cool_permille)
            .with_split(config.split());
        // A budget that is near from the start is so for the first page of the program, whenever the monitor begins to look.
        let goal = engine.set.zone.high();
        let at_once = config.eager || config.sample;
        let managing = at_once || monitor::threshold(goal) == 0;
        let small = at_once || monitor::small_from(goal) == 0;
        let pager = Self {
            started: clock.now(),
            engine: Mutex::new(engine),
            store,
            counters: Counters::default(),
            account: Account::default(),
            mms: RwLock::default(),
            next_mm: AtomicU32::new(MM_FIRST),
            forked: Mutex::default(),
            fork_seen: Signal::default(),
            candidates: Candidates::new()?,
            epoll,
            epoll_beside,
            wake,
            kswapd: Signal::default(),
            desk: Desk::new(),
            monitor: Signal::default(),
            managing: AtomicBool::new(managing),
            small: AtomicBool::new(small),
            starving: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            starved_since_ms: AtomicU64::new(0),
            held: AtomicU32::new(0),
            held_since_ms: AtomicU64::new(0),
            program: AtomicU32::new(0),
            front,
            lineage,
            lifeline: Lifeline::new()?,
            detach: Detach::default(),
            ending: AtomicBool::new(false),
            killing: AtomicBool::new(false),
            resident_history: Mutex::default(),
            sharing_changed: AtomicBool::new(false),
            solo: Solo::default(),
            pressure: Pressure::new(clock.clone()),
            unmanaged: Unmanaged::default(),
            thrashing: OnceLock::new(),
            requests: Requests::default(),
            wishes: Wishes::default(),
            looks: Looks::default(),
            recorder,
            sampling: config.sample.then(|| Sampling::new(clock.now())),
            events,
            last_words: Mutex::default(),
            complained: AtomicU32::new(0),
            clock,
            host,
            config,
        };
        pager.watch(pager.wake.as_fd(), TOKEN_WAKE)?;
        if let Some(completions) = pager.store.completion_fd() {
            pager.watch(completions, TOKEN_STORE)?;
        }
        Ok(pager)
    }

    /// Whether a process is being put under a limit that runs already, and is not yet.
    pub fn is_attaching(&self) -> bool {
        self.config.attached && self.program.load(Relaxed) == 0
    }

    /// The limit, as it is now.
    pub fn memory_max_bytes(&self) -> u64 {
        self.resident().zone.limit() * PAGE_SIZE as u64
    }

    /// The limit and where reclaim aims, in bytes, as they are now.
    pub fn limits(&self) -> (u64, u64) {
        let resident = self.resident();
        let bytes = |pages: u64| pages * PAGE_SIZE as u64;
        (bytes(resident.zone.limit()), bytes(resident.zone.high()))
    }

    /// The engine of the run.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        spin::lock(&self.engine)
    }

    /// Its resident set.
    pub fn resident(&self) -> Set<'_> {
        Set(self.engine())
    }

    /// Has the fault thread look at `fd`.
    pub fn watch(&self, fd: impl AsFd, token: u64) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Has the fault thread look away from `fd`.
    pub fn unwatch(&self, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            for epoll in self.epoll_beside.iter().chain([&self.epoll]) {
                // It may have been closed or removed already, or is of no interest to this one.
                let _ = epoll::delete(epoll, fd);
            }
        }
    }

    /// Whether the fault thread has something to read.
    pub fn has_messages(&self) -> bool {
        let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
        matches!(poll(&mut epoll, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
    }

    /// Wakes the fault thread: memory became free, or something else changed.
    pub fn wake_faults(&self) {
        // A full counter is as good as a raised one.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Asks kswapd for memory. It is woken unless there is enough.
    pub fn wake_kswapd(&self) {
        match self.engine().ask(&self.desk) {
            // Awake, it may be waiting for something to become reclaimable.
            Asked::Wake | Asked::Recorded => self.kswapd.raise(),
            Asked::LetSleep => {}
        }
    }

    /// Something has changed that touches may wait for: wakes the fault thread if any do.
    pub fn wake_if_waiting(&self) {
        if self.waiting.load(Relaxed) > 0 {
            self.wake_faults();
        }
    }

    /// Clears the wake-up.
    pub fn clear_wake(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut counter);
    }

    /// Most pages fetched ahead at once: few beside the budget.
    pub fn window_max(&self) -> u32 {
        let share = self.config.memory_max_bytes / PAGE_SIZE as u64 / 128;
        share.min(u64::from(self.config.readahead_pages)) as u32
    }

    /// A number no address space has.
    pub fn new_mm_id(&self) -> MmId {
        loop {
            let id = MmId(self.next_mm.fetch_add(1, Relaxed) % MM_END);
            if id.0 >= MM_FIRST && self.mm(id).is_none() {
                return id;
            }
        }
    }

    /// The address spaces.
    pub fn mms(&self) -> Vec<Arc<Mm>> {
        self.mms.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// The address space of this number.
    pub fn mm(&self, id: MmId) -> Option<Arc<Mm>> {
        self.mms.read().unwrap_or_else(PoisonError::into_inner).get(&id.0).cloned()
    }

    /// Takes an address space in.
    pub fn add_mm(&self, mm: &Arc<Mm>) -> std::io::Result<()> {
        self.mms.write().unwrap_or_else(PoisonError::into_inner).insert(mm.id.0, mm.clone());
        let Some(fd) = mm.uffd.descriptor() else { return Ok(()) };
        let token = token_uffd(mm.id);
        for epoll in &self.epoll_beside {
            epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        }
        self.watch(fd, token)
    }

    /// Gives an agent to an address space.
    pub fn attach(&self, mm: &Arc<Mm>, link: Link) -> std::io::Result<()> {
        let link = mm.link.get_or_init(|| link);
        if self.killing.load(SeqCst) {
            link.end();
        }
        link.descriptor().map_or(Ok(()), |fd| self.watch(fd, token_link(mm.id)))
    }

    /// The address space has ended: nothing of it is needed any more.
    pub fn drop_mm(&self, mm: &Arc<Mm>) {
        self.unwatch(mm.uffd.descriptor());
        self.unwatch(mm.link.get().and_then(Link::descriptor));
        let mut dropped = Dropped::default();
        {
            let mut state = mm.lock();
            state.ended = true;
            mm.end_batch(&mut state);
        }
        // A slice at a time: whoever waits for a page of another waits for the same books.
        loop {
            let mut state = mm.lock().timed();
            let Some((start, end)) = state.space.front(SLICE_PAGES) else { break };
            self.resident().forget_range(&mut state.space, start, end, &mut dropped);
        }
        // All that it had.
        let known = mm.known.load(Relaxed);
        mm.gone(&mut self.resident().zone, known.max(0).unsigned_abs());
        self.counters.longest_hold.fetch_max(mm.longest_hold_ns(), Relaxed);
        self.counters.longest_run.fetch_max(mm.longest_run_ns(), Relaxed);
        counters::add(&self.counters.agents_ns, mm.agent_ns.load(Relaxed));
        let (calls, ticks) = mm.link.get().map_or((0, 0), Link::lost);
        counters::add(&self.counters.lost_calls, calls);
        counters::add(&self.counters.lost_ticks, ticks);
        self.mms.write().unwrap_or_else(PoisonError::into_inner).remove(&mm.id.0);
        if mm.related.load(Relaxed) {
            self.sharing_changed.store(true, SeqCst);
        }
        self.forked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|waiting| !Arc::ptr_eq(waiting, mm));
        self.discard(&dropped);
        self.monitor.raise();
        self.wake_faults();
    }

    /// Lets go in the store what nobody holds any more.
    pub fn discard(&self, dropped: &Dropped) {
        if dropped.slots.is_empty() {
            return;
        }
        for &slot in &dropped.slots {
            self.store.remove(slot);
        }
        for slice in dropped.slots.chunks(SLICE_PAGES as usize) {
            let mut resident = self.resident();
            slice.iter().for_each(|&slot| resident.slots.recycle(slot));
        }
    }

    /// Tells the user something, on standard error. Nobody reading it is no reason to stop.
    pub fn say(&self, text: &str) {
        self.host.say(text);
    }

    /// Tells the user something; a flood is cut short.
    pub fn complain(&self, text: &str) {
        match self.complained.fetch_add(1, Relaxed) {
            0..20 => self.say(text),
            20 => self.say("more messages of this kind are left out"),
            _ => {}
        }
    }

    /// Kills every process of the tree. The monitor goes on with those that were born meanwhile.
    pub fn kill_tree(&self, why: Why) {
        self.ending.store(true, SeqCst);
        if !self.killing.swap(true, SeqCst) {
            self.note_run(&Event::Killed { why });
        }
        // Who is not found and killed in time ends by itself where it would fork.
        self.mms().iter().for_each(|mm| mm.tell_end());
        self.host.kill_tree(self);
    }
}

/// Runs the pager over its connection to the front, to the end.
pub fn serve(front: &Socket) -> std::io::Result<()> {
    let ended = serve_to_the_end(front);
    messages::flush();
    ended
}

fn serve_to_the_end(front: &Socket) -> std::io::Result<()> {
    let FrontMessage::Start(config) = FrontMessage::receive(front)? else {
        return Err(std::io::Error::other("the front did not begin with a start message"));
    };
    let front_pid = front.peer()?;
    process::leave_process_group();
    let pager = match prepare(*config, front_pid) {
        Ok(pager) => pager,
        Err(message) => return FrontMessage::Failed(message).send(front),
    };
    let listener = match ebb_sys::socket::Listener::bind(&pager.config.socket) {
        Ok(listener) => listener,
        Err(error) => {
            let path = pager.config.socket.display();
            return FrontMessage::Failed(format!("cannot listen at {path}: {error}")).send(front);
        }
    };
    if let Err(error) = start(&pager, listener) {
        let limit = "a limit of processes (ulimit -u) or of the control group (pids.max)";
        return FrontMessage::Failed(format!("cannot start a thread: {error}; see {limit}"))
            .send(front);
    }
    FrontMessage::Ready.send(front)?;
    loop {
        match FrontMessage::receive(front) {
            Ok(FrontMessage::Running(pid)) => {
                pager.program.store(pid, SeqCst);
                note_start(&pager);
            }
            Ok(FrontMessage::Attach(pid)) => {
                let way = inject::Way::of(&pager.config);
                if let Err(error) = inject::attach(pid, &way) {
                    return FrontMessage::Failed(error.to_string()).send(front);
                }
                pager.program.store(pid, SeqCst);
                note_start(&pager);
                FrontMessage::Ready.send(front)?;
            }
            Ok(FrontMessage::Detach) => match detach::run(&pager) {
                Ok(()) => return end(&pager, front, None),
                Err(reason) => FrontMessage::Failed(reason).send(front)?,
            },
            Ok(FrontMessage::Stopping) => watch_stopped(&pager, front),
            Ok(FrontMessage::GoesOn) => {}
            Ok(FrontMessage::Ended(status)) => return end(&pager, front, Some(status)),
            Ok(FrontMessage::Left(status)) => {
                if lineage::has_ended(&pager, front) {
                    return end(&pager, front, status);
                }
                return without_front(&pager);
            }
            // There is nobody to be served.
            Ok(FrontMessage::Failed(_)) => return Ok(()),
            Ok(other) => return Err(std::io::Error::other(format!("unexpected {other:?}"))),
            Err(_) => return without_front(&pager),
        }
    }
}

/// Every process has ended.
fn end(pager: &Pager, front: &Socket, status: Option<i32>) -> std::io::Result<()> {
    pager.ending.store(true, SeqCst);
    drop(pager.last_words.lock());
    end_recording(pager);
    let failed = pager.unmanaged.has_ended_run();
    // Who is nobody's child here has the status that it has.
    let status = if failed && pager.config.root.is_none() { Some(FAILED) } else { status };
    note_end(pager, status);
    // The report is the last.
    messages::flush();
    if let Err(error) = report::write(pager, status) {
        pager.say(&format!("cannot write the report: {error}"));
    }
    pager.store.close();
    messages::flush();
    FrontMessage::Reported { failed }.send(front)
}

/// The front is gone: what was attached to is given back, and what was started ends.
fn without_front(pager: &Arc<Pager>) -> std::io::Result<()> {
    if !pager.config.attached {
        abandoned(pager);
        return Ok(());
    }
    while !pager.mms().is_empty() && detach::run(pager).is_err() {
        // Served as long as that cannot be.
        pager.host.sleep(Duration::from_secs(1));
    }
    if let Some(events) = &pager.events {
        events.end();
    }
    if let Some(folder) = pager.config.socket.parent() {
        let _ = std::fs::remove_dir_all(folder);
    }
    pager.store.close();
    Ok(())
}

/// The front is gone: so is the run. Agents kill their processes when this one ends. The folder is the front's to
/// remove, which it no longer can.
fn abandoned(pager: &Pager) {
    let wait = Wait::new(&pager.clock, Patience::Killing);
    pager.kill_tree(Why::FrontEnded);
    while !pager.host.tree(pager).is_empty() && !wait.is_over(&pager.clock) {
        pager.host.sleep(Duration::from_millis(10));
        pager.host.kill_tree(pager);
    }
    if let Some(events) = &pager.events {
        events.end();
    }
    if let Some(folder) = pager.config.socket.parent() {
        let _ = std::fs::remove_dir_all(folder);
    }
    pager.store.close();
}

fn note_start(pager: &Pager) {
    let (memory_max_bytes, memory_high_bytes) = pager.limits();
    let command = pager.config.command.clone();
    pager.note_run(&Event::Started { command, memory_max_bytes, memory_high_bytes });
}

fn note_end(pager: &Pager, exit_status: Option<i32>) {
    let Some(events) = &pager.events else { return };
    let (faults, waited_ns) = pager.waited();
    pager.note_run(&Event::Ended {
        exit_status,
        wall_time_us: pager.clock.since(pager.started).as_micros() as u64,
        peak_resident_bytes: pager.counters.peak_resident.load(Relaxed),
        faults,
        faults_loaded: pager.counters.faults_loaded.load(Relaxed),
        waited_us: waited_ns / 1000,
    });
    events.end();
}

fn end_recording(pager: &Pager) {
    let (Some(recorder), Some(path)) = (&pager.recorder, &pager.config.record) else { return };
    if let Err(error) = recorder.end() {
        messages::say(&format!("the recording {} is not complete: {error}", path.display()));
        return;
    }
    let lost = recorder.lost.load(Relaxed);
    if lost > 0 {
        messages::say(&format!(
            "the recording {} lacks {lost} records: the file was too slow",
            path.display()
        ));
    }
}

/// The front stops with the program, so that a shell sees the job stop. A shell continues both; somebody else may continue
/// the program alone, and the front must not stay behind for ever. It says when it goes on: until then it may be about to
/// stop yet, however long that takes, and is continued again.
fn watch_stopped(pager: &Pager, front: &Socket) {
    let is_stopped = |pid| matches!(proc::state(pid), Some('T' | 't'));
    loop {
        let mut says = [PollFd::new(front, PollFlags::IN)];
        // Interrupted is as good as too early.
        let _ = poll(&mut says, Some(&STOPPED_LOOK));
        if !says[0].revents().is_empty() {
            return;
        }
        if !is_stopped(pager.program.load(SeqCst)) {
            signals::send(pager.front, signals::SIGCONT);
        }
    }
}

fn prepare(config: Config, front: u32) -> Result<Arc<Pager>, String> {
    let tiers = ebb_swap::parse_tiers(&config.swap).map_err(|error| error.to_string())?;
    let inject = config
        .inject
        .as_deref()
        .map(ebb_swap::inject::Plan::parse)
        .transpose()
        .map_err(|error| error.to_string())?;
    let options = ebb_swap::Options {
        ram_limit_default: config.memory_max_bytes / 2,
        use_io_uring: config.io_uring,
        inject,
        encrypt: config.encrypt.into(),
        notice: Notice::new(messages::say),
    };
    let store = Store::open(&tiers, &options).map_err(|error| error.to_string())?;
    let world = World { clock: Clock::real(), host: Box::new(Machine), store: Box::new(store) };
    let pager =
        Pager::new(config, world, front).map_err(|error| format!("cannot start: {error}"))?;
    Ok(Arc::new(pager))
}

fn start(pager: &Arc<Pager>, listener: ebb_sys::socket::Listener) -> std::io::Result<()> {
    let run = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let guarded = move || {
            body();
            // A thread of the pager that ends leaves the program without service.
            messages::say("a thread of the pager ended; the program is stopped");
            messages::exit(125);
        };
        let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024);
        builder.spawn(guarded).map(drop)
    };
    let pending = Arc::new(Pending::default());
    for place in 0..pager.epoll_beside.len() {
        let (shared, pending) = (pager.clone(), pending.clone());
        run("faults", Box::new(move || faults::run_beside(&shared, &pending, place)))?;
    }
    let clock = pager.clock.clone();
    run("beat", Box::new(move || patience::beat(&clock)))?;
    let (shared, its) = (pager.clone(), pending.clone());
    run("errands", Box::new(move || errand::run(&shared, &its)))?;
    let shared = pager.clone();
    run("faults", Box::new(move || faults::run(&shared, &pending)))?;
    let shared = pager.clone();
    run("kswapd", Box::new(move || reclaim::run(&shared)))?;
    let shared = pager.clone();
    run("monitor", Box::new(move || monitor::run(&shared)))?;
    let shared = pager.clone();
    run("view", Box::new(move || view::run(&shared)))?;
    let shared = pager.clone();
    run("door", Box::new(move || door::run(&shared, &listener)))
}
