//! Tests search and attribution, from the command line to the report.

use crate::{SMALL, stdout};

#[test]
fn tuning_finds_the_faster_drive_and_tries_it_where_it_did_not_look() {
    // The best value is known beforehand: a drive ten times as fast.
    let over = "machine.swap.read_us=400,40";
    // Held-out scenarios: one that misses as well, and one that fits in memory and does not use the
    // drive.
    let held_out = |name: &str, data: &str| {
        let text = std::fs::read_to_string(SMALL).unwrap();
        let path = format!("{}/{name}.toml", env!("CARGO_TARGET_TMPDIR"));
        let changed = text.replace("data = 1.5", data);
        assert_ne!(changed, text);
        std::fs::write(&path, changed).unwrap();
        path
    };
    let (larger, fits) = (held_out("larger", "data = 1.9"), held_out("fits", "data = 0.5"));
    let check = format!("{SMALL},{larger},{fits}");
    let tune = ["tune", SMALL, "--maximise", "ops_per_s", "--over", over, "--seeds", "2"];
    let text = stdout(&[&tune[..], &["--check", &check]].concat());
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with("(2 seeds each)"), "{text}");
    assert_eq!(lines[1], "best: machine.swap.read_us=40");
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[2].contains(" better (seeds not tuned on)"), "{text}");
    assert!(lines[3].contains(&larger) && lines[3].ends_with(" better (not tuned on)"), "{text}");
    let same = " no significant difference (not tuned on)";
    assert!(lines[4].contains(&fits) && lines[4].ends_with(same), "{text}");
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
    let on = ebb_mm::tunables::Tunables::default().rows();
    for row in on.iter().filter(|row| row.expected == "on|off") {
        let line = format!("  {}=off ", row.key);
        assert_eq!(text.contains(&line), row.value == "on", "{line}");
    }
    assert!(text.contains("  lru=classic "), "{text}");
}
