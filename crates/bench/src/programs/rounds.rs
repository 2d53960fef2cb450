//! Runs the rounds of one program: alone, under Ebb, and with the kernel's swap, in turns.

use clap::ValueEnum;
use serde::Serialize;

use super::error::ProgramsError;
use super::list::Program;
use super::runs::{End, Environment, Runner, Sample};
use crate::error::RunError;
use crate::kernel::Compressed;
use crate::stats::Summary;

/// Values of `page-cluster`: swap-in of one page at a time, and of eight, the kernel's default.
const CLUSTERS: [u32; 2] = [0, 3];

/// A peer that Ebb is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// The kernel's swap file.
    #[value(name = "swapfile")]
    SwapFile,
    /// The kernel's compressed swap. The compressed pages count in the limit, as those of Ebb's
    /// compressed tier do.
    Zram,
}

impl Peer {
    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::SwapFile => "swap file",
            Self::Zram => "zram",
        }
    }
}

/// An environment with the results of all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Environment in which the program runs.
    pub place: Environment,
    /// Limit as a percentage of the program's memory; none for the plain row.
    pub share: Option<u32>,
    /// One sample for each round.
    pub samples: Vec<Sample>,
}

impl Row {
    fn new(place: Environment, share: Option<u32>) -> Self {
        Self { place, share, samples: Vec::new() }
    }

    /// Returns the peer that this row measures; `None` for the plain row and for Ebb.
    pub fn peer(&self) -> Option<Peer> {
        match self.place {
            Environment::Plain | Environment::Ebb { .. } => None,
            Environment::SwapFile { .. } => Some(Peer::SwapFile),
            Environment::Zram { .. } => Some(Peer::Zram),
        }
    }

    /// Returns the wall times of all rounds. The time is not a number if a run was killed. It is
    /// infinite if a run timed out, failed or had a different output.
    pub fn walls(&self) -> Vec<f64> {
        let wall = |sample: &Sample| match sample.end {
            End::Done => sample.wall_s,
            End::Killed => f64::NAN,
            _ => f64::INFINITY,
        };
        self.samples.iter().map(wall).collect()
    }

    /// Summarises the wall times of the runs that were not killed.
    pub fn summary(&self) -> Option<Summary> {
        let walls: Vec<f64> = self.walls().into_iter().filter(|wall| !wall.is_nan()).collect();
        Summary::of(&walls)
    }

    /// Returns whether so many runs have failed that the row cannot get a good median.
    fn is_lost(&self, rounds: usize) -> bool {
        self.samples.iter().filter(|sample| sample.end != End::Done).count() * 2 > rounds
    }
}

/// All measurements of one program.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Name of the program.
    pub program: &'static str,
    /// Peak memory of the program alone.
    pub peak_bytes: u64,
    /// Rows of the program, the plain row first.
    pub rows: Vec<Row>,
}

/// Measures one program.
pub fn measure(
    runner: &Runner,
    program: &Program,
    shares: &[u32],
    peers: &[Peer],
    rounds: usize,
) -> Result<Measured, ProgramsError> {
    let folder = runner.folder.join(program.name);
    std::fs::create_dir(&folder).map_err(RunError::Folder)?;
    (program.make)(&folder)?;
    let told = |what: &str| eprintln!("{}: {what}", program.name);
    told("runs alone, to measure its memory");
    // This run also reads the program's files into the page cache for all later runs.
    let alone = runner.run(program, Environment::Plain)?;
    if alone.end != End::Done {
        return Err(ProgramsError::Alone(program.name, alone.end));
    }
    let peak_bytes = alone.peak_bytes.ok_or(ProgramsError::NoPeak(program.name))?;
    let mut rows = vec![Row::new(Environment::Plain, None)];
    let zram = peers.contains(&Peer::Zram) && !shares.is_empty();
    let ratio = match shares.iter().min() {
        Some(&share) if zram => {
            told("runs with zram, to measure the compression");
            let limit_bytes = of(peak_bytes, share);
            let place = Environment::Zram { limit_bytes, memory_bytes: None, page_cluster: 0 };
            let sample = runner.run(program, place)?;
            let ratio = shrinks_to(sample.compressed);
            told(&format!("a page compresses to {ratio:.2} of its size ({:?})", sample.end));
            ratio
        }
        _ => 1.0,
    };
    for &share in shares {
        let limit_bytes = of(peak_bytes, share);
        rows.push(Row::new(Environment::Ebb { limit_bytes }, Some(share)));
        for &peer in peers {
            for page_cluster in CLUSTERS {
                let place = match peer {
                    Peer::SwapFile => Environment::SwapFile { limit_bytes, page_cluster },
                    Peer::Zram => divided(peak_bytes, limit_bytes, ratio, page_cluster),
                };
                rows.push(Row::new(place, Some(share)));
            }
        }
    }
    for round in 0..rounds {
        let mut order: Vec<&mut Row> = rows.iter_mut().collect();
        // The order is reversed in every other round.
        if round % 2 == 1 {
            order.reverse();
        }
        for row in order.into_iter().filter(|row| !row.is_lost(rounds)) {
            let mut sample = runner.run(program, row.place)?;
            if sample.end == End::Done && sample.checksum != alone.checksum {
                sample.end = End::Different;
            }
            told(&line(round, row, &sample));
            row.samples.push(sample);
        }
    }
    Ok(Measured { program: program.name, peak_bytes, rows })
}

fn line(round: usize, row: &Row, sample: &Sample) -> String {
    let share = row.share.map_or(String::new(), |share| format!("{share} %, "));
    let end = match &sample.end {
        End::Done => String::new(),
        End::Different => ": ERROR: THE OUTPUT IS NOT THAT OF THE PLAIN RUN".into(),
        End::Failed(why) => format!(": ERROR: {why}"),
        other => format!(": {other:?}"),
    };
    format!("round {}, {share}{:?}: {:.2} s{end}", round + 1, row.place, sample.wall_s)
}

fn of(bytes: u64, share: u32) -> u64 {
    bytes * u64::from(share) / 100 / 4096 * 4096
}

/// Returns the ratio of the compressed to the original size in swap; 1 if swap stayed empty.
fn shrinks_to(compressed: Compressed) -> f64 {
    if compressed.original_bytes == 0 {
        return 1.0;
    }
    compressed.used_bytes as f64 / compressed.original_bytes as f64
}

/// Divides a limit between the cgroup and compressed swap. The pages that do not fit into the
/// cgroup fit, compressed, into the rest. Each part gets at least an eighth of the limit, even if
/// the program cannot run in that.
fn divided(peak_bytes: u64, limit_bytes: u64, ratio: f64, page_cluster: u32) -> Environment {
    let (peak, limit) = (peak_bytes as f64, limit_bytes as f64);
    let resident = |ratio: f64| (limit - ratio * peak) / (1.0 - ratio);
    // Compressed swap gets a tenth more than measured, if there is room, because no two runs are
    // alike.
    let ratio = ratio.min(0.85);
    let resident =
        if resident(ratio * 1.1) > 0.0 { resident(ratio * 1.1) } else { resident(ratio) };
    let resident = (resident.clamp(limit / 8.0, limit * 7.0 / 8.0) as u64) / 4096 * 4096;
    let memory_bytes = Some(limit_bytes - resident);
    Environment::Zram { limit_bytes: resident, memory_bytes, page_cluster }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_and_the_compressed_part_add_up_to_the_limit() {
        let mib = 1 << 20;
        let Environment::Zram { limit_bytes, memory_bytes: Some(memory_bytes), .. } =
            divided(200 * mib, 100 * mib, 0.3, 0)
        else {
            panic!("no zram");
        };
        assert_eq!(limit_bytes + memory_bytes, 100 * mib);
        // 200 = resident + memory / 0.33
        assert!((49 * mib..52 * mib).contains(&limit_bytes), "{limit_bytes}");
        let Environment::Zram { limit_bytes, .. } = divided(200 * mib, 50 * mib, 0.9, 0) else {
            panic!("no zram");
        };
        assert_eq!(limit_bytes, 50 * mib / 8 / 4096 * 4096);
    }

    #[test]
    fn a_row_is_lost_when_most_of_its_rounds_failed() {
        let sample = |end| Sample {
            end,
            wall_s: 1.0,
            cpu_s: 1.0,
            checksum: 0,
            peak_bytes: None,
            report: None,
            compressed: Compressed::default(),
        };
        let mut row = Row::new(Environment::Plain, None);
        row.samples = vec![sample(End::Killed), sample(End::Done), sample(End::TimedOut)];
        assert!(!row.is_lost(5));
        assert!(row.walls()[0].is_nan());
        assert_eq!(row.walls()[1..], [1.0, f64::INFINITY]);
        assert_eq!(row.summary().unwrap().low, 1.0);
        row.samples.push(sample(End::Killed));
        assert!(row.is_lost(5));
    }
}
