//! `ebb lab` as a program of its own: the laboratory without the pager.

use std::process::ExitCode;

use clap::Parser;
use ebb_lab::cli::{LabCommand, run};

/// A memory-pressure laboratory
#[derive(Debug, Parser)]
#[command(name = "ebb-lab", version)]
struct Arguments {
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    match run(&Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("ebb-lab: {error:#}");
            ExitCode::from(2)
        }
    }
}
