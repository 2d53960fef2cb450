//! Tests machines with several memory nodes from outside.

use crate::common::{experiment, run};
use ebb_lab::experiment::json;
use ebb_lab::scenario::Scenario;

const SMALL: &str = r#"
name = "small"
title = "a small key-value store"
source = "none"
[machine]
frames = 32768
cpus = 8
swap = { kind = "nvme" }
[[workload]]
name = "kv"
[workload.key-value]
threads = 4
data = 1.5
item_bytes = 1024
pattern = "zipfian"
writes = 0.3
op_ns = 1000
ops = 0.5
[measure]
metric = "ops_per_s"
[[arm]]
name = "classic"
set = ["preset=classic"]
[[arm]]
name = "ebb"
[[case]]
name = "only"
[case.published]
effect = 1.0
significant = false
"#;

/// Shows that the counts balance. Every run checks them at its end.
#[test]
fn the_counts_of_every_lru_balance_on_up_to_eight_nodes() {
    for (preset, nodes) in [("classic", [2, 8]), ("k618", [3, 8]), ("ebb", [2, 8])] {
        for nodes in nodes {
            let nodes = format!("machine.nodes={nodes}");
            let preset = format!("preset={preset}");
            let m = run(SMALL, &[&nodes, &preset], 1);
            let (kswapd, direct) = (m["pgsteal_kswapd"], m["pgsteal_direct"]);
            assert!(kswapd > 0.0 && kswapd + direct > 1_000.0, "{nodes} {preset}");
            assert!(m["swap_reads"] > 500.0, "{nodes} {preset}: {}", m["swap_reads"]);
        }
    }
}

#[test]
fn several_nodes_give_the_same_bytes_on_any_number_of_threads() {
    let text = SMALL.replace("[machine]\n", "[machine]\nnodes = 2\n");
    let of = |jobs| json::document(&experiment(&text, 2, jobs, 0));
    assert_eq!(of(1), of(2));
}

/// Seed of a run with the effect; most runs do not have it.
const SEED: u64 = 10;

/// Shows that kswapd writes pages itself only with the first two of the three patches. The
/// published machine has two sockets. While kswapd of the second node stays awake, the node never
/// clears its flag for dirty pages at the old end.
#[test]
fn with_the_first_two_steps_of_2017_alone_kswapd_writes_pages_itself() {
    let text = ebb_lab::scenario::find("kswapd-simoop").unwrap().text;
    let scenario = Scenario::parse("kswapd-simoop", text).unwrap();
    let written = |arm: &str| {
        let arm = scenario.arm.iter().find(|a| a.name == arm).expect("an arm of this name");
        let set: Vec<&str> = arm.set.iter().map(String::as_str).collect();
        run(text, &[&set[..], &["measure.seconds=5"]].concat(), SEED)["nr_vmscan_write"]
    };
    let [none, two, three] = ["vanilla", "clear-v2", "keepawake"].map(written);
    assert!(none == 0.0 && three == 0.0 && two > 100.0, "{none} {two} {three}");
}

#[test]
fn nodes_that_cannot_be_are_refused_by_name() {
    let told = |line: &str| {
        let text = SMALL.replace("[machine]\n", &format!("[machine]\n{line}\n"));
        Scenario::parse("text.toml", &text).unwrap_err().to_string()
    };
    assert!(
        told("nodes = 0").contains("machine.nodes = 0: expected 1 to"),
        "{}",
        told("nodes = 0")
    );
    assert!(
        told("nodes = 9").contains("machine.nodes = 9: expected 1 to"),
        "{}",
        told("nodes = 9")
    );
    let both = told("nodes = 2\nsecond_node = true");
    assert!(both.contains("machine.second_node: expected with one node only"), "{both}");
}
