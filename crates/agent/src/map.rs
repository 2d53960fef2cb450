//! Brings new areas under management at once.
//!
//! The pager finds new areas by scanning, which takes a millisecond or more. Until then the program
//! fills them at the kernel's speed, whatever the limit. Once management has begun, the hook
//! announces an area that the program itself maps ([`crate::calls`]). The thread goes on when the
//! area is registered. The C library's internal calls (malloc's for example) bypass the hook, so
//! the pager finds those areas by scanning.
//!
//! Private memory of `/dev/zero` is anonymous, but its file keeps Ebb from paging it. The kernel
//! takes the file for one of length zero and fills no page of it through a userfaultfd (EFAULT).
//! The hook gives the program anonymous memory without a file instead.

use crate::calls::ask;
use crate::filter;
use crate::lost;
use crate::populate::{self, MADV_POPULATE_WRITE, MAP_POPULATE};
use crate::protocol::{ASK_MANAGE, Shared};
use crate::syscall::{self, call};
use core::sync::atomic::Ordering::Acquire;

const PROT_WRITE: usize = 2;
const MAP_PRIVATE: usize = 0x02;
const MAP_TYPE: usize = 0x0f;
const MAP_FIXED: usize = 0x10;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_GROWSDOWN: usize = 0x100;
const MAP_LOCKED: usize = 0x2000;
const MAP_HUGETLB: usize = 0x4_0000;
const MAP_FIXED_NOREPLACE: usize = 0x10_0000;
/// Flags of areas that are never paged.
const NOT_PAGED: usize = MAP_GROWSDOWN | MAP_LOCKED | MAP_HUGETLB;
/// Bytes from which on the wait for registration is worthwhile.
const LEN_MIN: usize = 4 * 4096;

/// Makes the call mmap with `args`, and has the area managed.
pub fn map(shared: Option<&Shared>, mut args: [usize; 6]) -> isize {
    if !is_of_zero_device(&args) {
        return map_managed(shared, args);
    }
    let [_, len, prot, flags, ..] = args;
    args[3] &= !MAP_POPULATE;
    // The kernel reports errors of the call or of the descriptor.
    // SAFETY: the program vouches for its own call.
    let at = unsafe { populate::map(args) };
    if at < 0 {
        return at;
    }
    let over = flags & !MAP_FIXED_NOREPLACE | MAP_FIXED;
    let anonymous = [at as usize, len, prot, over | MAP_ANONYMOUS, usize::MAX, 0];
    if map_managed(shared, anonymous) >= 0 {
        return at;
    }
    // Before Linux 6.12 the failed call may have removed the device's memory.
    let [.., offset] = args;
    // SAFETY: the program's own call has just made this area.
    unsafe { populate::map([at as usize, len, prot, over, args[4], offset]) }
}

/// Returns whether `args` ask for private, writable memory of `/dev/zero`. Behind a strict filter
/// the hook does not look at the file. The filter could kill the program for that.
fn is_of_zero_device(args: &[usize; 6]) -> bool {
    let [_, _, prot, flags, fd, _] = *args;
    let private = flags & (MAP_TYPE | MAP_ANONYMOUS | NOT_PAGED) == MAP_PRIVATE;
    private && prot & PROT_WRITE != 0 && !filter::is_strict() && is_zero_device(fd)
}

fn is_zero_device(fd: usize) -> bool {
    /// `struct statx`.
    #[repr(C)]
    struct Status {
        before: [u32; 7],
        mode: u16,
        between: [u16; 49],
        major: u32,
        minor: u32,
        after: [u32; 30],
    }
    const _: () =
        assert!(size_of::<Status>() == 256 && core::mem::offset_of!(Status, major) == 128);
    // AT_EMPTY_PATH | AT_STATX_DONT_SYNC: the kernel asks no file server.
    const FLAGS: usize = 0x1000 | 0x4000;
    const MODE_TYPE: u16 = 0o170_000;
    const MODE_CHARACTERS: u16 = 0o020_000;
    let mut status = core::mem::MaybeUninit::<Status>::zeroed();
    let args = [fd, c"".as_ptr() as usize, FLAGS, 1, status.as_mut_ptr() as usize, 0];
    // SAFETY: the name and the buffer outlive the call; all zeros are a valid `Status`.
    let (result, status) = unsafe { (call(syscall::STATX, args), status.assume_init_ref()) };
    let is_device = status.mode & MODE_TYPE == MODE_CHARACTERS;
    result == 0 && is_device && (status.major, status.minor) == (1, 5)
}

fn map_managed(shared: Option<&Shared>, mut args: [usize; 6]) -> isize {
    let [_, len, prot, flags, ..] = args;
    let managing = shared.filter(|shared| {
        shared.managing.load(Acquire) != 0
            && !filter::is_strict()
            && flags & (MAP_TYPE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_HUGETLB)
                == MAP_PRIVATE | MAP_ANONYMOUS
            && len >= LEN_MIN
    });
    let fills = managing.is_some() && flags & MAP_POPULATE != 0 && prot & PROT_WRITE != 0;
    if fills {
        args[3] &= !MAP_POPULATE;
    }
    // SAFETY: the program vouches for its own call.
    let at = unsafe { populate::map(args) };
    let Some(shared) = managing.filter(|_| at >= 0) else { return at };
    let began = lost::now();
    // If the pager does not answer, it finds the area by scanning.
    ask(shared, ASK_MANAGE, [at as u64, len.next_multiple_of(4096) as u64]);
    lost::note(shared, began);
    if fills {
        // A failure is no error, as with the flag.
        // SAFETY: the area just made, whose pages hold nothing.
        unsafe { populate::advise(at as usize, len, MADV_POPULATE_WRITE) };
    }
    at
}
