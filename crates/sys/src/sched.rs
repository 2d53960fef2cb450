//! Scheduling of threads: affinity, scheduling classes, run times.

use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

/// Set of CPUs.
#[derive(Clone, Copy, Debug)]
pub struct CpuSet {
    set: libc::cpu_set_t,
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: reads plain bit sets.
        unsafe { libc::CPU_EQUAL(&self.set, &other.set) }
    }
}

impl CpuSet {
    /// Returns the CPUs that the calling thread may use.
    pub fn of_this_thread() -> io::Result<Self> {
        // SAFETY: a plain bit set, for which all zeros is the empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set outlives the call and has the given size; 0 is this thread.
        let got = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
        if got < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { set }) }
    }

    /// Returns the set of only `cpu`.
    #[must_use]
    pub fn only(cpu: u32) -> Self {
        // SAFETY: a plain bit set, for which all zeros is the empty set; CPU_SET checks its index.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu as usize, &mut set);
            Self { set }
        }
    }

    /// Returns the set without `cpu`, or the whole set if nothing else is in it.
    #[must_use]
    pub fn without(&self, cpu: u32) -> Self {
        let mut rest = *self;
        // SAFETY: CPU_CLR checks its index.
        unsafe { libc::CPU_CLR(cpu as usize, &mut rest.set) };
        if rest.count() == 0 { *self } else { rest }
    }

    /// Returns whether `cpu` is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        // SAFETY: CPU_ISSET checks its index.
        unsafe { libc::CPU_ISSET(cpu as usize, &self.set) }
    }

    /// Returns the numbers of the CPUs, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..libc::CPU_SETSIZE as u32).filter(|&cpu| self.contains(cpu))
    }

    /// Returns the number of CPUs.
    #[must_use]
    pub fn count(&self) -> u32 {
        // SAFETY: reads a plain bit set.
        unsafe { libc::CPU_COUNT(&self.set) as u32 }
    }

    /// Restricts thread `thread` (0: this one) to these CPUs.
    pub fn confine(&self, thread: u32) -> io::Result<()> {
        // SAFETY: the set outlives the call and has the given size.
        let result = unsafe {
            libc::sched_setaffinity(
                thread as libc::pid_t,
                size_of_val(&self.set),
                &raw const self.set,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// Returns the thread id of the calling thread.
#[must_use]
pub fn this_thread() -> u32 {
    // SAFETY: gettid takes no argument.
    unsafe { libc::gettid() as u32 }
}

/// Puts thread `thread` (0: this one) into the class `SCHED_IDLE`. The thread then runs only while
/// its CPU has nothing else to do. To the scheduler a CPU that runs only such threads is idle.
pub fn run_when_idle(thread: u32) -> io::Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the structure outlives the call.
    let result =
        unsafe { libc::sched_setscheduler(thread as i32, libc::SCHED_IDLE, &raw const none) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps the present I/O priority of this thread, whatever class it runs in later. Otherwise the
/// I/O of a `SCHED_IDLE` thread is of the idle class, too, and waits for the I/O of all others.
/// (ioprio_set(2): "derived from the CPU nice value"; for `SCHED_IDLE` the kernel takes the idle
/// class.)
pub fn keep_io_priority() -> io::Result<()> {
    const THREAD: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    const BEST_EFFORT: libc::c_long = 2 << CLASS_SHIFT;
    const NORMAL: libc::c_long = BEST_EFFORT | 4;
    // SAFETY: integers only.
    let now = unsafe { libc::syscall(libc::SYS_ioprio_get, THREAD, 0) };
    // Older kernels report the class 0, which means "no class of its own".
    let now = if now >> CLASS_SHIFT == 0 { NORMAL } else { now };
    // Another class was set explicitly, and the thread keeps it in any case.
    if now >> CLASS_SHIFT != BEST_EFFORT >> CLASS_SHIFT {
        return Ok(());
    }
    // SAFETY: integers only.
    let set = unsafe { libc::syscall(libc::SYS_ioprio_set, THREAD, 0, now) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives thread `thread` (0: this one) an ordinary share of CPU time in short slices. The thread
/// then runs soon after it wakes, even beside busy threads.
pub fn run_soon(thread: u32) -> io::Result<()> {
    #[repr(C)]
    #[derive(Default)]
    struct SchedAttr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attr =
        SchedAttr { size: size_of::<SchedAttr>() as u32, runtime: 100_000, ..SchedAttr::default() };
    // SAFETY: the structure outlives the call; a kernel without slices ignores the value.
    let result = unsafe {
        libc::syscall(libc::SYS_sched_setattr, thread as i32, std::ptr::from_ref(&attr), 0)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts the calling thread ahead of all ordinary threads (`SCHED_RR`), if that is permitted.
pub fn run_first() -> io::Result<()> {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure outlives the call; 0 is this thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const first) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the run times of thread `thread`, or None if the kernel does not count them.
#[must_use]
pub fn run_times(thread: u32) -> Option<RunTimes> {
    read_times(&format!("/proc/{thread}/schedstat"))
}

/// Returns the run times of a thread of process `pid`, or None if the kernel does not count them.
#[must_use]
pub fn run_times_in(pid: u32, thread: u32) -> Option<RunTimes> {
    read_times(&format!("/proc/{pid}/task/{thread}/schedstat"))
}

/// Returns the number of voluntary context switches of a thread of process `pid`.
#[must_use]
pub fn sleeps_in(pid: u32, thread: u32) -> Option<u64> {
    let mut buffer = [0; 4096];
    let text = read_short(&format!("/proc/{pid}/task/{thread}/status"), &mut buffer)?;
    let (_, rest) = text.split_once("\nvoluntary_ctxt_switches:")?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Returns the number of voluntary context switches of the calling thread.
#[must_use]
pub fn own_sleeps() -> u64 {
    // SAFETY: a plain structure, for which all zeros is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nvcsw as u64
}

fn read_times(path: &str) -> Option<RunTimes> {
    let mut buffer = [0; 80];
    let text = read_short(path, &mut buffer)?;
    let mut fields = text.split_ascii_whitespace().map(|field| field.parse().ok());
    let (ran_ns, waited_ns, arrivals) = (fields.next()??, fields.next()??, fields.next()??);
    Some(RunTimes { ran_ns, waited_ns, arrivals })
}

/// Reads a file of `/proc` by one read, as far as the buffer has room.
fn read_short<'a>(path: &str, buffer: &'a mut [u8]) -> Option<&'a str> {
    let got = File::open(path).ok()?.read(buffer).ok()?;
    std::str::from_utf8(&buffer[..got]).ok()
}

/// Run times of a thread, from `schedstat`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RunTimes {
    /// Time that the thread has run, in nanoseconds.
    pub ran_ns: u64,
    /// Time that the thread was runnable and waited for a CPU, in nanoseconds.
    pub waited_ns: u64,
    /// Number of times that the thread began to run on a CPU.
    pub arrivals: u64,
}

impl RunTimes {
    /// Returns the time that the thread has run.
    #[must_use]
    pub fn ran(&self) -> Duration {
        Duration::from_nanos(self.ran_ns)
    }

    /// Returns the time that the thread has waited for a CPU.
    #[must_use]
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_ns)
    }

    /// Returns the difference to the earlier times `then`.
    #[must_use]
    pub fn since(&self, then: &Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(then.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(then.waited_ns),
            arrivals: self.arrivals.saturating_sub(then.arrivals),
        }
    }
}

/// Returns the threads of this process by name, with the time that each has run, in nanoseconds.
#[must_use]
pub fn own_threads() -> Vec<(String, u64)> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Vec::new() };
    let number = |thread: std::io::Result<std::fs::DirEntry>| {
        thread.ok()?.file_name().to_str()?.parse::<u32>().ok()
    };
    let times = |thread: u32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{thread}/comm")).ok()?;
        Some((name.trim_end().to_owned(), run_times(thread)?.ran_ns))
    };
    threads.filter_map(number).filter_map(times).collect()
}

/// Returns the CPU that thread `thread` runs on, or ran on last.
#[must_use]
pub fn cpu_of(thread: u32) -> Option<u32> {
    let mut buffer = [0; 1024];
    let text = read_short(&format!("/proc/{thread}/stat"), &mut buffer)?;
    // The name in brackets may contain anything. After it, the state is field 3 and the CPU field
    // 39.
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_testing::eventually_some;

    #[test]
    fn sleeps_of_a_thread_are_counted() {
        let (pid, thread) = (std::process::id(), this_thread());
        let before = sleeps_in(pid, thread).unwrap();
        // The test's wait sleeps between its looks.
        let after = eventually_some("five of them to be counted", || {
            sleeps_in(pid, thread).filter(|&after| after >= before + 5)
        });
        assert!(own_sleeps() >= after);
        // The thread may be preempted between the two reads.
        let (ran, later) = (run_times_in(pid, thread).unwrap(), run_times(thread).unwrap());
        assert!(ran.arrivals >= after, "{ran:?} {after}");
        assert!(later.arrivals >= ran.arrivals && later.ran_ns >= ran.ran_ns, "{ran:?} {later:?}");
    }

    #[test]
    fn a_thread_goes_where_it_is_sent_and_back() {
        std::thread::spawn(|| {
            let all = CpuSet::of_this_thread().unwrap();
            let cpu = (0..1024).find(|&cpu| all.contains(cpu)).unwrap();
            CpuSet::only(cpu).confine(0).unwrap();
            assert_eq!(CpuSet::of_this_thread().unwrap().count(), 1);
            assert_eq!(cpu_of(this_thread()), Some(cpu));
            all.confine(0).unwrap();
            assert_eq!(CpuSet::of_this_thread().unwrap().count(), all.count());
            let rest = all.without(cpu);
            assert_eq!(rest.contains(cpu), all.count() == 1);
        })
        .join()
        .unwrap();
    }

    /// Without the call a page read by a thread of the idle class took 10 ms.
    #[test]
    fn reads_of_a_thread_of_the_idle_class_are_not_of_the_idle_class() {
        const THREAD: libc::c_int = 1;
        // SAFETY: integers only.
        let class = || unsafe { libc::syscall(libc::SYS_ioprio_get, THREAD, 0) } >> 13;
        std::thread::spawn(move || {
            let before = class();
            keep_io_priority().expect("it may");
            run_when_idle(0).expect("it may");
            let kept = if matches!(before, 0 | 2) { 2 } else { before };
            assert_eq!(class(), kept);
        })
        .join()
        .expect("a thread");
    }
}
