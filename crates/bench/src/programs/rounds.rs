//! Rounds of one program: alone, under Ebb, and with the kernel's swap, in turns.

use clap::ValueEnum;
use serde::Serialize;

use super::list::Program;
use super::runs::{End, Place, Runner, Sample};
use crate::kernel::Compressed;
use crate::stats::Summary;

/// Swap-in of one page at a time, and of eight: the kernel's default.
const CLUSTERS: [u32; 2] = [0, 3];

/// What Ebb is compared with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Peer {
    /// The kernel's swap file.
    #[value(name = "swapfile")]
    SwapFile,
    /// The kernel's compressed swap. Its memory counts in the limit, as Ebb's compressed tier does.
    Zram,
}

impl Peer {
    /// As tables show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::SwapFile => "swap file",
            Self::Zram => "zram",
        }
    }
}

/// A place with all its rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Where it ran.
    pub place: Place,
    /// The share of its memory, in percent; none for the plain row.
    pub share: Option<u32>,
    /// One for each round.
    pub samples: Vec<Sample>,
}

impl Row {
    fn new(place: Place, share: Option<u32>) -> Self {
        Self { place, share, samples: Vec::new() }
    }

    /// What Ebb is compared with here, if it is not Ebb itself or no limit.
    pub fn peer(&self) -> Option<Peer> {
        match self.place {
            Place::Plain | Place::Ebb { .. } => None,
            Place::SwapFile { .. } => Some(Peer::SwapFile),
            Place::Zram { .. } => Some(Peer::Zram),
        }
    }

    /// Wall times of all rounds: infinite where a run did not come to its end, no number where it was
    /// killed, which is told apart.
    pub fn walls(&self) -> Vec<f64> {
        let wall = |sample: &Sample| match sample.end {
            End::Done => sample.wall_s,
            End::Killed => f64::NAN,
            _ => f64::INFINITY,
        };
        self.samples.iter().map(wall).collect()
    }

    /// Of those that were not killed.
    pub fn summary(&self) -> Option<Summary> {
        let walls: Vec<f64> = self.walls().into_iter().filter(|wall| !wall.is_nan()).collect();
        Summary::of(&walls)
    }

    /// Whether most of its runs will not have ended well, whatever comes.
    fn is_lost(&self, rounds: usize) -> bool {
        self.samples.iter().filter(|sample| sample.end != End::Done).count() * 2 > rounds
    }
}

/// All that was measured of one program.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Its name.
    pub program: &'static str,
    /// Most memory it takes alone.
    pub peak_bytes: u64,
    /// The plain row first.
    pub rows: Vec<Row>,
}

/// Measures one program.
pub fn measure(
    runner: &Runner,
    program: &Program,
    shares: &[u32],
    peers: &[Peer],
    rounds: usize,
) -> Result<Measured, String> {
    let folder = runner.folder.join(program.name);
    std::fs::create_dir(&folder).map_err(|error| format!("cannot make a folder: {error}"))?;
    (program.make)(&folder)?;
    let told = |what: &str| eprintln!("{}: {what}", program.name);
    told("alone, to see what it takes");
    // Reads its files into memory too, for all who come later.
    let alone = runner.run(program, Place::Plain)?;
    if alone.end != End::Done {
        return Err(format!("{} does not run by itself: {:?}", program.name, alone.end));
    }
    let peak_bytes = alone.peak_bytes.ok_or("its memory is not known")?;
    let mut rows = vec![Row::new(Place::Plain, None)];
    let zram = peers.contains(&Peer::Zram) && !shares.is_empty();
    let ratio = match shares.iter().min() {
        Some(&share) if zram => {
            told("with zram, to see how it shrinks");
            let limit_bytes = of(peak_bytes, share);
            let place = Place::Zram { limit_bytes, memory_bytes: None, page_cluster: 0 };
            let sample = runner.run(program, place)?;
            let ratio = shrinks_to(sample.compressed);
            told(&format!("a page takes {ratio:.2} of one there ({:?})", sample.end));
            ratio
        }
        _ => 1.0,
    };
    for &share in shares {
        let limit_bytes = of(peak_bytes, share);
        rows.push(Row::new(Place::Ebb { limit_bytes }, Some(share)));
        for &peer in peers {
            for page_cluster in CLUSTERS {
                let place = match peer {
                    Peer::SwapFile => Place::SwapFile { limit_bytes, page_cluster },
                    Peer::Zram => divided(peak_bytes, limit_bytes, ratio, page_cluster),
                };
                rows.push(Row::new(place, Some(share)));
            }
        }
    }
    for round in 0..rounds {
        let mut order: Vec<&mut Row> = rows.iter_mut().collect();
        // What runs first in one round runs last in the next.
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

/// What a page takes of a page in compressed swap; as much where nothing came there.
fn shrinks_to(compressed: Compressed) -> f64 {
    if compressed.original_bytes == 0 {
        return 1.0;
    }
    compressed.used_bytes as f64 / compressed.original_bytes as f64
}

/// Divides a limit so that what does not fit into the cgroup fits, compressed, into the rest of it. With
/// less than an eighth left for either, that eighth: the program will say whether it can live with it.
fn divided(peak_bytes: u64, limit_bytes: u64, ratio: f64, page_cluster: u32) -> Place {
    let (peak, limit) = (peak_bytes as f64, limit_bytes as f64);
    let resident = |ratio: f64| (limit - ratio * peak) / (1.0 - ratio);
    // A tenth more than it took, if there is room, since no two runs are alike.
    let ratio = ratio.min(0.85);
    let resident =
        if resident(ratio * 1.1) > 0.0 { resident(ratio * 1.1) } else { resident(ratio) };
    let resident = (resident.clamp(limit / 8.0, limit * 7.0 / 8.0) as u64) / 4096 * 4096;
    let memory_bytes = Some(limit_bytes - resident);
    Place::Zram { limit_bytes: resident, memory_bytes, page_cluster }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_of_a_limit_together_are_the_limit() {
        let mib = 1 << 20;
        let Place::Zram { limit_bytes, memory_bytes: Some(memory_bytes), .. } =
            divided(200 * mib, 100 * mib, 0.3, 0)
        else {
            panic!("no zram");
        };
        assert_eq!(limit_bytes + memory_bytes, 100 * mib);
        // 200 = resident + memory / 0.33
        assert!((49 * mib..52 * mib).contains(&limit_bytes), "{limit_bytes}");
        let Place::Zram { limit_bytes, .. } = divided(200 * mib, 50 * mib, 0.9, 0) else {
            panic!("no zram");
        };
        assert_eq!(limit_bytes, 50 * mib / 8 / 4096 * 4096);
    }

    #[test]
    fn a_row_is_lost_when_most_of_it_is() {
        let sample = |end| Sample {
            end,
            wall_s: 1.0,
            cpu_s: 1.0,
            checksum: 0,
            peak_bytes: None,
            report: None,
            compressed: Compressed::default(),
        };
        let mut row = Row::new(Place::Plain, None);
        row.samples = vec![sample(End::Killed), sample(End::Done), sample(End::TimedOut)];
        assert!(!row.is_lost(5));
        assert!(row.walls()[0].is_nan());
        assert_eq!(row.walls()[1..], [1.0, f64::INFINITY]);
        assert_eq!(row.summary().unwrap().low, 1.0);
        row.samples.push(sample(End::Killed));
        assert!(row.is_lost(5));
    }
}
