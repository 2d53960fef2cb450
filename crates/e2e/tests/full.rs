//! Tests full stores: the run goes on as long as it can, and then ends with a message.

use std::process::Command;
use std::time::Duration;

use ebb_e2e::launch::{Launch, Outcome, Running, need_paging, send};
use ebb_e2e::same::need;
use ebb_e2e::{MIB, build};
use ebb_testing::{eventually, give_time, skip};
use rustix::process::{Signal, getuid};
use tempfile::TempDir;

/// Fills pages in one area, each with random bytes repeated `same` times. A 1 does not compress,
/// and a 4 compresses four to one. With 0 every fourth page does not compress. Reads all pages
/// twice and checks them.
const PAGES: &str = "
import mmap, os, sys
pages, same = (int(word) for word in sys.argv[1:])
area = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
times = [(1 if n % 4 == 0 else 8) if same == 0 else same for n in range(pages)]
sums = []
for n in range(pages):
    page = os.urandom(4096 // times[n]) * times[n]
    area[n * 4096:(n + 1) * 4096] = page
    sums.append(hash(page))
for _ in range(2):
    assert [hash(area[n * 4096:(n + 1) * 4096]) for n in range(pages)] == sums
print('kept', pages)
";

fn pages(count: u32, same: u32) -> Launch {
    let words = [count, same].map(|word| word.to_string());
    Launch::new(need("/usr/bin/python3")).args(["-c", PAGES]).args(words)
}

/// Runs a case of `vain.c`, which takes more memory than there is. Checks that the run ends with
/// the message, which names the longest wait. `./test measure full` measures that wait.
#[track_caller]
fn ends_with_the_message(case: &str, swap: &str) -> Outcome {
    let launch = Launch::program("vain", case).limit(16 * MIB);
    let outcome = launch.options(&format!("--report json --swap {swap}")).run();
    expect_out_of_memory(&outcome, "the limit is 16.0 MiB");
    let (_, told) = outcome.stderr.split_once("which has waited ").expect("for how long");
    let told = told.split(' ').next().and_then(|text| text.parse::<f64>().ok());
    assert!(told.is_some(), "{case} ({swap}): {}", outcome.stderr);
    outcome
}

/// Tiers with room for 1024 pages.
const TINY: [&str; 2] = ["ram:4M", "file:/dev/shm:4M"];

#[test]
fn one_process_or_many_without_progress_end_with_the_message() {
    for swap in TINY {
        for case in ["alone", "threads 8", "heap", "children 12"] {
            ends_with_the_message(case, swap);
        }
    }
    ends_with_the_message("alone", "ram:1M");
}

/// Shows that a standard error that no process reads does not delay the end. The thread that kills
/// must not block on the message.
#[test]
fn a_standard_error_that_nobody_reads_does_not_put_off_the_end() {
    need_paging();
    let script = r#"
import os, subprocess, sys
reads, writes = os.pipe()
os.set_blocking(writes, False)
try:
    while True:
        os.write(writes, bytes(4096))
except BlockingIOError:
    os.set_blocking(writes, True)
fills = "import os; kept = [os.urandom(1 << 20) for _ in range(64)]"
options = ["run", "--quiet", "--memory-max", "16M", "--swap", "ram:4M"]
command = [sys.argv[1], *options, "--", sys.executable, "-c", fills]
print(subprocess.run(command, stderr=writes).returncode)
"#;
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", script]);
    launch.arg(build::ebb()).run().expect_line("137");
}

/// Shows that a program that locks too much memory ends with the message. Locked pages cannot be
/// stored, and the kernel fills their areas and waits for each page.
#[test]
fn a_program_that_locks_more_than_the_limit_ends_with_the_message() {
    if !getuid().is_root() {
        skip("it locks 16 MiB, which root may");
    }
    ends_with_the_message("locked", "ram,file");
}

/// Shows that constant forks do not delay the end. The pager must not wait for children that have
/// yet to join, and dropping shared pages must not count as progress.
#[test]
fn constant_forks_do_not_put_off_the_end() {
    for case in ["births 64", "turnover 2"] {
        ends_with_the_message(case, "ram:4M");
    }
}

/// Shows that stopped processes do not delay the end by waits for their agents, of a tenth of a
/// second or of ten seconds. Their memory is overcommitted to the other processes, which wait for
/// the store and not for them.
#[test]
fn stopped_processes_do_not_put_off_the_end() {
    for case in ["stopped-relative 12", "stopped-others 1", "stopped-others 20", "traced"] {
        ends_with_the_message(case, "ram:4M");
    }
    ends_with_the_message("stopped-others 1", "file:/dev/shm:4M");
}

/// Shows that a stopped process is never killed for being stopped. A wait that was under way at the
/// stop no longer counts.
#[test]
fn a_memory_stalled_program_is_not_killed_for_being_stopped() {
    let mut runs = ["file", "ram,file"].map(|swap| {
        let launch = Launch::program("verify", "48 0").limit(16 * MIB);
        launch.options(&format!("--report json --swap {swap}")).start()
    });
    for run in &mut runs {
        run.wait_until("its hunger", |run| run.root().descendants().anonymous() > 12 * MIB);
    }
    give_time(Duration::from_millis(700));
    let signal_all = |signal| {
        for run in &runs {
            let program = run.root().find().program;
            assert!(!program.is_empty(), "{}", run.stderr());
            program.iter().for_each(|&pid| send(pid, signal));
        }
    };
    for _ in 0..2 {
        signal_all(Signal::STOP);
        // The stop lasts longer than a wait without progress may last.
        give_time(Duration::from_millis(3500));
        signal_all(Signal::CONT);
        give_time(Duration::from_millis(300));
    }
    signal_all(Signal::TERM);
    for outcome in runs.map(Running::finish) {
        outcome.expect_code(0);
        assert!(outcome.text().starts_with("verify: ok"), "{}", outcome.text());
        assert!(outcome.figure("pages_evicted") > 1000, "{}", outcome.stderr);
    }
}

/// Shows that the demo's program with fewer rows ends, with a quarter of its memory and compressed
/// memory alone. It must not hang.
#[test]
fn the_demo_without_a_file_ends_well_or_with_the_message() {
    let demo = std::fs::read_to_string(build::root().join("demo")).expect("demo");
    let (_, program) = demo.split_once("program='").expect("the program");
    let (program, _) = program.split_once("\n'\n").expect("its end");
    assert!(program.contains("100_000"));
    let program = program.replace("100_000", "30_000");
    let launch = Launch::new(need("/usr/bin/perl")).args(["-e", &program, "/dev/null"]);
    let plain = launch.run();
    let outcome = launch.limit(7 * MIB).options("--swap ram").run();
    if outcome.code() == 0 {
        assert_eq!(outcome.text(), plain.text());
    } else {
        expect_out_of_memory(&outcome, "the limit is 7.0 MiB");
    }
}

/// Checks that the run was killed with the message.
fn expect_out_of_memory(outcome: &Outcome, why: &str) {
    outcome.expect_code(128 + 9);
    assert!(
        outcome.stderr.contains("out of memory") && outcome.stderr.contains(why),
        "{}",
        outcome.stderr
    );
}

/// Shows that moving pages to standby and back does not count as progress. Otherwise the run never
/// ends.
#[test]
fn moves_to_standby_and_back_are_no_progress() {
    let outcome = pages(12_000, 1).limit(30 * MIB).options("--swap ram").run();
    expect_out_of_memory(&outcome, "do not compress");
}

/// Shows that compressed memory may take more than half of the limit if it compresses well.
#[test]
fn compressed_memory_grows_as_far_as_it_pays() {
    let outcome = pages(12_000, 4).limit(20 * MIB).options("--swap ram").run();
    outcome.expect_line("kept 12000");
}

/// Shows that compressible pages leave first when incompressible pages wait to leave, too.
#[test]
fn compressible_pages_leave_before_incompressible_ones() {
    let outcome = pages(8_000, 0).limit(26 * MIB).options("--swap ram").run();
    outcome.expect_line("kept 8000");
}

/// Shows that a full disk is named with its path, also behind compressed memory. Pages that neither
/// tier takes must not be retried before each page that can leave, because thousands of them delay
/// the run by a minute.
#[test]
fn a_full_disk_is_named_with_its_path() {
    if !getuid().is_root() {
        skip("it mounts a small disk, which root may");
    }
    let disk = SmallDisk::new();
    let path = disk.0.path().display().to_string();
    let run = |before: &str| {
        let swap = format!("--swap {before}file:{path}");
        pages(12_000, 1).limit(30 * MIB).options(&swap).run()
    };
    let outcomes = [run(""), run("ram,")];
    for outcome in outcomes {
        expect_out_of_memory(&outcome, &format!("no space left on the file system of {path}"));
    }
}

/// A file system of 8 MiB, mounted as long as this value lives.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn new() -> Self {
        let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=8M", "none"]).arg(folder.path());
        assert!(mount.status().expect("mount runs").success(), "a small disk cannot be mounted");
        Self(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // The pager has a file there and may end later than the supervisor.
        eventually("nobody uses it", || {
            Command::new("umount").arg(self.0.path()).status().expect("umount runs").success()
        });
    }
}
