//! Kills Ebb at a random moment. The program must die with it, and must never have read a wrong
//! byte. `EBB_KILL_ROUNDS` is the number of rounds (10 by default).

use std::time::Duration;

use ebb_e2e::MIB;
use ebb_e2e::busy::Busy;
use ebb_e2e::client::Random;
use ebb_e2e::launch::{Launch, Running, need_sight_of_ebb, send};
use ebb_e2e::tree::{began, folders_of, is_alive};
use ebb_testing::{eventually_is, give_time};
use rustix::process::Signal;

fn victims(run: &Running, supervisor: bool) -> Vec<i32> {
    let own = run.root().find().ebb;
    let others: Vec<i32> = own.into_iter().filter(|pid| *pid != run.pid()).collect();
    if supervisor || others.is_empty() { vec![run.pid()] } else { others }
}

/// Runs a program that does not end by itself, and kills the supervisor or Ebb's other processes.
fn end_of(launch: &Launch, number: u64, random: &mut Random) {
    need_sight_of_ebb();
    let mut run = launch.start();
    // A supervisor that dies before it has a pager leaves its folder, which the next run removes.
    run.wait_until("its program", |run| !run.root().find().program.is_empty());
    // The kill comes at a random stage of the program.
    give_time(Duration::from_millis(30 + random.below(900)));
    assert!(!run.ended(), "round {number}: ended by itself: {}", run.stderr());
    let all = run.root().find();
    let before: Vec<_> = all.all().filter_map(|pid| Some((pid, began(pid)?))).collect();
    for pid in victims(&run, number.is_multiple_of(2)) {
        send(pid, Signal::KILL);
    }
    eventually_is("processes that outlive Ebb", vec![], || {
        let left = run.root().find();
        let old = before.iter().filter(|&&(pid, then)| began(pid) == Some(then));
        let all = old.map(|&(pid, _)| pid).chain(left.all());
        all.filter(|pid| is_alive(*pid)).collect::<Vec<i32>>()
    });
    eventually_is("folders that are left", vec![], || folders_of(run.pid()));
    let stderr = run.stderr();
    assert!(!stderr.contains("wrong"), "round {number}: {stderr}");
    run.finish();
}

#[test]
fn the_program_dies_with_ebb_and_never_reads_a_wrong_byte() {
    let rounds = std::env::var("EBB_KILL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let mut random = Random::new(9);
    for number in 0..rounds.unwrap_or(10) {
        let launch = Launch::program("torture", &format!("0 {number}")).limit(24 * MIB);
        end_of(&launch, number, &mut random);
    }
}

/// Shows that the program does not wait for a fault thread that ends late. Beside a program of one
/// thread the fault thread is in the idle class, where it may wait long for a CPU to end on.
#[test]
fn a_fault_thread_that_ends_late() {
    let _busy = Busy::start(3);
    let launch = Launch::program("verify", "48 0 5 1").limit(16 * MIB);
    let mut random = Random::new(10);
    for round in 0..3 {
        end_of(&launch, 2 * round + 1, &mut random);
    }
}

/// Shows that the pager kills repeatedly until no process is left. Each process forks the next and
/// ends, so a search finds only the process before.
#[test]
fn a_tree_that_forks_faster_than_it_is_killed_ends() {
    for chains in [4, 24] {
        let launch = Launch::program("vain", &format!("relay {chains}")).limit(16 * MIB);
        let run = launch.options("--swap ram:1M").start();
        let root = run.root().clone();
        let outcome = run.finish();
        outcome.expect_code(128 + 9);
        assert!(outcome.stderr.contains("out of memory"), "{}", outcome.stderr);
        eventually_is("processes that are left", vec![], || {
            root.find().all().filter(|pid| is_alive(*pid)).collect::<Vec<i32>>()
        });
    }
}
