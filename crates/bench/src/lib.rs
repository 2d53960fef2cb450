//! Benchmarks of Ebb's own parts. Comparisons with other projects live in `ebb-versus`.

pub mod account;
pub mod alloc;
pub mod draw;
mod error;
pub mod kernel;
pub mod paging;
pub mod processes;
pub mod programs;
pub mod reclaim;
pub mod stats;

use std::path::PathBuf;
use std::process::ExitCode;

use error::RunError;

/// Runs the benchmark that the first of `args` names.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let mut args = args.into_iter();
    match args.next().as_deref() {
        Some("account") => account::main(args),
        // Internal command that `account` and `processes` start.
        Some("account-run") => account::inner(args),
        Some("alloc") => alloc::main(args),
        Some("paging") => paging::main(args),
        Some("processes") => processes::main(args),
        Some("programs") => programs::main(args),
        Some("reclaim") => reclaim::main(args),
        // Internal command that `paging` starts.
        Some("paging-load") => paging::load(args),
        _ => {
            eprintln!("usage: ebb bench account|alloc|paging|processes|programs|reclaim [--help]");
            ExitCode::from(2)
        }
    }
}

/// Parses the arguments of the benchmark `name`. Prints the help or a mistake in the arguments, and
/// then returns the exit status instead.
fn parse<T: clap::Parser>(
    name: &str,
    args: impl IntoIterator<Item = String>,
) -> Result<T, ExitCode> {
    T::try_parse_from(std::iter::once(name.to_owned()).chain(args)).map_err(|error| {
        // A failed print is not reported, because the output is closed.
        let _ = error.print();
        ExitCode::from(if error.use_stderr() { 2 } else { 0 })
    })
}

fn this_program() -> Result<PathBuf, RunError> {
    std::env::current_exe().map_err(RunError::ThisProgram)
}

/// Returns the words that start `ebb bench` in this program.
fn own_bench() -> Result<Vec<String>, RunError> {
    Ok(vec![this_program()?.to_string_lossy().into_owned(), "bench".into()])
}

/// Returns the `ebb` to measure: the given one, or the one beside this program.
fn ebb_to_measure(told: Option<PathBuf>) -> Result<PathBuf, RunError> {
    let ebb = match told {
        Some(ebb) => ebb,
        None => this_program()?.with_file_name("ebb"),
    };
    if ebb.exists() { Ok(ebb) } else { Err(RunError::NoEbb(ebb)) }
}
