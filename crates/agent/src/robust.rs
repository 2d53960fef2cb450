//! Pins the pages of the program's robust mutexes in memory from the start.
//!
//! When a thread ends, the kernel goes through the robust mutexes that the thread holds and marks
//! them. The kernel does not wait for a missing page then. The next thread that locks the mutex
//! would wait for ever.
//!
//! The hook runs on the program's own threads.

use crate::pins::pin;
use crate::state::{AGENT, PRESENT};
use crate::threads::behind;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Acquire;

/// Bytes of glibc's mutex. The mutex contains its entry in the list of mutexes that a thread holds.
const MUTEX_BYTES: u64 = 40;

const PTHREAD_MUTEX_ROBUST: c_int = 1;

type MutexInit = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
type GetRobust = unsafe extern "C" fn(*const c_void, *mut c_int) -> c_int;

static REAL_MUTEX_INIT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static GET_ROBUST: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

core::arch::global_asm!(".weak __pthread_mutex_init");

/// Returns the function behind the hook. Allocators make mutexes while they start, when looking up
/// a name may call the allocator. Until the agent runs, the hook therefore uses glibc's function
/// under its other name, which the loader has looked up. Before glibc 2.34 a program without
/// libpthread.so has no such name.
fn real_mutex_init() -> *mut c_void {
    if AGENT.stage.load(Acquire) != PRESENT {
        let own: *mut c_void;
        // SAFETY: reads this object's table of addresses.
        unsafe {
            core::arch::asm!(
                "mov {}, [rip + __pthread_mutex_init@GOTPCREL]",
                out(reg) own,
                options(nostack, readonly, pure)
            );
        }
        if !own.is_null() {
            return own;
        }
    }
    behind(&REAL_MUTEX_INIT, c"pthread_mutex_init")
}

/// Hook before glibc's `pthread_mutex_init`, which makes every robust mutex.
///
/// # Safety
/// As `pthread_mutex_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut c_void,
    attributes: *const c_void,
) -> c_int {
    let real = real_mutex_init();
    // SAFETY: the symbol found is glibc's function of this type; the caller vouches for the rest.
    let result = unsafe { core::mem::transmute::<*mut c_void, MutexInit>(real)(mutex, attributes) };
    // SAFETY: the attributes are initialised, or the call above would already have been wrong.
    if result == 0 && AGENT.stage.load(Acquire) == PRESENT && unsafe { is_robust(attributes) } {
        pin(mutex as u64, MUTEX_BYTES);
    }
    result
}

/// Returns whether the attributes make a mutex robust.
///
/// # Safety
/// `attributes` must be null or initialised.
unsafe fn is_robust(attributes: *const c_void) -> bool {
    if attributes.is_null() {
        return false;
    }
    let get = behind(&GET_ROBUST, c"pthread_mutexattr_getrobust");
    if get.is_null() {
        return false;
    }
    let mut robust = 0;
    // SAFETY: the symbol found is glibc's function of this type, the attributes are initialised.
    let result =
        unsafe { core::mem::transmute::<*mut c_void, GetRobust>(get)(attributes, &raw mut robust) };
    result == 0 && robust == PTHREAD_MUTEX_ROBUST
}
