//! Harness of the end-to-end tests: real programs, run plainly and under `ebb run`, compared.
//!
//! * [`launch`] starts one program, with or without a limit, and waits for its end.
//! * [`tree`] finds every process of a run and adds up its anonymous memory.
//! * [`same`] compares a plain run with one in less memory.
//! * [`account`] makes an ordinary user for a test.
//! * [`busy`] keeps CPUs busy beside a test.
//! * [`build`] compiles the C programs and finds the `ebb` binary.
//! * [`client`] speaks to the servers that the tests start.
//! * [`redis`] starts Redis servers and clusters.
//! * [`group`] makes a control group for a run.
//!
//! Invariants:
//! * E2E-1: Every wait for a run has a time limit. A wait beyond the limit fails with the state of
//!   all threads of the run.
//! * E2E-2: Nothing outlives a test: every process of a run is killed when its handle is dropped.
//! * E2E-3: A test signals only processes that carry the run's own tag, or descend from its first
//!   process.

#![forbid(unsafe_code)]

pub mod account;
pub mod build;
pub mod busy;
pub mod client;
pub mod group;
pub mod launch;
pub mod redis;
pub mod same;
pub mod tree;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// A limit in bytes for strong pressure on a program with tens of MiB.
pub const SMALL: u64 = 16 * MIB;

/// A limit in bytes for strong pressure on a program with at most 24 MiB.
pub const TINY: u64 = 8 * MIB;
