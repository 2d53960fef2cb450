//! Makes each new thread run a few steps of the agent before the thread's own function. Only the
//! new thread knows the address of its descriptor for certain. The variable to which
//! `pthread_create` writes the handle may be gone when that call returns. A detached thread may
//! have freed it.
//!
//! The functions run on the program's own threads and allocate none of the program's memory. The
//! records are static. If more threads start at a time than there are records, the kernel gives
//! another page of them, which stays.

use crate::syscall::{self, call};
use crate::threads::{own_thread_block, pin_thread};
use core::ffi::c_void;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};

/// Record of a thread that is about to begin. `entry` is 0 while the record is free, and [`TAKEN`]
/// while it is filled in.
#[repr(C)]
struct Birth {
    entry: AtomicUsize,
    argument: AtomicUsize,
    /// Process id of the thread's process, in its own namespace.
    process: AtomicU32,
}

impl Birth {
    const fn free() -> Self {
        let (entry, argument) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { entry, argument, process: AtomicU32::new(0) }
    }
}

const TAKEN: usize = 1;
/// Number of records that fit into a page beside the address of the next page.
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
    // The new thread comes here with its record. It goes on in the program's own function as if the
    // C library had called it. The function has the same stack and argument, and no frame lies in
    // between.
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

/// Returns the address at which a thread with a record begins.
pub fn beginning() -> *const c_void {
    ebb_thread_begins as *const c_void
}

#[repr(C)]
struct Own {
    entry: usize,
    argument: usize,
}

/// Runs in the new thread: pins its descriptor, frees the record and returns the program's function
/// and argument.
extern "C" fn begins(birth: &Birth) -> Own {
    let argument = birth.argument.load(Relaxed);
    // Pairs with the Release store in `record`, which the creation of the thread has made visible
    // anyway.
    let entry = birth.entry.swap(0, AcqRel);
    pin_thread(own_thread_block());
    Own { entry, argument }
}

/// Makes a record for a thread that is to run `entry(argument)`. Returns null if there is no memory
/// for one.
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

/// Returns the page after `page`; makes one if there is none.
fn next(page: &Page) -> Option<&'static Page> {
    let mut next = page.next.load(Acquire);
    if next.is_null() {
        // READ | WRITE, PRIVATE | ANONYMOUS
        // SAFETY: a fresh mapping of zeros at an address of the kernel's choice. Zeros mean no
        // record in use and no next page.
        let made = unsafe { call(syscall::MMAP, [0, size_of::<Page>(), 3, 0x22, usize::MAX, 0]) };
        if made < 0 {
            return None;
        }
        next = made as *mut Page;
        let mine = page.next.compare_exchange(core::ptr::null_mut(), next, AcqRel, Acquire);
        if let Err(others) = mine {
            // SAFETY: the mapping just made, which nothing else refers to.
            unsafe { call(syscall::MUNMAP, [next as usize, size_of::<Page>(), 0, 0, 0, 0]) };
            next = others;
        }
    }
    // SAFETY: pages stay as long as the process lives.
    Some(unsafe { &*next })
}

/// Frees the record of a thread that could not be created.
pub fn forget(record: *mut c_void) {
    // SAFETY: the record is from `record`, and no thread has begun with it.
    unsafe { &*record.cast::<Birth>() }.entry.store(0, Release);
}

/// Frees, in a forked child, the records of its parent's threads that have not begun yet. The
/// child's own records stay: atfork handlers that run before the agent's may have made threads that
/// have yet to begin.
pub fn forget_parents() {
    let own = this_process();
    let mut page = Some(&FIRST);
    while let Some(at) = page {
        let parents = |birth: &&Birth| birth.process.load(Relaxed) != own;
        at.births.iter().filter(parents).for_each(|birth| birth.entry.store(0, Relaxed));
        let next = at.next.load(Acquire);
        // SAFETY: pages stay as long as the process lives.
        page = (!next.is_null()).then(|| unsafe { &*next });
    }
}

fn this_process() -> u32 {
    // SAFETY: GETPID takes no argument.
    unsafe { call(syscall::GETPID, [0; 6]) as u32 }
}
