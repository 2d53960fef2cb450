//! Replacements for the machine behind each seam.
//!
//! Every call is a point at which other threads may run. Threads that need no lock of the pager may
//! always run there. The pager's own threads may run if the caller holds none
//! ([`super::driver::point`]).

use super::driver::point;
use super::world::{Change, Doing, Id, LateCall, POOL, Told, World};
use crate::config::Config;
use crate::processes::Processes;
use crate::processes::host::Host;
use crate::seam::{AddressSpace, AgentRuns, Connection, Event, Line, MapLock, Process, Storage};
use crate::wait::signal::Signal;
use ebb_agent::protocol::{HELLO_START, Hello, MAGIC, Shared, TELL_BATCH, VERSION};
use ebb_mm::types::SlotId;
use ebb_swap::{Page, Source, Store, StoreError, StoreReads, StoreStats, Whereabouts};
use ebb_sys::lifeline::Lifeline;
use ebb_sys::pagemap::Runs;
use ebb_sys::proc::{Area, Passing};
use ebb_sys::sched::RunTimes;
use ebb_sys::shared::SharedMap;
use ebb_sys::uffd::{Mode, PlaceError};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The world, shared by all fakes. Locked for moments only, never across a [`point`].
#[derive(Clone, Debug)]
pub struct Shelf(Arc<Mutex<World>>);

impl Shelf {
    pub fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fills a page with its stamp at its beginning and at its end.
pub fn bytes_of(stamp: u64, page: &mut Page) {
    page.fill(0);
    page[..8].copy_from_slice(&stamp.to_ne_bytes());
    page[4088..].copy_from_slice(&stamp.to_ne_bytes());
}

/// Returns the stamp of a page; None if its two ends disagree.
pub fn stamp_of(page: &[u8]) -> Option<u64> {
    let word = |at: usize| u64::from_ne_bytes(page[at..at + 8].try_into().expect("eight bytes"));
    (word(0) == word(4088)).then(|| word(0))
}

/// The userfaultfd of an address space.
pub struct FakeSpace {
    pub world: Shelf,
    pub id: Id,
}

impl fmt::Debug for FakeSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "space {}", self.id)
    }
}

fn pages(start: u64, len: u64) -> (u64, u64) {
    (start >> 12, (start + len) >> 12)
}

impl FakeSpace {
    fn set_protection(&self, (start, end): (u64, u64), protect: bool) -> Result<(), PlaceError> {
        point();
        let mut world = self.world.lock();
        if world.is_locked(self.id, Some(LateCall::Protect { start, end, protect })) {
            return Err(PlaceError::Changing);
        }
        world.set_protection(self.id, (start, end), protect)
    }
}

impl AddressSpace for FakeSpace {
    fn read(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        point();
        let mut world = self.world.lock();
        let world = &mut *world;
        let count = 1 + world.rng.below(4) as usize;
        let before = events.len();
        while events.len() - before < count {
            let space = &mut world.spaces[self.id];
            if !space.touches.is_empty() {
                let at = world.rng.below(space.touches.len() as u64) as usize;
                let touch = space.touches.swap_remove(at);
                events.push(Event::Fault {
                    address: touch.page << 12,
                    write: touch.write,
                    protected: touch.protected,
                    thread: touch.thread,
                });
                continue;
            }
            let Some(change) = space.changes.pop_front() else { break };
            for thread in space.threads.iter_mut().map(|thread| &mut thread.doing) {
                note_read(thread, change);
            }
            note_read(&mut space.agent_doing, change);
            events.push(match change {
                Change::Remove { start, end } => {
                    Event::Remove { start: start << 12, end: end << 12 }
                }
                Change::Unmap { start, end } => Event::Unmap { start: start << 12, end: end << 12 },
                Change::Remap { from, to, pages } => {
                    Event::Remap { from: from << 12, to: to << 12, len: pages << 12 }
                }
                Change::Fork { child } => {
                    // The pager is about to ask the parent.
                    space.map_lock.held |= world.locks && world.rng.once_in(2);
                    Event::Fork(Box::new(FakeSpace { world: self.world.clone(), id: child }))
                }
            });
        }
        let read = events.len() - before;
        if read > 0 {
            world.note(|| format!("read {}: {:?}", self.id, &events[before..]));
        }
        Ok(read)
    }

    fn handshake(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn register(&self, start: u64, len: u64, _: Mode) -> io::Result<()> {
        point();
        let (start, end) = pages(start, len);
        let mut world = self.world.lock();
        if world.is_locked(self.id, Some(LateCall::Register { start, end })) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let registered = world.register(self.id, (start, end));
        if registered { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    fn copy(&self, address: u64, pages: &[u8]) -> Result<(), (u64, PlaceError)> {
        point();
        let mut world = self.world.lock();
        let in_pool = address >> 12 >= POOL;
        let stamps: Option<Vec<u64>> = (pages.as_chunks().0.iter())
            .map(|page| stamp_of(page).or_else(|| in_pool.then(|| world.keep_token(page))))
            .collect();
        let Some(stamps) = stamps else {
            world.fail(format!("a torn page is placed at {address:x}"));
            return Ok(());
        };
        world.copy(self.id, address >> 12, &stamps)
    }

    fn protect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        self.set_protection(pages(start, len), true)
    }

    fn unprotect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        self.set_protection(pages(start, len), false)
    }

    fn poison(&self, address: u64, _: u64) -> Result<(), PlaceError> {
        point();
        let mut world = self.world.lock();
        if world.is_locked(self.id, None) {
            return Err(PlaceError::Changing);
        }
        world.poison(self.id, address >> 12)
    }

    fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        // The page is in place, but its waiting thread is not woken yet.
        point();
        let (start, end) = pages(start, len);
        self.world.lock().spaces[self.id].wake(start, end);
        point();
        Ok(())
    }

    fn is_alive(&self, _: u64) -> bool {
        self.world.lock().spaces[self.id].alive
    }

    fn is_stuck(&self) -> bool {
        let lock = &self.world.lock().spaces[self.id].map_lock;
        lock.held && lock.found
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Notes that the pager has read a change. Its thread may go on some time later.
fn note_read(doing: &mut Doing, read: Change) {
    if let Doing::Call { change, told } = doing
        && *change == read
        && *told == Told::No
    {
        *told = Told::Read;
    }
}

/// Returns the runs of these pages.
fn runs(pages: &[u64]) -> Runs {
    let runs = pages.chunk_by(|one, next| one + 1 == *next);
    runs.map(|run| (run[0] << 12, (run[run.len() - 1] + 1) << 12)).collect()
}

/// A process, seen from outside.
pub struct FakeProcess {
    pub world: Shelf,
    pub id: Id,
    pub pid: u32,
}

impl fmt::Debug for FakeProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.id)
    }
}

impl FakeProcess {
    fn gone() -> io::Error {
        io::Error::from_raw_os_error(3)
    }

    /// Returns the pages in `[start, end)` that `wanted` accepts.
    fn pages(
        &self,
        start: u64,
        end: u64,
        wanted: impl Fn(&super::world::Page) -> bool,
    ) -> io::Result<Vec<u64>> {
        point();
        let world = self.locked()?;
        let space = &world.spaces[self.id];
        if !space.alive {
            return Err(Self::gone());
        }
        let range = space.pages.range(start >> 12..end >> 12);
        Ok(range.filter(|(_, page)| wanted(page)).map(|(&at, _)| at).collect())
    }

    fn count(
        &self,
        page: u64,
        most: u64,
        good: impl Fn(&super::world::Page) -> bool,
    ) -> io::Result<u64> {
        let world = self.locked()?;
        let space = &world.spaces[self.id];
        let pages = page..page + most;
        Ok(pages.take_while(|at| space.pages.get(at).is_some_and(&good)).count() as u64)
    }

    /// Returns the world for a call that takes the lock of the memory map; an error if a thread
    /// holds that.
    fn locked(&self) -> io::Result<MutexGuard<'_, World>> {
        let mut world = self.world.lock();
        if world.is_locked(self.id, None) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(world)
    }
}

impl Process for FakeProcess {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn note_thread(&self, _: u32) {}

    fn forget_thread(&self) {}

    fn agent(&self) -> Option<u32> {
        None
    }

    fn agent_runs(&self) -> Option<AgentRuns> {
        let world = self.world.lock();
        let state = match &world.spaces[self.id] {
            space if space.is_stopped() => 't',
            space if space.lacks_cpu => 'R',
            _ => 'S',
        };
        Some(AgentRuns { thread: self.id as u32, state, ran: Duration::ZERO })
    }

    fn take_connection(&self, thread: u32, fd: u32) -> io::Result<Box<dyn Connection>> {
        point();
        let mut world = self.world.lock();
        if !world.spaces[self.id].alive || thread as usize != self.id {
            return Err(Self::gone());
        }
        let (index, id) = (fd as usize, self.id);
        match world.connections.get_mut(index).filter(|one| one.id == id && !one.held) {
            Some(connection) => {
                connection.held = true;
                Ok(Box::new(FakeConnection { world: self.world.clone(), index }))
            }
            None => Err(io::Error::from_raw_os_error(88)),
        }
    }

    fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize> {
        point();
        let mut world = self.locked()?;
        if !world.spaces[self.id].alive {
            return Ok(0);
        }
        if world.trouble > 0 && world.rng.once_in(200) {
            return Err(io::Error::from_raw_os_error(5));
        }
        let World { spaces, tokens, .. } = &mut *world;
        let space = &mut spaces[self.id];
        // The kernel reports no faults in the pool. A read places the zero page.
        for place in addresses.iter().map(|address| address >> 12).filter(|&page| page >= POOL) {
            space.pages.entry(place).or_insert_with(super::world::Page::nothing);
        }
        for (at, (address, page)) in addresses.iter().zip(pages.iter_mut()).enumerate() {
            match space.pages.get(&(address >> 12)) {
                Some(there) => match tokens.get(&there.stamp) {
                    Some(token) => page.copy_from_slice(&token[..]),
                    None => bytes_of(there.stamp, page),
                },
                None if at == 0 => return Err(io::Error::from_raw_os_error(5)),
                None => return Ok(at),
            }
        }
        Ok(addresses.len())
    }

    fn is_present(&self, page: u64) -> io::Result<bool> {
        Ok(self.count(page, 1, |_| true)? == 1)
    }

    fn unmapped(&self, page: u64, count: usize) -> io::Result<Vec<bool>> {
        let world = self.locked()?;
        let space = &world.spaces[self.id];
        let pages = page..page + count as u64;
        let nothing = |at: u64| !space.pages.contains_key(&at) && !space.guards.contains(&at);
        Ok(pages.map(nothing).collect())
    }

    fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize> {
        Ok(self.count(page, most as u64, |page| page.is_exclusive() && !page.zero)? as usize)
    }

    fn shared(&self, page: u64, count: u64) -> io::Result<u64> {
        let world = self.locked()?;
        let range = world.spaces[self.id].pages.range(page..page + count);
        Ok(range.filter(|(_, page)| !page.is_exclusive()).count() as u64)
    }

    fn present(&self, start: u64, end: u64, most: u64) -> io::Result<(Runs, u64)> {
        let pages = self.pages(start, end, |page| !page.zero)?;
        let some = &pages[..pages.len().min(most as usize)];
        let stop = if some.len() < pages.len() { (some[some.len() - 1] + 1) << 12 } else { end };
        Ok((runs(some), stop))
    }

    fn zero(&self, start: u64, end: u64) -> io::Result<Runs> {
        Ok(runs(&self.pages(start, end, |page| page.zero)?))
    }

    fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64> {
        let world = self.locked()?;
        let range = world.spaces[self.id].pages.range(start >> 12..end >> 12);
        let last = range.map(|(&page, _)| page).nth(most as usize - 1);
        Ok(last.map_or(end, |page| (page + 1) << 12))
    }

    fn sizes(&self) -> io::Result<(u64, u64)> {
        Ok((self.world.lock().spaces[self.id].resident(), 0))
    }

    fn proportional_anonymous_pages(&self) -> io::Result<u64> {
        let mut world = self.locked()?;
        world.walks += 1;
        let space = &world.spaces[self.id];
        let share = |page: &super::world::Page| 1.0 / Arc::strong_count(&page.frame) as f64;
        let pages = space.pages.values().filter(|page| !page.zero);
        Ok(pages.map(share).sum::<f64>() as u64)
    }

    fn areas(&self) -> io::Result<Vec<Area>> {
        point();
        let world = self.locked()?;
        let space = &world.spaces[self.id];
        if !space.alive {
            return Err(Self::gone());
        }
        let area = |(&start, area): (&u64, &super::world::Area)| Area {
            start: start << 12,
            end: area.end << 12,
            readable: true,
            writable: true,
            executable: area.executable,
            shared: false,
            inode: 0,
            name: String::new(),
        };
        Ok(space.areas.iter().map(area).collect())
    }

    fn areas_in(&self, ranges: &[(u64, u64)]) -> io::Result<Vec<Area>> {
        let mut areas = self.areas()?;
        let is_in = |area: &Area, (start, end)| area.start < end && area.end > start;
        areas.retain(|area| ranges.iter().any(|&range| is_in(area, range)));
        Ok(areas)
    }

    fn passing(&self) -> io::Result<Passing> {
        point();
        let world = self.locked()?;
        let space = &world.spaces[self.id];
        if !space.alive {
            return Err(Self::gone());
        }
        let those = |wanted: &dyn Fn(&super::world::Area) -> bool| {
            let areas = space.areas.iter().filter(|(_, area)| wanted(area));
            areas.map(|(&start, area)| (start << 12, area.end << 12)).collect()
        };
        let withheld = those(&|area| area.on_fork != super::world::OnFork::Copy);
        Ok(Passing { withheld, registered: those(&|area| area.registered) })
    }

    fn is_stopped(&self) -> bool {
        self.world.lock().spaces[self.id].is_stopped()
    }

    fn is_stuck(&self) -> bool {
        // The address space says so.
        false
    }

    fn tie(&self, _: &Lifeline) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    fn kill(&self) {
        self.world.lock().killed = true;
    }

    fn freeze(&self, _: &[u32]) -> Vec<u32> {
        Vec::new()
    }

    fn threads(&self) -> Vec<(u32, char)> {
        let world = self.world.lock();
        let space = &world.spaces[self.id];
        let stopped = space.threads.iter().filter(|_| space.is_stopped());
        stopped.map(|thread| (thread.id, 't')).collect()
    }

    fn has_thread(&self, _: u32) -> bool {
        false
    }

    fn touching(&self, _: &[u32]) -> Vec<u32> {
        Vec::new()
    }

    fn robust_lists(&self, _: &mut BTreeMap<u32, u64>) -> io::Result<()> {
        Ok(())
    }

    fn is_hidden(&self) -> bool {
        let world = self.world.lock();
        !world.spaces[self.id].alive || world.spaces[self.id].hidden
    }

    fn exit_code_of_leader(&self) -> Option<u8> {
        None
    }

    fn name(&self) -> String {
        format!("simulated {}", self.id)
    }
}

/// Memory that an agent and the pager share.
#[derive(Debug)]
pub struct SharedMemory(SharedMap<Shared>);

impl SharedMemory {
    pub fn new() -> Self {
        Self(SharedMap::create("sim").expect("a mapping").0)
    }

    pub fn get(&self) -> &Shared {
        &self.0
    }
}

/// The pager's end of a connection.
pub struct FakeConnection {
    pub world: Shelf,
    pub index: usize,
}

impl fmt::Debug for FakeConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.index)
    }
}

impl FakeConnection {
    fn id(&self) -> Id {
        self.world.lock().connections[self.index].id
    }

    /// Whether there is a message to read.
    pub fn is_readable(world: &World, index: usize) -> bool {
        let connection = &world.connections[index];
        connection.said.is_some() || connection.hung_up || !world.spaces[connection.id].alive
    }
}

/// A client that has left after its request.
#[derive(Debug)]
pub struct Nobody;

impl Connection for Nobody {
    fn receive(
        &self,
        _: &mut [u8],
        _: &mut Option<Box<dyn AddressSpace>>,
    ) -> io::Result<Option<usize>> {
        Ok(Some(0))
    }

    fn peer(&self) -> io::Result<u32> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn is_of_owner(&self) -> bool {
        true
    }

    fn say(&self, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn into_line(self: Box<Self>) -> io::Result<Arc<dyn Line>> {
        Err(io::ErrorKind::NotConnected.into())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Connection for FakeConnection {
    fn receive(
        &self,
        bytes: &mut [u8],
        brought: &mut Option<Box<dyn AddressSpace>>,
    ) -> io::Result<Option<usize>> {
        point();
        let id = self.id();
        let mut world = self.world.lock();
        let pages = world.spaces[id].pool_pages;
        let alive = world.spaces[id].alive;
        let connection = &mut world.connections[self.index];
        if connection.hung_up || !alive {
            return Ok(Some(0));
        }
        let Some(kind) = connection.said.take() else { return Ok(None) };
        connection.heard = true;
        if kind == HELLO_START {
            *brought = Some(Box::new(FakeSpace { world: self.world.clone(), id }));
        }
        let hello = Hello {
            magic: MAGIC,
            version: VERSION,
            kind,
            bare: 0,
            pool_start: POOL << 12,
            pool_len: pages << 12,
        };
        let said = hello.to_bytes();
        bytes[..said.len()].copy_from_slice(&said);
        Ok(Some(said.len()))
    }

    fn peer(&self) -> io::Result<u32> {
        let id = self.id();
        Ok(self.world.lock().spaces[id].pid)
    }

    fn is_of_owner(&self) -> bool {
        true
    }

    fn say(&self, _: &[u8]) -> io::Result<()> {
        self.world.lock().connections[self.index].answer.get_or_insert(false);
        Ok(())
    }

    fn into_line(self: Box<Self>) -> io::Result<Arc<dyn Line>> {
        point();
        let (world, id, shared) = (self.world.clone(), self.id(), Arc::new(SharedMemory::new()));
        Ok(Arc::new(FakeLine { world, id, shared, connection: self }))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Refuses a waiting agent when the connection is closed.
impl Drop for FakeConnection {
    fn drop(&mut self) {
        self.world.lock().connections[self.index].answer.get_or_insert(false);
    }
}

/// The line to the agent of an address space.
pub struct FakeLine {
    pub world: Shelf,
    pub id: Id,
    pub shared: Arc<SharedMemory>,
    pub connection: Box<FakeConnection>,
}

impl fmt::Debug for FakeLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.id)
    }
}

impl Line for FakeLine {
    fn shared(&self) -> &Shared {
        self.shared.get()
    }

    fn welcome(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<()> {
        point();
        let mut world = self.world.lock();
        let world = &mut *world;
        let (space, connection) =
            (&mut world.spaces[self.id], &mut world.connections[self.connection.index]);
        if !space.alive || connection.hung_up {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        connection.answer = Some(true);
        (space.shared, space.agent) = (Some(self.shared.clone()), super::world::Agent::Starting);
        Ok(())
    }

    fn send_now(&self, bytes: &[u8]) -> io::Result<Option<()>> {
        let mut world = self.world.lock();
        let space = &mut world.spaces[self.id];
        if !space.alive {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        space.told |= bytes == [TELL_BATCH];
        Ok(Some(()))
    }

    fn wait(&self, word: &AtomicU32, seen: u32, limit: Duration) {
        super::driver::wait_until(limit, || {
            word.load(std::sync::atomic::Ordering::Relaxed) != seen
        });
    }

    fn wake(&self, _: &AtomicU32) {
        point();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A store in memory. Some of its reads take time, and some fail.
pub struct FakeStorage {
    pub world: Shelf,
    store: Store,
    /// Reads under way, each with the hash of its page.
    reads: Mutex<VecDeque<(SlotId, u64, Option<u64>)>>,
    /// Percentage of reads that take time.
    pub slow: u64,
    keeps: bool,
    /// Number of writes in a thousand that fail.
    fails: u64,
}

impl FakeStorage {
    pub fn new(world: Shelf, store: Store, slow: u64, keeps: bool, fails: u64) -> Self {
        Self { world, store, reads: Mutex::default(), slow, keeps, fails }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<(SlotId, u64, Option<u64>)>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stamp of a stored page.
    pub fn read(&self, slot: SlotId, page: &mut Page) -> Option<u64> {
        self.store.get(slot, page).ok()?;
        stamp_of(page)
    }

    /// Returns the number of reads that have not completed.
    pub fn under_way(&self) -> usize {
        self.queue().len()
    }
}

impl Storage for Arc<FakeStorage> {
    fn put_batch(&self, writes: &[(SlotId, &Page)], results: &mut Vec<Result<(), StoreError>>) {
        point();
        let fails = self.fails;
        let failing: Vec<bool> = {
            let mut world = self.world.lock();
            writes.iter().map(|_| world.rng.below(1000) < fails).collect()
        };
        let good: Vec<(SlotId, &Page)> =
            writes.iter().zip(&failing).filter(|(_, fails)| !**fails).map(|(w, _)| *w).collect();
        let mut done = Vec::new();
        self.store.put_batch(&good, &mut done);
        let mut done = done.into_iter();
        results.clear();
        for fails in failing {
            let result = if fails { None } else { done.next() };
            results.push(result.unwrap_or(Err(StoreError::Full)));
        }
        point();
    }

    fn get_now(&self, slot: SlotId, page: &mut Page) -> Result<Option<Source>, StoreError> {
        let slow = self.slow;
        if self.world.lock().rng.below(100) < slow {
            return Ok(None);
        }
        self.store.get(slot, page).map(|()| Some(Source::Compressed))
    }

    fn start_batch(&self, reads: &[(SlotId, u64)]) {
        let reads = reads.iter().map(|&(slot, token)| (slot, token, self.store.hash_of(slot)));
        self.queue().extend(reads);
    }

    fn poll_completions(&self, each: &mut dyn FnMut(u64, Result<&Page, StoreError>)) {
        let count = {
            let some = self.under_way() as u64;
            1 + self.world.lock().rng.below(some)
        };
        for _ in 0..count {
            let under_way = self.under_way() as u64;
            if under_way == 0 {
                return;
            }
            let at = self.world.lock().rng.below(under_way) as usize;
            let Some((slot, token, hash)) = self.queue().swap_remove_back(at) else { return };
            let mut page = [0; 4096];
            if self.store.hash_of(slot) != hash {
                each(token, Err(StoreError::NotStored { slot }));
                continue;
            }
            match self.store.get(slot, &mut page) {
                Ok(()) => each(token, Ok(&page)),
                Err(error) => each(token, Err(error)),
            }
        }
    }

    fn reuse_copy(&self, slot: SlotId, hash: u64) -> bool {
        self.store.hash_of(slot) == Some(hash)
    }

    fn is_worth_keeping(&self, _: SlotId) -> bool {
        self.keeps
    }

    fn places(&self, slots: &[SlotId], found: &mut dyn FnMut(Option<Whereabouts>)) {
        self.store.places(slots, found);
    }

    fn is_remote(&self, slot: SlotId) -> bool {
        self.store.is_remote(slot)
    }

    fn remove(&self, slot: SlotId) {
        self.store.remove(slot);
    }

    fn ram_bytes(&self) -> u64 {
        self.store.ram_bytes()
    }

    fn set_ram_limit(&self, _: u64) {}

    fn grow_ram(&self, _: u64, _: u64) {}

    fn can_demote(&self) -> bool {
        false
    }

    fn reads(&self) -> StoreReads {
        self.store.reads()
    }

    fn stats(&self) -> StoreStats {
        self.store.stats()
    }

    fn close(&self) {}

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// The machine.
#[derive(Debug)]
pub struct FakeHost {
    pub world: Shelf,
}

impl Host for FakeHost {
    fn identity(&self) -> u128 {
        let mut world = self.world.lock();
        world.identities_asked += 1;
        world.identities_asked
    }

    fn sleep(&self, time: Duration) {
        super::driver::wait_until(time, || false);
    }

    fn own_runs(&self) -> RunTimes {
        RunTimes { waited_ns: self.world.lock().waited_ns, ..RunTimes::default() }
    }

    fn wait(&self, signal: &Signal, limit: Duration) -> bool {
        let mut raised = false;
        super::driver::wait_until(limit, || {
            raised |= signal.wait(Duration::ZERO);
            raised
        });
        raised
    }

    fn say(&self, text: &str) {
        let mut world = self.world.lock();
        world.note(|| format!("said: {text}"));
        world.said.push(text.to_owned());
    }

    fn open(&self, pid: u32) -> io::Result<Box<dyn Process>> {
        let mut world = self.world.lock();
        world.opened.push(pid);
        let id = world.spaces.iter().position(|space| space.pid == pid && space.alive);
        let id = id.ok_or_else(FakeProcess::gone)?;
        if world.spaces[id].hidden {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Box::new(FakeProcess { world: self.world.clone(), id, pid }))
    }

    fn process_of(&self, thread: u32) -> Option<u32> {
        let world = self.world.lock();
        let has = |space: &&super::world::Space| {
            space.alive && space.threads.iter().any(|one| one.id == thread)
        };
        world.spaces.iter().find(has).map(|space| space.pid)
    }

    fn child_of(&self, thread: u32, parents: &[u32]) -> Option<u32> {
        let pid = self.process_of(thread)?;
        let world = self.world.lock();
        let space = world.spaces.iter().find(|space| space.pid == pid)?;
        let parent = world.spaces[space.parent?].pid;
        parents.contains(&parent).then_some(pid)
    }

    fn tree(&self, _: &Processes) -> Vec<u32> {
        let mut world = self.world.lock();
        world.trees_asked += 1;
        world.spaces.iter().filter(|space| space.alive).map(|space| space.pid).collect()
    }

    fn shared_memory_pages(&self, _: u32) -> u64 {
        0
    }

    fn may_be_used_up(&self) -> bool {
        false
    }

    fn inject(&self, _: &Config, _: u32, _: &MapLock) -> crate::processes::inject::Attempt {
        crate::processes::inject::Attempt::No
    }

    fn kill_tree(&self, _: &Processes) {
        let mut world = self.world.lock();
        world.killed = true;
        world.note(|| "killed".to_owned());
    }
}
