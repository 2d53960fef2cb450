//! Event counters under the names of `/proc/vmstat`.
//!
//! Owns one relaxed atomic per name. Sums are exact while no thread adds; no decision reads them.

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
            /// All counters, in the order in which they are printed.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the name of the counter in vmstat.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// Returns the meaning of the counter.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim()),+ }
            }
        }
    };
}

counters! {
    /// Anonymous pages refaulted.
    WorkingsetRefaultAnon "workingset_refault_anon",
    /// File pages refaulted.
    WorkingsetRefaultFile "workingset_refault_file",
    /// Anonymous pages activated at their refault.
    WorkingsetActivateAnon "workingset_activate_anon",
    /// File pages activated at their refault.
    WorkingsetActivateFile "workingset_activate_file",
    /// Refaulted anonymous pages that had been in the working set.
    WorkingsetRestoreAnon "workingset_restore_anon",
    /// Refaulted file pages that had been in the working set.
    WorkingsetRestoreFile "workingset_restore_file",
    /// Pages written by reclaim.
    NrVmscanWrite "nr_vmscan_write",
    /// Dirty pages marked to be freed after their write.
    NrVmscanImmediate "nr_vmscan_immediate_reclaim",
    /// Pages read from swap.
    PswpIn "pswpin",
    /// Pages written to swap.
    PswpOut "pswpout",
    /// Pages read ahead from swap.
    SwapRa "swap_ra",
    /// Pages read ahead from swap that were then used.
    SwapRaHit "swap_ra_hit",
    /// Page faults.
    PgFault "pgfault",
    /// Major faults: page faults that had to read.
    PgMajFault "pgmajfault",
    /// Pages activated.
    PgActivate "pgactivate",
    /// Pages deactivated.
    PgDeactivate "pgdeactivate",
    /// Pages made lazily freeable.
    PgLazyFree "pglazyfree",
    /// Pages scanned in the active list or sorted in eviction.
    PgRefill "pgrefill",
    /// Pages rotated to the old end after write-out.
    PgRotated "pgrotated",
    /// Pages scanned by kswapd.
    PgScanKswapd "pgscan_kswapd",
    /// Pages scanned by direct reclaim.
    PgScanDirect "pgscan_direct",
    /// Pages scanned by proactive reclaim.
    PgScanProactive "pgscan_proactive",
    /// Anonymous pages scanned.
    PgScanAnon "pgscan_anon",
    /// File pages scanned.
    PgScanFile "pgscan_file",
    /// Pages freed by kswapd.
    PgStealKswapd "pgsteal_kswapd",
    /// Pages freed by direct reclaim.
    PgStealDirect "pgsteal_direct",
    /// Pages freed by proactive reclaim.
    PgStealProactive "pgsteal_proactive",
    /// Anonymous pages freed.
    PgStealAnon "pgsteal_anon",
    /// File pages freed.
    PgStealFile "pgsteal_file",
    /// Pages skipped because their zone is too high for the request.
    PgSkip "pgskip_normal",
    /// Slab objects scanned.
    SlabsScanned "slabs_scanned",
    /// Runs of kswapd.
    PageOutRun "pageoutrun",
    /// Short sleeps of kswapd that a request ended.
    KswapdLowQuickly "kswapd_low_wmark_hit_quickly",
    /// Sleeps that kswapd gave up because memory was short again.
    KswapdHighQuickly "kswapd_high_wmark_hit_quickly",
    /// Entries into direct reclaim.
    AllocStall "allocstall_normal",
    /// Tasks that waited because the reserves were nearly gone.
    PgScanDirectThrottle "pgscan_direct_throttle",
    /// File pages made dirty.
    NrDirtied "nr_dirtied",
    /// File pages written.
    NrWritten "nr_written",
    /// Unevictable pages taken off the lists.
    UnevictableCulled "unevictable_pgs_culled",
    /// Folios scanned in a generation list, evicted or not.
    EbbScanned "ebb_scanned",
    /// Folios protected by their tier.
    EbbProtected "ebb_protected",
    /// Folios promoted by a page-table walk.
    EbbWalkPromoted "ebb_walk_promoted",
    /// Table entries walked.
    EbbWalkEntries "ebb_walk_entries",
    /// Tables skipped by their own accessed bit.
    EbbWalkSkipNonLeaf "ebb_walk_skip_nonleaf",
    /// Tables skipped by the Bloom filter.
    EbbWalkSkipBloom "ebb_walk_skip_bloom",
    /// Generations created.
    EbbAged "ebb_aged",
    /// Folios moved to the next generation by aging.
    EbbAgedFolios "ebb_aged_folios",
    /// Neighbours that eviction found accessed.
    EbbLookAround "ebb_look_around",
    /// Wake-ups of the flusher requested.
    EbbFlusherWake "ebb_flusher_wake",
    /// Pages scanned in the classic inactive lists.
    EbbClassicScanned "ebb_classic_scanned",
    /// Folios moved to another generation together with others, as one list segment.
    EbbBulkMoved "ebb_bulk_moved",
    /// Folios moved whose sizes were added to the counters in a batch.
    EbbCounterBatched "ebb_counter_batched",
    /// Prefetches of the folio records that a list walk needs next.
    EbbLookedAhead "ebb_looked_ahead",
    /// Dirty or written-back folios that eviction met.
    EbbDirtyMet "ebb_dirty_met",
    /// Scans of a generation list that examined folios and took none.
    EbbScannedNoProgress "ebb_scanned_no_progress",
    /// Accessed folios that eviction met.
    EbbRefsMet "ebb_refs_met",
    /// Accessed folios that got a second chance.
    EbbSecondChance "ebb_second_chance",
    /// Folios protected by the refault rate of their tier.
    EbbTierKept "ebb_tier_kept",
    /// Folios put on probation.
    EbbProbation "ebb_probation",
    /// Positions by which memcgs moved in the order of visits.
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
    /// Adds `n`. Writes nothing if `n` is zero.
    #[inline]
    pub fn add(&self, e: Event, n: u64) {
        if n > 0 {
            self.values[e as usize].fetch_add(n, Relaxed);
        }
    }

    /// Returns the value of a counter.
    #[must_use]
    pub fn get(&self, e: Event) -> u64 {
        self.values[e as usize].load(Relaxed)
    }

    /// Returns the counters as `name value` lines.
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
