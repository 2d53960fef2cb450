//! The figures of `ebb stat`, and memory pressure.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Kind of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MetricKind {
    /// A level, which rises and falls.
    Gauge,
    /// A count since the start of the run, which only grows.
    Counter,
}

/// Unit of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Unit {
    /// Pages of 4 KiB.
    Pages,
    /// Bytes.
    Bytes,
    /// Microseconds.
    Microseconds,
    /// Events, each of the kind that the figure's name tells.
    Events,
}

/// A figure.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Metric {
    /// Name: that of `/proc/vmstat`, or one that begins with `ebb_`.
    pub name: String,
    /// Value, in the unit.
    pub value: u64,
    /// Kind of the figure.
    pub kind: MetricKind,
    /// Unit of the value.
    pub unit: Unit,
}

impl Metric {
    /// Makes a level.
    #[must_use]
    pub fn gauge(name: impl Into<String>, value: u64, unit: Unit) -> Self {
        Self { name: name.into(), value, kind: MetricKind::Gauge, unit }
    }

    /// Makes a count of events.
    #[must_use]
    pub fn counter(name: impl Into<String>, value: u64) -> Self {
        Self { name: name.into(), value, kind: MetricKind::Counter, unit: Unit::Events }
    }
}

/// All figures of a run. The text is a line `NAME VALUE` for each, as in `/proc/vmstat`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Metrics(pub Vec<Metric>);

impl Metrics {
    /// Returns a value; None if there is no such figure.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<u64> {
        Some(self.named(name)?.value)
    }

    /// Returns the bytes of a figure in pages or bytes; 0 if there is no such figure.
    #[must_use]
    pub fn bytes(&self, name: &str) -> u64 {
        self.named(name).map_or(0, |metric| match metric.unit {
            Unit::Pages => metric.value.saturating_mul(4096),
            Unit::Bytes => metric.value,
            Unit::Microseconds | Unit::Events => 0,
        })
    }

    fn named(&self, name: &str) -> Option<&Metric> {
        self.0.iter().find(|metric| metric.name == name)
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|metric| writeln!(f, "{} {}", metric.name, metric.value))
    }
}

/// Time in which threads waited for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pressure {
    /// Averages over 10, 60 and 300 s, in hundredths of a percent.
    pub average: [u64; 3],
    /// Total since the start, in microseconds.
    pub total_us: u64,
}

/// Memory pressure of a run. The text has the format of the kernel's `memory.pressure`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MemoryPressure {
    /// Time in which at least one thread waited for memory.
    pub some: Pressure,
    /// Time in which threads waited for memory and no other thread ran.
    pub full: Pressure,
}

impl fmt::Display for MemoryPressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, line) in [("some", self.some), ("full", self.full)] {
            write!(f, "{name}")?;
            for (window, share) in [10, 60, 300].iter().zip(line.average) {
                write!(f, " avg{window}={}.{:02}", share / 100, share % 100)?;
            }
            writeln!(f, " total={}", line.total_us)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_have_the_form_of_the_kernel() {
        let some = Pressure { average: [452, 81, 7], total_us: 500_000 };
        let pressure = MemoryPressure { some, ..MemoryPressure::default() };
        assert_eq!(
            pressure.to_string(),
            "some avg10=4.52 avg60=0.81 avg300=0.07 total=500000\n\
             full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        );
        let level = Metric::gauge("nr_free_pages", 3, Unit::Pages);
        let metrics = Metrics(vec![level, Metric::counter("pgfault", 7)]);
        assert_eq!(metrics.to_string(), "nr_free_pages 3\npgfault 7\n");
        assert_eq!([metrics.bytes("nr_free_pages"), metrics.bytes("pgfault")], [3 << 12, 0]);
        assert_eq!([metrics.value("pgfault"), metrics.value("none")], [Some(7), None]);
    }
}
