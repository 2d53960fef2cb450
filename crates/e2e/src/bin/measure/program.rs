//! Measures the effects of a run on a program: holds of address-space locks, resident memory,
//! written pages, waiting calls.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use ebb_e2e::launch::{Launch, Outcome};
use ebb_e2e::{MIB, SMALL};

use super::figure;

const PYTHON: &str = "/usr/bin/python3";

fn run(launch: Launch, limit: u64) -> Outcome {
    launch.limit(limit).options("--report json").run()
}

fn mib(outcome: &Outcome) -> f64 {
    outcome.figure("peak_resident_bytes") as f64 / MIB as f64
}

/// Forks with much memory in many areas, and writes to the shared pages.
const FORKS: &str = "
import mmap, os
areas = [mmap.mmap(-1, 256 << 10, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(600)]
for area in areas:
    for at in range(0, len(area), 4096):
        area[at] = 1
for turn in range(4):
    child = os.fork()
    if child == 0:
        os._exit(sum(area[0] for area in areas) != 600)
    for area in areas:
        area[0] = 1
    assert os.waitpid(child, 0)[1] == 0
print('well')
";

/// Fills much more than the limit repeatedly, and frees it in one call.
const LARGE: &str = "
import mmap
for turn in range(6):
    area = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(area), 4096):
        area[at] = 1
    area.close()
print('fine')
";

/// Measures two longest times of an address-space lock. One is the running time of a thread inside
/// a hold, which is the work of the hold. The other is the duration of the hold, for which a fault
/// may have to wait. Their difference is time in which the holder is off the CPU.
pub fn holds() {
    let python = |program: &str| Launch::new(PYTHON).args(["-c", program]);
    for (what, launch, limit) in [
        ("torture", Launch::program("torture", "6 7"), 24 * MIB),
        ("large areas", python(LARGE), 64 * MIB),
        ("forks", python(FORKS), 80 * MIB),
    ] {
        let outcome = run(launch, limit);
        outcome.expect_code(0);
        let us = |name| outcome.figure(name) as f64;
        figure(&format!("{what}: work of a hold"), us("longest_hold_cpu_us"), "us", "5000");
        figure(&format!("{what}: longest hold"), us("longest_hold_us"), "us", "100000");
    }
}

const CHILDREN: &str = "
import os
memory = bytearray(28 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = 1
for _ in range(100):
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print('forked')
";

/// Measures the peak of resident memory by the report.
pub fn resident() {
    let mut peaks: Vec<f64> = (0..20)
        .map(|_| {
            let outcome = run(Launch::program("memory", "unheard 8 64 64"), SMALL);
            mib(outcome.expect_line("unheard: ok"))
        })
        .collect();
    peaks.sort_unstable_by(f64::total_cmp);
    figure("areas that nobody announces, three quarters of runs", peaks[15], "MiB", "24");
    // A shared page counts once, also before the pager reads the fork message and just after the
    // last child ends.
    let outcome = run(Launch::new(PYTHON).args(["-c", CHILDREN]), 48 * MIB);
    figure("children that share everything", mib(outcome.expect_line("forked")), "MiB", "48");
    // Memory that a child borrows from its parent must not count twice.
    let outcome = run(Launch::program("process", "borrow 48"), SMALL);
    figure("a child that borrows memory", mib(outcome.expect_line("borrow: ok")), "MiB", "20");
}

/// Measures the pages written for a fork group. A page on standby at the fork must not be written
/// once for each process.
pub fn writes() {
    let pages = 48 * MIB / 4096;
    let outcome = run(Launch::program("process", "many 48 12"), SMALL);
    let written = outcome.expect_line("many: ok").figure("pages_written");
    let share = written as f64 / pages as f64;
    figure("writes of a page that thirteen processes share", share, "times", "1.25");
}

/// Measures how long calls wait. A signal handler may call `madvise` in the middle of its own
/// thread's fork. The pager must not wait five seconds for the message of that fork. The second
/// figure is the time for which the freezer holds threads.
pub fn waits() {
    let case = "advice-at-each-step 200 tell";
    let outcome = Launch::program("memory", case).limit(SMALL).run();
    outcome.expect_line("advice-at-each-step: ok");
    let text = outcome.stderr.split("longest: ").nth(1).and_then(|rest| rest.split(' ').next());
    let ms = text.and_then(|text| text.parse().ok()).expect("a time");
    figure("advice in a handler at each step of a fork", ms, "ms", "4000");
    let outcome = run(Launch::program("waits", "3"), SMALL);
    outcome.expect_line("waits: ok");
    let held = outcome.figure("freezer_us") as f64 / 1000.0;
    figure("threads that outrun the limit are held", held, "ms", "100 at least");
}

const METERED: &str = r#"
import os, time
area = bytearray(os.urandom(40 << 20))
print("ready", flush=True)
end = time.time() + 8
while time.time() < end:
    for at in range(0, len(area), 4096):
        area[at] = (area[at] + 1) % 256
"#;

/// Measures how soon figures come over HTTP beside 120 hostile connections, and Ebb's own memory at
/// that time.
pub fn metrics() {
    let launch = Launch::new(PYTHON).args(["-c", METERED]).limit(32 * MIB);
    let mut run = launch.options("--metrics 0").start();
    run.wait_for("ready");
    let said = run.stderr();
    let (_, rest) = said.split_once("metrics at http://").expect("an address");
    let (at, _) = rest.split_once("/metrics").expect("an address");
    let connect = || TcpStream::connect(at).expect("somebody listens");
    let held: Vec<TcpStream> = (0..120)
        .map(|number| {
            let mut stream = connect();
            let words: &[u8] = if number % 2 == 0 { b"GET /metr" } else { &[b'x'; 20_000] };
            let _ = stream.write_all(words);
            stream
        })
        .collect();
    let begun = Instant::now();
    for _ in 0..20 {
        let mut stream = connect();
        let _ = stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n");
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let ms = begun.elapsed().as_secs_f64() * 50.0;
    figure("an answer", ms, "ms", "3000");
    let own = run.root().descendants().own();
    figure("Ebb's own memory", own as f64 / MIB as f64, "MiB", "64");
    drop(held);
    run.finish();
}

/// Measures the memory in huge pages, in MiB, of a program that asks for them.
pub fn huge_pages() {
    for (what, limit, bounds) in [
        ("with room", Some(1024 * MIB), ["64", "32"]),
        ("without room", Some(256 * MIB), ["64", "0"]),
        ("without Ebb", None, ["64", "32"]),
    ] {
        let launch = Launch::program("huge", "");
        let outcome = limit.map_or(launch.clone(), |bytes| launch.limit(bytes)).run();
        let text = outcome.expect_code(0).text();
        let numbers = text.split_ascii_whitespace().filter_map(|word| word.parse::<f64>().ok());
        for ((mib, bound), when) in numbers.zip(bounds).zip(["at first", "in the last area"]) {
            figure(&format!("{what}, {when}"), mib, "MiB", bound);
        }
    }
}
