//! Where the time of a run goes: told while it lasts and at its end, and what is told adds up.

use std::ffi::OsStr;
use std::process::Command;

use ebb_e2e::MIB;
use ebb_e2e::build::ebb;
use ebb_e2e::launch::Launch;
use serde_json::Value;

/// Passes over memory for two seconds, and asks where the time of its faults goes.
const PASSES: &str = r#"
import os, subprocess, sys, time
memory = bytearray(int(sys.argv[2]) << 20)
end = time.monotonic() + 2
while time.monotonic() < end:
    for at in range(0, len(memory), 4096 * 7):
        memory[at] = memory[at] + 1 & 255
def ask(*words):
    done = subprocess.run([sys.argv[1], "stat", *words, str(os.getpid())], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout, end="")
ask("--faults")
ask("--faults", "--format", "json")
assert subprocess.run([sys.argv[1], "stat", "--format", "xml", "1"], capture_output=True).returncode == 2
"#;

#[test]
fn the_time_of_faults_is_told_by_kind_and_stage() {
    let command = [OsStr::new("-c"), PASSES.as_ref(), ebb().as_ref(), OsStr::new("64")];
    let launch = Launch::new("/usr/bin/python3").args(command).limit(40 * MIB);
    let outcome = launch.options("--report json --swap ram").run();
    let text = outcome.expect_code(0).text();
    let lines: Vec<&str> = text.lines().collect();
    let words = |line: &&str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&lines[0])[..3], ["kind", "stage", "faults"], "{text}");
    let stages = [
        "touch->read",
        "lock",
        "look-up",
        "content",
        "place",
        "wake",
        "->runs",
        "in thread",
        "all",
    ];
    let zeros: Vec<&&str> = lines.iter().filter(|line| line.starts_with("zero page ")).collect();
    assert_eq!(zeros.len(), stages.len(), "{text}");
    assert!(zeros.iter().zip(stages).all(|(line, stage)| line.contains(stage)), "{text}");
    let json: Value = serde_json::from_str(lines.last().expect("JSON")).expect("JSON");
    let number =
        |value: &Value, path: &str| value.pointer(path).and_then(Value::as_u64).expect("number");
    let (count, waited) = (number(&json, "/count"), number(&json, "/waited_ns"));
    let kinds = json["kinds"].as_array().expect("kinds");
    assert_eq!(kinds.iter().map(|kind| number(kind, "/count")).sum::<u64>(), count, "{json}");
    assert!(kinds.len() >= 2 && count > 1000, "{json}");
    // What is measured of each fault is less than all of it, and parts are no more than the whole.
    let means = |kind: &Value, stages: &[&str]| {
        stages.iter().map(|stage| number(kind, &format!("/stages/{stage}/mean_ns"))).sum::<u64>()
    };
    for kind in kinds {
        let parts =
            ["touch_to_read", "look_up", "content", "place", "wake", "wake_to_run", "in_thread"];
        let (parts, all) = (means(kind, &parts), means(kind, &["all"]));
        assert!(parts.abs_diff(all) <= all / 50 + 10, "{parts} {all}: {kind}");
        assert!(number(kind, "/stages/all/p50_ns") <= number(kind, "/stages/all/p99_ns"), "{kind}");
    }
    let served = number(&json, "/served_ns");
    assert!(served > 0 && served < waited && waited < count * 20_000_000, "{json}");
    // The same at the end, and more of it.
    let report: Value = serde_json::from_str(&report_of(&outcome.stderr)).expect("JSON");
    assert!(number(&report, "/waiting/total_us") >= waited / 1000 / 2, "{report}");
    assert!(number(&report, "/stages/count") >= count, "{report}");
    let cpu = |name: &str| number(&report, &format!("/cpu/{name}_us"));
    let threads = ["faults", "kswapd", "monitor", "door", "rest"].map(cpu);
    let sum: u64 = threads.iter().sum();
    assert!(sum.abs_diff(cpu("pager")) <= cpu("pager") / 10 + 20_000, "{report}");
    assert!(cpu("faults") > 0 && cpu("kswapd") > 0 && cpu("front") > 0, "{report}");
}

/// The line of it on standard error.
fn report_of(stderr: &str) -> String {
    stderr.lines().find(|line| line.starts_with('{')).expect("a report").to_owned()
}

/// What the parts come to is measured in docs/benchmarks.md; beside other tests they are that far off.
#[test]
fn what_a_run_lost_is_the_sum_of_its_parts() {
    let mut bench = Command::new(ebb());
    bench.args(["bench", "account", "--rounds", "3", "--json", "--accesses", "150000"]);
    let output = bench.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_str(&text).expect("JSON");
    for name in ["parts_to_lost", "waiting_to_timed"] {
        let share = json[name].as_f64().expect("a number");
        assert!((0.5..2.0).contains(&share), "{name}: {json}");
    }
}
