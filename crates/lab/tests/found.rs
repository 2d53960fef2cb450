//! Tests that findings of `ebb lab fuzz` stay fixed: each file is named after its cause and
//! describes the finding.

use ebb_lab::fuzz::{examine, machine};

#[test]
fn no_earlier_finding_of_the_fuzzer_breaks_a_rule_again() {
    for (name, text) in [
        ("second-kill", include_str!("found/second-kill.toml")),
        ("reused-frame", include_str!("found/reused-frame.toml")),
        ("held-while-short", include_str!("found/held-while-short.toml")),
    ] {
        let scenario = machine(text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let broken = examine(&scenario, None);
        assert!(broken.is_empty(), "{name}: {broken:?}");
    }
}
