//! Switches whose values are words.
//!
//! The comment of a value is its help text in `docs/reference.md`.

use super::value::Value;

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
            fn meanings() -> &'static [(&'static str, &'static str)] {
                &[$(($t, concat!($($d),*))),+]
            }
        }
    )*};
}

choices! {
    /// The kind of lists of a lruvec.
    LruKind {
        /// Generations (the multi-gen LRU).
        Gen = "gen",
        /// Active and inactive lists (the classic LRU).
        Classic = "classic",
    }
    /// The eviction loop.
    Loop {
        /// Computes a scan budget for each batch, returns after aging.
        K618 = "k618",
        /// One scan budget a call, in batches of 64, goes on after aging.
        K72 = "k72",
    }
    /// Target generation of a new or refaulted folio.
    Placement {
        /// Faulted folios go to the youngest generation.
        K612 = "k612",
        /// Faulted folios go to the second youngest generation.
        K618 = "k618",
        /// Of refaulted folios, only those of the working set go to the two youngest generations.
        K72 = "k72",
    }
    /// Effect of one accessed bit on a folio.
    Promote {
        /// The first accessed bit promotes the folio.
        First = "first",
        /// The first accessed bit marks the folio, and the second promotes it.
        Second = "second",
    }
    /// When eviction looks at the neighbours of an accessed page-table entry.
    LookAround {
        /// Never. Only aging's walk of the page tables sees them.
        Off = "off",
        /// In a pass that frees few of the pages it scans. There only the look-around tells pages
        /// apart. Elsewhere it makes pages young that a sequential pass has finished with.
        Pressed = "pressed",
        /// Always.
        On = "on",
    }
    /// Effect of an accessed bit that eviction finds.
    SetRefs {
        /// The second accessed bit promotes the folio.
        K618 = "k618",
        /// The second accessed bit activates the folio. Only the third makes it part of the working
        /// set (`folio_lru_refs`).
        K72 = "k72",
    }
    /// Treatment of dirty file folios at the old end of the lists.
    Dirty {
        /// Reclaim isolates them, and activates them when it shrinks the batch.
        Classic = "classic",
        /// Reclaim sorts them into the next generation.
        K618 = "k618",
        /// As `classic`, and the flusher is woken for each batch of dirty folios alone.
        K72 = "k72",
    }
    /// The end of the next generation's list to which folios move.
    TargetEnd {
        /// They become the newest of that generation.
        Head = "head",
        /// They become the oldest of that generation.
        Tail = "tail",
    }
    /// Whether a new folio enters the generations at once.
    Admission {
        /// A new folio goes to the generation that `gen.placement` chooses.
        Open = "open",
        /// A new folio must be used again, in memory or soon after, to enter the generations.
        Probation = "probation",
    }
    /// The zone that kswapd checks if no request names one.
    IdleIndex {
        /// The lowest zone, because no request looks like a request for the lowest zone.
        Zero = "zero",
        /// No request has a value of its own. After a sleep without a request the lowest zone is
        /// taken all the same.
        Sentinel = "sentinel",
        /// The zone of the cycle before.
        Previous = "previous",
    }
    /// Which zones must be balanced before kswapd sleeps.
    SleepCheck {
        /// One zone that could serve the request.
        Any = "any",
        /// All zones that could serve the request.
        All = "all",
        /// One zone that could serve the request, which must exist: a node without low zones is
        /// never balanced for them.
        One = "one",
    }
    /// When kswapd clears the node's flags for congestion and dirty pages.
    FlagClear {
        /// Whenever a check finds a zone in balance.
        Check = "check",
        /// Only when kswapd goes to sleep.
        Sleep = "sleep",
    }
    /// The source of a node's state: old pages are dirty, under writeback, or wait for a congested
    /// disk.
    NodeNotes {
        /// A whole pass of kswapd.
        Pass = "pass",
        /// Each batch of any reclaiming task, as in Linux before 4.17. The task waits at once if
        /// the batch calls for it.
        Batch = "batch",
    }
    /// The share of the slab caches that a pass scans.
    SlabShare {
        /// The share that the pass scanned of the pages it might have scanned, as in Linux until
        /// 4.16.
        Scanned = "scanned",
        /// A share that depends on the priority of the pass.
        Priority = "priority",
    }
    /// When reclaiming tasks give up.
    OomRule {
        /// After 16 rounds in which the task freed nothing.
        Rounds = "rounds",
        /// When no task frees pages and no write ends any more.
        Progress = "progress",
    }
    /// The order in which pages that leave memory together get their swap slots.
    SwapOrder {
        /// The order in which reclaim chose them.
        Time = "time",
        /// The order of their addresses.
        Address = "address",
    }
    /// The pages that are read together with a page from swap.
    AheadBy {
        /// Pages at the addresses around it, in its area.
        Address = "address",
        /// The block of swap slots around it.
        Cluster = "cluster",
    }
    /// How the type to scan is chosen.
    TypeSelect {
        /// By the refault rates of the types, weighted by swappiness.
        Pid = "pid",
        /// Keeps the pages reclaimed of each type at the ratio that swappiness asks for.
        Ratio = "ratio",
    }
    /// The use of the refault distance, beside the recency in generations.
    RefaultDistance {
        /// The refault distance is not used.
        Off = "off",
        /// A short distance places the folio in the young generations, a long one in the old ones.
        Place = "place",
        /// A folio joins the young generations if the time from its placement to its refault is
        /// shorter than the age of their oldest folio.
        Reuse = "reuse",
    }
}
