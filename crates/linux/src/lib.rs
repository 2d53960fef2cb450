//! A model of Linux's memory management around the engine of [`ebb_mm`], for the laboratory.
//!
//! The laboratory's machine drives the model. Like `ebb_mm` it is pure: it has no system call,
//! clock, thread, I/O or unsafe code. `ebb run` does not use the model.
//!
//! * [`frame`]: zones, watermarks, free blocks, per-CPU page sets, CMA.
//! * [`memcg`]: control groups; [`writeback`]: the page cache, dirty pages and their writeback.
//! * [`swap`]: slots of a device, the swap cache, readahead.
//! * [`reclaim`]: direct reclaim, the waits of tasks, and out of memory.
#![forbid(unsafe_code)]

pub mod frame;
pub mod memcg;
pub mod reclaim;
pub mod swap;
pub mod writeback;
