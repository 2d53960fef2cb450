//! stress-ng with verification, at half of the memory that each stressor takes.

use ebb_e2e::account::need_locked;
use ebb_e2e::launch::Launch;
use ebb_e2e::same::need;
use ebb_e2e::{MIB, build};

/// What takes much, beside stressors that take little: their memory is pushed out, too.
const PRESSING: &str = "--vm 1 --vm-bytes 48M --vm-method incdec --vm-ops 8";

/// As `stress`, beside something that presses.
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

/// Runs one stressor; what it checks itself must hold.
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

/// Pages of zeros that were populated are written to at the speed of the kernel, before the area is
/// Ebb's and while it becomes so. One of twenty such runs held 45 MiB of 32, until the program was
/// held slice by slice: `./test measure` has how much they hold.
#[test]
fn an_area_that_fills_while_it_is_taken_on() {
    stress(32 * MIB, "--vm 1 --vm-bytes 64M --vm-method walk-0a --vm-ops 4");
}

/// It draws the kinds by lot. Of these seeds none draws locked memory. Some mappings cannot be written to, and such pages stay.
#[test]
fn mappings_of_every_kind() {
    for (limit, seed) in [(24, 5), (16, 9)] {
        stress(limit * MIB, &format!("--mmap 1 --mmap-bytes 16M --mmap-ops 1 --seed {seed}"));
    }
}

/// This seed draws locked memory, as much as the limit: the run is over, and it says of what it is
/// full. `./test measure` has how much of it is told: where the brake holds the program before its
/// area is announced, as on a busy machine, a locked one is not taken on, and is the rest that the
/// message speaks of.
#[test]
fn locked_memory_beyond_the_limit_is_told() {
    need_locked(64 * MIB);
    let words = "--mmap 1 --mmap-bytes 32M --mmap-ops 2 --verify --seed 1";
    let launch = Launch::new(need("/usr/bin/stress-ng")).args(words.split_whitespace());
    let outcome = launch.limit(32 * MIB).run();
    outcome.expect_code(137);
    let told = outcome.stderr.split_once(" MiB are in areas that are locked or not writable");
    let mib = told.and_then(|(before, _)| before.rsplit_once('(')?.1.parse::<f64>().ok());
    assert!(mib.is_some_and(|mib| mib < 33.0), "{}", outcome.stderr);
}

/// It takes half of the machine's free memory, and can be told nothing else: here it is told of a machine that has little.
/// What it shares counts and cannot be stored; what presses beside it leaves.
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

/// The same on the machine as it is: shared memory beyond the limit ends the run and is named.
/// Thirty-two processes fill it at once: they held 1.9 to 7.4 GiB, and went through now and then,
/// before what each alone maps was counted while they do and the kernel filled it in slices. What
/// they fill until they are counted is theirs still: `./test measure` has how much.
#[test]
fn mappings_of_forks_of_half_of_the_machine() {
    let words = ["--mmapfork", "1", "--mmapfork-ops", "1", "--verify"];
    let launch = Launch::new(need("/usr/bin/stress-ng")).args(words).limit(128 * MIB);
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
