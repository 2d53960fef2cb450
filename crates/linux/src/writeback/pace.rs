//! Pace of the writers: how fast each task may make pages dirty.
//!
//! Owns the estimates of a device's write bandwidth and of the pace of each writer. The pace is
//! such that all writers together make as many pages dirty as the device writes. It is corrected by
//! measurement: it falls in the proportion in which too many pages become dirty for the bandwidth.

use super::limits::Thresholds;

/// Time between two corrections.
const UPDATE_NS: u64 = 200_000_000;
/// Time over which the bandwidth is averaged.
const MEMORY_NS: u64 = 3_000_000_000;
/// The longest single pause of a writer, in nanoseconds.
pub const PAUSE_NS_MAX: u64 = 200_000_000;
/// Shorter pauses are deferred and added up.
const PAUSE_NS_MIN: u64 = 1_000_000;

/// The pace of one device.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Pages a second that the device writes.
    bandwidth: f64,
    /// Pages a second that each writer may make dirty at the setpoint.
    each: f64,
    since_ns: u64,
    written: u64,
    dirtied: u64,
}

impl Pace {
    /// Creates the pace of a device with an estimated bandwidth of `pages_per_s` pages a second.
    #[must_use]
    pub fn new(pages_per_s: f64) -> Self {
        let bandwidth = pages_per_s.max(1.0);
        Self { bandwidth, each: bandwidth, since_ns: 0, written: 0, dirtied: 0 }
    }

    /// Returns the estimated number of pages a second that the device writes.
    #[must_use]
    pub fn bandwidth(&self) -> f64 {
        self.bandwidth
    }

    /// Counts pages that were made dirty.
    pub fn dirtied(&mut self, pages: u64) {
        self.dirtied += pages;
    }

    /// Counts pages that were written.
    pub fn written(&mut self, pages: u64) {
        self.written += pages;
    }

    /// Corrects the estimates, if the update interval is over. `busy` means that the device had
    /// writes to do all the time.
    pub fn update(&mut self, now_ns: u64, dirty: u64, t: &Thresholds, busy: bool) {
        let elapsed = now_ns.saturating_sub(self.since_ns);
        if elapsed < UPDATE_NS {
            return;
        }
        let seconds = elapsed as f64 / 1e9;
        let (wrote, made) = (self.written as f64 / seconds, self.dirtied as f64 / seconds);
        if busy {
            let weight = (elapsed as f64 / MEMORY_NS as f64).min(1.0);
            self.bandwidth += (wrote - self.bandwidth) * weight;
            self.bandwidth = self.bandwidth.max(1.0);
        }
        if dirty > t.freerun() && made > 0.0 {
            // The pace that the writers really kept, scaled to the bandwidth of the device.
            let did = self.each * t.ratio(dirty).max(0.01);
            let balanced = (did * self.bandwidth / made).clamp(1.0, self.bandwidth);
            self.each += (balanced - self.each) / 2.0;
        } else if dirty <= t.background {
            self.each += (self.bandwidth - self.each) / 2.0;
        }
        (self.since_ns, self.written, self.dirtied) = (now_ns, 0, 0);
    }

    /// Returns how long a writer that has made `pages` pages dirty since its last pause must wait,
    /// in nanoseconds. 0 means not yet.
    #[must_use]
    pub fn pause_ns(&self, pages: u64, dirty: u64, t: &Thresholds) -> u64 {
        if dirty <= t.freerun() {
            return 0;
        }
        let pace = self.each * t.ratio(dirty);
        if pace < 1.0 {
            return PAUSE_NS_MAX;
        }
        let pause = (pages as f64 / pace * 1e9) as u64;
        if pause < PAUSE_NS_MIN { 0 } else { pause.min(PAUSE_NS_MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Thresholds = Thresholds { background: 10_000, dirty: 20_000 };

    /// Simulates `writers` that could make any number of pages dirty, and a device. Returns the
    /// number of dirty pages at each millisecond, and the longest pause.
    fn run(writers: usize, device_per_ms: u64, guess: f64, ms: u64) -> (Vec<u64>, u64) {
        let mut pace = Pace::new(guess);
        let mut dirty = 0u64;
        let mut free_at = vec![0u64; writers];
        let mut longest = 0;
        let mut seen = Vec::new();
        for at in 0..ms {
            let now = at * 1_000_000;
            for wake in &mut free_at {
                if *wake > now {
                    continue;
                }
                // The time to make 32 pages dirty is negligible beside the pause.
                let n = 32.min(T.dirty.saturating_sub(dirty));
                dirty += n;
                pace.dirtied(n);
                let pause = pace.pause_ns(32, dirty, &T);
                longest = longest.max(pause);
                *wake = now + pause.max(1_000_000);
            }
            let busy = dirty > T.background;
            let n = if busy { device_per_ms.min(dirty) } else { 0 };
            dirty -= n;
            pace.written(n);
            pace.update(now, dirty, &T, busy);
            seen.push(dirty);
        }
        (seen, longest)
    }

    #[test]
    fn writers_settle_below_the_limit_at_the_pace_of_the_device() {
        for (writers, guess) in [(1, 25_000.0), (8, 25_000.0), (64, 100_000.0), (8, 2_000.0)] {
            let (seen, longest) = run(writers, 25, guess, 60_000);
            let late = &seen[30_000..];
            let (least, most) = (late.iter().min().unwrap(), late.iter().max().unwrap());
            assert!(*most < T.dirty, "{writers} writers: {least}..{most}");
            assert!(*least > T.background, "{writers} writers: {least}..{most}");
            assert!(longest <= PAUSE_NS_MAX);
        }
    }

    #[test]
    fn writers_wait_at_the_limit_and_not_far_below_it() {
        let pace = Pace::new(1000.0);
        assert_eq!(pace.pause_ns(1000, T.freerun(), &T), 0);
        assert_eq!(pace.pause_ns(1, T.dirty, &T), PAUSE_NS_MAX);
        let at = |dirty| pace.pause_ns(32, dirty, &T);
        assert_eq!(at(T.setpoint()), 32_000_000);
        assert!(at(T.setpoint() + 1000) > at(T.setpoint() - 1000));
    }
}
