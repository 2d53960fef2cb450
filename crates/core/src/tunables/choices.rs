//! Switches whose values are words: what each of them stands for.

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
