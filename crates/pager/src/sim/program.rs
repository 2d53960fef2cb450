//! Programs of the simulation: next steps of their threads and agents.
//!
//! A thread accesses, maps, unmaps, moves, discards and forks at random, and checks every page that
//! it reads. An agent carries out its batch, one operation at a time.

use super::fakes::SharedMemory;
use super::world::{
    Agent, Area, Change, Connection, Doing, Id, Joining, MapLock, OnFork, POOL, Page, Space,
    Thread, Told, Touch, Tracer, World,
};
use ebb_agent::protocol::{
    ASK_JOIN, ASK_MANAGE, CALL_ANSWERED, CALL_FREE, CALL_MADE, Call, DONE, DOORBELLS, HELLO_FORKED,
    HELLO_START, OP_DROP, OP_MOVE, OP_SET_RIGHTS, OP_UNSHARE, POSTED, RUNNING, State,
};
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of live processes.
const PROCESSES_MAX: usize = 5;
/// Maximum number of areas of a process.
const AREAS_MAX: usize = 12;
const THREADS_MAX: usize = 3;
const EBUSY: i32 = 16;

/// Weights of the operations.
#[derive(Clone, Debug)]
pub struct Mix {
    pub touch: u64,
    pub pass: u64,
    pub discard: u64,
    pub map: u64,
    pub unmap: u64,
    pub replace: u64,
    pub remap: u64,
    pub fork: u64,
    pub exit: u64,
    pub thread: u64,
    pub pin: u64,
    pub stop: u64,
    pub free: u64,
    pub hide: u64,
    pub trace: u64,
    /// Percentage of forks whose child never says hello.
    pub raw: u64,
    /// Number of pages that the first process maps.
    pub footprint: u64,
    /// Maximum number of pages that all processes together may map.
    pub footprint_max: u64,
}

/// Whether a call slot is free.
fn is_free(call: &Call) -> bool {
    State(call.state.load(Relaxed)).stage() == CALL_FREE
}

/// Makes a call in a free slot. Returns its state word.
fn make(call: &Call) -> State {
    let made = State(call.state.load(Relaxed)).taken().at(CALL_MADE);
    call.state.store(made.0, Relaxed);
    made
}

impl World {
    /// Creates the first process, with its memory mapped and unused.
    pub fn begin(&mut self, pool_pages: u64, mix: &Mix) {
        let thread = self.new_thread();
        let mut space = Space {
            pid: 0x7000_0000,
            alive: true,
            stopped: false,
            tracer: None,
            hidden: false,
            hung_up: false,
            pages: Default::default(),
            areas: Default::default(),
            freed: Vec::new(),
            guards: Default::default(),
            raced: Default::default(),
            pinned: Default::default(),
            locked: Default::default(),
            poisoned: Default::default(),
            truth: Default::default(),
            loose: Default::default(),
            late: Default::default(),
            touches: Vec::new(),
            changes: Default::default(),
            changing: 0,
            threads: vec![thread],
            agent: Agent::Starting,
            agent_doing: Doing::Nothing,
            told: false,
            lacks_cpu: false,
            map_lock: MapLock::default(),
            shared: None,
            pool_pages,
            parent: None,
            early: false,
            spared: Default::default(),
            joining: Joining::Begins,
            table: None,
            born: true,
            mm: None,
        };
        let (end, on_fork) = (POOL + pool_pages, OnFork::Copy);
        let area = Area { end, registered: true, on_fork, executable: false };
        space.areas.insert(POOL, area);
        let (mut at, mut left) = (0x1000, mix.footprint);
        while left > 0 {
            let pages = left.min(self.rng.between(8, 200));
            let executable = self.maps_executable(at);
            let (end, on_fork) = (at + pages, OnFork::Copy);
            let area = Area { end, registered: false, on_fork, executable };
            space.areas.insert(at, area);
            at += pages + 16;
            left -= pages;
        }
        // Most of the available memory is in use from the start.
        let mapped: Vec<u64> =
            space.areas.range(..POOL).flat_map(|(&start, area)| start..area.end).collect();
        for &page in mapped.iter().take(pool_pages as usize * 95 / 100) {
            let stamp = self.new_stamp();
            space.pages.insert(page, Page::new(stamp));
            space.truth.insert(page, stamp);
        }
        self.spaces.push(space);
    }

    /// Returns the threads that can go on.
    pub fn runnable(&self) -> Vec<(Id, usize)> {
        let mut found = Vec::new();
        for (id, space) in self.spaces.iter().enumerate() {
            // The first program begins after the hello of its agent.
            let begun = id > 0 || space.shared.is_some();
            if !space.alive || space.stopped || !space.born || !begun {
                continue;
            }
            let goes_on = |thread: &Thread| {
                space.lets(thread)
                    && !matches!(
                        thread.doing,
                        Doing::Wait { .. } | Doing::Call { told: Told::No, .. }
                    )
            };
            let threads = space.threads.iter().enumerate();
            found.extend(threads.filter(|(_, thread)| goes_on(thread)).map(|(at, _)| (id, at)));
        }
        found
    }

    /// Runs a step of a thread. `active`: idle threads begin new operations.
    pub fn step_thread(&mut self, (id, at): (Id, usize), mix: &Mix, active: bool) {
        match self.spaces[id].threads[at].doing {
            Doing::Nothing if self.spaces[id].is_tracer(at) => self.look_on(id, at, active),
            Doing::Nothing if active => {
                self.begin_operation(id, at, mix);
                let thread = self.spaces[id].threads.get(at);
                if thread.is_some_and(|thread| matches!(thread.doing, Doing::Touch { .. })) {
                    self.step_thread((id, at), mix, active);
                }
            }
            Doing::Nothing
            | Doing::Wait { .. }
            | Doing::Call { told: Told::No, .. }
            | Doing::Moved { .. } => {}
            Doing::Touch { page, write } => {
                let thread = self.spaces[id].threads[at].id;
                let doing = self.touch(id, thread, page, write);
                self.spaces[id].threads[at].doing = doing;
            }
            Doing::Call { change, told: Told::Read } => {
                let doing = self.go_on(id, change);
                self.spaces[id].threads[at].doing = doing;
            }
            Doing::Zap { start, end } => {
                self.zap(id, start, end);
                let space = &mut self.spaces[id];
                let doorbells = POOL + space.pool_pages - DOORBELLS as u64;
                let doing = match (start.checked_sub(doorbells), &space.shared) {
                    (Some(doorbell), Some(shared)) if doorbell < DOORBELLS as u64 => {
                        let doorbell = doorbell as usize;
                        let state = shared.get().calls[doorbell].state.load(Relaxed);
                        Doing::Announced { doorbell, made: State(state).at(CALL_MADE) }
                    }
                    _ => Doing::Nothing,
                };
                space.threads[at].doing = doing;
            }
            Doing::Announced { doorbell, made } => {
                let space = &mut self.spaces[id];
                let Some(shared) = &space.shared else { return };
                let state = &shared.get().calls[doorbell].state;
                let now = State(state.load(Relaxed));
                let is_own = now.at(CALL_MADE) == made && now.stage() != CALL_FREE;
                if is_own && now.stage() == CALL_ANSWERED {
                    state.store(now.at(CALL_FREE).0, Relaxed);
                }
                if !is_own || now.stage() == CALL_ANSWERED {
                    space.threads[at].doing = Doing::Nothing;
                }
            }
        }
    }

    /// Continues a thread whose change was read.
    fn go_on(&mut self, id: Id, change: Change) -> Doing {
        self.spaces[id].changing -= 1;
        match change {
            Change::Remove { start, end } => Doing::Zap { start, end },
            Change::Fork { child } => {
                self.spaces[child].born = true;
                Doing::Nothing
            }
            Change::Unmap { .. } | Change::Remap { .. } => Doing::Nothing,
        }
    }

    fn zap(&mut self, id: Id, start: u64, end: u64) {
        self.note(|| format!("zap {id}: {start:x}..{end:x}"));
        let space = &mut self.spaces[id];
        if start < POOL {
            space.zap(start, end);
        } else {
            space.drop_pages(start, end);
        }
    }

    /// Accesses a page, as the processor and the kernel do.
    fn touch(&mut self, id: Id, thread: u32, page: u64, write: bool) -> Doing {
        let stamp = if write { self.new_stamp() } else { 0 };
        let space = &mut self.spaces[id];
        let Some((_, area)) = space.area_of(page) else { return Doing::Nothing };
        if space.guards.contains(&page) {
            return Doing::Nothing;
        }
        if space.poisoned.contains(&page) && space.hidden {
            // The program would die, and the pager cannot restore a page that it cannot inspect.
            return Doing::Nothing;
        }
        if space.poisoned.contains(&page) {
            self.fail(format!("page {page:x} of {id} is lost"));
            return Doing::Nothing;
        }
        let Some(there) = space.pages.get_mut(&page) else {
            if area.registered {
                space.touches.push(Touch { page, write, protected: false, thread });
                return Doing::Wait { page, write };
            }
            let mut fresh = Page::new(stamp);
            fresh.zero = !write;
            space.pages.insert(page, fresh);
            return self.touched(id, page, 0, write.then_some(stamp));
        };
        if write && there.protected && area.registered {
            space.touches.push(Touch { page, write, protected: true, thread });
            return Doing::Wait { page, write };
        }
        let found = there.stamp;
        if write {
            // The kernel copies shared pages and the zero page.
            *there = if there.is_exclusive() && !there.zero {
                Page { stamp, ..there.clone_exclusive() }
            } else {
                Page::new(stamp)
            };
        }
        self.touched(id, page, found, write.then_some(stamp))
    }

    /// Checks the stamp `found` in a page, and records a written `stamp`.
    fn touched(&mut self, id: Id, page: u64, found: u64, stamp: Option<u64>) -> Doing {
        let space = &mut self.spaces[id];
        let due = space.truth.get(&page).copied().unwrap_or(0);
        if !space.allows(page, found) {
            self.fail(format!("wrong bytes: page {page:x} of {id} holds {found}, not {due}"));
        } else if let Some(stamp) = stamp {
            space.truth.insert(page, stamp);
            space.spared.remove(&page);
            if space.is_late(page) {
                space.late.insert(page);
            }
            if space.drops(page, page + 1) {
                space.loose.insert(page);
            } else {
                space.loose.remove(&page);
            }
            self.note(|| format!("write {id}: {page:x} = {stamp}"));
        }
        Doing::Nothing
    }

    fn begin_operation(&mut self, id: Id, at: usize, mix: &Mix) {
        let weights = [
            mix.touch,
            mix.pass,
            mix.discard,
            mix.map,
            mix.unmap,
            mix.remap,
            mix.fork,
            mix.exit,
            mix.thread,
            mix.pin,
            mix.stop,
            mix.free,
            mix.replace,
            mix.hide,
            mix.trace,
        ];
        match self.rng.weighted(&weights) {
            0 => self.begin_touch(id, at, false),
            1 => self.begin_touch(id, at, true),
            2 => self.begin_discard(id, at),
            3 => self.begin_map(id, at, mix),
            4 => self.begin_unmap(id, at, false),
            5 => self.begin_remap(id, at),
            6 => self.begin_fork(id, at, mix),
            7 => self.exit(id),
            8 if self.spaces[id].threads.len() < THREADS_MAX => {
                let thread = self.new_thread();
                self.spaces[id].threads.push(thread);
            }
            9 => self.pin(id),
            10 => self.stop_or_go_on(),
            11 => self.guard_some(id),
            12 => self.begin_unmap(id, at, true),
            // Only an identified process. The others could not be told apart from their fork group.
            13 if self.spaces[id].shared.is_some() => self.spaces[id].hidden = true,
            14 if self.spaces[id].tracer.is_none() => self.begin_trace(id, at),
            _ => {}
        }
    }

    /// Draws a range within one of the program's areas, often where a thread waits for a page,
    /// because orders matter there.
    fn range(&mut self, id: Id, most: u64) -> Option<(u64, u64)> {
        if self.rng.once_in(2)
            && let Some(page) = self.waited_for(id)
        {
            let (start, end) =
                self.spaces[id].area_of(page).map(|(start, area)| (start, area.end))?;
            let from = page - self.rng.below(most.min(4).min(page - start + 1));
            let to = page + 1 + self.rng.below(4);
            return Some((from, to.min(end).min(from + most)));
        }
        let areas: Vec<(u64, u64)> =
            self.spaces[id].areas.range(..POOL).map(|(&start, area)| (start, area.end)).collect();
        let (start, end) = self.rng.pick(&areas)?;
        let from = self.rng.between(start, end);
        let pages = 1 + self.rng.below(most.min(end - from));
        Some((from, from + pages))
    }

    /// Returns a page that a thread waits for and that is still mapped, if there is one.
    fn waited_for(&mut self, id: Id) -> Option<u64> {
        let space = &self.spaces[id];
        let page = |thread: &super::world::Thread| match thread.doing {
            Doing::Wait { page, .. } if page < POOL && space.area_of(page).is_some() => Some(page),
            _ => None,
        };
        let pages: Vec<u64> = space.threads.iter().filter_map(page).collect();
        self.rng.pick(&pages)
    }

    fn begin_touch(&mut self, id: Id, at: usize, pass: bool) {
        let mut cursor = self.spaces[id].threads[at].cursor;
        let known = self.spaces[id].area_of(cursor).is_some_and(|(start, _)| start < POOL);
        if !pass || !known {
            let Some((page, _)) = self.range(id, 1) else { return };
            cursor = page;
        }
        let write = self.rng.below(10) < 4;
        let thread = &mut self.spaces[id].threads[at];
        thread.doing = Doing::Touch { page: cursor, write };
        thread.cursor = if pass { cursor + 1 } else { thread.cursor };
    }

    /// Begins a call that sends the pager a change.
    fn tell(&mut self, id: Id, at: Option<usize>, change: Change) {
        self.note(|| format!("tell {id}: {change:?}"));
        let space = &mut self.spaces[id];
        space.early |= space.mm.is_none();
        space.changing += 1;
        space.changes.push_back(change);
        let doing = Doing::Call { change, told: Told::No };
        match at {
            Some(at) => space.threads[at].doing = doing,
            None => space.agent_doing = doing,
        }
    }

    fn begin_discard(&mut self, id: Id, at: usize) {
        let Some((start, end)) = self.range(id, 40) else { return };
        let space = &mut self.spaces[id];
        if space.locked.range(start..end).next().is_some() {
            return;
        }
        if space.area_of(start).is_some_and(|(_, area)| area.registered) {
            space.loose.extend(start..end);
            self.tell(id, Some(at), Change::Remove { start, end });
        } else {
            self.zap(id, start, end);
        }
    }

    /// Returns a start for a new area: behind all others, or in a former area.
    fn place(&mut self, id: Id, pages: u64) -> u64 {
        let space = &self.spaces[id];
        let free = |at: u64| space.areas_in(at, at + pages).is_empty();
        let freed: Vec<u64> =
            space.freed.iter().map(|&(start, _)| start).filter(|&at| free(at)).collect();
        let last = space.areas.range(..POOL).map(|(_, area)| area.end).max().unwrap_or(0x1000);
        match self.rng.pick(&freed) {
            Some(at) if !self.rng.once_in(3) => at,
            _ => last + 16,
        }
    }

    fn begin_map(&mut self, id: Id, at: usize, mix: &Mix) {
        let mapped: u64 = self.spaces.iter().filter(|s| s.alive).map(Space::mapped).sum();
        if self.spaces[id].areas.len() > AREAS_MAX || mapped > mix.footprint_max {
            return;
        }
        let pages = self.rng.between(1, 100);
        let start = self.place(id, pages);
        let on_fork = match self.rng.below(10) {
            0 => OnFork::Wipe,
            1 => OnFork::Leave,
            _ => OnFork::Copy,
        };
        let (end, executable) = (start + pages, self.maps_executable(start));
        let area = Area { end, registered: false, on_fork, executable };
        self.note(|| format!("map {id}: {start:x}+{pages} {on_fork:?}"));
        // The agent does not announce the C library's own areas.
        let announced = self.rng.once_in(2);
        let space = &mut self.spaces[id];
        space.areas.insert(start, area);
        let Some(shared) = &space.shared else { return };
        if shared.get().managing.load(Relaxed) == 0 || on_fork != OnFork::Copy || !announced {
            return;
        }
        // As the agent does.
        let calls = &shared.get().calls;
        let Some(doorbell) = calls.iter().position(is_free) else { return };
        calls[doorbell].what.store(ASK_MANAGE, Relaxed);
        calls[doorbell].a.store(start << 12, Relaxed);
        calls[doorbell].b.store(pages << 12, Relaxed);
        make(&calls[doorbell]);
        let page = POOL + space.pool_pages - (DOORBELLS - doorbell) as u64;
        self.tell(id, Some(at), Change::Remove { start: page, end: page + 1 });
    }

    /// Begins an unmapping. `replace`: a new area at once takes the place of the old one
    /// (`MAP_FIXED`).
    fn begin_unmap(&mut self, id: Id, at: usize, replace: bool) {
        if self.spaces[id].areas.range(..POOL).count() < 2 {
            return;
        }
        let Some((start, end)) = self.range(id, 60) else { return };
        let space = &mut self.spaces[id];
        if space.drops(start, end) {
            return;
        }
        let registered = space.area_of(start).is_some_and(|(_, area)| area.registered);
        self.note(|| format!("unmap {id}: {start:x}..{end:x}"));
        self.spare(id, start, end);
        let executable = self.maps_executable(start);
        let space = &mut self.spaces[id];
        space.unmap(start, end);
        if replace {
            let area = Area { end, registered: false, on_fork: OnFork::Copy, executable };
            space.areas.insert(start, area);
        }
        if registered {
            self.tell(id, Some(at), Change::Unmap { start, end });
        }
    }

    /// Records the content of a changed range for children whose parent the pager has not asked
    /// yet.
    fn spare(&mut self, id: Id, start: u64, end: u64) {
        if self.spaces[id].area_of(start).is_none_or(|(_, area)| area.on_fork == OnFork::Copy) {
            return;
        }
        let held: Vec<(u64, u64)> =
            self.spaces[id].truth.range(start..end).map(|(&page, &stamp)| (page, stamp)).collect();
        let starting = self.spaces.iter_mut().filter(|space| space.parent == Some(id));
        starting
            .filter(|child| child.mm.is_none())
            .for_each(|child| child.spared.extend(held.iter().copied()));
    }

    fn begin_remap(&mut self, id: Id, at: usize) {
        let Some((from, end)) = self.range(id, 60) else { return };
        let pages = end - from;
        let to = self.place(id, pages);
        let space = &mut self.spaces[id];
        let busy = space
            .threads
            .iter()
            .any(|thread| matches!(thread.doing, Doing::Call { .. } | Doing::Zap { .. }));
        // The thread of a discard under way would later drop the moved pages.
        if busy || !space.areas_in(to, to + pages).is_empty() {
            return;
        }
        self.spare(id, from, end);
        let space = &mut self.spaces[id];
        space.split(from);
        space.split(end);
        let area = space.areas.remove(&from).expect("split there");
        space.areas.insert(to, Area { end: to + pages, ..area });
        for page in from..end {
            let new = page - from + to;
            if let Some(there) = space.pages.remove(&page) {
                space.pages.insert(new, there);
            }
            if let Some(stamp) = space.truth.remove(&page) {
                space.truth.insert(new, stamp);
            }
            for set in [
                &mut space.loose,
                &mut space.late,
                &mut space.pinned,
                &mut space.locked,
                &mut space.guards,
                &mut space.raced,
                &mut space.poisoned,
            ] {
                if set.remove(&page) {
                    set.insert(new);
                }
            }
        }
        space.freed.push((from, end));
        if area.registered {
            self.tell(id, Some(at), Change::Remap { from, to, pages });
        }
    }

    pub fn begin_fork(&mut self, id: Id, at: usize, mix: &Mix) {
        if self.spaces.iter().filter(|space| space.alive).count() >= PROCESSES_MAX {
            return;
        }
        let raw = self.rng.below(100) < mix.raw;
        let child = self.spaces.len();
        let thread = self.new_thread();
        let space = &self.spaces[id];
        let mut copy = Space {
            pid: 0x7000_0000 + child as u32,
            threads: vec![thread],
            pages: space.pages.clone(),
            areas: space.areas.clone(),
            freed: Vec::new(),
            guards: space.guards.clone(),
            truth: space.truth.clone(),
            loose: space.loose.clone(),
            late: space.late.clone(),
            poisoned: space.poisoned.clone(),
            raced: space.raced.clone(),
            pinned: Default::default(),
            locked: Default::default(),
            touches: Vec::new(),
            changes: Default::default(),
            changing: 0,
            agent: Agent::Absent,
            agent_doing: Doing::Nothing,
            told: false,
            lacks_cpu: false,
            map_lock: MapLock::default(),
            shared: None,
            alive: true,
            stopped: false,
            tracer: None,
            hidden: space.hidden,
            hung_up: false,
            pool_pages: space.pool_pages,
            parent: Some(id),
            early: false,
            spared: space.spared.clone(),
            joining: if raw { Joining::Never } else { Joining::Begins },
            table: space.shared.clone().or_else(|| space.table.clone()),
            born: false,
            mm: None,
        };
        for (start, area) in space.areas.clone() {
            match area.on_fork {
                OnFork::Copy => {}
                OnFork::Wipe => {
                    copy.drop_pages(start, area.end);
                    copy.drop_guards(start, area.end);
                    copy.clear(start, area.end);
                }
                OnFork::Leave => {
                    copy.unmap(start, area.end);
                }
            }
        }
        self.spaces.push(copy);
        // The message comes regardless of other areas, because the pool is always registered.
        self.tell(id, Some(at), Change::Fork { child });
    }

    fn exit(&mut self, id: Id) {
        let others = self.spaces.iter().filter(|space| space.alive && space.born).count() > 1;
        if others {
            self.end(id);
        }
    }

    /// Ends a process, whatever it is doing (KERNEL-8).
    pub(super) fn end(&mut self, id: Id) {
        self.note(|| format!("exit {id}"));
        // The pager cannot ask for its areas any more, either.
        let ranges: Vec<(u64, u64)> =
            self.spaces[id].areas.iter().map(|(&start, area)| (start, area.end)).collect();
        ranges.into_iter().for_each(|(start, end)| self.spare(id, start, end));
        let space = &mut self.spaces[id];
        space.alive = false;
        space.pages.clear();
        space.touches.clear();
        space.changes.clear();
        space.agent = Agent::Absent;
        for thread in std::mem::take(&mut space.threads) {
            if let Doing::Call { change: Change::Fork { child }, .. } = thread.doing {
                self.end(child);
            }
        }
    }

    /// Pins pages as for a device, or locks them, or releases all of those.
    fn pin(&mut self, id: Id) {
        let locks = self.rng.once_in(2);
        let held = |space: &mut Space| match locks {
            true => std::mem::take(&mut space.locked),
            false => std::mem::take(&mut space.pinned),
        };
        if !held(&mut self.spaces[id]).is_empty() {
            return;
        }
        let Some((start, end)) = self.range(id, 8) else { return };
        let space = &mut self.spaces[id];
        let there: Vec<u64> = space.pages.range(start..end).map(|(&page, _)| page).collect();
        if locks { &mut space.locked } else { &mut space.pinned }.extend(there);
    }

    fn stop_or_go_on(&mut self) {
        let alive: Vec<Id> = (0..self.spaces.len()).filter(|&id| self.spaces[id].alive).collect();
        if alive.len() < 2 {
            return;
        }
        if let Some(id) = self.rng.pick(&alive[1..]) {
            self.spaces[id].stopped ^= true;
        }
    }

    /// Begins to trace: the thread stops all others, and the agent.
    fn begin_trace(&mut self, id: Id, at: usize) {
        let left = self.rng.between(4, 60) as u32;
        let agent = self.rng.below(self.spaces[id].threads.len() as u64) as usize;
        let tracer = Tracer { thread: self.spaces[id].threads[at].id, stopped: 0, agent, left };
        self.spaces[id].tracer = Some(tracer);
        self.note(|| format!("trace {id}: {tracer:?}"));
    }

    /// Continues a tracer: it stops the next thread, examines the next page, or lets the others go
    /// on.
    fn look_on(&mut self, id: Id, at: usize, active: bool) {
        let space = &mut self.spaces[id];
        let Some(tracer) = space.tracer else { return };
        if !active || tracer.left == 0 {
            space.tracer = None;
        } else if !space.is_traced_whole(tracer) {
            space.stop_next(tracer);
        } else {
            space.tracer = Some(Tracer { left: tracer.left - 1, ..tracer });
            let pass = self.rng.once_in(2);
            self.begin_touch(id, at, pass);
        }
    }

    /// Installs guards over a few pages (KERNEL-7), or removes one.
    fn guard_some(&mut self, id: Id) {
        let calm = self.calm && self.spaces[id].changing == 0;
        let space = &mut self.spaces[id];
        if self.rng.once_in(2)
            && let Some(&first) = space.guards.first()
        {
            space.drop_guards(first, first + 1);
            return;
        }
        let Some((start, end)) = self.range(id, 4) else { return };
        let space = &mut self.spaces[id];
        // Only over pages without content, because the kernel does not report pages that a guard
        // drops.
        let empty = (start..end)
            .all(|page| !space.pages.contains_key(&page) && !space.truth.contains_key(&page));
        // In the middle of an answer the guard comes too late for the pager's check
        // (docs/limits.md).
        if empty && calm {
            let waits = |page: &u64| space.touches.iter().any(|touch| touch.page == *page);
            space.raced.extend((start..end).filter(waits));
            space.guards.extend(start..end);
            self.note(|| format!("guard {id}: {start:x}..{end:x}"));
        }
    }

    /// Returns the joining agents that can go on.
    pub fn joiners(&self) -> Vec<Id> {
        let goes_on = |space: &Space| {
            let done = matches!(space.joining, Joining::Never | Joining::Done);
            space.lets_agent() && space.born && !done
        };
        (0..self.spaces.len()).filter(|&id| goes_on(&self.spaces[id])).collect()
    }

    /// Runs a step of a joining agent, as `hello` does in the agent. It may take its time, take
    /// back its message, or end.
    pub fn step_joining(&mut self, id: Id) {
        match self.spaces[id].agent_doing {
            Doing::Call { change, told: Told::Read } => {
                self.spaces[id].agent_doing = self.go_on(id, change);
                return;
            }
            Doing::Zap { start, end } => {
                self.spaces[id].drop_pages(start, end);
                self.spaces[id].agent_doing = Doing::Nothing;
                return;
            }
            _ => {}
        }
        self.spaces[id].joining = match self.spaces[id].joining {
            Joining::Begins => match self.spaces[id].table.clone() {
                Some(table) if !self.rng.once_in(4) => self.call(id, &table),
                _ => Joining::Connects,
            },
            Joining::Called { doorbell, made, connection } => {
                let table = self.spaces[id].table.clone().expect("it has called through it");
                let word = &table.get().calls[doorbell].state;
                let state = State(word.load(Relaxed));
                if state.at(CALL_MADE) != made || state.stage() == CALL_FREE {
                    // The slot was taken away, so the child repeats the call.
                    self.spaces[id].joining = Joining::Begins;
                    return;
                }
                if state.stage() != CALL_ANSWERED {
                    return;
                }
                word.store(state.at(CALL_FREE).0, Relaxed);
                if state.answer() == 0 { Joining::Has(connection) } else { Joining::Connects }
            }
            Joining::Connects => {
                let connection = self.connect(id);
                self.knocking.push(connection);
                Joining::Has(connection)
            }
            Joining::Has(connection) => self.hello(id, connection),
            other => other,
        };
    }

    fn connect(&mut self, id: Id) -> usize {
        let (said, answer) = (None, None);
        let new = Connection { id, held: false, said, heard: false, hung_up: false, answer };
        self.connections.push(new);
        self.connections.len() - 1
    }

    /// Calls through the shared memory of an ancestor.
    fn call(&mut self, id: Id, table: &SharedMemory) -> Joining {
        let calls = &table.get().calls;
        let Some(doorbell) = calls.iter().position(is_free) else { return Joining::Begins };
        let connection = self.connect(id);
        calls[doorbell].what.store(ASK_JOIN, Relaxed);
        calls[doorbell].a.store(id as u64, Relaxed);
        calls[doorbell].b.store(connection as u64, Relaxed);
        let made = make(&calls[doorbell]);
        let page = POOL + self.spaces[id].pool_pages - (DOORBELLS - doorbell) as u64;
        self.tell(id, None, Change::Remove { start: page, end: page + 1 });
        Joining::Called { doorbell, made, connection }
    }

    /// Performs the hello over its connection.
    fn hello(&mut self, id: Id, at: usize) -> Joining {
        let kind = if id == 0 { HELLO_START } else { HELLO_FORKED };
        let ends = id > 0 && self.rng.once_in(60);
        let (late, takes_back) = (self.rng.once_in(2), self.rng.once_in(20));
        let connection = &mut self.connections[at];
        match connection.answer {
            Some(true) => return Joining::Done,
            // Without a hello the first program would not have begun.
            Some(false) => return if id == 0 { Joining::Begins } else { Joining::Never },
            None if ends => {
                connection.hung_up = true;
                return Joining::Never;
            }
            None if connection.heard => {}
            None if connection.said.is_none() && !late => connection.said = Some(kind),
            None if takes_back => connection.said = None,
            None => {}
        }
        Joining::Has(at)
    }

    /// Returns the agents that can go on.
    pub fn agents(&self) -> Vec<Id> {
        let goes_on = |space: &Space| {
            let posted = || {
                let shared = space.shared.as_ref();
                space.told
                    && shared.is_some_and(|shared| shared.get().state.load(Relaxed) == POSTED)
            };
            let something = match space.agent {
                Agent::Absent => false,
                Agent::Starting => space.shared.is_some(),
                Agent::Idle => posted(),
                Agent::At(_) => true,
            };
            space.lets_agent() && !space.lacks_cpu && something
        };
        (0..self.spaces.len()).filter(|&id| goes_on(&self.spaces[id])).collect()
    }

    /// Runs a step of an agent.
    pub fn step_agent(&mut self, id: Id) {
        let Some(shared) = self.spaces[id].shared.clone() else { return };
        let shared = shared.get();
        match self.spaces[id].agent_doing {
            Doing::Touch { page, write } => {
                self.spaces[id].agent_doing = self.touch_for_agent(id, page, write);
                return;
            }
            Doing::Call { change, told: Told::Read } => {
                self.spaces[id].agent_doing = self.go_on(id, change);
                return;
            }
            Doing::Zap { start, end } => {
                self.spaces[id].drop_pages(start, end);
                self.spaces[id].agent_doing = Doing::Nothing;
                self.finish_entry(id, 0);
                return;
            }
            Doing::Moved { errno } => {
                self.spaces[id].agent_doing = Doing::Nothing;
                self.finish_entry(id, errno);
                return;
            }
            _ => {}
        }
        match self.spaces[id].agent {
            Agent::Absent => {}
            Agent::Starting => {
                shared.thread.store(1, Relaxed);
                shared.ready.store(1, Relaxed);
                self.spaces[id].agent = Agent::Idle;
            }
            Agent::Idle => {
                shared.state.store(RUNNING, Relaxed);
                self.spaces[id].told = false;
                self.spaces[id].agent = Agent::At(0);
            }
            Agent::At(at) => self.step_entry(id, at),
        }
    }

    fn step_entry(&mut self, id: Id, at: usize) {
        let shared = self.spaces[id].shared.clone().expect("it has an agent");
        let shared = shared.get();
        if at == shared.count.load(Relaxed) as usize {
            shared.state.store(DONE, Relaxed);
            self.spaces[id].agent = Agent::Idle;
            return;
        }
        let entry = &shared.entries[at];
        let (a, b) = (entry.a.load(Relaxed) >> 12, entry.b.load(Relaxed) >> 12);
        let pages = entry.len.load(Relaxed) >> 12;
        match entry.op.load(Relaxed) {
            OP_MOVE => {
                let mut result = 0;
                for page in 0..pages {
                    result = self.move_page(id, a + page, b + page);
                }
                if self.splits {
                    self.spaces[id].agent_doing = Doing::Moved { errno: result };
                } else {
                    self.finish_entry(id, result);
                }
            }
            OP_DROP => {
                self.flip_rights(id);
                let space = &mut self.spaces[id];
                let shared = space.pages.range(a..a + pages).any(|(_, page)| !page.is_exclusive());
                // Pages move to the discard area only from areas like it.
                let other = space.area_of(a).is_some_and(|(_, area)| area.executable);
                if shared || other || self.rng.once_in(8) {
                    self.tell(id, None, Change::Remove { start: a, end: a + pages });
                } else {
                    self.spaces[id].drop_pages(a, a + pages);
                    self.finish_entry(id, 0);
                }
            }
            OP_SET_RIGHTS => {
                let executable = entry.b.load(Relaxed) != 0;
                let result = self.set_rights(id, (a, a + pages), executable);
                self.finish_entry(id, result);
            }
            OP_UNSHARE => {
                self.spaces[id].agent_doing = Doing::Touch { page: a, write: true };
            }
            _ => self.finish_entry(id, EBUSY),
        }
    }

    fn finish_entry(&mut self, id: Id, errno: i32) {
        let Agent::At(at) = self.spaces[id].agent else { return };
        let shared = self.spaces[id].shared.clone().expect("it has an agent");
        shared.get().entries[at].result.store(-errno, Relaxed);
        self.spaces[id].agent = Agent::At(at + 1);
    }

    /// Populates a page as a write does, but without writing (`MADV_POPULATE_WRITE`).
    fn touch_for_agent(&mut self, id: Id, page: u64, write: bool) -> Doing {
        let space = &mut self.spaces[id];
        let Some((_, area)) = space.area_of(page) else {
            self.finish_entry(id, 12);
            return Doing::Nothing;
        };
        let thread = 1;
        match space.pages.get_mut(&page) {
            None if area.registered => {
                space.touches.push(Touch { page, write, protected: false, thread });
                return Doing::Wait { page, write };
            }
            Some(there) if there.protected && area.registered => {
                space.touches.push(Touch { page, write, protected: true, thread });
                return Doing::Wait { page, write };
            }
            Some(there) if !there.is_exclusive() => *there = Page::new(there.stamp),
            Some(_) => {}
            None => {
                space.pages.insert(page, Page::new(0));
            }
        }
        self.finish_entry(id, 0);
        Doing::Nothing
    }
}

impl Page {
    fn clone_exclusive(&self) -> Self {
        Self { protected: self.protected, ..Self::new(self.stamp) }
    }
}

impl Space {
    /// Whether a discard that overlaps `[start, end)` is under way. Its drop at the end races with
    /// other actions of the program there, which is the program's own fault.
    fn drops(&self, start: u64, end: u64) -> bool {
        self.threads.iter().any(|thread| match thread.doing {
            Doing::Call { change: Change::Remove { start: from, end: to }, .. }
            | Doing::Zap { start: from, end: to } => from < end && start < to,
            _ => false,
        })
    }

    /// Returns the number of mapped pages, without the pool.
    fn mapped(&self) -> u64 {
        self.areas.range(..POOL).map(|(&start, area)| area.end - start).sum()
    }
}
