//! The code that Ebb places inside a program: hooks, and the agent's thread, which moves pages for
//! the pager.
//!
//! `UFFDIO_MOVE` and `madvise` act only on the caller's own address space, so the pager cannot call
//! them from outside. The agent's thread calls them for the pager. It decides nothing, and it is
//! not on the fault path.
//!
//! The source is built three times:
//! * As a Rust library: the protocol, for the pager.
//! * With `--cfg ebb_preload`: the shared object that the program's loader brings in.
//! * With `--cfg ebb_injected`: a self-contained image that `ebb run` puts into a program without a
//!   loader (`injected.rs`). This image has no hooks.
//!
//! Rules for code inside the program:
//! * AGENT-1: while it serves, the agent's thread accesses only three kinds of memory. They are its
//!   code, the agent's stack (with the thread block) and the memory shared with the pager. The
//!   thread never uses libc, the heap or thread-local data. The pager may have stored their pages,
//!   and the thread would then wait for itself.
//! * AGENT-2: the agent's thread has its own descriptor table (cloned without `CLONE_FILES`). The
//!   userfaultfd and the line to the pager stay open even if the program closes all descriptors. So
//!   a fault waits instead of reading zeros. The program never sees these descriptors in its own
//!   table, but during a call for which the agent steps aside (`aside.rs`). The thread does not
//!   share root and working directory (`CLONE_FS`) either. The kernel refuses another mount
//!   namespace to a thread that shares them.
//! * AGENT-3: if the line to the pager breaks, the agent's thread kills the process. The program's
//!   stored pages are lost with the pager.
//! * AGENT-4: the agent's thread keeps none of the program's descriptors open. Otherwise readers of
//!   the program's pipes would never see the end of the data.
//! * AGENT-5: far from the limit no page is managed, so a process does not wait for its agent. The
//!   agent's thread joins a moment later, and a process that ends before has cost the pager
//!   nothing. A hook that the program calls meanwhile waits for it (`own.rs`).
#![no_std]
// Builds without hooks leave some of the hooks' helpers unused.
#![cfg_attr(any(ebb_injected, test), allow(dead_code))]

#[cfg(test)]
extern crate std;

pub mod protocol;

#[cfg(ebb_preload)]
mod advice;
#[cfg(any(ebb_preload, ebb_injected))]
mod areas;
#[cfg(ebb_preload)]
mod aside;
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
mod hello;
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
#[cfg(ebb_preload)]
mod self_mem;
#[cfg(any(ebb_preload, ebb_injected))]
mod state;
#[cfg(any(ebb_preload, ebb_injected, test))]
mod syscall;
#[cfg(ebb_preload)]
mod threads;
#[cfg(any(ebb_preload, ebb_injected))]
mod worker;
