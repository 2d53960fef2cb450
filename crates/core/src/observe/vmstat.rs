//! Counters under the names `/proc/vmstat` gives them.
//!
//! Owns one relaxed atomic per name. Sums are exact at quiescence; no decision reads them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal,)+) => {
        /// A counter.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        #[non_exhaustive]
        pub enum Event { $($(#[doc = $doc])+ $name),+ }

        impl Event {
            /// All of them, in the order they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Its name in vmstat.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

counters! {
    /// Returning anonymous pages.
    WorkingsetRefaultAnon "workingset_refault_anon",
    /// Returning file pages.
    WorkingsetRefaultFile "workingset_refault_file",
    /// Returning anonymous pages placed among the young.
    WorkingsetActivateAnon "workingset_activate_anon",
    /// Returning file pages placed among the young.
    WorkingsetActivateFile "workingset_activate_file",
    /// Returning anonymous pages that had been in the working set.
    WorkingsetRestoreAnon "workingset_restore_anon",
    /// Returning file pages that had been in the working set.
    WorkingsetRestoreFile "workingset_restore_file",
    /// Pages written by reclaim.
    NrVmscanWrite "nr_vmscan_write",
    /// Dirty pages marked to be freed when written.
    NrVmscanImmediate "nr_vmscan_immediate_reclaim",
    /// Pages brought in from swap.
    PswpIn "pswpin",
    /// Pages written to swap.
    PswpOut "pswpout",
    /// Pages read from swap ahead of their use.
    SwapRa "swap_ra",
    /// Of these, pages that were then used.
    SwapRaHit "swap_ra_hit",
    /// Faults.
    PgFault "pgfault",
    /// Faults that had to read.
    PgMajFault "pgmajfault",
    /// Pages moved among the young.
    PgActivate "pgactivate",
    /// Pages moved among the old.
    PgDeactivate "pgdeactivate",
    /// Pages made lazily freeable.
    PgLazyFree "pglazyfree",
    /// Pages sorted on their way to the old end.
    PgRefill "pgrefill",
    /// Pages rotated to the old end after write-out.
    PgRotated "pgrotated",
    /// Pages scanned by the background reclaimer.
    PgScanKswapd "pgscan_kswapd",
    /// Pages scanned by allocating tasks.
    PgScanDirect "pgscan_direct",
    /// Pages scanned on command.
    PgScanProactive "pgscan_proactive",
    /// Anonymous pages scanned.
    PgScanAnon "pgscan_anon",
    /// File pages scanned.
    PgScanFile "pgscan_file",
    /// Pages freed by the background reclaimer.
    PgStealKswapd "pgsteal_kswapd",
    /// Pages freed by allocating tasks.
    PgStealDirect "pgsteal_direct",
    /// Pages freed on command.
    PgStealProactive "pgsteal_proactive",
    /// Anonymous pages freed.
    PgStealAnon "pgsteal_anon",
    /// File pages freed.
    PgStealFile "pgsteal_file",
    /// Pages skipped because their zone could not serve.
    PgSkip "pgskip_normal",
    /// Objects looked at in caches beside the page lists.
    SlabsScanned "slabs_scanned",
    /// Background reclaim runs.
    PageOutRun "pageoutrun",
    /// Short sleeps of kswapd that a request ended.
    KswapdLowQuickly "kswapd_low_wmark_hit_quickly",
    /// Sleeps that kswapd gave up because memory was short again.
    KswapdHighQuickly "kswapd_high_wmark_hit_quickly",
    /// Entries into direct reclaim.
    AllocStall "allocstall_normal",
    /// Tasks made to wait because reserves were nearly gone.
    PgScanDirectThrottle "pgscan_direct_throttle",
    /// File pages made dirty.
    NrDirtied "nr_dirtied",
    /// File pages written.
    NrWritten "nr_written",
    /// Unevictable pages taken off the lists.
    UnevictableCulled "unevictable_pgs_culled",
    /// Ebb: folios looked at in a generation list, whatever became of them.
    EbbScanned "ebb_scanned",
    /// Ebb: folios kept by their tier.
    EbbProtected "ebb_protected",
    /// Ebb: folios promoted by a page-table walk.
    EbbWalkPromoted "ebb_walk_promoted",
    /// Ebb: table entries walked.
    EbbWalkEntries "ebb_walk_entries",
    /// Ebb: tables skipped by their own accessed bit.
    EbbWalkSkipNonLeaf "ebb_walk_skip_nonleaf",
    /// Ebb: tables skipped by the Bloom filter.
    EbbWalkSkipBloom "ebb_walk_skip_bloom",
    /// Ebb: generations begun.
    EbbAged "ebb_aged",
    /// Ebb: folios moved to the next generation by aging.
    EbbAgedFolios "ebb_aged_folios",
    /// Ebb: neighbours found accessed by eviction.
    EbbLookAround "ebb_look_around",
    /// Ebb: flusher wake-ups asked for.
    EbbFlusherWake "ebb_flusher_wake",
    /// Ebb: pages looked at in the classic inactive lists.
    EbbClassicScanned "ebb_classic_scanned",
    /// Ebb: folios moved to another generation as a part of a segment of several.
    EbbBulkMoved "ebb_bulk_moved",
    /// Ebb: folios moved whose sizes were settled together with those of others.
    EbbCounterBatched "ebb_counter_batched",
    /// Ebb: looks ahead at the records that a walk of a list comes to next.
    EbbLookedAhead "ebb_looked_ahead",
    /// Ebb: folios dirty or being written that eviction met.
    EbbDirtyMet "ebb_dirty_met",
    /// Ebb: scans of a generation list that looked at folios and took none.
    EbbScannedInVain "ebb_scanned_in_vain",
    /// Ebb: folios that eviction met and found accessed.
    EbbRefsMet "ebb_refs_met",
    /// Ebb: folios sent round once more as they had been accessed.
    EbbSecondChance "ebb_second_chance",
    /// Ebb: folios protected by the refault rate of their tier.
    EbbTierKept "ebb_tier_kept",
    /// Ebb: folios put on probation.
    EbbProbation "ebb_probation",
    /// Ebb: places that memcgs changed in their order of visits.
    EbbMemcgRotated "ebb_memcg_rotated",
}

const COUNT: usize = Event::ALL.len();

/// The counters of a node.
#[derive(Debug)]
pub struct VmStat {
    values: [AtomicU64; COUNT],
}

impl Default for VmStat {
    fn default() -> Self {
        Self { values: [const { AtomicU64::new(0) }; COUNT] }
    }
}

impl VmStat {
    /// Adds `n`. Nothing is added, and nothing is written, for zero.
    #[inline]
    pub fn add(&self, e: Event, n: u64) {
        if n > 0 {
            self.values[e as usize].fetch_add(n, Relaxed);
        }
    }

    /// The value.
    #[must_use]
    pub fn get(&self, e: Event) -> u64 {
        self.values[e as usize].load(Relaxed)
    }

    /// `name value` lines.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        for &e in Event::ALL {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{} {}", e.name(), self.get(e));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_printed_once() {
        let stat = VmStat::default();
        stat.add(Event::PgSkip, 3);
        let text = stat.text();
        let mut names: Vec<&str> = text.lines().filter_map(|l| l.split(' ').next()).collect();
        assert_eq!(names.len(), COUNT);
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), COUNT);
        assert!(text.contains("pgskip_normal 3\n"));
    }
}
