//! Changes the limits of a run while it lasts (`ebb set`).
//!
//! The monitor takes one request after another and carries it out, one step in each tick.
//!
//! * RESIZE-1: a raised limit takes effect at once.
//! * RESIZE-2: a limit falls in steps of a 128th. A step begins when the tree is within the one
//!   before. The excess over the limit in between is too small for the freezer to act.
//! * RESIZE-3: if the tree makes no progress towards a step for a while ([`Patience::Resize`]), the
//!   step is undone, and the client learns how far the limit fell. That is less time than a run
//!   gets before it is out of memory, so no request ends a run. With `keep` the limit is tried
//!   again, after [`AGAIN`] and then less and less often, until a client sets another limit. `ebb
//!   attach` uses this, because its process holds memory that it may release later.
//! * RESIZE-4: a request with an invalid limit changes nothing.
//! * RESIZE-5: while a run is detached (`control/detach.rs`), its limit is lifted and nothing
//!   changes it. A step under way waits.

use crate::config::Config;
use crate::monitor::pressure_target::PressureTarget;
use crate::pager::Pager;
use crate::seam::{Connection, answer};
use crate::telemetry::events::{By, Event};
use crate::wait::patience::{Moment, Patience};
use ebb_control::Limits;
use ebb_mm::types::PAGE_SIZE;
use std::time::{Duration, Instant};

/// First and longest pause before a failed limit is tried again (RESIZE-3).
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Step as a share of the limit, and smallest step in pages (RESIZE-2).
const STEP_SHARE: u64 = 128;
const STEP_MIN: u64 = if cfg!(test) { 8 } else { 256 };

/// Interval at which small changes of a limit found by `PressureTarget` are reported.
const FOUND_EVERY: Duration = Duration::from_secs(10);

/// A fall of the limit that is under way.
#[derive(Debug)]
struct UnderWay {
    /// Limit requested, in pages.
    target: u64,
    /// Limit before the last step, in pages.
    reached: u64,
    /// Smallest number of used pages since the step began.
    least: u64,
    /// Time of that smallest number, or of the start of the step.
    since: Moment,
    /// Limit at the start, in pages.
    from: u64,
    /// Connection of the waiting client; None for a repeated attempt.
    line: Option<Box<dyn Connection>>,
    /// Pause before the next attempt, if there is to be one.
    again: Option<Duration>,
}

/// A limit that could not be reached and is to be tried again (RESIZE-3).
#[derive(Debug)]
struct Kept {
    /// Limit requested, in pages.
    target: u64,
    at: Instant,
    pause: Duration,
}

impl UnderWay {
    fn patience(&self) -> Patience {
        if self.line.is_some() { Patience::Resize } else { Patience::ResizeAgain }
    }
}

/// The monitor's part of resizing.
#[derive(Debug)]
pub struct Resize {
    under_way: Option<UnderWay>,
    kept: Option<Kept>,
    /// Goal of reclaim in pages, if it is set.
    high: Option<u64>,
    /// Maximum size of compressed memory in bytes, if it is set.
    ram: Option<u64>,
    /// Controller that adjusts the limit, unless a client sets it.
    target: Option<PressureTarget>,
    /// Time of the last report of a found limit, and that limit in pages.
    told: (Duration, u64),
}

impl Resize {
    /// Creates the state at the start of the run.
    pub fn new(config: &Config) -> Self {
        let high = config.memory_high_bytes.map(|bytes| bytes / PAGE_SIZE as u64);
        let max = config.memory_max_bytes / PAGE_SIZE as u64;
        let target = config.pressure_target_permille;
        let target = target.map(|permille| PressureTarget::new(permille, max));
        Self {
            under_way: None,
            kept: None,
            high,
            ram: config.ram_bytes_said(),
            target,
            told: (Duration::ZERO, max),
        }
    }

    /// Performs one step. Returns true while there is more to do and the next tick should come
    /// soon.
    pub fn look(&mut self, pager: &Pager) -> bool {
        if pager.run.detach.is_on() {
            return self.under_way.is_some();
        }
        if let Some(way) = self.under_way.take() {
            self.go_on(pager, way);
        } else if let Some((request, line)) = pager.budget.limit_requests.next() {
            // A limit set by a client ends the automatic adjustment.
            self.target = self.target.take().filter(|_| request.max.is_none());
            self.kept = self.kept.take().filter(|_| request.max.is_none());
            self.begin(pager, request, line);
        } else if let Some(kept) = self.kept.take_if(|kept| kept.at <= pager.clock.now()) {
            self.try_again(pager, &kept);
        } else if let Some(target) = &mut self.target {
            let at = pager.clock.since(pager.started);
            // The loss lasts from the fault until the thread runs again. The stalls of the pressure
            // file are a part of it.
            let lost_us = pager.waited().1 / 1000;
            let (limit, used) = {
                let resident = pager.resident();
                (resident.zone.limit(), resident.zone.used())
            };
            if let Some(limit) = target.look(at, lost_us, limit, used) {
                self.apply(pager, limit);
                self.tell_found(pager, at, limit);
            }
        }
        self.under_way.is_some()
    }

    fn begin(&mut self, pager: &Pager, request: Limits, line: Box<dyn Connection>) {
        if let Some(bound) = request.high {
            self.high = bound.bytes().map(|bytes| bytes / PAGE_SIZE as u64);
        }
        if let Some(bound) = request.ram {
            self.ram = bound.bytes();
        }
        let now = pager.resident().zone.limit();
        let target = request.max.map_or(now, |bytes| bytes / PAGE_SIZE as u64);
        if target >= now {
            self.apply(pager, target);
            tell(pager, By::Set, target);
            answer::done(&*line, Ok(()));
        } else {
            self.apply(pager, now);
            let since = pager.clock.moment();
            let again = request.keep.then_some(AGAIN);
            let line = Some(line);
            let way =
                UnderWay { target, reached: now, least: u64::MAX, since, from: now, line, again };
            self.go_on(pager, way);
        }
    }

    /// Tries a failed limit again, because more pages may be able to leave by now.
    fn try_again(&mut self, pager: &Pager, kept: &Kept) {
        let now = pager.resident().zone.limit();
        if now > kept.target {
            let (target, again) = (kept.target, Some(kept.pause));
            let (least, since) = (u64::MAX, pager.clock.moment());
            let way = UnderWay { target, reached: now, least, since, from: now, line: None, again };
            self.go_on(pager, way);
        }
    }

    fn go_on(&mut self, pager: &Pager, mut way: UnderWay) {
        let (limit, used) = {
            let resident = pager.resident();
            (resident.zone.limit(), resident.zone.used())
        };
        if used <= limit {
            if limit == way.target {
                tell(pager, By::Set, limit);
                return way.line.iter().for_each(|line| answer::done(&**line, Ok(())));
            }
            if limit < way.from {
                // The attempt made progress.
                way.again = way.again.map(|_| AGAIN);
            }
            way.reached = limit;
            let step = (limit / STEP_SHARE).max(STEP_MIN);
            self.apply(pager, limit.saturating_sub(step).max(way.target));
            (way.least, way.since) = (used, pager.clock.moment());
        } else if used < way.least {
            (way.least, way.since) = (used, pager.clock.moment());
        } else if way.patience().is_over(pager.clock.moment().since(way.since)) {
            self.apply(pager, way.reached);
            return self.give_up(pager, way);
        }
        self.under_way = Some(way);
    }

    fn give_up(&mut self, pager: &Pager, way: UnderWay) {
        if way.line.is_some() || way.reached < way.from {
            tell(pager, By::Set, way.target);
        }
        if let Some(line) = &way.line {
            let mib = |pages: u64| pages as f64 / 256.0;
            let tried = if way.again.is_some() { "; Ebb tries again" } else { "" };
            let (is, not) = (mib(way.reached), mib(way.target));
            let text = format!(
                "memory.max is {is:.1} MiB now, not {not:.1}: no more pages could leave memory (they are \
                 locked, not writable or not managed, or a tier is full){tried}"
            );
            answer::done(&**line, Err(text));
        }
        self.kept = way.again.map(|pause| Kept {
            target: way.target,
            at: pager.clock.now() + pause,
            pause: (pause * 2).min(AGAIN_MAX),
        });
    }

    /// Reports a limit found by the controller if it changed by an eighth, or once in ten seconds.
    fn tell_found(&mut self, pager: &Pager, at: Duration, limit: u64) {
        let (when, last) = self.told;
        if limit.abs_diff(last) >= last / 8 || (limit != last && at >= when + FOUND_EVERY) {
            self.told = (at, limit);
            tell(pager, By::PressureTarget, limit);
        }
    }

    fn apply(&self, pager: &Pager, limit: u64) {
        let bytes = limit * PAGE_SIZE as u64;
        let ram = self.ram.unwrap_or(bytes / 2).min(bytes);
        let mut engine = pager.engine();
        if pager.run.detach.is_on() {
            return;
        }
        engine.resize(limit, self.high.unwrap_or(limit), ram);
        drop(engine);
        pager.budget.store.set_ram_limit(ram);
        pager.budget.wake_kswapd();
        pager.faults.wake_if_deferred();
    }
}

/// Reports a changed limit as an event; `wanted` is the requested number of pages.
fn tell(pager: &Pager, by: By, wanted: u64) {
    let (memory_max_bytes, memory_high_bytes) = pager.budget.limits();
    pager.note_run(&Event::LimitChanged {
        by,
        memory_max_bytes,
        memory_high_bytes,
        used_bytes: pager.resident().zone.used() * PAGE_SIZE as u64,
        wanted_bytes: wanted * PAGE_SIZE as u64,
    });
}
