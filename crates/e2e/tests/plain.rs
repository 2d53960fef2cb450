//! Runs the test programs themselves plainly. They pass on an ordinary kernel, and they notice a
//! wrong word. Their results about Ebb depend on that.

use ebb_e2e::MIB;
use ebb_e2e::account::may_look_up;
use ebb_e2e::launch::Launch;
use tempfile::TempDir;

#[test]
fn torture_passes_without_ebb() {
    for seed in 1..=4 {
        Launch::program("torture", &format!("1 {seed}")).run().expect_line("torture: ok");
    }
}

#[test]
fn torture_notices_one_changed_bit() {
    let outcome = Launch::program("torture", "1 1 96 spoil").run();
    outcome.expect_code(3);
    assert!(outcome.stderr.starts_with("wrong word: at the end: region"), "{}", outcome.stderr);
}

#[test]
fn verify_and_hog_pass_without_ebb() {
    let first = Launch::program("verify", "64 2 7 2").run();
    let second = Launch::program("verify", "64 2 7 2").run();
    assert_eq!(first.text(), second.text());
    assert!(first.expect_code(0).text().starts_with("verify: ok "));
    Launch::program("hog", "128 4").run().expect_line("hog: ok");
}

#[test]
fn each_case_of_process_passes_without_ebb() {
    for case in ["fork", "fork-snapshot", "raw-fork", "many", "deep", "crash-child", "vfork"]
        .into_iter()
        .chain(["exec", "exec-from-thread", "timer", "close-all", "raw-fork-fork"])
        .chain(["stopped", "borrow"])
    {
        let line = case.strip_suffix("-from-thread").unwrap_or(case);
        Launch::program("process", &format!("{case} 16")).run().expect_line(&format!("{line}: ok"));
    }
}

#[test]
fn each_case_of_threads_passes_without_ebb() {
    for case in ["threads", "standard-threads", "late-threads", "robust-lock"] {
        Launch::program("threads", &format!("{case} 16")).run().expect_line(&format!("{case}: ok"));
    }
}

#[test]
fn each_case_of_memory_passes_without_ebb() {
    for case in ["wipe-on-fork", "dont-fork", "discard", "break", "direct-io", "aio", "vectors"]
        .into_iter()
        .chain(["vmsplice", "peek", "sparse", "areas", "short-lived", "stack", "write-barrier"])
        .chain(["lock", "shared", "waiters", "together", "lock-all", "scan-self"])
        .chain([
            "restless",
            "move-in-handler",
            "move-refused",
            "advice-taken-back",
            "advice-in-handler",
        ])
        .filter(|&case| case != "peek" || may_look_up())
    {
        Launch::program("memory", &format!("{case} 16")).run().expect_line(&format!("{case}: ok"));
    }
}

/// Shows that the memory of a tree is counted once. The tree stands still while it is measured.
#[test]
fn the_memory_of_a_tree_is_counted_once() {
    let held = |arguments: &str| {
        let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
        let word = folder.path().join("word");
        let mut run = Launch::program("keeper", arguments).arg(&word).start();
        run.wait_for("keeper: ready");
        let bytes = run.root().find().anonymous();
        std::fs::write(&word, "").expect("the word");
        run.finish().expect_line("keeper: ready\nkeeper: ok");
        bytes / MIB
    };
    for (what, arguments, mib) in [
        ("one process", "own 32 0", 32..36),
        ("changed copies count", "own 16 3", 64..72),
        ("shared pages count once", "seen 32 12", 32..44),
        ("borrowed pages count once", "lent 32 1", 32..36),
    ] {
        let held = held(arguments);
        assert!(mib.contains(&held), "{what}: {held} MiB");
    }
}
