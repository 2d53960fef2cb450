//! The swap tiers: where pages go that the program's memory has no room for.
//!
//! A store is a list of tiers, fastest first: compressed RAM, then files and servers elsewhere. It keeps pages under slot
//! numbers ([`ebb_mm::types::SlotId`]) and gives back exactly what was stored, or an error, never
//! something else: the 64-bit hash of every page is kept beside its place and checked at each read.
//!
//! ```text
//! put_batch -> same word throughout? -> slot table          get, get_or_start, start_batch
//!           -> compresses well?      -> RAM (arena)   -> decompress -> check hash -> page
//!           -> else                  -> file, server  -> read       -> check hash -> page
//! RAM at its limit: the pages stored longest ago are decompressed and written to the file or server
//! (demoted).
//! ```
//!
//! Who calls what: one thread at a time puts (others wait); any number of threads get, start reads,
//! poll completions and remove.
//!
//! Invariants:
//! * STORE-1: a slot's entry names a place only while that place holds the page: entries are switched
//!   after a write has ended, and places are freed after the entry is switched.
//! * STORE-2: a read that lost a race (its slot was removed, moved or stored anew meanwhile) is noticed
//!   by the hash and looked up again; it fails if the slot does not hold the page asked for any
//!   more.
//! * STORE-3: a put that fails leaves what the slot held before.
//!
//! Lock order: `put`, then `index`; `index` is never held across I/O, compression, mapping or
//! another lock. A remote tier's `writer` comes after `put`. The locks of file space and read queues are
//! leaves.
#![forbid(unsafe_code)]

mod arena;
mod crypt;
mod error;
mod far;
mod file;
mod get;
mod index;
pub mod inject;
mod notice;
mod page;
mod put;
mod reads;
mod remote;
mod spec;
mod stats;
mod table;

pub use error::{StoreError, TierName};
pub use get::Source;
pub use notice::Notice;
pub use page::{Page, ZERO_PAGE, page_hash};
pub use remote::ReadTimes;
pub use remote::url::{Address, Password, RedisSpec};
pub use spec::{TierSpec, TierSpecError, parse_tiers, unit_shift};
pub use stats::{StoreReads, StoreStats, TierStats};

use crypt::Key;
use ebb_mm::types::SlotId;
use far::FarTier;
use file::FileTier;
use index::Index;
use inject::Injector;
use put::PutState;
use reads::Reads;
use remote::RemoteTier;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::Place;

/// Which tiers get pages encrypted, under a key that is in this process's memory alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encrypt {
    /// Those on other machines.
    #[default]
    Remote,
    /// Files, too.
    All,
    /// None.
    None,
}

/// What [`Store::open`] needs to know beside the tiers.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limit of a RAM tier that does not name one, in bytes.
    pub ram_limit_default: u64,
    /// Faults to inject.
    pub inject: Option<inject::Plan>,
    /// Whether to read through io_uring where the kernel lets us.
    pub use_io_uring: bool,
    /// What is encrypted.
    pub encrypt: Encrypt,
    /// Who is told of a server that is away.
    pub notice: Notice,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ram_limit_default: u64::MAX,
            inject: None,
            use_io_uring: true,
            encrypt: Encrypt::default(),
            notice: Notice::default(),
        }
    }
}

/// Where a stored page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whereabouts {
    /// It repeats one word, which is all that is kept.
    Nowhere,
    /// In compressed memory.
    Ram,
    /// In a file, or on another machine.
    File,
}

/// The store.
pub struct Store {
    put: Mutex<PutState>,
    index: Mutex<Index>,
    far: Arc<[FarTier]>,
    reads: Reads,
    injector: Arc<Injector>,
    has_ram: bool,
    has_remote: bool,
    ram_reads: AtomicU64,
}

/// Locks, also after a panic of another thread: what the locks guard is consistent at every point
/// where a panic could strike, or the panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the tiers, fastest first.
    pub fn open(tiers: &[TierSpec], options: &Options) -> Result<Self, StoreError> {
        if tiers.is_empty() {
            return Err(StoreError::Tiers("no swap tier is given; write ram, file or ram,file"));
        }
        let injector = Arc::new(Injector::new(options.inject.as_ref()));
        let key = new_key(tiers, options.encrypt)?;
        let (mut ram_limit, mut far, mut files) = (None, Vec::new(), 0);
        for tier in tiers {
            match tier {
                TierSpec::Ram { limit } => {
                    if ram_limit.is_some() || !far.is_empty() {
                        return Err(StoreError::Tiers("one ram tier, and that first"));
                    }
                    if limit.is_some_and(|limit| limit < arena::SPAN_COST) {
                        return Err(StoreError::Tiers(
                            "a ram tier of less than 64K holds nothing: give it more or none",
                        ));
                    }
                    ram_limit = Some(limit.unwrap_or(options.ram_limit_default));
                }
                TierSpec::File { limit: Some(..4096), .. } => {
                    return Err(StoreError::Tiers(
                        "a file tier of less than 4K holds no page: give it more or leave it out",
                    ));
                }
                TierSpec::File { path, limit } => {
                    let name = TierName::File(files);
                    files += 1;
                    let key = key.clone().filter(|_| options.encrypt == Encrypt::All);
                    let (path, injector) = (path.as_deref(), injector.clone());
                    let file = FileTier::open(far_index(&far)?, name, path, *limit, key, injector)?;
                    far.push(FarTier::File(file));
                }
                TierSpec::Redis(spec) => {
                    if spec.limit.is_some_and(|limit| limit < 4096) {
                        return Err(StoreError::Tiers(
                            "a redis tier of less than 4K holds no page: give it more or leave it out",
                        ));
                    }
                    let index = far_index(&far)?;
                    let name = TierName::Redis(index - files);
                    let (injector, notice) = (injector.clone(), options.notice.clone());
                    let tier = RemoteTier::open(index, name, spec, key.clone(), injector, notice)?;
                    far.push(FarTier::Remote(tier));
                }
            }
        }
        let far: Arc<[FarTier]> = far.into();
        let has_remote = far.iter().any(|tier| matches!(tier, FarTier::Remote(_)));
        let reads = Reads::new(far.clone(), injector.clone(), options.use_io_uring)?;
        Ok(Self {
            put: Mutex::new(PutState::new()?),
            index: Mutex::new(Index::new(ram_limit.unwrap_or(0))),
            far,
            reads,
            injector,
            has_ram: ram_limit.is_some(),
            has_remote,
            ram_reads: AtomicU64::new(0),
        })
    }

    /// The hash of the page stored under a slot.
    #[must_use]
    pub fn hash_of(&self, slot: SlotId) -> Option<u64> {
        lock(&self.index).table.get(slot).map(|(hash, _)| hash)
    }

    /// Where the pages under slots are, in the order of the slots; None where there is none.
    pub fn places(&self, slots: &[SlotId], found: &mut dyn FnMut(Option<Whereabouts>)) {
        /// Others look slots up for touches: so many in a hold.
        const SLICE: usize = 64;
        for slice in slots.chunks(SLICE) {
            let mut places = [None; SLICE];
            {
                let index = lock(&self.index);
                for (place, &slot) in places.iter_mut().zip(slice) {
                    *place = index.table.get(slot).map(|(_, place)| match place {
                        Place::Same(_) => Whereabouts::Nowhere,
                        Place::Ram { .. } => Whereabouts::Ram,
                        Place::Far(_) => Whereabouts::File,
                    });
                }
            }
            places[..slice.len()].iter().for_each(|&place| found(place));
        }
    }

    /// Whether the page under a slot is on another machine. Takes no lock where none can be.
    #[must_use]
    pub fn is_remote(&self, slot: SlotId) -> bool {
        if !self.has_remote {
            return false;
        }
        let place = lock(&self.index).table.get(slot).map(|(_, place)| place);
        let Some(Place::Far(place)) = place else { return false };
        matches!(self.far[usize::from(place.tier)], FarTier::Remote(_))
    }

    /// A page leaves memory unchanged since it was read from a slot: whether what the slot holds may
    /// stand for it, or the page should be put anew. True if the hash is right, unless the page is in a
    /// file and would fit into RAM. In RAM it is the newest from now on.
    #[must_use]
    pub fn keep(&self, slot: SlotId, hash: u64) -> bool {
        let mut index = lock(&self.index);
        match index.table.get(slot) {
            Some((there, _)) if there != hash => false,
            None => false,
            Some((_, Place::Ram { .. })) => {
                index.table.renew(slot);
                true
            }
            Some((_, Place::Far(_))) => !(self.has_ram && index.table.is_demoted(slot)),
            Some((_, Place::Same(_))) => true,
        }
    }

    /// Whether the copy under a slot is worth keeping beside the page itself in memory: one in RAM
    /// takes room from pages that have no other.
    #[must_use]
    pub fn is_worth_keeping(&self, slot: SlotId) -> bool {
        let place = lock(&self.index).table.get(slot);
        !matches!(place, Some((_, Place::Ram { .. })))
    }

    /// Forgets the page under a slot, if there is one.
    pub fn remove(&self, slot: SlotId) {
        /// Spans left by removals that may wait for the next put to use or unmap them.
        const SPARE_MAX: usize = 16;
        let (freed, span) = {
            let mut index = lock(&self.index);
            (index.clear(slot), index.arena.release(SPARE_MAX))
        };
        // Unmapping takes microseconds: not under the lock.
        drop(span);
        self.free_far_page(freed);
    }

    /// Nothing is wanted any more: what was kept on other machines is removed. Waits for a write under way.
    pub fn close(&self) {
        for tier in self.far.iter() {
            if let FarTier::Remote(remote) = tier {
                remote.close();
            }
        }
    }

    /// What the RAM tier occupies now, waste included.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        lock(&self.index).arena.occupied()
    }

    /// Changes the limit of the RAM tier. A lower one takes effect with the following calls of
    /// [`Store::put_batch`], which may be empty: each moves some pages to the next tier.
    pub fn set_ram_limit(&self, bytes: u64) {
        if self.has_ram {
            lock(&self.index).arena.limit = bytes;
        }
    }

    /// Lets the RAM tier grow by `step` bytes, up to `most`.
    pub fn grow_ram(&self, step: u64, most: u64) {
        let mut index = lock(&self.index);
        if self.has_ram && index.arena.limit < most {
            index.arena.limit = (index.arena.limit + step).min(most);
        }
    }

    /// False when every tier is full.
    #[must_use]
    pub fn has_room(&self) -> bool {
        lock(&self.index).arena.has_room() || self.far.iter().any(|tier| !tier.is_full())
    }

    /// Whether there is compressed memory, and a tier after it that takes pages.
    #[must_use]
    pub fn can_demote(&self) -> bool {
        self.has_ram && self.far.iter().any(|tier| !tier.is_full())
    }

    /// A descriptor that is readable while completions wait for [`Store::poll_completions`].
    ///
    /// With io_uring the kernel may interrupt a thread that started reads while it waits: a wait
    /// that fails with EINTR is to be repeated.
    #[must_use]
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.reads.event()
    }

    fn free_far_page(&self, place: Option<table::FarPlace>) {
        if let Some(place) = place {
            self.far[usize::from(place.tier)].free(place.page, 1);
        }
    }
}

/// The number of the next tier.
fn far_index(far: &[FarTier]) -> Result<u8, StoreError> {
    u8::try_from(far.len()).map_err(|_| StoreError::Tiers("more than 256 file and redis tiers"))
}

/// A key, if any tier needs one.
fn new_key(tiers: &[TierSpec], encrypt: Encrypt) -> Result<Option<Arc<Key>>, StoreError> {
    let needs = |tier: &TierSpec| match tier {
        TierSpec::Ram { .. } => false,
        TierSpec::File { .. } => encrypt == Encrypt::All,
        TierSpec::Redis(_) => encrypt != Encrypt::None,
    };
    if !tiers.iter().any(needs) {
        return Ok(None);
    }
    let what = "a key that stays in memory (a locked page: ulimit -l 64)";
    let key = Key::new().map_err(|source| StoreError::Setup { what, source })?;
    Ok(Some(Arc::new(key)))
}
