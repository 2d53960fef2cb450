//! Reads pages back from the store.
//!
//! Reading a page in RAM takes one short lock, under which its compressed bytes are copied out.
//! Decompression and the check of the hash follow without the lock. There is no allocation and no
//! system call.

use crate::error::{StoreError, TierName};
use crate::far::FarTier;
use crate::page::{Page, ZERO_PAGE, fill, page_hash, same_filled_hash};
use crate::reads::{Job, PAGES_MAX, Wanted};
use crate::table::{FarLocation, Location};
use crate::{Store, lock};
use ebb_mm::types::{PAGE_SIZE, SlotId};
use std::cell::RefCell;
use std::io;
use std::sync::atomic::Ordering;

/// How often a read may find that its page has moved meanwhile.
const MOVES_MAX: usize = 16;
/// Number of unwanted pages that a transfer may include between two wanted ones.
const GAP_MAX: u32 = 1;
/// Number of slots looked up in one hold of the lock.
const LOOKUP_MAX: usize = 64;

/// Where in memory a page was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In its table entry, because the page repeats one word.
    Same,
    /// In compressed memory.
    Compressed,
}

/// Result of a first look at a slot.
enum Found {
    /// The page was in RAM and is now in the caller's buffer.
    Filled(Source),
    /// The page is in a file or on a server.
    Far { hash: u64, place: FarLocation },
}

/// A wanted page of a file or a server.
#[derive(Clone, Copy)]
struct Look {
    place: FarLocation,
    wanted: Wanted,
}

/// Location of a page in RAM.
#[derive(Clone, Copy)]
enum At {
    Same { word: u64 },
    Arena { length: usize, offset: u64 },
}

impl At {
    /// Returns the offset in the arena, for messages.
    fn offset(self) -> u64 {
        match self {
            Self::Same { .. } => 0,
            Self::Arena { offset, .. } => offset,
        }
    }
}

thread_local! {
    /// Holds compressed bytes between the lock and their decompression. It is not on the stack,
    /// because clearing 4 KiB first costs as much as copying 2 KiB.
    static COMPRESSED: RefCell<Page> = const { RefCell::new(ZERO_PAGE) };
}

impl Store {
    /// Reads a page. Waits for the file or server if the page is there.
    pub fn get(&self, slot: SlotId, page: &mut Page) -> Result<(), StoreError> {
        self.get_if(slot, None, page, true).map(|_| ())
    }

    /// Fills `page` if the slot's page is in RAM, and returns the source. Returns `None` if the
    /// slot's page is in a file or on a server.
    pub fn get_now(&self, slot: SlotId, page: &mut Page) -> Result<Option<Source>, StoreError> {
        Ok(match self.look(slot, None, page)? {
            Found::Filled(source) => Some(source),
            Found::Far { .. } => None,
        })
    }

    /// Fills `page` and returns true if the slot's page is in RAM. Otherwise starts a read that
    /// will complete with `token`, and returns false.
    pub fn get_or_start(
        &self,
        slot: SlotId,
        page: &mut Page,
        token: u64,
    ) -> Result<bool, StoreError> {
        match self.look(slot, None, page)? {
            Found::Filled(_) => Ok(true),
            Found::Far { hash, place } => {
                let mut job = self.reads.job(place, 1)?;
                job.want(Wanted { slot, hash, token, page: 0 });
                self.reads.submit(job);
                Ok(false)
            }
        }
    }

    /// Starts reading several pages. Pages that lie side by side in a file take one transfer. Every
    /// token completes exactly once, also those of pages in RAM and of slots without a page.
    pub fn start_batch(&self, reads: &[(SlotId, u64)]) {
        for reads in reads.chunks(LOOKUP_MAX) {
            // Far pages fill the array from the front, all others from the back.
            let nowhere = FarLocation { tier: 0, page: 0 };
            let mut found = [Look { place: nowhere, wanted: Wanted::NONE }; LOOKUP_MAX];
            let (mut front, mut back) = (0, LOOKUP_MAX);
            {
                let index = lock(&self.index);
                for &(slot, token) in reads {
                    let entry = index.table.get(slot);
                    let hash = entry.map_or(0, |entry| entry.0);
                    let wanted = Wanted { slot, hash, token, page: 0 };
                    if let Some((_, Location::Far(place))) = entry {
                        found[front] = Look { place, wanted };
                        front += 1;
                    } else {
                        back -= 1;
                        found[back].wanted = wanted;
                    }
                }
            }
            self.reads.add_single(found[back..].iter().map(|look| look.wanted));
            let in_files = &mut found[..front];
            in_files.sort_unstable_by_key(|look| look.place);
            self.start_sorted(in_files);
        }
    }

    /// Groups far pages, in file order, into transfers.
    fn start_sorted(&self, mut looks: &[Look]) {
        let mut batch = self.reads.batch();
        while let Some(first) = looks.first().map(|look| look.place) {
            let near = |a: FarLocation, b: FarLocation| {
                a.tier == b.tier
                    && b.page - a.page <= GAP_MAX + 1
                    && ((b.page - first.page) as usize) < PAGES_MAX
            };
            // At most as many pages as fit in a job, even if the same slot is requested many times.
            let pairs = looks.windows(2).take(PAGES_MAX - 1);
            let count = 1 + pairs.take_while(|pair| near(pair[0].place, pair[1].place)).count();
            let (group, rest) = looks.split_at(count);
            looks = rest;
            let last = group[count - 1].place;
            let job = self.reads.job(first, (last.page - first.page) as usize + 1);
            let wanted = group.iter().map(|look| {
                let page = (look.place.page - first.page) as u8;
                Wanted { page, ..look.wanted }
            });
            match job {
                Ok(mut job) => {
                    wanted.for_each(|wanted| job.want(wanted));
                    batch.push(job);
                }
                // There is no memory for a buffer, so the poller will read page by page.
                Err(_) => self.reads.add_single(wanted),
            }
        }
    }

    /// Calls `f` with every read that has completed. Any thread may call it; `f` may call the
    /// store.
    pub fn poll_completions(&self, f: &mut dyn FnMut(u64, Result<&Page, StoreError>)) {
        self.reads.begin_poll();
        while let Some(wanted) = self.reads.next_alone() {
            self.complete_single(&wanted, f);
        }
        while let Some(mut job) = self.reads.next() {
            self.complete_job(&mut job, f);
            self.reads.recycle(job);
        }
    }

    fn complete_job(&self, job: &mut Job, f: &mut dyn FnMut(u64, Result<&Page, StoreError>)) {
        let outcome = std::mem::replace(&mut job.outcome, Ok(()));
        let from = job.from;
        if let Err(source) = outcome {
            if let [wanted] = *job.wanted() {
                match self.why(&wanted, from, Err(source)) {
                    Some(error) => f(wanted.token, Err(error)),
                    None => self.complete_single(&wanted, f),
                }
            } else {
                // A bad block, or a node that is away, must not make the other reads of the
                // transfer fail.
                for at in 0..job.wanted().len() {
                    let wanted = job.wanted()[at];
                    self.complete_single(&wanted, f);
                }
            }
            return;
        }
        for at in 0..job.wanted().len() {
            let wanted = job.wanted()[at];
            let (bytes, page_results) = job.content();
            let (pages, _) = bytes.as_chunks::<PAGE_SIZE>();
            let page = &pages[usize::from(wanted.page)];
            let outcome = match page_results[usize::from(wanted.page)].error() {
                Some(error) => Err(error),
                None => Ok(page_hash(page)),
            };
            if matches!(outcome, Ok(found) if found == wanted.hash) {
                f(wanted.token, Ok(page));
                continue;
            }
            let place = FarLocation { page: from.page + u32::from(wanted.page), ..from };
            match self.why(&wanted, place, outcome) {
                Some(error) => f(wanted.token, Err(error)),
                None => self.complete_single(&wanted, f),
            }
        }
    }

    /// Completes the read of a page by reading it synchronously. If the page is on a server, starts
    /// a new read instead, because the poller does not wait for servers.
    fn complete_single(&self, wanted: &Wanted, f: &mut dyn FnMut(u64, Result<&Page, StoreError>)) {
        let mut page = ZERO_PAGE;
        let result = match self.get_if(wanted.slot, Some(wanted.hash), &mut page, false) {
            Ok(None) => Ok(()),
            Ok(Some(place)) => match self.reads.job(place, 1) {
                Ok(mut job) => {
                    job.want(Wanted { page: 0, ..*wanted });
                    return self.reads.submit(job);
                }
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        f(wanted.token, result.map(|()| &page));
    }

    /// Returns the error that a failed read of a far page means. Returns `None` when the page has
    /// moved, so that the failure means nothing. `outcome` is the hash found, or the error.
    fn why(
        &self,
        wanted: &Wanted,
        place: FarLocation,
        outcome: Result<u64, io::Error>,
    ) -> Option<StoreError> {
        let now = lock(&self.index).table.get(wanted.slot);
        if now != Some((wanted.hash, Location::Far(place))) {
            return None;
        }
        let tier = self.far[usize::from(place.tier)].name();
        let (slot, expected) = (wanted.slot, wanted.hash);
        let offset = u64::from(place.page) * PAGE_SIZE as u64;
        Some(match outcome {
            Ok(found) => StoreError::Corrupt { tier, slot, offset, expected, found },
            Err(source) => StoreError::Read { tier, slot, offset, source },
        })
    }

    /// Reads a page. With `expected`, fails unless the slot still holds the page of that hash.
    /// Without `wait`, returns the location of a page on a server instead of reading it.
    fn get_if(
        &self,
        slot: SlotId,
        expected: Option<u64>,
        page: &mut Page,
        wait: bool,
    ) -> Result<Option<FarLocation>, StoreError> {
        for _ in 0..MOVES_MAX {
            let (hash, place) = match self.look(slot, expected, page)? {
                Found::Filled(_) => return Ok(None),
                Found::Far { hash, place } => (hash, place),
            };
            let wanted = Wanted { slot, hash, token: 0, page: 0 };
            let read = match &self.far[usize::from(place.tier)] {
                FarTier::Remote(_) if !wait => return Ok(Some(place)),
                FarTier::Remote(remote) => remote.read(place.page, page),
                FarTier::File(file) => {
                    let mut job = self.reads.job(place, 1)?;
                    job.want(wanted);
                    let (bytes, page_results) = job.content();
                    let read = file.read(place.page, bytes, page_results);
                    let read = read.and_then(|()| page_results[0].error().map_or(Ok(()), Err));
                    page.copy_from_slice(bytes);
                    self.reads.recycle(job);
                    read
                }
            };
            let outcome = match read {
                Ok(()) => match page_hash(page) {
                    found if found == hash => return Ok(None),
                    found => Ok(found),
                },
                Err(error) => Err(error),
            };
            if let Some(error) = self.why(&wanted, place, outcome) {
                return Err(error);
            }
        }
        // The slot was stored anew at every look, so the caller cannot need the old page any more.
        Err(StoreError::NotStored { slot })
    }

    /// Looks a slot up, and fills `page` if the slot's page is in RAM.
    fn look(
        &self,
        slot: SlotId,
        expected: Option<u64>,
        page: &mut Page,
    ) -> Result<Found, StoreError> {
        COMPRESSED.with_borrow_mut(|compressed| self.look_with(compressed, slot, expected, page))
    }

    fn look_with(
        &self,
        compressed: &mut Page,
        slot: SlotId,
        expected: Option<u64>,
        page: &mut Page,
    ) -> Result<Found, StoreError> {
        let (hash, at) = {
            let mut index = lock(&self.index);
            let (hash, place) = index.table.get(slot).ok_or(StoreError::NotStored { slot })?;
            index.note_read(slot);
            if expected.is_some_and(|expected| expected != hash) {
                return Err(StoreError::NotStored { slot });
            }
            let at = match place {
                Location::Same(word) => At::Same { word },
                Location::Ram { object, length } => {
                    let length = usize::from(length);
                    let to = if length == PAGE_SIZE { &mut *page } else { &mut *compressed };
                    to[..length].copy_from_slice(index.arena.bytes(object, length));
                    At::Arena { length, offset: index.arena.offset(object) }
                }
                Location::Far(place) => return Ok(Found::Far { hash, place }),
            };
            (hash, at)
        };
        // Relaxed, because it is a statistic.
        self.ram_reads.fetch_add(1, Ordering::Relaxed);
        let (tier, offset) = (TierName::Ram, at.offset());
        self.injector.read().map_err(|source| StoreError::Read { tier, slot, offset, source })?;
        match at {
            At::Same { word } => fill(page, word),
            At::Arena { length, .. } if length < PAGE_SIZE => {
                let done = lz4_flex::block::decompress_into(&compressed[..length], page);
                if !matches!(done, Ok(PAGE_SIZE)) {
                    let source = match done {
                        Ok(bytes) => io::Error::other(format!("it decompresses to {bytes} bytes")),
                        Err(error) => io::Error::other(error),
                    };
                    return Err(StoreError::Read { tier, slot, offset, source });
                }
            }
            At::Arena { .. } => {}
        }
        self.injector.flip(page);
        let found = match at {
            At::Same { word } if !self.injector.is_active() => same_filled_hash(word, page),
            _ => page_hash(page),
        };
        if found != hash {
            return Err(StoreError::Corrupt { tier, slot, offset, expected: hash, found });
        }
        Ok(Found::Filled(match at {
            At::Same { .. } => Source::Same,
            At::Arena { .. } => Source::Compressed,
        }))
    }
}
