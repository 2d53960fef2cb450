//! `ebb lru-gen` shows the generations of a run and passes commands to it, over the socket of the
//! run.

use crate::stat::{AskError, ask, say};
use ebb_control::{Patience, Reclaim, Request};
use ebb_mm::observe::lru_gen::Enabled;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
The text and the commands are those of the kernel's /sys/kernel/debug/lru_gen: for each generation
its number, its age in milliseconds and its anonymous and file pages (the oldest includes the
pages on probation). --full adds, for each access tier, the refaulted, evicted and protected pages.

Commands, several with commas between them:
  + MEMCG NODE GENERATION [SWAPPINESS [FORCE]]   opens a new generation; GENERATION is at most the youngest
  - MEMCG NODE GENERATION [SWAPPINESS [PAGES]]   evicts generations up to this one, PAGES pages
                                                 at most; not the two youngest
There is one memcg, 1, and one node, 0. Ebb cannot read accessed bits of a running program: a page
counts as young when the program faults on it after Ebb has unmapped it.

Exit status: 0, or 1 if PID belongs to no run of yours or the run refused the command.

Examples:
  ebb lru-gen 4711
  ebb lru-gen 4711 --full
  ebb lru-gen 4711 '+ 1 0 5'               age
  ebb lru-gen 4711 '- 1 0 4 200 1000'      reclaim up to 1000 pages
  ebb lru-gen 4711 --enabled n             use the classic lists instead")]
pub struct Arguments {
    /// Any process of the run, or the `ebb run` itself
    #[arg(value_name = "PID")]
    pid: u32,
    /// One or more commands
    #[arg(value_name = "COMMAND", allow_hyphen_values = true, conflicts_with_all = ["full", "enabled"])]
    command: Option<String>,
    /// Show tiers too
    #[arg(long)]
    full: bool,
    /// Show which parts are in use (1: the multi-gen LRU, 2: page-table walks, 4: non-leaf bits),
    /// or set them: y, n or a sum of these numbers
    #[arg(long, value_name = "VALUE", num_args = 0..=1, default_missing_value = "", conflicts_with = "full")]
    enabled: Option<String>,
}

/// Why a run shows nothing, or does not carry a command out.
#[derive(Debug, thiserror::Error)]
enum LruGenError {
    #[error("'{0}' is no command; write + (age) or - (evict) first; see ebb lru-gen --help")]
    NoCommand(String),
    #[error("enabled takes y, n or a number (7 is everything), not '{0}'")]
    NoParts(String),
    #[error(transparent)]
    Ask(#[from] AskError),
}

impl Arguments {
    /// Returns the request to send.
    fn request(&self) -> Result<Request, LruGenError> {
        if let Some(command) = &self.command {
            let command = command.trim();
            if !command.starts_with(['+', '-']) {
                return Err(LruGenError::NoCommand(command.into()));
            }
            return Ok(Request::Reclaim(Reclaim::LruGen(command.to_owned())));
        }
        match self.enabled.as_deref().map(str::trim) {
            None => Ok(Request::LruGen { full: self.full }),
            Some("") => Ok(Request::Enabled),
            Some(value) => {
                let parts =
                    Enabled::parse(value).map_err(|_| LruGenError::NoParts(value.into()))?;
                Ok(Request::Enable(parts.0))
            }
        }
    }
}

/// Asks a run, and returns the text to show.
fn told(pid: u32, request: &Request) -> Result<String, AskError> {
    match request {
        Request::LruGen { .. } => ask(pid, request, Patience::Endless),
        Request::Enabled => ask(pid, request, Patience::Endless).map(|parts| Enabled(parts).show()),
        _ => ask(pid, request, Patience::Endless).map(|()| String::new()),
    }
}

/// Shows the generations, or passes a command on.
pub fn lru_gen(arguments: &Arguments) -> ExitCode {
    match arguments.request().and_then(|request| Ok(told(arguments.pid, &request)?)) {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            crate::tell(reason);
            ExitCode::FAILURE
        }
    }
}
