//! Shows that the time of a run is accounted for, while it lasts and at its end, and that the parts
//! add up.

use std::ffi::OsStr;
use std::process::Command;

use ebb_e2e::MIB;
use ebb_e2e::build::ebb;
use ebb_e2e::launch::{Launch, need_paging};
use ebb_e2e::same::need;
use serde_json::Value;

/// Passes over memory and creates new pages each time, until a thousand faults of two kinds are
/// reported. Then asks for the stages of their time.
const PASSES: &str = r#"
import json, os, subprocess, sys
memory = bytearray(int(sys.argv[2]) << 20)
def ask(*words):
    while True:
        command = [sys.argv[1], "stat", *words, str(os.getpid())]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        # A run that gets no CPU may be late.
        assert "does not answer" in done.stderr, done.stderr
PARTS = ["fault_to_read", "look_up", "content", "place", "wake", "wake_to_run", "in_thread"]
# Parts are no more than the whole, but of a fault that is being noted just then.
def adds_up(kind):
    parts = sum(kind["stages"][stage]["mean_ns"] for stage in PARTS)
    whole = kind["stages"]["all"]["mean_ns"]
    return abs(parts - whole) <= whole // 50 + 10
while True:
    for at in range(0, len(memory), 4096 * 7):
        memory[at] = memory[at] + 1 & 255
    fresh = bytearray(4 << 20)
    text = ask("--faults")
    told = ask("--faults", "--format", "json")
    faults = json.loads(told)
    kinds = [kind["kind"] for kind in faults["kinds"]]
    if (faults["count"] > 1000 and len(kinds) > 1 and "zero page" in text
            and all(map(adds_up, faults["kinds"]))):
        break
print(text, end="")
print(told, end="")
assert subprocess.run([sys.argv[1], "stat", "--format", "xml", "1"], capture_output=True).returncode == 2
"#;

#[test]
fn the_time_of_faults_is_reported_by_kind_and_stage() {
    let command = [OsStr::new("-c"), PASSES.as_ref(), ebb().as_ref(), OsStr::new("64")];
    let launch = Launch::new(need("/usr/bin/python3")).args(command).limit(40 * MIB);
    let outcome = launch.options("--report json --swap ram").run();
    let text = outcome.expect_code(0).text();
    let lines: Vec<&str> = text.lines().collect();
    let words = |line: &&str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&lines[0])[..3], ["kind", "stage", "faults"], "{text}");
    let stages = [
        "fault->read",
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
    for kind in kinds {
        assert!(number(kind, "/stages/all/p50_ns") <= number(kind, "/stages/all/p99_ns"), "{kind}");
    }
    let served = number(&json, "/served_ns");
    assert!(served > 0 && served <= waited, "{json}");
    // The report at the end has these figures, and more of them.
    let report: Value = serde_json::from_str(&report_of(&outcome.stderr)).expect("JSON");
    let (seen, total) = (number(&report, "/waiting/seen_us"), number(&report, "/waiting/total_us"));
    assert!(seen >= served / 1000 && total >= seen, "{report}");
    assert!(number(&report, "/stages/count") >= count, "{report}");
    let cpu = |name: &str| number(&report, &format!("/cpu/{name}_us"));
    let threads = ["faults", "kswapd", "monitor", "listener", "rest"].map(cpu);
    // The processor time of the whole process is read first, so the threads may have more.
    assert!(threads.iter().sum::<u64>() >= cpu("pager"), "{report}");
    assert!(cpu("faults") > 0 && cpu("kswapd") > 0 && cpu("supervisor") > 0, "{report}");
}

/// Returns the line of the report on standard error.
fn report_of(stderr: &str) -> String {
    stderr.lines().find(|line| line.starts_with('{')).expect("a report").to_owned()
}

/// Shows that the loss is reported with its parts. `./test measure account` measures their sum.
#[test]
fn the_lost_time_of_a_run_is_reported_with_its_parts() {
    need_paging();
    let mut bench = Command::new(ebb());
    bench.args(["bench", "account", "--rounds", "1", "--json", "--accesses", "20000"]);
    let output = bench.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let parts = json["parts_s"].as_array().expect("parts");
    assert!(parts.len() == 7 && parts.iter().all(Value::is_number), "{json}");
    for name in ["plain_s", "ebb_s", "parts_to_lost", "waiting_to_timed"] {
        assert!(json.get(name).is_some(), "{name}: {json}");
    }
}
