//! Prints outcomes as text, CSV, or JSON with a schema number.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::replay::Outcome;

/// Format of the results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum OutputFormat {
    /// A table for people.
    #[default]
    Text,
    /// Comma-separated values with a header.
    Csv,
    /// One JSON document.
    Json,
}

/// Version of the JSON documents.
pub const SCHEMA: u32 = 1;

/// Description of a trace, for the head of a report.
#[derive(Clone, Debug)]
pub struct TraceInfo {
    /// Name as given.
    pub name: String,
    /// Number of accesses.
    pub accesses: u64,
    /// Number of distinct pages.
    pub pages: u32,
}

impl TraceInfo {
    /// Returns the trace as a part of a JSON document.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({ "name": self.name, "accesses": self.accesses, "footprint_pages": self.pages })
    }
}

/// Returns the report of a replay.
#[must_use]
pub fn replay(format: OutputFormat, trace: &TraceInfo, outcomes: &[Outcome]) -> String {
    match format {
        OutputFormat::Text => replay_text(trace, outcomes),
        OutputFormat::Csv => replay_csv(trace, outcomes),
        OutputFormat::Json => replay_json(trace, outcomes),
    }
}

/// Formats a number with separated thousands.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats the size of some pages of 4 KiB.
#[must_use]
pub fn size_of_pages(pages: u64) -> String {
    let kib = pages as f64 * 4.0;
    if kib >= 1024.0 * 1024.0 {
        format!("{:.1} GiB", kib / 1024.0 / 1024.0)
    } else if kib >= 1024.0 {
        format!("{:.1} MiB", kib / 1024.0)
    } else {
        format!("{kib:.0} KiB")
    }
}

fn replay_text(trace: &TraceInfo, outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} accesses to {} pages ({})",
        trace.name,
        thousands(trace.accesses),
        thousands(u64::from(trace.pages)),
        size_of_pages(u64::from(trace.pages)),
    );
    let mut memory = None;
    for outcome in outcomes {
        if memory != Some(outcome.memory_pages) {
            memory = Some(outcome.memory_pages);
            let pages = u64::from(outcome.memory_pages);
            let percent = pages as f64 * 100.0 / f64::from(trace.pages.max(1));
            let _ = writeln!(
                text,
                "\nmemory {} pages ({}, {percent:.1} % of the footprint)\n{:<10} {:>10} {:>13} \
                 {:>13} {:>13} {:>13} {:>9}",
                thousands(pages),
                size_of_pages(pages),
                "policy",
                "miss ratio",
                "misses",
                "refaults",
                "scanned",
                "protected",
                "ns/access",
            );
        }
        let _ = writeln!(
            text,
            "{:<10} {:>8.3} % {:>13} {:>13} {:>13} {:>13} {:>9.1}",
            outcome.policy,
            outcome.miss_ratio() * 100.0,
            thousands(outcome.misses),
            thousands(outcome.refaults),
            thousands(outcome.scanned),
            thousands(outcome.protected),
            outcome.nanoseconds_per_access(),
        );
    }
    text
}

/// Returns a CSV field, quoted if necessary.
#[must_use]
pub fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn replay_csv(trace: &TraceInfo, outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "trace,policy,memory_pages,accesses,misses,miss_ratio,refaults,scanned,protected,\
         ns_per_access,heap_bytes\n",
    );
    for outcome in outcomes {
        let _ = writeln!(
            text,
            "{},{},{},{},{},{:.8},{},{},{},{:.2},{}",
            field(&trace.name),
            outcome.policy,
            outcome.memory_pages,
            outcome.accesses,
            outcome.misses,
            outcome.miss_ratio(),
            outcome.refaults,
            outcome.scanned,
            outcome.protected,
            outcome.nanoseconds_per_access(),
            outcome.heap_bytes,
        );
    }
    text
}

fn replay_json(trace: &TraceInfo, outcomes: &[Outcome]) -> String {
    let rows: Vec<Value> = outcomes
        .iter()
        .map(|outcome| {
            json!({
                "policy": outcome.policy,
                "memory_pages": outcome.memory_pages,
                "misses": outcome.misses,
                "miss_ratio": outcome.miss_ratio(),
                "refaults": outcome.refaults,
                "scanned": outcome.scanned,
                "protected": outcome.protected,
                "ns_per_access": outcome.nanoseconds_per_access(),
                "heap_bytes": outcome.heap_bytes,
            })
        })
        .collect();
    let document = json!({ "schema": SCHEMA, "trace": trace.json(), "results": rows });
    format!("{document:#}\n")
}
