//! Pressure: the share of time that tasks lost waiting for memory, as the kernel's PSI prints it.
//!
//! `some` is time in which at least one task was stalled. `full` is time in which a task was
//! stalled and no task did useful work. Averages over 10, 60 and 300 seconds are updated every 2
//! seconds, in the kernel's fixed-point arithmetic. A stall in a memcg is also one in all its
//! ancestors; the driver reports it to each.

use std::fmt;
use std::time::Duration;

const PERIOD_NS: u64 = 2_000_000_000;
const FIXED_1: u64 = 1 << 11;
/// `FIXED_1 / e^(2 s / window)` for windows of 10, 60 and 300 s.
const DECAY: [u64; 3] = [1677, 1981, 2034];

#[derive(Clone, Copy, Debug, Default)]
struct Series {
    total_ns: u64,
    in_period_ns: u64,
    /// Averages in percent, fixed point.
    average: [u64; 3],
}

/// The pressure of a memcg or of the node.
#[derive(Clone, Debug, Default)]
pub struct Psi {
    stalled: u32,
    running: u32,
    since_ns: u64,
    period_end_ns: u64,
    some: Series,
    full: Series,
    stalled_ns: u64,
    running_ns: u64,
}

/// One line of the text: percentages and the total in microseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Line {
    /// Averages over 10, 60 and 300 s, in hundredths of a percent.
    pub average: [u64; 3],
    /// Total stall time in microseconds.
    pub total_us: u64,
}

fn decayed(average: u64, decay: u64, sample: u64) -> u64 {
    let sum = average * decay + sample * (FIXED_1 - decay);
    // Rounds up while the average rises, so that it reaches the value of a steady load.
    (sum + if sample >= average { FIXED_1 - 1 } else { 0 }) / FIXED_1
}

impl Series {
    fn end_period(&mut self) {
        let sample = self.in_period_ns.min(PERIOD_NS) * 100 / PERIOD_NS * FIXED_1;
        self.in_period_ns = 0;
        for (average, decay) in self.average.iter_mut().zip(DECAY) {
            *average = decayed(*average, decay, sample);
        }
    }

    fn line(&self) -> Line {
        let hundredths = |x: u64| (x >> 11) * 100 + (((x & (FIXED_1 - 1)) * 100) >> 11);
        Line { average: self.average.map(hundredths), total_us: self.total_ns / 1000 }
    }
}

impl Psi {
    /// Starts the measurement at `now_ns`.
    #[must_use]
    pub fn new(now_ns: u64) -> Self {
        Self { since_ns: now_ns, period_end_ns: now_ns + PERIOD_NS, ..Self::default() }
    }

    /// Brings the sums up to `now_ns`. Time does not go backwards.
    pub fn advance(&mut self, now_ns: u64) {
        while self.since_ns < now_ns {
            let until = now_ns.min(self.period_end_ns);
            let span = until.saturating_sub(self.since_ns);
            self.stalled_ns += span * u64::from(self.stalled);
            self.running_ns += span * u64::from(self.running);
            if self.stalled > 0 {
                self.some.total_ns += span;
                self.some.in_period_ns += span;
                if self.running == 0 {
                    self.full.total_ns += span;
                    self.full.in_period_ns += span;
                }
            }
            self.since_ns = until;
            if until == self.period_end_ns {
                self.some.end_period();
                self.full.end_period();
                self.period_end_ns += PERIOD_NS;
            }
        }
    }

    /// Records that a running task begins to wait for memory.
    pub fn stall(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.running = self.running.saturating_sub(1);
        self.stalled += 1;
    }

    /// Records that a stalled task goes on.
    pub fn resume(&mut self, now_ns: u64) {
        self.advance(now_ns);
        debug_assert!(self.stalled > 0);
        self.stalled = self.stalled.saturating_sub(1);
        self.running += 1;
    }

    /// Records that a task has work to do.
    pub fn start(&mut self, now_ns: u64) {
        self.advance(now_ns);
        self.running += 1;
    }

    /// Sets the number of running tasks, beside the stalled ones. It is for drivers that can only
    /// count them now and then.
    pub fn set_running(&mut self, now_ns: u64, tasks: u32) {
        self.advance(now_ns);
        self.running = tasks;
    }

    /// Records that a task has no more work, or waits for something else.
    pub fn stop(&mut self, now_ns: u64) {
        self.advance(now_ns);
        debug_assert!(self.running > 0);
        self.running = self.running.saturating_sub(1);
    }

    /// Returns the line `some`.
    #[must_use]
    pub fn some(&self) -> Line {
        self.some.line()
    }

    /// Returns the summed time of all tasks: stalled, and running.
    #[must_use]
    pub fn task_time(&self) -> (Duration, Duration) {
        (Duration::from_nanos(self.stalled_ns), Duration::from_nanos(self.running_ns))
    }

    /// Returns the line `full`.
    #[must_use]
    pub fn full(&self) -> Line {
        self.full.line()
    }
}

impl fmt::Display for Psi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, line) in [("some", self.some()), ("full", self.full())] {
            write!(f, "{name}")?;
            for (window, x) in [10, 60, 300].iter().zip(line.average) {
                write!(f, " avg{window}={}.{:02}", x / 100, x % 100)?;
            }
            writeln!(f, " total={}", line.total_us)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn the_text_of_psi_has_the_form_of_the_kernel() {
        let mut psi = Psi::new(0);
        psi.start(0);
        psi.start(0);
        psi.stall(S);
        psi.resume(S + S / 2);
        psi.advance(2 * S);
        // A quarter of one period: 25 % times the weight of two seconds.
        assert_eq!(
            psi.to_string(),
            "some avg10=4.52 avg60=0.81 avg300=0.17 total=500000\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        );
    }

    #[test]
    fn full_pressure_counts_only_while_all_tasks_stall() {
        let mut psi = Psi::new(0);
        psi.start(0);
        psi.start(0);
        psi.stall(0);
        psi.stall(3 * S);
        psi.resume(5 * S);
        psi.stop(6 * S);
        psi.advance(10 * S);
        assert_eq!(psi.some().total_us, 10_000_000);
        assert_eq!(psi.full().total_us, 6_000_000, "3 to 5 s, and from 6 s on");
        let (stalled, running) = psi.task_time();
        assert_eq!((stalled.as_secs(), running.as_secs()), (12, 4), "one of them stopped");
    }

    #[test]
    fn a_steady_stall_goes_to_a_hundred_percent_and_fades() {
        let mut psi = Psi::new(0);
        psi.start(0);
        psi.stall(0);
        psi.advance(6000 * S);
        assert_eq!(psi.some().average, [10_000; 3]);
        assert_eq!(psi.full().average, [10_000; 3]);
        psi.resume(6000 * S);
        psi.advance(6010 * S);
        // e^-1 of a hundred percent, within the rounding of the fixed point.
        assert!((3600..3690).contains(&psi.some().average[0]), "{:?}", psi.some());
        assert!(psi.some().average[2] > 9600);
        let total = psi.some().total_us;
        psi.advance(9000 * S);
        assert_eq!((psi.some().total_us, psi.some().average[0]), (total, 0));
    }
}
