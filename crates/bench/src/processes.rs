//! `ebb bench processes` measures what forks and starts of programs cost far from the limit.
//!
//! A shell makes many short-lived processes, plain and under Ebb, in turns. Its wall time excludes
//! the start of Ebb and of the shell's first process.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;

use crate::account::{Inner, read};
use crate::error::RunError;
use crate::stats::Summary;

/// Measure what forks and starts of programs cost far from the limit.
#[derive(Debug, Parser)]
#[command(
    name = "ebb bench processes",
    after_help = "\
Without PROGRAM the loads are loops of /bin/sh: subshells that end at once, and starts of /bin/true.

Examples:
  ebb bench processes
  ebb bench processes --rounds 9 -- make -j2 -C project clean all"
)]
struct Args {
    /// Rounds; medians are shown, with quartiles
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Processes in each load
    #[arg(long, default_value_t = 400)]
    count: u32,
    /// As for `ebb run`
    #[arg(long, default_value = "8G")]
    memory_max: String,
    /// The `ebb` to measure [default: the one beside this program]
    #[arg(long)]
    ebb: Option<PathBuf>,
    /// A program that starts others, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// A program that makes processes.
struct Load {
    name: String,
    words: Vec<String>,
    /// Number of processes that the program makes; 1 if it is unknown.
    count: f64,
}

impl Load {
    fn of_shell(name: &str, body: &str, count: u32) -> Self {
        let text = format!("i=0; while [ $i -lt {count} ]; do {body}; i=$((i+1)); done");
        let words = ["/bin/sh", "-c", &text].map(Into::into).into();
        Self { name: name.into(), words, count: f64::from(count) }
    }

    fn all(args: &Args) -> Vec<Self> {
        if args.program.is_empty() {
            return vec![
                Self::of_shell("fork and exit", "(:)", args.count),
                Self::of_shell("fork and exec", "/bin/true", args.count),
            ];
        }
        let name = args.program.join(" ");
        vec![Self { name, words: args.program.clone(), count: 1.0 }]
    }

    /// Runs the load once, plain or under `ebb`. Returns its own wall time in seconds.
    fn run(&self, args: &Args, folder: &Path, ebb: Option<&Path>) -> Result<f64, RunError> {
        let inner = folder.join("inner");
        let mut words: Vec<String> = Vec::new();
        if let Some(ebb) = ebb {
            words.push(ebb.to_string_lossy().into_owned());
            words.extend(["run", "-q", "--memory-max", &args.memory_max, "--"].map(Into::into));
        }
        words.extend(crate::own_bench()?);
        words.extend(["account-run".into(), inner.to_string_lossy().into_owned()]);
        words.extend(self.words.iter().cloned());
        let began = Instant::now();
        let status = (Command::new(&words[0]).args(&words[1..]))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .status()
            .map_err(|error| RunError::Start(words[0].clone(), error))?;
        if !status.success() {
            let seconds = began.elapsed().as_secs_f64();
            return Err(RunError::FailedAfter(words.join(" "), status, seconds));
        }
        let inner: Inner = read(&inner)?;
        Ok(inner.wall_us as f64 / 1e6)
    }
}

/// Runs `ebb bench processes` with these arguments, which leave out the command's name.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Args = match crate::parse("ebb bench processes", args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("ebb bench processes: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<String, RunError> {
    if args.rounds == 0 || args.count == 0 {
        return Err(RunError::Zero("--rounds and --count"));
    }
    let ebb = crate::ebb_to_measure(args.ebb.clone())?;
    let folder = tempfile::tempdir().map_err(RunError::Folder)?;
    let mut rows = Vec::new();
    for load in Load::all(args) {
        let mut rounds = Vec::new();
        for _ in 0..args.rounds {
            let plain = load.run(args, folder.path(), None)?;
            rounds.push((plain, load.run(args, folder.path(), Some(&ebb))?));
        }
        rows.push((load, rounds));
    }
    Ok(text(&rows))
}

fn text(rows: &[(Load, Vec<(f64, f64)>)]) -> String {
    let mut out = String::from(
        "| load | plain, ms a process [quartiles] | under ebb, ms | ratio |\n|---|---|---|---|\n",
    );
    for (load, rounds) in rows {
        let show = |figure: &dyn Fn(&(f64, f64)) -> f64, digits| {
            let values: Vec<f64> = rounds.iter().map(figure).collect();
            Summary::of(&values).map_or("-".into(), |all| all.show(digits))
        };
        let plain = show(&|round| round.0 * 1e3 / load.count, 3);
        let ebb = show(&|round| round.1 * 1e3 / load.count, 3);
        let ratio = show(&|round| round.1 / round.0, 2);
        out += &format!("| {} | {plain} | {ebb} | {ratio} |\n", load.name);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_for_each_process() {
        let load = Load::of_shell("fork and exit", "(:)", 400);
        let text = text(&[(load, vec![(0.4, 0.8), (0.4, 0.8)])]);
        assert!(text.ends_with("| fork and exit | 1.000 | 2.000 | 2.00 |\n"), "{text}");
    }
}
