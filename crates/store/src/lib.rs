//! The store of the swap tiers: keeps the pages for which the program's memory has no room.
//!
//! A store is a list of tiers, fastest first: compressed RAM, then files and remote servers. It
//! keeps pages under slot numbers ([`ebb_mm::types::SlotId`]). A read returns exactly the stored
//! page or an error, never other data. The store keeps the 64-bit hash of every page beside the
//! page's location. It checks the hash at each read.
//!
//! ```text
//! put_batch -> same word throughout? -> slot table          get, get_or_start, start_batch
//!           -> compresses well?      -> RAM (arena)   -> decompress -> check hash -> page
//!           -> else                  -> file, server  -> read       -> check hash -> page
//! RAM at its limit: the pages stored longest ago are decompressed and written to the file or
//! server (demoted).
//! ```
//!
//! Threads: one thread at a time puts (others wait). Any number of threads get, start reads, poll
//! completions and remove.
//!
//! Invariants:
//! * STORE-1: a slot's entry names a location only while that location holds the page. So a put
//!   switches the entry after the write has ended, and then frees the old location.
//! * STORE-2: the page of a slot may be removed, moved or replaced during its read. The hash shows
//!   that, and the read looks the slot up again. The read fails if the slot no longer holds the
//!   requested page.
//! * STORE-3: a put that fails leaves the slot's old page.
//!
//! Lock order: `put`, then `index`. `index` is never held across I/O, compression, mapping or
//! another lock. A remote tier's `writer` comes after `put`. The locks of file space and read
//! queues are leaves.
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
pub use remote::open::RemoteError;
pub use remote::tls::TrustError;
pub use remote::url::{Address, Password, RedisSpec, UrlError};
pub use spec::{SizeError, TierFault, TierSpec, TierSpecError, UnitError, parse_tiers, unit_shift};
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
use table::Location;

/// Which tiers encrypt their pages. The key exists in this process's memory alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Encrypt {
    /// Remote tiers.
    #[default]
    Remote,
    /// Remote tiers and files.
    All,
    /// No tier.
    None,
}

/// Options of [`Store::open`] beside the tiers.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limit of a RAM tier that does not name one, in bytes.
    pub ram_limit_default: u64,
    /// Faults to inject.
    pub inject: Option<inject::Plan>,
    /// Whether to read through io_uring if the kernel permits it.
    pub use_io_uring: bool,
    /// The tiers to encrypt.
    pub encrypt: Encrypt,
    /// Receives a message when a server does not answer.
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
    /// The page repeats one word, and the store keeps only that.
    Same,
    /// The page is in compressed memory.
    Ram,
    /// The page is in a file, or on another machine.
    Far,
}

/// The store. See the crate's description.
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

/// Locks a mutex, even if another thread panicked while holding it. The guarded data is consistent
/// at every point where a panic could strike, or the panic ends the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store {
    /// Opens the tiers, fastest first.
    pub fn open(tiers: &[TierSpec], options: &Options) -> Result<Self, StoreError> {
        if tiers.is_empty() {
            return Err(StoreError::Tiers(
                "the list of swap tiers is empty; write ram, file or ram,file",
            ));
        }
        let injector = Arc::new(Injector::new(options.inject.as_ref()));
        let key = new_key(tiers, options.encrypt)?;
        let (mut ram_limit, mut far) = (None, Vec::new());
        for tier in tiers {
            match tier {
                TierSpec::Ram { limit } => {
                    if ram_limit.is_some() || !far.is_empty() {
                        return Err(StoreError::Tiers(
                            "the only place of a ram tier is the first; put ram first",
                        ));
                    }
                    if limit.is_some_and(|limit| limit < arena::SPAN_COST) {
                        return Err(StoreError::Tiers(
                            "the ram tier is too small for a page; give it 64K or more, or leave it out",
                        ));
                    }
                    ram_limit = Some(limit.unwrap_or(options.ram_limit_default));
                }
                TierSpec::File { limit: Some(..4096), .. } => {
                    return Err(StoreError::Tiers(
                        "the file tier is too small for a page; give it 4K or more, or leave it out",
                    ));
                }
                TierSpec::File { path, limit } => {
                    let index = far_index(&far)?;
                    let name = TierName::File(index - count_remote(&far));
                    let key = key.clone().filter(|_| options.encrypt == Encrypt::All);
                    let (path, injector) = (path.as_deref(), injector.clone());
                    let file = FileTier::open(index, name, path, *limit, key, injector)?;
                    far.push(FarTier::File(file));
                }
                TierSpec::Redis(spec) => {
                    if spec.limit.is_some_and(|limit| limit < 4096) {
                        return Err(StoreError::Tiers(
                            "the redis tier is too small for a page; give it 4K or more, or leave it out",
                        ));
                    }
                    let index = far_index(&far)?;
                    let name = TierName::Redis(count_remote(&far));
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

    /// Returns the hash of the page stored under a slot.
    #[must_use]
    pub fn hash_of(&self, slot: SlotId) -> Option<u64> {
        lock(&self.index).table.get(slot).map(|(hash, _)| hash)
    }

    /// Reports where the pages under slots are, in the order of the slots; `None` for a slot
    /// without a page.
    pub fn places(&self, slots: &[SlotId], found: &mut dyn FnMut(Option<Whereabouts>)) {
        /// Number of slots looked up in one hold of the lock. The number is small, because other
        /// threads look slots up for page faults.
        const SLICE: usize = 64;
        for slice in slots.chunks(SLICE) {
            let mut places = [None; SLICE];
            {
                let index = lock(&self.index);
                for (place, &slot) in places.iter_mut().zip(slice) {
                    *place = index.table.get(slot).map(|(_, place)| match place {
                        Location::Same(_) => Whereabouts::Same,
                        Location::Ram { .. } => Whereabouts::Ram,
                        Location::Far(_) => Whereabouts::Far,
                    });
                }
            }
            places[..slice.len()].iter().for_each(|&place| found(place));
        }
    }

    /// Returns whether the page under a slot is on another machine. Takes no lock if there is no
    /// remote tier.
    #[must_use]
    pub fn is_remote(&self, slot: SlotId) -> bool {
        if !self.has_remote {
            return false;
        }
        let place = lock(&self.index).table.get(slot).map(|(_, place)| place);
        let Some(Location::Far(place)) = place else { return false };
        matches!(self.far[usize::from(place.tier)], FarTier::Remote(_))
    }

    /// Returns whether the copy in a slot may stand for a page that leaves memory unchanged, with
    /// this hash. If not, the caller should put the page anew. A copy of another hash does not
    /// count. Nor does a copy that was demoted from RAM, because the page belongs in RAM again. A
    /// copy in RAM becomes the newest.
    #[must_use]
    pub fn reuse_copy(&self, slot: SlotId, hash: u64) -> bool {
        let mut index = lock(&self.index);
        match index.table.get(slot) {
            Some((there, _)) if there != hash => false,
            None => false,
            Some((_, Location::Ram { .. })) => {
                index.table.renew(slot);
                true
            }
            Some((_, Location::Far(_))) => !(self.has_ram && index.table.is_demoted(slot)),
            Some((_, Location::Same(_))) => true,
        }
    }

    /// Returns whether the copy under a slot is worth keeping beside the page in memory. A copy in
    /// RAM takes room from pages that have no copy elsewhere.
    #[must_use]
    pub fn is_worth_keeping(&self, slot: SlotId) -> bool {
        let place = lock(&self.index).table.get(slot);
        !matches!(place, Some((_, Location::Ram { .. })))
    }

    /// Forgets the page under a slot, if there is one.
    pub fn remove(&self, slot: SlotId) {
        /// Number of spare spans that removals leave for the next put to use or unmap.
        const SPARE_MAX: usize = 16;
        let (freed, span) = {
            let mut index = lock(&self.index);
            (index.clear(slot), index.arena.release(SPARE_MAX))
        };
        // Unmapping takes microseconds, so it is not done under the lock.
        drop(span);
        self.free_far_page(freed);
    }

    /// Removes the pages of this run from other machines, at the end of the run. Waits for a write
    /// under way.
    pub fn close(&self) {
        for tier in self.far.iter() {
            if let FarTier::Remote(remote) = tier {
                remote.close();
            }
        }
    }

    /// Returns the bytes that the RAM tier occupies now, waste included.
    #[must_use]
    pub fn ram_bytes(&self) -> u64 {
        lock(&self.index).arena.occupied()
    }

    /// Changes the limit of the RAM tier. The following calls of [`Store::put_batch`] apply a lower
    /// limit: each moves some pages to the next tier. Their batches may be empty.
    pub fn set_ram_limit(&self, bytes: u64) {
        if self.has_ram {
            lock(&self.index).arena.limit = bytes;
        }
    }

    /// Raises the limit of the RAM tier by `step` bytes, up to `most`.
    pub fn grow_ram(&self, step: u64, most: u64) {
        let mut index = lock(&self.index);
        if self.has_ram && index.arena.limit < most {
            index.arena.limit = (index.arena.limit + step).min(most);
        }
    }

    /// Returns whether any tier has room.
    #[must_use]
    pub fn has_room(&self) -> bool {
        lock(&self.index).arena.has_room() || self.far.iter().any(|tier| !tier.is_full())
    }

    /// Returns whether there is compressed memory, and a tier after it that takes pages.
    #[must_use]
    pub fn can_demote(&self) -> bool {
        self.has_ram && self.far.iter().any(|tier| !tier.is_full())
    }

    /// Returns a descriptor that is readable while completions wait for
    /// [`Store::poll_completions`].
    ///
    /// With io_uring the kernel may interrupt a waiting thread that has started reads. The thread
    /// must repeat a wait that fails with EINTR.
    #[must_use]
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.reads.event()
    }

    fn free_far_page(&self, place: Option<table::FarLocation>) {
        if let Some(place) = place {
            self.far[usize::from(place.tier)].free(place.page, 1);
        }
    }
}

/// Returns the number of the next tier.
fn far_index(far: &[FarTier]) -> Result<u8, StoreError> {
    u8::try_from(far.len())
        .map_err(|_| StoreError::Tiers("the list has more than 256 file and redis tiers"))
}

/// Returns the number of remote tiers of a list that has room for one more tier.
fn count_remote(far: &[FarTier]) -> u8 {
    far.iter().filter(|tier| matches!(tier, FarTier::Remote(_))).count() as u8
}

/// Creates a key, if any tier needs one.
fn new_key(tiers: &[TierSpec], encrypt: Encrypt) -> Result<Option<Arc<Key>>, StoreError> {
    let needs = |tier: &TierSpec| match tier {
        TierSpec::Ram { .. } => false,
        TierSpec::File { .. } => encrypt == Encrypt::All,
        TierSpec::Redis(_) => encrypt != Encrypt::None,
    };
    if !tiers.iter().any(needs) {
        return Ok(None);
    }
    let what = "a key for encryption (it needs a locked page: ulimit -l 64)";
    let key = Key::new().map_err(|source| StoreError::Setup { what, source })?;
    Ok(Some(Arc::new(key)))
}
