//! Every mechanism as a named switch.
//!
//! Owns the one list of switches: key, type, default and one line of meaning. A switch is set by
//! `KEY=VALUE` text; a wrong key is answered with the nearest right one, a wrong value with the
//! values it may have. Presets are named sets ([`MEANINGS`]): `k618` and `k72` describe those
//! kernels, `k612` one that never was: see there.
//!
//! Defaults are what measured best, not what is newest; `docs/benchmarks-lru.md` has the figures.

use std::fmt;

use crate::nearest::nearest;

mod value;

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

macro_rules! choices {
    ($($(#[doc = $doc:literal])* $name:ident {
        $($(#[doc = $d:literal])* $v:ident = $t:literal),+ $(,)?
    })*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $($(#[doc = $d])* $v),+ }
        impl Value for $name {
            fn parse(text: &str) -> Option<Self> {
                match text { $($t => Some(Self::$v),)+ _ => None }
            }
            fn show(&self) -> String {
                String::from(match self { $(Self::$v => $t),+ })
            }
            fn expected() -> String {
                [$($t),+].join("|")
            }
        }
    )*};
}

choices! {
    /// Which list machinery a lruvec uses.
    LruKind {
        /// Generations.
        Gen = "gen",
        /// Active and inactive lists.
        Classic = "classic",
    }
    /// The eviction loop.
    Loop {
        /// Recomputes its budget, stops to age.
        K618 = "k618",
        /// One budget a call, batches of 64, goes on after aging.
        K72 = "k72",
    }
    /// Where a new or returning folio goes.
    Placement {
        /// Faulted folios into the youngest generation.
        K612 = "k612",
        /// Faulted folios into the youngest but one.
        K618 = "k618",
        /// Only a returning working set folio among the two youngest.
        K72 = "k72",
    }
    /// What one accessed bit does to a folio.
    Promote {
        /// The first promotes.
        First = "first",
        /// The first is remembered, the second promotes.
        Second = "second",
    }
    /// When eviction looks at the neighbours of an accessed entry.
    LookAround {
        /// Never: aging walks page tables.
        Off = "off",
        /// In a pass that frees little of what it looks at: pages touched more often than they are looked at are
        /// not told apart otherwise. Always, it makes a pass over memory in order young that is over.
        Pressed = "pressed",
        /// Always.
        On = "on",
    }
    /// What an accessed bit met at eviction does.
    SetRefs {
        /// The second promotes.
        K618 = "k618",
        /// The second activates; only the one after that makes a working set (`folio_lru_refs`).
        K72 = "k72",
    }
    /// What becomes of dirty file folios at the old end.
    Dirty {
        /// Isolated and activated in shrinking.
        Classic = "classic",
        /// Sorted into the next generation.
        K618 = "k618",
        /// As classic, the flusher woken per batch.
        K72 = "k72",
    }
    /// Which end of the next generation moved folios go to.
    TargetEnd {
        /// They become its newest.
        Head = "head",
        /// They become its oldest.
        Tail = "tail",
    }
    /// Whether a new folio is trusted.
    Admission {
        /// It goes where the placement says.
        Open = "open",
        /// It has to be used again, in memory or soon after, to be among the generations.
        Probation = "probation",
    }
    /// The zone kswapd judges by when nobody has asked for any.
    IdleIndex {
        /// The lowest: nobody asked is not told apart from the lowest zone.
        Zero = "zero",
        /// Told apart; after a sleep without news, the lowest all the same.
        Sentinel = "sentinel",
        /// That of the cycle before.
        Previous = "previous",
    }
    /// Which zones have to be in balance before kswapd sleeps.
    SleepCheck {
        /// One that could serve the request.
        Any = "any",
        /// All that could.
        All = "all",
        /// One that could, and there has to be one: a node without low zones is never fine for them.
        One = "one",
    }
    /// When kswapd takes back what it said about congestion and dirty pages.
    FlagClear {
        /// Whenever a look finds a zone in balance.
        Check = "check",
        /// Only when it goes to sleep.
        Sleep = "sleep",
    }
    /// What tells whether a node's old pages are dirty, being written, or wait for a congested disk.
    NodeNotes {
        /// A whole pass of kswapd.
        Pass = "pass",
        /// Each batch, whoever reclaims, as in Linux before 4.17; what it says is waited for at once.
        Batch = "batch",
    }
    /// How much of the caches beside the page lists a pass looks through.
    SlabShare {
        /// As large a share as the pages it scanned are of those it might have, as in Linux until 4.16.
        Scanned = "scanned",
        /// By its priority.
        Priority = "priority",
    }
    /// When those who reclaim give up.
    OomRule {
        /// After so many rounds that freed nothing.
        Rounds = "rounds",
        /// When nothing is freed and no write ends any more.
        Progress = "progress",
    }
    /// The order in which pages that leave memory together get their slots.
    SwapOrder {
        /// That in which reclaim chose them.
        Time = "time",
        /// That of their addresses.
        Address = "address",
    }
    /// What is read with a page from swap.
    AheadBy {
        /// Pages around it in its area.
        Address = "address",
        /// The block of slots around it.
        Cluster = "cluster",
    }
    /// How the type to scan is chosen.
    TypeSelect {
        /// Refault rates weighed by swappiness.
        Pid = "pid",
        /// Reclaimed pages held to the ratio that swappiness asks for.
        Ratio = "ratio",
    }
    /// What a refault's distance decides, beside the generations' recency.
    RefaultDistance {
        /// Nothing.
        Off = "off",
        /// A short distance places the folio among the young; a long one among the old.
        Place = "place",
        /// A folio is placed among the young if it was put away and used again within a shorter
        /// time than the oldest folio of the generations has been there.
        Reuse = "reuse",
    }
}

macro_rules! tunables {
    ($($(#[doc = $doc:literal])+ $key:literal $field:ident : $ty:ty = $default:expr;)+) => {
        /// All switches.
        #[derive(Clone, PartialEq, Debug)]
        #[non_exhaustive]
        pub struct Tunables { $($(#[doc = $doc])+ pub $field: $ty),+ }

        impl Default for Tunables {
            fn default() -> Self {
                Self { $($field: $default),+ }
            }
        }

        impl Tunables {
            /// Every key, in the order of the list.
            pub const KEYS: &'static [&'static str] = &[$($key),+];

            /// Sets one switch.
            ///
            /// # Errors
            /// An unknown key or a value it cannot have.
            pub fn set_pair(&mut self, key: &str, value: &str) -> Result<(), SetError> {
                match key {
                    $($key => {
                        let bad = || SetError::BadValue {
                            key: $key,
                            value: value.to_owned(),
                            expected: <$ty as Value>::expected(),
                        };
                        self.$field = <$ty as Value>::parse(value).ok_or_else(bad)?;
                        Ok(())
                    })+
                    _ => Err(SetError::UnknownKey {
                        key: key.to_owned(),
                        nearest: nearest(key, Tunables::KEYS).unwrap_or(&"lru"),
                    }),
                }
            }

            /// Every switch with its value, its alternatives and its meaning.
            #[must_use]
            pub fn rows(&self) -> Vec<Row> {
                vec![$(Row {
                    key: $key,
                    value: self.$field.show(),
                    expected: <$ty as Value>::expected(),
                    meaning: concat!($($doc),+).trim(),
                }),+]
            }
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
    /// What it decides.
    pub meaning: &'static str,
}

tunables! {
    /// Which list machinery is used.
    "lru" lru: LruKind = LruKind::Gen;
    /// Weight of anonymous memory against files; 201 is anonymous only.
    "swappiness" swappiness: Swappiness = Swappiness(60);
    /// Folios gathered per CPU before they go on the lists.
    "lru.add_batch" add_batch: u32 = 31;
    /// A resident page keeps its swap slot until it is written again.
    "swap.keep_slot" keep_slot: bool = true;
    /// Which of the pages that are written together lie beside each other.
    "swap.order" swap_order: SwapOrder = SwapOrder::Address;
    /// Where the window lies that is read with a page from swap.
    "swap.ahead" ahead_by: AheadBy = AheadBy::Address;
    /// Its size at most, as a power of two.
    "swap.page_cluster" page_cluster: u32 = 3;
    /// The eviction loop.
    "gen.loop" gen_loop: Loop = Loop::K618;
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
    /// Pages one direct reclaim asks for: at most 32, and for small memories this many parts of it.
    "reclaim.parts" reclaim_parts: u64 = 512;
    /// Pages taken off a list at a time; twice as many by the multi-gen LRU. Less only on a machine scaled down.
    "reclaim.batch" reclaim_batch: Batch = Batch(32);
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
    /// What becomes of dirty file folios.
    "dirty" dirty: Dirty = Dirty::K72;
    /// The zone kswapd judges by when nobody has asked for any.
    "kswapd.idle_index" kswapd_idle_index: IdleIndex = IdleIndex::Previous;
    /// Which zones have to be in balance before kswapd sleeps.
    "kswapd.balanced" kswapd_balanced: SleepCheck = SleepCheck::Any;
    /// When kswapd takes back what it said about congestion and dirty pages.
    "kswapd.clear" kswapd_clear: FlagClear = FlagClear::Sleep;
    /// What the state of a node is read off (classic lists).
    "reclaim.notes" notes: NodeNotes = NodeNotes::Pass;
    /// How much of the caches beside the page lists a pass looks through.
    "reclaim.slab" slab: SlabShare = SlabShare::Priority;
    /// A page to be reclaimed once written counts as a mark of reading ahead: the kernel has one bit.
    "file.one_mark" one_mark: bool = false;
    /// Pages that a fault of a mapped file maps around it if they are in memory (`fault_around_bytes`).
    "file.fault_around" fault_around: u64 = 16;
    /// Tasks do not reclaim below half of the reserve: they wait for kswapd.
    "reclaim.hold" hold: bool = true;
    /// A task that may not enter file systems unmaps shared memory, cannot write it, and keeps it, as in Linux.
    "reclaim.shmem_fs" shmem_fs: bool = false;
    /// Whether kswapd that freed nothing tries again without preferring files, as Linux has since 6.9.
    "kswapd.trim_again" kswapd_trim_again: bool = true;
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
    /// Accesses between two foldings of the classic LRU's memcg counters (oracle runs use 4096).
    "classic.fold" classic_fold: u64 = 0;
    /// Who brings a page back adds up the counters of all memcgs and processors first, as in Linux 5.15.
    "classic.flush" classic_flush: bool = false;
    /// Pages each frame stands for where the classic LRU goes by gigabytes (a machine scaled down).
    "classic.scale" classic_scale: u64 = 1;
    /// Pages looked at and kept are a cost of their type, and an I/O is 32 of them, as Linux has it since
    /// 6.2; before, only pages written and pages of the working set that came back were, one each.
    "classic.rotations" classic_rotations: bool = true;
    /// Whoever has what it wants drops the type of which less is left and then goes through the other's share to
    /// its end, whatever that yields, as Linux did until 6.1.
    "classic.finish" classic_finish: bool = false;
}

/// Names [`Tunables::preset`] knows.
pub const PRESETS: [&str; 6] = ["ebb", "cooling", "k612", "k618", "k72", "classic"];

/// What each of [`PRESETS`] is.
pub const MEANINGS: [&str; 6] = [
    "Ebb's default",
    "Ebb's default where cooling stands in for accessed bits",
    "k618 with the placement of Linux 6.12 and promotion by the first accessed bit; no kernel was all of that, and tiers, \
     aging and the loop are those of 6.14 and later",
    "the multi-gen LRU of Linux 6.18",
    "the multi-gen LRU of Linux 7.2",
    "the classic LRU of Linux 6.18; older ones by classic.finish, classic.rotations and classic.flush",
];

impl Tunables {
    /// The default where cooling stands in for accessed bits. Touches are not seen in the generations
    /// there, so their oldest folio says little about how soon others should be back.
    #[must_use]
    pub fn cooling() -> Self {
        Self {
            refault_distance: RefaultDistance::Place,
            probation: 10,
            probation_min: 2,
            probation_up: 1,
            probation_down: 8,
            probation_quiet: 0,
            near_once: 25,
            history: false,
            ..Self::default()
        }
    }

    /// A named set of switches.
    ///
    /// # Errors
    /// An unknown name.
    pub fn preset(name: &str) -> Result<Self, SetError> {
        let kernel = Self {
            admission: Admission::Open,
            history: false,
            look_around: LookAround::On,
            second_chance: false,
            reclaim_parts: 0,
            keep_slot: false,
            swap_order: SwapOrder::Time,
            strict_fallback: false,
            gen_loop: Loop::K618,
            placement: Placement::K618,
            promote: Promote::Second,
            set_refs: SetRefs::K618,
            bulk_move: false,
            counter_batch: false,
            prefetch: false,
            dirty: Dirty::K618,
            classic_fold: 4096,
            per_type_aging: false,
            refault_distance: RefaultDistance::Off,
            exact_target: false,
            type_select: TypeSelect::Pid,
            target_end: TargetEnd::Tail,
            one_mark: true,
            kswapd_idle_index: IdleIndex::Previous,
            kswapd_balanced: SleepCheck::Any,
            kswapd_clear: FlagClear::Sleep,
            oom: OomRule::Rounds,
            ..Self::default()
        };
        Ok(match name {
            "ebb" => Self::default(),
            "cooling" => Self::cooling(),
            "k618" => kernel,
            "k612" => Self { placement: Placement::K612, promote: Promote::First, ..kernel },
            "k72" => Self {
                gen_loop: Loop::K72,
                placement: Placement::K72,
                set_refs: SetRefs::K72,
                strict_fallback: true,
                dirty: Dirty::K72,
                ..kernel
            },
            "classic" => Self { lru: LruKind::Classic, dirty: Dirty::Classic, ..kernel },
            _ => return Err(SetError::UnknownPreset(name.to_owned())),
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
