//! New areas that come under management at once.
//!
//! The pager finds new areas by looking, which takes it a millisecond or more; until then the program
//! fills them at the kernel's speed, whatever the limit. Where management has begun, an area that the
//! program maps itself is therefore announced ([`crate::calls`]), and the thread goes on when the area is
//! registered. (The C library's own calls, malloc's for one, do not pass here: those areas are found by
//! looking.)

use crate::calls::ask;
use crate::filter;
use crate::lost;
use crate::populate::{self, MADV_POPULATE_WRITE, MAP_POPULATE};
use crate::protocol::{ASK_MANAGE, Shared};
use core::sync::atomic::Ordering::Acquire;

const PROT_WRITE: usize = 2;
const MAP_PRIVATE: usize = 0x02;
const MAP_TYPE: usize = 0x0f;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_GROWSDOWN: usize = 0x100;
const MAP_HUGETLB: usize = 0x4_0000;
/// Areas smaller than this are not worth the wait.
const LEN_MIN: usize = 4 * 4096;

/// Makes the call `args` of mmap, and has the area managed.
pub fn map(shared: &Shared, mut args: [usize; 6]) -> isize {
    let [_, len, prot, flags, ..] = args;
    let managed = shared.managing.load(Acquire) != 0
        && !filter::is_strict()
        && flags & MAP_TYPE == MAP_PRIVATE
        && flags & (MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_HUGETLB) == MAP_ANONYMOUS
        && len >= LEN_MIN;
    let fills = managed && flags & MAP_POPULATE != 0 && prot & PROT_WRITE != 0;
    if fills {
        args[3] &= !MAP_POPULATE;
    }
    // SAFETY: the program vouches for its own call.
    let at = unsafe { populate::map(args) };
    if !managed || at < 0 {
        return at;
    }
    let began = lost::now();
    // Unanswered, the area is found by looking.
    ask(shared, ASK_MANAGE, [at as u64, len.next_multiple_of(4096) as u64]);
    lost::note(shared, began);
    if fills {
        // As with the flag, failing to is no error.
        // SAFETY: the area just made, whose pages hold nothing.
        unsafe { populate::advise(at as usize, len, MADV_POPULATE_WRITE) };
    }
    at
}
