//! Ranks policies by their misses compared with the optimum's.
//!
//! A case is a trace and a cache size. The score of a policy is the geometric mean, over cases, of
//! its misses divided by Belady's. A mean over other cases is another quantity. So one table
//! contains only policies that ran on all of its cases. A policy that ran on fewer is compared with
//! the ranked policy on those cases.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::baseline::Row;

/// Name of the optimum in the baseline.
const OPTIMUM: &str = "Belady";

/// A trace and a cache size, with the misses of each policy that ran on it.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// Name of the trace.
    pub trace: String,
    /// Kind of trace.
    pub family: String,
    /// Size of the cache in pages.
    pub memory_pages: u32,
    /// Number of misses of the optimum.
    pub optimum: u64,
    /// Number of misses by the name of the policy.
    pub misses: BTreeMap<String, u64>,
}

impl Case {
    /// Returns the misses of a policy divided by the optimum's.
    fn over_optimum(&self, policy: &str) -> Option<f64> {
        Some(*self.misses.get(policy)? as f64 / self.optimum as f64)
    }
}

/// Returns the cases of a baseline that have an optimum and at least `pages_min` pages.
#[must_use]
pub fn cases(rows: &[Row], pages_min: u32) -> Vec<Case> {
    let mut cases: BTreeMap<(&str, u32), Case> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.memory_pages >= pages_min) {
        let case = cases.entry((&row.trace, row.memory_pages)).or_insert_with(|| Case {
            trace: row.trace.clone(),
            family: row.family.clone(),
            memory_pages: row.memory_pages,
            optimum: 0,
            misses: BTreeMap::new(),
        });
        if row.label == OPTIMUM {
            case.optimum = row.misses;
        } else {
            case.misses.insert(row.label.clone(), row.misses);
        }
    }
    cases.into_values().filter(|case| case.optimum > 0).collect()
}

/// Returns the names of a baseline's traces at every second position of the alphabet, from the
/// first. A search of the engine's constants may use only these, so that the other half can judge
/// the result.
#[must_use]
pub fn searched(rows: &[Row]) -> BTreeSet<String> {
    let names: BTreeSet<&str> = rows.iter().map(|row| row.trace.as_str()).collect();
    names.into_iter().step_by(2).map(str::to_owned).collect()
}

/// Returns the geometric mean of a policy over `cases`, if the policy ran on all of them.
fn mean<'a>(cases: impl IntoIterator<Item = &'a Case>, policy: &str) -> Option<f64> {
    let mut count = 0;
    let mut sum = 0.0;
    for case in cases {
        sum += case.over_optimum(policy)?.ln();
        count += 1;
    }
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// Returns the table by group of cases, then the comparison with policies that ran on fewer.
#[must_use]
pub fn table(cases: &[Case], searched: &BTreeSet<String>, ranked: &str) -> String {
    let names: BTreeSet<&str> =
        cases.iter().flat_map(|case| case.misses.keys().map(String::as_str)).collect();
    let means = names.iter().map(|&name| (name, mean(cases, name)));
    let (mut everywhere, mut elsewhere) = (Vec::new(), Vec::new());
    for (name, mean) in means.filter(|(name, _)| *name != ranked) {
        match mean {
            Some(mean) => everywhere.push((mean, name)),
            None => elsewhere.push(name),
        }
    }
    everywhere.sort_by(|a, b| a.0.total_cmp(&b.0));
    let columns: Vec<&str> =
        std::iter::once(ranked).chain(everywhere.iter().map(|(_, name)| *name)).collect();
    let mut text = format!("{:<18} {:>5}", "misses / optimum's", "cases");
    for column in &columns {
        let _ = write!(text, " {column:>10}");
    }
    text.push('\n');
    for (name, group) in groups(cases, searched) {
        let _ = write!(text, "{name:<18} {:>5}", group.len());
        for column in &columns {
            match mean(group.iter().copied(), column) {
                Some(mean) => _ = write!(text, " {mean:>10.3}"),
                None => text.push_str("          -"),
            }
        }
        text.push('\n');
    }
    if !elsewhere.is_empty() {
        let _ =
            writeln!(text, "\n{:<18} {:>5} {:>10} {ranked:>10}", "fewer cases", "cases", "theirs");
    }
    for name in elsewhere {
        for (kind, group) in groups(cases, &BTreeSet::new()) {
            let shared: Vec<&Case> =
                group.into_iter().filter(|case| case.misses.contains_key(name)).collect();
            let both = [name, ranked].map(|policy| mean(shared.iter().copied(), policy));
            if let [Some(theirs), Some(ours)] = both {
                let name = format!("{name}, {kind}");
                let _ =
                    writeln!(text, "{name:<18} {:>5} {theirs:>10.3} {ours:>10.3}", shared.len());
            }
        }
    }
    text
}

/// Returns the groups: all cases, then those of each kind of trace, each also by halves if the
/// search has one.
fn groups<'a>(cases: &'a [Case], searched: &BTreeSet<String>) -> Vec<(String, Vec<&'a Case>)> {
    let families: BTreeSet<&str> =
        cases.iter().map(|case| case.family.as_str()).filter(|name| !name.is_empty()).collect();
    let mut groups = Vec::new();
    for family in std::iter::once("").chain(families) {
        let of_family = |case: &&Case| family.is_empty() || case.family == family;
        let members: Vec<&Case> = cases.iter().filter(of_family).collect();
        let name = if family.is_empty() { "all" } else { family };
        let (first, second): (Vec<&Case>, Vec<&Case>) =
            members.iter().partition(|case| searched.contains(&case.trace));
        groups.push((name.to_owned(), members));
        if !first.is_empty() && !second.is_empty() {
            groups.push((format!("{name}, searched"), first));
            groups.push((format!("{name}, held out"), second));
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(trace: &str, memory_pages: u32, label: &str, misses: u64) -> Row {
        let family = if trace.starts_with('m') { "mem" } else { "block" };
        let (trace, label) = (trace.to_owned(), label.to_owned());
        Row { trace, family: family.to_owned(), memory_pages, label, misses }
    }

    #[test]
    fn means_are_geometric_and_over_cases_that_all_ran_on() {
        let rows = [
            row("b1", 256, "Belady", 100),
            row("b1", 256, "LRU", 200),
            row("b1", 256, "CAR", 150),
            row("m1", 300, "Belady", 100),
            row("m1", 300, "LRU", 800),
            row("m1", 100, "Belady", 100),
            row("m1", 100, "LRU", 100),
            row("m2", 256, "LRU", 100),
        ];
        let mut cases = cases(&rows, 256);
        assert_eq!(cases.len(), 2, "a small cache and one without an optimum are none");
        for case in &mut cases {
            case.misses.insert("gen".to_owned(), 100 + u64::from(case.memory_pages == 300) * 21);
        }
        assert_eq!(searched(&rows), ["b1", "m2"].map(str::to_owned).into());
        let text = table(&cases, &searched(&rows), "gen");
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["misses", "/", "optimum's", "cases", "gen", "LRU"]);
        assert_eq!(lines[1], ["all", "2", "1.100", "4.000"]);
        assert_eq!(lines[2], ["all,", "searched", "1", "1.000", "2.000"]);
        assert_eq!(lines[3], ["all,", "held", "out", "1", "1.210", "8.000"]);
        assert_eq!(lines[4], ["block", "1", "1.000", "2.000"]);
        assert_eq!(lines[5], ["mem", "1", "1.210", "8.000"]);
        assert!(lines.contains(&vec!["CAR,", "all", "1", "1.500", "1.000"]), "{text}");
        assert!(!text.contains("CAR, mem"), "{text}");
    }
}
