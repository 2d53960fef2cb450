//! Runs stress-ng with verification, at half of the memory that each stressor takes.

use ebb_e2e::account::need_locked;
use ebb_e2e::launch::Launch;
use ebb_e2e::same::need;
use ebb_e2e::{MIB, build};
use ebb_testing::skip;

/// A stressor with much memory. Beside it the memory of small stressors is pushed out, too.
const PRESSING: &str = "--vm 1 --vm-bytes 48M --vm-method incdec --vm-ops 8";

/// Runs a stressor beside one with much memory.
fn stress_pressed(limit: u64, arguments: &str) {
    let words = format!("{arguments} {PRESSING} --verify");
    let launch =
        Launch::new(need("/usr/bin/stress-ng")).args(words.split_whitespace()).limit(limit);
    let outcome = launch.options("--report json").run();
    outcome.expect_code(0);
    let failed = outcome.text().contains("fail:") || outcome.stderr.contains("fail:");
    assert!(!failed, "{}", outcome.stderr);
    assert!(outcome.figure("pages_evicted") > 1000, "{}", outcome.stderr);
}

/// Runs one stressor and checks its own verification.
fn stress(limit: u64, arguments: &str) {
    let launch =
        Launch::new(need("/usr/bin/stress-ng")).args(arguments.split_whitespace()).arg("--verify");
    let outcome = launch.limit(limit).run();
    outcome.expect_code(0);
    assert!(
        !outcome.text().contains("fail:") && !outcome.stderr.contains("fail:"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn every_method_of_virtual_memory() {
    stress(32 * MIB, "--vm 1 --vm-bytes 64M --vm-method all --vm-ops 45");
}

/// Shows that the pages of an area that fills while they are adopted have the right content. The
/// kernel writes populated pages of zeros at its own speed, before and while the area comes under
/// management. `./test measure` measures the peak of such a run.
#[test]
fn an_area_that_fills_while_its_pages_are_adopted() {
    stress(32 * MIB, "--vm 1 --vm-bytes 64M --vm-method walk-0a --vm-ops 4");
}

/// Runs mappings of random kinds. These seeds choose no locked memory. Some mappings are not
/// writable, and their pages stay.
#[test]
fn mappings_of_every_kind() {
    for (limit, seed) in [(24, 5), (16, 9)] {
        stress(limit * MIB, &format!("--mmap 1 --mmap-bytes 16M --mmap-ops 1 --seed {seed}"));
    }
}

/// Shows that locked memory beyond the limit ends the run and is named. This seed locks as much as
/// the limit. `./test measure` measures the reported part. On a busy machine the freezer may hold
/// the program before it announces its area. A locked area is then not managed, and is the
/// remainder in the message.
#[test]
fn locked_memory_beyond_the_limit_ends_the_run_and_is_named() {
    if ebb_sys::cgroup::may_be_used_up() {
        skip("a control group limits CPU time: who runs is not held");
    }
    need_locked(64 * MIB);
    let words = "--mmap 1 --mmap-bytes 32M --mmap-ops 2 --verify --seed 1";
    let launch = Launch::new(need("/usr/bin/stress-ng")).args(words.split_whitespace());
    let outcome = launch.limit(32 * MIB).run();
    outcome.expect_code(137);
    let told = outcome.stderr.split_once(" MiB are in areas that are locked or not writable");
    let mib = told.and_then(|(before, _)| before.rsplit_once('(')?.1.parse::<f64>().ok());
    assert!(mib.is_some_and(|mib| mib < 33.0), "{}", outcome.stderr);
}

/// Runs forked processes with shared mappings. The stressor takes half of the free memory, so it
/// gets a faked machine with little memory. Its shared memory counts and cannot be stored, and the
/// memory of the stressor beside it leaves.
#[test]
fn mappings_of_forks() {
    let words = format!("--mmapfork 1 --mmapfork-ops 4 {PRESSING} --verify");
    let launch =
        Launch::new(need("/usr/bin/stress-ng")).args(words.split_whitespace()).limit(48 * MIB);
    let (_folder, library) = build::library_to_preload("little");
    let launch = launch.env("LD_PRELOAD", library);
    let launch = launch.env("LITTLE_BYTES", (64 * MIB).to_string()).options("--report json");
    let outcome = launch.run();
    outcome.expect_code(0);
    let failed = outcome.text().contains("fail:") || outcome.stderr.contains("fail:");
    assert!(!failed, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("mmapfork"), "{}", outcome.stderr);
    assert!(outcome.figure("pages_evicted") > 1000, "{}", outcome.report);
}

/// Eight processes fill 64 MiB each, and none ends by itself.
const FILLERS: &str = "
import mmap, os, signal
flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, 'MAP_POPULATE', 0x8000)
for child in range(8):
    if os.fork() == 0:
        memory = mmap.mmap(-1, 64 << 20, flags=flags)
        signal.pause()
os.wait()
";

/// Shows that shared memory beyond the limit ends the run and is named. The kernel fills such a
/// mapping in one call: Ebb's hook makes slices of it, and the pages count while they come. The
/// run ends on any host, because the memory stays. `./test measure` measures how much more than
/// the limit is filled.
#[test]
fn processes_that_fill_shared_memory_together_end_the_run() {
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", FILLERS]).limit(128 * MIB);
    let outcome = launch.run();
    outcome.expect_code(137);
    assert!(outcome.stderr.contains("with shared memory"), "{}", outcome.stderr);
}

#[test]
fn allocations_and_frees() {
    stress(32 * MIB, "--malloc 1 --malloc-bytes 64M --malloc-ops 1000");
}

#[test]
fn forks_and_clones() {
    stress_pressed(24 * MIB, "--fork 1 --fork-ops 30");
    stress_pressed(24 * MIB, "--clone 1 --clone-ops 30");
    stress_pressed(24 * MIB, "--vfork 1 --vfork-ops 30");
}

#[test]
fn mappings_that_move() {
    stress(24 * MIB, "--mremap 1 --mremap-bytes 48M --mremap-ops 1");
}

#[test]
fn advice_of_every_kind() {
    stress_pressed(24 * MIB, "--madvise 1 --madvise-ops 6");
}

#[test]
fn memory_read_and_written_by_another_process() {
    stress(32 * MIB, "--vm-rw 1 --vm-rw-bytes 32M --vm-rw-ops 2");
}
