//! Known bugs of kernels, as switches of the engine: the measure of the fuzzer.
//!
//! The fuzzer finds each bug from a cold start, by machines drawn from seed 0 on with the bug
//! switched on (docs/fuzz.md). Without the bug, these machines do not break the rule.

/// A bug.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// Description of the bug.
    pub about: &'static str,
    /// Switches that bring the bug back.
    pub set: &'static [&'static str],
    /// Name of the rule that the bug breaks.
    pub oracle: &'static str,
    /// Number of machines until the bug shows.
    pub machines: u64,
}

/// All bugs for which the engine has switches.
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
