//! Lists the areas of the address space from the kernel's list, for threads of the program.
//!
//! * AREAS-1: reading the list opens and closes no descriptor of the program. A short-lived thread
//!   with its own, empty descriptor table reads it.

use crate::syscall::{self, call, spawn};

const EINTR: isize = -4;
const STACK_BYTES: usize = 32 << 10;

/// Area `[start, start + len)`.
#[derive(Clone, Copy)]
pub struct Area {
    pub start: usize,
    pub len: usize,
}

struct Job<'a> {
    each: &'a mut dyn FnMut(Area),
}

/// Calls `each` with every area, on another thread, and waits for that thread. If the list cannot
/// be read, does not call `each`.
pub fn for_each(each: &mut dyn FnMut(Area)) {
    // READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let stack = unsafe { call(syscall::MMAP, [0, STACK_BYTES, 3, 0x4022, usize::MAX, 0]) };
    if stack < 0 {
        return;
    }
    let stack = stack as usize;
    // No signal handler runs on that stack, nor while this thread waits.
    let signals = syscall::block_signals();
    let mut job = Job { each };
    let argument = &raw mut job as usize;
    // SAFETY: the thread has its own stack; the job outlives the thread, because this function
    // waits for it.
    unsafe {
        let (top, nowhere) = (stack + STACK_BYTES - 64, core::ptr::null());
        spawn(read, argument, top, stack, syscall::BRIEF, nowhere);
    }
    syscall::set_signals(&signals, None);
    // SAFETY: the mapping made above, which is no longer in use.
    unsafe { call(syscall::MUNMAP, [stack, STACK_BYTES, 0, 0, 0, 0]) };
}

/// Runs the short-lived thread: reads the list and passes each area to the job.
extern "C" fn read(argument: usize) -> ! {
    const UNSHARE: usize = 2;
    // SAFETY: the job of the thread that waits.
    let job = unsafe { &mut *(argument as *mut Job<'_>) };
    // SAFETY: from here on the thread has its own, empty descriptor table (AREAS-1). The path is
    // constant, and the buffer is on its own stack.
    unsafe {
        if call(syscall::CLOSE_RANGE, [0, u32::MAX as usize, UNSHARE, 0, 0, 0]) >= 0 {
            // The list of this thread is read, because a leader that has ended has no list any
            // more. AT_FDCWD, O_RDONLY
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

/// Parser of a line of the list, which begins with start and end in hexadecimal.
#[derive(Default)]
struct Line {
    /// Start and end as read up to now, and the index of the next word. The parser skips the rest
    /// of the line.
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
