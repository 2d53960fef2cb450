//! Tests that a run which spends most of its time waiting for pages reports it once, and other runs
//! never do.

use ebb_e2e::MIB;
use ebb_e2e::launch::Launch;
use tempfile::TempDir;

/// Both programs run until the first has reported thrashing. `./test measure` measures the size
/// named as enough.
#[test]
fn thrashing_is_reported_once_and_only_for_the_run_that_thrashes() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("a folder");
    let end = folder.path().join("end");
    let touch = |mib: u64, limit: u64, options: &str| {
        let arguments = format!("{mib} 1000000");
        let launch = Launch::program("touch", &arguments).arg(&end);
        launch.limit(limit * MIB).options(options).start()
    };
    let mut does_not = touch(1, 64, "--set eager=1");
    does_not.wait_until("its memory", |run| run.root().descendants().anonymous() >= MIB);
    let mut thrashes = touch(96, 16, "--swap file --report json --inject slow-read=1ms@n1");
    thrashes.wait_until("a word of it", |run| run.stderr().contains("ebb: thrashing: "));
    std::fs::write(&end, "").expect("a file");
    let (thrashes, does_not) = (thrashes.finish(), does_not.finish());
    let said =
        |text: &str| text.lines().filter(|line| line.starts_with("ebb: thrashing: ")).count();
    assert_eq!(thrashes.expect_line("touch: ok").stderr.matches("ebb: thrashing: ").count(), 1);
    assert_eq!(said(&thrashes.stderr), 1, "{}", thrashes.stderr);
    // On a slow host the first window may end while the memory is filled.
    let read = [" from the file in /", "(none was read)"];
    assert!(read.iter().any(|words| thrashes.stderr.contains(words)), "{}", thrashes.stderr);
    let enough = thrashes.figure("enough_bytes");
    assert!((16 * MIB..128 * MIB).contains(&enough), "{enough} would be enough");
    assert_eq!(said(&does_not.expect_line("touch: ok").stderr), 0, "{}", does_not.stderr);
    assert!(!does_not.report.contains("thrashing"), "{}", does_not.report);
}
