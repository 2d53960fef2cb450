//! The configuration of a run, which the supervisor sends to the pager at the start.

use ebb_mm::driver::{READAHEAD_MAX, window_max};
use ebb_mm::resident::Split;
use ebb_mm::tunables::{SetError, Tunables};
use ebb_mm::types::PAGE_SIZE;
use ebb_swap::TierSpec;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Format of the end-of-run report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportFormat {
    /// Lines for people, `ebb: NAME VALUE`.
    Text,
    /// One object with a schema version; plain integers, with the unit in the key.
    Json,
}

/// Destination of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportTo {
    /// Standard error of `ebb run`, which is also the program's.
    Stderr,
    /// Standard output of `ebb run`.
    Stdout,
    /// A file, which is overwritten.
    File(PathBuf),
    /// No report is written.
    Nowhere,
}

/// Tiers that get pages encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypt {
    /// Tiers on other machines.
    Remote,
    /// Tiers on other machines, and files.
    All,
    /// No tier.
    None,
}

impl From<Encrypt> for ebb_swap::Encrypt {
    fn from(encrypt: Encrypt) -> Self {
        match encrypt {
            Encrypt::Remote => Self::Remote,
            Encrypt::All => Self::All,
            Encrypt::None => Self::None,
        }
    }
}

/// Least limit of a run, in bytes. Less cannot hold the pages that a program needs between two
/// faults.
pub const MEMORY_MIN_BYTES: u64 = 4 << 20;

/// Configuration of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Limit of the resident memory of the tree, including the compressed tier, in bytes.
    pub memory_max_bytes: u64,
    /// Amount of memory at which reclaim aims, in bytes. Between that and the limit the tree is
    /// slowed down.
    pub memory_high_bytes: Option<u64>,
    /// Tiers, as the user wrote them.
    pub swap: String,
    /// Path of the socket to which agents connect.
    pub socket: PathBuf,
    /// Address space for the pool of each process, in bytes.
    pub pool_bytes: u64,
    /// Format of the report.
    pub report: ReportFormat,
    /// Destination of the report.
    pub report_to: ReportTo,
    /// File for a trace of the requested pages.
    pub record: Option<PathBuf>,
    /// File for the events of the run; `-` is standard error.
    pub events: Option<PathBuf>,
    /// Faults to inject into the store, for tests.
    pub inject: Option<String>,
    /// Tiers that are encrypted.
    pub encrypt: Encrypt,
    /// Whether io_uring may be used.
    pub io_uring: bool,
    /// Share of the resident pages kept on the standby list, in permille.
    pub standby_permille: u32,
    /// Whether the share of compressed memory adapts to demand. Otherwise it is as large as
    /// allowed.
    pub split: bool,
    /// Whether the fault thread may stay on the CPU of a program with one faulting thread.
    pub cpu_follow: bool,
    /// Most pages fetched ahead of a sequential pass over memory; 0 for none.
    pub readahead_pages: u32,
    /// Switches of the engine, KEY=VALUE each.
    pub switches: Vec<String>,
    /// Whether standby pages ahead of a pass are reactivated together with the faulting page.
    pub look_around: bool,
    /// Whether every area is managed from the start, however far the limit is.
    pub eager: bool,
    /// Whether the pager repeatedly unmaps a sample of pages, to see how soon each is used again.
    pub sample: bool,
    /// Whether unmanaged memory ends the run.
    pub strict: bool,
    /// Share of time that may be lost to waiting for memory, in permille. The limit is adapted to
    /// it.
    pub pressure_target_permille: Option<u32>,
    /// Process that becomes the program, if the supervisor is not its parent (`--exec`).
    pub root: Option<u32>,
    /// Whether that process ran before, and is given back in the end (`ebb attach`).
    pub attached: bool,
    /// Whether processes that it had started before are given back, too (`--tree`).
    pub tree: bool,
    /// Command line, for the report ([`shown`]).
    pub command: Vec<String>,
}

/// Limit of the bytes shown of a command line. The whole configuration is one message to the pager,
/// of 64 KiB at most.
const SHOWN_MAX: usize = 4096;

/// Returns the words of a command line, as a report shows them. A long one is cut and ends with
/// `…`.
#[must_use]
pub fn shown(words: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Vec<String> {
    let (mut shown, mut left) = (Vec::new(), SHOWN_MAX);
    for word in words {
        let word = word.as_ref();
        let fits = word.len() < left;
        let kept = if fits { word } else { &word[..left.min(word.len())] };
        let text = String::from_utf8_lossy(kept).into_owned();
        shown.push(if fits { text } else { text + "…" });
        if !fits {
            break;
        }
        left -= word.len() + 1;
    }
    shown
}

/// Gives the configuration of a run without settings: no limit yet, no tiers, no report.
impl Default for Config {
    fn default() -> Self {
        Self {
            memory_max_bytes: 0,
            memory_high_bytes: None,
            swap: String::new(),
            socket: PathBuf::new(),
            pool_bytes: 0,
            report: ReportFormat::Text,
            report_to: ReportTo::Nowhere,
            record: None,
            events: None,
            inject: None,
            encrypt: Encrypt::Remote,
            io_uring: true,
            standby_permille: 500,
            split: true,
            cpu_follow: true,
            readahead_pages: READAHEAD_MAX,
            look_around: true,
            switches: Vec::new(),
            eager: false,
            sample: false,
            strict: false,
            pressure_target_permille: None,
            root: None,
            attached: false,
            tree: false,
            command: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the maximum number of pages in a readahead window, a small share of the budget.
    pub fn window_max(&self) -> u32 {
        window_max(self.memory_max_bytes / PAGE_SIZE as u64, self.readahead_pages)
    }

    /// Returns the limit of compressed memory if the user has set none and there is no other tier.
    /// The program needs the rest to run in.
    #[must_use]
    pub fn ram_bytes_max(&self, memory_max_bytes: u64) -> Option<u64> {
        let tiers = ebb_swap::parse_tiers(&self.swap).ok()?;
        matches!(tiers[..], [TierSpec::Ram { limit: None }])
            .then(|| memory_max_bytes - memory_max_bytes / 8)
    }

    /// Returns whether compressed memory may grow: the user has set no size, and there is no other
    /// tier.
    #[must_use]
    pub fn ram_grows(&self) -> bool {
        self.ram_bytes_max(0).is_some()
    }

    /// Returns the limit of compressed memory that the user has set.
    #[must_use]
    pub fn ram_bytes_said(&self) -> Option<u64> {
        let tiers = ebb_swap::parse_tiers(&self.swap).ok()?;
        tiers.into_iter().find_map(|tier| match tier {
            TierSpec::Ram { limit } => limit,
            TierSpec::File { .. } | TierSpec::Redis(_) => None,
        })
    }

    /// Returns how memory is divided between plain and compressed pages, if there is another tier,
    /// too.
    #[must_use]
    pub fn split(&self) -> Option<Split> {
        let tiers = ebb_swap::parse_tiers(&self.swap).ok()?;
        let [TierSpec::Ram { limit }, _, ..] = tiers[..] else { return None };
        let most = limit.unwrap_or(self.memory_max_bytes / 2);
        self.split.then(|| Split::new(self.memory_max_bytes, most))
    }

    /// Returns the engine's switches: the preset for standby pages, changed by the user's settings.
    ///
    /// # Errors
    /// Fails for an unknown switch, or a value that the switch cannot have.
    pub fn tunables(&self) -> Result<Tunables, SetError> {
        let mut tunables = Tunables::standby();
        self.switches.iter().try_for_each(|pair| tunables.set(pair))?;
        Ok(tunables)
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    /// The start of a long command line is shown. A message to the pager holds 64 KiB, and a longer
    /// one was cut in the middle of the command.
    #[test]
    fn of_a_long_command_line_the_beginning_is_shown() {
        assert_eq!(shown(["echo", "", "a\u{e9}"]), ["echo", "", "a\u{e9}"]);
        let long = shown(["sh".to_owned(), "x".repeat(100_000), "never".to_owned()]);
        assert_eq!((long.len(), long[0].as_str(), long[1].chars().count()), (2, "sh", 4094));
        assert!(long[1].ends_with("x…"));
        let many = shown(vec!["\u{1}"; 100_000]);
        assert!(serde_json::to_string(&many).expect("text").len() < 32 << 10);
    }
}
