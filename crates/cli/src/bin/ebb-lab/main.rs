//! The program `ebb-lab`: the laboratory, the benchmarks, and what describes the commands. `ebb`
//! starts it for these commands (PROGRAMS-1 in `src/lib.rs`).

mod pages;
mod reference;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// The laboratory, the benchmarks and the manual of Ebb.
#[derive(Parser)]
#[command(
    name = "ebb",
    bin_name = "ebb",
    version = ebb_run::VERSION.as_str(),
    arg_required_else_help = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one value")]
enum Command {
    /// Write the manual pages
    Man(pages::ManArguments),
    /// Write the completion script for a shell
    Completions(pages::CompletionArguments),
    /// Measure reclaim: replay page traces, draw miss-ratio curves
    #[command(subcommand)]
    Lab(ebb_lab::cli::LabCommand),
    /// Measure Ebb itself: `account`, `alloc`, `paging`, `processes`, `programs`, `reclaim`, each
    /// with --help
    Bench {
        /// Benchmark and its options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
        arguments: Vec<String>,
    },
    /// Write docs/reference.md
    #[command(hide = true)]
    Reference,
}

fn main() -> ExitCode {
    ebb_run::begin(start)
}

fn start() -> ExitCode {
    let command = match Arguments::try_parse() {
        Ok(arguments) => arguments.command,
        Err(error) => return ebb_run::print(&error),
    };
    match command {
        Command::Man(arguments) => pages::man(&arguments),
        Command::Completions(arguments) => pages::completions(&arguments),
        Command::Lab(command) => lab(&command),
        Command::Bench { arguments } => {
            ebb_sys::signals::end_on_closed_pipe();
            ebb_bench::main(arguments)
        }
        Command::Reference => {
            pages::print(reference::text().as_bytes());
            ExitCode::SUCCESS
        }
    }
}

fn lab(command: &ebb_lab::cli::LabCommand) -> ExitCode {
    ebb_sys::signals::end_on_closed_pipe();
    if let Some(commit) = ebb_run::COMMIT {
        // Nothing else sets it.
        let _ = ebb_lab::experiment::score::COMMIT.set(commit);
    }
    ebb_lab::cli::run(command).unwrap_or_else(|error| {
        ebb_run::tell(format_args!("{error:#}"));
        ExitCode::from(2)
    })
}

/// Returns the commands of both programs as those of `ebb`.
fn all_commands() -> clap::Command {
    Command::augment_subcommands(ebb_run::command())
}
