//! Threads of the program: the pages that hold their descriptors are pinned in memory from their start.
//!
//! Runs on the program's own threads.

use crate::pins::pin;
use crate::preload::AGENT;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

#[link(name = "c")]
unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

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
    pin(descriptor, THREAD_DESCRIPTOR_BYTES);
}

/// The function of this name that a hook of ours stands before, looked up once.
pub fn behind(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
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
