//! Interpreter for "classic" BPF, which computes how a seccomp filter (seccomp(2)) answers a system
//! call.

use crate::syscall;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Instruction {
    code: u16,
    if_true: u8,
    if_false: u8,
    k: u32,
}

/// Returns whether a process behind the filter may try to join. The filter must answer no call of a
/// join with a signal or the end of the process.
pub fn lets_join(program: &[Instruction]) -> bool {
    CALLS.iter().all(|&(number, args)| lets_live(program, number, args))
}

/// System calls of a child that joins and of its agent afterwards, with the arguments that filters
/// check most often.
const CALLS: [(usize, [usize; 3]); 33] = [
    (syscall::RT_SIGPROCMASK, [2, 0, 0]),
    (syscall::MMAP, [0, 4096, 3]),
    (syscall::MUNMAP, [0, 4096, 0]),
    (syscall::MADVISE, [0, 4096, 4]),
    (syscall::MADVISE, [0, 4096, 15]),
    (syscall::MADVISE, [0, 4096, 16]),
    (syscall::CLONE, [syscall::THREAD | syscall::AGENTS, 0, 0]),
    (syscall::FUTEX, [0, 0, 0]),
    (syscall::FUTEX, [0, 1, 0]),
    (syscall::CLOSE_RANGE, [0, u32::MAX as usize, 0]),
    (syscall::SOCKETPAIR, [1, 5 | 0x8_0000, 0]),
    (syscall::SOCKET, [1, 5 | 0x8_0000, 0]),
    (syscall::CONNECT, [0, 0, 0]),
    (syscall::GETSOCKOPT, [0, 1, 17]),
    (syscall::GETUID, [0, 0, 0]),
    (syscall::GETPID, [0, 0, 0]),
    (syscall::GETTID, [0, 0, 0]),
    (syscall::CLOCK_GETTIME, [1, 0, 0]),
    (syscall::SETSOCKOPT, [0, 1, 20]),
    (syscall::SENDMSG, [0, 0, 0]),
    (syscall::RECVMSG, [0, 0, 0]),
    (syscall::CLOSE, [0, 0, 0]),
    (syscall::CAPSET, [0, 0, 0]),
    (syscall::CHDIR, [0, 0, 0]),
    (syscall::PRCTL, [41, 1, 0]),
    (syscall::PRCTL, [21, 0, 0]),
    (syscall::USERFAULTFD, [0x8_0801, 0, 0]),
    (syscall::IOCTL, [0, 0xC018_AA3F, 0]),
    (syscall::IOCTL, [0, 0xC020_AA00, 0]),
    (syscall::IOCTL, [0, 0xC028_AA05, 0]),
    (syscall::READ, [0, 0, 2]),
    (syscall::STATX, [0, 0, 0x5000]),
    (syscall::EXIT, [0, 0, 0]),
];

/// Returns whether the filter allows a call, or answers it with an error.
fn lets_live(program: &[Instruction], number: usize, args: [usize; 3]) -> bool {
    const ACTION: u32 = 0xffff_0000;
    const ERRNO: u32 = 0x0005_0000;
    const LOG: u32 = 0x7ffc_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let Some(value) = run(program, number, args) else { return false };
    // The error 0 is refused, because the caller would take it for a success.
    value != ERRNO && matches!(value & ACTION, ERRNO | LOG | ALLOW)
}

/// Returns the word at offset `at` of `struct seccomp_data`.
fn data(number: usize, args: [usize; 3], at: u32) -> u32 {
    const X86_64: u32 = 0xC000_003E;
    match at {
        0 => number as u32,
        4 => X86_64,
        16..40 => (args[(at as usize - 16) / 8] >> (at % 8 * 8)) as u32,
        _ => 0,
    }
}

/// Returns the filter's answer to a call, or None for a program that no kernel would accept.
fn run(program: &[Instruction], number: usize, args: [usize; 3]) -> Option<u32> {
    const DATA_BYTES: u32 = 64;
    let (mut a, mut x, mut at, mut memory) = (0u32, 0u32, 0usize, [0u32; 16]);
    loop {
        let Instruction { code, if_true, if_false, k } = *program.get(at)?;
        at += 1;
        // BPF_SRC selects the second operand.
        let operand = if code & 0x08 == 0 { k } else { x };
        let place = k as usize;
        match code & 0x07 {
            // LD and LDX: load a constant, a word of the call, memory or the length.
            class @ (0 | 1) => {
                let value = match code & 0xe0 {
                    0x00 => k,
                    0x20 => data(number, args, k),
                    0x60 => *memory.get(place)?,
                    0x80 => DATA_BYTES,
                    _ => return None,
                };
                *(if class == 0 { &mut a } else { &mut x }) = value;
            }
            2 => *memory.get_mut(place)? = a,
            3 => *memory.get_mut(place)? = x,
            4 => {
                a = match code & 0xf0 {
                    0x00 => a.wrapping_add(operand),
                    0x10 => a.wrapping_sub(operand),
                    0x20 => a.wrapping_mul(operand),
                    0x30 => a.checked_div(operand)?,
                    0x40 => a | operand,
                    0x50 => a & operand,
                    0x60 => a.wrapping_shl(operand),
                    0x70 => a.wrapping_shr(operand),
                    0x80 => a.wrapping_neg(),
                    0xa0 => a ^ operand,
                    _ => return None,
                }
            }
            5 => {
                let holds = match code & 0xf0 {
                    0x00 => {
                        at = at.checked_add(place)?;
                        continue;
                    }
                    0x10 => a == operand,
                    0x20 => a > operand,
                    0x30 => a >= operand,
                    0x40 => a & operand != 0,
                    _ => return None,
                };
                at += usize::from(if holds { if_true } else { if_false });
            }
            6 => return Some(if code & 0x18 == 0x10 { a } else { k }),
            _ if code & 0x80 == 0 => x = a,
            _ => a = x,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CALLS, Instruction, lets_join, lets_live, run};
    use crate::syscall;
    use std::vec;
    use std::vec::Vec;

    const ALLOW: u32 = 0x7fff_0000;
    const KILL: u32 = 0x8000_0000;
    const TRAP: u32 = 0x0003_0000;
    const EPERM: u32 = 0x0005_0001;

    fn instruction(code: u16, k: u32, if_true: u8, if_false: u8) -> Instruction {
        Instruction { code, if_true, if_false, k }
    }

    /// Returns a filter that allows these calls and answers all others with `action`.
    fn list(calls: &[usize], action: u32) -> Vec<Instruction> {
        let mut program = vec![instruction(0x20, 0, 0, 0)];
        for &call in calls {
            program.push(instruction(0x15, call as u32, 0, 1));
            program.push(instruction(0x06, ALLOW, 0, 0));
        }
        program.push(instruction(0x06, action, 0, 0));
        program
    }

    #[test]
    fn a_process_may_join_unless_its_filter_kills_a_call_of_the_join() {
        let all: Vec<usize> = CALLS.iter().map(|&(number, _)| number).collect();
        for action in [KILL, TRAP, EPERM] {
            assert!(lets_join(&list(&all, action)));
        }
        for missing in CALLS {
            let few: Vec<usize> = all.iter().copied().filter(|&call| call != missing.0).collect();
            assert!(!lets_join(&list(&few, KILL)) && !lets_join(&list(&few, TRAP)), "{missing:?}");
            assert!(lets_join(&list(&few, EPERM)), "{missing:?}");
            assert!(!lets_join(&list(&few, EPERM & 0xffff_0000)), "success that is none");
        }
    }

    #[test]
    fn a_filter_sees_the_arguments_and_the_architecture_of_a_call() {
        // This filter allows a call on x86-64 whose second argument has this low half.
        let program = [
            instruction(0x20, 4, 0, 0),
            instruction(0x15, 0xC000_003E, 0, 3),
            instruction(0x20, 24, 0, 0),
            instruction(0x15, 0xC028_AA05, 0, 1),
            instruction(0x06, ALLOW, 0, 0),
            instruction(0x06, KILL, 0, 0),
        ];
        assert!(lets_live(&program, syscall::IOCTL, [7, 0xC028_AA05, 0]));
        assert!(!lets_live(&program, syscall::IOCTL, [0xC028_AA05, 7, 0]));
    }

    #[test]
    fn a_bpf_program_computes_its_answer_and_has_none_without_a_return() {
        // ((5 + 3) * 4 - 2) / 3 ^ 1 = 11; stored in memory, negated twice, and returned by way of
        // X.
        let program = [
            instruction(0x00, 5, 0, 0),
            instruction(0x04, 3, 0, 0),
            instruction(0x24, 4, 0, 0),
            instruction(0x14, 2, 0, 0),
            instruction(0x34, 3, 0, 0),
            instruction(0xa4, 1, 0, 0),
            instruction(0x02, 9, 0, 0),
            instruction(0x84, 0, 0, 0),
            instruction(0x84, 0, 0, 0),
            instruction(0x07, 0, 0, 0),
            instruction(0x61, 9, 0, 0),
            instruction(0x87, 0, 0, 0),
            instruction(0x05, 1, 0, 0),
            instruction(0x06, 0, 0, 0),
            instruction(0x16, 0, 0, 0),
        ];
        assert_eq!(run(&program, 0, [0; 3]), Some(11));
        assert_eq!(run(&program[..3], 0, [0; 3]), None, "it does not end");
    }
}
