//! `mremap` over areas that only the pager made several.
//!
//! An area comes under management in the pager's own time. Where the program changes it meanwhile, one
//! half may be registered and the other not: two areas to the kernel, whose mremap moves one area
//! only, and since 6.17 may give up in the middle where it is told where to (`MREMAP_FIXED`). So where management has begun
//! the agent looks before it moves what is told that, and else when the kernel has refused: several areas are moved one by one.
//!
//! * REMAP-1: while a program's thread is in here the pager registers nothing (`Shared::mapping`).
//! * REMAP-2: a thread that is in here takes no signal: a handler that moves memory, too, would wait for the thread it
//!   has interrupted. Who waits sleeps: it may be ahead of the other on the only processor.
//! * REMAP-3: neither side starves: the pager, which only looks in now and then, is let go first where it has come in vain, and
//!   not waited for longer than it takes to come again.

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
/// How long to sleep where another thread, or the pager, is at it: both are for microseconds.
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 50_000 };
/// How many times to sleep so for a pager that is next: it looks in every millisecond while memory is short.
const PATIENCE: u32 = 100;
/// Most areas one call may cover.
const PIECES_MAX: usize = 64;

/// What a program asks of mremap.
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

/// Makes the call.
pub fn remap(shared: &Shared, request: &Request) -> isize {
    if shared.managing.load(Acquire) == 0 || request.old_len == 0 {
        return request.ask();
    }
    let began = lost::now();
    let signals = syscall::block_signals();
    lock(shared);
    let result = settled(request, || lost::note(shared, began));
    // Partner: the Acquire of who takes it next.
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
        // Nobody wakes it: who has the word does not know that others wait.
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
        // A hole: the program's own error.
        return request.ask();
    }
    let grown = new_len - kept;
    // What leaves its old place empty is moved, whatever its length.
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
            // As a kernel that gives up in the middle.
            return EFAULT;
        }
    }
    if old_len > kept {
        // SAFETY: what the program gives up.
        unsafe { call(syscall::MUNMAP, [request.old + kept, old_len - kept, 0, 0, 0, 0]) };
    }
    to as isize
}

/// Whether the kernel refuses this whatever lies there (`check_mremap_params` in mm/mremap.c): of its pieces it would not know.
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

/// Where the pieces go: where the program says, or where the kernel has room.
fn target(request: &Request, len: usize) -> Option<usize> {
    if request.flags & FIXED != 0 {
        return Some(request.new);
    }
    // NONE, PRIVATE | ANONYMOUS | NORESERVE
    // SAFETY: a fresh mapping, replaced piece by piece.
    let at = unsafe { call(syscall::MMAP, [0, len, 0, 0x4022, usize::MAX, 0]) };
    (at >= 0).then_some(at as usize)
}

/// The areas within `[start, end)` as `(start, length)`; how many. One that does not fit the table counts as the end.
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
