//! The memory manager: frames, address spaces, generations, swap slots, reclaim.
//!
//! `core` is pure: no system call, no clock, no thread, no I/O, no unsafe code. Real memory (`ebb run`)
//! and simulated memory (`ebb lab`) drive the very same code and hand it what it cannot know: what time
//! it is, which pages the hardware says were touched, what became of a write.
#![forbid(unsafe_code)]

pub mod engine;
pub mod folio;
pub mod frame;
pub mod lru;
pub mod memcg;
pub mod nearest;
pub mod observe;
pub mod readahead;
pub mod reclaim;
pub mod resident;
pub mod space;
pub mod swap;
pub mod tunables;
pub mod types;
pub mod writeback;
