//! Stores pages: the reclaim side.
//!
//! One thread at a time runs this code, under the lock `Store::put`, whose state has its buffers.
//! The thread locks the index only for short steps. It copies compressed bytes in or out, moves
//! objects together, or switches entries.

use crate::arena::{NoObject, SPAN_BYTES};
use crate::error::{StoreError, TierName};
use crate::page::{Page, page_hash, same_filled, same_filled_hash};
use crate::table::{FarLocation, Location};
use crate::{Store, lock};
use ebb_mm::types::{PAGE_SIZE, SlotId};
use ebb_sys::anon::AnonBuffer;
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};
use std::io;
use std::sync::Arc;

/// Number of pages written to a file at once.
const CLUSTER: usize = 64;
/// A page that compresses to more than 7/8 goes to the next tier if there is one.
const KEEP_MAX: usize = PAGE_SIZE / 8 * 7;
/// A page that compresses to more than 15/16 is not stored if there is no next tier.
const KEEP_ALONE_MAX: usize = PAGE_SIZE / 16 * 15;
/// Number of spare spans kept for the next pages.
const SPARE_KEEP: usize = 4;
/// Number of compaction steps in one call of `put_batch` while there is no need for room.
const UPKEEP_STEPS: usize = 16;
/// Largest number of rounds in one call of `put_batch` that bring the RAM tier under a lowered
/// limit. A round compacts or demotes.
const SHRINK_ROUNDS: usize = 8;
/// Largest number of steps by which a put makes room in RAM for one page. A step maps a span,
/// compacts or demotes.
const ROOM_TRIES: usize = 16;
/// Number of compaction steps before pages are demoted because no span is free.
const COMPACT_TRIES: usize = 64;

/// State that puts keep from call to call.
pub(crate) struct PutState {
    table: CompressTable,
    compressed: Vec<u8>,
    /// Pages on their way to a file because they compress badly.
    staging: AnonBuffer,
    staged: Vec<Staged>,
    demotion: Demotion,
}

/// Pages on their way from RAM to a file.
struct Demotion {
    staging: AnonBuffer,
    chosen: Vec<(SlotId, u64, Location)>,
    compressed: Box<Page>,
}

struct Staged {
    slot: SlotId,
    hash: u64,
    /// Index of the page in the batch.
    at: usize,
}

/// Why pages could not be written to any file.
enum NotWritten {
    /// No file has room.
    Full,
    /// The last file tried failed.
    Failed { tier: TierName, place: FarLocation, why: Arc<io::Error> },
}

impl NotWritten {
    fn error(&self, slot: SlotId) -> StoreError {
        match self {
            Self::Full => StoreError::Full,
            Self::Failed { tier, place, why } => StoreError::Write {
                tier: *tier,
                slot,
                offset: u64::from(place.page) * PAGE_SIZE as u64,
                source: match why.raw_os_error() {
                    Some(code) => io::Error::from_raw_os_error(code),
                    None => io::Error::new(why.kind(), why.clone()),
                },
            },
        }
    }
}

impl PutState {
    pub(crate) fn new() -> Result<Self, StoreError> {
        let buffer = || {
            AnonBuffer::new(CLUSTER * PAGE_SIZE)
                .map_err(|source| StoreError::Setup { what: "a write buffer", source })
        };
        Ok(Self {
            table: CompressTable::default(),
            compressed: vec![0; get_maximum_output_size(PAGE_SIZE)],
            staging: buffer()?,
            staged: Vec::with_capacity(CLUSTER),
            demotion: Demotion {
                staging: buffer()?,
                chosen: Vec::with_capacity(CLUSTER),
                compressed: Box::new([0; PAGE_SIZE]),
            },
        })
    }
}

impl Store {
    /// Stores pages under slots and replaces the slots' old pages. `results` gets one result for
    /// each page, in order. Pages that belong together should come together, in address order. The
    /// store lays the pages of a batch that go to a file side by side. An empty batch does upkeep
    /// only.
    pub fn put_batch(&self, pages: &[(SlotId, &Page)], results: &mut Vec<Result<(), StoreError>>) {
        results.clear();
        results.resize_with(pages.len(), || Ok(()));
        let mut put = lock(&self.put);
        let put = &mut *put;
        self.upkeep(&mut put.demotion);
        for (at, &(slot, page)) in pages.iter().enumerate() {
            if let Some(word) = same_filled(page) {
                let hash = same_filled_hash(word, page);
                let freed = lock(&self.index).set(slot, hash, Location::Same(word));
                self.free_far_page(freed);
                continue;
            }
            let hash = page_hash(page);
            if self.has_ram {
                match self.compress_to_ram(put, slot, hash, page) {
                    Ok(()) => continue,
                    Err(why) if self.far.is_empty() => {
                        results[at] = Err(why);
                        continue;
                    }
                    Err(_) => {}
                }
            }
            let start = put.staged.len() * PAGE_SIZE;
            put.staging[start..start + PAGE_SIZE].copy_from_slice(page);
            put.staged.push(Staged { slot, hash, at });
            if put.staged.len() == CLUSTER {
                self.flush(put, results);
            }
        }
        self.flush(put, results);
    }

    /// Compresses a page and keeps it in RAM if that is worth it and there is room. A page that
    /// hardly compresses would take as much room there as in the program.
    fn compress_to_ram(
        &self,
        put: &mut PutState,
        slot: SlotId,
        hash: u64,
        page: &Page,
    ) -> Result<(), StoreError> {
        let length = compress_into_with_table(page, &mut put.compressed, &mut put.table)
            .expect("the buffer is as large as the worst case");
        let most = if self.far.is_empty() { KEEP_ALONE_MAX } else { KEEP_MAX };
        if length > most {
            return Err(StoreError::NotSmaller);
        }
        if self.put_ram(&mut put.demotion, slot, hash, &put.compressed[..length]) {
            Ok(())
        } else {
            Err(StoreError::Full)
        }
    }

    /// Keeps bytes in RAM, mapping spans and demoting older pages as needed.
    fn put_ram(&self, demotion: &mut Demotion, slot: SlotId, hash: u64, bytes: &[u8]) -> bool {
        if self.injector.write().is_err() {
            return false;
        }
        for _ in 0..ROOM_TRIES {
            let stored = lock(&self.index).set_ram(slot, hash, bytes);
            match stored {
                Ok(freed) => {
                    self.free_far_page(freed);
                    return true;
                }
                Err(NoObject::NeedSpan) => {
                    let Ok(mut span) = AnonBuffer::new(SPAN_BYTES) else { return false };
                    // Done outside the lock, because populating a span takes microseconds.
                    span.populate();
                    lock(&self.index).arena.donate(span);
                }
                Err(NoObject::Full) => {
                    if !self.make_room(demotion) {
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Makes room in RAM by compaction, else by demoting the oldest pages. Returns false when
    /// neither is possible.
    fn make_room(&self, demotion: &mut Demotion) -> bool {
        for _ in 0..COMPACT_TRIES {
            let mut index = lock(&self.index);
            if !index.compact(false) {
                break;
            }
            if index.arena.has_spare() {
                return true;
            }
        }
        self.demote(demotion) > 0
    }

    /// Moves the pages that have been in RAM longest to a file. Returns how many.
    fn demote(&self, demotion: &mut Demotion) -> usize {
        if self.far.iter().all(|file| file.is_full()) {
            return 0;
        }
        demotion.chosen.clear();
        {
            let index = lock(&self.index);
            let mut next = index.table.oldest();
            while let Some(slot) = next
                && demotion.chosen.len() < CLUSTER
            {
                let (hash, place) = index.table.get(slot).expect("the queue holds stored pages");
                demotion.chosen.push((slot, hash, place));
                next = index.table.younger(slot);
            }
        }
        self.unpack(demotion);
        let Demotion { staging, chosen, .. } = demotion;
        let mut demoted = 0;
        let bytes = &staging[..chosen.len() * PAGE_SIZE];
        self.write(bytes, |at, written| {
            let Ok(place) = written else { return };
            let (slot, hash, before) = chosen[at];
            let mut index = lock(&self.index);
            if index.table.get(slot) == Some((hash, before)) {
                index.set(slot, hash, Location::Far(place));
                index.table.mark_demoted(slot);
                index.demoted += 1;
                demoted += 1;
            } else {
                drop(index);
                self.free_far_page(Some(place));
            }
        });
        demoted
    }

    /// Decompresses the chosen pages side by side into the staging buffer. Removes pages that have
    /// left their location from `chosen`.
    fn unpack(&self, demotion: &mut Demotion) {
        let Demotion { staging, chosen, compressed } = demotion;
        let mut kept = 0;
        for at in 0..chosen.len() {
            let (slot, hash, place) = chosen[at];
            let Location::Ram { object, length } = place else { continue };
            let length = usize::from(length);
            let page = &mut staging[kept * PAGE_SIZE..(kept + 1) * PAGE_SIZE];
            {
                let index = lock(&self.index);
                if index.table.get(slot) != Some((hash, place)) {
                    continue;
                }
                let to = if length == PAGE_SIZE { &mut *page } else { &mut compressed[..] };
                to[..length].copy_from_slice(index.arena.bytes(object, length));
            }
            if length < PAGE_SIZE
                && lz4_flex::block::decompress_into(&compressed[..length], page).is_err()
            {
                // The page is damaged in RAM. Its hash stays in the entry, so a later read gets an
                // error.
                page.fill(0);
            }
            chosen[kept] = chosen[at];
            kept += 1;
        }
        chosen.truncate(kept);
    }

    /// Writes the staged pages to a file and switches their entries.
    fn flush(&self, put: &mut PutState, results: &mut [Result<(), StoreError>]) {
        let PutState { staging, staged, .. } = put;
        self.write(&staging[..staged.len() * PAGE_SIZE], |at, written| {
            let Staged { slot, hash, at: page } = staged[at];
            match written {
                Ok(place) => {
                    let freed = lock(&self.index).set(slot, hash, Location::Far(place));
                    self.free_far_page(freed);
                }
                Err(why) => results[page] = Err(why.error(slot)),
            }
        });
        staged.clear();
    }

    /// Writes pages to the first file that takes them, in runs as long as the space map has them.
    /// Calls `report` with each page's index and its location or error.
    fn write(&self, bytes: &[u8], mut report: impl FnMut(usize, Result<FarLocation, &NotWritten>)) {
        let count = bytes.len() / PAGE_SIZE;
        let mut at = 0;
        while at < count {
            match self.write_run(&bytes[at * PAGE_SIZE..]) {
                Ok((place, written)) => {
                    for page in 0..written {
                        let page_place = FarLocation { page: place.page + page as u32, ..place };
                        report(at + page, Ok(page_place));
                    }
                    at += written;
                }
                Err((why, failed)) => {
                    (at..at + failed).for_each(|at| report(at, Err(&why)));
                    at += failed;
                }
            }
        }
    }

    /// Writes one run from the start of `bytes`. Returns its location and number of pages, or the
    /// error and the number of pages concerned.
    fn write_run(&self, bytes: &[u8]) -> Result<(FarLocation, usize), (NotWritten, usize)> {
        let wanted = bytes.len() / PAGE_SIZE;
        let mut why = (NotWritten::Full, wanted);
        for file in self.far.iter() {
            // A run that could not be written stays allocated while another location is tried.
            let mut held = None;
            for _ in 0..2 {
                let Some((first, count)) = file.allocate(wanted) else { break };
                let place = FarLocation { tier: file.index(), page: first };
                let written = file.write(first, &bytes[..count * PAGE_SIZE]);
                if let Some((first, count)) = held.take() {
                    file.free(first, count);
                }
                match written {
                    Ok(true) => return Ok((place, count)),
                    Ok(false) => {
                        file.free(first, count);
                        file.refuse();
                        break;
                    }
                    Err(error) => {
                        let (tier, error) = (file.name(), Arc::new(error));
                        why = (NotWritten::Failed { tier, place, why: error }, count);
                        if file.is_remote() {
                            // The write has waited for the server, and another number of the same
                            // tier is no better.
                            file.free(first, count);
                            break;
                        }
                        held = Some((first, count));
                    }
                }
            }
            if let Some((first, count)) = held {
                file.free(first, count);
            }
        }
        Err(why)
    }

    /// Keeps the RAM tier under its limit, compact, and without idle memory.
    fn upkeep(&self, demotion: &mut Demotion) {
        for _ in 0..UPKEEP_STEPS {
            if !lock(&self.index).compact(true) {
                break;
            }
        }
        for _ in 0..SHRINK_ROUNDS {
            self.release_spare();
            let over = {
                let index = lock(&self.index);
                index.arena.occupied() > index.arena.limit
            };
            if !over || !self.make_room(demotion) {
                break;
            }
        }
        self.release_spare();
    }

    /// Unmaps spare spans beyond [`SPARE_KEEP`], and any spare span while the arena exceeds its
    /// limit.
    fn release_spare(&self) {
        loop {
            // A statement of its own, so that the span is unmapped after the lock is released.
            let span = lock(&self.index).arena.release(SPARE_KEEP);
            if span.is_none() {
                break;
            }
        }
    }
}
