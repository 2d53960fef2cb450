//! Per-CPU help from the kernel: the present CPU, and a memory fence on behalf of other threads.
//!
//! Both are hints and accelerations. If the kernel or the C library lacks one of them, a slower way
//! is chosen at run time.

use std::sync::OnceLock;

/// Maximum distance in glibc between a thread's restartable-sequence area and the head of its list
/// of robust mutexes ([`crate::process::robust_list`]), in bytes.
pub const RSEQ_WITHIN: u64 = 2048;

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

    /// Makes every running thread of this process execute a full memory fence.
    ///
    /// # Panics
    /// If the kernel refuses: a caller that goes on without the fence would break its own protocol.
    pub fn fence_all(&self) {
        // The kernel refuses no registered process.
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

    #[test]
    fn the_hint_is_a_cpu_of_this_machine() {
        // SAFETY: only asks for a number.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        assert!(cpu_hint() < cpus as usize);
    }

    #[test]
    fn the_rseq_area_lies_near_the_list_of_robust_mutexes() {
        let Some(offset) = rseq_offset() else { return };
        // SAFETY: takes no argument; in glibc the result is the thread pointer.
        let pointer = unsafe { libc::pthread_self() };
        let list = crate::process::robust_list(crate::sched::this_thread());
        let list = list.expect("of this process").expect("glibc has registered one");
        let distance = pointer.wrapping_add_signed(offset as i64).abs_diff(list);
        assert!(distance < RSEQ_WITHIN, "{distance}");
    }
}
