//! Tests memcgs of the simulated machine: their protection, their delays, and the reports on them.

use crate::common::{experiment, run};
use ebb_lab::experiment::json;
use ebb_lab::scenario::Metrics;

/// Two groups below a full one. One store reads its own items again and again; the other goes
/// through far more data than fit.
const GROUPS: &str = r#"
name = "groups"
title = "two groups below one"
source = "none"
[machine]
frames = 16384
cpus = 6
swap = { kind = "nvme" }
[[memcg]]
name = "both"
limit = 0.25
[[memcg]]
name = "kept"
parent = "both"
[[memcg]]
name = "greedy"
parent = "both"
[[workload]]
name = "kept"
memcg = "kept"
[workload.key-value]
threads = 2
data = 0.1
item_bytes = 4096
pattern = "uniform"
op_ns = 20000
ops = 6.0
[[workload]]
name = "greedy"
memcg = "greedy"
background = true
[workload.key-value]
threads = 4
data = 0.5
item_bytes = 4096
pattern = "uniform"
writes = 1.0
op_ns = 1000
ops = 1000.0
[measure]
metric = "ops_per_s"
[[arm]]
name = "classic"
set = ["preset=classic"]
[[arm]]
name = "ebb"
"#;

fn groups(pairs: &[&str]) -> Metrics {
    run(GROUPS, pairs, 1)
}

#[test]
fn protected_memory_of_a_memcg_is_not_reclaimed_for_its_sibling() {
    for preset in ["preset=classic", "preset=k618", "preset=ebb"] {
        let stall = |pairs: &[&str]| {
            let pairs: Vec<&str> = pairs.iter().copied().chain([preset]).collect();
            let m = groups(&pairs);
            (m["ops_per_s"], m["psi.kept.some.total_us"])
        };
        let (bare, lost) = stall(&[]);
        // The protection of the upper group limits that of the lower ones.
        let low = stall(&["memcg.both.low=0.25", "memcg.kept.low=0.12"]);
        let min = stall(&["memcg.both.min=0.25", "memcg.kept.min=0.12"]);
        let other = stall(&["memcg.both.min=0.25", "memcg.greedy.min=0.2"]);
        assert!(low.0 > 1.5 * bare && min.0 > 1.5 * bare, "{preset}: {bare} {low:?} {min:?}");
        assert!(low.1 < lost / 4.0 && min.1 < lost / 4.0, "{preset}: {lost} {low:?} {min:?}");
        assert!(other.0 < 0.9 * bare, "{preset}: {bare} {other:?}");
    }
}

#[test]
fn a_memcg_above_its_high_is_reclaimed_and_its_tasks_are_throttled() {
    let alone = ["memcg.greedy.limit=0.2", "workload.greedy.data=2.5"];
    let bare = groups(&alone);
    let high = groups(&[alone[0], alone[1], "memcg.greedy.high=0.1"]);
    assert_eq!(bare["high_s"], 0.0);
    // The sibling has the memory between the limit and the other group's `high`, and loses nothing.
    assert!(high["ops_per_s"] > 1.5 * bare["ops_per_s"], "{high:?}");
    assert!(high["psi.kept.some.total_us"] < bare["psi.kept.some.total_us"] / 4.0);
    // The group's pages take 20 ms to write. It stays above `high`, and its tasks wait for that.
    let slow = ["memcg.greedy.high=0.02", "machine.swap.write_us=20000"];
    let held = groups(&[alone[0], alone[1], slow[0], slow[1]]);
    assert!(held["high_s"] > 0.1 && held["psi.greedy.some.total_us"] > 50_000.0, "{held:?}");
    assert_eq!(held["psi.kept.some.total_us"], 0.0);
}

#[test]
fn reclaim_on_command_takes_the_requested_amount_from_the_named_memcg() {
    // All data fit, so reclaim takes only the commanded pages, a hundred each millisecond.
    for preset in ["preset=classic", "preset=ebb"] {
        let swap = "machine.swap={ kind = 'zram' }";
        let roomy = [preset, swap, "memcg.both.limit=0.9", "workload.kept.ops=2.0"];
        let told = ["memcg.greedy.reclaim=0.0061", "memcg.greedy.reclaim_ms=1"];
        let m = groups(&[&roomy[..], &told[..]].concat());
        let told = 99.0 * (m["elapsed_s"] * 1000.0).floor();
        let (taken, others) = (m["pgsteal_proactive"], m["pgsteal_direct"] + m["pgsteal_kswapd"]);
        assert!((0.9 * told..=1.2 * told).contains(&taken), "{preset}: {taken} of {told}");
        assert_eq!((others, m["psi.kept.some.total_us"]), (0.0, 0.0), "{preset}");
    }
    let bare = groups(&["memcg.both.limit=0.9"]);
    assert_eq!(bare["pgsteal_proactive"], 0.0);
}

#[test]
fn pressure_of_a_group_counts_above_it_and_not_beside_it() {
    let m = groups(&["memcg.kept.min=0.12", "memcg.both.min=0.25"]);
    let total = |name: &str| m[&format!("psi.{name}.some.total_us")];
    assert!(total("greedy") > 0.0 && total("kept") < total("greedy") / 4.0);
    assert!(total("both") >= total("greedy") && total("machine") >= total("both"));
    // Averages move every two seconds of the machine that this one stands for.
    let large = groups(&["preset=classic", "machine.gb=16"]);
    assert!(large["psi.greedy.some.avg10"] > 0.5 && m["psi.greedy.some.avg10"] == 0.0);
    let full = m["psi.both.full.total_us"];
    assert!(full < total("both") / 4.0, "the other one works meanwhile");
}

#[test]
fn the_document_has_pressure_as_the_kernel_prints_it() {
    let document = json::document(&experiment(GROUPS, 2, 2, 0));
    for name in ["machine", "both", "kept", "greedy"] {
        let line = format!("\"{name}\": \"some avg10=");
        assert!(document.contains(&line), "{line} is not in the document");
    }
    assert!(document.contains("\\nfull avg10="));
}

/// Eight writers of a little more data than their memcg allows, in order, on a slow device. The
/// dirty limits of a large machine stop none of them.
const WRITERS: &str = r#"
name = "writers"
title = "writers with more dirty pages than their memcg"
source = "mm/vmscan: wake up flushers conditionally to avoid cgroup OOM (1bc542c6a0d1)"
[machine]
frames = 65536
cpus = 8
disk = { kind = "ssd", write_mb_s = 100.0, read_mb_s = 100.0, depth = 4 }
dirty = { background_pct = 380.0, limit_pct = 400.0, expire_s = 30.0 }
[[memcg]]
name = "writers"
limit = 0.25
[[workload]]
name = "dd"
memcg = "writers"
[workload.fio]
jobs = 8
data = 1.083
pattern = "sequential"
writes = 1.0
op_ns = 500
warm = 0.0
ops = 3.0
[measure]
metric = "oom_kills"
[[arm]]
name = "k618"
set = ["preset=k618"]
[[arm]]
name = "ebb"
"#;

#[test]
fn writers_with_more_dirty_pages_than_their_memcg_are_not_killed() {
    let kills =
        |pairs: &[&str]| (1..=3).map(|seed| run(WRITERS, pairs, seed)["oom_kills"]).sum::<f64>();
    assert!(kills(&["preset=k618"]) >= 1.0, "its flusher is woken too late");
    for pairs in
        [&["preset=k618", "dirty=k72"][..], &["preset=k72"], &["preset=classic"], &["preset=ebb"]]
    {
        assert_eq!(kills(pairs), 0.0, "{pairs:?}");
    }
}

/// Shows that a hot mapped file stalls no task. If 64 processes access its pages more often than
/// reclaim scans them, all pages are always young. Tasks then may scan the lists for 40 seconds,
/// and one is killed.
#[test]
fn a_mapped_file_that_is_kept_hot_stalls_nobody() {
    let text = ebb_lab::scenario::find("dirty-oom").expect("it is built in").text;
    let text = text.replace("rounds = 6", "rounds = 2");
    let metrics = run(&text, &["machine.frames=131072", "preset=ebb"], 1);
    assert_eq!(metrics["oom_kills"], 0.0);
    assert!(metrics["elapsed_s"] < 0.5, "{} s", metrics["elapsed_s"]);
    assert!(metrics["pgscan_direct"] < 300_000.0, "{} pages", metrics["pgscan_direct"]);
}

/// Shows that a disk which takes days for a page blocks no task for ever. Reclaim does not loop for
/// ever either, because the run would not end. A task that finds no memory is killed soon.
#[test]
fn with_no_write_bandwidth_nothing_livelocks() {
    for preset in ["preset=k618", "preset=classic", "preset=ebb"] {
        let ran = run(WRITERS, &[preset, "machine.disk.write_mb_s=0.00000001"], 1);
        assert!(ran["oom_kills"] >= 1.0, "{preset}: nobody who needs room can have any");
        assert!(ran["elapsed_s"] < 60.0, "{preset}: {} s", ran["elapsed_s"]);
    }
}
