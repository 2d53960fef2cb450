//! Dirty file pages: who writes them, when, and who has to wait.
//!
//! A reduced model of the kernel's: pages are written in the order in which they became dirty, in runs
//! of neighbours, once they are old, while there are more than the background share, and whenever
//! reclaim asks. Who dirties a page while the share of dirty and written pages is at its limit waits.
//! The shares are of all memory, or of the smallest memcg's limit.
//!
//! Invariants
//! * I1: `dirty` counts the file folios that are `DIRTY`; each has an entry in the queue.
//! * I2: `writeback` counts the file folios that are `WRITEBACK`.

use std::collections::VecDeque;

use ebb_core::folio::{LruType, Word};
use ebb_core::types::{Pfn, Vpn};
use serde::Deserialize;

use super::mem::Mem;

/// Shares and times, as in the kernel's `vm.dirty_*`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DirtySpec {
    /// Percent of memory from which the flusher works.
    pub background_pct: f64,
    /// Percent of memory from which writers wait.
    pub limit_pct: f64,
    /// The age at which a page is written.
    pub expire_s: f64,
    /// How often the flusher looks.
    pub interval_s: f64,
}

impl Default for DirtySpec {
    fn default() -> Self {
        Self { background_pct: 10.0, limit_pct: 20.0, expire_s: 30.0, interval_s: 5.0 }
    }
}

/// One page that became dirty.
#[derive(Clone, Copy, Debug)]
struct Entry {
    pfn: u32,
    space: u32,
    page: u32,
    since_ns: u64,
}

/// The dirty pages.
#[derive(Debug, Default)]
pub struct Flusher {
    spec: DirtySpec,
    queue: VecDeque<Entry>,
    /// Dirty file pages.
    pub dirty: u64,
    /// File pages being written.
    pub writeback: u64,
    /// The flusher has an event pending.
    pub awake: bool,
    /// Times it was asked by reclaim.
    pub wakes: u64,
}

/// Pages started at a time.
const BATCH: usize = 1024;

impl Flusher {
    /// With these shares.
    #[must_use]
    pub fn new(spec: DirtySpec) -> Self {
        Self { spec, ..Self::default() }
    }

    /// How often it looks.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        (self.spec.interval_s * 1e9) as u64
    }

    /// A clean page became dirty.
    pub(super) fn add(&mut self, pfn: Pfn, space: usize, page: u64, now: u64) {
        self.dirty += 1;
        let (space, page) = (space as u32, page as u32);
        self.queue.push_back(Entry { pfn: pfn.0, space, page, since_ns: now });
    }
}

impl Mem {
    fn dirty_share(&self, pct: f64) -> u64 {
        let all: u64 = self.out.frames.zones().iter().map(|z| z.state().managed()).sum();
        let least = self.memcgs.iter().map(|m| m.limit).min().unwrap_or(all).min(all);
        (least as f64 * pct / 100.0) as u64
    }

    /// Whether writers have to wait.
    #[must_use]
    pub fn too_dirty(&self) -> bool {
        let f = &self.flusher;
        f.dirty > 0 && f.dirty + f.writeback > self.dirty_share(f.spec.limit_pct)
    }

    /// Whether the flusher has work that cannot wait for its next look.
    #[must_use]
    pub fn flusher_needed(&self) -> bool {
        let f = &self.flusher;
        f.dirty > 0
            && (self.out.flusher_wanted || f.dirty > self.dirty_share(f.spec.background_pct))
    }

    /// Starts writes of what is due, or of one space whatever its age. Returns when the last ends.
    pub fn flush(&mut self, now: u64, only: Option<usize>) -> u64 {
        let background = self.dirty_share(self.flusher.spec.background_pct);
        let expire = (self.flusher.spec.expire_s * 1e9) as u64;
        let asked = std::mem::take(&mut self.out.flusher_wanted);
        self.flusher.wakes += u64::from(asked);
        let mut due = Vec::new();
        for _ in 0..self.flusher.queue.len() {
            let Some(e) = self.flusher.queue.pop_front() else { break };
            let old = now >= e.since_ns + expire;
            let wanted = match only {
                Some(space) => e.space as usize == space,
                None => due.len() < BATCH && (asked || old || self.flusher.dirty > background),
            };
            if !wanted {
                if only.is_none() {
                    self.flusher.queue.push_front(e);
                    break;
                }
                self.flusher.queue.push_back(e);
            } else if self.start(e) {
                due.push(e);
            }
        }
        due.sort_unstable_by_key(|e| (e.space, e.page));
        let mut last = now;
        let mut i = 0;
        while i < due.len() {
            let mut n = 1;
            while i + n < due.len()
                && due[i + n].space == due[i].space
                && due[i + n].page == due[i].page + n as u32
            {
                n += 1;
            }
            let place = (u64::from(due[i].space) << 36) + u64::from(due[i].page);
            let done = self.disk.submit(now, true, place, n as u64);
            for e in &due[i..i + n] {
                self.out.started.push((done, Pfn(e.pfn)));
            }
            self.out.writing += n as u64;
            last = last.max(done);
            i += n;
        }
        last
    }

    /// Marks a page as being written. False if it is none of the kind any more.
    fn start(&mut self, e: Entry) -> bool {
        let pfn = Pfn(e.pfn);
        let w = self.folios.word(pfn);
        let owner = (self.list[e.space as usize].id(), Vpn(u64::from(e.page)));
        if self.folios.owner(pfn) != owner || w.ty() != LruType::File || !w.has(Word::DIRTY) {
            return false;
        }
        if w.has(Word::WRITEBACK) {
            // Dirtied again while being written: later.
            self.flusher.queue.push_back(e);
            return false;
        }
        self.folios.update(pfn, |w| w.without(Word::DIRTY).with(Word::WRITEBACK));
        self.flusher.dirty -= 1;
        self.flusher.writeback += 1;
        true
    }
}
