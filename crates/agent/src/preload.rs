//! How the agent gets into a program with a loader: at its start and after each fork.
//!
//! Runs on the program's own threads, before or between its own code.

use crate::births;
use crate::filter;
use crate::join::join_new;
use crate::lost;
use crate::own::{self, own};
use crate::passing;
use crate::pins::{pin, pin_early};
use crate::state::{ABSENT, AGENT, Agent, PRESENT, read_environment};
use crate::threads::{own_thread_block, pin_thread};
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
    // SAFETY: the calling thread's own.
    unsafe { *__errno_location() = errno };
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

extern "C" fn construct(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the dynamic linker passes the environment as main would get it.
    if unsafe { read_environment(environment) }.is_none() || begin().is_none() {
        AGENT.stage.store(ABSENT, Release);
    }
}

/// Joins the pager.
fn begin() -> Option<()> {
    let began = lost::now();
    let page = own::make()?;
    let Ok(shared) = join_new() else {
        page.give_up();
        return None;
    };
    let places = page.places();
    lost::note(shared, began);
    page.joined(shared);
    AGENT.stage.store(PRESENT, Release);
    pin_early(shared);
    places.iter().for_each(|&place| pin(place, 8));
    pin((&raw const AGENT) as u64, size_of::<Agent>() as u64);
    pin_thread(own_thread_block());
    // SAFETY: the handler lives as long as the process: the object is never unloaded.
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

/// Around a fork, where the C library forks; nothing that the program registered runs in between.
extern "C" fn before_fork() {
    passing::fork_begins();
}

extern "C" fn after_fork() {
    passing::fork_ends();
}

/// The first thing a forked child does, where the C library forks.
extern "C" fn after_fork_child() {
    if !filter::is_strict() {
        births::forget_parents();
    }
    own();
}
