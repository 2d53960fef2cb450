//! Thins traces to the view of passes over accessed bits: each page once in a window of time.
//!
//! A window's records are in the order of their pages. A page counts as written if any of its
//! records in the window is a write, otherwise as executed if any is.

use std::collections::BTreeMap;

use super::{Kind, Op, Record};

/// Thins one trace.
pub struct Thinner {
    window: u64,
    frame: u64,
    now: u64,
    /// Number of the window whose records are being collected.
    gathering: u64,
    /// Number of the window last emitted.
    given: u64,
    seen: BTreeMap<(u64, Kind), Op>,
}

impl Thinner {
    /// Creates a thinner with windows of `window` units of time (at least one), and frames of
    /// `frame` pages each.
    #[must_use]
    pub fn new(window: u64, frame: u64) -> Self {
        let (window, frame) = (window.max(1), frame.max(1));
        Self { window, frame, now: 0, gathering: 0, given: 0, seen: BTreeMap::new() }
    }

    /// Adds a record. The records of a finished window go to `out`.
    pub fn push(&mut self, record: &Record, out: &mut Vec<Record>) {
        self.now += record.dt;
        let window = self.now / self.window;
        if window != self.gathering {
            self.finish(out);
            self.gathering = window;
        }
        let op = self.seen.entry((record.page / self.frame, record.kind)).or_default();
        *op = match (*op, record.op) {
            (Op::Write, _) | (_, Op::Write) => Op::Write,
            (Op::Exec, _) | (_, Op::Exec) => Op::Exec,
            (Op::Read, Op::Read) => Op::Read,
        };
    }

    /// Writes the records of the last window to `out`.
    pub fn finish(&mut self, out: &mut Vec<Record>) {
        for ((page, kind), op) in std::mem::take(&mut self.seen) {
            let dt = (self.gathering - self.given) * self.window;
            self.given = self.gathering;
            out.push(Record { dt, page, op, kind });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thinned(window: u64, frame: u64, records: &[Record]) -> Vec<Record> {
        let (mut thinner, mut out) = (Thinner::new(window, frame), Vec::new());
        records.iter().for_each(|r| thinner.push(r, &mut out));
        thinner.finish(&mut out);
        out
    }

    fn record(dt: u64, page: u64, op: Op, kind: Kind) -> Record {
        Record { dt, page, op, kind }
    }

    #[test]
    fn a_window_has_each_page_once_with_its_strongest_access() {
        let (anon, mapped) = (Kind::Anon, Kind::Mapped);
        let records = [
            record(1, 9, Op::Read, anon),
            record(1, 8, Op::Read, anon),
            record(1, 9, Op::Write, anon),
            record(1, 9, Op::Read, anon),
            record(1, 9, Op::Exec, mapped),
            record(5, 9, Op::Read, anon),  // At 10: the second window.
            record(25, 2, Op::Read, anon), // At 35: the fourth; the third window has no record.
            record(1, 3, Op::Exec, anon),
        ];
        assert_eq!(
            thinned(10, 1, &records),
            [
                record(0, 8, Op::Read, anon),
                record(0, 9, Op::Write, anon),
                record(0, 9, Op::Exec, mapped),
                record(10, 9, Op::Read, anon),
                record(20, 2, Op::Read, anon),
                record(0, 3, Op::Exec, anon),
            ]
        );
        // Frames of four pages: 8 and 9 are one, and so are 2 and 3.
        assert_eq!(
            thinned(10, 4, &records)[..2],
            [record(0, 2, Op::Write, anon), record(0, 2, Op::Exec, mapped)]
        );
        assert_eq!(thinned(10, 4, &records)[3], record(20, 0, Op::Exec, anon));
    }

    #[test]
    fn thinning_again_changes_nothing() {
        let records: Vec<Record> = (0..4000u64)
            .map(|i| record(i % 5, i * i % 61, [Op::Read, Op::Write][(i % 2) as usize], Kind::Anon))
            .collect();
        let once = thinned(100, 1, &records);
        assert!(once.len() < records.len());
        assert_eq!(thinned(100, 1, &once), once);
    }
}
