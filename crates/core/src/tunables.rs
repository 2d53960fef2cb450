//! The switches of the engine: every mechanism that can be chosen, by name.
//!
//! Owns the one list of switches, in groups by subject: key, type, default and a line of meaning. A
//! switch is set by `KEY=VALUE` text, or as a field of its group (`tunables.mglru.walk`). The error
//! for a wrong key names the nearest right one. The error for a wrong value names the values that
//! it may have. Presets are named sets of values ([`MEANINGS`]). `k618` and `k72` describe those
//! kernels; `k612` describes a mixture that no kernel had (`MEANINGS` says which). The module
//! `choices` explains the words that are values.
//!
//! Each default is the value that measured best, not the newest one; `docs/results.md` has the
//! figures.

use std::fmt;

use crate::nearest::nearest;

mod choices;
mod presets;
mod reference;
mod value;

pub use choices::*;
pub use presets::{MEANINGS, PRESETS};
pub use reference::reference;
pub use value::{Batch, Swappiness, Value};

/// Why a setting was refused.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SetError {
    /// The text has no `=`.
    NotAPair(String),
    /// There is no switch of that key.
    UnknownKey {
        /// The key in the request.
        key: String,
        /// The closest key that exists.
        nearest: &'static str,
    },
    /// The switch cannot have the value.
    BadValue {
        /// The key of the switch.
        key: &'static str,
        /// The value in the request.
        value: String,
        /// The values that the switch may have.
        expected: String,
    },
    /// There is no preset of that name.
    UnknownPreset(String),
}

impl fmt::Display for SetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAPair(s) => write!(f, "'{s}' is not KEY=VALUE"),
            Self::UnknownKey { key, nearest } => {
                write!(f, "unknown switch '{key}'; did you mean '{nearest}'?")
            }
            Self::BadValue { key, value, expected } => {
                write!(f, "{key}: '{value}' is not one of {expected}")
            }
            Self::UnknownPreset(p) => {
                write!(f, "unknown preset '{p}'; there are {}", PRESETS.join(", "))
            }
        }
    }
}

impl std::error::Error for SetError {}

/// Makes the struct of one group of switches, from its fields, their keys and a line for each.
macro_rules! group {
    (
        $(#[doc = $about:literal])+ $Group:ident
        { $($(#[doc = $doc:literal])+ $key:literal $field:ident : $ty:ty = $default:expr;)+ }
        { $($(#[doc = $within:literal])+ $inner:ident : $Inner:ident;)* }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, PartialEq, Debug)]
        #[non_exhaustive]
        pub struct $Group {
            $($(#[doc = $doc])+ pub $field: $ty,)+
            $($(#[doc = $within])+ pub $inner: $Inner,)*
        }

        impl Default for $Group {
            fn default() -> Self {
                Self { $($field: $default,)+ $($inner: $Inner::default(),)* }
            }
        }

        impl $Group {
            /// Sets one switch of this group. None if the group has no such switch.
            fn set_own(&mut self, key: &str, value: &str) -> Option<Result<(), SetError>> {
                match key {
                    $($key => {
                        let read = <$ty as Value>::parse(value);
                        return Some(read.map(|read| self.$field = read).ok_or_else(|| SetError::BadValue {
                            key: $key,
                            value: value.to_owned(),
                            expected: <$ty as Value>::expected(),
                        }));
                    })+
                    _ => {}
                }
                $(if let Some(set) = self.$inner.set_own(key, value) {
                    return Some(set);
                })*
                None
            }

            fn add_rows(&self, rows: &mut Vec<Row>) {
                rows.extend([$(Row {
                    key: $key,
                    value: self.$field.show(),
                    expected: <$ty as Value>::expected(),
                    meanings: <$ty as Value>::meanings(),
                    meaning: concat!($($doc),+).trim(),
                }),+]);
                $(self.$inner.add_rows(rows);)*
            }
        }
    };
}

/// Makes all groups from the one list: first the switches of no group, then group by group.
macro_rules! tunables {
    (
        Tunables { $($(#[doc = $doc:literal])+ $key:literal $field:ident : $ty:ty = $default:expr;)+ }
        $($(#[doc = $about:literal])+ $inner:ident : $Inner:ident {
            $($(#[doc = $doc_in:literal])+ $key_in:literal $field_in:ident : $ty_in:ty = $default_in:expr;)+
        })+
    ) => {
        group! {
            /// All switches of the engine.
            Tunables
            { $($(#[doc = $doc])+ $key $field: $ty = $default;)+ }
            { $($(#[doc = $about])+ $inner: $Inner;)+ }
        }
        $(group! {
            $(#[doc = $about])+ $Inner
            { $($(#[doc = $doc_in])+ $key_in $field_in: $ty_in = $default_in;)+ }
            {}
        })+

        impl Tunables {
            /// All keys, in the order of the list.
            pub const KEYS: &'static [&'static str] = &[$($key,)+ $($($key_in,)+)+];
        }
    };
}

/// A line of [`Tunables::rows`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The key of the switch.
    pub key: &'static str,
    /// The value that the switch has now.
    pub value: String,
    /// The values that the switch may have.
    pub expected: String,
    /// The meaning of each value, if the values are words.
    pub meanings: &'static [(&'static str, &'static str)],
    /// The meaning of the switch.
    pub meaning: &'static str,
}

tunables! {
    Tunables {
        /// The LRU implementation.
        "lru" lru: LruKind = LruKind::Gen;
        /// Weight of anonymous memory against files; 201 is anonymous only.
        "swappiness" swappiness: Swappiness = Swappiness(60);
        /// Folios that a CPU gathers before it puts them on the lists.
        "lru.add_batch" add_batch: u32 = 31;
        /// How reclaim treats dirty file folios.
        "dirty" dirty: Dirty = Dirty::K72;
    }
    /// The multi-gen LRU, `lru=gen`.
    mglru: Mglru {
        /// The eviction loop.
        "gen.loop" eviction: Loop = Loop::K618;
        /// Where new and refaulted folios are placed.
        "gen.placement" placement: Placement = Placement::K618;
        /// Whether a new folio starts on probation.
        "gen.admission" admission: Admission = Admission::Probation;
        /// Share of memory for folios on probation, in percent.
        "gen.probation" probation: u64 = 5;
        /// Lowest share of probation that refaults may set, in percent.
        "gen.probation_min" probation_min: u64 = 5;
        /// Pages by which the share grows when a page refaults right after it failed probation.
        "gen.probation_up" probation_up: u64 = 12;
        /// Pages by which the share shrinks when a page refaults right after it left the
        /// generations.
        "gen.probation_down" probation_down: u64 = 14;
        /// First part of probation, in percent, in which accesses do not count yet.
        "gen.probation_quiet" probation_quiet: u64 = 30;
        /// With `gen.refault_distance=reuse`: how soon a folio must be used again to count as
        /// recent, in percent of the age of the oldest folio of the generations.
        "gen.reuse_age" reuse_age: u64 = 70;
        /// A mapped folio that was found accessed in several rounds stays for half as many rounds
        /// without an access.
        "gen.history" history: bool = true;
        /// Highest share of probation that refaults may set, in percent.
        "gen.probation_max" probation_max: u64 = 80;
        /// A folio that was accessed since the last scan gets a second chance, and its access count
        /// is lowered.
        "gen.second_chance" second_chance: bool = true;
        /// How the page-table walk treats a folio's first accessed bit.
        "gen.promote" promote: Promote = Promote::Second;
        /// How eviction treats an accessed bit.
        "gen.set_refs" set_refs: SetRefs = SetRefs::K618;
        /// The other type is tried only if nothing at all was scanned.
        "gen.strict_fallback" strict_fallback: bool = false;
        /// Tiers of file folios are protected by their refault rates.
        "gen.tiers" tiers: bool = true;
        /// How reclaim chooses the type to scan.
        "gen.type_select" type_select: TypeSelect = TypeSelect::Pid;
        /// Aging walks page tables.
        "gen.walk" walk: bool = true;
        /// Aging skips page tables that the Bloom filter reports as cold.
        "gen.bloom" bloom: bool = true;
        /// Aging skips page tables whose own accessed bit is clear.
        "gen.non_leaf" non_leaf: bool = true;
        /// Eviction looks at the neighbours of an accessed page-table entry.
        "gen.look_around" look_around: LookAround = LookAround::Pressed;
        /// Aged folios that go to one target move as one segment.
        "gen.bulk_move" bulk_move: bool = true;
        /// Size counters are updated once a batch.
        "gen.counter_batch" counter_batch: bool = true;
        /// The record of the next folio is read early (prefetched).
        "gen.prefetch" prefetch: bool = true;
        /// End of the next generation's list that aging moves folios to.
        "gen.target_end" target_end: TargetEnd = TargetEnd::Tail;
        /// Folios handled in one hold of the lru lock.
        "gen.lock_hold" lock_hold: u32 = 4096;
        /// Root reclaim visits memcgs in generation order.
        "gen.memcg_lru" memcg_lru: bool = true;
        /// The working set of the last so many milliseconds is not reclaimed; 0 is off.
        "gen.min_ttl_ms" min_ttl_ms: u64 = 0;
        /// Keeps counters of past generations for `lru_gen_full`.
        "gen.stats" stats: bool = false;
        /// Each type may be aged without the other.
        "gen.per_type_aging" per_type_aging: bool = false;
        /// Longest refault distance that counts as recent, in percent of memory.
        "gen.near" near: u64 = 100;
        /// A page that refaults within `gen.near`, but beyond this distance, joins the generations
        /// only if its last refault was within `gen.near` too; in percent of memory.
        "gen.near_once" near_once: u64 = 100;
        /// The decision that the refault distance makes.
        "gen.refault_distance" refault_distance: RefaultDistance = RefaultDistance::Reuse;
        /// File pages up to this number are spared while anonymous memory can be reclaimed.
        "gen.clean_floor" clean_floor: u64 = 0;
        /// A batch never isolates more folios than the target still needs.
        "gen.exact_target" exact_target: bool = true;
    }
    /// The classic LRU, `lru=classic`, and the rules of older kernels.
    classic: Classic {
        /// Accesses between two foldings of the classic LRU's memcg counters (oracle runs use
        /// 4096).
        "classic.fold" fold: u64 = 0;
        /// A refault first adds up the counters of all memcgs and CPUs, as in Linux 5.15.
        "classic.flush" flush: bool = false;
        /// Pages that each frame stands for where the classic LRU decides by gigabytes (a machine
        /// scaled down).
        "classic.scale" scale: u64 = 1;
        /// Pages scanned and kept are a cost of their type, and an I/O costs as much as 32 of them,
        /// as in Linux since 6.2. Off: only pages written and refaulted pages of the working set
        /// cost, one each, as before 6.2.
        "classic.rotations" rotations: bool = true;
        /// A reclaim that has met its target drops the type with less left to scan. It then scans
        /// the other type to the end of its share, whatever that frees, as in Linux before 6.1.
        "classic.finish" finish: bool = false;
    }
    /// How much is reclaimed at a time, which tasks wait, and when reclaim gives up.
    reclaim: Reclaim {
        /// Pages one direct reclaim asks for: at most 32, and in small memories memory divided by
        /// this number.
        "reclaim.parts" parts: u64 = 512;
        /// Pages isolated from a list at a time; the multi-gen LRU isolates twice as many. Lower it
        /// only on a machine scaled down.
        "reclaim.batch" batch: Batch = Batch(32);
        /// The source from which the state of a node is derived (classic lists).
        "reclaim.notes" notes: NodeNotes = NodeNotes::Pass;
        /// How much of the slab caches a pass scans.
        "reclaim.slab" slab: SlabShare = SlabShare::Priority;
        /// Tasks do not reclaim below half of the reserve: they wait for kswapd.
        "reclaim.hold" hold: bool = true;
        /// A task that may not enter file systems unmaps shared memory, cannot write it, and keeps
        /// it, as in Linux.
        "reclaim.shmem_fs" shmem_fs: bool = false;
        /// When reclaim gives up and reports out of memory.
        "reclaim.oom" oom: OomRule = OomRule::Progress;
        /// A task whose reclaim made no progress, while most reclaimable pages are dirty, waits. It
        /// waits for a tick or until another reclaim makes progress (since Linux 5.16).
        "reclaim.no_progress" no_progress: bool = true;
        /// Tasks wait while other tasks have isolated more than an eighth of the inactive pages
        /// (classic). Off by default, because tasks of a machine scaled down would wait too often.
        "reclaim.isolated" isolated: bool = false;
        /// How long tasks wait for a congested disk, in milliseconds: 4 if most pages are dirty;
        /// 100, as until 2021, if the disk writes.
        "reclaim.congested_ms" congested_ms: u64 = 4;
    }
    /// When kswapd sleeps, and how it flags the state of a node.
    kswapd: Kswapd {
        /// The zone that kswapd checks when no request names one.
        "kswapd.idle_index" idle_index: IdleIndex = IdleIndex::Previous;
        /// Which zones must be balanced before kswapd sleeps.
        "kswapd.balanced" balanced: SleepCheck = SleepCheck::Any;
        /// When kswapd clears the flags for congestion and dirty pages.
        "kswapd.clear" clear: FlagClear = FlagClear::Sleep;
        /// Whether kswapd tries again without preferring files after it freed nothing, as Linux
        /// does since 6.9.
        "kswapd.trim_again" trim_again: bool = true;
    }
    /// Where swapped pages are stored, and which pages are read with one.
    swap: Swap {
        /// A resident page keeps its swap slot until it is written again.
        "swap.keep_slot" keep_slot: bool = true;
        /// Which of the pages written together are adjacent in swap.
        "swap.order" order: SwapOrder = SwapOrder::Address;
        /// How the readahead window around a page in swap is chosen.
        "swap.ahead" ahead_by: AheadBy = AheadBy::Address;
        /// Largest readahead window in swap, as a power of two.
        "swap.page_cluster" page_cluster: u32 = 3;
    }
    /// File pages, in the laboratory.
    file: Files {
        /// A page marked to be reclaimed after writeback counts as a readahead mark, because the
        /// kernel uses one bit for both.
        "file.one_mark" one_mark: bool = false;
        /// Pages around a file fault that are mapped too if they are in memory
        /// (`fault_around_bytes`).
        "file.fault_around" fault_around: u64 = 16;
    }
}

impl Tunables {
    /// Keys of the switches that the laboratory's model of Linux reads, and no [`Engine`] does.
    ///
    /// [`Engine`]: crate::engine::Engine
    pub const LAB_ONLY: [&'static str; 17] = [
        "swappiness",
        "gen.memcg_lru",
        "classic.flush",
        "reclaim.notes",
        "reclaim.slab",
        "reclaim.hold",
        "reclaim.shmem_fs",
        "reclaim.oom",
        "reclaim.no_progress",
        "reclaim.isolated",
        "reclaim.congested_ms",
        "swap.keep_slot",
        "swap.order",
        "swap.ahead",
        "swap.page_cluster",
        "file.one_mark",
        "file.fault_around",
    ];

    /// Returns every switch with its value, its alternatives and its meaning.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::with_capacity(Self::KEYS.len());
        self.add_rows(&mut rows);
        rows
    }

    /// Sets one switch.
    ///
    /// # Errors
    /// The key is unknown, or the switch cannot have the value.
    pub fn set_pair(&mut self, key: &str, value: &str) -> Result<(), SetError> {
        self.set_own(key, value).unwrap_or_else(|| {
            Err(SetError::UnknownKey {
                key: key.to_owned(),
                nearest: nearest(key, Self::KEYS).unwrap_or(&"lru"),
            })
        })
    }

    /// Sets one switch from `KEY=VALUE`, or all of them from `preset=NAME`.
    ///
    /// # Errors
    /// The text has no `=`, the key or preset is unknown, or the switch cannot have the value.
    pub fn set(&mut self, pair: &str) -> Result<(), SetError> {
        let (key, value) =
            pair.split_once('=').ok_or_else(|| SetError::NotAPair(pair.to_owned()))?;
        let (key, value) = (key.trim(), value.trim());
        if key == "preset" {
            *self = Self::preset(value)?;
            return Ok(());
        }
        self.set_pair(key, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_key_names_the_nearest_right_one() {
        let e = Tunables::default().set("gen.bulkmove=on").unwrap_err();
        assert_eq!(e.to_string(), "unknown switch 'gen.bulkmove'; did you mean 'gen.bulk_move'?");
    }

    #[test]
    fn a_wrong_value_names_the_right_ones() {
        let e = Tunables::default().set("gen.loop=k7").unwrap_err();
        assert_eq!(e.to_string(), "gen.loop: 'k7' is not one of k618|k72");
        let e = Tunables::default().set("swappiness=202").unwrap_err();
        assert_eq!(e.to_string(), "swappiness: '202' is not one of 0..201|max");
        for wrong in ["0", "33"] {
            let e = Tunables::default().set(&format!("reclaim.batch={wrong}")).unwrap_err();
            assert_eq!(e.to_string(), format!("reclaim.batch: '{wrong}' is not one of 1..32"));
        }
    }

    #[test]
    fn every_switch_takes_back_what_it_shows() {
        for preset in PRESETS {
            let from = Tunables::preset(preset).unwrap();
            let mut to = Tunables::default();
            for row in from.rows() {
                assert!(!row.meaning.is_empty());
                to.set(&format!("{}={}", row.key, row.value)).unwrap();
            }
            assert_eq!(from, to, "{preset}");
        }
    }

    #[test]
    fn presets_are_reachable_by_text() {
        let mut t = Tunables::default();
        t.set("preset=k72").unwrap();
        assert_eq!(t, Tunables::preset("k72").unwrap());
        assert!(matches!(t.set("preset=k99"), Err(SetError::UnknownPreset(_))));
        assert!(matches!(t.set("lru"), Err(SetError::NotAPair(_))));
    }
}
