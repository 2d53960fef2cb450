//! Writes some of an experiment's runs to a file (`ebb lab run --shard I/N`), and merges such files
//! (`ebb lab merge`).
//!
//! * PART-1: run `r` of a plan is in shard `r % N + 1`. So each shard has runs of every scenario,
//!   and all take equally long.
//! * PART-2: a file keeps each number to the last bit. Merged files give the report of one run of
//!   everything.
//! * PART-3: only files of one experiment and one version can be merged, and no two of one shard.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::runner::Outcome;
use super::score::COMMIT;
use crate::machine::pressure::Reading;

/// Version of the file format.
pub const SCHEMA: u32 = 1;

/// Largest number of shards.
const SHARDS_MAX: usize = 100_000;
/// Upper bound of the number of runs, beyond any experiment.
const RUNS_MAX: usize = 1 << 32;

/// Shard `number` of `of`, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shard {
    number: usize,
    of: usize,
}

/// A text names no shard.
#[derive(Debug, thiserror::Error)]
#[error("expected I/N, such as 1/4 to 4/4, N at most {SHARDS_MAX}")]
pub struct ShardError;

impl FromStr for Shard {
    type Err = ShardError;

    fn from_str(text: &str) -> Result<Self, ShardError> {
        let pair = text.split_once('/');
        let numbers = pair.and_then(|(number, of)| number.parse().ok().zip(of.parse().ok()));
        match numbers {
            Some((number, of)) if (1..=of).contains(&number) && of <= SHARDS_MAX => {
                Ok(Self { number, of })
            }
            _ => Err(ShardError),
        }
    }
}

impl TryFrom<String> for Shard {
    type Error = ShardError;

    fn try_from(text: String) -> Result<Self, ShardError> {
        text.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> Self {
        shard.to_string()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl Shard {
    /// Returns the indices of the runs in this shard, of `all` runs (PART-1).
    #[must_use]
    pub fn runs(self, all: usize) -> Vec<usize> {
        (self.number - 1..all).step_by(self.of).collect()
    }

    /// Returns the number of runs in this shard, of `all` runs.
    fn len(self, all: usize) -> usize {
        (all + self.of - self.number) / self.of
    }
}

/// A shard's file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    schema: u32,
    version: String,
    commit: Option<String>,
    /// Settings that decide the results.
    question: Value,
    shard: Shard,
    /// Number of runs of all shards.
    runs: usize,
    /// Outcomes of this shard's runs.
    outcomes: Vec<Kept>,
}

/// An outcome, without samples and curves.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    /// Values in the shortest digits that name the number. Text, because not every reader of JSON
    /// keeps a number exactly (PART-2).
    metrics: BTreeMap<String, String>,
    /// For each memcg: its name and the text of its pressure.
    psi: Vec<(String, String)>,
}

impl Kept {
    fn of(outcome: &Outcome) -> Self {
        let digits = |(name, value): (&String, &f64)| (name.clone(), format!("{value:?}"));
        let psi = outcome.pressure.iter().map(|r| (r.name.clone(), r.text.clone()));
        Self { metrics: outcome.metrics.iter().map(digits).collect(), psi: psi.collect() }
    }

    fn outcome(self) -> anyhow::Result<Outcome> {
        let value = |(name, digits): (String, String)| {
            let value = digits.parse().with_context(|| format!("{name}: {digits:?}"))?;
            Ok((name, value))
        };
        let metrics = self.metrics.into_iter().map(value).collect::<anyhow::Result<_>>()?;
        let reading = |(name, text)| Reading { name, text, ..Reading::default() };
        let pressure = self.psi.into_iter().map(reading).collect();
        Ok(Outcome { metrics, pressure, ..Outcome::default() })
    }
}

/// Returns the text of a shard's file: the question, and the outcomes of its runs of `runs`.
#[must_use]
pub fn part(question: Value, shard: Shard, runs: usize, outcomes: &[Outcome]) -> String {
    let part = Part {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        commit: COMMIT.get().map(|&commit| commit.to_owned()),
        question,
        shard,
        runs,
        outcomes: outcomes.iter().map(Kept::of).collect(),
    };
    serde_json::to_string(&part).expect("strings and numbers") + "\n"
}

/// Contents of some files together.
#[derive(Debug)]
pub struct Merged {
    /// Settings that decide the results.
    pub question: Value,
    /// Outcomes of all runs in the files, in order; of every run if no shard is missing.
    pub outcomes: Vec<Outcome>,
    /// Shards that are in no file.
    pub missing: Vec<Shard>,
}

/// Splits a file into its shards, one a line. If there are several, the name of each gets the line
/// number.
fn lines((name, text): &(String, String)) -> Vec<(String, &str)> {
    match text.lines().collect::<Vec<_>>()[..] {
        [] | [_] => vec![(name.clone(), text)],
        ref lines => {
            let numbered = (1..).zip(lines).filter(|(_, line)| !line.is_empty());
            numbered.map(|(n, &line)| (format!("{name}:{n}"), line)).collect()
        }
    }
}

/// Merges files, each given by name and text, with one line for each shard.
///
/// # Errors
/// Fails if a file is not of a shard, or not of one experiment with the others (PART-3).
pub fn merge(files: &[(String, String)]) -> anyhow::Result<Merged> {
    let mut parts: Vec<(String, Part)> = Vec::new();
    for (name, text) in files.iter().flat_map(lines) {
        let part: Part = serde_json::from_str(text)
            .with_context(|| format!("{name}: not from `ebb lab run --shard`, or cut off"))?;
        ensure!(part.schema == SCHEMA, "{name}: the file has format {}, not {SCHEMA}", part.schema);
        let here = part.shard.len(part.runs.min(RUNS_MAX));
        ensure!(part.outcomes.len() == here, "{name}: {} of {here} runs", part.outcomes.len());
        if let Some((first, like)) = parts.first() {
            let from = |part: &Part| {
                let commit = part.commit.as_deref().unwrap_or("unknown");
                format!("version {}, commit {commit}", part.version)
            };
            if from(&part) != from(like) {
                bail!("{name} is of {}, but {first} of {}", from(&part), from(like));
            }
            let of = |part: &Part| (part.shard.of, part.runs, part.question.clone());
            ensure!(of(&part) == of(like), "{name} and {first} are not of the same experiment");
        }
        if let Some((other, _)) = parts.iter().find(|(_, other)| other.shard == part.shard) {
            bail!("{name} and {other} are both shard {}", part.shard);
        }
        parts.push((name, part));
    }
    let Some((_, first)) = parts.first() else { bail!("no files to merge") };
    let (question, of, runs) = (first.question.clone(), first.shard.of, first.runs);
    let is_there = |shard: &Shard| parts.iter().any(|(_, part)| part.shard == *shard);
    let shards = (1..=of).map(|number| Shard { number, of });
    let missing = shards.filter(|shard| !is_there(shard)).collect();
    let mut outcomes: Vec<(usize, Outcome)> = Vec::new();
    for (name, part) in parts {
        for (run, kept) in part.shard.runs(runs).into_iter().zip(part.outcomes) {
            outcomes.push((run, kept.outcome().with_context(|| name.to_owned())?));
        }
    }
    outcomes.sort_by_key(|(run, _)| *run);
    let outcomes = outcomes.into_iter().map(|(_, outcome)| outcome).collect();
    Ok(Merged { question, outcomes, missing })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(value: f64) -> Outcome {
        let metrics = BTreeMap::from([("ops_per_s".to_owned(), value)]);
        let pressure =
            vec![Reading { name: "/".into(), text: "some".into(), ..Reading::default() }];
        Outcome { metrics, pressure, ..Outcome::default() }
    }

    /// Returns files of five runs in two shards.
    fn files(question: &str) -> Vec<(String, String)> {
        let all: Vec<Outcome> =
            [0.1 + 0.2, f64::NAN, 1e300, 5e-324, -0.0].map(outcome).into_iter().collect();
        let file = |text: &str| {
            let shard: Shard = text.parse().unwrap();
            let own: Vec<Outcome> =
                shard.runs(all.len()).into_iter().map(|run| all[run].clone()).collect();
            (format!("part-{}", shard.number), part(json!(question), shard, all.len(), &own))
        };
        ["2/2", "1/2"].map(file).into()
    }

    #[test]
    fn every_number_comes_back_to_its_last_bit() {
        let merged = merge(&files("all")).unwrap();
        assert!(merged.missing.is_empty() && merged.question == json!("all"));
        let bits: Vec<u64> =
            merged.outcomes.iter().map(|o| o.metrics["ops_per_s"].to_bits()).collect();
        let wanted = [0.1 + 0.2, f64::NAN, 1e300, 5e-324, -0.0].map(f64::to_bits);
        assert_eq!(bits, wanted);
        assert_eq!(merged.outcomes[4].pressure[0].text, "some");
    }

    #[test]
    fn each_run_is_in_one_shard() {
        for of in 1..9 {
            let mut all: Vec<usize> =
                (1..=of).flat_map(|number| Shard { number, of }.runs(7)).collect();
            assert!(
                (1..=of).all(
                    |n| Shard { number: n, of }.len(7) == Shard { number: n, of }.runs(7).len()
                )
            );
            all.sort_unstable();
            assert_eq!(all, (0..7).collect::<Vec<_>>(), "{of}");
        }
        for wrong in ["0/4", "5/4", "4", "1/0", "-1/2", "1/1000000", "a/b"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn shards_that_do_not_belong_together_are_refused() {
        let fails = |files: &[(String, String)]| format!("{:#}", merge(files).unwrap_err());
        let good = files("all");
        assert_eq!(merge(&good[..1]).unwrap().missing, ["1/2".parse().unwrap()]);
        let twice = fails(&[good[0].clone(), ("copy".into(), good[0].1.clone())]);
        assert_eq!(twice, "copy and part-2 are both shard 2/2");
        let other = fails(&[good[0].clone(), files("other")[1].clone()]);
        assert_eq!(other, "part-1 and part-2 are not of the same experiment");
        let version = format!("\"version\":\"{}\"", env!("CARGO_PKG_VERSION"));
        let old = good[1].1.replace(&version, "\"version\":\"0.0.1\"");
        assert!(
            fails(&[good[0].clone(), ("old".into(), old)]).starts_with("old is of version 0.0.1")
        );
        let cut = ("cut".to_owned(), good[0].1[..good[0].1.len() / 2].to_owned());
        assert!(fails(&[cut]).starts_with("cut: not from `ebb lab run --shard`, or cut off"));
        assert_eq!(fails(&[]), "no files to merge");
        let endless =
            ("endless".to_owned(), good[1].1.replace("\"runs\":5", "\"runs\":99999999999999"));
        assert!(fails(&[endless]).starts_with("endless: 3 of "));
    }

    #[test]
    fn a_file_may_hold_several_shards() {
        let [two, one] = files("all").try_into().unwrap();
        let both = ("parts".to_owned(), format!("{}{}", two.1, one.1));
        assert_eq!(merge(std::slice::from_ref(&both)).unwrap().outcomes.len(), 5);
        let error = merge(&[both, one]).unwrap_err().to_string();
        assert_eq!(error, "part-1 and parts:2 are both shard 1/2");
    }
}
