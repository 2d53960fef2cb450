//! Entry of the agent in a static program, or in one that already runs. The pager puts this image
//! into the stopped program. One of the program's threads runs [`ebb_injected`] before it goes on.
//!
//! * INJECTED-1: the image links nothing, and itself defines the functions that the compiler calls
//!   (`memcpy` and the like). It reads the arguments that the pager names, and runs on the stack
//!   that the pager names.
//! * INJECTED-2: the image has no hooks. The pager finds out which pages must stay (INJECT-1 in
//!   `pager/src/processes/inject.rs`).

use crate::join::{join_forked, join_new};
use crate::protocol::JOINED;
use crate::state::read_environment;
use core::arch::{asm, global_asm};
use core::ffi::{c_char, c_int};

global_asm!(
    // Called on an aligned stack with the address of the program's arguments, or 0 in a forked
    // child. The process that set up the call waits for the trap and finds the answer in rax.
    ".globl ebb_injected",
    ".type ebb_injected, @function",
    "ebb_injected:",
    "xor ebp, ebp",
    "call {begin}",
    "int3",
    "ud2",
    begin = sym begin,
);

/// Joins the pager. Returns [`JOINED`], an errno on failure, or 0 if the reason is unknown.
/// `arguments` is the kernel's layout for a new program: argument count, arguments, a null, the
/// environment. In a forked child it is null, because the child inherits the parent's settings.
extern "C" fn begin(arguments: *const usize) -> usize {
    if arguments.is_null() {
        return if join_forked().is_some() { JOINED } else { 0 };
    }
    // SAFETY: the kernel lays the arguments out in this way.
    let environment = unsafe { arguments.add(1 + *arguments + 1).cast::<*const c_char>() };
    // SAFETY: the kernel ends the environment with a null.
    let told = unsafe { read_environment(environment) };
    match told.map(|()| join_new()) {
        Some(Ok(_)) => JOINED,
        Some(Err(reason)) => reason as usize,
        None => 0,
    }
}

/// Copies bytes, as in C.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: as promised. Inline assembly keeps the compiler from calling `memcpy` here.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
             options(nostack, preserves_flags));
    }
    to
}

/// Copies bytes between areas that may overlap, as in C.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: as promised; a forward copy overwrites no byte that it reads later.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: as promised; the copy runs backwards from the last byte.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") len => _, inout("rdi") to.add(len).wrapping_sub(1) => _,
             inout("rsi") from.add(len).wrapping_sub(1) => _, options(nostack));
    }
    to
}

/// Fills memory with a byte, as in C.
///
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

/// Compares bytes, as in C.
///
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

/// Compares bytes for equality, as in C.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, len: usize) -> c_int {
    // SAFETY: as promised.
    unsafe { memcmp(one, other, len) }
}

/// Returns the length of a C string.
///
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
