//! Rounds: every configuration once in each, in turns.

use serde::Serialize;

use super::load::Outcome;
use super::runs::{Load, Place, Runner};
use crate::stats;

const MIB: f64 = (1 << 20) as f64;

/// One run of one configuration.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// Accesses a second.
    pub rate: f64,
    /// Processor time for an access.
    pub cpu_us: f64,
    /// Pages swapped in for an access.
    pub misses: f64,
    /// Memory of Ebb's own.
    pub own_mib: f64,
    /// Memory that Ebb shares with the program.
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

/// A configuration with all its rounds.
#[derive(Debug)]
pub struct Row {
    /// What it is called.
    pub name: String,
    /// Where it ran.
    pub place: Place,
    /// One for each round.
    pub samples: Vec<Sample>,
}

impl Row {
    /// One figure of all rounds.
    pub fn column(&self, figure: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples.iter().map(figure).collect()
    }

    /// The median of a figure.
    pub fn median(&self, figure: impl Fn(&Sample) -> f64) -> f64 {
        stats::median(&self.column(figure))
    }
}

/// Runs `load` in all places, so many times.
pub fn measure(
    runner: &Runner,
    places: &[(String, Place)],
    load: &Load,
    rounds: usize,
) -> Result<Vec<Row>, String> {
    let row = |(name, place): &(String, Place)| Row {
        name: name.clone(),
        place: place.clone(),
        samples: Vec::new(),
    };
    let mut rows: Vec<Row> = places.iter().map(row).collect();
    for round in 0..rounds {
        let mut order: Vec<&mut Row> = rows.iter_mut().collect();
        // What runs first in one round runs last in the next.
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

/// Nothing warms up where all is resident, and what is a hundred times as fast is over at once.
fn fitted(load: &Load, place: &Place) -> Load {
    match place {
        Place::Plain => Load {
            warm: 1.0,
            seconds: 1.0_f64.min(load.seconds),
            accesses: load.accesses * 10,
            ..*load
        },
        _ => *load,
    }
}
