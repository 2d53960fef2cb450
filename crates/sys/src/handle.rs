//! Handle on one process: open descriptors that take the place of the process's number.
//!
//! A process's number may belong to another process by the time it is used. The number means
//! another process in another pid namespace, and a sender can forge it. An open directory
//! `/proc/PID` stays that process's: later opens through it fail once the process is gone. A pidfd
//! behaves likewise.
//!
//! * HANDLE-1: directory and pidfd belong to the same process. The pidfd was made first, and the
//!   process had not ended after the directory was opened. The number thus belonged to the process
//!   all the while.
//! * HANDLE-2: `memory` and `page_map` keep the address space that they were opened for, even if
//!   the process calls exec.

use crate::memory::Memory;
use crate::pagemap::Pagemap;
use crate::proc::{self, Area, Passing, Statm};
use crate::process::{self, Pidfd};
use rustix::fs::{Mode, OFlags, openat};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// Handle on one process.
#[derive(Debug)]
pub struct Handle {
    pid: u32,
    pidfd: Pidfd,
    folder: OwnedFd,
}

/// Users, groups and capabilities of a process, from `/proc/PID/status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Real, effective, saved and file system user.
    pub users: [u32; 4],
    /// Real, effective, saved and file system group.
    pub groups: [u32; 4],
    /// Capabilities that the process may use or take up.
    pub permitted: u64,
}

impl Credentials {
    /// Returns whether a caller may look into the process. The caller has the real user `user`, the
    /// real group `group` and its own `capabilities`. Root may look into any process. For another
    /// caller the process must act as this user and this group alone. It must have no capability
    /// that the caller lacks.
    #[must_use]
    pub fn are_of(&self, user: u32, group: u32, capabilities: u64) -> bool {
        let same = self.users == [user; 4] && self.groups == [group; 4];
        user == 0 || same && self.permitted & !capabilities == 0
    }
}

fn read(file: OwnedFd) -> io::Result<String> {
    let text = proc::read_all(File::from(file))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

impl Handle {
    /// Opens a handle on process `pid`, by its number in this process's namespace.
    pub fn open(pid: u32) -> io::Result<Self> {
        Self::of(Pidfd::open(pid)?, pid)
    }

    /// Opens a handle on the process of this pidfd, whose number is `pid`.
    pub fn of(pidfd: Pidfd, pid: u32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty());
        if pidfd.has_ended() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(Self { pid, pidfd, folder: folder? })
    }

    /// Returns the process id, for messages and for calls that accept nothing else.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the process's pidfd.
    #[must_use]
    pub fn pidfd(&self) -> &Pidfd {
        &self.pidfd
    }

    fn file(&self, name: &str) -> io::Result<OwnedFd> {
        Ok(openat(&self.folder, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    fn text(&self, name: &str) -> io::Result<String> {
        read(self.file(name)?)
    }

    /// Opens the process's present memory (HANDLE-2).
    pub fn memory(&self) -> io::Result<Memory> {
        Ok(Memory::from(File::from(self.file("mem")?)))
    }

    /// Opens the process's present page map (HANDLE-2).
    pub fn page_map(&self) -> io::Result<Pagemap> {
        Ok(Pagemap::from(File::from(self.file("pagemap")?)))
    }

    /// Opens the sizes of the process for repeated reads, through one of its threads if that is
    /// given.
    pub fn statm(&self, thread: Option<u32>) -> io::Result<Statm> {
        Ok(Statm::from(File::from(self.file(&Self::name_of(thread, "statm"))?)))
    }

    fn name_of(thread: Option<u32>, name: &str) -> String {
        thread.map_or_else(|| name.to_owned(), |thread| format!("task/{thread}/{name}"))
    }

    /// Returns the areas of the process, read through one of its threads if that is given.
    pub fn areas(&self, thread: Option<u32>) -> io::Result<Vec<Area>> {
        Ok(proc::parse_areas(&self.text(&Self::name_of(thread, "maps"))?))
    }

    /// Returns the areas that overlap one of the ranges, read through one of the process's threads
    /// if that is given.
    pub fn areas_in(&self, thread: Option<u32>, ranges: &[(u64, u64)]) -> io::Result<Vec<Area>> {
        proc::areas_in(File::from(self.file(&Self::name_of(thread, "maps"))?), ranges)
    }

    /// Returns the ranges of the process with special treatment at a fork, read through one of its
    /// threads if that is given.
    pub fn passing(&self, thread: Option<u32>) -> io::Result<Passing> {
        Ok(proc::parse_passing(&self.text(&Self::name_of(thread, "smaps"))?))
    }

    /// Returns the number of pages of anonymous memory, each counted in proportion to the processes
    /// that map it.
    pub fn proportional_anonymous_pages(&self, thread: Option<u32>) -> io::Result<u64> {
        let text = self.text(&Self::name_of(thread, "smaps_rollup"))?;
        proc::rolled_up(&text, "Pss_Anon:")
    }

    /// Returns the number of pages that the process has written and that no other process maps.
    pub fn private_dirty_pages(&self) -> io::Result<u64> {
        proc::rolled_up(&self.text("smaps_rollup")?, "Private_Dirty:")
    }

    /// Returns the state letter of the process, or of one of its threads.
    #[must_use]
    pub fn state(&self, thread: Option<u32>) -> Option<char> {
        let text = self.text(&Self::name_of(thread, "stat")).ok()?;
        proc::parse_state(&text)
    }

    /// Returns whether the process has ended, or its first thread has begun to end. From then on
    /// its files belong to root. It does not count as ended yet.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.text("stat").map_or(true, |text| proc::parse_is_ending(&text))
    }

    /// Returns whether a signal or a debugger has stopped the process or one of its threads. A
    /// thread that this process traces counts as running, because this process resumes it.
    #[must_use]
    pub fn is_stopped(&self, thread: Option<u32>) -> bool {
        let is_own = |tracer| std::path::Path::new(&format!("/proc/self/task/{tracer}")).exists();
        let status = self.text(&Self::name_of(thread, "status"));
        status.is_ok_and(|status| proc::parse_stopped(&status, is_own))
    }

    /// Returns the process's threads with their states.
    #[must_use]
    pub fn threads(&self) -> Vec<(u32, char)> {
        self.thread_numbers()
            .into_iter()
            .filter_map(|thread| Some((thread, self.state(Some(thread))?)))
            .collect()
    }

    fn thread_numbers(&self) -> Vec<u32> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(tasks) = openat(&self.folder, "task", flags, Mode::empty()) else {
            return Vec::new();
        };
        let Ok(tasks) = rustix::fs::Dir::new(tasks) else { return Vec::new() };
        tasks.filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok()).collect()
    }

    /// Returns whether a thread of the process waits for a page that it has accessed in user mode.
    /// For such a thread the file `syscall` begins with -1. Within a system call it begins with the
    /// number of the call. Only a process that may trace the thread sees this.
    #[must_use]
    pub fn touches(&self, thread: u32) -> bool {
        self.text(&Self::name_of(Some(thread), "syscall")).is_ok_and(|text| text.starts_with("-1 "))
    }

    /// Updates `known`: the threads of the process that have registered a list of robust mutexes,
    /// with the address of each list.
    pub fn robust_lists(&self, known: &mut BTreeMap<u32, u64>) -> io::Result<()> {
        let threads = self.thread_numbers();
        known.retain(|thread, _| threads.contains(thread));
        for thread in threads {
            if known.contains_key(&thread) {
                continue;
            }
            match process::robust_list(thread) {
                // Another process's thread could have the number by now.
                Ok(Some(list)) if self.has_thread(thread) => drop(known.insert(thread, list)),
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                // The thread has not registered a list yet, or has ended.
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends the process a signal, even if another process has its number now.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        self.pidfd.send(signal)
    }

    /// Returns whether the process has this thread.
    #[must_use]
    pub fn has_thread(&self, thread: u32) -> bool {
        self.file(&format!("task/{thread}/stat")).is_ok()
    }

    /// Returns the thread of the process whose number in its own pid namespace is `number`.
    #[must_use]
    pub fn thread_called(&self, number: u32) -> Option<u32> {
        let is_it = |thread: &u32| {
            let status = self.text(&format!("task/{thread}/status")).unwrap_or_default();
            proc::own_number(&status) == Some(number)
        };
        if is_it(&number) {
            return Some(number);
        }
        self.thread_numbers().into_iter().find(is_it)
    }

    /// Returns the users, groups and capabilities of the process.
    pub fn credentials(&self) -> io::Result<Credentials> {
        parse_credentials(&self.text("status")?)
            .ok_or_else(|| io::Error::other("/proc/PID/status lacks Uid, Gid or CapPrm"))
    }

    /// Returns whether the process is in another user namespace than this process. Returns an error
    /// if the kernel does not permit this user to know.
    pub fn is_in_another_user_namespace(&self) -> io::Result<bool> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let its = rustix::fs::fstat(openat(&self.folder, "ns/user", flags, Mode::empty())?)?;
        let own = rustix::fs::stat("/proc/self/ns/user")?;
        Ok((its.st_dev, its.st_ino) != (own.st_dev, own.st_ino))
    }

    /// Returns the exit code if the first thread has ended and at most one other thread is left.
    #[must_use]
    pub fn exit_code_of_leader(&self) -> Option<u8> {
        let text = self.text("stat").ok()?;
        (proc::parse_state(&text)? == 'Z' && self.thread_numbers().len() <= 2)
            .then(|| proc::parse_exit_code(&text))?
    }

    /// Returns the name of the process, or `?`.
    #[must_use]
    pub fn name(&self) -> String {
        self.text("comm").map_or_else(|_| "?".to_owned(), |name| name.trim_end().to_owned())
    }
}

fn parse_credentials(status: &str) -> Option<Credentials> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let four = |name: &str| {
        let mut numbers = field(name)?.split_ascii_whitespace().map(|number| number.parse().ok());
        Some([numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??])
    };
    let permitted = u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?;
    Some(Credentials { users: four("Uid:")?, groups: four("Gid:")?, permitted })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_testing::eventually_is;
    use std::process::Command;

    /// A thread that waits in a system call must not count, because it would notice being frozen.
    #[test]
    fn a_thread_in_a_system_call_counts_as_accessing_no_memory() {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        eventually_is("its state", Some('S'), || handle.state(None));
        assert!(!handle.touches(child.id()));
        assert!(!handle.touches(1), "a thread of another");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// A child that was killed while it joined caused the message "Permission denied".
    #[test]
    fn a_process_without_memory_counts_as_ending() {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        eventually_is("its state", Some('S'), || handle.state(None));
        assert!(!handle.is_ending() && !proc::is_ending(child.id()));
        child.kill().unwrap();
        eventually_is("its state", Some('Z'), || handle.state(None));
        assert!(handle.is_ending() && proc::is_ending(child.id()));
        child.wait().unwrap();
        assert!(handle.is_ending() && proc::is_ending(child.id()));
    }

    /// Without this distinction a detach failed with "process 31232 is stopped", because the
    /// freezer had stopped the process for three milliseconds.
    #[test]
    fn a_process_that_this_one_freezes_does_not_count_as_stopped() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        let stands = |state| eventually_is("its state", Some(state), || handle.state(None));
        crate::trace::seize(child.id()).unwrap();
        stands('t');
        assert!(!handle.is_stopped(None) && !handle.is_stopped(Some(child.id())));
        let crate::trace::TraceeChange::Stopped(_, stop) = crate::trace::next() else {
            panic!("it stands")
        };
        assert!(crate::trace::release(child.id(), stop).is_none());
        assert!(!handle.is_stopped(None));
        handle.signal(libc::SIGSTOP).unwrap();
        stands('T');
        assert!(handle.is_stopped(None) && handle.is_stopped(Some(child.id())));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!handle.is_stopped(None));
        let debugged = "State:\tt (tracing stop)\nTracerPid:\t7\n";
        assert!(proc::parse_stopped(debugged, |tracer| tracer != 7));
        assert!(!proc::parse_stopped(debugged, |tracer| tracer == 7));
    }

    #[test]
    fn credentials_are_those_of_the_user_alone() {
        let text =
            "Name:\tx\nUid:\t1000\t1000\t1000\t1000\nGid:\t7\t7\t7\t7\nCapPrm:\t0000000000000000\n";
        let own = parse_credentials(text).unwrap();
        assert!(own.are_of(1000, 7, 0) && own.are_of(0, 0, 0) && !own.are_of(1001, 7, 0));
        // A setuid program acts as root for the user that started it.
        let setuid =
            parse_credentials(&text.replace("1000\t1000\t1000\t", "1000\t0\t0\t")).unwrap();
        assert!(!setuid.are_of(1000, 7, 0));
        // A setgid program acts for a group that its starter need not belong to.
        let setgid = parse_credentials(&text.replace("7\t7\t7\t7", "7\t42\t42\t42")).unwrap();
        assert!(!setgid.are_of(1000, 7, 0) && !setgid.are_of(1000, 42, 0));
        assert!(setgid.are_of(0, 0, 0));
        let capable =
            parse_credentials(&text.replace("CapPrm:\t0000000000000000", "CapPrm:\t80000"))
                .unwrap();
        assert!(!capable.are_of(1000, 7, 0) && capable.are_of(1000, 7, 1 << 19));
        assert_eq!(parse_credentials("Name:\tx\n"), None);
    }

    #[test]
    fn a_handle_of_an_ended_process_gives_errors_and_never_reaches_another() {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let handle = Handle::open(child.id()).unwrap();
        assert!(handle.areas(None).is_ok() && handle.has_thread(child.id()));
        assert!(matches!(handle.is_in_another_user_namespace(), Ok(false)));
        assert_eq!(handle.thread_called(child.id()), Some(child.id()));
        assert!(handle.memory().is_ok() && handle.page_map().is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(handle.areas(None).is_err() && handle.memory().is_err());
        assert!(handle.threads().is_empty() && handle.state(None).is_none());
        assert!(handle.pidfd().has_ended() && Handle::open(child.id()).is_err());
    }

    #[test]
    fn a_thread_is_found_by_the_number_it_has_for_itself() {
        let handle = Handle::open(std::process::id()).unwrap();
        let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert_eq!(handle.thread_called(me), Some(me));
        assert_eq!(handle.thread_called(u32::MAX), None);
        assert!(handle.threads().iter().any(|&(thread, _)| thread == me));
    }
}
