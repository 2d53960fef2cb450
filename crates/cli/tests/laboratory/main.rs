//! Tests of `ebb-lab` from outside, one file for each theme.
#![cfg(feature = "lab")]

mod cli;
mod events;
mod memory;
mod programs;
mod search;

use std::process::Command;

/// File of a small scenario.
const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lab/tests/small.toml");

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ebb-lab"));
    command.arg("lab").args(arguments);
    command
}

fn stdout(arguments: &[&str]) -> String {
    let output = lab(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
