//! Kernel part of the simulation: address spaces, their pages, their messages.
//!
//! Modelled after fs/userfaultfd.c and mm/userfaultfd.c of Linux 6.18, as far as a program and a
//! pager can observe. Every rule that the pager relies on is here, with the freedom that the kernel
//! has:
//! * KERNEL-1: `read` returns waiting faults first, in any order, then changes in the order in
//!   which they were made.
//! * KERNEL-2: while a change is under way, pages cannot be placed, moved, protected or poisoned:
//!   EAGAIN. This lasts until the thread goes on after the change was read. A thread goes on some
//!   time after the reading.
//! * KERNEL-3: a discard drops pages after its message was read. An unmapping and a remapping are
//!   done before their messages.
//! * KERNEL-4: a fork copies the tables, then sends its message. The child runs after that was
//!   read.
//! * KERNEL-5: a fault waits for a wakeup, and then repeats its access.
//! * KERNEL-6: a page can be moved only while it is not shared, pinned or locked, and only into a
//!   hole. Now and then the move happens and returns an error (EEXIST).
//! * KERNEL-7: a page placed over a guard marker replaces it. No page may be placed there, except
//!   for a fault that came before the guard.
//! * KERNEL-8: a process killed in the middle of a fork has no child.

use super::rng::Rng;
use crate::wait::patience::Moment;
use ebb_agent::protocol::State;
use ebb_mm::random::mix;
use ebb_sys::uffd::PlaceError;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Index of an address space in the world.
pub type Id = usize;

/// Page number of the pool in every address space.
pub const POOL: u64 = 1 << 20;

/// A page in memory. Address spaces that share it after a fork have clones of one `frame`.
#[derive(Clone, Debug)]
pub struct Page {
    pub stamp: u64,
    pub frame: Arc<()>,
    pub protected: bool,
    /// Whether this is the kernel's zero page.
    pub zero: bool,
}

impl Page {
    pub fn new(stamp: u64) -> Self {
        Self { stamp, frame: Arc::new(()), protected: false, zero: false }
    }

    /// Creates the kernel's zero page.
    pub fn nothing() -> Self {
        Self { zero: true, ..Self::new(0) }
    }

    pub fn is_exclusive(&self) -> bool {
        Arc::strong_count(&self.frame) == 1
    }
}

/// Treatment of an area at a fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnFork {
    Copy,
    Wipe,
    Leave,
}

/// An area of memory, by page numbers; its start is its key.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    pub end: u64,
    pub registered: bool,
    pub on_fork: OnFork,
    /// Whether it is executable, too. The kernel moves pages only between areas that are alike.
    pub executable: bool,
}

/// A change of an address space, as a message for the pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Remove { start: u64, end: u64 },
    Unmap { start: u64, end: u64 },
    Remap { from: u64, to: u64, pages: u64 },
    Fork { child: Id },
}

/// Whether the message of a thread's call was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    No,
    Read,
}

/// Activity of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doing {
    /// Between two operations.
    Nothing,
    /// About to access a page (again).
    Touch { page: u64, write: bool },
    /// Asleep until a page is there.
    Wait { page: u64, write: bool },
    /// In a call that made this change.
    Call { change: Change, told: Told },
    /// Dropping pages, after the message of the discard was read.
    Zap { start: u64, end: u64 },
    /// Waiting for the answer to its call.
    Announced { doorbell: usize, made: State },
    /// A move was made, or refused, and has yet to be reported.
    Moved { errno: i32 },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Touch {
    pub page: u64,
    pub write: bool,
    pub protected: bool,
    pub thread: u32,
}

#[derive(Debug)]
pub struct Thread {
    pub id: u32,
    pub doing: Doing,
    /// Page at which a sequential pass over memory goes on.
    pub cursor: u64,
}

/// Agent of an address space, and its position in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Agent {
    /// No agent: it has not joined, or never will.
    Absent,
    /// The agent's thread has yet to start.
    Starting,
    Idle,
    At(usize),
}

/// Progress of an agent that joins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Joining {
    /// It never joins.
    Never,
    /// It is about to begin.
    Begins,
    /// It has called through its ancestor's shared memory, and waits until one end of this
    /// connection is fetched.
    Called {
        doorbell: usize,
        made: State,
        connection: usize,
    },
    /// It is about to connect.
    Connects,
    /// It has a connection.
    Has(usize),
    Done,
}

/// A connection that is to become a line.
#[derive(Debug)]
pub struct Connection {
    /// Address space of the agent.
    pub id: Id,
    /// Whether the pager has an end.
    pub held: bool,
    /// The unread hello, if there is one; `heard` says whether one was read.
    pub said: Option<u32>,
    pub heard: bool,
    pub hung_up: bool,
    /// Whether the pager has accepted it.
    pub answer: Option<bool>,
}

/// A thread that stops all other threads of an address space and the agent, one after another, as
/// the leak sanitizer does.
#[derive(Clone, Copy, Debug)]
pub struct Tracer {
    pub thread: u32,
    /// Number of stopped threads, the agent included; `agent` is the number after which it stops
    /// the agent.
    pub stopped: usize,
    pub agent: usize,
    /// Number of pages that it has yet to examine.
    pub left: u32,
}

/// The lock of a memory map (`seam/map_lock.rs`). A thread may hold it for seconds.
#[derive(Clone, Debug, Default)]
pub struct MapLock {
    pub held: bool,
    /// Time of its release, once that is drawn.
    pub until: Option<Moment>,
    /// Whether the pager has found it held.
    pub found: bool,
    /// Calls of the pager that take effect when it is free again.
    pub late: Vec<LateCall>,
}

#[derive(Clone, Copy, Debug)]
pub enum LateCall {
    Register { start: u64, end: u64 },
    Protect { start: u64, end: u64, protect: bool },
}

#[derive(Debug)]
pub struct Space {
    pub pid: u32,
    pub alive: bool,
    pub stopped: bool,
    pub tracer: Option<Tracer>,
    /// Whether no process may open it any more.
    pub hidden: bool,
    /// Whether the pager knows of its end.
    pub hung_up: bool,
    pub pages: BTreeMap<u64, Page>,
    pub areas: BTreeMap<u64, Area>,
    /// Ranges unmapped lately, where the next areas may lie.
    pub freed: Vec<(u64, u64)>,
    pub guards: BTreeSet<u64>,
    /// Guards at pages that a thread waits for.
    pub raced: BTreeSet<u64>,
    pub pinned: BTreeSet<u64>,
    pub locked: BTreeSet<u64>,
    pub poisoned: BTreeSet<u64>,
    /// Stamps that the program wrote last; absent for zeros.
    pub truth: BTreeMap<u64, u64>,
    /// Pages that a discard is dropping, or was at the fork. Zeros are also valid.
    pub loose: BTreeSet<u64>,
    /// Pages written after the message of a discard was read and before it drops them. If such a
    /// page moves out meanwhile, it stays, as if written after the discard.
    pub late: BTreeSet<u64>,
    pub touches: Vec<Touch>,
    pub changes: VecDeque<Change>,
    /// Number of changes under way (KERNEL-2).
    pub changing: u32,
    pub threads: Vec<Thread>,
    pub agent: Agent,
    pub agent_doing: Doing,
    pub told: bool,
    /// Whether the agent gets no CPU.
    pub lacks_cpu: bool,
    pub map_lock: MapLock,
    pub shared: Option<Arc<super::fakes::SharedMemory>>,
    pub pool_pages: u64,
    /// Parent of the fork.
    pub parent: Option<Id>,
    /// Whether it sent a change before the pager served it.
    pub early: bool,
    /// Content of areas that the fork did not pass on, and that the parent changed before the pager
    /// could ask. If the pager cannot ask the child either, the child may have this content
    /// (docs/limits.md).
    pub spared: BTreeMap<u64, u64>,
    /// Progress of its agent in joining.
    pub joining: Joining,
    /// Shared memory of its nearest ancestor with an agent.
    pub table: Option<Arc<super::fakes::SharedMemory>>,
    /// Whether it runs, because the message of the parent's fork was read.
    pub born: bool,
    /// Number of the address space in the pager, once it has one.
    pub mm: Option<u32>,
}

/// State of the simulated kernel.
#[derive(Debug)]
pub struct World {
    pub rng: Rng,
    pub spaces: Vec<Space>,
    pub connections: Vec<Connection>,
    /// Connections that are not accepted yet.
    pub knocking: Vec<usize>,
    pub stamps: u64,
    pub threads: u32,
    /// Contents of identity pages, by their stamps.
    pub tokens: BTreeMap<u64, Box<[u8; 4096]>>,
    /// The first failure.
    pub failure: Option<String>,
    pub said: Vec<String>,
    pub killed: bool,
    /// Whether no thread of the pager is in the middle of an operation.
    pub calm: bool,
    /// Number of identities requested. They are numbered here.
    pub identities_asked: u128,
    /// Number of requests for all processes; `opened` lists the processes inspected.
    pub trees_asked: u64,
    /// Number of walks over the memory of a process.
    pub walks: u64,
    pub opened: Vec<u32>,
    /// Number of calls in a thousand that fail for an unrelated reason.
    pub trouble: u64,
    /// Whether a thread holds the lock of its memory map now and then.
    pub locks: bool,
    /// Time for which the threads of the pager have waited for a CPU, in nanoseconds.
    pub waited_ns: u64,
    /// Whether agents may be stopped between a move and its report.
    pub splits: bool,
    /// Whether programs have executable areas, and whether the kernel lets the pool have some.
    pub executables: Option<bool>,
    /// Number of pages moved out of executable areas.
    pub executables_moved: u64,
    /// Number of changes of rights, for chance.
    pub rights_set: u64,
    /// Log of events, for a failing seed.
    pub log: Option<Vec<String>>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            spaces: Vec::new(),
            connections: Vec::new(),
            knocking: Vec::new(),
            stamps: 0,
            threads: 100,
            tokens: BTreeMap::new(),
            failure: None,
            said: Vec::new(),
            killed: false,
            calm: true,
            identities_asked: 0,
            trees_asked: 0,
            walks: 0,
            opened: Vec::new(),
            trouble: 0,
            locks: false,
            waited_ns: 0,
            splits: false,
            executables: None,
            executables_moved: 0,
            rights_set: 0,
            log: None,
        }
    }

    pub fn fail(&mut self, text: String) {
        self.note(|| format!("FAILED: {text}"));
        self.failure.get_or_insert(text);
    }

    pub fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(text());
        }
    }

    pub fn new_stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// Stores a page that no program wrote. Returns its stamp.
    pub fn keep_token(&mut self, page: &[u8; 4096]) -> u64 {
        let stamp = self.new_stamp();
        self.tokens.insert(stamp, Box::new(*page));
        stamp
    }

    pub fn new_thread(&mut self) -> Thread {
        self.threads += 1;
        Thread { id: self.threads, doing: Doing::Nothing, cursor: 0 }
    }

    /// Whether memory that cannot be given back leaves too little for the others. A run may then
    /// end as out of memory.
    pub fn is_stuck_full(&self, limit: u64) -> bool {
        let fixed = |space: &Space| match space.agent {
            _ if space.is_stopped() => space.resident(),
            Agent::Absent => space.resident(),
            _ => (space.pinned.len() + space.locked.len()) as u64,
        };
        let fixed: u64 = self.spaces.iter().filter(|space| space.alive).map(fixed).sum();
        fixed > limit / 2
    }

    /// Describes the memory of each address space.
    pub fn held(&self) -> String {
        let of = |(id, space): (usize, &Space)| {
            let count = |which: &dyn Fn(&u64, &Page) -> bool| {
                space.pages.iter().filter(|&(at, page)| !page.zero && which(at, page)).count()
            };
            let (own, shared) =
                (count(&|_, page| page.is_exclusive()), count(&|_, page| !page.is_exclusive()));
            let (pool, fixed) =
                (count(&|&at, _| at >= POOL), space.pinned.len() + space.locked.len());
            let (agent, doing, stopped) = (space.agent, space.agent_doing, space.stopped);
            format!(
                "{id}: {own} pages of its own, {shared} shared, {pool} in the pool, {fixed} fixed, agent {agent:?} \
                 {doing:?}, stopped {stopped}"
            )
        };
        let alive = self.spaces.iter().enumerate().filter(|(_, space)| space.alive);
        alive.map(of).collect::<Vec<_>>().join("; ")
    }

    fn draw_trouble(&mut self) -> bool {
        let trouble = self.trouble;
        self.rng.below(1000) < trouble
    }

    /// Checks whether pages may be placed in an address space.
    fn may_place(&mut self, id: Id) -> Result<(), PlaceError> {
        if !self.spaces[id].alive {
            return Err(PlaceError::Dead);
        }
        if self.spaces[id].changing > 0 {
            return Err(PlaceError::Changing);
        }
        Ok(())
    }

    pub fn copy(&mut self, id: Id, page: u64, stamps: &[u64]) -> Result<(), (u64, PlaceError)> {
        self.may_place(id).map_err(|error| (0, error))?;
        if self.draw_trouble() {
            return Err((0, PlaceError::NoMemory));
        }
        let space = &mut self.spaces[id];
        let end = space.area_of(page).filter(|area| area.1.registered).map_or(0, |area| area.1.end);
        if page + stamps.len() as u64 > end {
            return Err((0, PlaceError::Gone));
        }
        let mut placed = 0;
        let mut replaced = None;
        for (at, &stamp) in (page..).zip(stamps) {
            if space.pages.contains_key(&at) {
                break;
            }
            if space.guards.remove(&at) && !space.raced.remove(&at) {
                replaced = Some(at);
            }
            space.pages.insert(at, Page::new(stamp));
            placed += 1;
        }
        self.note(|| format!("copy {id}: {page:x}+{placed} {stamps:?}"));
        if let Some(at) = replaced {
            self.fail(format!("page {at:x} of {id} is put over a guard"));
        }
        match placed {
            0 => Err((0, PlaceError::Exists)),
            some if some < stamps.len() as u64 => Err((some * 4096, PlaceError::Changing)),
            _ => Ok(()),
        }
    }

    pub fn set_protection(
        &mut self,
        id: Id,
        (start, end): (u64, u64),
        protect: bool,
    ) -> Result<(), PlaceError> {
        self.may_place(id)?;
        let space = &mut self.spaces[id];
        let touched = space.areas_in(start, end);
        if touched.iter().all(|&(_, area)| !area.registered) {
            return Err(PlaceError::Gone);
        }
        for (_, page) in space.pages.range_mut(start..end) {
            page.protected = protect;
        }
        self.note(|| format!("protect {id}: {start:x}..{end:x} {protect}"));
        Ok(())
    }

    /// Whether the lock of the memory map is held. Then the call `late` of the pager takes effect
    /// later, and the process counts as stuck.
    pub fn is_locked(&mut self, id: Id, late: Option<LateCall>) -> bool {
        let space = &mut self.spaces[id];
        let held = space.alive && space.map_lock.held;
        if held {
            let is_first = !std::mem::replace(&mut space.map_lock.found, true);
            space.map_lock.late.extend(late.filter(|_| is_first));
            self.note(|| format!("locked {id}: {late:?}"));
        }
        held
    }

    /// Releases the lock of the memory map.
    pub fn release(&mut self, id: Id) {
        for late in std::mem::take(&mut self.spaces[id].map_lock).late {
            match late {
                LateCall::Register { start, end } => {
                    self.register(id, (start, end));
                }
                // The range may be unmapped by now.
                LateCall::Protect { start, end, protect } => {
                    let _ = self.set_protection(id, (start, end), protect);
                }
            }
        }
    }

    pub fn poison(&mut self, id: Id, page: u64) -> Result<(), PlaceError> {
        self.may_place(id)?;
        let space = &mut self.spaces[id];
        if space.area_of(page).is_none_or(|area| !area.1.registered) {
            return Err(PlaceError::Gone);
        }
        if space.pages.contains_key(&page) {
            return Err(PlaceError::Exists);
        }
        space.poisoned.insert(page);
        space.wake(page, page + 1);
        Ok(())
    }

    pub fn register(&mut self, id: Id, (start, end): (u64, u64)) -> bool {
        let space = &mut self.spaces[id];
        if !space.alive || space.areas_in(start, end).is_empty() {
            return false;
        }
        space.split(start);
        space.split(end);
        for (_, area) in space.areas.range_mut(start..end) {
            area.registered = true;
        }
        self.note(|| format!("register {id}: {start:x}..{end:x}"));
        true
    }

    /// Moves a page. Returns 0 or an errno.
    pub fn move_page(&mut self, id: Id, to: u64, from: u64) -> i32 {
        const EAGAIN: i32 = 11;
        const ENOENT: i32 = 2;
        const EBUSY: i32 = 16;
        const EEXIST: i32 = 17;
        const EINVAL: i32 = 22;
        if self.spaces[id].changing > 0 || self.draw_trouble() {
            return EAGAIN;
        }
        let space = &mut self.spaces[id];
        let Some((_, area)) = space.area_of(from) else { return EINVAL };
        let is_alike =
            space.area_of(to).is_some_and(|(_, pool)| pool.executable == area.executable);
        if !is_alike || space.locked.contains(&from) {
            return EINVAL;
        }
        let Some(page) = space.pages.get(&from) else { return ENOENT };
        if space.pages.contains_key(&to) {
            return EEXIST;
        }
        if !page.is_exclusive() || space.pinned.contains(&from) {
            return EBUSY;
        }
        let mut page = space.pages.remove(&from).expect("it is there");
        page.protected = false;
        let stamp = page.stamp;
        space.pages.insert(to, page);
        self.executables_moved += u64::from(area.executable);
        self.note(|| format!("move {id}: {from:x} -> {to:x} ({stamp})"));
        if self.draw_trouble() { EEXIST } else { 0 }
    }
}

/// Programs with areas that are writable and executable. No number is drawn for them, so that the
/// other events of a seed stay as they are.
impl World {
    /// Whether a program maps an executable area at this page.
    pub fn maps_executable(&self, start: u64) -> bool {
        self.executables.is_some() && mix(start).is_multiple_of(3)
    }

    /// Sets the rights of a part of the pool. Returns 0 or an errno.
    pub fn set_rights(&mut self, id: Id, (start, end): (u64, u64), executable: bool) -> i32 {
        const EACCES: i32 = 13;
        const ENOMEM: i32 = 12;
        self.rights_set += 1;
        if mix(self.rights_set).is_multiple_of(16) {
            return ENOMEM;
        }
        if executable && self.executables != Some(true) {
            return EACCES;
        }
        let space = &mut self.spaces[id];
        space.split(start);
        space.split(end);
        for (_, area) in space.areas.range_mut(start..end) {
            area.executable = executable;
        }
        self.note(|| format!("rights {id}: {start:x}..{end:x} {executable}"));
        0
    }

    /// Changes the rights of an area of the program now and then, without a message.
    pub fn flip_rights(&mut self, id: Id) {
        if self.executables.is_none() {
            return;
        }
        self.rights_set += 1;
        let draw = mix(self.rights_set);
        let areas = self.spaces[id].areas.range_mut(..POOL);
        if draw.is_multiple_of(8)
            && let Some((_, area)) = areas.into_iter().nth((draw >> 32) as usize % 4)
        {
            area.executable = !area.executable;
        }
    }
}

impl Space {
    /// Whether a signal or a tracer has stopped it.
    pub fn is_stopped(&self) -> bool {
        self.stopped || self.tracer.is_some_and(|tracer| self.is_traced_whole(tracer))
    }

    /// Whether the tracer has stopped all other threads and the agent.
    pub fn is_traced_whole(&self, tracer: Tracer) -> bool {
        tracer.stopped == self.threads.len()
    }

    /// Whether a thread goes on. A traced thread does not go on in user space. The tracer waits for
    /// each thread that it stops in a call.
    pub fn lets(&self, thread: &Thread) -> bool {
        let in_call =
            |thread: &Thread| matches!(thread.doing, Doing::Call { .. } | Doing::Zap { .. });
        let Some(tracer) = self.tracer else { return true };
        if tracer.thread == thread.id {
            let agent = tracer.agent < tracer.stopped && self.is_agent_in_call();
            let waits_for = |other: &Thread| self.has_stopped(tracer, other.id) && in_call(other);
            return !agent && !self.others(tracer).any(waits_for);
        }
        in_call(thread) || !self.has_stopped(tracer, thread.id)
    }

    /// Stops the next thread. The signal interrupts a thread that waits for a page.
    pub fn stop_next(&mut self, tracer: Tracer) {
        self.tracer = Some(Tracer { stopped: tracer.stopped + 1, ..tracer });
        let (touches, threads) = (&mut self.touches, &mut self.threads);
        let others = threads.iter_mut().filter(|thread| thread.id != tracer.thread);
        let mut order: Vec<Option<&mut Thread>> = others.map(Some).collect();
        order.insert(tracer.agent.min(order.len()), None);
        let next = order.into_iter().nth(tracer.stopped).flatten();
        let Some(thread) = next else { return };
        if let Doing::Wait { page, write } = thread.doing {
            touches.retain(|touch| touch.thread != thread.id);
            thread.doing = Doing::Touch { page, write };
        }
    }

    /// Whether the thread with this index traces the others.
    pub fn is_tracer(&self, at: usize) -> bool {
        self.tracer.is_some_and(|tracer| tracer.thread == self.threads[at].id)
    }

    fn others(&self, tracer: Tracer) -> impl Iterator<Item = &Thread> {
        self.threads.iter().filter(move |thread| thread.id != tracer.thread)
    }

    fn has_stopped(&self, tracer: Tracer, thread: u32) -> bool {
        let at = self.others(tracer).position(|other| other.id == thread);
        at.is_some_and(|at| at + usize::from(tracer.agent <= at) < tracer.stopped)
    }

    /// Whether the agent goes on.
    pub fn lets_agent(&self) -> bool {
        let stands =
            matches!(self.agent_doing, Doing::Wait { .. } | Doing::Call { told: Told::No, .. });
        let traced = self.tracer.is_some_and(|tracer| tracer.agent < tracer.stopped);
        self.alive && !self.stopped && !stands && (!traced || self.is_agent_in_call())
    }

    fn is_agent_in_call(&self) -> bool {
        !matches!(self.agent_doing, Doing::Nothing | Doing::Moved { .. })
    }

    /// Returns the area of a page.
    pub fn area_of(&self, page: u64) -> Option<(u64, Area)> {
        let (&start, &area) = self.areas.range(..=page).next_back()?;
        (page < area.end).then_some((start, area))
    }

    /// Returns the areas that overlap `[start, end)`.
    pub fn areas_in(&self, start: u64, end: u64) -> Vec<(u64, Area)> {
        let all = self.areas.range(..end).map(|(&from, &area)| (from, area));
        all.filter(|&(_, area)| area.end > start).collect()
    }

    /// Splits the area of `page` there.
    pub fn split(&mut self, page: u64) {
        if let Some((start, area)) = self.area_of(page)
            && start < page
        {
            self.areas.insert(start, Area { end: page, ..area });
            self.areas.insert(page, area);
        }
    }

    /// Wakes the threads that wait in `[start, end)`.
    pub fn wake(&mut self, start: u64, end: u64) {
        let doing = self.threads.iter_mut().map(|thread| &mut thread.doing);
        for doing in doing.chain([&mut self.agent_doing]) {
            if let Doing::Wait { page, write } = *doing
                && (start..end).contains(&page)
            {
                *doing = Doing::Touch { page, write };
            }
        }
        // The unread message of a woken thread is gone.
        self.touches.retain(|touch| !(start..end).contains(&touch.page));
    }

    /// Drops the pages of `[start, end)`.
    pub fn drop_pages(&mut self, start: u64, end: u64) {
        let gone: Vec<u64> = self.pages.range(start..end).map(|(&page, _)| page).collect();
        gone.iter().for_each(|page| {
            self.pages.remove(page);
        });
        for set in [&mut self.pinned, &mut self.locked, &mut self.poisoned] {
            set.retain(|page| !(start..end).contains(page));
        }
    }

    /// Sets the content of `[start, end)` to zeros.
    pub fn clear(&mut self, start: u64, end: u64) {
        self.truth.retain(|page, _| !(start..end).contains(page));
        self.spared.retain(|page, _| !(start..end).contains(page));
        self.loose.retain(|page| !(start..end).contains(page));
        self.late.retain(|page| !(start..end).contains(page));
    }

    /// Drops the pages of a discard that are still there.
    pub fn zap(&mut self, start: u64, end: u64) {
        let missed = |page: &u64| !self.pages.contains_key(page);
        let missed: Vec<u64> = self.late.range(start..end).copied().filter(missed).collect();
        let stamps = missed.iter().filter_map(|page| Some((*page, *self.truth.get(page)?)));
        let stamps: Vec<(u64, u64)> = stamps.collect();
        self.drop_pages(start, end);
        self.clear(start, end);
        for (page, stamp) in stamps {
            self.truth.insert(page, stamp);
            self.loose.insert(page);
        }
    }

    /// Whether the message of a discard of the page was read, and the discard has yet to drop it.
    pub fn is_late(&self, page: u64) -> bool {
        let drops = |doing: &Doing| match *doing {
            Doing::Zap { start, end } => (start..end).contains(&page),
            _ => false,
        };
        self.threads.iter().any(|thread| drops(&thread.doing)) || drops(&self.agent_doing)
    }

    /// Whether the program may read this stamp in a page.
    pub fn allows(&self, page: u64, stamp: u64) -> bool {
        let due = self.truth.get(&page).copied().unwrap_or(0);
        stamp == due
            || stamp == 0 && self.loose.contains(&page)
            || self.is_spared(page) && self.spared[&page] == stamp
    }

    /// Whether the page may be there though the fork did not pass it on.
    pub fn is_spared(&self, page: u64) -> bool {
        (self.hidden || self.early) && self.spared.contains_key(&page)
    }

    /// Unmaps `[start, end)`.
    pub fn unmap(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        self.drop_pages(start, end);
        self.clear(start, end);
        self.drop_guards(start, end);
        self.areas.retain(|from, _| !(start..end).contains(from));
        self.freed.push((start, end));
        if self.freed.len() > 4 {
            self.freed.remove(0);
        }
    }

    /// Removes the guards of a range together with its memory.
    pub fn drop_guards(&mut self, start: u64, end: u64) {
        for set in [&mut self.guards, &mut self.raced] {
            set.retain(|page| !(start..end).contains(page));
        }
    }

    /// Returns the number of resident pages, without the kernel's zero page.
    pub fn resident(&self) -> u64 {
        self.pages.values().filter(|page| !page.zero).count() as u64
    }
}
