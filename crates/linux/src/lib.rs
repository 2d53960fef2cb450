//! A model of Linux's memory management around the engine of [`ebb_mm`], for the laboratory.
//!
//! A simulated machine drives it. Like `ebb_mm` it is pure: no system call, clock, thread, I/O or
//! unsafe code. `ebb run` does not use it.
//!
//! * [`frame`]: zones, watermarks, free blocks, per-CPU page sets, CMA.
//! * [`memcg`]: control groups; [`writeback`]: file pages, dirty pages and their write-out.
//! * [`swap`]: slots of a device, the swap cache, readahead.
//! * [`reclaim`]: direct reclaim, its waits, and the end of memory.
#![forbid(unsafe_code)]

pub mod frame;
pub mod memcg;
pub mod reclaim;
pub mod swap;
pub mod writeback;
