//! Errors of the benchmark with real programs.

use std::io;

use super::list;
use super::runs::End;
use crate::error::RunError;
use crate::kernel::{CommandError, KernelError};

/// Why the benchmark fails or refuses its arguments.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    /// The benchmark cannot run a program or read its result.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The benchmark cannot set up the kernel's side of the comparison.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A program that makes an input failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// No program of the benchmark has this name.
    #[error("--programs {0}: there are {known}", known = list::names())]
    Unknown(String),
    /// This share is out of range.
    #[error("--shares {0}: write a percentage from 1 to 200")]
    Share(u32),
    /// The benchmark cannot write this input.
    #[error("cannot write {0}: {1}")]
    Write(String, io::Error),
    /// The Java compiler is missing.
    #[error("no javac")]
    NoJavac,
    /// This program fails without a limit.
    #[error("{0} does not run by itself: {1:?}")]
    Alone(&'static str, End),
    /// The environment does not show the peak memory of this program.
    #[error("the peak memory of {0} is unknown")]
    NoPeak(&'static str),
    /// The runner has no swap file.
    #[error("no swap file")]
    NoSwapFile,
    /// The program has no file any more.
    #[error("the program is gone")]
    Gone,
    /// The benchmark cannot create the file for the program's standard error.
    #[error("stderr: {0}")]
    Stderr(io::Error),
    /// The system cannot start the program.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// Why the benchmark has not used a program to its end.
#[derive(Debug, thiserror::Error)]
pub enum UseError {
    /// The benchmark cannot read the output of the program.
    #[error("output: {0}")]
    Output(io::Error),
    /// The server accepts no connection.
    #[error("cannot reach redis-server: {0}")]
    Connect(io::Error),
    /// The server refuses a command, or the connection failed.
    #[error("redis-server: {0}")]
    Redis(io::Error),
}
