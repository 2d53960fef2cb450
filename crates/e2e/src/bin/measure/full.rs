//! Measures how long threads wait for memory that no store can take, until the run is out of
//! memory.

use std::time::Instant;

use ebb_e2e::MIB;
use ebb_e2e::launch::Launch;

use crate::figure;
use crate::watch::timed;

/// Prints its PID, then fills pages with random bytes without end.
const PAGES: &str = "
import mmap, os
os.write(1, b'%d\\n' % os.getpid())
area = mmap.mmap(-1, 12000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for n in range(12000):
    area[n * 4096:(n + 1) * 4096] = os.urandom(4096)
";

/// Measures the time from the program's last completed fault to the message. The program's output
/// would be too coarse. On a busy host the program may print nothing for a second although its
/// faults complete.
pub fn in_vain() {
    for swap in ["ram", "ram:4M", "file:/dev/shm:8M"] {
        let launch = Launch::new("/usr/bin/python3").args(["-c", PAGES]).limit(30 * MIB);
        let mut run = launch.options(&format!("--swap {swap}")).start();
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
        let vain_s = last.elapsed().as_secs_f64();
        run.finish();
        figure(&format!("time in vain ({swap})"), vain_s, "s", "3 s");
    }
}

/// Returns the number of completed faults of a process. The kernel counts a fault when its page is
/// there.
fn faults(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    let count = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some(count(7)? + count(9)?)
}

/// Measures the wait that the message states, and the whole run. The programs' threads get no page
/// after the first thread waits. The four seconds include the time before the first wait.
pub fn ends_at_once() {
    for swap in ["ram:4M", "ram:1M", "file:/dev/shm:4M"] {
        for case in ["alone", "threads 8", "heap", "children 12"] {
            told(case, swap, true);
        }
    }
    told("locked", "ram,file", true);
}

/// Measures the wait that the message states, for programs that fork all the time or are stopped.
pub fn ends_in_time() {
    for case in ["births 64", "turnover 4"] {
        told(case, "file:/dev/shm:4M", false);
    }
    for swap in ["ram:4M", "file:/dev/shm:4M"] {
        for case in ["stopped-relative 12", "stopped-others 1", "stopped-others 20", "traced"] {
            told(case, swap, false);
        }
    }
}

fn told(case: &str, swap: &str, whole: bool) {
    let launch = Launch::program("vain", case).limit(16 * MIB);
    let (wall_s, outcome) = timed(&launch.options(&format!("--swap {swap}")));
    let (_, told) = outcome.stderr.split_once("which has waited ").unwrap_or_default();
    let told = told.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN);
    figure(&format!("time in vain, as told: {case} ({swap})"), told, "s", "3 s");
    if whole {
        figure(&format!("the whole run: {case} ({swap})"), wall_s, "s", "4 s");
    }
}

/// Measures the end with pages that do not compress. Such pages go to standby and come back
/// repeatedly, and that must not count as progress.
pub fn only_standby() {
    const FILLS: &str = "
import mmap, os
area = mmap.mmap(-1, 12000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
while True:
    for n in range(12000):
        area[n * 4096:(n + 1) * 4096] = os.urandom(4096)
";
    let launch = Launch::new("/usr/bin/python3").args(["-c", FILLS]).limit(30 * MIB);
    let (wall_s, _) = timed(&launch.options("--swap ram"));
    figure("a run of pages that only go to standby", wall_s, "s", "20 s");
}
