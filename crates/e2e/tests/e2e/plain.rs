//! The test programs themselves, run plainly: they pass on an ordinary kernel, and they notice a
//! wrong word. What they say about Ebb is worth as much as this.

use ebb_e2e::launch::Launch;

#[test]
fn torture_passes_without_ebb() {
    for seed in 1..=4 {
        Launch::program("torture", &format!("2 {seed}")).run().expect_line("torture: ok");
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
        .chain(["lock", "shared", "sleepers", "together", "lock-all", "scan-self"])
        .chain(["restless", "move-in-handler", "advice-taken-back", "advice-in-handler"])
    {
        Launch::program("memory", &format!("{case} 16")).run().expect_line(&format!("{case}: ok"));
    }
}

#[test]
fn the_sampler_sees_what_a_tree_holds() {
    let alone = peak_mib("timer 64", 60);
    assert!((60..80).contains(&alone), "one process: {alone} MiB");
    // Three levels of children, each with a copy of its own of all 48 MiB.
    let tree = peak_mib("deep 48 3", 90);
    assert!((90..210).contains(&tree), "changed copies count: {tree} MiB");
    // Twelve children that change one page each share the rest.
    let shared = peak_mib("many 64 12", 60);
    assert!((60..75).contains(&shared), "shared pages count once: {shared} MiB");
    let borrowed = peak_mib("borrow 64", 60);
    assert!((60..75).contains(&borrowed), "borrowed pages count once: {borrowed} MiB");
}

/// The peak of a case. On a busy machine the sampler may sleep through it: ten tries to see `least`, else the most seen.
fn peak_mib(case: &str, least: u64) -> u64 {
    let mut most = 0;
    for _ in 0..10 {
        let seen = Launch::program("process", case).run().peak.bytes >> 20;
        if seen >= least {
            return seen;
        }
        most = most.max(seen);
    }
    most
}

#[test]
#[should_panic(expected = "hangs")]
fn a_hang_is_a_failure() {
    Launch::new("sleep").arg("1000").run();
}
