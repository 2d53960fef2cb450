//! Functions of no single process: waiting, messages for the user, ending the run.

use crate::config::Config;
use crate::processes::inject::{self, Attempt};
use crate::processes::{Processes, lineage};
use crate::seam::{Known, MapLock, Process};
use crate::telemetry::messages;
use crate::wait::signal::Signal;
use ebb_sys::process::{self, Pidfd};
use ebb_sys::sched::{self, RunTimes};
use ebb_sys::{cgroup, proc};
use std::fmt::Debug;
use std::time::Duration;

/// The machine around the pager.
pub trait Host: Debug + Send + Sync {
    /// Returns a number that no process can guess, different in each call.
    fn identity(&self) -> u128;
    /// Sleeps.
    fn sleep(&self, time: Duration);
    /// Returns the run times of the calling thread; zeros if the kernel does not count them.
    fn own_runs(&self) -> RunTimes;
    /// Waits for a signal, at most `limit`. Returns whether it came.
    fn wait(&self, signal: &Signal, limit: Duration) -> bool;
    /// Writes a line for the user.
    fn say(&self, text: &str);
    /// Opens the process of this number, if it exists and may be inspected.
    fn open(&self, pid: u32) -> std::io::Result<Box<dyn Process>>;
    /// Returns the process that a thread belongs to.
    fn process_of(&self, thread: u32) -> Option<u32>;
    /// Returns the process that a thread belongs to, if it is a child of one of `parents`.
    fn child_of(&self, thread: u32, parents: &[u32]) -> Option<u32>;
    /// Returns every process of the tree that can be found.
    fn tree(&self, processes: &Processes) -> Vec<u32>;
    /// Returns the number of resident pages of shared memory that a process maps, counted once per
    /// mapping.
    fn shared_memory_pages(&self, pid: u32) -> u64;
    /// Whether one thread may use up all CPU time of the pager's control group
    /// ([`ebb_sys::cgroup`]).
    fn may_be_used_up(&self) -> bool;
    /// Begins to inject the agent into a process without a loader, if the process allows it
    /// ([`crate::processes::inject`]). `map_lock` is the lock of its memory map.
    fn inject(&self, config: &Config, pid: u32, map_lock: &MapLock) -> Attempt;
    /// Kills every process of the tree.
    fn kill_tree(&self, processes: &Processes);
}

/// The real machine.
#[derive(Debug)]
pub struct Machine;

impl Host for Machine {
    fn identity(&self) -> u128 {
        let mut bytes = [0; 16];
        // A kernel that has started never returns fewer bytes.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
        u128::from_ne_bytes(bytes)
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }

    fn own_runs(&self) -> RunTimes {
        sched::run_times(sched::this_thread()).unwrap_or_default()
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

    fn tree(&self, processes: &Processes) -> Vec<u32> {
        lineage::tree(processes)
    }

    fn shared_memory_pages(&self, pid: u32) -> u64 {
        proc::shared_memory_pages(pid).unwrap_or(0)
    }

    fn may_be_used_up(&self) -> bool {
        cgroup::may_be_used_up()
    }

    fn inject(&self, config: &Config, pid: u32, map_lock: &MapLock) -> Attempt {
        let way = inject::Way::of(config);
        map_lock.read(move || Ok(inject::begin(pid, way))).unwrap_or(Attempt::Later)
    }

    fn kill_tree(&self, processes: &Processes) {
        if std::fs::File::open("/proc/self/stat").is_err() {
            // Without a descriptor no process can be found. The supervisor has its own, and kills
            // the tree when this process ends.
            messages::exit(125);
        }
        for _ in 0..3 {
            processes.mms().iter().filter_map(|mm| mm.process()).for_each(Process::kill);
            processes.lineage.kill();
            let tree = self.tree(processes);
            for &pid in &tree {
                let Ok(process) = Pidfd::open(pid) else { continue };
                // The number may belong to another process by now.
                let parent = proc::parent(pid).unwrap_or(0);
                if parent == processes.supervisor || tree.contains(&parent) {
                    // The process may have ended in between.
                    let _ = process.send(9);
                }
            }
        }
    }
}
