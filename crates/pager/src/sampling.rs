//! Sampling: how soon pages are used again, those that stay where they are among them (`ebb run --sample`, `ebb fit`).
//!
//! A sample of pages is taken out of the program's sight again and again, so that each use of one is a touch that the
//! pager hears of ([`ebb_mm::observe::reuse`] makes a curve of it). The others come under management and stay where they are.
//!
//! * SAMPLING-1: a page that is used often stays in sight for a while each time. It is taken as used until it is taken out of sight, and
//!   its next use counts from there: the curve says too little of sizes below what stays in sight ([`Found::grain_bytes`]).
//! * SAMPLING-2: that while is as long as it takes for the touches of the sample to be few ([`TOUCHES_MAX`]); if that is not enough, the
//!   sample gets smaller. Rounds take little of the time ([`SHARE`]).
//!
//! Lock order: a leaf.

use ebb_mm::observe::reuse::Reuse;
use ebb_mm::types::{MmId, PAGE_SIZE, Vpn};
use serde::Serialize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pages of the sample: 1 GiB in one page of 64.
const PAGES_MAX: usize = 4096;
/// It begins with one page in 16.
const SHIFT_FIRST: u32 = 4;
/// Touches of the sample in a second, about: some percent of the program's time.
const TOUCHES_MAX: f64 = 3000.0;
/// Between two rounds, at least.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// How long a page stays in sight, at most.
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Between two rounds, at most.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// A sample of fewer pages says little.
const PAGES_MIN: usize = 256;
/// How often touches are counted.
const COUNT: Duration = Duration::from_millis(100);
/// A round may take one part in so many of the time.
const SHARE: u32 = 20;

/// The curve of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// One page in so many was in the sample at the end.
    pub one_in: u64,
    /// First uses of pages, and later ones, as many as the sample stands for.
    pub first_uses: u64,
    pub later_uses: u64,
    /// Smaller sizes miss more often than the curve says (SAMPLING-1).
    pub grain_bytes: u64,
    /// How often a memory of a size would have missed, smallest first.
    pub curve: Vec<Point>,
}

/// How often a memory of a size would have missed, first uses left out.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    pub bytes: u64,
    pub misses: u64,
    /// Half of the 95 % interval.
    pub error: u64,
}

/// See the head of the file.
#[derive(Debug)]
pub struct Sampling {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    reuse: Reuse,
    began: Instant,
    /// When the last round was over, and how long until the next.
    last: Instant,
    round: Duration,
    /// How long a page that is used often stays in sight.
    pause: Duration,
    /// Touches of the sample, and since when.
    touches: u64,
    counted: Instant,
    /// Rounds, and pages in sight in each, in all.
    rounds: u64,
    in_sight: u64,
}

impl State {
    /// Nanoseconds since the start.
    fn at(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_nanos() as u64
    }
}

/// The number of a page among those of all address spaces.
fn number(mm: MmId, vpn: Vpn) -> u64 {
    u64::from(mm.0) << 36 | vpn.0
}

impl Sampling {
    /// Nothing seen yet.
    pub fn new(now: Instant) -> Self {
        let reuse = Reuse::new(PAGES_MAX, SHIFT_FIRST);
        let state = State {
            reuse,
            began: now,
            last: now,
            round: ROUND_MIN,
            pause: ROUND_MIN,
            touches: 0,
            counted: now,
            rounds: 0,
            in_sight: 0,
        };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A page is touched; `fresh` if it holds nothing yet.
    pub fn note(&self, mm: MmId, vpn: Vpn, fresh: bool, now: Instant) {
        let mut state = self.lock();
        let at = state.at(now);
        if state.reuse.touch(number(mm, vpn), fresh, at) {
            state.touches += 1;
        }
    }

    /// How long until the next round.
    pub fn pause(&self, now: Instant) -> Duration {
        let state = self.lock();
        state.round.saturating_sub(now.saturating_duration_since(state.last))
    }

    /// Which of some pages, visible to the program, are to be taken out of its sight now.
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

    /// The address spaces have so many pages.
    pub fn set_pages(&self, pages: u64) {
        self.lock().reuse.set_pages(pages);
    }

    /// Pages of the sample are about to be taken out of sight. Who came with others, or was there before, is used for the
    /// first time.
    pub fn hide(&self, pages: &[(MmId, Vpn)], now: Instant) {
        let mut state = self.lock();
        let at = state.at(now);
        let pages: Vec<u64> = pages.iter().map(|&(mm, vpn)| number(mm, vpn)).collect();
        state.reuse.hide(&pages, at);
    }

    /// A round is over, that began at `began`.
    pub fn end_round(&self, began: Instant, now: Instant) {
        let mut state = self.lock();
        let took = now.saturating_duration_since(began);
        (state.rounds, state.last) = (state.rounds + 1, now);
        state.round = (took * SHARE).clamp(ROUND_MIN, ROUND_MAX);
        let elapsed = now.saturating_duration_since(state.counted);
        if elapsed < COUNT {
            return;
        }
        let rate = state.touches as f64 / elapsed.as_secs_f64();
        state.pause = match rate {
            rate if rate > TOUCHES_MAX => state.pause.mul_f64(1.5).min(PAUSE_MAX),
            rate if rate < TOUCHES_MAX / 2.0 => state.pause.mul_f64(0.75).max(ROUND_MIN),
            _ => state.pause,
        };
        let most = state.pause == PAUSE_MAX && rate > TOUCHES_MAX;
        if most && state.reuse.len() > PAGES_MIN {
            state.reuse.thin();
        }
        (state.counted, state.touches) = (now, 0);
    }

    /// What was seen.
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
    use crate::seam::Clock;

    /// Many touches keep pages in sight for longer, and then make the sample smaller; few bring all of that back but the last. A
    /// long round keeps off the next.
    #[test]
    fn the_touches_of_the_sample_stay_few() {
        let began = Clock::simulated().now();
        let sampling = Sampling::new(began);
        let mut now = began;
        let mut round = |touches: u64, took: Duration| {
            now += COUNT;
            sampling.lock().touches = touches;
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
