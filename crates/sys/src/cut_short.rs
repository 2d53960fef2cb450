//! Repairs system calls that give up because their thread is frozen, so that the program does not
//! notice.
//!
//! A thread is frozen in the same way as it takes a signal. The kernel restarts most system calls
//! that a signal without a handler interrupts. Some calls give up although no handler has run, with
//! `EINTR` or with a part of their work done. (signal(7): "Interruption of system calls and library
//! functions by stop signals".)
//!
//! * CUT-1: a call that has done nothing is restarted. Its time limit, if any, begins anew.
//! * CUT-2: for a call that has done a part, the thread does the rest, and the call returns the
//!   sum.
//! * CUT-3: a call that might have given up by itself with the same result is treated alike. Such a
//!   call gives up again at once when it is restarted or does the rest.

use libc::{c_long, user_regs_struct as Registers};

/// Repair of an interrupted system call.
#[derive(Debug)]
pub(crate) enum Remedy {
    /// Nothing needs repair.
    None,
    /// The thread continues with these registers, which restart the call (CUT-1).
    Again(Registers),
    /// The thread first does the rest of the call (CUT-2).
    Rest(Rest),
}

/// Rest of an interrupted system call.
#[derive(Debug)]
pub(crate) struct Rest {
    /// Registers after the first part of the call.
    found: Registers,
}

/// System call number that `libc` lacks.
const SYS_IO_PGETEVENTS: c_long = 333;

/// Calls that fail with EINTR and have then done nothing. `close` is not in the list, because it
/// has closed the descriptor.
const GIVE_UP: [c_long; 30] = [
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Code segment of 64-bit programs. In 32-bit programs system calls have other numbers.
const CODE_64: u64 = 0x33;
/// Length in bytes of the instruction that enters the kernel.
const SYSCALL_LEN: u64 = 2;

/// Returns the repair for a thread with these registers, which has stopped after a system call or
/// anywhere else.
pub(crate) fn remedy(found: &Registers) -> Remedy {
    let call = found.orig_rax.cast_signed();
    if found.cs != CODE_64 || call < 0 {
        return Remedy::None;
    }
    match found.rax.cast_signed() {
        done if done == -i64::from(libc::EINTR) && GIVE_UP.contains(&call) => {
            Remedy::Again(begun_again(*found))
        }
        1.. if is_partial(call, found) => Remedy::Rest(Rest { found: *found }),
        _ => Remedy::None,
    }
}

/// Returns whether the call is one that can stop half-way, and has done so.
fn is_partial(call: c_long, found: &Registers) -> bool {
    let stops = match call {
        libc::SYS_write | libc::SYS_sendto => true,
        libc::SYS_recvfrom => found.r10 & libc::MSG_WAITALL as u64 != 0,
        _ => false,
    };
    stops && found.rax < found.rdx
}

/// Returns the registers that make the thread enter the kernel again with the call that it has just
/// left.
fn begun_again(found: Registers) -> Registers {
    Registers { rip: found.rip - SYSCALL_LEN, rax: found.orig_rax, ..found }
}

impl Rest {
    /// Returns the registers with which the thread does the rest.
    pub(crate) fn registers(&self) -> Registers {
        let done = self.found.rax;
        begun_again(Registers {
            rsi: self.found.rsi + done,
            rdx: self.found.rdx - done,
            ..self.found
        })
    }

    /// Returns the registers that the program sees after `more` of the rest. If the rest failed,
    /// the program's next call reports the error, as after any partial result.
    pub(crate) fn sum(&self, more: i64) -> Registers {
        Registers { rax: self.found.rax + more.max(0).cast_unsigned(), ..self.found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn behind(call: c_long, result: i64) -> Registers {
        // SAFETY: a plain structure, for which all zeros is valid.
        let zeros: Registers = unsafe { std::mem::zeroed() };
        let (orig_rax, rax) = (call.cast_unsigned(), result.cast_unsigned());
        Registers { cs: CODE_64, rip: 1002, orig_rax, rax, rsi: 5000, rdx: 100, ..zeros }
    }

    #[test]
    fn only_a_call_that_gave_up_is_begun_again() {
        let gave_up = -i64::from(libc::EINTR);
        let Remedy::Again(again) = remedy(&behind(libc::SYS_epoll_wait, gave_up)) else {
            panic!("it gave up")
        };
        assert_eq!((again.rip, again.rax), (1000, libc::SYS_epoll_wait as u64));
        let others = [
            behind(libc::SYS_epoll_wait, 0),
            behind(libc::SYS_epoll_wait, -i64::from(libc::EBADF)),
            behind(libc::SYS_close, gave_up),
            behind(-1, gave_up),
            Registers { cs: 0x23, ..behind(libc::SYS_epoll_wait, gave_up) },
        ];
        for found in others {
            assert!(matches!(remedy(&found), Remedy::None), "{found:?}");
        }
    }

    #[test]
    fn the_rest_of_a_partial_call_is_done_and_the_sum_returned() {
        let Remedy::Rest(rest) = remedy(&behind(libc::SYS_write, 30)) else { panic!("a part") };
        let call = rest.registers();
        assert_eq!((call.rsi, call.rdx, call.rip, call.rax), (5030, 70, 1000, 1));
        for (more, sum) in [(70, 100), (20, 50), (0, 30), (-32, 30), (-512, 30)] {
            let found = rest.sum(more);
            assert_eq!((found.rax, found.rsi, found.rdx, found.rip), (sum, 5000, 100, 1002));
        }
        let waits = Registers { r10: libc::MSG_WAITALL as u64, ..behind(libc::SYS_recvfrom, 30) };
        assert!(matches!(remedy(&waits), Remedy::Rest(_)));
        for found in [
            behind(libc::SYS_write, 100),
            behind(libc::SYS_write, 0),
            behind(libc::SYS_read, 30),
            behind(libc::SYS_recvfrom, 30),
        ] {
            assert!(matches!(remedy(&found), Remedy::None), "{found:?}");
        }
    }
}
