//! The areas of the address space, as the kernel lists them, for threads of the program.
//!
//! * AREAS-1: no descriptor of the program's comes or goes for it. A thread that lives as long as that reads the list: it has a
//!   table of descriptors of its own, in which nothing of the program's is.

use crate::syscall::{self, call, spawn};

const EINTR: isize = -4;
const STACK_BYTES: usize = 32 << 10;

/// `[start, start + len)`.
#[derive(Clone, Copy)]
pub struct Area {
    pub start: usize,
    pub len: usize,
}

struct Job<'a> {
    each: &'a mut dyn FnMut(Area),
}

/// Calls `each` with every area, in a thread beside this one, which waits. Of none if the list cannot be read.
pub fn for_each(each: &mut dyn FnMut(Area)) {
    // READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let stack = unsafe { call(syscall::MMAP, [0, STACK_BYTES, 3, 0x4022, usize::MAX, 0]) };
    if stack < 0 {
        return;
    }
    let stack = stack as usize;
    // No handler runs on that stack, nor while this thread waits for it.
    let signals = syscall::block_signals();
    let mut job = Job { each };
    let argument = &raw mut job as usize;
    // SAFETY: memory of its own; the job outlives the thread, which is waited for.
    unsafe {
        let (top, nowhere) = (stack + STACK_BYTES - 64, core::ptr::null());
        spawn(read, argument, top, stack, syscall::BRIEF, nowhere);
    }
    syscall::set_signals(&signals, None);
    // SAFETY: the mapping made above, which nobody uses any more.
    unsafe { call(syscall::MUNMAP, [stack, STACK_BYTES, 0, 0, 0, 0]) };
}

/// The thread.
extern "C" fn read(argument: usize) -> ! {
    const UNSHARE: usize = 2;
    // SAFETY: the job of who waits.
    let job = unsafe { &mut *(argument as *mut Job<'_>) };
    // SAFETY: a table of this thread's own from here on, with nothing in it (AREAS-1); a constant path; a buffer of its own.
    unsafe {
        if call(syscall::CLOSE_RANGE, [0, u32::MAX as usize, UNSHARE, 0, 0, 0]) >= 0 {
            // A leader that has ended has no list any more. AT_FDCWD, O_RDONLY
            let path = c"/proc/thread-self/maps".as_ptr() as usize;
            let list = call(syscall::OPENAT, [-100isize as usize, path, 0, 0, 0, 0]);
            let mut buffer = [0u8; 4096];
            let mut line = Line::default();
            while list >= 0 {
                let to = buffer.as_mut_ptr() as usize;
                match call(syscall::READ, [list as usize, to, buffer.len(), 0, 0, 0]) {
                    EINTR => {}
                    got if got > 0 => {
                        let areas =
                            buffer[..got as usize].iter().filter_map(|&byte| line.read(byte));
                        areas.for_each(&mut *job.each);
                    }
                    _ => break,
                }
            }
        }
        loop {
            call(syscall::EXIT, [0; 6]);
        }
    }
}

/// Reads a line of the list: in hexadecimal, start and end first.
#[derive(Default)]
struct Line {
    /// Start and end, as far as they are read, and which is next; beyond both, the rest is passed over.
    words: [usize; 2],
    word: usize,
}

impl Line {
    fn read(&mut self, byte: u8) -> Option<Area> {
        if byte == b'\n' {
            let [start, end] = self.words;
            *self = Self::default();
            return end.checked_sub(start).map(|len| Area { start, len });
        }
        let word = self.words.get_mut(self.word)?;
        match (byte as char).to_digit(16) {
            Some(digit) => *word = *word << 4 | digit as usize,
            None => self.word += 1,
        }
        None
    }
}
