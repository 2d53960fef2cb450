//! The `ebb` command: parses the arguments and calls the module of the subcommand.

mod attach;
mod check;
mod config_file;
mod doctor;
mod exec;
mod fit;
mod folder;
mod inject;
mod line;
mod lru_gen;
mod metrics;
#[cfg(feature = "manual")]
mod pages;
mod picture;
mod probes;
mod program;
mod ps;
mod run;
mod serve;
mod set;
mod size;
mod stat;
#[cfg(feature = "top")]
mod top;

use clap::{Parser, Subcommand};
use ebb_sys::limits::Limit;
use std::process::ExitCode;
use std::sync::LazyLock;

/// Commit of the build, if git was available; `+` means with changes.
const COMMIT: Option<&str> = option_env!("EBB_COMMIT");

/// Version, with the commit.
static VERSION: LazyLock<String> = LazyLock::new(|| {
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
    /// Write the manual pages
    #[cfg(feature = "manual")]
    Man(pages::ManArguments),
    /// Write the completion script for a shell
    #[cfg(feature = "manual")]
    Completions(pages::CompletionArguments),
    /// Measure reclaim: replay page traces, draw miss-ratio curves
    #[command(subcommand)]
    Lab(ebb_lab::cli::LabCommand),
    /// Measure Ebb itself: `account`, `alloc`, `paging`, `programs`, `reclaim`, each with --help
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "BENCHMARK")]
        arguments: Vec<String>,
    },
    /// The pager of a run (started by `ebb run`)
    #[command(name = "__pager", hide = true)]
    Pager,
}

/// Stack in bytes that Ebb's own code needs. A user may set a lower stack limit for the program.
/// Even parsing the arguments can exceed such a limit.
const STACK: usize = 1 << 20;

fn main() -> ExitCode {
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

fn start() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(&error),
    };
    if matches!(arguments.command, Command::Lab(_) | Command::Bench { .. }) {
        ebb_sys::signals::end_on_closed_pipe();
    }
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
        #[cfg(feature = "manual")]
        Command::Man(arguments) => pages::man(&arguments),
        #[cfg(feature = "manual")]
        Command::Completions(arguments) => pages::completions(&arguments),
        Command::Lab(command) => lab(&command),
        Command::Bench { arguments } => ebb_bench::main(arguments),
        Command::Pager => run::pager(),
    }
}

fn lab(command: &ebb_lab::cli::LabCommand) -> ExitCode {
    if let Some(commit) = COMMIT {
        // Nothing else sets it.
        let _ = ebb_lab::experiment::score::COMMIT.set(commit);
    }
    ebb_lab::cli::run(command).unwrap_or_else(|error| {
        tell(format_args!("{error:#}"));
        ExitCode::from(2)
    })
}

/// Writes a line to standard error. A failed write changes no exit status.
fn tell(text: impl std::fmt::Display) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "ebb: {text}");
}

/// Prints the help, or the mistake in the arguments. After a mistake `ebb run` returns 125, Ebb's
/// own failure. The other commands return 2, for wrong usage.
fn usage(error: &clap::Error) -> ExitCode {
    let first = std::env::args_os().nth(1).unwrap_or_default();
    let left_out = [
        (cfg!(feature = "top"), "top"),
        (cfg!(feature = "manual"), "man"),
        (cfg!(feature = "manual"), "completions"),
    ];
    if let Some((_, name)) = left_out.iter().find(|&&(has, name)| !has && first == name) {
        tell(format_args!(
            "this ebb was built without {name}; build it with: cargo build --release --package ebb-run"
        ));
        return ExitCode::from(2);
    }
    let run = first == "run";
    if run && error.use_stderr() {
        // The message is one line, like every other refusal of `ebb run`.
        let text = error.to_string();
        let words = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let words: Vec<&str> = words.take_while(|line| !line.starts_with("Usage")).collect();
        tell(words.join(" ").trim_start_matches("error: "));
        return ExitCode::from(125);
    }
    // A failed print is not reported, because the output is closed.
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { 2 } else { 0 })
}
