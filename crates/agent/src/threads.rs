//! Pins the descriptor of each thread of the program in memory, from the thread's start.
//!
//! The hooks run on the program's own threads.

use crate::births;
use crate::own;
use crate::pins::{keep, pin, pins_count};
use crate::protocol::Shared;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

#[link(name = "c")]
unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Upper bound of the size of glibc's thread descriptor, in bytes.
const THREAD_DESCRIPTOR_BYTES: u64 = 2560;

pub fn own_thread_block() -> u64 {
    let pointer: u64;
    // SAFETY: x86-64 keeps the thread block's own address in its first word.
    unsafe { core::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
    pointer
}

/// Keeps the pages of a thread's descriptor in memory. When the thread ends, the kernel clears a
/// word in the descriptor, and does not fault in a missing page. A thread that joins the ended one
/// would then wait for ever.
pub fn pin_thread(descriptor: u64) {
    pin(descriptor, THREAD_DESCRIPTOR_BYTES);
}

/// Pins a thread's descriptor before any page of the program has left memory.
pub fn keep_thread(shared: &Shared, descriptor: u64) {
    keep(shared, descriptor, THREAD_DESCRIPTOR_BYTES);
}

/// Returns the function `name` behind a hook. Looks the function up at the first call only.
pub fn behind(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let mut real = known.load(Acquire);
    if real.is_null() {
        // SAFETY: RTLD_NEXT (-1) finds the next definition after this object's.
        real = unsafe { dlsym(-1isize as *mut c_void, name.as_ptr()) };
        known.store(real, Release);
    }
    real
}

/// Error of `pthread_create`: no resources for another thread.
const EAGAIN: c_int = 11;
/// `thrd_nomem`.
const THRD_NOMEM: c_int = 3;

type PthreadCreate =
    unsafe extern "C" fn(*mut u64, *const c_void, *const c_void, *mut c_void) -> c_int;

static REAL_PTHREAD_CREATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Hook before glibc's `pthread_create`, which learns where each thread's descriptor lies. The new
/// thread pins the descriptor before it does anything else.
///
/// # Safety
/// As `pthread_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut u64,
    attributes: *const c_void,
    entry: *const c_void,
    argument: *mut c_void,
) -> c_int {
    let real = behind(&REAL_PTHREAD_CREATE, c"pthread_create");
    // SAFETY: the symbol found is glibc's function of this type; the caller vouches for the rest.
    let create = |entry, argument| unsafe {
        core::mem::transmute::<*mut c_void, PthreadCreate>(real)(
            thread, attributes, entry, argument,
        )
    };
    born(create, EAGAIN, entry, argument)
}

type ThrdCreate = unsafe extern "C" fn(*mut u64, *const c_void, *mut c_void) -> c_int;

static REAL_THRD_CREATE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Hook before glibc's `thrd_create`, which does not call `pthread_create`.
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
    let create = |entry, argument| unsafe {
        core::mem::transmute::<*mut c_void, ThrdCreate>(real)(thread, entry, argument)
    };
    born(create, THRD_NOMEM, entry, argument)
}

/// Has `create` make a thread that pins its descriptor before it runs `entry(argument)`.
fn born(
    create: impl Fn(*const c_void, *mut c_void) -> c_int,
    no_memory: c_int,
    entry: *const c_void,
    argument: *mut c_void,
) -> c_int {
    if !pins_count() {
        return create(entry, argument);
    }
    // OWN-3: the pager finds the process by its first thread, which may end once there are others.
    own::settle();
    let record = births::record(entry as usize, argument as usize);
    if record.is_null() {
        return no_memory;
    }
    let result = create(births::beginning(), record);
    if result != 0 {
        births::forget(record);
    }
    result
}
