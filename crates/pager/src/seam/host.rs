//! What concerns no single process: waiting, telling the user, ending the run.

use crate::inject::{self, Attempt};
use crate::lineage;
use crate::messages;
use crate::seam::{Known, Process};
use crate::server::Pager;
use crate::signal::Signal;
use ebb_sys::process::{self, Pidfd};
use ebb_sys::{cgroup, proc};
use std::fmt::Debug;
use std::time::Duration;

/// The machine around the pager.
pub trait Host: Debug + Send + Sync {
    /// A number that nobody can guess, and no two askings have in common.
    fn token(&self) -> u128;
    /// Does nothing for so long.
    fn sleep(&self, time: Duration);
    /// Waits for a signal, so long at most; whether it came.
    fn wait(&self, signal: &Signal, limit: Duration) -> bool;
    /// A line for the user.
    fn say(&self, text: &str);
    /// The process of this number, if there is one and it may be looked into.
    fn open(&self, pid: u32) -> std::io::Result<Box<dyn Process>>;
    /// The process that a thread belongs to.
    fn process_of(&self, thread: u32) -> Option<u32>;
    /// The same, if it is a child of one of these.
    fn child_of(&self, thread: u32, parents: &[u32]) -> Option<u32>;
    /// Every process of the tree that can be found.
    fn tree(&self, pager: &Pager) -> Vec<u32>;
    /// Resident pages of shared memory that a process maps, each as often as it maps it.
    fn shared_memory_pages(&self, pid: u32) -> u64;
    /// Whether one thread may use up all the CPU time that the pager is given ([`ebb_sys::cgroup`]).
    fn may_be_used_up(&self) -> bool;
    /// Begins to put the agent into a process without a loader, if it is one that may have it so ([`crate::inject`]).
    fn inject(&self, pager: &Pager, pid: u32) -> Attempt;
    /// Kills them all.
    fn kill_tree(&self, pager: &Pager);
}

/// The machine itself.
#[derive(Debug)]
pub struct Machine;

impl Host for Machine {
    fn token(&self) -> u128 {
        let mut bytes = [0; 16];
        // Less than asked for is given by no kernel that has started.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        u128::from_ne_bytes(bytes)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn wait(&self, signal: &Signal, limit: Duration) -> bool {
        signal.wait(limit)
    }

    fn say(&self, text: &str) {
        messages::say(text);
    }

    fn open(&self, pid: u32) -> std::io::Result<Box<dyn Process>> {
        Ok(Box::new(Known::open(pid)?))
    }

    fn process_of(&self, thread: u32) -> Option<u32> {
        process::group_of(thread)
    }

    fn child_of(&self, thread: u32, parents: &[u32]) -> Option<u32> {
        let is_child = |pid: &u32| proc::parent(*pid).is_some_and(|pid| parents.contains(&pid));
        self.process_of(thread).filter(is_child)
    }

    fn tree(&self, pager: &Pager) -> Vec<u32> {
        lineage::tree(pager)
    }

    fn shared_memory_pages(&self, pid: u32) -> u64 {
        proc::shared_memory_pages(pid).unwrap_or(0)
    }

    fn may_be_used_up(&self) -> bool {
        cgroup::may_be_used_up()
    }

    fn inject(&self, pager: &Pager, pid: u32) -> Attempt {
        inject::begin(pid, inject::Way::of(&pager.config))
    }

    fn kill_tree(&self, pager: &Pager) {
        if std::fs::File::open("/proc/self/stat").is_err() {
            // Nobody can be found without a descriptor. The front has its own, and kills the tree when
            // this process ends.
            messages::exit(125);
        }
        for _ in 0..3 {
            pager.mms().iter().filter_map(|mm| mm.process()).for_each(Process::kill);
            pager.lineage.kill();
            let tree = self.tree(pager);
            for &pid in &tree {
                let Ok(process) = Pidfd::open(pid) else { continue };
                // Its number could be another's by now.
                let parent = proc::parent(pid).unwrap_or(0);
                if parent == pager.front || tree.contains(&parent) {
                    // It may have ended in between.
                    let _ = process.send(9);
                }
            }
        }
    }
}
