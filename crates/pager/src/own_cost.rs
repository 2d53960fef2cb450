//! What the kernel does for a fault in the very thread that has touched: on its way to sleep, and back. No clock from
//! outside sees it, since it is time in which the thread runs. So it is measured once, on this machine, by a thread of
//! the pager's own that touches pages of its own and does nothing else.

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
/// How long one touch may take before this is given up.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Where a fault is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the CPU of the thread that has it: it wakes nobody elsewhere.
    Beside,
    /// On another: its thread sends an interrupt, which is dear where that CPU sleeps.
    Elsewhere,
}

/// The processor time of one fault in the thread that has it. Takes some milliseconds.
pub fn measure(place: Place) -> io::Result<Duration> {
    let all = CpuSet::of_this_thread()?;
    let mut cpus = all.iter();
    let here = cpus.next().ok_or(io::ErrorKind::NotFound)?;
    let there = cpus.next().filter(|_| place == Place::Elsewhere).unwrap_or(here);
    let mut memory = AnonBuffer::new(PAGES * PAGE)?;
    let uffd = Uffd::create(true)?;
    uffd.handshake(0)?;
    let words = memory.words();
    let start = words.as_ptr() as u64;
    uffd.register(start, (PAGES * PAGE) as u64, Mode::Managed)?;
    let touch = || {
        CpuSet::only(here).confine(0)?;
        let before = cpu_time();
        words.iter().step_by(PAGE / 8).for_each(|word| word.store(1, Relaxed));
        Ok::<_, io::Error>(cpu_time().saturating_sub(before))
    };
    std::thread::scope(|scope| {
        let touching = builder().spawn_scoped(scope, touch)?;
        // On a thread of its own, which stays where it is sent.
        let serving = builder().spawn_scoped(scope, || {
            let served = CpuSet::only(there).confine(0).and_then(|()| serve(&uffd));
            // Whatever the other waits for yet it finds.
            uffd.unregister(start, (PAGES * PAGE) as u64).and(served)
        })?;
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
        for place in [super::Place::Beside, super::Place::Elsewhere] {
            match super::measure(place) {
                Ok(cost) => assert!((200..500_000).contains(&cost.as_nanos()), "{cost:?}"),
                Err(error) => println!("not possible with these rights: {error}"),
            }
        }
    }
}
