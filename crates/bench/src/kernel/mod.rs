//! Sets up the kernel's side of a comparison: memory cgroups, swap files, compressed swap.
//!
//! A shell that outlives this process undoes every change on every way out (`undo`).

mod cgroup;
mod swap;
mod undo;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use cgroup::Cgroup;
pub use swap::{Compressed, Swap, SwapFile, zram_is_there};
pub use undo::{Undo, quote_path};

/// Why a program of the system did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The system cannot start this program.
    #[error("cannot run {0}: {1}")]
    Start(&'static str, io::Error),
    /// This program failed and printed this text.
    #[error("{0} failed: {1}")]
    Failed(&'static str, String),
}

/// Why a benchmark cannot set up the kernel's side of a comparison.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A program of the system did not succeed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The benchmark cannot read this file of the kernel.
    #[error("cannot read {}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// The benchmark cannot write this file of the kernel.
    #[error("cannot set {}: {} (are you root?)", .0.display(), .1)]
    Set(PathBuf, io::Error),
    /// The kernel offers no memory cgroup.
    #[error("no memory cgroup at /sys/fs/cgroup")]
    NoCgroup,
    /// The benchmark cannot make a memory cgroup.
    #[error("cannot make a memory cgroup: {0} (are you root?)")]
    Cgroup(io::Error),
    /// The kernel has no compressed swap.
    #[error("this kernel has no zram")]
    NoZram,
    /// The benchmark cannot add a device of compressed swap.
    #[error("cannot add a zram device: {0} (are you root?)")]
    Zram(io::Error),
    /// The system cannot start the shell that undoes changes.
    #[error("cannot start a shell: {0}")]
    Shell(io::Error),
    /// The standard input of the undo shell is not a pipe.
    #[error("the undo shell has no input")]
    NoInput,
    /// The undo shell does not read.
    #[error("cannot reach the undo shell: {0}")]
    Undo(io::Error),
}

/// Runs a program of the system to its end.
fn command(program: &'static str, arguments: &[&str]) -> Result<(), CommandError> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| CommandError::Start(program, error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(CommandError::Failed(program, said.trim().to_owned()))
}

fn set(path: &Path, value: &str) -> Result<(), KernelError> {
    std::fs::write(path, value).map_err(|error| KernelError::Set(path.into(), error))
}
