//! Nothing more can be stored: the run goes on as long as it can, and ends with a word when it cannot.

use std::process::Command;
use std::time::{Duration, Instant};

use ebb_e2e::launch::{Launch, Outcome, send};
use ebb_e2e::{MIB, build};
use rustix::process::Signal;
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
    Launch::new("/usr/bin/python3").args(["-c", PAGES]).args(words)
}

/// As `pages`, with its number first.
const NUMBERED: &str = "
import mmap, os, sys
pages = int(sys.argv[1])
os.write(1, b'%d\\n' % os.getpid())
area = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for n in range(pages):
    area[n * 4096:(n + 1) * 4096] = os.urandom(4096)
";

/// From the last page that a program got to the message. Its own signs of life are no measure: beside load one that gets
/// each page of its few again and again gives none for a second.
fn time_in_vain(launch: &Launch) -> Duration {
    let mut run = launch.start();
    run.wait_for("\n");
    let pid = run.stdout().trim().parse().expect("its number");
    let (mut before, mut last) = (0, Instant::now());
    run.wait_until("the message", |run| {
        let ends = run.stderr().contains("out of memory");
        if let Some(now) = faults(pid).filter(|&now| !ends && now != before) {
            (before, last) = (now, Instant::now());
        }
        ends
    });
    let vain = last.elapsed();
    assert!(before > 0, "its faults were seen");
    expect_out_of_memory(&run.finish(), "the limit is 30.0 MiB");
    vain
}

/// The faults that a process has been through: the kernel counts each when its page is there.
fn faults(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    let count = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some(count(7)? + count(9)?)
}

/// A thread that waits for a page that cannot be had does so for three seconds at most.
#[test]
fn who_waits_in_vain_waits_for_three_seconds_at_most() {
    for swap in ["ram", "ram:4M", "file:/dev/shm:8M"] {
        let launch = Launch::new("/usr/bin/python3").args(["-c", NUMBERED, "12000"]);
        let options = format!("--swap {swap}");
        let vain = time_in_vain(&launch.limit(30 * MIB).options(&options));
        println!("{swap}: {vain:?} in vain");
        assert!(vain < Duration::from_secs(3), "{swap}: {vain:?}");
    }
}

/// More than can be had, in `vain.c`'s ways: it ends with the message, which says for how long somebody has waited.
/// A machine that has other things to do adds to that only while agents that have not answered get no CPU.
#[track_caller]
fn ends_in_time(case: &str, swap: &str) -> Outcome {
    let launch = Launch::program("vain", case).limit(16 * MIB);
    let outcome = launch.options(&format!("--report json --swap {swap}")).run();
    expect_out_of_memory(&outcome, "the limit is 16.0 MiB");
    let (_, told) = outcome.stderr.split_once("which has waited ").expect("for how long");
    let told: f64 = told.split(' ').next().and_then(|text| text.parse().ok()).expect("seconds");
    println!("{case} ({swap}): {told} s in vain of {:?}", outcome.wall);
    assert!(told <= 3.0, "{case} ({swap}): {told} s\n{}", outcome.stderr);
    outcome
}

/// It ends within three seconds of the first wait, and a second for what it does before: nobody in it ever gets a page
/// again once the first waits.
#[track_caller]
fn ends_at_once(case: &str, swap: &str) {
    let outcome = ends_in_time(case, swap);
    outcome.note_peak();
    let at_most = Duration::from_secs(4) * busy();
    assert!(outcome.wall < at_most, "{case} ({swap}): {:?} in all", outcome.wall);
}

/// How many threads want each CPU.
fn busy() -> u32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let wanting = text.split(' ').nth(3).and_then(|field| field.split('/').next()?.parse().ok());
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    wanting.unwrap_or(1u32).div_ceil(cpus).max(1)
}

/// Tiers with room for 1024 pages, or for less.
const TINY: [&str; 3] = ["ram:4M", "ram:1M", "file:/dev/shm:4M"];

#[test]
fn one_process_or_many_that_wait_in_vain_end_in_time() {
    for swap in TINY {
        for case in ["alone", "threads 8", "heap", "children 12"] {
            ends_at_once(case, swap);
        }
    }
}

/// What is locked cannot be stored, and its areas are filled by the kernel, which waits for each page.
#[test]
fn who_locks_more_than_there_may_be_ends_in_time() {
    ends_at_once("locked", "ram,file");
}

/// Children that had yet to join were waited for, and others were born meanwhile; and of what all of them shared each let
/// go, which counted as progress.
#[test]
fn births_all_the_time_do_not_put_off_the_end() {
    for case in ["births 64", "turnover 4"] {
        ends_in_time(case, "file:/dev/shm:4M");
    }
}

/// Agents of stopped processes were waited for ten seconds, and each of them a tenth of a second before that. What they
/// hold is lent to the others, who wait for the store and not for them.
#[test]
fn beside_stopped_processes_the_end_comes_in_time() {
    for swap in ["ram:4M", "file:/dev/shm:4M"] {
        for case in ["stopped-relative 12", "stopped-others 1", "stopped-others 20", "traced"] {
            ends_in_time(case, swap);
        }
    }
}

/// Nobody is killed for being stopped, however long: what it waited for when that came is no wait any more.
#[test]
fn a_hungry_program_that_is_stopped_is_not_killed_for_it() {
    for swap in ["file", "ram,file"] {
        let mut run = Launch::program("touch", "48 9").limit(16 * MIB);
        run = run.options(&format!("--report json --swap {swap}"));
        let run = run.start();
        std::thread::sleep(Duration::from_millis(700));
        for _ in 0..2 {
            let program = run.root().find().program;
            assert!(!program.is_empty(), "{swap}: {}", run.stderr());
            program.iter().for_each(|&pid| send(pid, Signal::STOP));
            std::thread::sleep(Duration::from_millis(3500));
            program.iter().for_each(|&pid| send(pid, Signal::CONT));
            std::thread::sleep(Duration::from_millis(300));
        }
        let outcome = run.finish();
        outcome.expect_line("touch: ok").note_peak();
        assert!(outcome.figure("pages_evicted") > 1000, "{}", outcome.stderr);
    }
}

/// The program of the demo, with compressed memory alone: it hung for ever.
#[test]
fn the_demo_without_a_file_ends_well_or_with_the_message() {
    let demo = std::fs::read_to_string(build::root().join("demo")).expect("demo");
    let (_, program) = demo.split_once("program='").expect("the program");
    let (program, _) = program.split_once("\n'\n").expect("its end");
    let launch = Launch::new("perl").args(["-e", program, "/dev/null"]);
    let plain = launch.run();
    let outcome = launch.limit(20693 << 10).options("--swap ram").run();
    outcome.note_peak();
    if outcome.code() == 0 {
        assert_eq!(outcome.text(), plain.text());
    } else {
        expect_out_of_memory(&outcome, "the limit is 20.2 MiB");
    }
}

/// It was killed with the message, and did not keep its user waiting.
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
    let begun = Instant::now();
    let outcome = pages(12_000, 1).limit(30 * MIB).options("--swap ram").run();
    expect_out_of_memory(&outcome, "do not compress");
    outcome.note_peak();
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
}

/// Half of the limit was all that compressed memory could have, however well it compressed.
#[test]
fn compressed_memory_grows_as_far_as_it_pays() {
    let outcome = pages(12_000, 4).limit(20 * MIB).options("--swap ram").run();
    outcome.expect_line("kept 12000").note_peak();
}

/// Of pages that all wait to leave, those that compress make way for the others.
#[test]
fn what_does_not_compress_stays_and_the_rest_leaves() {
    let outcome = pages(8_000, 0).limit(26 * MIB).options("--swap ram").run();
    outcome.expect_line("kept 8000").note_peak();
}

/// Behind compressed memory, too: there thousands of pages that neither took were tried again before each that could
/// leave, and the run crawled for a minute.
#[test]
fn a_full_disk_is_named_with_its_path() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let path = folder.path().display().to_string();
    let mounted =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=8M", "none", &path]).status();
    assert!(
        mounted.expect("mount runs").success(),
        "this test mounts a small disk: run it as root"
    );
    let run = |before: &str| {
        let swap = format!("--swap {before}file:{path}");
        pages(12_000, 1).limit(30 * MIB).options(&swap).run()
    };
    let outcomes = [run(""), run("ram,")];
    let unmounted = Command::new("umount").arg(&path).status();
    assert!(unmounted.expect("umount runs").success());
    for outcome in outcomes {
        expect_out_of_memory(&outcome, &format!("no space left on the file system of {path}"));
        outcome.note_peak();
    }
}
