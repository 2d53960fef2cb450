//! Time lost for want of memory, for each memcg and for the machine.
//!
//! The kernel defines a stall. A task stalls in these cases:
//! * it reclaims;
//! * it waits for room or for a throttle to open;
//! * it waits for a page that was in the working set when it left;
//! * a group above its `high` delays it.
//!
//! kswapd at work is a stall of the machine. A wait for any other transfer is no stall, nor is a
//! delay because of dirty pages. Averages and text are the engine's ([`ebb_mm::observe::psi`]). The
//! times are those of the machine that this one stands for.

use ebb_mm::observe::psi::Psi;

/// Activity of a task as pressure sees it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Doing {
    /// The task waits for something other than memory, or has nothing to do.
    #[default]
    Nothing,
    /// The task runs, or would if a CPU were free.
    Works,
    /// The task lacks memory.
    Stalls,
}

/// Pressure of the machine, in front, and of each memcg.
#[derive(Debug)]
pub struct Pressure {
    series: Vec<Psi>,
    time_scale: u64,
}

/// Pressure of one memcg or of the machine.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// Name of the memcg, or [`MACHINE`].
    pub name: String,
    /// Text as the kernel prints it.
    pub text: String,
    /// Averages over 10, 60 and 300 s in percent, and microseconds in all: of some, of full.
    pub lines: [([f64; 3], f64); 2],
}

/// Name of the machine's own reading.
pub const MACHINE: &str = "machine";

impl Reading {
    /// Creates a reading without loss.
    #[must_use]
    pub fn nothing(name: String) -> Self {
        Self { name, text: String::new(), lines: [([0.0; 3], 0.0); 2] }
    }
}

impl Pressure {
    /// Creates the pressure of so many memcgs, on a machine that is `time_scale` times faster than
    /// the one it stands for.
    #[must_use]
    pub fn new(memcgs: usize, time_scale: u64) -> Self {
        Self { series: vec![Psi::new(0); memcgs + 1], time_scale: time_scale.max(1) }
    }

    /// Records that a task does something else from now on. `path` has its memcg and all above it.
    pub fn change(&mut self, now: u64, path: &[usize], from: Doing, to: Doing) {
        let now = now * self.time_scale;
        for i in std::iter::once(0).chain(path.iter().map(|i| i + 1)) {
            let psi = &mut self.series[i];
            match (from, to) {
                (Doing::Nothing, Doing::Works) => psi.start(now),
                (Doing::Works, Doing::Nothing) => psi.stop(now),
                (Doing::Works, Doing::Stalls) => psi.stall(now),
                (Doing::Stalls, Doing::Works) => psi.resume(now),
                (Doing::Nothing, Doing::Stalls) => {
                    psi.start(now);
                    psi.stall(now);
                }
                (Doing::Stalls, Doing::Nothing) => {
                    psi.resume(now);
                    psi.stop(now);
                }
                _ => {}
            }
        }
    }

    /// Returns the pressure until now. `names` are those of the memcgs.
    pub fn read(&mut self, now: u64, names: &[String]) -> Vec<Reading> {
        let whose = std::iter::once(MACHINE).chain(names.iter().map(String::as_str));
        let read = |(psi, name): (&mut Psi, &str)| {
            psi.advance(now * self.time_scale);
            let line = |line: ebb_mm::observe::psi::Line| {
                (line.average.map(|x| x as f64 / 100.0), line.total_us as f64)
            };
            Reading {
                name: name.to_owned(),
                text: psi.to_string(),
                lines: [line(psi.some()), line(psi.full())],
            }
        };
        self.series.iter_mut().zip(whose).map(read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_stall_counts_for_all_above_and_for_nobody_else() {
        let mut p = Pressure::new(3, 1);
        // Memcg 1 lies below memcg 0. Memcg 2 beside them works all the time.
        p.change(0, &[1, 0], Doing::Nothing, Doing::Works);
        p.change(0, &[2], Doing::Nothing, Doing::Works);
        p.change(S, &[1, 0], Doing::Works, Doing::Stalls);
        p.change(2 * S, &[1, 0], Doing::Stalls, Doing::Nothing);
        let names = ["a", "a/b", "c"].map(String::from);
        let read = p.read(4 * S, &names);
        let totals: Vec<[f64; 2]> = read.iter().map(|r| r.lines.map(|l| l.1)).collect();
        assert_eq!(totals, [[1e6, 0.0], [1e6, 1e6], [1e6, 1e6], [0.0, 0.0]]);
        assert!(read[0].text.starts_with("some avg10="), "{}", read[0].text);
        assert!(read[2].text.ends_with("total=1000000\n"), "{}", read[2].text);
    }

    #[test]
    fn a_machine_scaled_down_reports_the_times_of_the_large_one() {
        let mut p = Pressure::new(0, 10);
        p.change(0, &[], Doing::Nothing, Doing::Stalls);
        assert_eq!(p.read(S, &[])[0].lines[0].1, 1e7);
    }
}
