//! Entry of the agent in a program with a loader: at the program's start and after each fork.
//!
//! The functions run on the program's own threads, before the program's code or in between.

use crate::births;
use crate::filter;
use crate::hello::make_pool;
use crate::join::join_new;
use crate::lost;
use crate::own;
use crate::passing;
use crate::self_mem;
use crate::state::{ABSENT, AGENT, is_far, read_environment};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::Ordering::Release;

#[link(name = "c")]
unsafe extern "C" {
    fn __register_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
        object: *const c_void,
    ) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// Sets glibc's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *__errno_location() = errno };
}

/// Returns glibc's errno.
pub fn errno() -> c_int {
    // SAFETY: the calling thread's own errno.
    unsafe { *__errno_location() }
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

extern "C" fn construct(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    self_mem::look_up();
    // SAFETY: the dynamic linker passes the environment in the form in which `main` gets it.
    if unsafe { read_environment(environment) }.is_none() || begin().is_none() {
        AGENT.stage.store(ABSENT, Release);
    }
}

/// Joins the pager, or has the agent's thread join a moment later (AGENT-5).
fn begin() -> Option<()> {
    let began = lost::now();
    let page = own::make()?;
    let page = if is_far() && make_pool().is_ok() { page.joins_later().err() } else { Some(page) };
    if let Some(page) = page {
        let Ok(shared) = join_new() else {
            page.give_up();
            return None;
        };
        lost::note(shared, began);
        page.joined(shared);
    }
    // SAFETY: the handlers live as long as the process, because the object is never unloaded.
    unsafe {
        __register_atfork(
            Some(before_fork),
            Some(after_fork),
            Some(after_fork_child),
            core::ptr::null(),
        );
    }
    Some(())
}

/// Runs immediately before a fork by the C library; no handler that the program registered runs in
/// between.
extern "C" fn before_fork() {
    passing::fork_begins();
}

extern "C" fn after_fork() {
    passing::fork_ends();
}

/// Runs first in a child that the C library has forked.
extern "C" fn after_fork_child() {
    if !filter::is_strict() {
        births::forget_parents();
    }
    own::begin_child();
}
