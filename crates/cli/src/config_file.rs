//! `ebb run --config FILE`: reads options from a TOML file.
//!
//! The keys are the names of the options. Keys at the top apply to every run. Keys under
//! `[profile.NAME]` apply to runs with `--profile NAME` and override the keys at the top. Options
//! on the command line override both.
//!
//! The whole file is checked, unused profiles included. A mistake is reported with its line before
//! anything starts.

use crate::run::{self, Arguments, Encrypted, Report, ShareError, SwitchError};
use crate::serve::{self, ServeError};
use crate::size::{self, SizeError};
use clap::ValueEnum;
use ebb_mm::nearest::nearest;
use ebb_swap::TierSpecError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Type of the value of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Size,
    Tiers,
    Percent,
    Form,
    Path,
    Address,
    Which,
    Flag,
}

/// Describes a valid value, for error messages.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "a size, as \"256M\" or \"25%\"",
            Self::Tiers => "a list of tiers, as \"ram:64M,file:/var/tmp\"",
            Self::Percent => "a share, as \"5%\"",
            Self::Form => "\"text\" or \"json\"",
            Self::Path => "a path, as \"/var/log/ebb.json\"",
            Self::Address => "a port or an address with one, as 9464 or \"0.0.0.0:9464\"",
            Self::Which => "\"remote\", \"all\" or \"none\"",
            Self::Flag => "true or false",
        })
    }
}

/// Keys that a file may have, besides `set` and `profile`.
const KEYS: [(&str, Kind); 15] = [
    ("memory-max", Kind::Size),
    ("memory-high", Kind::Size),
    ("swap", Kind::Tiers),
    ("encrypt", Kind::Which),
    ("report", Kind::Form),
    ("report-file", Kind::Path),
    ("exec", Kind::Flag),
    ("quiet", Kind::Flag),
    ("record", Kind::Path),
    ("metrics", Kind::Address),
    ("events", Kind::Path),
    ("pressure-target", Kind::Percent),
    ("sample", Kind::Flag),
    ("strict", Kind::Flag),
    ("inject", Kind::Path),
];
const SET: &str = "set";
const PROFILE: &str = "profile";

/// Why the options of a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The file cannot be read.
    #[error("--config {}: {}", .0.display(), .1)]
    Read(PathBuf, io::Error),
    /// A line of the file has a mistake.
    #[error("{}:{}: {}", .0.display(), .1, .2)]
    At(PathBuf, usize, Box<Mistake>),
    /// The file has no profile of this name. The last field is the nearest.
    #[error("--profile {}: {} has no such profile; did you mean '{}'?", .0, .1.display(), .2)]
    NoProfile(String, PathBuf, String),
    /// The file has no profile.
    #[error("--profile {}: {} has no profiles; write one as [profile.{}]", .0, .1.display(), .0)]
    NoProfiles(String, PathBuf),
}

/// A mistake in a line. The first field is a key.
#[derive(Debug, thiserror::Error)]
pub enum Mistake {
    /// The parser of TOML refuses the line, in these words.
    #[error("{0}")]
    Toml(String),
    /// The key `profile` has a value.
    #[error("profile: give it a name and options of its own, as [profile.small]")]
    ProfileValue,
    /// A profile is no table.
    #[error("profile.{0}: write its options below [profile.{0}]")]
    NoProfileTable(String),
    /// The key `set` is no table.
    #[error("set: write its switches as KEY = VALUE below [set]")]
    NoSetTable,
    /// A switch has a value of another type.
    #[error("set.{0}: write a number, a word or true or false")]
    SwitchType(String),
    /// There is no such key. The second is the nearest.
    #[error("unknown key '{0}'; did you mean '{1}'?")]
    UnknownKey(String, &'static str),
    /// The value has another type.
    #[error("{0}: write {1}")]
    Type(&'static str, Kind),
    /// The path is empty.
    #[error("{0}: it is empty; write {1}")]
    Empty(&'static str, Kind),
    /// The word is none of the choices.
    #[error("{0}: '{1}' is not a choice; write {2}")]
    Choice(&'static str, String, Kind),
    /// The word is no format.
    #[error("{0}: '{1}' is not a format; write {2}")]
    Format(&'static str, String, Kind),
    /// The value is no size.
    #[error("{0}: {1}")]
    Size(&'static str, SizeError),
    /// The value is no list of tiers.
    #[error("{0}: {1}")]
    Tiers(&'static str, TierSpecError),
    /// The value is no share.
    #[error("{0}: {1}")]
    Share(&'static str, ShareError),
    /// The figures cannot be served at the value.
    #[error("{0}: {1}")]
    Address(&'static str, ServeError),
    /// A switch is not valid.
    #[error(transparent)]
    Switch(#[from] SwitchError),
}

/// Name and text of a file, to report the line of a mistake.
struct Text<'a> {
    name: &'a Path,
    text: &'a str,
}

impl Text<'_> {
    fn wrong(&self, at: usize, what: Mistake) -> FileError {
        let before = &self.text.as_bytes()[..at.min(self.text.len())];
        let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
        FileError::At(self.name.into(), line, what.into())
    }
}

/// Reads the options of the file and of the chosen profile into `arguments`.
pub fn read(arguments: &mut Arguments) -> Result<(), FileError> {
    let Some(path) = arguments.config.clone() else { return Ok(()) };
    let text =
        std::fs::read_to_string(&path).map_err(|error| FileError::Read(path.clone(), error))?;
    let profile = arguments.profile.clone();
    apply(arguments, &Text { name: &path, text: &text }, profile.as_deref())
}

fn apply(
    arguments: &mut Arguments,
    file: &Text<'_>,
    profile: Option<&str>,
) -> Result<(), FileError> {
    let table = DeTable::parse(file.text).map_err(|error| {
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        file.wrong(error.span().map_or(0, |span| span.start), Mistake::Toml(message))
    })?;
    let general = options(file, table.get_ref(), true)?;
    let mut chosen = None;
    let mut names = Vec::new();
    if let Some(profiles) = table.get_ref().get(PROFILE) {
        let DeValue::Table(profiles) = profiles.get_ref() else {
            return Err(file.wrong(profiles.span().start, Mistake::ProfileValue));
        };
        for (name, value) in profiles {
            let DeValue::Table(table) = value.get_ref() else {
                let what = Mistake::NoProfileTable(name.get_ref().to_string());
                return Err(file.wrong(name.span().start, what));
            };
            let options = options(file, table, false)?;
            names.push(name.get_ref().as_ref());
            if profile == Some(name.get_ref().as_ref()) {
                chosen = Some(options);
            }
        }
    }
    if let (Some(name), None) = (profile, &chosen) {
        let (nearest, name, file) = (nearest(name, names), name.into(), file.name.into());
        return Err(match nearest {
            Some(other) => FileError::NoProfile(name, file, other.into()),
            None => FileError::NoProfiles(name, file),
        });
    }
    // For an ordinary option the first value counts, and for a switch the last.
    let chosen = chosen.unwrap_or_default();
    let typed = std::mem::take(&mut arguments.set);
    for options in [chosen.clone(), general.clone()] {
        options.plain.into_iter().for_each(|(key, value)| fill(arguments, key, value));
    }
    arguments.set = [general.switches, chosen.switches, typed].concat();
    Ok(())
}

/// Options of one part of a file: the top or one profile.
#[derive(Clone, Default)]
struct Options {
    plain: Vec<(&'static str, String)>,
    switches: Vec<String>,
}

fn options(file: &Text<'_>, table: &DeTable<'_>, is_top: bool) -> Result<Options, FileError> {
    let mut found = Options::default();
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let wrong = |what| file.wrong(value.span().start, what);
        match KEYS.into_iter().find(|&(known, _)| known == name) {
            Some((known, kind)) => {
                let text = text_of(kind, value).ok_or_else(|| wrong(Mistake::Type(known, kind)))?;
                check(kind, known, &text).map_err(wrong)?;
                found.plain.push((known, text));
            }
            None if name == SET => {
                let DeValue::Table(switches) = value.get_ref() else {
                    return Err(wrong(Mistake::NoSetTable));
                };
                switches_of(file, "", switches, &mut found.switches)?;
            }
            None if name == PROFILE && is_top => {}
            None => return Err(file.wrong(key.span().start, unknown(name, is_top))),
        }
    }
    Ok(found)
}

fn unknown(name: &str, is_top: bool) -> Mistake {
    // Underscores become hyphens, because the user may have written `memory_max` for `memory-max`.
    let others = is_top.then_some(PROFILE).into_iter().chain([SET]);
    let known = KEYS.into_iter().map(|(known, _)| known).filter(|&known| known != "inject");
    let best = nearest(&name.replace('_', "-"), known.chain(others)).unwrap_or(SET);
    Mistake::UnknownKey(name.into(), best)
}

/// Returns a value in the form in which it stands on the command line.
fn text_of(kind: Kind, value: &Spanned<DeValue<'_>>) -> Option<String> {
    match (kind, value.get_ref()) {
        (Kind::Flag, DeValue::Boolean(flag)) => Some(flag.to_string()),
        (Kind::Flag, _) => None,
        (_, DeValue::String(text)) => Some(text.to_string()),
        (Kind::Size | Kind::Address, DeValue::Integer(number)) => Some(number.to_string()),
        (Kind::Tiers, DeValue::Array(tiers)) => {
            let tiers: Option<Vec<&str>> =
                tiers.iter().map(|tier| tier.get_ref().as_str()).collect();
            tiers.map(|tiers| tiers.join(","))
        }
        _ => None,
    }
}

fn check(kind: Kind, name: &'static str, text: &str) -> Result<(), Mistake> {
    match kind {
        Kind::Size => size::parse(text, run::memory_total())
            .map(drop)
            .map_err(|error| Mistake::Size(name, error)),
        Kind::Tiers => {
            ebb_swap::parse_tiers(text).map(drop).map_err(|error| Mistake::Tiers(name, error))
        }
        Kind::Percent => run::permille(text).map(drop).map_err(|error| Mistake::Share(name, error)),
        Kind::Which => Encrypted::from_str(text, false)
            .map(drop)
            .map_err(|_| Mistake::Choice(name, text.into(), kind)),
        Kind::Form => Report::from_str(text, false)
            .map(drop)
            .map_err(|_| Mistake::Format(name, text.into(), kind)),
        Kind::Path if text.is_empty() => Err(Mistake::Empty(name, kind)),
        Kind::Address => {
            serve::address(text).map(drop).map_err(|error| Mistake::Address(name, error))
        }
        Kind::Path | Kind::Flag => Ok(()),
    }
}

/// Collects switches. The name of a switch may contain dots.
fn switches_of(
    file: &Text<'_>,
    prefix: &str,
    table: &DeTable<'_>,
    found: &mut Vec<String>,
) -> Result<(), FileError> {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        let text = match value.get_ref() {
            DeValue::Table(inner) => {
                switches_of(file, &format!("{name}."), inner, found)?;
                continue;
            }
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(flag) => flag.to_string(),
            DeValue::Datetime(_) | DeValue::Array(_) => {
                return Err(file.wrong(value.span().start, Mistake::SwitchType(name)));
            }
        };
        let setting = format!("{name}={text}");
        run::check_switch(&setting).map_err(|error| file.wrong(key.span().start, error.into()))?;
        found.push(setting);
    }
    Ok(())
}

/// Sets an option unless it is set already.
fn fill(arguments: &mut Arguments, key: &str, value: String) {
    let flag = value == "true";
    match key {
        "memory-max" => drop(arguments.memory_max.get_or_insert(value)),
        "memory-high" => drop(arguments.memory_high.get_or_insert(value)),
        "swap" => drop(arguments.swap.get_or_insert(value)),
        "encrypt" => {
            if arguments.encrypt.is_none() {
                arguments.encrypt = Encrypted::from_str(&value, false).ok();
            }
        }
        "report" => {
            if arguments.report.is_none() {
                arguments.report = Report::from_str(&value, false).ok();
            }
        }
        "report-file" => drop(arguments.report_file.get_or_insert(value.into())),
        "exec" => drop(arguments.exec.get_or_insert(flag)),
        "quiet" => drop(arguments.quiet.get_or_insert(flag)),
        "metrics" => drop(arguments.metrics.get_or_insert(value)),
        "events" => drop(arguments.events.get_or_insert(value.into())),
        "record" => drop(arguments.record.get_or_insert(value.into())),
        "pressure-target" => drop(arguments.pressure_target.get_or_insert(value)),
        "sample" => drop(arguments.sample.get_or_insert(flag)),
        "strict" => drop(arguments.strict.get_or_insert(flag)),
        "inject" => drop(arguments.inject.get_or_insert(value)),
        _ => unreachable!("{key} is a key"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, Command, FromArgMatches};

    fn typed(words: &str) -> Arguments {
        let command = Arguments::augment_args(Command::new("run"));
        let words = ["run"].into_iter().chain(words.split_whitespace());
        Arguments::from_arg_matches(&command.try_get_matches_from(words).unwrap()).unwrap()
    }

    fn with(text: &str, words: &str) -> Result<Arguments, FileError> {
        let mut arguments = typed(words);
        let profile = arguments.profile.clone();
        apply(&mut arguments, &Text { name: Path::new("ebb.toml"), text }, profile.as_deref())?;
        Ok(arguments)
    }

    const FILE: &str = "
memory-max = '1G'
quiet = true
swap = ['ram:64M', 'file']
set.readahead = 16

[profile.small]
memory-max = 268435456
strict = true
[profile.small.set]
readahead = 32
gen.min_ttl_ms = 1000
";

    #[test]
    fn typed_options_override_a_profile_and_a_profile_overrides_the_rest() {
        let general = with(FILE, "").unwrap();
        assert_eq!(general.memory_max.as_deref(), Some("1G"));
        assert_eq!(general.swap.as_deref(), Some("ram:64M,file"));
        assert_eq!((general.quiet, general.strict), (Some(true), None));
        let words = "--config x --profile small --set readahead=64 --quiet=false";
        let small = with(FILE, words).unwrap();
        assert_eq!(small.memory_max.as_deref(), Some("268435456"));
        assert_eq!((small.quiet, small.strict), (Some(false), Some(true)));
        assert_eq!(
            small.set,
            ["readahead=16", "gen.min_ttl_ms=1000", "readahead=32", "readahead=64"]
        );
        let typed = with(FILE, &format!("{words} --memory-max 2G --strict=false")).unwrap();
        assert_eq!((typed.memory_max.as_deref(), typed.strict), (Some("2G"), Some(false)));
    }

    #[test]
    fn a_mistake_is_reported_with_its_line_and_a_correction() {
        for (text, told) in [
            (
                "\nmemory_max = '1G'",
                "ebb.toml:2: unknown key 'memory_max'; did you mean 'memory-max'?",
            ),
            ("quite = true", "ebb.toml:1: unknown key 'quite'; did you mean 'quiet'?"),
            (
                "\n\nmemory-max = true",
                "ebb.toml:3: memory-max: write a size, as \"256M\" or \"25%\"",
            ),
            (
                "memory-high = '10Q'",
                "ebb.toml:1: memory-high: '10Q' is not a size: the unit 'Q' is unknown",
            ),
            ("quiet = 'yes'", "ebb.toml:1: quiet: write true or false"),
            ("swap = 'disk'", "ebb.toml:1: swap: "),
            ("swap = ['ram', 3]", "ebb.toml:1: swap: write a list of tiers"),
            (
                "report = 'yaml'",
                "ebb.toml:1: report: 'yaml' is not a format; write \"text\" or \"json\"",
            ),
            ("report-file = ''", "ebb.toml:1: report-file: it is empty"),
            ("pressure-target = '90%'", "ebb.toml:1: pressure-target: 90%: write a share"),
            (
                "[set]\nswap.order = 'address'",
                "ebb.toml:2: --set swap.order=address: no run reads swap.order; only `ebb lab run",
            ),
            ("[set]\nreadhead = 1", "ebb.toml:2: --set readhead=1: unknown switch 'readhead'"),
            ("[set]\ngen.min_ttl_ms = 'x'", "ebb.toml:2: --set gen.min_ttl_ms=x: "),
            ("[set]\ncpu_follow = []", "ebb.toml:2: set.cpu_follow: write a number"),
            ("set = 3", "ebb.toml:1: set: write its switches"),
            ("profile = 'small'", "ebb.toml:1: profile: give it a name"),
            (
                "[profile.a]\nstrickt = true",
                "ebb.toml:2: unknown key 'strickt'; did you mean 'strict'?",
            ),
            ("[profile]\na = 1", "ebb.toml:2: profile.a: write its options below [profile.a]"),
            ("\nquiet = true\nquiet = false", "ebb.toml:3: duplicate key"),
            ("memory-max 3", "ebb.toml:1: "),
        ] {
            let error =
                with(text, "").err().unwrap_or_else(|| panic!("{text} is taken")).to_string();
            assert!(error.starts_with(told), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
        let error = with(FILE, "--config x --profile smal").err().unwrap().to_string();
        assert_eq!(error, "--profile smal: ebb.toml has no such profile; did you mean 'small'?");
        assert!(
            with("", "--config x --profile a").err().unwrap().to_string().contains("[profile.a]")
        );
    }

    /// Shows that a newly added option has a key or is listed as one that a file cannot have.
    #[test]
    fn every_option_has_a_key() {
        let command = Arguments::augment_args(Command::new("run"));
        let mut options: Vec<&str> =
            command.get_arguments().filter_map(|arg| arg.get_long()).collect();
        options.retain(|name| !["config", "profile", SET].contains(name));
        let mut keys = KEYS.map(|(key, _)| key).to_vec();
        options.sort_unstable();
        keys.sort_unstable();
        assert_eq!(options, keys);
    }

    /// Shows that the example file has every key and that all of it is valid.
    #[test]
    fn the_example_file_is_valid_and_has_every_key() {
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ebb.toml"));
        let text = std::fs::read_to_string(&path).unwrap();
        let given = |key: &str| {
            let key = format!("{key} = ");
            text.lines().any(|line| line.trim_start_matches("# ").starts_with(&key))
        };
        for (key, _) in KEYS.iter().filter(|(key, _)| *key != "inject") {
            assert!(given(key), "{key} is missing");
        }
        // Keys that the example comments out are valid, too.
        let all: String = text
            .lines()
            .map(|line| {
                let bare = line.strip_prefix("# ").unwrap_or(line);
                let is_key = KEYS.iter().any(|(key, _)| bare.starts_with(&format!("{key} = ")));
                if is_key { format!("{bare}\n") } else { format!("{line}\n") }
            })
            .collect();
        for text in [&text, &all] {
            for profile in ["", "--config x --profile redis", "--config x --profile batch"] {
                with(text, profile).unwrap();
            }
        }
    }
}
