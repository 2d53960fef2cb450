//! `ebb set`: changes what a run may have while it lasts, over its socket.

use crate::run::memory_total;
use crate::size;
use crate::stat::ask;
use ebb_agent::protocol::GREET_SET;
use ebb_pager::{MEMORY_MIN_BYTES, REFUSED};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
Keys, with the names of control groups where there is one:
  memory.max=SIZE         the limit. More takes effect at once; less comes step by step, while the
                          program goes on, and is taken back as far as it cannot be had
  memory.high=SIZE|max    above this the program is slowed down; max: nowhere
  memory.reclaim=SIZE     so much leaves memory now, once; last if there are several keys
  tier.ram=SIZE|max       the most that compressed memory may take; max: half of the limit
SIZE is as for `ebb run`. Nothing is changed unless all of it is understood.

Exit status: 0 when it is so; 1 if PID belongs to no run of yours, or it could not be had whole.

Examples:
  ebb set 4711 memory.max=256M
  ebb set $(pgrep -x redis-server) memory.max=1G memory.high=900M
  ebb set 4711 memory.reclaim=64M")]
pub struct Arguments {
    /// Any process of the run, or the `ebb run` itself
    #[arg(value_name = "PID")]
    pid: u32,
    /// What it is to have
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
}

/// What the run is asked for: what it may have, then what is to be reclaimed.
fn requests(settings: &[String], total: u64) -> Result<[String; 2], String> {
    let [mut limits, mut reclaim] = [String::new(), String::new()];
    for setting in settings {
        let (key, value) = setting.split_once('=').ok_or_else(|| {
            format!("'{setting}' is no setting; write KEY=VALUE, as memory.max=256M")
        })?;
        let bytes = || size::parse(value, total).map_err(|error| format!("{key}: {error}"));
        let at_least = |bytes: u64| {
            let least = MEMORY_MIN_BYTES >> 20;
            let why = || format!("{setting}: too little to run in; the least is {least}M");
            (bytes >= MEMORY_MIN_BYTES).then_some(bytes).ok_or_else(why)
        };
        match (key, value) {
            ("memory.high" | "tier.ram", "max") => limits += &format!("{key}=max "),
            ("memory.max" | "memory.high", _) => {
                limits += &format!("{key}={} ", at_least(bytes()?)?);
            }
            ("tier.ram", _) => limits += &format!("{key}={} ", bytes()?),
            ("memory.reclaim", _) => reclaim = format!("reclaim={}", bytes()?),
            _ => {
                return Err(format!(
                    "there is no '{key}' to set; memory.max, memory.high, memory.reclaim and tier.ram are"
                ));
            }
        }
    }
    Ok([limits, reclaim])
}

/// Has the run that a process belongs to changed so; waits until it is.
pub fn have(pid: u32, settings: &[String]) -> Result<(), String> {
    let requests = requests(settings, memory_total())?;
    for request in requests.iter().filter(|request| !request.is_empty()) {
        let answer = ask(pid, GREET_SET, request)?;
        if let Some(reason) = answer.strip_prefix(REFUSED) {
            return Err(reason.to_owned());
        }
    }
    Ok(())
}

/// Has it changed.
pub fn set(arguments: &Arguments) -> ExitCode {
    match have(arguments.pid, &arguments.settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            crate::tell(reason);
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::requests;

    fn of(words: &str) -> Result<[String; 2], String> {
        requests(&words.split(' ').map(str::to_owned).collect::<Vec<_>>(), 1 << 30)
    }

    #[test]
    fn settings_become_requests_in_bytes() {
        let [limits, reclaim] =
            of("memory.reclaim=1M memory.max=25% memory.high=max tier.ram=64k").unwrap();
        assert_eq!(limits, "memory.max=268435456 memory.high=max tier.ram=65536 ");
        assert_eq!(reclaim, "reclaim=1048576");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (words, named) in [
            ("memory.max", "'memory.max'"),
            ("memory.max=lots", "'lots'"),
            ("memory.max=1M", "4M"),
            ("memory.max=1G swappiness=10", "'swappiness'"),
        ] {
            let error = of(words).unwrap_err();
            assert!(error.contains(named), "{words}: {error}");
        }
    }
}
