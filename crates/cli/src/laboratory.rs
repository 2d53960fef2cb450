//! The commands that `ebb-lab` carries out: their lines in the help, and the start of `ebb-lab`.

use ebb_sys::inherited;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Name of the program that has the commands.
const PROGRAM: &str = "ebb-lab";

/// Commands, each with its line in the help, as `ebb-lab --help` has them.
const COMMANDS: [(&str, &str); 4] = [
    ("man", "Write the manual pages"),
    ("completions", "Write the completion script for a shell"),
    ("lab", "Measure reclaim: replay page traces, draw miss-ratio curves"),
    (
        "bench",
        "Measure Ebb itself: `account`, `alloc`, `paging`, `processes`, `programs`, `reclaim`, each with --help",
    ),
];

/// Adds the commands to those that the help lists.
pub fn list_in(command: clap::Command) -> clap::Command {
    command.subcommands(COMMANDS.map(|(name, about)| clap::Command::new(name).about(about)))
}

/// Starts `ebb-lab` in the place of this process, if the arguments name one of its commands: first
/// the program beside this one, else one on the PATH. Returns the exit status if there is none.
pub fn start() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let is_help = words.first().is_some_and(|word| word == "help");
    let name = words.get(usize::from(is_help))?;
    if !COMMANDS.iter().any(|(command, _)| name == command) {
        return None;
    }
    let beside = std::env::current_exe().ok().map(|ebb| ebb.with_file_name(PROGRAM));
    for program in beside.into_iter().chain([PathBuf::from(PROGRAM)]) {
        let error = Command::new(&program)
            .args(&words)
            .envs(inherited::removed_variables().iter().cloned())
            .exec();
        if error.kind() != ErrorKind::NotFound {
            crate::tell(format_args!("cannot start {}: {error}", program.display()));
            return Some(ExitCode::from(2));
        }
    }
    let name = name.display();
    crate::tell(format_args!(
        "there is no {PROGRAM} for `ebb {name}`, neither beside this ebb nor on the PATH; {}",
        crate::BUILD
    ));
    Some(ExitCode::from(2))
}
