//! How the agent gets into a program that no loader brings it into (a static one, one that runs already): this image is put
//! into it while it stands, and one of its threads runs [`ebb_injected`] before it goes on.
//!
//! * INJECTED-1: nothing is linked: what the compiler calls for (`memcpy` and its like) is here. Nothing of the program is
//!   touched but its environment, which is read, and the stack below what is in use.
//! * INJECTED-2: it has no hooks. Which pages have to stay the pager finds out (INJECTED-1 in `pager/src/inject.rs`).

use crate::join::{join_forked, join_new};
use crate::protocol::JOINED;
use crate::state::read_environment;
use core::arch::{asm, global_asm};
use core::ffi::{c_char, c_int};

global_asm!(
    // Called with the address of the program's arguments, or 0 in a forked child, on an aligned stack. Who put it there
    // waits for the trap, and finds the answer in rax.
    ".globl ebb_injected",
    ".type ebb_injected, @function",
    "ebb_injected:",
    "xor ebp, ebp",
    "call {begin}",
    "int3",
    "ud2",
    begin = sym begin,
);

/// Joins the pager: [`JOINED`], or an errno if that could not be done, 0 if nothing is known. `arguments` is what the kernel
/// put there for the program: their count, the arguments, a null, the environment. A forked child knows its way from its
/// parent.
extern "C" fn begin(arguments: *const usize) -> usize {
    if arguments.is_null() {
        return if join_forked().is_some() { JOINED } else { 0 };
    }
    // SAFETY: as the kernel lays it out.
    let environment = unsafe { arguments.add(1 + *arguments + 1).cast::<*const c_char>() };
    // SAFETY: as above: it ends with a null.
    let told = unsafe { read_environment(environment) };
    match told.map(|()| join_new()) {
        Some(Ok(_)) => JOINED,
        Some(Err(reason)) => reason as usize,
        None => 0,
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: as promised. Written so that the compiler makes no call of it.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: as promised; forwards, nothing is written that is read later.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: as promised; backwards, from the last byte on.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.add(len).wrapping_sub(1) => _,
             inout("rsi") from.add(len).wrapping_sub(1) => _, options(nostack));
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: c_int, len: usize) -> *mut u8 {
    // SAFETY: as promised.
    unsafe {
        asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
             options(nostack, preserves_flags));
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, len: usize) -> c_int {
    let mut at = 0;
    while at < len {
        // SAFETY: as promised.
        let (a, b) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if a != b {
            return c_int::from(a) - c_int::from(b);
        }
        at += 1;
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, len: usize) -> c_int {
    // SAFETY: as promised.
    unsafe { memcmp(one, other, len) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: as promised.
    while unsafe { text.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}
