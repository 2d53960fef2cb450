//! Judges Ebb's fast store by goals, which are ratios to the bound of the same run.

use ebb_bench::alloc::{Cell, Pattern, Table};

const BOUND: usize = 0;
const FAST: usize = 1;
const BUDDY: usize = 4;
/// Largest allowed ratio of the cost with two threads to the cost with one.
const SECOND_THREAD_MAX: f64 = 1.25;

struct Goal {
    order: u8,
    pattern: Pattern,
    threads: usize,
    what: &'static str,
    part: fn(&Cell) -> f64,
    most: f64,
    /// LLFree's ratio to that bound, from its own harness.
    llfree: f64,
}

const fn get(c: &Cell) -> f64 {
    c.get
}

const fn put(c: &Cell) -> f64 {
    c.put
}

const GOALS: [Goal; 6] = [
    goal(0, Pattern::Bulk, 1, "get", get, 2.5, 9.8),
    goal(0, Pattern::Bulk, 1, "put", put, 5.0, 12.9),
    goal(0, Pattern::Random, 1, "put", put, 10.0, 18.0),
    goal(0, Pattern::Repeat, 1, "pair", get, 1.5, 17.0),
    goal(9, Pattern::Bulk, 2, "get", get, 5.0, 23.0),
    goal(9, Pattern::Bulk, 2, "put", put, 5.0, 14.0),
];

const fn goal(
    order: u8,
    pattern: Pattern,
    threads: usize,
    what: &'static str,
    part: fn(&Cell) -> f64,
    most: f64,
    llfree: f64,
) -> Goal {
    Goal { order, pattern, threads, what, part, most, llfree }
}

/// Returns a line for each goal that the tables cover.
pub fn judge(tables: &[Table]) -> Vec<String> {
    let rows = || tables.iter().flat_map(|t| &t.rows);
    let verdict = |ok: bool| if ok { "holds" } else { "FAILS" };
    let mut lines = Vec::new();
    for g in &GOALS {
        let fits = |l: &ebb_bench::alloc::Load| {
            (l.order, l.pattern, l.threads) == (g.order, g.pattern, g.threads)
        };
        for (_, cells) in rows().filter(|(l, _)| fits(l)) {
            let ratio = (g.part)(&cells[FAST]) / (g.part)(&cells[BOUND]);
            lines.push(format!(
                "{}: order {}, {}, {} thread(s), {}: {ratio:.2}x the bound, goal {}x [LLFree {}x]",
                verdict(ratio <= g.most),
                g.order,
                g.pattern.name(),
                g.threads,
                g.what,
                g.most,
                g.llfree
            ));
        }
    }
    for table in tables {
        let by = |n| table.rows.iter().find(|(l, _)| l.threads == n);
        let (Some((load, one)), Some((_, two))) = (by(1), by(2)) else { continue };
        for (what, part) in [("get", get as fn(&Cell) -> f64), ("put", put)] {
            if what == "put" && load.pattern.is_pair() {
                continue;
            }
            let name = if load.pattern.is_pair() { "pair" } else { what };
            let cell = format!("order {}, {}, {name}", load.order, load.pattern.name());
            let ratio = part(&two[FAST]) / part(&one[FAST]);
            let of_bound = part(&two[BOUND]) / part(&one[BOUND]);
            lines.push(format!(
                "{}: {cell}: two threads cost {ratio:.2}x of one, goal {SECOND_THREAD_MAX}x \
                 (the bound itself {of_bound:.2}x)",
                verdict(ratio <= SECOND_THREAD_MAX)
            ));
            for (threads, cells) in [(1, one), (2, two)] {
                if let Some(buddy) = cells.get(BUDDY) {
                    let ratio = part(buddy) / part(&cells[FAST]);
                    lines.push(format!(
                        "{}: {cell}, {threads} thread(s): {ratio:.1}x faster than the mutex buddy",
                        verdict(ratio > 1.0)
                    ));
                }
            }
        }
    }
    lines
}
