//! Runs eight threads that verify every word while the address space changes at random. The limits
//! are half and a quarter of the memory. One run is long, and shorter runs use other seeds.

use std::time::Duration;

use ebb_e2e::MIB;
use ebb_e2e::busy::Busy;
use ebb_e2e::group::Group;
use ebb_e2e::launch::{Launch, Running, send};
use ebb_e2e::same::need;
use ebb_testing::give_time;
use rustix::process::Signal;

/// Runs `torture` and checks that every word is right.
#[track_caller]
fn torture(seconds: u64, seed: u64, limit: u64) {
    let launch = Launch::program("torture", &format!("{seconds} {seed}"));
    launch.limit(limit).run().expect_line("torture: ok");
}

#[test]
fn eight_seconds_in_half_of_the_memory() {
    torture(8, 1, 48 * MIB);
}

#[test]
fn other_seeds_in_a_quarter_of_the_memory() {
    for seed in 2..=4 {
        torture(2, seed, 24 * MIB);
    }
}

/// Shows that agents which wait for a CPU, and so answer late, do not count as dead.
#[test]
fn agents_that_wait_for_a_cpu_do_not_count_as_dead() {
    let _busy = Busy::start(2);
    torture(2, 2, 24 * MIB);
}

/// Forks with much memory in many areas, and writes to the shared pages.
const FORKS: &str = "
import mmap, os
areas = [mmap.mmap(-1, 128 << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(500)]
for area in areas:
    for at in range(0, len(area), 4096):
        area[at] = 1
for turn in range(3):
    child = os.fork()
    if child == 0:
        os._exit(sum(area[0] for area in areas) != 500)
    for area in areas:
        area[0] = 1
    assert os.waitpid(child, 0)[1] == 0
print('well')
";

#[test]
fn a_child_has_all_of_many_areas() {
    let python = Launch::new(need("/usr/bin/python3")).args(["-c", FORKS]);
    python.limit(40 * MIB).run().expect_line("well");
}

/// Fills much more than the limit repeatedly, and frees it in one call.
const LARGE: &str = "
import mmap
for turn in range(4):
    area = mmap.mmap(-1, 96 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(area), 4096):
        assert area[at] == 0
        area[at] = 1
    area.close()
print('fine')
";

#[test]
fn much_memory_is_given_back_in_one_call() {
    let python = Launch::new(need("/usr/bin/python3")).args(["-c", LARGE]);
    python.limit(32 * MIB).run().expect_line("fine");
}

#[test]
fn with_plenty_nothing_changes() {
    torture(3, 6, 1024 * MIB);
}

/// Shows that a freeze longer than any time limit of Ebb ends nothing, in the middle of forks and
/// mapping changes.
#[test]
fn a_frozen_control_group_ends_nothing() {
    let group = Group::new("freezer", "freezer.state", "THAWED");
    let mut run = Launch::program("torture", "0 7").limit(48 * MIB).start();
    let holds = |run: &Running| run.root().find().anonymous() > 24 * MIB;
    run.wait_until("memory in use", holds);
    group.take_in(&run);
    group.set("freezer.state", "FROZEN");
    give_time(Duration::from_secs(11));
    group.set("freezer.state", "THAWED");
    give_time(Duration::from_millis(500));
    run.wait_until("memory in use", holds);
    let first = run.root().find().first().expect("it runs");
    send(first, Signal::TERM);
    run.finish().expect_line("torture: ok").expect_silence();
}
