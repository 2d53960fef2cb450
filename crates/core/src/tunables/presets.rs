//! Presets: named sets of switches, for kernel versions and for Ebb.

use super::{
    Admission, Classic, Dirty, Files, FlagClear, IdleIndex, Kswapd, LookAround, Loop, LruKind,
    Mglru, OomRule, Placement, Promote, Reclaim, RefaultDistance, SetError, SetRefs, SleepCheck,
    Swap, SwapOrder, TargetEnd, Tunables, TypeSelect,
};

/// Names that [`Tunables::preset`] knows.
pub const PRESETS: [&str; 6] = ["ebb", "standby", "k612", "k618", "k72", "classic"];

/// Help text of each of [`PRESETS`].
pub const MEANINGS: [&str; 6] = [
    "Ebb's default",
    "Ebb's default where a standby list stands in for accessed bits",
    "k618 with the placement of Linux 6.12 and promotion by the first accessed bit; no kernel had this combination: tiers, \
     aging and the loop are those of 6.14 and later",
    "the multi-gen LRU of Linux 6.18",
    "the multi-gen LRU of Linux 7.2",
    "the classic LRU of Linux 6.18; older ones by classic.finish, classic.rotations and classic.flush",
];

impl Tunables {
    /// Returns the default for a standby list that stands in for accessed bits. Accesses are not
    /// seen in the generations there, so the age of their oldest folio says little about when
    /// others are needed again.
    #[must_use]
    pub fn standby() -> Self {
        let mglru = Mglru {
            refault_distance: RefaultDistance::Place,
            probation: 10,
            probation_min: 2,
            probation_up: 1,
            probation_down: 8,
            probation_quiet: 0,
            near_once: 25,
            history: false,
            ..Mglru::default()
        };
        Self { mglru, ..Self::default() }
    }

    /// Returns the switches that the presets of kernels have in common.
    fn kernel() -> Self {
        let mglru = Mglru {
            eviction: Loop::K618,
            placement: Placement::K618,
            admission: Admission::Open,
            history: false,
            second_chance: false,
            promote: Promote::Second,
            set_refs: SetRefs::K618,
            strict_fallback: false,
            type_select: TypeSelect::Pid,
            look_around: LookAround::On,
            bulk_move: false,
            counter_batch: false,
            prefetch: false,
            target_end: TargetEnd::Tail,
            per_type_aging: false,
            refault_distance: RefaultDistance::Off,
            exact_target: false,
            ..Mglru::default()
        };
        let kswapd = Kswapd {
            idle_index: IdleIndex::Previous,
            balanced: SleepCheck::Any,
            clear: FlagClear::Sleep,
            ..Kswapd::default()
        };
        Self {
            dirty: Dirty::K618,
            mglru,
            classic: Classic { fold: 4096, ..Classic::default() },
            reclaim: Reclaim { parts: 0, oom: OomRule::Rounds, ..Reclaim::default() },
            kswapd,
            swap: Swap { keep_slot: false, order: SwapOrder::Time, ..Swap::default() },
            file: Files { one_mark: true, ..Files::default() },
            ..Self::default()
        }
    }

    /// Returns a named set of switches.
    ///
    /// # Errors
    /// An unknown name.
    pub fn preset(name: &str) -> Result<Self, SetError> {
        let kernel = Self::kernel();
        let mglru = kernel.mglru.clone();
        Ok(match name {
            "ebb" => Self::default(),
            "standby" => Self::standby(),
            "k618" => kernel,
            "k612" => Self {
                mglru: Mglru { placement: Placement::K612, promote: Promote::First, ..mglru },
                ..kernel
            },
            "k72" => Self {
                mglru: Mglru {
                    eviction: Loop::K72,
                    placement: Placement::K72,
                    set_refs: SetRefs::K72,
                    strict_fallback: true,
                    ..mglru
                },
                dirty: Dirty::K72,
                ..kernel
            },
            "classic" => Self { lru: LruKind::Classic, dirty: Dirty::Classic, ..kernel },
            _ => return Err(SetError::UnknownPreset(name.to_owned())),
        })
    }
}
