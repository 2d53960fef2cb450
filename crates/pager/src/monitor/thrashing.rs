//! Detects thrashing: reports once that a run spends most of its time waiting for pages.
//!
//! The lost time of threads lasts from a fault to its page, as in the report. The available time is
//! the time in which threads ran or waited ([`crate::telemetry::pressure`]). A run thrashes if most
//! of the available time in a window of ten seconds is lost. The lost time must also be at least
//! half of the window.
//!
//! The smallest limit that would end it is unknown, because with more memory the program would
//! progress and use other pages. All its resident and stored pages together are certainly enough.

use crate::budget::Budget;
use crate::pager::Pager;
use crate::telemetry::events::Event;
use crate::telemetry::finding::Finding;
use ebb_mm::types::PAGE_SIZE;
use ebb_swap::StoreStats;
use std::collections::VecDeque;
use std::time::Duration;

/// Minimum duration of thrashing.
const WINDOW: Duration = Duration::from_secs(10);
/// Interval between two checks.
const STEP: Duration = Duration::from_secs(1);
/// Room for the watermarks in addition to the needed memory: one part in this many.
const SPARE: u64 = 16;

/// Counters at a time.
#[derive(Clone, Debug, Default)]
struct Moment {
    at: Duration,
    /// Time that threads waited for pages.
    lost: Duration,
    /// Time that threads ran or waited for pages.
    active: Duration,
    /// Reads of each tier.
    reads: Vec<u64>,
}

/// Checks the last ten seconds.
#[derive(Debug, Default)]
pub struct Watch {
    moments: VecDeque<Moment>,
}

impl Watch {
    /// Checks if a check is due, and reports thrashing.
    pub fn look(&mut self, pager: &Pager) {
        let at = pager.clock.since(pager.started);
        let due = self.moments.back().is_none_or(|last| at >= last.at + STEP);
        if !due || pager.telemetry.thrashing.get().is_some() {
            return;
        }
        let stats = pager.budget.store.stats();
        let Some(mut finding) = self.decide(Moment::now(pager, at, &stats)) else { return };
        finding.enough_bytes = enough(&pager.budget, &stats);
        let finding = pager.telemetry.thrashing.get_or_init(|| finding);
        pager.note_run(&Event::Thrashing {
            lost_percent: finding.lost_percent,
            memory_max_bytes: pager.budget.memory_max_bytes(),
            enough_bytes: finding.enough_bytes,
        });
        pager.say(&finding.text(pager.budget.memory_max_bytes(), &stats));
    }

    fn decide(&mut self, now: Moment) -> Option<Finding> {
        while self.moments.get(1).is_some_and(|next| next.at + WINDOW <= now.at) {
            self.moments.pop_front();
        }
        let finding = self.moments.front().and_then(|then| now.after(then));
        self.moments.push_back(now);
        finding
    }
}

impl Moment {
    fn now(pager: &Pager, at: Duration, stats: &StoreStats) -> Self {
        let psi = pager.telemetry.pressure.now();
        let (stalled, running) = psi.task_time();
        Self {
            at,
            // Waits count when they end, stalls while they last.
            lost: Duration::from_nanos(pager.waited().1).max(stalled),
            active: stalled + running,
            reads: stats.tiers.iter().map(|tier| tier.reads).collect(),
        }
    }

    /// Returns the figures since `then`, if they show thrashing.
    fn after(&self, then: &Self) -> Option<Finding> {
        let window = self.at.saturating_sub(then.at);
        let lost = self.lost.saturating_sub(then.lost);
        let active = self.active.saturating_sub(then.active).max(lost);
        (window >= WINDOW && lost >= window / 2 && lost >= active / 2).then(|| Finding {
            at_us: self.at.as_micros() as u64,
            lost_percent: (lost.as_millis() * 100 / active.as_millis()) as u64,
            reads: self.reads.iter().zip(&then.reads).map(|(now, then)| now - then).collect(),
            enough_bytes: 0,
        })
    }
}

/// Returns the limit at which all pages of the program would be in memory.
fn enough(budget: &Budget, stats: &StoreStats) -> u64 {
    let used = budget.resident().zone.used() * PAGE_SIZE as u64;
    let stored = stats.tiers.iter().map(|tier| tier.pages).sum::<u64>() + stats.same_filled_pages;
    let all = used.saturating_sub(budget.store.ram_bytes()) + stored * PAGE_SIZE as u64;
    (all + all / SPARE).next_multiple_of(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks once a second. In each second `lost` of `active` milliseconds are lost.
    fn seconds(watch: &mut Watch, lost: u64, active: u64, count: usize) -> Option<Finding> {
        (0..count).find_map(|_| {
            let last = watch.moments.back().cloned().unwrap_or_default();
            watch.decide(Moment {
                at: last.at + STEP,
                lost: last.lost + Duration::from_millis(lost),
                active: last.active + Duration::from_millis(active),
                reads: last.reads.iter().map(|reads| reads + 7).collect(),
            })
        })
    }

    #[test]
    fn ten_seconds_of_waiting_are_thrashing_and_nine_are_not() {
        let mut watch = Watch::default();
        watch.decide(Moment { reads: vec![5], ..Moment::default() });
        assert_eq!(seconds(&mut watch, 900, 1000, 9), None);
        let finding = seconds(&mut watch, 900, 1000, 1).expect("it is ten seconds now");
        assert_eq!(finding.lost_percent, 90);
        assert_eq!(finding.reads, [70], "of the window");
    }

    #[test]
    fn lost_time_counts_against_all_time_that_threads_could_run() {
        assert_eq!(
            seconds(&mut Watch::default(), 900, 4000, 60),
            None,
            "one of four threads waits"
        );
        assert!(seconds(&mut Watch::default(), 2400, 4000, 60).is_some(), "each of them does");
        assert_eq!(seconds(&mut Watch::default(), 90, 100, 60), None, "it sleeps mostly");
    }

    #[test]
    fn a_short_time_of_thrashing_is_forgotten() {
        let mut watch = Watch::default();
        for _ in 0..5 {
            assert_eq!(seconds(&mut watch, 1000, 1000, 4), None);
            assert_eq!(seconds(&mut watch, 0, 1000, 20), None);
        }
        assert!(watch.moments.len() <= 12);
        assert!(seconds(&mut watch, 1000, 1000, 7).is_some(), "most of ten seconds");
    }
}
