//! Per-CPU help from the kernel: the present CPU, and a memory fence on behalf of other threads.
//!
//! Both are hints and accelerations. If the kernel or the C library lacks one of them, a slower way
//! is chosen at run time.

use std::sync::OnceLock;

use ebb_mm::frame::RemoteFence;

/// Returns the offset of the thread's restartable-sequence area from its thread pointer, if glibc
/// registers one.
fn rseq_offset() -> Option<isize> {
    static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
    *OFFSET.get_or_init(|| {
        // SAFETY: both names are looked up, not called. In a glibc that has them they are a
        // ptrdiff_t and an unsigned int, fixed before main.
        unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
            if offset.is_null() || size.is_null() || *size.cast::<u32>() == 0 {
                return None;
            }
            Some(*offset.cast::<isize>())
        }
    })
}

/// Returns the CPU that this thread runs on, or ran on a moment ago.
#[must_use]
pub fn cpu_hint() -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(offset) = rseq_offset() {
        let cpu: u32;
        // SAFETY: glibc has registered the area at this offset from the thread pointer for every
        // thread. The area's field at offset 4 is the CPU number, which the kernel keeps current.
        unsafe {
            std::arch::asm!(
                "mov {cpu:e}, fs:[{offset} + 4]",
                cpu = out(reg) cpu,
                offset = in(reg) offset,
                options(nostack, readonly, preserves_flags)
            );
        }
        if cpu < 1 << 16 {
            return cpu as usize;
        }
    }
    // SAFETY: takes no argument; fails only if the system call is missing.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

fn membarrier(command: libc::c_int) -> libc::c_long {
    // SAFETY: membarrier takes three numbers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

/// Registration of this process for membarrier.
#[derive(Debug)]
pub struct Membarrier(());

impl Membarrier {
    /// Registers the process. Returns `None` if the kernel or a filter refuses.
    #[must_use]
    pub fn register() -> Option<Self> {
        (membarrier(REGISTER_PRIVATE_EXPEDITED) == 0).then_some(Self(()))
    }
}

impl RemoteFence for Membarrier {
    fn heavy(&self) {
        // A registered process cannot fail here. A failed fence would let a drain and an owner use
        // a list at the same time.
        let done = membarrier(PRIVATE_EXPEDITED);
        assert_eq!(done, 0, "membarrier failed after registration");
    }
}

/// Returns the CPU time of the calling thread in nanoseconds.
#[must_use]
pub fn thread_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure outlives the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0, "no thread CPU clock");
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use ebb_mm::frame::{Config, Gfp, NoHost, Order, Request};

    #[test]
    fn the_hint_is_a_cpu_of_this_machine() {
        // SAFETY: only asks for a number.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        assert!(cpu_hint() < cpus as usize);
    }

    #[test]
    fn drains_with_membarrier_lose_and_double_nothing() {
        let Some(fence) = Membarrier::register() else {
            ebb_testing::skip("membarrier is refused here");
        };
        let mut config = Config::flat(32 * 1024, 2);
        config.fence = Some(Arc::new(fence));
        let frames = config.build().unwrap();
        let held: Vec<std::sync::atomic::AtomicU32> = (0..32 * 1024).map(|_| 0.into()).collect();
        std::thread::scope(|scope| {
            for thread in 1..=2u32 {
                let (frames, held) = (&frames, &held);
                scope.spawn(move || owner(frames, held, thread));
            }
            (0..400).for_each(|_| frames.drain_all());
        });
        frames.drain_all();
        assert_eq!(frames.check(), Ok(()));
        assert_eq!(frames.buddyinfo(), Config::flat(32 * 1024, 2).build().unwrap().buddyinfo());
    }

    fn owner(frames: &ebb_mm::frame::Frames, held: &[std::sync::atomic::AtomicU32], thread: u32) {
        use std::sync::atomic::Ordering::Relaxed;
        let cpu = frames.cpu(thread as usize - 1).unwrap();
        let request = Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO);
        for round in 0..300 {
            let mine: Vec<_> =
                (0..round % 150).map_while(|_| cpu.alloc(&request, &NoHost)).collect();
            for pfn in &mine {
                assert_eq!(held[pfn.0 as usize].swap(thread, Relaxed), 0, "{pfn:?} doubled");
            }
            for pfn in mine {
                held[pfn.0 as usize].store(0, Relaxed);
                cpu.free(pfn, Order::ZERO).unwrap();
            }
        }
    }
}
