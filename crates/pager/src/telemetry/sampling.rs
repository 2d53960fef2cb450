//! Measures how soon pages are used again, including pages that stay resident (`ebb run --sample`,
//! `ebb fit`).
//!
//! The pager hides a sample of pages from the program again and again, so that each use of one is a
//! fault. [`ebb_mm::observe::reuse`] makes a curve of these. The other pages come under management
//! and stay visible.
//!
//! * SAMPLING-1: a page in frequent use stays visible for a while each time. It counts as used
//!   until it is hidden, and the time to its next use starts there. So the curve shows too few
//!   misses for sizes below the number of visible pages ([`Found::grain_bytes`]).
//! * SAMPLING-2: the visible time grows until the sample causes few faults ([`TOUCHES_MAX`]). If
//!   that is not enough, the sample shrinks. Rounds take little of the time ([`SHARE`]).
//!
//! Lock order: this lock is a leaf.

use ebb_mm::observe::reuse::Reuse;
use ebb_mm::types::{MmId, PAGE_SIZE, Vpn};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of pages in the sample: 1 GiB with one page of 64.
const PAGES_MAX: usize = 4096;
/// The sample begins with one page in 16 (`1 << SHIFT_FIRST`).
const SHIFT_FIRST: u32 = 4;
/// Approximate maximum number of faults of the sample in a second. They cost some percent of the
/// program's time.
const TOUCHES_MAX: f64 = 3000.0;
/// Minimum time between two rounds.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// Maximum time for which a page stays visible.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Maximum time between two rounds.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// Minimum number of pages in the sample. A smaller sample shows little.
const PAGES_MIN: usize = 256;
/// Interval at which the fault rate is computed.
const COUNT: Duration = Duration::from_millis(100);
/// Rounds take at most one part in this many of the time.
const SHARE: u32 = 20;

/// The reuse curve of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// One page in this many was in the sample at the end.
    pub one_in: u64,
    /// First uses of pages and later uses, scaled up from the sample.
    pub first_uses: u64,
    pub later_uses: u64,
    /// Sizes below this miss more often than the curve shows (SAMPLING-1).
    pub grain_bytes: u64,
    /// Misses of memories of several sizes, smallest first.
    pub curve: Vec<Point>,
}

/// Misses of a memory of one size, without first uses.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    pub bytes: u64,
    pub misses: u64,
    /// Half of the 95 % interval.
    pub error: u64,
}

/// Sampling state of a run.
#[derive(Debug)]
pub struct Sampling {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    reuse: Reuse,
    began: Instant,
    /// End of the last round, and the time until the next.
    last: Instant,
    round: Duration,
    /// Time for which a page in frequent use stays visible.
    pause: Duration,
    /// Faults of the sample since `counted`.
    faults: u64,
    counted: Instant,
    /// Number of rounds, and visible pages summed over all rounds.
    rounds: u64,
    in_sight: u64,
}

impl State {
    /// Returns the nanoseconds since the start.
    fn at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }
}

/// Returns a page number that is unique over all address spaces.
fn number(mm: MmId, vpn: Vpn) -> u64 {
    u64::from(mm.0) << 36 | vpn.0
}

impl Sampling {
    /// Creates the state of a run without any faults.
    pub fn new(now: Instant) -> Self {
        let reuse = Reuse::new(PAGES_MAX, SHIFT_FIRST);
        let state = State {
            reuse,
            began: now,
            last: now,
            round: ROUND_MIN,
            pause: ROUND_MIN,
            faults: 0,
            counted: now,
            rounds: 0,
            in_sight: 0,
        };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a fault on a page; `fresh` if the page is empty yet.
    pub fn note(&self, mm: MmId, vpn: Vpn, fresh: bool, now: Instant) {
        let mut state = self.lock();
        let at = state.at(now);
        if state.reuse.touch(number(mm, vpn), fresh, at) {
            state.faults += 1;
        }
    }

    /// Returns the time until the next round.
    pub fn pause(&self, now: Instant) -> Duration {
        let state = self.lock();
        state.round.saturating_sub(now.saturating_duration_since(state.last))
    }

    /// Returns those of the visible `pages` that are to be hidden now.
    pub fn choose(&self, mm: MmId, pages: impl Iterator<Item = Vpn>, now: Instant) -> Vec<Vpn> {
        let mut state = self.lock();
        let (at, pause) = (state.at(now), state.pause.as_nanos() as u64);
        let mut chosen = Vec::new();
        for vpn in pages {
            let page = number(mm, vpn);
            if state.reuse.samples(page) {
                if state.reuse.is_due(page, pause, at) {
                    chosen.push(vpn);
                } else {
                    state.in_sight += state.reuse.one_in();
                }
            }
        }
        chosen
    }

    /// Sets the number of pages of all address spaces.
    pub fn set_pages(&self, pages: u64) {
        self.lock().reuse.set_pages(pages);
    }

    /// Notes that pages of the sample are about to be hidden. A page that arrived with others, or
    /// existed before, counts as used for the first time.
    pub fn hide(&self, pages: &[(MmId, Vpn)], now: Instant) {
        let mut state = self.lock();
        let at = state.at(now);
        let pages: Vec<u64> = pages.iter().map(|&(mm, vpn)| number(mm, vpn)).collect();
        state.reuse.hide(&pages, at);
    }

    /// Ends a round that began at `began`.
    pub fn end_round(&self, began: Instant, now: Instant) {
        let mut state = self.lock();
        let took = now.saturating_duration_since(began);
        (state.rounds, state.last) = (state.rounds + 1, now);
        state.round = (took * SHARE).clamp(ROUND_MIN, ROUND_MAX);
        let elapsed = now.saturating_duration_since(state.counted);
        if elapsed < COUNT {
            return;
        }
        let rate = state.faults as f64 / elapsed.as_secs_f64();
        state.pause = match rate {
            rate if rate > TOUCHES_MAX => state.pause.mul_f64(1.5).min(PAUSE_MAX),
            rate if rate < TOUCHES_MAX / 2.0 => state.pause.mul_f64(0.75).max(ROUND_MIN),
            _ => state.pause,
        };
        let most = state.pause == PAUSE_MAX && rate > TOUCHES_MAX;
        if most && state.reuse.len() > PAGES_MIN {
            state.reuse.thin();
        }
        (state.counted, state.faults) = (now, 0);
    }

    /// Returns the results.
    pub fn found(&self) -> Found {
        let state = self.lock();
        let (first_uses, later_uses) = state.reuse.uses();
        let point = |point: ebb_mm::observe::reuse::Point| Point {
            bytes: point.pages * PAGE_SIZE as u64,
            misses: point.misses.round() as u64,
            error: point.error.round() as u64,
        };
        Found {
            one_in: state.reuse.one_in(),
            first_uses,
            later_uses,
            grain_bytes: state.in_sight / state.rounds.max(1) * PAGE_SIZE as u64,
            curve: state.reuse.curve().into_iter().map(point).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::clock::Clock;

    /// Shows that many faults keep pages visible longer, and then shrink the sample. With few
    /// faults the visible time falls again, but the sample stays small. A long round delays the
    /// next.
    #[test]
    fn the_sample_shrinks_until_its_faults_are_few() {
        let began = Clock::simulated().now();
        let sampling = Sampling::new(began);
        let mut now = began;
        let mut round = |faults: u64, took: Duration| {
            now += COUNT;
            sampling.lock().faults = faults;
            sampling.end_round(now, now + took);
            now += took;
            let pause = sampling.lock().pause;
            (pause, sampling.found().one_in, sampling.pause(now))
        };
        (0..1024 * 16).for_each(|page| sampling.note(MmId(3), Vpn(page), true, began));
        for _ in 0..7 {
            round(301, Duration::ZERO);
        }
        assert_eq!(round(299, Duration::ZERO), (ROUND_MIN.mul_f64(1.5f64.powi(7)), 16, ROUND_MIN));
        assert_eq!(round(1000, Duration::ZERO), (PAUSE_MAX, 32, ROUND_MIN));
        for _ in 0..9 {
            round(1000, Duration::ZERO);
        }
        let (_, least, _) = round(1000, Duration::ZERO);
        assert!((64..=128).contains(&least), "one in {least}: of no fewer than {PAGES_MIN} pages");
        for _ in 0..20 {
            round(0, Duration::ZERO);
        }
        assert_eq!(
            round(0, Duration::from_millis(4)),
            (ROUND_MIN, least, Duration::from_millis(80))
        );
    }

    #[test]
    fn pages_that_came_with_others_are_used_for_the_first_time_when_they_are_found() {
        let now = Clock::simulated().now();
        let sampling = Sampling::new(now);
        let pages = || (0..1600).map(Vpn);
        let chosen = sampling.choose(MmId(3), pages(), now);
        assert!((50..150).contains(&chosen.len()), "one in 16: {}", chosen.len());
        let hidden: Vec<_> = chosen.iter().map(|&vpn| (MmId(3), vpn)).collect();
        sampling.hide(&hidden, now);
        chosen.iter().for_each(|&vpn| sampling.note(MmId(3), vpn, false, now));
        pages().for_each(|vpn| sampling.note(MmId(3), vpn, true, now));
        let found = sampling.found();
        let uses = 16 * chosen.len() as u64;
        assert_eq!((found.first_uses, found.later_uses), (2 * uses, uses));
    }
}
