//! System calls that give up because their thread is made to stand, put right so that the program does not notice.
//!
//! A thread is made to stand in the way a signal is told. Most calls are begun again by the kernel after that; some give up,
//! though no handler ran (signal(7), "Interruption of system calls and library functions by stop signals"): with `EINTR`, or
//! with a part of what they were asked to do.
//!
//! * CUT-1: a call that has done nothing is begun again. A limit of time that it has begins anew.
//! * CUT-2: of one that has done a part the rest is done, and what is returned is the sum.
//! * CUT-3: a call that might have given up by itself with the same result is one of which that is true as well: begun again,
//!   or asked for the rest, it does so once more, at once.

use libc::{c_long, user_regs_struct as Registers};

/// What puts it right.
#[derive(Debug)]
pub(crate) enum Remedy {
    /// Nothing is wrong.
    None,
    /// Goes on with these (CUT-1).
    Again(Registers),
    /// Does the rest first (CUT-2).
    Rest(Rest),
}

/// What is left of a call.
#[derive(Debug)]
pub(crate) struct Rest {
    /// As the part of it left them.
    found: Registers,
}

/// `libc` does not have it.
const SYS_IO_PGETEVENTS: c_long = 333;

/// Calls that end with EINTR, of those after which nothing has been done then. Not `close`: it has been.
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

/// The code segment of programs of 64 bits: the numbers of calls are others in those of 32.
const CODE_64: u64 = 0x33;
/// Bytes of the instruction that enters the kernel.
const SYSCALL_LEN: u64 = 2;

/// Of a thread that stands behind a system call, or anywhere else.
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

/// Whether it is of those that stop half-way, and has.
fn is_partial(call: c_long, found: &Registers) -> bool {
    let stops = match call {
        libc::SYS_write | libc::SYS_sendto => true,
        libc::SYS_recvfrom => found.r10 & libc::MSG_WAITALL as u64 != 0,
        _ => false,
    };
    stops && found.rax < found.rdx
}

/// About to enter the kernel with the call that they are behind.
fn begun_again(found: Registers) -> Registers {
    Registers { rip: found.rip - SYSCALL_LEN, rax: found.orig_rax, ..found }
}

impl Rest {
    /// About to do it.
    pub(crate) fn registers(&self) -> Registers {
        let done = self.found.rax;
        begun_again(Registers {
            rsi: self.found.rsi + done,
            rdx: self.found.rdx - done,
            ..self.found
        })
    }

    /// What the program finds, with `more` of it done. An error is told at its next call, as after any part.
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
    fn only_what_gave_up_is_begun_again() {
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
    fn what_is_left_is_done_and_the_sum_returned() {
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
