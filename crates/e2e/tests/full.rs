//! Nothing more can be stored: the run goes on as long as it can, and ends with a word when it cannot.

use std::process::Command;
use std::time::Duration;

use crate::exec::need_paging;
use ebb_e2e::launch::{Launch, Outcome, Running, send};
use ebb_e2e::same::need;
use ebb_e2e::{MIB, build};
use ebb_testing::{eventually, give_time, skip};
use rustix::process::{Signal, getuid};
use tempfile::TempDir;

/// Pages in one area of its own, each of random bytes said `same` times over: 1 does not compress, 4 compresses
/// four to one; 0 has every fourth page not compress. Touches all of them twice, and checks them.
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

/// More than can be had, in `vain.c`'s ways: it ends with the message, which says for how long
/// somebody has waited. That time is measured: `./test measure full`.
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
fn one_process_or_many_that_wait_in_vain_end_with_the_message() {
    for swap in TINY {
        for case in ["alone", "threads 8", "heap", "children 12"] {
            ends_with_the_message(case, swap);
        }
    }
    ends_with_the_message("alone", "ram:1M");
}

/// The message was written before anybody was killed, by the thread that kills: for ever, into a pipe that nobody read.
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

/// What is locked cannot be stored, and its areas are filled by the kernel, which waits for each page.
#[test]
fn who_locks_more_than_there_may_be_ends_with_the_message() {
    if !getuid().is_root() {
        skip("it locks 16 MiB, which root may");
    }
    ends_with_the_message("locked", "ram,file");
}

/// Children that had yet to join were waited for, and others were born meanwhile; and of what all of them shared each let
/// go, which counted as progress.
#[test]
fn births_all_the_time_do_not_put_off_the_end() {
    for case in ["births 64", "turnover 2"] {
        ends_with_the_message(case, "ram:4M");
    }
}

/// Agents of stopped processes were waited for ten seconds, and each of them a tenth of a second before that. What they
/// hold is lent to the others, who wait for the store and not for them.
#[test]
fn beside_stopped_processes_the_end_comes() {
    for case in ["stopped-relative 12", "stopped-others 1", "stopped-others 20", "traced"] {
        ends_with_the_message(case, "ram:4M");
    }
    ends_with_the_message("stopped-others 1", "file:/dev/shm:4M");
}

/// Nobody is killed for being stopped, however long: what it waited for when that came is no wait any more.
#[test]
fn a_hungry_program_that_is_stopped_is_not_killed_for_it() {
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
        // Longer than a wait in vain may last.
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

/// The program of the demo with fewer rows, in a quarter, with compressed memory alone: it hung for ever.
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

/// It was killed with the message.
fn expect_out_of_memory(outcome: &Outcome, why: &str) {
    outcome.expect_code(128 + 9);
    assert!(
        outcome.stderr.contains("out of memory") && outcome.stderr.contains(why),
        "{}",
        outcome.stderr
    );
}

/// Pages went out of sight and came back again and again, which counted as progress: the run never ended.
#[test]
fn what_only_cools_is_no_progress() {
    let outcome = pages(12_000, 1).limit(30 * MIB).options("--swap ram").run();
    expect_out_of_memory(&outcome, "do not compress");
}

/// Half of the limit was all that compressed memory could have, however well it compressed.
#[test]
fn compressed_memory_grows_as_far_as_it_pays() {
    let outcome = pages(12_000, 4).limit(20 * MIB).options("--swap ram").run();
    outcome.expect_line("kept 12000");
}

/// Of pages that all wait to leave, those that compress make way for the others.
#[test]
fn what_does_not_compress_stays_and_the_rest_leaves() {
    let outcome = pages(8_000, 0).limit(26 * MIB).options("--swap ram").run();
    outcome.expect_line("kept 8000");
}

/// Behind compressed memory, too: there thousands of pages that neither took were tried again before each that could
/// leave, and the run crawled for a minute.
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

/// A file system of 8 MiB, as long as this lives.
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
        // The pager, which has a file there, may end later than the front.
        eventually("nobody uses it", || {
            Command::new("umount").arg(self.0.path()).status().expect("umount runs").success()
        });
    }
}
