//! Reads the arguments (programs, shares of memory, peers) and runs the benchmark.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::json;

use super::error::ProgramsError;
use super::list;
use super::rounds::{Measured, Peer, measure};
use super::runs::{End, Runner};
use super::table;
use crate::error::RunError;
use crate::kernel::{Cgroup, KernelError, Swap, SwapFile, Undo, quote_path, zram_is_there};

/// Real programs in a share of the memory they take: Ebb against the kernel's swap.
#[derive(Debug, Parser)]
#[command(name = "ebb bench programs")]
struct Args {
    /// Programs, by name [default: all]
    #[arg(long, value_delimiter = ',')]
    programs: Vec<String>,
    /// List the programs and run nothing
    #[arg(long)]
    list: bool,
    /// Percentages of its memory that a program gets
    #[arg(long, value_delimiter = ',', default_value = "50,25")]
    shares: Vec<u32>,
    /// Rounds; medians are shown, with quartiles
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Peers to compare Ebb with
    #[arg(long, value_enum, value_delimiter = ',', default_value = "swapfile,zram")]
    peers: Vec<Peer>,
    /// Seconds a run may take
    #[arg(long, default_value_t = 300)]
    timeout: u64,
    /// Form of the result
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Folder of the inputs and the kernel's swap file
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// The `ebb` to measure [default: the one beside this program]
    #[arg(long)]
    ebb: Option<PathBuf>,
    /// Further arguments of `ebb run`, as one word
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    ebb_args: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Runs `ebb bench programs` with these arguments, which leave out the command's name.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Args = match crate::parse("ebb bench programs", args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("ebb bench programs: {why}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether every program gave the output that it gives alone.
fn run(args: &Args) -> Result<bool, ProgramsError> {
    let chosen = list::chosen(&args.programs)?;
    if args.list {
        chosen.iter().for_each(|program| println!("{:13} {}", program.name, program.about));
        return Ok(true);
    }
    if args.rounds == 0 || args.timeout == 0 || args.shares.is_empty() {
        return Err(RunError::Zero("--rounds, --shares and --timeout").into());
    }
    if let Some(share) = args.shares.iter().find(|share| !(1..=200).contains(*share)) {
        return Err(ProgramsError::Share(*share));
    }
    let ebb = crate::ebb_to_measure(args.ebb.clone())?;
    let folder = tempfile::Builder::new().prefix("ebb-bench-").tempdir_in(&args.folder);
    let folder = folder.map_err(RunError::Folder)?;
    // A killed benchmark cannot remove the folder itself.
    let mut undo = Undo::new()?;
    undo.later(&format!("rm -rf {}", quote_path(folder.path())))?;
    let more = args.ebb_args.split_whitespace().map(str::to_owned).collect();
    let timeout = Duration::from_secs(args.timeout);
    let mut runner = Runner::new(ebb, more, folder.path().to_owned(), timeout)?;
    let peers = peers(args, &mut runner);
    let mut all = Vec::new();
    for program in chosen {
        if let Some(package) = program.missing() {
            eprintln!("{}: left out; it needs: sudo apt-get install {package}", program.name);
            continue;
        }
        let measured = measure(&runner, program, &args.shares, &peers, args.rounds)?;
        if args.format == Format::Text {
            let table = |&share: &u32| table::render(&measured, share, args.timeout as f64);
            args.shares.iter().filter_map(table).for_each(|table| println!("{table}"));
        }
        all.push(measured);
    }
    match args.format {
        Format::Text => {
            println!("{}", table::MEANS_HEAD);
            for &share in &args.shares {
                println!("{}", table::means(&all, share, &peers, args.timeout as f64));
            }
        }
        Format::Json => println!("{}", document(args, &all)),
    }
    Ok(all.iter().all(is_right))
}

/// Returns the peers that are available.
fn peers(args: &Args, runner: &mut Runner) -> Vec<Peer> {
    let mut peers = args.peers.clone();
    peers.dedup();
    let mut try_peer = |peer| -> Result<(), KernelError> {
        let _ = Cgroup::new(Some(1 << 30))?;
        match peer {
            Peer::SwapFile => {
                let file = SwapFile::new(&args.folder, 4 << 30)?;
                file.on(0)?;
                runner.swap_file = Some(file);
            }
            Peer::Zram if !zram_is_there() => return Err(KernelError::NoZram),
            Peer::Zram => drop(Swap::zram(1 << 30, None, 0)?),
        }
        Ok(())
    };
    peers.retain(|&peer| {
        let there = try_peer(peer);
        if let Err(why) = &there {
            eprintln!("{} is left out: {why}", peer.name());
        }
        there.is_ok()
    });
    peers
}

fn is_right(measured: &Measured) -> bool {
    let mut samples = measured.rows.iter().flat_map(|row| &row.samples);
    !samples.any(|sample| matches!(sample.end, End::Different | End::Failed(_)))
}

fn document(args: &Args, all: &[Measured]) -> serde_json::Value {
    json!({
        "schema": 1,
        "rounds": args.rounds,
        "timeout_s": args.timeout,
        "programs": all,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["x"].iter().chain(words))
    }

    #[test]
    fn options_have_defaults_and_lists_are_parsed() {
        let args = parse(&[]).unwrap();
        assert_eq!((args.rounds, args.timeout), (5, 300));
        assert_eq!(
            (&args.shares[..], &args.peers[..]),
            (&[50, 25][..], &[Peer::SwapFile, Peer::Zram][..])
        );
        let args =
            parse(&["--peers", "zram", "--shares", "75", "--ebb-args", "--swap file"]).unwrap();
        assert_eq!((&args.peers[..], &args.shares[..]), (&[Peer::Zram][..], &[75][..]));
        assert_eq!(args.ebb_args, "--swap file");
        assert!(parse(&["--peers", "floppy"]).is_err());
    }

    #[test]
    fn wrong_rounds_shares_and_programs_are_refused() {
        let refused = |words: &[&str]| run(&parse(words).unwrap()).unwrap_err().to_string();
        assert!(refused(&["--rounds", "0"]).contains("--rounds"));
        assert!(refused(&["--shares", "50,0"]).contains("--shares 0"));
        assert!(refused(&["--programs", "emacs"]).contains("emacs"));
    }
}
