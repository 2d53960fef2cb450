//! `ebb set` changes the limits of a run while it lasts, over the socket of the run.

use crate::run::memory_total;
use crate::size::{self, SizeError};
use crate::stat::{AskError, ask};
use ebb_control::{Bound, Limits, Patience, Reclaim, Request};
use ebb_pager::MEMORY_MIN_BYTES;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
Keys, with the names of control groups where there is one:
  memory.max=SIZE         the limit. A higher one takes effect at once. A lower one comes step by
                          step while the program runs, and stops where no more memory can leave
  memory.high=SIZE|max    limit above which Ebb throttles the program; max: none
  memory.reclaim=SIZE     reclaim this much now, once; Ebb does it after the other changes
  tier.ram=SIZE|max       most memory that compressed pages may take; max: half of the limit
SIZE is as for `ebb run`. Nothing changes unless all settings are valid.

Exit status: 0 when all settings are in effect; 1 if one is not, or PID belongs to no run of yours.

Examples:
  ebb set 4711 memory.max=256M
  ebb set $(pgrep -x redis-server) memory.max=1G memory.high=900M
  ebb set 4711 memory.reclaim=64M")]
pub struct Arguments {
    /// Any process of the run, or the `ebb run` itself
    #[arg(value_name = "PID")]
    pid: u32,
    /// New settings of the run
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
}

/// Why a run is not changed.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum SetError {
    /// The text is no setting.
    #[error("'{0}' is not a setting; write KEY=VALUE, as memory.max=256M")]
    NoSetting(String),
    /// The value of a key is no size.
    #[error("{0}: {1}")]
    Size(String, SizeError),
    /// A program cannot run in the size of the setting.
    #[error("{0}: less than a program can run in; the least is {least}M", least = MEMORY_MIN_BYTES >> 20)]
    TooSmall(String),
    /// There is no such key.
    #[error("'{0}' is not a key; write memory.max, memory.high, memory.reclaim or tier.ram")]
    UnknownKey(String),
    /// The run refuses the change or does not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
}

/// Returns the requests to the run: the one for its limits, and the one for reclaim.
fn requests(settings: &[String], total: u64) -> Result<Vec<Request>, SetError> {
    let (mut limits, mut reclaim) = (Limits::default(), None);
    for setting in settings {
        let (key, value) =
            setting.split_once('=').ok_or_else(|| SetError::NoSetting(setting.clone()))?;
        let bytes = || size::parse(value, total).map_err(|why| SetError::Size(key.into(), why));
        let at_least = |bytes: u64| {
            let why = || SetError::TooSmall(setting.clone());
            (bytes >= MEMORY_MIN_BYTES).then_some(bytes).ok_or_else(why)
        };
        match (key, value) {
            ("memory.high", "max") => limits.high = Some(Bound::Max),
            ("tier.ram", "max") => limits.ram = Some(Bound::Max),
            ("memory.max", _) => limits.max = Some(at_least(bytes()?)?),
            ("memory.high", _) => limits.high = Some(Bound::Bytes(at_least(bytes()?)?)),
            ("tier.ram", _) => limits.ram = Some(Bound::Bytes(bytes()?)),
            ("memory.reclaim", _) => reclaim = Some(Request::Reclaim(Reclaim::Bytes(bytes()?))),
            _ => return Err(SetError::UnknownKey(key.into())),
        }
    }
    let limits = (limits != Limits::default()).then_some(Request::Limits(limits));
    Ok(limits.into_iter().chain(reclaim).collect())
}

/// Asks the run that process `pid` belongs to for the changes, and waits until they are done.
pub fn have(pid: u32, settings: &[String]) -> Result<(), SetError> {
    let requests = requests(settings, memory_total())?;
    Ok(requests.iter().try_for_each(|request| ask(pid, request, Patience::Endless))?)
}

/// Changes the run.
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
    use super::*;

    fn of(words: &str) -> Result<Vec<Request>, SetError> {
        requests(&words.split(' ').map(str::to_owned).collect::<Vec<_>>(), 1 << 30)
    }

    #[test]
    fn sizes_in_settings_are_sent_in_bytes() {
        let limits = Limits {
            max: Some(268_435_456),
            high: Some(Bound::Max),
            ram: Some(Bound::Bytes(65536)),
            keep: false,
        };
        let reclaim = Request::Reclaim(Reclaim::Bytes(1_048_576));
        assert_eq!(
            of("memory.reclaim=1M memory.max=25% memory.high=max tier.ram=64k"),
            Ok(vec![Request::Limits(limits), reclaim.clone()])
        );
        assert_eq!(of("memory.reclaim=1M"), Ok(vec![reclaim]));
    }

    #[test]
    fn an_error_names_the_wrong_setting() {
        for (words, named) in [
            ("memory.max", "'memory.max'"),
            ("memory.max=lots", "'lots'"),
            ("memory.max=1M", "4M"),
            ("memory.max=1G swappiness=10", "'swappiness'"),
        ] {
            let error = of(words).unwrap_err().to_string();
            assert!(error.contains(named), "{words}: {error}");
        }
    }
}
