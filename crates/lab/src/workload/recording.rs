//! Recordings of real programs that workloads play back.
//!
//! A recording has the 16 KiB pages of memory and of mapped files that a program used in each 25th
//! part of its life. Passes over accessed bits would have found the same (`ebb lab convert
//! --window`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::trace::{Kind, Numbering, Op, Reader};

/// The recordings that exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Recorded {
    /// `cc1plus -quiet -O2 -std=c++17` on 52,859 preprocessed lines (gcc 12.2), recorded under
    /// valgrind and converted by `ebb lab convert mem-gxx-cc1plus.csv.zst cc1plus.trace.zst
    /// --window 104000000 --frame 4`.
    Cc1plus,
}

impl Recorded {
    /// Returns the recording.
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
    /// The page. The program's own pages are numbered in the order of addresses, those of the files
    /// it maps by `Files`.
    pub page: u32,
    /// Whether the page belongs to a file.
    pub file: bool,
    /// Whether the use is a write.
    pub write: bool,
}

/// A program's uses of memory in their order.
#[derive(Debug)]
pub struct Recording {
    /// The uses.
    pub uses: Vec<Use>,
    /// Number of the program's own pages.
    pub own: u64,
    /// Pages of the files that the program maps, used or not.
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
        let pages = |kind| -> BTreeSet<u64> {
            all.iter().filter(|r| r.kind == kind).map(|r| r.page).collect()
        };
        let mut own = Numbering::default();
        for page in pages(Kind::Anon) {
            own.number(page);
        }
        let mapped = Files::new(&pages(Kind::Mapped));
        let uses = all.iter().map(|r| {
            let file = r.kind == Kind::Mapped;
            let page = if file { mapped.number(r.page) } else { own.number(r.page) };
            Use { page, file, write: r.op == Op::Write }
        });
        let uses = uses.collect();
        Self { uses, own: u64::from(own.len()), mapped: mapped.pages }
    }
}

/// Frames between the beginnings of two files in a recording. The recorder numbers pages of 4 KiB,
/// and files from multiples of 2^24 on.
const FILE_FRAMES: u64 = (1 << 24) / 4;

/// The files of a recording one behind the other, each from its beginning to the last page used.
/// The pages between used ones count as well, and may be read ahead with them.
struct Files {
    /// First page of each file, by its index in the recording.
    from: BTreeMap<u64, u64>,
    /// Pages of all files.
    pages: u64,
}

impl Files {
    fn new(used: &BTreeSet<u64>) -> Self {
        let mut last = BTreeMap::new();
        for page in used {
            last.insert(page / FILE_FRAMES, page % FILE_FRAMES);
        }
        let (mut from, mut pages) = (BTreeMap::new(), 0);
        for (file, last) in last {
            from.insert(file, pages);
            pages += last + 1;
        }
        Self { from, pages }
    }

    fn number(&self, page: u64) -> u32 {
        (self.from[&(page / FILE_FRAMES)] + page % FILE_FRAMES) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recording_is_of_a_program_that_uses_a_part_of_its_memory_at_a_time() {
        let r = Recorded::Cc1plus.recording();
        // 58 MiB of its own, and files of 41 MiB of which it uses 22.
        let used: BTreeSet<u32> = r.uses.iter().filter(|u| u.file).map(|u| u.page).collect();
        assert_eq!((r.own, r.mapped, used.len()), (3705, 2620, 1412));
        let own = r.uses.iter().filter(|u| !u.file).count() as u64;
        let (most, least) = (25 * r.own, 2 * r.own);
        assert!((least..most / 2).contains(&own), "{own} uses of {} pages", r.own);
        assert!(r.uses.iter().all(|u| u64::from(u.page) < if u.file { r.mapped } else { r.own }));
        assert!(r.uses.iter().filter(|u| u.file).all(|u| !u.write), "text is not written");
    }
}
