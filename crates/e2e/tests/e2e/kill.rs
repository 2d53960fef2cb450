//! Ebb dies at a random moment. The program must die with it, at once, and must never have read a
//! wrong byte. `EBB_KILL_ROUNDS` says how often (50 unless said).

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ebb_e2e::MIB;
use ebb_e2e::client::Random;
use ebb_e2e::launch::{Launch, Running, send};
use ebb_e2e::tree::is_alive;
use rustix::process::Signal;

/// How long the tree may outlive Ebb, on a machine that has nothing else to do.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// How many threads want each processor: who is to end needs one for a moment.
fn load() -> u32 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let wanting = text.split(' ').nth(3).and_then(|field| field.split('/').next()?.parse().ok());
    let processors = thread::available_parallelism().map_or(1, |count| count.get() as u32);
    wanting.unwrap_or(1u32).div_ceil(processors).max(1)
}

fn victims(run: &Running, front: bool) -> Vec<i32> {
    let own = run.root().find().ebb;
    let others: Vec<i32> = own.into_iter().filter(|pid| *pid != run.pid()).collect();
    if front || others.is_empty() { vec![run.pid()] } else { others }
}

fn round(number: u64, random: &mut Random) {
    let launch = Launch::program("torture", &format!("30 {number}")).limit(24 * MIB);
    end_of(&launch, number, random);
}

fn end_of(launch: &Launch, number: u64, random: &mut Random) {
    let mut run = launch.start();
    thread::sleep(Duration::from_millis(30 + random.below(900)));
    assert!(!run.ended(), "round {number}: ended early: {}", run.stderr());
    let before: Vec<i32> = run.root().find().all().collect();
    for pid in victims(&run, number.is_multiple_of(2)) {
        send(pid, Signal::KILL);
    }
    let killed = Instant::now();
    let gone_within = GONE_WITHIN * load();
    loop {
        let left = run.root().find();
        let alive = before.iter().copied().chain(left.all()).filter(|pid| is_alive(*pid)).count();
        if alive == 0 {
            break;
        }
        let late = killed.elapsed() > gone_within;
        assert!(!late, "round {number}: {alive} processes outlive Ebb\n{}", left.dump());
        thread::sleep(Duration::from_millis(10));
    }
    let left = folders_of(run.pid());
    assert!(left.is_empty(), "round {number}: {left:?} is left");
    let stderr = run.stderr();
    assert!(!stderr.contains("wrong"), "round {number}: {stderr}");
    run.finish();
}

/// The folders in `/tmp` of the run of process `front`.
fn folders_of(front: i32) -> Vec<String> {
    let prefix = format!("ebb-{front}-");
    let names = std::fs::read_dir("/tmp").expect("/tmp").flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

#[test]
fn the_program_dies_with_ebb_and_never_reads_a_wrong_byte() {
    let rounds = std::env::var("EBB_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let mut random = Random::new(9);
    for number in 0..rounds.unwrap_or(50) {
        round(number, &mut random);
    }
}

/// A program of one thread has the fault thread beside it in the idle class, where it may wait long
/// for a processor, also to end. The program is not to wait for that.
#[test]
fn a_fault_thread_that_ends_late() {
    let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut others = [busy(), busy(), busy(), busy(), busy(), busy()];
    let launch = Launch::program("verify", "48 60 5 1").limit(16 * MIB);
    let mut random = Random::new(10);
    let result = std::panic::catch_unwind(move || {
        for round in 0..6 {
            end_of(&launch, 2 * round + 1, &mut random);
        }
    });
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    result.unwrap();
}

/// Processes each of which makes the next and ends: whoever looks for them finds the one before. The pager kills again and
/// again until nobody is left.
#[test]
fn a_tree_that_forks_faster_than_it_is_killed_ends() {
    for chains in [4, 24] {
        let launch = Launch::program("vain", &format!("relay {chains}")).limit(16 * MIB);
        let run = launch.options("--swap ram:1M").start();
        let root = run.root().clone();
        let outcome = run.finish();
        outcome.expect_code(128 + 9);
        assert!(outcome.stderr.contains("out of memory"), "{}", outcome.stderr);
        let left: Vec<i32> = root.find().all().filter(|pid| is_alive(*pid)).collect();
        assert!(left.is_empty(), "{left:?} are left");
    }
}
