//! Tests the file of `ebb lab run --trace-events`, and that it changes no result.

use crate::SMALL;

fn lab(arguments: &[&str]) -> (bool, String, String) {
    let output = crate::lab(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_report_is_the_same_and_the_file_is_of_the_run_that_was_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("events.txt");
    let path = file.to_str().unwrap();
    let plain = ["run", SMALL, "--seeds", "2", "--jobs", "1", "--format", "json"];
    let with = [&plain[..], &["--trace-events", path]].concat();
    let (ok, report, error) = lab(&with);
    assert!(ok, "{error}");
    assert_eq!(report, lab(&plain).1);
    let head =
        |line: usize| std::fs::read_to_string(&file).unwrap().lines().nth(line).map(str::to_owned);
    assert_eq!(head(2).unwrap(), "# ebb lab: small, classic, seed 0");
    let other = [&with[..], &["--trace-arm", "ebb", "--trace-seed", "1"]].concat();
    assert!(lab(&other).0);
    assert_eq!(head(2).unwrap(), "# ebb lab: small, ebb, seed 1");
    for (more, told) in [
        (["--trace-arm", "gen"], "there is no arm \"gen\"; there are classic, ebb"),
        (["--trace-case", "large"], "there is no case \"large\"; there are small"),
        (["--trace-seed", "2"], "seed 2: there are 0 to 1"),
        (["--set", "machine.live.on=true"], "it runs under Ebb"),
        (["--shard", "1/2"], "cannot be used with"),
    ] {
        let (ok, _, error) = lab(&[&with[..], &more].concat());
        assert!(!ok && error.contains(told), "{more:?}: {error}");
    }
    let nowhere = [&plain[..], &["--trace-events", "/nowhere/events.txt"]].concat();
    assert!(lab(&nowhere).2.contains("/nowhere/events.txt: No such file"));
}
