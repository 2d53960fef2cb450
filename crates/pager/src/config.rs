//! What the front tells the pager at the start.

use ebb_mm::resident::Split;
use ebb_mm::tunables::{SetError, Tunables};
use ebb_swap::TierSpec;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How the end-of-run report is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportFormat {
    /// Lines for people, `ebb: NAME VALUE`.
    Text,
    /// One object with a schema version; plain integers, with the unit in the key.
    Json,
}

/// Where the report goes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReportTo {
    /// The standard error of `ebb run`, which is the program's.
    Stderr,
    /// Its standard output.
    Stdout,
    /// A file, which is overwritten.
    File(PathBuf),
    /// There is none.
    Nowhere,
}

/// Which tiers get pages encrypted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encrypt {
    /// Those on other machines.
    Remote,
    /// Files, too.
    All,
    /// None.
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

/// Less cannot hold what a program touches between two faults.
pub const MEMORY_MIN_BYTES: u64 = 4 << 20;

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Config {
    /// Most bytes of memory the tree may have resident, compressed tier included.
    pub memory_max_bytes: u64,
    /// Where reclaim aims; between that and the limit the tree is slowed down.
    pub memory_high_bytes: Option<u64>,
    /// The tiers as the user wrote them.
    pub swap: String,
    /// Where agents connect.
    pub socket: PathBuf,
    /// Address space for the pool of each process.
    pub pool_bytes: u64,
    /// The report's form.
    pub report: ReportFormat,
    /// Its place.
    pub report_to: ReportTo,
    /// A trace of the pages asked for goes there.
    pub record: Option<PathBuf>,
    /// What happens to the run is written there; `-` is standard error.
    pub events: Option<PathBuf>,
    /// Faults to inject into the store, for tests.
    pub inject: Option<String>,
    /// Which tiers are encrypted.
    pub encrypt: Encrypt,
    /// Whether io_uring may be used.
    pub io_uring: bool,
    /// Share of the resident pages kept cool, in 1/1000.
    pub cool_permille: u32,
    /// Whether the share of compressed memory follows what is asked for; else it is as large as it may be.
    pub split: bool,
    /// Whether the fault thread may stay on the CPU of a program with one faulting thread.
    pub solo: bool,
    /// Most pages fetched ahead of a program that passes over memory; 0: none.
    pub readahead_pages: u32,
    /// Switches of the engine, KEY=VALUE each.
    pub switches: Vec<String>,
    /// Cool pages ahead of a pass come back with the one that was touched.
    pub look_around: bool,
    /// Manage every area from the start, however far the limit is.
    pub eager: bool,
    /// A sample of pages is taken out of sight again and again, to see how soon each is used again.
    pub sample: bool,
    /// Memory that is not managed ends the run.
    pub strict: bool,
    /// The share of time that may be lost to waiting for memory, in thousandths: the limit follows it.
    pub pressure_target_permille: Option<u32>,
    /// The process that becomes the program, where the front is not its parent (`--exec`).
    pub root: Option<u32>,
    /// That process ran before, and is given back in the end (`ebb attach`).
    pub attached: bool,
    /// So is what it had started before (`--tree`).
    pub tree: bool,
    /// The command line, for the report ([`shown`]).
    pub command: Vec<String>,
}

/// Bytes of a command line that are shown. All of the configuration is one message to the pager, of 64 KiB at most.
const SHOWN_MAX: usize = 4096;

/// The words of a command line, as a report shows them: of a long one the beginning, and `…`.
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

/// What a run has that asks for nothing: no limit yet, no tiers, no report.
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
            cool_permille: 500,
            split: true,
            solo: true,
            readahead_pages: 64,
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
    /// How large compressed memory may become, where nobody has said it and there is no other tier: what is left is
    /// for the program to run in.
    #[must_use]
    pub fn ram_bytes_max(&self, memory_max_bytes: u64) -> Option<u64> {
        let tiers = ebb_swap::parse_tiers(&self.swap).ok()?;
        matches!(tiers[..], [TierSpec::Ram { limit: None }])
            .then(|| memory_max_bytes - memory_max_bytes / 8)
    }

    /// Whether compressed memory may grow: nobody has said how large it is, and there is no other tier.
    #[must_use]
    pub fn ram_grows(&self) -> bool {
        self.ram_bytes_max(0).is_some()
    }

    /// How large compressed memory may become, if that was said.
    #[must_use]
    pub fn ram_bytes_said(&self) -> Option<u64> {
        let tiers = ebb_swap::parse_tiers(&self.swap).ok()?;
        tiers.into_iter().find_map(|tier| match tier {
            TierSpec::Ram { limit } => limit,
            TierSpec::File { .. } | TierSpec::Redis(_) => None,
        })
    }

    /// How memory is divided between pages as they are and compressed ones, where both that and another tier are there.
    #[must_use]
    pub fn split(&self) -> Option<Split> {
        let tiers = ebb_swap::parse_tiers(&self.swap).ok()?;
        let [TierSpec::Ram { limit }, _, ..] = tiers[..] else { return None };
        let most = limit.unwrap_or(self.memory_max_bytes / 2);
        self.split.then(|| Split::new(self.memory_max_bytes, most))
    }

    /// The engine's switches: what measured best with cooling, and what the user has set.
    ///
    /// # Errors
    /// An unknown switch, or a value it cannot have.
    pub fn tunables(&self) -> Result<Tunables, SetError> {
        let mut tunables = Tunables::cooling();
        self.switches.iter().try_for_each(|pair| tunables.set(pair))?;
        Ok(tunables)
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    /// A message to the pager held 64 KiB, and was cut in the middle of the command.
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
