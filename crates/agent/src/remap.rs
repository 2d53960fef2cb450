//! Makes `mremap` work over an area that the pager has split into several.
//!
//! The pager brings an area under management in its own time. If the program changes the area
//! meanwhile, one part may be registered and the other not. The kernel then has two areas, and its
//! mremap moves only one. Since Linux 6.17 an mremap with a given destination (`MREMAP_FIXED`) may
//! fail in the middle. Once management has begun, the hook looks for several areas before such a
//! move, and moves them one by one. For other moves it looks only after the kernel has refused.
//!
//! * REMAP-1: while a thread of the program holds the lock of this module, the pager registers
//!   nothing (`Shared::mapping`).
//! * REMAP-2: a thread blocks its signals in this module. A handler that moves memory would wait
//!   for the thread that it has interrupted. A waiting thread sleeps, because it may have a higher
//!   priority than the lock's owner on the only processor.
//! * REMAP-3: neither side starves. The pager tries the lock only now and then. If it found the
//!   lock taken, it goes first. A thread lets the pager go first for `PATIENCE` sleeps at most.

use crate::areas;
use crate::lost;
use crate::protocol::{MAPPING_FREE, MAPPING_PROGRAM, MAPPING_WANTED, Shared};
use crate::syscall::{self, Timespec, call};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const MAYMOVE: usize = 1;
const FIXED: usize = 2;
const DONTUNMAP: usize = 4;
const EFAULT: isize = -14;
const ENOMEM: isize = -12;
/// Time to sleep while another thread, or the pager, holds the lock. Both hold it for microseconds.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 50_000 };
/// Largest number of sleeps for a pager that is next. The pager tries the lock every millisecond
/// while memory is short.
const PATIENCE: u32 = 100;
/// Largest number of areas that one call may cover.
const PIECES_MAX: usize = 64;

/// Arguments of a program's mremap.
pub struct Request {
    pub old: usize,
    pub old_len: usize,
    pub new_len: usize,
    pub flags: usize,
    pub new: usize,
}

impl Request {
    fn ask(&self) -> isize {
        // SAFETY: the program vouches for its own call.
        unsafe {
            let args = [self.old, self.old_len, self.new_len, self.flags, self.new, 0];
            call(syscall::MREMAP, args)
        }
    }
}

/// Makes the call mremap, piece by piece if the pager has split the area.
pub fn remap(shared: &Shared, request: &Request) -> isize {
    if shared.managing.load(Acquire) == 0 || request.old_len == 0 {
        return request.ask();
    }
    let began = lost::now();
    let signals = syscall::block_signals();
    lock(shared);
    let result = settled(request, || lost::note(shared, began));
    // Pairs with the Acquire of the next owner of the lock.
    shared.mapping.fetch_and(MAPPING_WANTED, Release);
    syscall::set_signals(&signals, None);
    result
}

fn lock(shared: &Shared) {
    let mut patience = PATIENCE;
    loop {
        let now = shared.mapping.load(Relaxed);
        let is_free = now & !MAPPING_WANTED == MAPPING_FREE;
        let mine = is_free && (now & MAPPING_WANTED == 0 || patience == 0);
        if mine && shared.mapping.compare_exchange(now, MAPPING_PROGRAM, Acquire, Relaxed).is_ok() {
            return;
        }
        // The sleep ends only by timeout, because the owner of the lock does not know that others
        // wait.
        syscall::wait(&shared.mapping, now, &PAUSE);
        patience -= u32::from(is_free && patience > 0);
    }
}

fn settled(request: &Request, looked: impl Fn()) -> isize {
    let page_up = |len: usize| len.wrapping_add(4095) & !4095;
    let (old_len, new_len) = (page_up(request.old_len), page_up(request.new_len));
    if is_wrong(request, old_len, new_len) {
        return request.ask();
    }
    if request.flags & FIXED == 0 {
        looked();
        let result = request.ask();
        if result != EFAULT {
            return result;
        }
    }
    let kept = old_len.min(new_len);
    let mut pieces = [(0, 0); PIECES_MAX];
    let count = areas_of(request.old, request.old + kept, &mut pieces);
    if request.flags & FIXED != 0 {
        looked();
    }
    if count < 2 {
        return request.ask();
    }
    let pieces = &pieces[..count];
    let (last, last_len) = pieces[count - 1];
    if pieces.iter().map(|piece| piece.1).sum::<usize>() != kept {
        // There is a hole in the range: the program's own error.
        return request.ask();
    }
    let grown = new_len - kept;
    // A call that leaves the old address range empty moves the area, whatever its length.
    if request.flags & (FIXED | DONTUNMAP) == 0 {
        if new_len <= old_len {
            return request.ask();
        }
        let stay =
            Request { old: last, old_len: last_len, new_len: last_len + grown, flags: 0, new: 0 };
        if stay.ask() >= 0 {
            return request.old as isize;
        }
        if request.flags & MAYMOVE == 0 {
            return ENOMEM;
        }
    }
    let Some(to) = target(request, new_len) else { return ENOMEM };
    for &(start, len) in pieces {
        let more = if start == last { grown } else { 0 };
        let at = to + (start - request.old);
        let flags = MAYMOVE | FIXED | (request.flags & DONTUNMAP);
        let piece = Request { old: start, old_len: len, new_len: len + more, flags, new: at };
        let result = piece.ask();
        if result < 0 {
            // A kernel that fails in the middle of a move returns this error, too.
            return EFAULT;
        }
    }
    if old_len > kept {
        // SAFETY: the program gives this range up.
        unsafe { call(syscall::MUNMAP, [request.old + kept, old_len - kept, 0, 0, 0, 0]) };
    }
    to as isize
}

/// Returns whether the kernel refuses the call whatever is mapped there (`check_mremap_params` in
/// mm/mremap.c). The kernel would not notice such an error in the calls for the pieces.
fn is_wrong(request: &Request, old_len: usize, new_len: usize) -> bool {
    let has = |flag: usize| request.flags & flag != 0;
    let overlap = request.old < request.new.wrapping_add(new_len)
        && request.new < request.old.wrapping_add(old_len);
    request.flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0
        || (request.old | if has(FIXED) { request.new } else { 0 }) & 4095 != 0
        || new_len == 0
        || (has(FIXED) || has(DONTUNMAP)) && !has(MAYMOVE)
        || has(DONTUNMAP) && old_len != new_len
        || has(FIXED) && overlap
}

/// Returns the destination of the pieces: the program's, or one where the kernel has room.
fn target(request: &Request, len: usize) -> Option<usize> {
    if request.flags & FIXED != 0 {
        return Some(request.new);
    }
    // NONE, PRIVATE | ANONYMOUS | NORESERVE
    // SAFETY: a fresh mapping, replaced piece by piece.
    let at = unsafe { call(syscall::MMAP, [0, len, 0, 0x4022, usize::MAX, 0]) };
    (at >= 0).then_some(at as usize)
}

/// Stores the areas within `[start, end)` as `(start, length)` and returns their number. Areas that
/// do not fit into the table are left out.
fn areas_of(start: usize, end: usize, pieces: &mut [(usize, usize); PIECES_MAX]) -> usize {
    let mut count = 0;
    areas::for_each(&mut |area| {
        let (from, to) = (area.start.max(start), (area.start + area.len).min(end));
        if from < to && count < PIECES_MAX {
            pieces[count] = (from, to - from);
            count += 1;
        }
    });
    count
}
