//! Every mechanism as a named switch.
//!
//! Owns the one list of switches, in groups by what they are of: key, type, default and one line of meaning. A switch
//! is set by `KEY=VALUE` text, or as a field of its group (`tunables.mglru.walk`); a wrong key is answered with the
//! nearest right one, a wrong value with the values it may have. Presets are named sets ([`MEANINGS`]): `k618` and
//! `k72` describe those kernels, `k612` one that never was: see there. What the words of values stand for is in
//! `choices`.
//!
//! Defaults are what measured best, not what is newest; `docs/results.md` has the figures.

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
    /// No `=` in the text.
    NotAPair(String),
    /// No such switch.
    UnknownKey {
        /// What was asked for.
        key: String,
        /// The closest key there is.
        nearest: &'static str,
    },
    /// The switch cannot have that value.
    BadValue {
        /// The switch.
        key: &'static str,
        /// What was asked for.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// No such preset.
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

/// The switches of a group: its fields, which of them a key is, and a line for each.
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
            /// Sets one switch of this group. None if it has no such switch.
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

/// The one list: what is of everything, then group by group.
macro_rules! tunables {
    (
        Tunables { $($(#[doc = $doc:literal])+ $key:literal $field:ident : $ty:ty = $default:expr;)+ }
        $($(#[doc = $about:literal])+ $inner:ident : $Inner:ident {
            $($(#[doc = $doc_in:literal])+ $key_in:literal $field_in:ident : $ty_in:ty = $default_in:expr;)+
        })+
    ) => {
        group! {
            /// All switches.
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
            /// Every key, in the order of the list.
            pub const KEYS: &'static [&'static str] = &[$($key,)+ $($($key_in,)+)+];
        }
    };
}

/// A line of [`Tunables::rows`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The switch.
    pub key: &'static str,
    /// Its value now.
    pub value: String,
    /// The values it may have.
    pub expected: String,
    /// What each of them stands for, where they are words.
    pub meanings: &'static [(&'static str, &'static str)],
    /// What it decides.
    pub meaning: &'static str,
}

tunables! {
    Tunables {
        /// Which list machinery is used.
        "lru" lru: LruKind = LruKind::Gen;
        /// Weight of anonymous memory against files; 201 is anonymous only.
        "swappiness" swappiness: Swappiness = Swappiness(60);
        /// Folios gathered per CPU before they go on the lists.
        "lru.add_batch" add_batch: u32 = 31;
        /// What becomes of dirty file folios.
        "dirty" dirty: Dirty = Dirty::K72;
    }
    /// The multi-gen LRU, `lru=gen`.
    mglru: Mglru {
        /// The eviction loop.
        "gen.loop" eviction: Loop = Loop::K618;
        /// Where new and returning folios go.
        "gen.placement" placement: Placement = Placement::K618;
        /// Whether a new folio is trusted.
        "gen.admission" admission: Admission = Admission::Probation;
        /// Share of memory for folios on probation, in percent.
        "gen.probation" probation: u64 = 5;
        /// The share refaults may lower it to, in percent.
        "gen.probation_min" probation_min: u64 = 5;
        /// Pages the share gains for a page that came back right after it failed probation.
        "gen.probation_up" probation_up: u64 = 12;
        /// Pages the share loses for a page that came back right after it left the generations.
        "gen.probation_down" probation_down: u64 = 14;
        /// The part of probation, in percent, during which touches do not count yet.
        "gen.probation_quiet" probation_quiet: u64 = 30;
        /// With `gen.refault_distance=reuse`: how soon a folio has to be used again, in percent of the
        /// age of the oldest folio of the generations.
        "gen.reuse_age" reuse_age: u64 = 70;
        /// A mapped folio found accessed in several rounds stays for half as many without.
        "gen.history" history: bool = true;
        /// The share refaults may raise it to, in percent.
        "gen.probation_max" probation_max: u64 = 80;
        /// A folio accessed since it was last looked at goes round again, its count lowered.
        "gen.second_chance" second_chance: bool = true;
        /// What the page-table walk does with the first accessed bit.
        "gen.promote" promote: Promote = Promote::Second;
        /// What eviction does with an accessed bit.
        "gen.set_refs" set_refs: SetRefs = SetRefs::K618;
        /// Another type is tried only when nothing at all was scanned.
        "gen.strict_fallback" strict_fallback: bool = false;
        /// Tiers of files are protected by their refault rate.
        "gen.tiers" tiers: bool = true;
        /// How the type to scan is chosen.
        "gen.type_select" type_select: TypeSelect = TypeSelect::Pid;
        /// Aging walks page tables.
        "gen.walk" walk: bool = true;
        /// Aging skips page tables the filter says were cold.
        "gen.bloom" bloom: bool = true;
        /// Aging skips page tables whose own accessed bit is clear.
        "gen.non_leaf" non_leaf: bool = true;
        /// Eviction looks at the neighbours of an accessed entry.
        "gen.look_around" look_around: LookAround = LookAround::Pressed;
        /// Aged folios that share a target are moved as one segment.
        "gen.bulk_move" bulk_move: bool = true;
        /// Size counters are settled once a batch.
        "gen.counter_batch" counter_batch: bool = true;
        /// The next folio's record is read early.
        "gen.prefetch" prefetch: bool = true;
        /// Where folios that aging moves go in the next generation.
        "gen.target_end" target_end: TargetEnd = TargetEnd::Tail;
        /// Folios handled in one hold of the lru lock.
        "gen.lock_hold" lock_hold: u32 = 4096;
        /// Root reclaim visits memcgs in generation order.
        "gen.memcg_lru" memcg_lru: bool = true;
        /// The working set of this many milliseconds is not reclaimed; 0 is off.
        "gen.min_ttl_ms" min_ttl_ms: u64 = 0;
        /// Keeps counters of past generations for `lru_gen_full`.
        "gen.stats" stats: bool = false;
        /// Each type may be aged without the other.
        "gen.per_type_aging" per_type_aging: bool = false;
        /// The longest distance at which a page came back soon, in percent of memory.
        "gen.near" near: u64 = 100;
        /// A page that came back soon, but not within this distance, joins the generations only if it came
        /// back soon the last time too; in percent of memory.
        "gen.near_once" near_once: u64 = 100;
        /// What a refault's distance decides.
        "gen.refault_distance" refault_distance: RefaultDistance = RefaultDistance::Reuse;
        /// File pages below this count are spared while anonymous memory can be reclaimed.
        "gen.clean_floor" clean_floor: u64 = 0;
        /// A batch never isolates more than the target still lacks.
        "gen.exact_target" exact_target: bool = true;
    }
    /// The classic LRU, `lru=classic`, and what older kernels did.
    classic: Classic {
        /// Accesses between two foldings of the classic LRU's memcg counters (oracle runs use 4096).
        "classic.fold" fold: u64 = 0;
        /// Who brings a page back adds up the counters of all memcgs and processors first, as in Linux 5.15.
        "classic.flush" flush: bool = false;
        /// Pages each frame stands for where the classic LRU goes by gigabytes (a machine scaled down).
        "classic.scale" scale: u64 = 1;
        /// Pages looked at and kept are a cost of their type, and an I/O is 32 of them, as Linux has it since
        /// 6.2; before, only pages written and pages of the working set that came back were, one each.
        "classic.rotations" rotations: bool = true;
        /// Whoever has what it wants drops the type of which less is left and then goes through the other's share to
        /// its end, whatever that yields, as Linux did until 6.1.
        "classic.finish" finish: bool = false;
    }
    /// How much is taken at a time, who waits, and when they give up.
    reclaim: Reclaim {
        /// Pages one direct reclaim asks for: at most 32, and for small memories this many parts of it.
        "reclaim.parts" parts: u64 = 512;
        /// Pages taken off a list at a time; twice as many by the multi-gen LRU. Less only on a machine scaled down.
        "reclaim.batch" batch: Batch = Batch(32);
        /// What the state of a node is read off (classic lists).
        "reclaim.notes" notes: NodeNotes = NodeNotes::Pass;
        /// How much of the caches beside the page lists a pass looks through.
        "reclaim.slab" slab: SlabShare = SlabShare::Priority;
        /// Tasks do not reclaim below half of the reserve: they wait for kswapd.
        "reclaim.hold" hold: bool = true;
        /// A task that may not enter file systems unmaps shared memory, cannot write it, and keeps it, as in Linux.
        "reclaim.shmem_fs" shmem_fs: bool = false;
        /// When those who reclaim give up.
        "reclaim.oom" oom: OomRule = OomRule::Progress;
        /// Tasks whose reclaim has got nowhere, and where most of what could go is dirty, wait a tick or until somebody's
        /// gets somewhere (since Linux 5.16).
        "reclaim.no_progress" no_progress: bool = true;
        /// Tasks wait while others have more than an eighth of the inactive pages off the lists (classic). Off: on a machine
        /// that is scaled down they would, where on the one it stands for they do not.
        "reclaim.isolated" isolated: bool = false;
        /// How long tasks wait for a congested disk: 4, if most is dirty; 100, as until 2021, if it writes.
        "reclaim.congested_ms" congested_ms: u64 = 4;
    }
    /// When kswapd sleeps, and what it says about a node.
    kswapd: Kswapd {
        /// The zone kswapd judges by when nobody has asked for any.
        "kswapd.idle_index" idle_index: IdleIndex = IdleIndex::Previous;
        /// Which zones have to be in balance before kswapd sleeps.
        "kswapd.balanced" balanced: SleepCheck = SleepCheck::Any;
        /// When kswapd takes back what it said about congestion and dirty pages.
        "kswapd.clear" clear: FlagClear = FlagClear::Sleep;
        /// Whether kswapd that freed nothing tries again without preferring files, as Linux has since 6.9.
        "kswapd.trim_again" trim_again: bool = true;
    }
    /// Where pages that leave lie, and what comes back with one.
    swap: Swap {
        /// A resident page keeps its swap slot until it is written again.
        "swap.keep_slot" keep_slot: bool = true;
        /// Which of the pages that are written together lie beside each other.
        "swap.order" order: SwapOrder = SwapOrder::Address;
        /// Where the window lies that is read with a page from swap.
        "swap.ahead" ahead_by: AheadBy = AheadBy::Address;
        /// Its size at most, as a power of two.
        "swap.page_cluster" page_cluster: u32 = 3;
    }
    /// Pages of files, in the laboratory.
    file: Files {
        /// A page to be reclaimed once written counts as a mark of reading ahead: the kernel has one bit.
        "file.one_mark" one_mark: bool = false;
        /// Pages that a fault of a mapped file maps around it if they are in memory (`fault_around_bytes`).
        "file.fault_around" fault_around: u64 = 16;
    }
}

impl Tunables {
    /// Every switch with its value, its alternatives and its meaning.
    #[must_use]
    pub fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::with_capacity(Self::KEYS.len());
        self.add_rows(&mut rows);
        rows
    }

    /// Sets one switch.
    ///
    /// # Errors
    /// An unknown key or a value it cannot have.
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
    /// Text that is no pair, an unknown key, a value it cannot have.
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
