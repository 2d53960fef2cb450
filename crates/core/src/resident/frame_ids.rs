//! Allocates frame numbers, with the page-frame allocator.
//!
//! ```text
//! 0 .. limit            the zone of the budget (its first 4 GiB); its watermarks are the budget's
//! from there on         what is beyond the budget, added section by section as it is needed
//! ```
//! Pages can outnumber the budget. A forked child's pages have frames of their own here while the
//! kernel holds one copy for both. Also, a thread that must run so that others can continue gets
//! pages beyond the limit (overcommit). So the free part of the budget is measured
//! ([`Zone`](super::Zone)), not read from the allocator. A request for a number never fails.

use crate::frame::watermark::{self, Marks};
use crate::frame::{Checks, Config, Frames};
use crate::types::Pfn;

/// Frames of a section beyond the budget: 1 GiB.
const SECTION: u32 = if cfg!(miri) { 1 << 11 } else { 1 << 18 };
/// Frame number alignment of the start of a zone.
const ALIGN: u32 = 1024;
/// Frames of the largest zone: 4 GiB, beyond which watermarks do not grow. A larger budget adds its
/// other frames in sections, so that a budget that is never used costs nothing.
pub const ZONE_MAX: u64 = 1 << 20;

/// The frame numbers of a resident set, free and in use.
#[derive(Debug)]
pub struct FrameIds {
    zone: Frames,
    /// First frame number beyond the zone.
    beyond: u32,
    sections: Vec<Frames>,
    /// Whether the zone is known to have no free frame. It is not tried again until a frame is
    /// freed.
    zone_full: bool,
    /// Number of sections, from the first on, that have no free frame.
    full: usize,
}

impl FrameIds {
    /// Creates an allocator with a zone of `limit` frames.
    pub fn new(limit: u64) -> Self {
        let pages = limit.clamp(1, ZONE_MAX) as u32;
        let beyond = pages.next_multiple_of(ALIGN);
        Self { zone: allocator(pages), beyond, sections: Vec::new(), zone_full: false, full: 0 }
    }

    /// Returns the watermarks of the zone.
    pub fn marks(&self) -> Marks {
        *self.zone.zones()[0].state().marks()
    }

    /// Allocates a free frame number.
    #[inline]
    pub fn take(&mut self) -> Pfn {
        if !self.zone_full {
            if let Some(pfn) = self.zone.alloc_alone() {
                return pfn;
            }
            self.zone_full = true;
        }
        self.take_beyond()
    }

    #[cold]
    fn take_beyond(&mut self) -> Pfn {
        loop {
            if self.full == self.sections.len() {
                self.sections.push(allocator(SECTION));
            }
            if let Some(pfn) = self.sections[self.full].alloc_alone() {
                return Pfn(self.beyond + self.full as u32 * SECTION + pfn.0);
            }
            self.full += 1;
        }
    }

    /// Frees a frame number.
    #[inline]
    pub fn give(&mut self, pfn: Pfn) {
        let given = match pfn.0.checked_sub(self.beyond) {
            None => {
                self.zone_full = false;
                self.zone.free_alone(pfn)
            }
            Some(at) => {
                let section = (at / SECTION) as usize;
                self.full = self.full.min(section);
                self.sections[section].free_alone(Pfn(at % SECTION))
            }
        };
        // The caller has just read the frame's descriptor, which says that it is in use.
        if let Err(bad) = given {
            panic!("{bad}");
        }
    }

    /// Returns the numbers in use: in the zone, and beyond it.
    pub fn in_use(&self) -> (u64, u64) {
        (self.zone.in_hands(), self.sections.iter().map(Frames::in_hands).sum())
    }

    /// Whether the allocator is consistent. For tests.
    pub fn check(&self) -> Result<(), String> {
        self.zone.check()?;
        self.sections.iter().try_for_each(Frames::check)
    }
}

/// Returns the watermarks that a zone of a budget of `limit` pages has. They lie closer together
/// than the kernel's on a small machine, because the program cannot use the pages of the reserve.
pub fn marks_of(limit: u64) -> Marks {
    let pages = limit.clamp(1, ZONE_MAX);
    let (min_free_kbytes, scale_factor) = factors(pages);
    watermark::marks(pages, pages, min_free_kbytes, scale_factor, false)
}

/// Returns the inputs of the kernel's formula: KiB kept free, and the distance of the watermarks.
fn factors(pages: u64) -> (u64, u64) {
    let (min, step) = ((pages / 256).clamp(8, 1024), (pages / 128).clamp(16, 2048));
    (4 * min, (step * 10_000).div_ceil(pages))
}

fn allocator(pages: u32) -> Frames {
    let mut config = Config::flat(pages, 1);
    let (min_free_kbytes, scale_factor) = factors(pages.into());
    config.min_free_kbytes = Some(min_free_kbytes);
    config.watermark_scale_factor = scale_factor;
    // Every frame has a descriptor here that knows whether it is used, so the allocator's own table
    // would be redundant.
    config.checks = if cfg!(debug_assertions) { Checks::OnPop } else { Checks::Off };
    config.build().expect("one zone from 0 on and one CPU are a machine")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_budget_that_changes_has_the_watermarks_of_one_that_began_so() {
        for limit in [16, 1024, 12_345, 262_144, ZONE_MAX, ZONE_MAX * 3] {
            assert_eq!(marks_of(limit), FrameIds::new(limit).marks(), "{limit}");
        }
    }

    #[test]
    fn numbers_go_on_beyond_the_zone_and_none_is_given_twice() {
        let mut frame_ids = FrameIds::new(1500);
        let mut held = HashSet::new();
        for _ in 0..1500 {
            assert!(held.insert(frame_ids.take()));
        }
        assert!(held.iter().all(|pfn| pfn.0 < 1500), "the zone first");
        assert_eq!(frame_ids.in_use(), (1500, 0));
        for _ in 0..SECTION + 10 {
            let pfn = frame_ids.take();
            assert!(pfn.0 >= 2048 && held.insert(pfn), "{pfn:?} twice");
        }
        assert_eq!(frame_ids.in_use(), (1500, u64::from(SECTION) + 10));
        let early = Pfn(2048 + 7);
        frame_ids.give(early);
        assert_eq!(frame_ids.take(), early, "the first section with a free one");
        for pfn in held.drain() {
            frame_ids.give(pfn);
        }
        assert_eq!(frame_ids.in_use(), (0, 0));
        assert_eq!(frame_ids.check(), Ok(()));
        assert!(frame_ids.take().0 < 1500, "the zone first again");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "bad free of frame 0x0 at order 0: it is free")]
    fn a_number_given_back_twice_is_refused_by_name() {
        let mut frame_ids = FrameIds::new(4096);
        let pfn = frame_ids.take();
        frame_ids.give(pfn);
        frame_ids.give(pfn);
    }

    #[test]
    fn the_watermarks_are_a_hundredth_of_the_zone() {
        let at = |limit: u64| {
            let m = FrameIds::new(limit).marks();
            [m.min, m.low, m.high]
        };
        assert_eq!(at(4096), [16, 48, 80]);
        assert_eq!(at(65_536), [256, 773, 1290]);
        assert_eq!(at(1 << 20), [1024, 3121, 5218]);
        assert_eq!(at(1 << 40), [1024, 3121, 5218]);
        assert_eq!(at(100), [8, 24, 40]);
        assert_eq!(at(1), [8, 10, 12]);
    }

    #[test]
    fn frames_are_taken_from_the_lowest_on() {
        const TAKEN: u32 = if cfg!(miri) { 600 } else { 20_000 };
        let mut frame_ids = FrameIds::new(if cfg!(miri) { 4096 } else { 100_000 });
        let taken: Vec<u32> = (0..TAKEN).map(|_| frame_ids.take().0).collect();
        assert_eq!(taken, (0..TAKEN).collect::<Vec<_>>(), "the descriptors in use stay together");
    }
}
