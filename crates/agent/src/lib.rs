//! What lives inside the program being run: one thread that moves pages when it is told to.
//!
//! MOVE and `madvise` act only on the caller's own address space, so the pager cannot do them from
//! outside. The agent does, and nothing else: it decides nothing, and it is off the fault path.
//!
//! The same source is built three times: as a Rust library (the protocol, for the pager); with `--cfg ebb_preload` as the
//! shared object that the program's loader brings in; and with `--cfg ebb_injected` as an image that stands alone, which
//! `ebb run` puts into a program that has no loader (`injected.rs`). That has no hooks.
//!
//! Rules of what is inside the program:
//! * AGENT-1: from when it serves, the agent's thread touches only its code, its berth (stack and thread block) and
//!   the memory shared with the pager. Never libc, never the heap, never thread-local data: any of those can be
//!   stored away, and the thread would wait for itself.
//! * AGENT-2: it has its own descriptor table (cloned without `CLONE_FILES`): whatever the program closes,
//!   the userfaultfd and the line to the pager stay open, so a touch waits rather than reads zeros. Nor does
//!   the program ever see one of them in its own table. Nor does it share root and working folder (`CLONE_FS`): a thread
//!   of a process that shares those enters no other mount namespace.
//! * AGENT-3: if the line to the pager breaks, it kills the process: a dead pager is a dead program.
//! * AGENT-4: it holds none of the program's descriptors, or pipes would never reach their end.
#![no_std]
// Without hooks some of what they use is left over.
#![cfg_attr(any(ebb_injected, test), allow(dead_code))]

#[cfg(test)]
extern crate std;

pub mod protocol;

#[cfg(ebb_preload)]
mod advice;
#[cfg(any(ebb_preload, ebb_injected))]
mod areas;
#[cfg(ebb_preload)]
mod births;
#[cfg(any(ebb_preload, test))]
mod bpf;
#[cfg(any(ebb_preload, ebb_injected))]
mod calls;
#[cfg(ebb_preload)]
mod exec;
#[cfg(ebb_preload)]
mod filter;
#[cfg(any(ebb_preload, ebb_injected))]
mod greet;
#[cfg(ebb_preload)]
mod hooks;
#[cfg(ebb_injected)]
mod injected;
#[cfg(any(ebb_preload, ebb_injected))]
mod join;
#[cfg(any(ebb_preload, ebb_injected))]
mod lock;
#[cfg(ebb_preload)]
mod lost;
#[cfg(ebb_preload)]
mod map;
#[cfg(ebb_preload)]
mod own;
#[cfg(ebb_preload)]
mod passing;
#[cfg(ebb_preload)]
mod pins;
#[cfg(ebb_preload)]
mod populate;
#[cfg(ebb_preload)]
mod preload;
#[cfg(ebb_preload)]
mod rawfork;
#[cfg(ebb_preload)]
mod remap;
#[cfg(ebb_preload)]
mod robust;
#[cfg(any(ebb_preload, ebb_injected))]
mod state;
#[cfg(any(ebb_preload, ebb_injected, test))]
mod syscall;
#[cfg(ebb_preload)]
mod threads;
#[cfg(any(ebb_preload, ebb_injected))]
mod worker;
