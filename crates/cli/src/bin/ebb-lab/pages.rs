//! `ebb man` and `ebb completions` write files that packages install, made from the table of the
//! options.

use clap_complete::Shell;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ebb man /usr/local/share/man/man1
  man -l <(ebb man)")]
pub struct ManArguments {
    /// Write a page for each command into this folder; without it, print the first page
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  ebb completions bash > ~/.local/share/bash-completion/completions/ebb
  ebb completions zsh > /usr/local/share/zsh/site-functions/_ebb
  ebb completions fish > ~/.config/fish/completions/ebb.fish")]
pub struct CompletionArguments {
    /// Shell to write completions for
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

/// Writes the manual pages.
pub fn man(arguments: &ManArguments) -> ExitCode {
    let command = crate::all_commands();
    let (place, done) = match &arguments.folder {
        Some(folder) => {
            let made = std::fs::create_dir_all(folder);
            let made = made.and_then(|()| clap_mangen::generate_to(command, folder));
            (format!("{}: ", folder.display()), made)
        }
        None => {
            let mut text = Vec::new();
            let made = clap_mangen::Man::new(command).render(&mut text);
            print(&text);
            (String::new(), made)
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ebb_run::tell(format_args!("{place}{error}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes the completions for a shell.
pub fn completions(arguments: &CompletionArguments) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::all_commands(), "ebb", &mut text);
    print(&text);
    ExitCode::SUCCESS
}

/// Prints to standard output. A closed pipe is no failure: the reader has seen enough.
pub fn print(text: &[u8]) {
    let _ = std::io::stdout().write_all(text);
}
