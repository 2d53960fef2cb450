//! Searching and attributing, from the command line to the report.

use std::process::Command;

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/small.toml");

fn stdout(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_ebb-lab")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tuning_finds_the_faster_drive_and_tries_it_where_it_did_not_look() {
    // What is searched for is known beforehand: a drive ten times as fast.
    let over = "machine.swap.read_us=400,40";
    let text = stdout(&[
        "tune",
        SMALL,
        "--maximise",
        "ops_per_s",
        "--over",
        over,
        "--seeds",
        "2",
        "--check",
        SMALL,
    ]);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("(2 seeds each)"), "{text}");
    assert_eq!(lines[1], "best: machine.swap.read_us=40");
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[2].contains(" better (seeds not tuned on)"), "{text}");
}

#[test]
fn tuning_says_when_nothing_is_better() {
    let over = "machine.swap.read_us=400,4000";
    let text = stdout(&[
        "tune",
        SMALL,
        "--minimise",
        "elapsed_s",
        "--over",
        over,
        "--seeds",
        "2",
        "--check",
        "",
    ]);
    assert!(text.ends_with("nothing is better than the defaults\n"), "{text}");
}

#[test]
fn attribution_turns_every_mechanism_off_alone() {
    let text = stdout(&["run", SMALL, "--attribute", "--seeds", "2"]);
    assert!(text.starts_with("small: ops_per_s is "), "{text}");
    let on = ebb_core::tunables::Tunables::default().rows();
    for row in on.iter().filter(|row| row.expected == "on|off") {
        let line = format!("  {}=off ", row.key);
        assert_eq!(text.contains(&line), row.value == "on", "{line}");
    }
    assert!(text.contains("  lru=classic "), "{text}");
}
