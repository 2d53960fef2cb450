//! Checks the runner's output for tests that pass, fail and cannot run. These tests are in this
//! program itself.

use std::io::Write;
use std::process::{Command, Stdio};

/// Returns whether the test of the runner has started this program.
fn is_sample() -> bool {
    std::env::var_os("EBB_SAMPLE").is_some()
}

#[test]
fn one_that_passes() {}

#[test]
fn one_that_cannot_run() {
    if is_sample() {
        ebb_testing::skip("it is a sample");
    }
}

#[test]
fn one_that_fails() {
    assert!(!is_sample(), "as it should");
}

#[test]
fn the_runner_counts_tests_by_what_came_of_them() {
    if is_sample() {
        return;
    }
    let logs = std::env::temp_dir().join(format!("ebb-runner-{}", std::process::id()));
    let message = serde_json::json!({
        "executable": std::env::current_exe().expect("it runs"),
        "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        "package_id": "path+file:///sample#sample@0.1.0",
        "profile": { "test": true },
        "target": { "name": "runner" },
    });
    let mut runner = Command::new(env!("CARGO_BIN_EXE_run-tests"))
        .args(["samples", "sample"])
        .env("EBB_SAMPLE", "1")
        .env("EBB_TEST_LOGS", &logs)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the runner starts");
    let messages = runner.stdin.take().expect("piped");
    writeln!(&messages, "{message}").expect("it reads");
    drop(messages);
    let output = runner.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.lines().last(), Some("2 passed, 1 failed, 1 skipped"), "{text}");
    assert!(text.contains("skipped: runner: one_that_cannot_run: it is a sample"), "{text}");
    assert!(text.contains("failed: runner: one_that_fails\n"), "{text}");
    assert!(text.contains("as it should"), "{text}");
    assert!(!text.contains("\ntest result: "), "counted twice: {text}");
    let skipped = std::fs::read_to_string(logs.join("samples.skipped")).expect("a list");
    assert_eq!(skipped, "runner: one_that_cannot_run: it is a sample\n");
    std::fs::remove_dir_all(&logs).expect("its logs");
}
