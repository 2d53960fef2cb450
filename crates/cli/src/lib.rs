//! The `ebb` command: parses the arguments and calls the module of the subcommand.
//!
//! * PROGRAMS-1: `ebb` holds neither the laboratory nor a benchmark, because its file may have
//!   CAP_SYS_PTRACE. This library names neither; `src/bin/ebb-lab` does. `ebb` starts that program
//!   for its commands (`laboratory.rs`).

mod attach;
mod check;
mod config_file;
mod doctor;
mod exec;
mod fit;
mod folder;
mod inject;
mod laboratory;
mod lru_gen;
mod metrics;
mod picture;
mod probes;
mod program;
mod ps;
mod run;
mod serve;
mod set;
mod size;
mod stat;
mod stub;
#[cfg(feature = "top")]
mod top;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ebb_sys::limits::Limit;
use std::process::ExitCode;
use std::sync::LazyLock;

pub use run::{OwnSwitch, own_switches};

/// Commit of the build, if git was available; `+` means with changes.
pub const COMMIT: Option<&str> = option_env!("EBB_COMMIT");

/// Version, with the commit.
pub static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = COMMIT.map(|commit| format!(" ({commit})"));
    format!("{}{}", env!("CARGO_PKG_VERSION"), commit.unwrap_or_default())
});

/// Run programs in less memory than they want.
#[derive(Parser)]
#[command(
    name = "ebb",
    version = VERSION.as_str(),
    arg_required_else_help = true,
    after_help = "\
Examples:
  ebb run --memory-max 256M -- python3 job.py
  ebb run --memory-max 25% --swap ram,file:/var/tmp --report json -- redis-server
  ebb attach 4711 --memory-max 1G
  ebb fit --slowdown 5% -- python3 job.py
  ebb run --config /etc/ebb.toml --profile redis -- redis-server
  ebb ps
  ebb top
  ebb stat $(pgrep -x redis-server)
  ebb stat --faults $(pgrep -x redis-server)
  ebb set $(pgrep -x redis-server) memory.max=1G
  ebb lru-gen $(pgrep -x redis-server)
  ebb doctor"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run an unmodified program in less memory than it wants
    Run(run::Arguments),
    /// Put a running process under a limit until it is given back
    Attach(attach::Arguments),
    /// Give an attached process all of its memory back
    Detach(attach::DetachArguments),
    /// Find the smallest limit that keeps a program within a given slowdown, by running it
    Fit(fit::Arguments),
    /// Show your runs
    Ps(ps::Arguments),
    /// Watch your runs, or one of them, on a full screen
    #[cfg(feature = "top")]
    Top(top::Arguments),
    /// Show the figures of a run while it lasts
    Stat(stat::Arguments),
    /// Change the limits of a running run
    Set(set::Arguments),
    /// Show a run's generations; age and evict them by command
    #[command(name = "lru-gen")]
    LruGen(lru_gen::Arguments),
    /// Show what this machine supports, what is missing, and how to get it
    Doctor(doctor::Arguments),
    /// The pager of a run (started by `ebb run`)
    #[command(name = "__pager", hide = true)]
    Pager,
}

/// Stack in bytes that Ebb's own code needs. A user may set a lower stack limit for the program.
/// Even parsing the arguments can exceed such a limit.
const STACK: usize = 1 << 20;

/// Runs the command line as `ebb`.
pub fn main() -> ExitCode {
    begin(start)
}

/// Returns the commands of `ebb` itself.
#[must_use]
pub fn command() -> clap::Command {
    Arguments::command()
}

/// Calls `start` with the user's own rights, and with enough stack.
pub fn begin(start: fn() -> ExitCode) -> ExitCode {
    // Ebb clears its effective capabilities first. So it opens the files that arguments name with
    // the user's own rights.
    if let Err(error) = ebb_sys::rights::lower() {
        tell(format_args!("cannot clear the effective capabilities: {error}"));
        return ExitCode::from(125);
    }
    let is_small = Limit::Stack.now().is_some_and(|bytes| bytes < STACK as u64);
    let thread = || std::thread::Builder::new().stack_size(STACK).spawn(start).ok();
    if let Some(thread) = is_small.then(thread).flatten() {
        ebb_sys::signals::leave_to_other_threads();
        return thread.join().unwrap_or(ExitCode::from(125));
    }
    start()
}

/// Advice after a message that a part is missing.
const BUILD: &str = "build it with: cargo build --release --package ebb-run";

fn start() -> ExitCode {
    if let Some(failure) = laboratory::start() {
        return failure;
    }
    let parsed = laboratory::list_in(command()).try_get_matches();
    let arguments = match parsed.and_then(|found| Arguments::from_arg_matches(&found)) {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Attach(arguments) => attach::attach(arguments),
        Command::Detach(arguments) => attach::detach(&arguments),
        Command::Fit(arguments) => fit::fit(&arguments),
        Command::Ps(arguments) => ps::ps(&arguments),
        #[cfg(feature = "top")]
        Command::Top(arguments) => top::top(&arguments),
        Command::Stat(arguments) => stat::stat(&arguments),
        Command::Set(arguments) => set::set(&arguments),
        Command::LruGen(arguments) => lru_gen::lru_gen(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Pager => run::pager(),
    }
}

/// Writes a line to standard error. A failed write changes no exit status.
pub fn tell(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "ebb: {text}");
}

/// Prints the help, or the mistake in the arguments. After a mistake `ebb run` returns 125, Ebb's
/// own failure. The other commands return 2, for wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    if cfg!(not(feature = "top")) && first == "top" {
        tell(format_args!("this ebb was built without top; {BUILD}"));
        return ExitCode::from(2);
    }
    if first == "run" && error.use_stderr() {
        // The message is one line, like every other refusal of `ebb run`.
        let text = error.to_string();
        let words = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let words: Vec<&str> = words.take_while(|line| !line.starts_with("Usage")).collect();
        tell(words.join(" ").trim_start_matches("error: "));
        return ExitCode::from(125);
    }
    print(error)
}

/// Prints the help, or the mistake in the arguments. Returns 0, or 2 for wrong usage.
#[must_use]
pub fn print(error: &clap::Error) -> ExitCode {
    // A failed print is not reported, because the output is closed.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}
