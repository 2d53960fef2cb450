//! Processes: reading another one's memory, watching for its end, and the attributes that a child
//! inherits.

use crate::{inherited, proc};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Largest number of ranges in one call of [`read_pages`].
pub const READ_PAGES_MAX: usize = 64;

/// Reads the pages at `addresses` of process `pid` into `pages`, whole pages only. Returns how many
/// pages were read, from the first on.
pub fn read_pages(pid: u32, addresses: &[u64], pages: &mut [[u8; 4096]]) -> io::Result<usize> {
    assert!(addresses.len() <= READ_PAGES_MAX && pages.len() >= addresses.len());
    let mut remote =
        [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 4096 }; READ_PAGES_MAX];
    for (slot, &address) in remote.iter_mut().zip(addresses) {
        slot.iov_base = address as *mut libc::c_void;
    }
    let local =
        libc::iovec { iov_base: pages.as_mut_ptr().cast(), iov_len: addresses.len() * 4096 };
    // SAFETY: `local` names memory that this function borrows exclusively, of at least the given
    // length; the kernel checks the remote ranges.
    let got = unsafe {
        libc::process_vm_readv(
            pid as libc::pid_t,
            &raw const local,
            1,
            remote.as_ptr(),
            addresses.len() as libc::c_ulong,
            0,
        )
    };
    if got < 0 { Err(io::Error::last_os_error()) } else { Ok(got as usize / 4096) }
}

/// Returns whether two processes share one address space, as after `vfork`. Returns false if the
/// kernel has no `kcmp` or does not permit it.
#[must_use]
pub fn shares_memory(one: u32, other: u32) -> bool {
    compare_memory(one, other) == 0
}

/// Returns whether two processes certainly have different address spaces.
#[must_use]
pub fn has_memory_apart(one: u32, other: u32) -> bool {
    compare_memory(one, other) > 0
}

fn compare_memory(one: u32, other: u32) -> libc::c_long {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: the arguments are five integers; the call only compares.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) }
}

/// Descriptor of a process, which can be waited for and signalled without the danger of a reused
/// number.
#[derive(Debug)]
pub struct Pidfd {
    fd: OwnedFd,
}

impl Pidfd {
    /// Opens process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        // SAFETY: takes two integers; returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd as RawFd) } })
    }

    /// Opens a descriptor of thread `thread`. The descriptor shows the end of this thread, even if
    /// other threads of the process live on.
    pub fn open_thread(thread: u32) -> io::Result<Self> {
        // PIDFD_THREAD, since Linux 6.9.
        // SAFETY: takes two integers; returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, thread, libc::O_EXCL) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd as RawFd) } })
    }

    /// Sends `signal` to the process.
    pub fn send(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a null siginfo means "as kill would".
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.fd.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns a copy of the process's descriptor `fd`. A thread's pidfd uses that thread's own
    /// descriptor table.
    pub fn descriptor(&self, fd: u32) -> io::Result<OwnedFd> {
        // SAFETY: takes three integers; returns a new descriptor or an error.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, self.fd.as_raw_fd(), fd, 0) };
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made this descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
    }

    /// Returns the status of a process that has ended and whose parent has waited for it, as
    /// wait(2) reports it. Returns None before that, and an error before Linux 6.15.
    pub fn exit_status(&self) -> io::Result<Option<i32>> {
        /// `struct pidfd_info`, in its first version.
        #[repr(C)]
        struct Info {
            mask: u64,
            control_group: u64,
            numbers: [u32; 11],
            exit_code: i32,
        }
        const EXIT: u64 = 1 << 3;
        /// `_IOWR(0xFF, 11, struct pidfd_info)`
        const GET_INFO: libc::Ioctl = 0xC040_FF0Bu32 as libc::Ioctl;
        const _: () = assert!(size_of::<Info>() == 0x40);
        let mut info = Info { mask: EXIT, control_group: 0, numbers: [0; 11], exit_code: 0 };
        // SAFETY: the structure outlives the call and has the size that the request encodes.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), GET_INFO, &raw mut info) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((info.mask & EXIT != 0).then_some(info.exit_code))
    }

    /// Returns whether the process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd, no waiting.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }
}

impl AsFd for Pidfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the head of the list of robust mutexes that a thread has registered with the kernel;
/// None if it has registered none.
pub fn robust_list(thread: u32) -> io::Result<Option<u64>> {
    let (mut head, mut len) = (0u64, 0usize);
    // SAFETY: both outlive the call.
    let result =
        unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut len) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((head != 0).then_some(head)) }
}

/// Returns the thread group that thread `thread` belongs to.
#[must_use]
pub fn group_of(thread: u32) -> Option<u32> {
    let text = proc::read_text(format!("/proc/{thread}/status")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// Prepares `command` as [`prepare_child`] does, and disables huge pages for the program and its
/// children.
pub fn confine(command: &mut Command) {
    prepare_child(command);
    // SAFETY: the hook only calls the kernel.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0);
            Ok(())
        });
    }
}

/// Has the program started by `command` killed when this thread ends. Gives the program the signal
/// dispositions and standard streams that this process inherited.
pub fn prepare_child(command: &mut Command) {
    // SAFETY: the hook only calls the kernel.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            inherited::restore();
            Ok(())
        });
    }
}

/// Gives the program that replaces this process by `command` the signal dispositions and standard
/// streams that this process inherited.
pub fn hand_over(command: &mut Command) {
    // SAFETY: the hook only calls the kernel.
    unsafe {
        command.pre_exec(|| {
            inherited::restore();
            Ok(())
        });
    }
}

/// Makes a process that is no child of this one and has its own session. Returns false in this
/// process and true in the new one. The calling thread must be the only one.
///
/// The nearest subreaper or init adopts the new process. A subreaper gives up that role until the
/// adoption. So this process does not adopt the new one. No child is left to be waited for, and no
/// SIGCHLD stays pending.
pub fn double_fork() -> io::Result<bool> {
    let mut adopts: libc::c_int = 0;
    // SAFETY: the arguments are integers, and an integer that outlives the call.
    unsafe {
        libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut adopts);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
    }
    // SAFETY: there is only one thread, so the child may do all that this process may.
    let between = unsafe { libc::fork() };
    if between == 0 {
        // SAFETY: there is only one thread. The process in between ends without running Rust's exit
        // code.
        unsafe {
            libc::setsid();
            match libc::fork() {
                0 => return Ok(true),
                result => libc::_exit(if result < 0 { *libc::__errno_location() } else { 0 }),
            }
        }
    }
    let error = io::Error::last_os_error();
    let mut status = 0;
    // SAFETY: the status outlives the call; no other thread waits for this child.
    unsafe {
        while between > 0 && libc::waitpid(between, &raw mut status, 0) < 0 {
            if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                break;
            }
        }
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, adopts, 0, 0, 0);
        // If SIGCHLD is blocked, it would stay pending for the program.
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const now);
    }
    if between < 0 {
        return Err(error);
    }
    match libc::WEXITSTATUS(status) {
        0 if libc::WIFEXITED(status) => Ok(false),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

/// Asks the kernel to send this process `signal` when its parent ends.
pub fn die_with_parent(signal: i32) {
    // SAFETY: an integer operation on this process.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, signal);
    }
}

/// Returns the CPU time of all children that have ended and were waited for, and of their own such
/// children.
#[must_use]
pub fn children_cpu() -> std::time::Duration {
    // SAFETY: a plain structure, for which all zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let of = |time: libc::timeval| {
        std::time::Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000)
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Makes this process a subreaper: it adopts orphaned descendants, so that it can wait for the
/// whole tree.
pub fn adopt_orphans() {
    // SAFETY: an integer operation on this process.
    unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    }
}

/// Puts this process into its own process group, which the terminal's signals do not reach.
pub fn leave_process_group() {
    // SAFETY: an integer operation on this process.
    unsafe {
        libc::setpgid(0, 0);
    }
}

/// Returns a capability set of this process, by its name in `/proc/PID/status` (`CapEff`, `CapBnd`,
/// ...).
#[must_use]
pub fn capabilities(set: &str) -> u64 {
    std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'))?;
            u64::from_str_radix(line.trim(), 16).ok()
        })
        .unwrap_or(0)
}

/// Gives up every capability of the calling thread, and of no other.
pub fn drop_capabilities_of_thread() -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let mut header = Header { version: 0x2008_0522, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: the header asks for the third layout, whose data are two triples of words.
    let result =
        unsafe { libc::syscall(libc::SYS_capset, std::ptr::from_mut(&mut header), none.as_ptr()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Number of the capability `CAP_SYS_PTRACE`.
pub const CAP_SYS_PTRACE: u64 = 19;
