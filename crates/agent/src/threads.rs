//! Threads of the program: the pages that hold their descriptors are pinned in memory from their start.
//!
//! Runs on the program's own threads.

use crate::preload::AGENT;
use crate::protocol::{PINNED_GRAVE, PINNED_MAX, pinned_home};
use crate::syscall::{self, call};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU64};

#[link(name = "c")]
unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

const MADV_POPULATE_WRITE: usize = 23;

/// Bytes of glibc's thread descriptor, generously.
const THREAD_DESCRIPTOR_BYTES: u64 = 2560;

pub fn own_thread_block() -> u64 {
    let pointer: u64;
    // SAFETY: x86-64 keeps the thread block's own address in its first word.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
    pointer
}

/// Keeps the pages of a thread's descriptor in memory: the kernel clears a word in it when the thread
/// ends, at a time when a missing page would not be brought back, and whoever joins would wait forever.
pub fn pin_thread(descriptor: u64) {
    let shared = AGENT.shared.load(Acquire);
    if shared.is_null() {
        return;
    }
    let last = (descriptor + THREAD_DESCRIPTOR_BYTES) >> 12;
    for vpn in descriptor >> 12..=last {
        // SAFETY: the mapping lives as long as the process.
        insert_pin(unsafe { &(*shared).pinned }, vpn);
    }
    // SAFETY: the mapping lives as long as the process.
    if unsafe { (*shared).managing.load(Acquire) } == 1 {
        // What the pager did to a page just before it could know of the pin is undone by a write,
        // made by the kernel: the thread may have ended, and its stack be gone.
        let start = descriptor & !4095;
        let len = (last + 1) * 4096 - start;
        // SAFETY: changes no content, and fails where nothing is mapped.
        unsafe {
            call(syscall::MADVISE, [start as usize, len as usize, MADV_POPULATE_WRITE, 0, 0, 0]);
        }
    }
}

fn insert_pin(table: &[AtomicU64; PINNED_MAX], vpn: u64) {
    let home = pinned_home(vpn);
    for step in 0..PINNED_MAX {
        let place = &table[(home + step) % PINNED_MAX];
        let there = place.load(Acquire);
        if there == vpn {
            return;
        }
        let free = there == 0 || there == PINNED_GRAVE;
        if free && place.compare_exchange(there, vpn, Release, Relaxed).is_ok() {
            return;
        }
    }
}

/// The function of this name that a hook of ours stands before, looked up once.
fn behind(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut real = known.load(Acquire);
    if real.is_null() {
        // SAFETY: RTLD_NEXT (-1): the next definition after this object's.
        real = unsafe { dlsym(-1isize as *mut c_void, name.as_ptr()) };
        known.store(real, Release);
    }
    real
}

/// A thread was made; its handle is glibc's descriptor.
fn began(thread: u64) {
    if AGENT.present.load(Acquire) {
        pin_thread(thread);
    }
}

type PthreadCreate = unsafe extern "C" fn(
    *mut u64,
    *const c_void,
    extern "C" fn(*mut c_void) -> *mut c_void,
    *mut c_void,
) -> c_int;

static REAL_PTHREAD_CREATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Stands before glibc's `pthread_create` to learn where each thread's descriptor lies.
///
/// # Safety
/// As `pthread_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut u64,
    attributes: *const c_void,
    entry: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let real = behind(&REAL_PTHREAD_CREATE, c"pthread_create");
    // SAFETY: the symbol found is glibc's function of this type; the caller vouches for the rest.
    let result = unsafe {
        core::mem::transmute::<*mut c_void, PthreadCreate>(real)(
            thread, attributes, entry, argument,
        )
    };
    if result == 0 {
        // SAFETY: on success the caller's place holds the thread's handle.
        began(unsafe { *thread });
    }
    result
}

type ThrdCreate = unsafe extern "C" fn(*mut u64, *const c_void, *mut c_void) -> c_int;

static REAL_THRD_CREATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Stands before glibc's `thrd_create`, which does not pass through `pthread_create`.
///
/// # Safety
/// As `thrd_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn thrd_create(
    thread: *mut u64,
    entry: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let real = behind(&REAL_THRD_CREATE, c"thrd_create");
    // SAFETY: the symbol found is glibc's function of this type; the caller vouches for the rest.
    let result =
        unsafe { core::mem::transmute::<*mut c_void, ThrdCreate>(real)(thread, entry, argument) };
    if result == 0 {
        // SAFETY: on success the caller's place holds the thread's handle.
        began(unsafe { *thread });
    }
    result
}
