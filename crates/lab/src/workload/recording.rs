//! Recordings of real programs that workloads play back.
//!
//! A recording says which 16 KiB of memory and of mapped files a program used in each 25th part of its life, as
//! passes over accessed bits would have found it (`ebb lab convert --window`).

use std::sync::LazyLock;

use serde::Deserialize;

use crate::trace::{Kind, Numbering, Op, Reader};

/// The recordings there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recorded {
    /// `cc1plus -quiet -O2 -std=c++17`, 52,859 preprocessed lines (gcc 12.2), recorded under valgrind and made by `ebb
    /// lab convert mem-gxx-cc1plus.csv.zst cc1plus.trace.zst --window 104000000 --frame 4`.
    Cc1plus,
}

impl Recorded {
    /// What was recorded.
    #[must_use]
    pub fn recording(self) -> &'static Recording {
        static CC1PLUS: LazyLock<Recording> =
            LazyLock::new(|| Recording::read("cc1plus", include_bytes!("cc1plus.trace.zst")));
        match self {
            Self::Cc1plus => &CC1PLUS,
        }
    }
}

/// One use of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Use {
    /// The page: the program's own, or one of the files it maps, each numbered as they lie.
    pub page: u32,
    /// Whether it is a file's.
    pub file: bool,
    /// Whether it was written.
    pub write: bool,
}

/// A program's uses of memory in their order.
#[derive(Debug)]
pub struct Recording {
    /// The uses.
    pub uses: Vec<Use>,
    /// Pages of its own.
    pub own: u64,
    /// Pages of the files it maps.
    pub mapped: u64,
}

impl Recording {
    /// Reads a trace that is part of the program.
    fn read(name: &str, bytes: &[u8]) -> Self {
        let mut reader =
            Reader::from_bytes(name, bytes.to_vec(), None).expect("it was checked by a test");
        let (mut all, mut some) = (Vec::new(), Vec::new());
        while reader.read(&mut some).expect("it was checked by a test") {
            all.extend(some.drain(..).filter(|r| matches!(r.kind, Kind::Anon | Kind::Mapped)));
        }
        let number = |kind| {
            let mut pages: Vec<u64> =
                all.iter().filter(|r| r.kind == kind).map(|r| r.page).collect();
            pages.sort_unstable();
            pages.dedup();
            let mut numbers = Numbering::default();
            for &page in &pages {
                numbers.number(page);
            }
            numbers
        };
        let (mut own, mut mapped) = (number(Kind::Anon), number(Kind::Mapped));
        let uses = all.iter().map(|r| {
            let file = r.kind == Kind::Mapped;
            let page = if file { mapped.number(r.page) } else { own.number(r.page) };
            Use { page, file, write: r.op == Op::Write }
        });
        let uses = uses.collect();
        Self { uses, own: u64::from(own.len()), mapped: u64::from(mapped.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_is_of_a_program_that_uses_a_part_of_its_memory_at_a_time() {
        let r = Recorded::Cc1plus.recording();
        // 58 MiB of its own and 22 MiB of text and data of files.
        assert_eq!((r.own, r.mapped), (3705, 1412));
        let own = r.uses.iter().filter(|u| !u.file).count() as u64;
        let (most, least) = (25 * r.own, 2 * r.own);
        assert!((least..most / 2).contains(&own), "{own} uses of {} pages", r.own);
        assert!(r.uses.iter().all(|u| u64::from(u.page) < if u.file { r.mapped } else { r.own }));
        assert!(r.uses.iter().filter(|u| u.file).all(|u| !u.write), "text is not written");
    }
}
