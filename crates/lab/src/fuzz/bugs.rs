//! Bugs that kernels had, as switches of the engine: what the fuzzer is measured by.
//!
//! Each is found from a cold start, by machines drawn from seed 0 on with the bug switched on (docs/fuzz.md), and nothing of its
//! rule without.

/// A bug.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// What it was.
    pub about: &'static str,
    /// The switches that bring it back.
    pub set: &'static [&'static str],
    /// The rule that it breaks.
    pub oracle: &'static str,
    /// So many machines until it shows.
    pub machines: u64,
}

/// Those that there are switches for.
pub const BUGS: &[Bug] = &[
    Bug {
        about: "kswapd judges its sleep by the lowest zone when nobody has asked for any (until 2017)",
        set: &["kswapd.idle_index=zero"],
        oracle: "early-sleep",
        machines: 10,
    },
    Bug {
        about: "the first fix of that, by which it goes by the lowest zone after a sleep (until 2019)",
        set: &["kswapd.idle_index=sentinel"],
        oracle: "early-sleep",
        machines: 10,
    },
    Bug {
        about: "kswapd sleeps only when every zone is in balance, and reclaims until one is (until 2017)",
        set: &["kswapd.balanced=all"],
        oracle: "busy-kswapd",
        machines: 16,
    },
    Bug {
        about: "a batch of the multi-gen LRU takes more than its target still lacks (Linux 6.18)",
        set: &["preset=k618"],
        oracle: "over-reclaim",
        machines: 5,
    },
    Bug {
        about: "a node without the lowest zone is never fine for it, and kswapd goes round (two of the three fixes of 2017)",
        set: &["kswapd.idle_index=zero", "kswapd.balanced=one"],
        oracle: "busy-kswapd",
        machines: 202,
    },
    Bug {
        about: "who brings a page back adds up the counters of all memcgs on all processors (Linux 5.15)",
        set: &["preset=classic", "classic.flush=on"],
        oracle: "sum-storm",
        machines: 5,
    },
];
