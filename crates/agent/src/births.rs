//! What a thread about to begin is to run: the agent has each begin with a few steps of its own, taken in the
//! new thread, where its descriptor is known for certain. (The place that `pthread_create` writes the handle to
//! may be gone when it returns: a detached thread may have freed it.)
//!
//! Runs on the program's own threads, and allocates nothing of the program's: records are static, and when
//! more threads are being born than there are, the kernel gives a page of them, which is kept.

use crate::syscall::{self, call};
use crate::threads::{own_thread_block, pin_thread};
use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

/// One birth. `entry` is 0 while the record is free, and [`TAKEN`] while it is filled in.
#[repr(C)]
struct Birth {
    entry: AtomicUsize,
    argument: AtomicUsize,
    /// The process that the thread is born in, by its number for itself.
    process: AtomicU32,
}

impl Birth {
    const fn free() -> Self {
        let (entry, argument) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { entry, argument, process: AtomicU32::new(0) }
    }
}

const TAKEN: usize = 1;
/// As many as a page holds beside the address of the next page.
const BIRTHS: usize = 170;

#[repr(C)]
struct Page {
    next: AtomicPtr<Page>,
    births: [Birth; BIRTHS],
}

const _: () = assert!(size_of::<Page>() <= 4096);

static FIRST: Page =
    Page { next: AtomicPtr::new(core::ptr::null_mut()), births: [const { Birth::free() }; BIRTHS] };

core::arch::global_asm!(
    // The new thread comes here with its record. It goes on in the program's own function as if it had been
    // called by the C library: same stack, same argument, nothing between the two.
    ".hidden ebb_thread_begins",
    ".globl ebb_thread_begins",
    ".type ebb_thread_begins, @function",
    "ebb_thread_begins:",
    ".cfi_startproc",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {begins}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "mov rdi, rdx",
    "jmp rax",
    ".cfi_endproc",
    begins = sym begins,
);

unsafe extern "C" {
    fn ebb_thread_begins();
}

/// Where a thread with a record begins.
pub fn beginning() -> *const c_void {
    ebb_thread_begins as *const c_void
}

#[repr(C)]
struct Own {
    entry: usize,
    argument: usize,
}

/// In the new thread: pins it, and says what it is to do. The record is free again.
extern "C" fn begins(birth: &Birth) -> Own {
    let argument = birth.argument.load(Relaxed);
    // Partner: the Release store in `record`, which the creation of the thread has made visible anyway.
    let entry = birth.entry.swap(0, AcqRel);
    pin_thread(own_thread_block());
    Own { entry, argument }
}

/// A record for a thread that is to run `entry(argument)`; null if there is no memory for one.
pub fn record(entry: usize, argument: usize) -> *mut c_void {
    let mut page = &FIRST;
    loop {
        let free =
            |birth: &&Birth| birth.entry.compare_exchange(0, TAKEN, Acquire, Relaxed).is_ok();
        if let Some(birth) = page.births.iter().find(free) {
            birth.argument.store(argument, Relaxed);
            birth.process.store(this_process(), Relaxed);
            birth.entry.store(entry, Release);
            return core::ptr::from_ref(birth).cast_mut().cast();
        }
        let Some(next) = next(page) else { return core::ptr::null_mut() };
        page = next;
    }
}

/// The page after `page`, made if there is none.
fn next(page: &Page) -> Option<&'static Page> {
    let mut next = page.next.load(Acquire);
    if next.is_null() {
        // READ | WRITE, PRIVATE | ANONYMOUS
        // SAFETY: a fresh mapping at an address of the kernel's choice, of zeros: no birth, no next page.
        let made = unsafe { call(syscall::MMAP, [0, size_of::<Page>(), 3, 0x22, usize::MAX, 0]) };
        if made < 0 {
            return None;
        }
        next = made as *mut Page;
        let mine = page.next.compare_exchange(core::ptr::null_mut(), next, AcqRel, Acquire);
        if let Err(others) = mine {
            // SAFETY: the mapping just made, which nobody else knows.
            unsafe { call(syscall::MUNMAP, [next as usize, size_of::<Page>(), 0, 0, 0, 0]) };
            next = others;
        }
    }
    // SAFETY: pages stay for as long as the process.
    Some(unsafe { &*next })
}

/// The thread was not made.
pub fn forget(record: *mut c_void) {
    // SAFETY: from `record`, and nobody has begun with it.
    unsafe { &*record.cast::<Birth>() }.entry.store(0, Release);
}

/// In the child of a fork: births that were under way are its parent's. Those of the child itself are not: handlers
/// of forks that run before the agent's may have made threads that have yet to begin.
pub fn forget_parents() {
    let own = this_process();
    let mut page = Some(&FIRST);
    while let Some(at) = page {
        let parents = |birth: &&Birth| birth.process.load(Relaxed) != own;
        at.births.iter().filter(parents).for_each(|birth| birth.entry.store(0, Relaxed));
        let next = at.next.load(Acquire);
        // SAFETY: pages stay for as long as the process.
        page = (!next.is_null()).then(|| unsafe { &*next });
    }
}

fn this_process() -> u32 {
    // SAFETY: takes nothing.
    unsafe { call(syscall::GETPID, [0; 6]) as u32 }
}
