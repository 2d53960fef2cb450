//! Implements `mlockall` without locking the agent's own areas.
//!
//! The kernel would fill the pool with empty pages, as many as the limit allows. It discards no
//! locked page. It would also let pages move from a locked area to a locked pool, although
//! `mlockall` is to keep them. The hook therefore marks all areas as locked and unlocks the pool.
//! It then fills the other areas of the kernel's list, one by one.

use crate::areas::{self, Area};
use crate::syscall::{self, call};

const MCL_CURRENT: usize = 1;
const MCL_FUTURE: usize = 2;
const MCL_ONFAULT: usize = 4;

/// Makes the call `mlockall(flags)`, but leaves out the areas `own`.
pub fn lock_all(flags: usize, own: &[Area]) -> isize {
    let fills = flags & MCL_CURRENT != 0 && flags & MCL_ONFAULT == 0;
    let marking = if fills { flags | MCL_ONFAULT } else { flags };
    // SAFETY: the program asks for it; only whether pages may leave memory changes.
    let marked = unsafe { call(syscall::MLOCKALL, [marking, 0, 0, 0, 0, 0]) };
    if marked < 0 {
        return marked;
    }
    own.iter().for_each(|&area| unlock(area));
    if fills {
        areas::for_each(&mut |area| {
            if !own.iter().any(|own| area.overlaps(own)) {
                // An area that cannot be filled is skipped, as `mlockall` does.
                // SAFETY: the program asks for it; only whether pages may leave memory changes.
                unsafe { call(syscall::MLOCK, [area.start, area.len, 0, 0, 0, 0]) };
            }
        });
        if flags & MCL_FUTURE != 0 {
            // Later areas are filled whole at once.
            // SAFETY: the program asks for it; only whether pages may leave memory changes.
            unsafe { call(syscall::MLOCKALL, [MCL_FUTURE, 0, 0, 0, 0, 0]) };
        }
    }
    marked
}

/// Unlocks an area, so that its pages may be discarded again.
pub fn unlock(area: Area) {
    // SAFETY: changes no content.
    unsafe { call(syscall::MUNLOCK, [area.start, area.len, 0, 0, 0, 0]) };
}

impl Area {
    fn overlaps(&self, other: &Self) -> bool {
        self.start < other.start + other.len && other.start < self.start + self.len
    }
}
