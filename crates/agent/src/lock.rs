//! Locking all of memory: not the agent's own areas.
//!
//! The kernel would fill the pool with pages that hold nothing, as many as the limit allows, and discard none of
//! them while they are locked; and from a locked area to a locked pool pages move, though the program was
//! promised that they stay. So areas are marked as locked first and filled after the pool is let off:
//! those that the kernel lists, one by one.

use crate::syscall::{self, call};

const MCL_CURRENT: usize = 1;
const MCL_FUTURE: usize = 2;
const MCL_ONFAULT: usize = 4;
const EINTR: isize = -4;
/// AT_FDCWD, O_RDONLY | O_CLOEXEC
const HERE: usize = -100isize as usize;
const READ_ONLY: usize = 0x8_0000;

/// `[start, start + len)`.
#[derive(Clone, Copy)]
pub struct Area {
    pub start: usize,
    pub len: usize,
}

/// Makes the call `mlockall(flags)`, leaving out `own`.
pub fn lock_all(flags: usize, own: &[Area]) -> isize {
    let fills = flags & MCL_CURRENT != 0 && flags & MCL_ONFAULT == 0;
    let marking = if fills { flags | MCL_ONFAULT } else { flags };
    // SAFETY: the program asks for it; nothing but what may leave memory changes.
    let marked = unsafe { call(syscall::MLOCKALL, [marking, 0, 0, 0, 0, 0]) };
    if marked < 0 {
        return marked;
    }
    own.iter().for_each(|&area| unlock(area));
    if fills {
        for_each_area(|area| {
            if !own.iter().any(|own| area.overlaps(own)) {
                // Areas that cannot be filled are passed over, as by the call.
                // SAFETY: as above.
                unsafe { call(syscall::MLOCK, [area.start, area.len, 0, 0, 0, 0]) };
            }
        });
        if flags & MCL_FUTURE != 0 {
            // Of what comes later all is filled at once.
            // SAFETY: as above.
            unsafe { call(syscall::MLOCKALL, [MCL_FUTURE, 0, 0, 0, 0, 0]) };
        }
    }
    marked
}

/// Pages of the agent's own area may be discarded again.
pub fn unlock(area: Area) {
    // SAFETY: changes no content.
    unsafe { call(syscall::MUNLOCK, [area.start, area.len, 0, 0, 0, 0]) };
}

impl Area {
    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start + other.len && other.start < self.start + self.len
    }
}

/// Calls `each` with every area of the address space, as the kernel lists them: in hexadecimal, start and
/// end first in each line.
fn for_each_area(mut each: impl FnMut(Area)) {
    // SAFETY: a constant path; a descriptor of our own; a buffer of our own stack.
    unsafe {
        let path = c"/proc/self/maps".as_ptr() as usize;
        let list = call(syscall::OPENAT, [HERE, path, READ_ONLY, 0, 0, 0]);
        if list < 0 {
            return;
        }
        let mut buffer = [0u8; 1024];
        let mut line = Line::default();
        loop {
            let read = [list as usize, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0];
            match call(syscall::READ, read) {
                EINTR => {}
                got if got > 0 => {
                    for &byte in &buffer[..got as usize] {
                        if let Some(area) = line.read(byte) {
                            each(area);
                        }
                    }
                }
                _ => break,
            }
        }
        call(syscall::CLOSE, [list as usize, 0, 0, 0, 0, 0]);
    }
}

/// Reads a line of the list.
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
