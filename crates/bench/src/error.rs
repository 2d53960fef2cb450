//! Errors that the benchmarks share.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Why a benchmark cannot run a program or read its result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// One of these options is 0.
    #[error("{0} must be more than 0")]
    Zero(&'static str),
    /// The system does not tell the path of this program.
    #[error("cannot find this program: {0}")]
    ThisProgram(io::Error),
    /// No `ebb` has this path.
    #[error("no {}; build it: cargo build --release --package ebb-run", .0.display())]
    NoEbb(PathBuf),
    /// The benchmark cannot make a folder for inputs or results.
    #[error("cannot make a folder: {0}")]
    Folder(io::Error),
    /// The benchmark cannot take the signals that end it.
    #[error("cannot take signals: {0}")]
    Signals(io::Error),
    /// The system cannot start this program.
    #[error("cannot start {0}: {1}")]
    Start(String, io::Error),
    /// The standard output of this program is not a pipe.
    #[error("{0} has no output")]
    NoOutput(&'static str),
    /// The benchmark cannot wait for the end of this program.
    #[error("cannot wait for {0}: {1}")]
    Wait(&'static str, io::Error),
    /// A signal ended the benchmark.
    #[error("interrupted")]
    Interrupted,
    /// This program failed.
    #[error("{0} failed: {1}")]
    Failed(&'static str, ExitStatus),
    /// This command failed after so many seconds.
    #[error("{0}: {1} after {2:.1} s")]
    FailedAfter(String, ExitStatus, f64),
    /// The benchmark cannot read this file.
    #[error("{}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// This file has other JSON than expected.
    #[error("{}: {}", .0.display(), .1)]
    Json(PathBuf, serde_json::Error),
    /// The load printed other JSON than expected.
    #[error("cannot read the load's result: {0}")]
    Load(serde_json::Error),
}
