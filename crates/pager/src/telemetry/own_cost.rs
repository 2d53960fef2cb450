//! Measures the CPU time that the kernel spends on a fault in the faulting thread: on its way to
//! sleep, and back. External clocks do not show this time, because the thread is running. A thread
//! of the pager measures it once on this machine. It faults on pages of its own and does nothing
//! else.

use ebb_sys::anon::AnonBuffer;
use ebb_sys::sched::CpuSet;
use ebb_sys::uffd::{Event, Mode, Uffd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Builder;
use std::time::Duration;

const PAGES: usize = 128;
const PAGE: usize = 4096;
/// Time limit for one fault. After that the measurement fails.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// CPU on which a fault is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultCpu {
    /// The CPU of the faulting thread. No wakeup goes to another CPU.
    Beside,
    /// Another CPU. The faulting thread sends an interrupt, which is expensive if that CPU sleeps.
    Elsewhere,
}

/// Returns the CPU time of one fault in the faulting thread. Takes some milliseconds.
pub fn measure(cpu: FaultCpu) -> io::Result<Duration> {
    let all = CpuSet::of_this_thread()?;
    let mut cpus = all.iter();
    let here = cpus.next().ok_or(io::ErrorKind::NotFound)?;
    let there = cpus.next().filter(|_| cpu == FaultCpu::Elsewhere).unwrap_or(here);
    let mut memory = AnonBuffer::new(PAGES * PAGE)?;
    let uffd = Uffd::create(true)?;
    uffd.handshake(0)?;
    let words = memory.words();
    let start = words.as_ptr() as u64;
    uffd.register(start, (PAGES * PAGE) as u64, Mode::Managed)?;
    let fault = || {
        CpuSet::only(here).confine(0)?;
        let before = cpu_time();
        words.iter().step_by(PAGE / 8).for_each(|word| word.store(1, Relaxed));
        Ok::<_, io::Error>(cpu_time().saturating_sub(before))
    };
    std::thread::scope(|scope| {
        // A separate thread, so that its CPU affinity ends with it. It starts first: if there can
        // be no second thread, it ends by its time limit. A faulting thread would wait for ever.
        let serving = builder().spawn_scoped(scope, || {
            let served = CpuSet::only(there).confine(0).and_then(|()| serve(&uffd));
            // After the unregistration the remaining pages need no pager, so the other thread can
            // end.
            uffd.unregister(start, (PAGES * PAGE) as u64).and(served)
        })?;
        let touching = builder().spawn_scoped(scope, fault)?;
        let ended = |_| io::Error::other("a thread has ended");
        let spent = touching.join().map_err(ended)?;
        serving.join().map_err(ended)??;
        spent.map(|spent| spent / PAGES as u32)
    })
}

fn builder() -> Builder {
    Builder::new().stack_size(64 << 10)
}

fn serve(uffd: &Uffd) -> io::Result<()> {
    let content = [0; PAGE];
    let mut left = PAGES;
    while left > 0 {
        if poll(&mut [PollFd::new(uffd, PollFlags::IN)], Some(&PATIENCE))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut touched = None;
        uffd.read(|event| {
            if let Event::Fault { address, .. } = event {
                touched = Some(address & !(PAGE as u64 - 1));
            }
        })?;
        let Some(address) = touched else { continue };
        uffd.copy(address, &content).map_err(|(_, error)| io::Error::other(error))?;
        uffd.wake(address, PAGE as u64)?;
        left -= 1;
    }
    Ok(())
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_fault_takes_some_time_of_the_thread_that_has_it() {
        for cpu in [super::FaultCpu::Beside, super::FaultCpu::Elsewhere] {
            match super::measure(cpu) {
                Ok(cost) => assert!((200..500_000).contains(&cost.as_nanos()), "{cost:?}"),
                Err(error) => println!("not possible with these rights: {error}"),
            }
        }
    }
}
