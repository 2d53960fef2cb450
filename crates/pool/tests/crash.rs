//! Shows that after a crash the pool is as a commit left it, on simulated disks that lose and tear
//! unsynced writes.

use ebb_mm::PAGE_SIZE;
use ebb_mm::random::Random;
use ebb_pool::{Bytes, Medium, Options, PageId, Pool, PoolError};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

const SECTOR: usize = 512;

/// The fault of a simulated machine.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// After this number of writes, syncs and changes of length the machine is off.
    PowerFails(u64),
    /// Each write fails with this probability in thousandths, after a part of it.
    Writes(u64),
    /// The sync with this number fails, and unsynced writes are lost.
    Sync(u64),
}

/// The machine that both disks belong to.
struct Machine {
    random: Random,
    fault: Fault,
    done: u64,
    syncs: u64,
}

#[derive(Default, Clone)]
struct Contents {
    sectors: BTreeMap<u64, [u8; SECTOR]>,
    pages: u64,
}

impl Contents {
    fn put(&mut self, sector: u64, bytes: [u8; SECTOR]) {
        self.sectors.insert(sector, bytes);
        self.pages = self.pages.max(sector * SECTOR as u64 / PAGE_SIZE as u64 + 1);
    }
}

/// A disk: its durable contents, and the writes since.
#[derive(Default)]
struct State {
    lasting: Contents,
    now: Contents,
    /// Writes of sectors since the last sync, in order.
    since: Vec<(u64, [u8; SECTOR])>,
}

struct SimDisk {
    machine: Arc<Mutex<Machine>>,
    state: Mutex<State>,
}

const OFF: &str = "the machine is off";

impl SimDisk {
    fn new(machine: &Arc<Mutex<Machine>>, contents: Contents) -> Arc<Self> {
        let state = State { lasting: contents.clone(), now: contents, since: Vec::new() };
        Arc::new(Self { machine: machine.clone(), state: Mutex::new(state) })
    }

    fn step(&self) -> io::Result<()> {
        let mut machine = self.machine.lock().unwrap();
        machine.done += 1;
        match machine.fault {
            Fault::PowerFails(at) if machine.done > at => Err(io::Error::other(OFF)),
            _ => Ok(()),
        }
    }

    /// Returns the contents after a crash. Each sector has its durable contents or any of the
    /// writes since.
    fn after_crash(&self, random: &mut Random) -> Contents {
        let state = self.state.lock().unwrap();
        let mut left = state.lasting.clone();
        let mut writes = BTreeMap::<u64, Vec<[u8; SECTOR]>>::new();
        for &(sector, bytes) in &state.since {
            writes.entry(sector).or_default().push(bytes);
        }
        // Some crashes lose all writes, some lose none.
        let luck = random.word() % 3;
        for (sector, versions) in writes {
            let pick = match luck {
                0 => 0,
                1 => versions.len() as u64,
                _ => random.word() % (versions.len() as u64 + 1),
            };
            if pick > 0 {
                left.put(sector, versions[pick as usize - 1]);
            }
        }
        left
    }
}

impl Medium for SimDisk {
    fn read(&self, page: u64, into: &mut Bytes) -> io::Result<()> {
        let state = self.state.lock().unwrap();
        for (part, sector) in into.chunks_mut(SECTOR).zip(page * 8..) {
            part.copy_from_slice(state.now.sectors.get(&sector).unwrap_or(&[0; SECTOR]));
        }
        Ok(())
    }

    fn write(&self, page: u64, pages: &[&Bytes]) -> io::Result<()> {
        self.step()?;
        let mut most = usize::MAX;
        {
            let mut machine = self.machine.lock().unwrap();
            if let Fault::Writes(chance) = machine.fault
                && machine.random.word() % 1_000 < chance
            {
                most = (machine.random.word() % (8 * pages.len() as u64)) as usize;
            }
        }
        let mut state = self.state.lock().unwrap();
        let sectors = pages.iter().flat_map(|page| page.chunks(SECTOR)).zip(page * 8..);
        for (bytes, sector) in sectors.take(most) {
            let bytes = bytes.try_into().unwrap();
            state.since.push((sector, bytes));
            state.now.put(sector, bytes);
        }
        if most == usize::MAX { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.step()?;
        let fails = {
            let mut machine = self.machine.lock().unwrap();
            machine.syncs += 1;
            machine.fault == Fault::Sync(machine.syncs)
        };
        let mut state = self.state.lock().unwrap();
        if fails {
            // As in Linux: pages that could not be written become clean, and the next sync does not
            // write them.
            state.since.clear();
            return Err(io::Error::from_raw_os_error(5));
        }
        state.lasting = state.now.clone();
        state.since.clear();
        Ok(())
    }

    fn pages(&self) -> io::Result<u64> {
        Ok(self.state.lock().unwrap().now.pages)
    }

    fn set_pages(&self, pages: u64) -> io::Result<()> {
        self.step()?;
        let mut state = self.state.lock().unwrap();
        state.now.pages = pages;
        state.now.sectors.retain(|&sector, _| sector < pages * 8);
        // The file system's own journal keeps the length of a file.
        state.lasting.pages = pages;
        Ok(())
    }
}

/// One disk for the pool and the test.
struct Shared(Arc<SimDisk>);

impl Medium for Shared {
    fn read(&self, page: u64, into: &mut Bytes) -> io::Result<()> {
        self.0.read(page, into)
    }
    fn write(&self, page: u64, pages: &[&Bytes]) -> io::Result<()> {
        self.0.write(page, pages)
    }
    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn pages(&self) -> io::Result<u64> {
        self.0.pages()
    }
    fn set_pages(&self, pages: u64) -> io::Result<()> {
        self.0.set_pages(pages)
    }
}

struct World {
    file: Arc<SimDisk>,
    journal: Arc<SimDisk>,
}

impl World {
    fn new(seed: u64, fault: Fault, [file, journal]: [Contents; 2]) -> Self {
        let machine = Machine { random: Random(seed), fault, done: 0, syncs: 0 };
        let machine = Arc::new(Mutex::new(machine));
        Self { file: SimDisk::new(&machine, file), journal: SimDisk::new(&machine, journal) }
    }

    fn open(&self) -> Result<Pool, PoolError> {
        let options = Options { journal_pages: 40, ..Options::frames(16) };
        Pool::with_media(Box::new(Shared(self.file.clone())), self.journal.clone(), "sim", options)
    }

    fn after_crash(&self, random: &mut Random) -> [Contents; 2] {
        [self.file.after_crash(random), self.journal.after_crash(random)]
    }
}

/// Fills a page with its stamp, so that a torn page shows.
fn stamp(page: &mut Bytes, number: u64) {
    page.chunks_mut(8).for_each(|part| part.copy_from_slice(&number.to_le_bytes()));
}

fn stamp_of(page: &Bytes) -> u64 {
    let number = u64::from_le_bytes(page[..8].try_into().unwrap());
    assert!(page.chunks(8).all(|part| part == number.to_le_bytes()), "a torn page");
    number
}

fn contents(pool: &Pool) -> Vec<u64> {
    (0..pool.pages()).map(|page| stamp_of(&pool.shared(PageId(page)).unwrap())).collect()
}

/// The model: the present contents, the committed ones, and those that failed commits may have
/// left.
#[derive(Default)]
struct Model {
    now: Vec<u64>,
    committed: Vec<u64>,
    perhaps: Vec<Vec<u64>>,
    number: u64,
}

impl Model {
    /// Does one step of a storage engine. An error ends the step.
    fn step(&mut self, pool: &Pool, random: &mut Random) -> Result<(), PoolError> {
        match random.word() % 20 {
            0 => self.commit(|| pool.commit()),
            1 if random.word().is_multiple_of(3) => self.commit(|| pool.checkpoint()),
            2..=4 if self.now.len() < 60 => {
                let change = pool.change();
                let mut page = change.allocate()?;
                assert_eq!(page.page().0, self.now.len() as u64);
                self.number += 1;
                stamp(&mut page, self.number);
                self.now.push(self.number);
                Ok(())
            }
            _ if self.now.is_empty() => Ok(()),
            5..=9 => {
                let page = random.word() % (self.now.len() as u64);
                let found = stamp_of(&*pool.shared(PageId(page))?);
                assert_eq!(found, self.now[page as usize], "page {page} before a crash");
                Ok(())
            }
            _ => {
                let page = random.word() % (self.now.len() as u64);
                let change = pool.change();
                let mut latched = change.exclusive(PageId(page))?;
                assert_eq!(stamp_of(&latched), self.now[page as usize]);
                self.number += 1;
                stamp(&mut latched, self.number);
                self.now[page as usize] = self.number;
                Ok(())
            }
        }
    }

    fn commit(&mut self, commit: impl FnOnce() -> Result<(), PoolError>) -> Result<(), PoolError> {
        self.perhaps.push(self.now.clone());
        commit()?;
        self.committed.clone_from(&self.now);
        self.perhaps.clear();
        Ok(())
    }

    fn is(&self, found: &Vec<u64>) -> bool {
        *found == self.committed || self.perhaps.contains(found)
    }
}

fn seeds() -> u64 {
    std::env::var("EBB_POOL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(200)
}

/// Shows that a power failure at any write or sync leaves the pool as a commit left it. The
/// failures also strike during opening after a crash, up to four times in a row.
#[test]
fn a_crash_leaves_what_a_commit_left() {
    for seed in 0..seeds() {
        let mut random = Random(seed);
        let mut disks = [Contents::default(), Contents::default()];
        let mut model = Model::default();
        for _ in 0..4 {
            let world = World::new(seed, Fault::PowerFails(random.word() % 120), disks);
            if let Ok(pool) = world.open() {
                let found = contents(&pool);
                assert!(model.is(&found), "seed {seed}: {found:?}, and {:?}", model.committed);
                // From here on the model continues with the contents found.
                (model.now, model.committed) = (found.clone(), found);
                model.perhaps.clear();
                while model.step(&pool, &mut random).is_ok() {}
            }
            disks = world.after_crash(&mut random);
        }
        let world = World::new(seed, Fault::PowerFails(u64::MAX), disks);
        let found = contents(&world.open().unwrap());
        assert!(model.is(&found), "seed {seed}: {found:?}, and {:?}", model.committed);
    }
}

/// Shows that failing writes, after any part of them, lose nothing in memory, and a successful
/// commit is durable.
#[test]
fn a_full_disk_loses_nothing() {
    for seed in 0..seeds() / 4 {
        let mut random = Random(seed);
        let world = World::new(seed, Fault::Writes(0), Default::default());
        let pool = world.open().unwrap();
        world.file.machine.lock().unwrap().fault = Fault::Writes(100);
        let mut model = Model::default();
        let mut errors = 0;
        for _ in 0..600 {
            if let Err(error) = model.step(&pool, &mut random) {
                errors += 1;
                assert!(
                    matches!(error, PoolError::Io { .. } | PoolError::Broken { .. }),
                    "{error}"
                );
                if matches!(error, PoolError::Broken { .. }) {
                    break;
                }
            }
        }
        assert!(errors > 0, "seed {seed}");
        world.file.machine.lock().unwrap().fault = Fault::Writes(0);
        drop(pool);
        let disks = world.after_crash(&mut random);
        let world = World::new(seed, Fault::Writes(0), disks);
        let found = contents(&world.open().unwrap());
        assert!(model.is(&found), "seed {seed}: {found:?}, and {:?}", model.committed);
    }
}

/// Shows that after a failed sync nothing is committed any more, even if later syncs succeed.
/// Earlier commits stay.
#[test]
fn a_sync_that_failed_is_not_tried_again() {
    let mut broken = 0;
    for seed in 0..seeds() / 4 {
        let mut random = Random(seed);
        // The first sync belongs to the creation of the journal.
        let world = World::new(seed, Fault::Sync(2 + random.word() % 12), Default::default());
        let pool = world.open().unwrap();
        let mut model = Model::default();
        let mut failed = false;
        for _ in 0..400 {
            match model.step(&pool, &mut random) {
                Ok(()) => {}
                Err(PoolError::Broken { .. }) => {
                    broken += 1;
                    break;
                }
                Err(error) => {
                    assert!(!failed, "seed {seed}: {error} after a sync that failed");
                    failed = error.to_string().starts_with("cannot sync");
                }
            }
        }
        drop(pool);
        let disks = world.after_crash(&mut random);
        let world = World::new(seed, Fault::Writes(0), disks);
        let found = contents(&world.open().unwrap());
        assert!(model.is(&found), "seed {seed}: {found:?}, and {:?}", model.committed);
    }
    assert!(broken > seeds() / 8, "{broken} were broken");
}

const ACCOUNTS: u64 = 50;

/// Shows that a power failure neither loses nor makes a coin, and keeps reported commits. Three
/// threads move money between pages, another commits and moves all pages to the file, and one
/// reads.
#[test]
fn changes_of_many_threads_are_whole_after_a_crash() {
    for seed in 0..seeds() / 8 {
        let world = World::new(seed, Fault::PowerFails(u64::MAX), Default::default());
        let pool = world.open().unwrap();
        let change = pool.change();
        for _ in 0..ACCOUNTS {
            stamp(&mut change.allocate().unwrap(), 1_000);
        }
        change.commit().unwrap();
        {
            let mut machine = world.file.machine.lock().unwrap();
            machine.fault = Fault::PowerFails(machine.done + 50 + seed * 3);
        }
        std::thread::scope(|threads| {
            for thread in 0..3 {
                let pool = &pool;
                threads.spawn(move || {
                    let mut random = Random(seed * 8 + thread);
                    while transfer(pool, &mut random).is_ok() {}
                });
            }
            threads.spawn(|| {
                let mut random = Random(seed);
                let once = |random: &mut Random| {
                    if random.word().is_multiple_of(4) { pool.checkpoint() } else { pool.commit() }
                };
                while once(&mut random).is_ok() {}
            });
            threads.spawn(|| {
                let mut random = Random(seed);
                while let Ok(page) = pool.shared(PageId(random.word() % ACCOUNTS)) {
                    stamp_of(&page);
                }
            });
        });
        drop(pool);
        let disks = world.after_crash(&mut Random(seed));
        let world = World::new(seed, Fault::PowerFails(u64::MAX), disks);
        let found = contents(&world.open().unwrap());
        assert_eq!(found.iter().sum::<u64>(), ACCOUNTS * 1_000, "seed {seed}: {found:?}");
    }
}

fn transfer(pool: &Pool, random: &mut Random) -> Result<(), PoolError> {
    let (one, two) = (random.word() % ACCOUNTS, random.word() % ACCOUNTS);
    if one == two {
        return Ok(());
    }
    let change = pool.change();
    let mut low = change.exclusive(PageId(one.min(two)))?;
    let mut high = change.exclusive(PageId(one.max(two)))?;
    let (a, b) = (stamp_of(&low), stamp_of(&high));
    let moved = random.word() % (a + 1);
    stamp(&mut low, a - moved);
    stamp(&mut high, b + moved);
    Ok(())
}
