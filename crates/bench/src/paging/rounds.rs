//! Runs rounds: in each round every configuration runs once.

use serde::Serialize;

use super::load::Outcome;
use super::runs::{Environment, Load, PagingError, Runner};
use crate::stats;

const MIB: f64 = (1 << 20) as f64;

/// Result of one run of one configuration.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// Accesses a second.
    pub rate: f64,
    /// Processor time per access, in microseconds.
    pub cpu_us: f64,
    /// Pages swapped in per access.
    pub misses: f64,
    /// Memory of Ebb itself, in MiB.
    pub own_mib: f64,
    /// Memory that Ebb shares with the program, in MiB.
    pub shared_mib: f64,
}

impl Sample {
    fn of(outcome: &Outcome) -> Self {
        let accesses = outcome.accesses as f64;
        Self {
            rate: accesses * 1e6 / outcome.wall_us as f64,
            cpu_us: outcome.cpu_us as f64 / accesses,
            misses: outcome.swapped_in as f64 / accesses,
            own_mib: outcome.ebb_bytes as f64 / MIB,
            shared_mib: outcome.ebb_shared_bytes as f64 / MIB,
        }
    }
}

/// A configuration with the results of all rounds.
#[derive(Debug)]
pub struct Row {
    /// Name of the configuration.
    pub name: String,
    /// Environment in which it runs.
    pub place: Environment,
    /// One sample for each round.
    pub samples: Vec<Sample>,
}

impl Row {
    /// Returns one figure of all rounds.
    pub fn column(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }

    /// Returns the median of a figure.
    pub fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        stats::median(&self.column(figure))
    }
}

/// Runs `load` in all environments, `rounds` times each.
pub fn measure(
    runner: &Runner,
    places: &[(String, Environment)],
    load: &Load,
    rounds: usize,
) -> Result<Vec<Row>, PagingError> {
    let row = |(name, place): &(String, Environment)| Row {
        name: name.clone(),
        place: place.clone(),
        samples: Vec::new(),
    };
    let mut rows: Vec<Row> = places.iter().map(row).collect();
    for round in 0..rounds {
        let mut order: Vec<&mut Row> = rows.iter_mut().collect();
        // The order is reversed in every other round.
        if round % 2 == 1 {
            order.reverse();
        }
        for row in order {
            let outcome = runner.run(&row.place, &fitted(load, &row.place))?;
            row.samples.push(Sample::of(&outcome));
        }
    }
    Ok(rows)
}

/// Shortens a plain run, because nothing warms up when all is resident. Its number of accesses
/// grows, because a plain run is about a hundred times as fast.
fn fitted(load: &Load, place: &Environment) -> Load {
    match place {
        Environment::Plain => Load {
            warm: 1.0,
            seconds: 1.0_f64.min(load.seconds),
            accesses: load.accesses * 10,
            ..*load
        },
        _ => *load,
    }
}
