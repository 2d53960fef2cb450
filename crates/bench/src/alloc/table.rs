//! Formats tables with a row per number of threads and a column per variant: `get / put` in
//! nanoseconds. Also JSON.

use serde_json::{Value, json};

use super::harness::{Cell, Load};

/// A table for one order and pattern.
#[derive(Clone, Debug)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// Heads of the columns.
    pub columns: Vec<String>,
    /// Load of each row, with a cell for each column.
    pub rows: Vec<(Load, Vec<Cell>)>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

impl Table {
    /// Returns the table as Markdown.
    #[must_use]
    pub fn text(&self) -> String {
        let mut lines = vec![format!("### {}", self.title)];
        lines.push(format!("| threads | {} |", self.columns.join(" | ")));
        lines.push(format!("|---|{}", "---|".repeat(self.columns.len())));
        for (load, cells) in &self.rows {
            let shown: Vec<String> = cells.iter().map(|c| cell(load, c)).collect();
            lines.push(format!("| {} | {} |", load.threads, shown.join(" | ")));
        }
        lines.extend(self.notes.iter().map(|note| format!("\n{note}")));
        lines.join("\n") + "\n"
    }

    /// Returns the table as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let row = |(load, cells): &(Load, Vec<Cell>)| {
            let cell = |(name, c): (&String, &Cell)| {
                if load.pattern.is_pair() {
                    json!({ "variant": name, "pair_ns": c.get })
                } else {
                    json!({ "variant": name, "get_ns": c.get, "put_ns": c.put })
                }
            };
            json!({
                "threads": load.threads,
                "order": load.order,
                "blocks_per_thread": load.blocks,
                "pattern": load.pattern.name(),
                "cells": self.columns.iter().zip(cells).map(cell).collect::<Vec<_>>(),
            })
        };
        json!({
            "title": self.title,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "notes": self.notes,
        })
    }
}

fn cell(load: &Load, cell: &Cell) -> String {
    if load.pattern.is_pair() {
        ns(cell.get)
    } else {
        format!("{} / {}", ns(cell.get), ns(cell.put))
    }
}

fn ns(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") }
}

#[cfg(test)]
mod tests {
    use super::super::harness::Pattern;
    use super::*;

    #[test]
    fn a_table_reads_the_same_as_text_and_as_json() {
        let load = Load { threads: 2, order: 9, blocks: 128, pattern: Pattern::Bulk, passes: 1 };
        let cells = vec![Cell { get: 3148.4, put: 29.04, ..Cell::default() }];
        let table = Table {
            title: "order 9".into(),
            columns: vec!["off".into()],
            rows: vec![(load, cells)],
            notes: vec![],
        };
        let text = "### order 9\n| threads | off |\n|---|---|\n| 2 | 3148 / 29.0 |\n";
        assert_eq!(table.text(), text);
        assert_eq!(table.json()["rows"][0]["cells"][0]["get_ns"], 3148.4);
    }
}
