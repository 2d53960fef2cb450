//! The flusher of the simulated machine: when it works, and for what writers wait.
//!
//! The engine decides which pages are dirty, which are written next, and how many may be dirty. It
//! also decides how fast writers may go on ([`ebb_linux::writeback`]). This file adds the device
//! and the clock. The percentages are of the pages that could be dirty in the machine, or in the
//! memcg where those are fewest.

use ebb_linux::frame::ZoneItem;
use ebb_linux::writeback::limits::{Amount, dirtyable};
use ebb_linux::writeback::{Limits, Pace, Thresholds, To, Why};
use ebb_mm::folio::LruType;
use ebb_mm::lru::Ctx;
use ebb_mm::types::Pfn;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Machine;
use super::mem::{Mem, cx};
use super::outflow::place_of;
use super::sched::Event;

/// Shares and times of write-out, as in the kernel's `vm.dirty_*`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DirtySpec {
    /// Percent of memory that may be dirty before the flusher works.
    pub background_pct: f64,
    /// Percent of memory that may be dirty before writers wait.
    pub limit_pct: f64,
    /// Age at which a dirty page is written, in seconds.
    pub expire_s: f64,
    /// Interval between two checks of the flusher, in seconds.
    pub interval_s: f64,
}

impl Default for DirtySpec {
    fn default() -> Self {
        Self { background_pct: 10.0, limit_pct: 20.0, expire_s: 30.0, interval_s: 5.0 }
    }
}

/// Nanoseconds that the flusher rests when it found nothing that it could write.
pub(super) const PAUSE_NS: u64 = 1_000_000;

/// State of the flusher.
#[derive(Debug)]
pub struct Flusher {
    pub(super) limits: Limits,
    pub(super) pace: Pace,
    /// Whether the flusher has an event pending.
    pub awake: bool,
    /// Time at which the device will have done the writes it was given, by file.
    busy_until: Vec<u64>,
    done_at: u64,
    /// Pages each thread has made dirty since it last paused.
    made: Vec<u64>,
}

/// Assumed rate of writes before anything was measured, in pages a second.
const FIRST_GUESS: f64 = 25_600.0;
/// Nanoseconds that a writer waits at the limit before it looks again.
const LIMIT_PAUSE_NS: u64 = 10_000_000;

impl Default for Flusher {
    fn default() -> Self {
        Self::new(&DirtySpec::default(), 1)
    }
}

impl Flusher {
    /// Returns the pages counted for a thread since it last paused or was checked.
    #[cfg(test)]
    pub(super) fn made(&self, thread: usize) -> u64 {
        self.made.get(thread).copied().unwrap_or(0)
    }

    /// Creates a flusher with the limits of `spec`, with times `time_scale` times shorter.
    #[must_use]
    pub fn new(spec: &DirtySpec, time_scale: u64) -> Self {
        let limits = Limits {
            background: Amount::Percent(spec.background_pct),
            dirty: Amount::Percent(spec.limit_pct),
            expire_ms: ((spec.expire_s * 1e3) as u64 / time_scale).max(1),
            interval_ms: ((spec.interval_s * 1e3) as u64 / time_scale).max(1),
        };
        Self {
            limits,
            pace: Pace::new(FIRST_GUESS / time_scale as f64),
            awake: false,
            busy_until: Vec::new(),
            done_at: 0,
            made: Vec::new(),
        }
    }

    /// Returns the interval between two looks of the flusher.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        self.limits.interval_ms * 1_000_000
    }

    /// Returns how long until the device has done most of the writes it was given last. It is of no
    /// use to give it more before.
    #[must_use]
    pub fn busy_ns(&self, now: u64) -> u64 {
        self.done_at.saturating_sub(now) / 2
    }
}

impl Mem {
    fn thresholds(&self) -> Thresholds {
        let zones = self.out.frames.zones();
        let sum = |f: &dyn Fn(&ebb_linux::frame::Zone) -> u64| zones.iter().map(f).sum::<u64>();
        let free = sum(&|z| z.state().counters().read(ZoneItem::FreePages));
        let reserves = sum(&|z| z.state().marks().high);
        let file: u64 = self.memcgs.iter().map(|m| m.total(LruType::File)).sum();
        let all = dirtyable(free, file, reserves);
        let of = |m: &super::mem::Memcg| m.limit.saturating_sub(m.total(LruType::Anon));
        let least = self.memcgs.iter().map(of).min().unwrap_or(all).min(all);
        self.flusher.limits.thresholds(least, false)
    }

    /// Returns how long `thread` has to pause before it makes one more page dirty, 0 if not at all.
    /// Also returns whether the page was counted. Without `counts` the write is a second try, after
    /// a pause or a fault, and is not counted.
    pub fn write_pause(&mut self, thread: usize, now: u64, counts: bool) -> (u64, bool) {
        let (pause, time_scale) = (self.timer(LIMIT_PAUSE_NS), self.time_scale.max(1));
        let (t, cache) = (self.thresholds(), &self.out.cache);
        let dirty = cache.dirty() + cache.writing();
        let f = &mut self.flusher;
        // The pace runs in the time of the machine that this one stands for.
        f.pace.update(now * time_scale, dirty, &t, cache.writing() > 0);
        if cache.dirty() > 0 && dirty >= t.dirty {
            return (pause, false);
        }
        if !counts {
            return (0, false);
        }
        if f.made.len() <= thread {
            f.made.resize(thread + 1, 0);
        }
        let made = &mut f.made[thread];
        *made += 1;
        if *made < t.check_pages(self.out.frames.cpu_count() as u64) {
            return (0, true);
        }
        let pause = f.pace.pause_ns(*made, dirty, &t) / time_scale;
        if pause > 0 || dirty <= t.freerun() {
            *made = 0;
        }
        (pause, true)
    }

    /// Returns whether the flusher has work that cannot wait for its next look.
    #[must_use]
    pub fn flusher_needed(&self) -> bool {
        self.out.cache.flush_now(&self.thresholds())
    }

    /// Marks a page of a file dirty.
    pub(super) fn dirty_file(&mut self, pfn: Pfn, now: u64) {
        let (mm, vpn) = self.folios.owner(pfn);
        let Some(file) = self.out.cache.file_of(mm) else { return };
        let before = self.out.cache.dirtied();
        let cx = cx!(self, now);
        self.out.cache.make_dirty(&cx, file, vpn.0, pfn);
        self.flusher.pace.dirtied(self.out.cache.dirtied() - before);
    }

    /// Starts writes of all that is due, or of one space whatever its age. Returns when the last of
    /// them ends, or the last of that space's writes under way.
    pub fn flush(&mut self, now: u64, only: Option<usize>) -> u64 {
        let cx = cx!(self, now);
        let file = only.and_then(|space| self.out.cache.file_of(self.list[space].id()));
        let runs = match (only, file) {
            (Some(_), None) => return now,
            (Some(_), Some(id)) => self.out.cache.take_batch(&cx, id, Why::Sync(id), u64::MAX),
            (None, _) => {
                let t = self.thresholds();
                self.out.cache.next_batch(&cx, &self.flusher.limits, &t)
            }
        };
        for request in self.out.writes.flushed(runs) {
            let To::File(id, page) = request.to else { continue };
            let n = request.frames.len() as u64;
            let done = self.disk.submit(now, true, place_of(id, page), n);
            self.out.started.extend(request.frames.iter().map(|&pfn| (done, pfn)));
            let f = &mut self.flusher;
            let at = id.0 as usize;
            if f.busy_until.len() <= at {
                f.busy_until.resize(at + 1, 0);
            }
            f.busy_until[at] = f.busy_until[at].max(done);
            f.done_at = f.done_at.max(done);
        }
        match file {
            Some(id) => self.flusher.busy_until.get(id.0 as usize).copied().unwrap_or(now),
            None => self.flusher.done_at,
        }
    }
}

impl Machine {
    /// Has the flusher look after `wait`, instead of at its next time.
    pub(super) fn flush_soon(&mut self, wait: u64) {
        self.mem.flusher.awake = true;
        self.flush_at = self.now + wait;
        self.flush_turn += 1;
        self.schedule(self.flush_at, Event::Flusher(self.flush_turn));
    }

    /// Lets the flusher write. It looks again if there is more to write.
    pub(super) fn flush(&mut self) {
        let before = self.mem.disk.moved[1];
        self.mem.flush(self.now, None);
        self.mem.flusher.awake = false;
        if self.mem.flusher_needed() {
            // As in the kernel's `wb_writeback`, a flusher that has written something goes on. Only
            // the device delays it.
            let rest = match self.mem.disk.moved[1] - before {
                0 => self.mem.timer(PAUSE_NS),
                wrote => wrote * self.mem.costs.submit_ns,
            };
            self.flush_soon(rest.max(self.mem.flusher.busy_ns(self.now)));
        }
    }
}

#[cfg(test)]
mod tests {
    use ebb_mm::space::Backing;

    use crate::machine::Access;
    use crate::machine::ahead::Descriptors;
    use crate::machine::mem::Region;
    use crate::machine::testing::machine;

    #[test]
    fn the_flusher_does_not_sleep_while_it_makes_progress() {
        let mut m = machine();
        let (pages, backing) = (600, Backing::File);
        let file = Region { pages, backing, recency: true, exec: false, processes: 1 };
        let files = [(); 3].map(|()| m.mem.add_space(0, &[file]));
        let mut descriptors = Descriptors::default();
        for (file, page) in files.iter().flat_map(|&f| (0..pages).map(move |page| (f, page))) {
            m.mem.fault(0, file, page, Access::FdWrite, &mut descriptors);
        }
        while m.mem.flusher_needed() {
            m.flush();
            let busy = m.mem.flusher.busy_ns(0).max(pages * m.mem.costs.submit_ns);
            assert!(!m.mem.flusher.awake || m.flush_at <= busy);
        }
        assert!(m.mem.disk.moved[1] >= 2 * pages, "{:?}", m.mem.disk.moved);
    }
}
