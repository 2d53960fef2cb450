//! Tests pages that are not plain memory: guards, areas of other kinds, and pages that are locked,
//! freed lazily, moved, or mapped over others. Each works or is left alone, while most memory is
//! elsewhere.

use ebb_e2e::account::{alone, need_root};
use ebb_e2e::launch::{Launch, need_root_for};
use ebb_e2e::{MIB, SMALL, TINY};
use ebb_testing::{eventually, skip};
use std::fs;

/// Runs a case with 16 MiB of its own, in half of that.
#[track_caller]
fn case(arguments: &str) {
    case_in(TINY, arguments);
}

#[track_caller]
fn case_in(limit: u64, arguments: &str) {
    let mut words = arguments.split(' ');
    let name = words.next().unwrap_or_default();
    let how = words.next().unwrap_or_default();
    let size = limit + TINY;
    let launch = Launch::program("kinds", &format!("{name} {} {how}", size / MIB)).limit(limit);
    let outcome = launch.options("--report json").run();
    outcome.expect_line(&format!("{name}: ok"));
    // Pages without room have left at least once, except for those that the freezer allows.
    let no_room = (size - limit) / 4096;
    assert!(outcome.figure("pages_evicted") > no_room * 3 / 4, "little of it was ever out");
}

/// Skips the test before Linux 6.13, which has the first guards.
#[track_caller]
fn need_guards() {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel has a release");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    if (numbers.next(), numbers.next()) < (Some(6), Some(13)) {
        skip("this kernel has no guards");
    }
}

/// Shows that readahead puts no pages over guards. Otherwise one pass loses 49 of 64 guards.
#[test]
fn readahead_leaves_guard_regions_in_fresh_memory_alone() {
    need_guards();
    case("guards");
    case("guards instruction");
}

/// Shows that look-around and loads put no pages over guards where stored pages lie under them.
#[test]
fn guard_regions_over_stored_pages_hold_and_leave_zeros() {
    need_guards();
    case("guards-over-data");
    case("guards-over-data process");
}

/// Shows that guards hold that are installed by a raw system call. The agent does not see the call,
/// so the pager reads the page map.
#[test]
fn guard_regions_installed_by_a_raw_system_call_hold() {
    need_guards();
    case("guards-over-data instruction");
}

#[test]
fn areas_of_other_kinds() {
    case("areas-of-other-kinds");
}

/// Shows that memory is paged that is writable and executable at once, as heaps of SBCL and of
/// compilers at run time are. The kernel refused to move its pages, and the run was killed.
#[test]
fn memory_that_is_writable_and_executable_is_paged() {
    case("executable");
}

/// Number of attempts to get huge pages.
const TRIES: u32 = 20;
const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// Makes the kernel reserve huge pages for a while, if that is permitted. No other test does so
/// meanwhile.
struct HugePages {
    before: String,
    _alone: fs::File,
}

impl HugePages {
    fn reserve(count: u32) -> Option<Self> {
        let alone = alone()?;
        let before = fs::read_to_string(HUGE_PAGES).ok()?;
        let had: u32 = before.trim().parse().ok()?;
        let reserved = Self { before, _alone: alone };
        for _ in 0..TRIES {
            fs::write(HUGE_PAGES, (had + count).to_string()).ok()?;
            let has = fs::read_to_string(HUGE_PAGES).ok()?.trim().parse::<u32>().ok()?;
            if has >= had + count {
                return Some(reserved);
            }
            // No stretch of memory is free in one piece.
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
            let _ = fs::write("/proc/sys/vm/compact_memory", "1");
        }
        None
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(HUGE_PAGES, self.before.trim());
    }
}

/// Returns the MiB in huge pages that `huge` has at first, and in its last area.
fn huge_mib(limit: Option<u64>) -> [u64; 2] {
    let launch = Launch::program("huge", "");
    let outcome = limit.map_or(launch.clone(), |bytes| launch.limit(bytes)).run();
    let text = outcome.expect_code(0).text();
    let numbers = text.split_ascii_whitespace().filter_map(|word| word.parse().ok());
    let figures: Vec<u64> = numbers.collect();
    assert!(text.starts_with("huge: ok"), "{text}");
    figures.try_into().expect("two figures")
}

/// Shows that memory stays in huge pages until shortly before it is managed page by page. The
/// kernel splits existing huge pages only where pages leave.
#[test]
fn huge_pages_are_as_the_system_has_them_until_memory_is_short() {
    // The number of huge pages depends on the memory that is free in one piece at that moment.
    let plain = || {
        let [first, last] = huge_mib(None);
        if first < 64 {
            skip("the system makes no huge pages");
        }
        [first, last]
    };
    eventually("as many as without Ebb", || {
        let [plain_first, plain_last] = plain();
        let [first, last] = huge_mib(Some(1024 * MIB));
        // All of the program fits, and the kernel merges neighbouring areas into one.
        first >= plain_first && last >= plain_last.min(32)
    });
    eventually("as many as without Ebb, in less memory", || {
        let [plain_first, _] = plain();
        let [first, last] = huge_mib(Some(256 * MIB));
        assert_eq!(last, 0, "memory is short");
        first >= plain_first
    });
}

/// Shows that huge pages do not outrun the limit. Until it is managed, memory comes by 2 MiB at a
/// time, at 20 GiB a second.
#[test]
fn huge_pages_do_not_outrun_the_limit() {
    for limit in [16, 160].map(|mib| mib * MIB) {
        let launch = Launch::program("hog", "256 4").limit(limit).env("HUGE_PAGES", "1");
        launch.run().expect_line("hog: ok");
    }
}

#[test]
fn huge_pages_that_are_taken_apart_keep_every_word() {
    let launch = Launch::program("torture", "4 1 192").limit(96 * MIB);
    launch.env("HUGE_PAGES", "1").run().expect_line("torture: ok");
}

/// Shows that hugetlb areas are not registered. If they are, the first fault waits for ever.
#[test]
fn huge_pages_are_left_alone() {
    // Only root can reserve huge pages.
    need_root();
    let Some(_reserved) = HugePages::reserve(4) else { skip("no room for four huge pages") };
    case("huge");
}

#[test]
fn mappings_of_other_kinds_replace_stored_memory() {
    case_in(SMALL, "put-over");
}

#[test]
fn memory_freed_lazily_around_the_c_library() {
    case("lazily-freed process");
    case("lazily-freed instruction");
}

#[test]
fn advice_of_every_kind() {
    case("advice");
}

#[test]
fn memory_is_populated_before_its_first_access() {
    case("filled-ahead");
}

#[test]
fn memory_that_is_read_only_or_closed_for_a_while() {
    case_in(SMALL, "read-only");
}

/// Shows that a private mapping of /dev/zero does not end the run. The kernel fills no page of it
/// through a userfaultfd.
#[test]
fn private_memory_of_the_zero_device() {
    case("zero-device");
}

/// Shows that a code area without accesses takes no memory. Code cannot leave once it is present,
/// so filling it on creation ends the run.
#[test]
fn code_without_accesses_takes_no_memory() {
    case("code");
}

#[test]
fn some_pages_are_locked_at_once_and_some_on_fault() {
    case("locked");
}

#[test]
fn areas_moved_onto_others_and_left_behind() {
    case("moved");
}

#[test]
fn references_cleared_and_memory_bound_to_a_node() {
    case("marked");
}

#[test]
fn a_signal_arrives_on_a_stack_whose_pages_are_stored() {
    case("signal-stack");
}

#[test]
fn a_userfaultfd_of_the_program_is_refused_at_worst() {
    need_root_for("its userfaultfd reports the kernel's faults, too, which root's may");
    case("own-userfaultfd");
}
