//! Flusher: chooses the dirty file pages to write next and records how each write ended.
//!
//! Files with dirty pages wait in a queue. A batch takes the file that has waited longest, if it is
//! due. It takes that file's pages in file order, up to a maximum, from where the last batch
//! stopped. A file with pages left goes to the back of the queue. A file that has expired goes to
//! the front.
//!
//! As in the kernel, the flusher writes all dirty pages of a file that has expired. If reclaim
//! asks, the flusher writes all dirty pages of all files. In both cases it takes batch after batch,
//! until it has begun as many pages as were dirty at first.

use std::sync::Arc;

use super::cache::{FileId, PageCache};
use super::limits::{Limits, Thresholds};
use ebb_mm::folio::Word;
use ebb_mm::lru::{Ctx, Lruvec};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::space::Pte;
use ebb_mm::types::{Pfn, Vpn};

/// Most pages of one file that one batch begins to write.
pub const BATCH_MAX: u64 = if cfg!(test) { 4 } else { 1024 };

/// Consecutive pages of a file to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// File of the pages.
    pub file: FileId,
    /// First page.
    pub page: u64,
    /// Frames of the pages, in order.
    pub frames: Vec<Pfn>,
}

/// Why pages are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The pages are old.
    Age,
    /// There are too many dirty pages, or reclaim asked.
    Amount,
    /// A caller waits until this file is on the device.
    Sync(FileId),
}

impl PageCache {
    /// Asks the flusher to work, because reclaim met dirty pages at the old end.
    pub fn ask_flusher(&mut self) {
        self.flusher_asked = true;
    }

    /// Returns whether reclaim has asked and the flusher has not yet responded.
    #[must_use]
    pub fn flusher_asked(&self) -> bool {
        self.flusher_asked
    }

    /// Returns how often the flusher has responded to reclaim.
    #[must_use]
    pub fn flusher_wakes(&self) -> u64 {
        self.wakes
    }

    /// Returns whether the flusher has work that cannot wait for its next round.
    #[must_use]
    pub fn flush_now(&self, t: &Thresholds) -> bool {
        self.dirty > 0
            && (self.flusher_asked
                || self.asked_left + self.expired_left > 0
                || self.dirty > t.background)
    }

    /// Chooses the flusher's next work: one batch, or nothing.
    pub fn next_batch(&mut self, cx: &Ctx, limits: &Limits, t: &Thresholds) -> Vec<Run> {
        if std::mem::take(&mut self.flusher_asked) {
            self.wakes += 1;
            self.asked_left = self.dirty;
        }
        let amount = self.asked_left > 0 || self.dirty > t.background;
        let why = if amount { Why::Amount } else { Why::Age };
        for _ in 0..self.queue.len() {
            let Some(&id) = self.queue.front() else { break };
            let file = self.file_mut(id);
            let left = file.dirty.len() as u64;
            if file.expired_left == 0 && cx.now_ms >= file.since_ms + limits.expire_ms {
                file.expired_left = left;
                self.expired_left += left;
            }
            let file = self.file_mut(id);
            if left == 0 || amount || file.expired_left > 0 {
                self.queue.pop_front();
                self.file_mut(id).queued = false;
                let runs = self.take_batch(cx, id, why, BATCH_MAX);
                if !runs.is_empty() {
                    return runs;
                }
            } else {
                // Files behind this one have waited less.
                break;
            }
        }
        // All remaining dirty pages are being written already.
        self.asked_left = 0;
        Vec::new()
    }

    /// Begins to write up to `most` pages of a file. Skips pages that are being written already.
    pub fn take_batch(&mut self, cx: &Ctx, id: FileId, why: Why, most: u64) -> Vec<Run> {
        let file = self.file_mut(id);
        let space = Arc::clone(&file.space);
        let from = if matches!(why, Why::Sync(_)) { 0 } else { file.cursor };
        let mut runs: Vec<Run> = Vec::new();
        // Some pages may be under writeback already, so examine more pages than the batch can take.
        let looked = usize::try_from(most.saturating_mul(4)).unwrap_or(usize::MAX);
        let (after, before) = (file.dirty.range(from..), file.dirty.range(..from));
        let order: Vec<u64> = after.chain(before).take(looked).copied().collect();
        let mut taken = 0;
        for page in order {
            if taken == most {
                break;
            }
            let place = space.tree().place(Vpn(page));
            let pfn = place.get().pfn();
            if cx.folios.word(pfn).has(Word::WRITEBACK) {
                continue;
            }
            // From here on, the next store through a mapping counts as the first one again.
            place.table.clear(place.index, Pte::DIRTY);
            cx.folios.update(pfn, |w| w.without(Word::DIRTY).with(Word::WRITEBACK));
            let file = self.file_mut(id);
            file.dirty.remove(&page);
            file.cursor = page + 1;
            taken += 1;
            match runs.last_mut() {
                Some(run) if run.page + run.frames.len() as u64 == page => run.frames.push(pfn),
                _ => runs.push(Run { file: id, page, frames: vec![pfn] }),
            }
        }
        self.dirty -= taken;
        self.writing += taken;
        self.asked_left = self.asked_left.saturating_sub(taken).min(self.dirty);
        let file = self.file_mut(id);
        file.writing += taken;
        let expired_left = if taken == 0 { 0 } else { file.expired_left.saturating_sub(taken) };
        let expired_left = expired_left.min(file.dirty.len() as u64);
        let paid = file.expired_left - expired_left;
        if expired_left == 0 && (paid > 0 || file.dirty.is_empty()) {
            file.since_ms = cx.now_ms;
        }
        file.expired_left = expired_left;
        if !file.dirty.is_empty() && !file.queued {
            file.queued = true;
            if expired_left > 0 {
                self.queue.push_front(id);
            } else {
                self.queue.push_back(id);
            }
        }
        self.expired_left -= paid;
        runs
    }

    /// Begins to write one dirty page, alone. Returns `None` if the page is not dirty, or is being
    /// written already.
    pub fn take_one(&mut self, cx: &Ctx, pfn: Pfn) -> Option<(FileId, u64)> {
        let w = cx.folios.word(pfn);
        let (mm, vpn) = cx.folios.owner(pfn);
        let id = self.file_of(mm)?;
        if !w.has(Word::DIRTY) || w.has(Word::WRITEBACK) {
            return None;
        }
        let space = Arc::clone(&self.file_mut(id).space);
        let place = space.tree().place(vpn);
        place.table.clear(place.index, Pte::DIRTY);
        cx.folios.update(pfn, |w| w.without(Word::DIRTY).with(Word::WRITEBACK));
        self.dirty -= 1;
        self.writing += 1;
        let file = self.file_mut(id);
        file.dirty.remove(&vpn.0);
        file.writing += 1;
        Some((id, vpn.0))
    }

    /// Records the end of one page's write. After a failure the page is dirty again, and its file
    /// counts the failure.
    pub fn end_write(&mut self, cx: &Ctx, v: &Lruvec, pfn: Pfn, ok: bool) {
        let (mm, vpn) = cx.folios.owner(pfn);
        let Some(id) = self.file_of(mm) else { return };
        self.writing -= 1;
        self.count_clean(cx, pfn);
        self.file_mut(id).writing -= 1;
        if ok {
            self.written += 1;
            cx.stat.add(Event::NrWritten, 1);
        } else {
            self.file_mut(id).failures += 1;
            self.make_dirty(cx, id, vpn.0, pfn);
        }
        v.end_writeback(cx, pfn);
    }
}
