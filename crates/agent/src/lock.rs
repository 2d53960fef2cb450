//! Locking all of memory: not the agent's own areas.
//!
//! The kernel would fill the pool with pages that hold nothing, as many as the limit allows, and discard none of
//! them while they are locked; and from a locked area to a locked pool pages move, though the program was
//! promised that they stay. So areas are marked as locked first and filled after the pool is let off:
//! those that the kernel lists, one by one.

use crate::areas::{self, Area};
use crate::syscall::{self, call};

const MCL_CURRENT: usize = 1;
const MCL_FUTURE: usize = 2;
const MCL_ONFAULT: usize = 4;

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
        areas::for_each(&mut |area| {
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
