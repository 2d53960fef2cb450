//! Sets up the kernel's side of a comparison: memory cgroups, swap files, compressed swap.
//!
//! A shell that outlives this process undoes every change on every way out (`undo`).

mod cgroup;
mod swap;
mod undo;

use std::path::Path;
use std::process::Command;

pub use cgroup::Cgroup;
pub use swap::{Compressed, Swap, SwapFile, zram_is_there};
pub use undo::{Undo, quote_path};

/// Runs a program of the system to its end.
fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} failed: {}", said.trim()))
}

fn set(path: &Path, value: &str) -> Result<(), String> {
    std::fs::write(path, value)
        .map_err(|error| format!("cannot set {}: {error} (are you root?)", path.display()))
}
