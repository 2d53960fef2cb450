//! A user's own recording, played back: every access in its order, with the time between them.
//!
//! * TRACE-1: pages keep their order, and gaps between them up to `GAP_MAX` pages. So readahead
//!   reads the pages that it would have read. Pages further apart belong to another area or file.
//! * TRACE-2: a file is read once, however many sides and seeds are run with it.
//! * TRACE-3: with one process the seed does not change the accesses. Of several processes each
//!   begins at a position of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use clap::ValueEnum;
use ebb_mm::random::Random;
use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::trace::{Access as Recorded, Format, Kind, Lack, Numbering, Op, Reader, TraceError};
use crate::value::ValueError;

/// Parameters of a trace that is played back.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// File in any format that `ebb lab replay` reads. A relative path begins where `ebb` is
    /// started.
    pub file: String,
    /// Format of the file, if it cannot be detected from the beginning (`ebb lab replay --help` has
    /// the names).
    pub input_format: Option<String>,
    /// Length of a unit of the trace's time, in nanoseconds: 1000 for `ebb run --record`, perf,
    /// bpftrace and DAMON; about 1 for lackey, whose unit is an access; 0: times are ignored.
    pub unit_ns: f64,
    /// Whether the process sleeps for the time between two accesses. Otherwise the processor is
    /// busy for that time.
    #[serde(default)]
    pub waits: bool,
    /// Largest number of accesses to take from the file.
    pub accesses: Option<u64>,
    /// Share of the accesses that are played before measuring begins.
    #[serde(default)]
    pub warm: f64,
    /// Number of times that all accesses are played.
    #[serde(default = "one")]
    pub rounds: u32,
    /// Processes that play the trace, each with its own memory.
    #[serde(default = "one")]
    pub processes: u32,
    /// Accept a trace of page faults, without accesses to resident pages, and play it as if it had
    /// all accesses.
    #[serde(default)]
    pub accept_faults: bool,
    /// Accept a trace of DAMON's regions. Each page of an accessed region is accessed once an
    /// interval, in order of address.
    #[serde(default)]
    pub accept_regions: bool,
}

fn one() -> u32 {
    1
}

/// Most unused pages between two used ones that are kept in the space.
const GAP_MAX: u64 = 64;
/// Most accesses of a trace, with 8 bytes each.
const ACCESSES_MAX: u64 = 200_000_000;
/// Longest time between two accesses, in nanoseconds. A longer one is cut.
const GAP_NS_MAX: f64 = 3_600e9;

/// Kind of memory to which a page belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    Anon,
    File,
    /// Pages of files that are executed.
    Text,
}

impl Part {
    const ALL: [Self; 3] = [Self::Anon, Self::File, Self::Text];
}

/// A trace in memory.
#[derive(Debug)]
struct Loaded {
    /// Accesses by page number, and the time before each.
    accesses: Vec<(Recorded, u32)>,
    /// Page in the process's space of each page number.
    places: Vec<u32>,
    /// Number of pages of each part.
    pages: [u64; 3],
    lacks: Option<Lack>,
}

/// Why a trace cannot be played. The first field is the path of the file.
#[derive(Debug, thiserror::Error)]
pub enum PlayError {
    /// A parameter makes no sense.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] TraceError),
    /// There is no such format. The formats that there are follow.
    #[error("input_format = {0:?}: expected {1}")]
    Format(String, String),
    /// The trace has too many accesses.
    #[error("{0}: more than {ACCESSES_MAX} accesses; set accesses = N")]
    Accesses(String),
    /// The trace has more pages than can be numbered.
    #[error("{0}: more than {max} pages", max = Recorded::PAGES_MAX)]
    Pages(String),
    /// The trace is empty.
    #[error("{0}: the trace has no accesses")]
    Empty(String),
    /// The trace, with gaps, has too many pages for a machine.
    #[error("{0}: more pages than a machine has")]
    TooLarge(String),
    /// The trace has page faults only.
    #[error(
        "{0} has page faults only; accesses to resident pages are missing; accept_faults = true plays the \
         faults as if they were all accesses"
    )]
    FaultsOnly(String),
    /// The trace has regions.
    #[error(
        "{0} has regions, not accesses; accept_regions = true plays one access to each page of an accessed \
         region in each interval"
    )]
    Regions(String),
}

impl Loaded {
    fn read(path: &str, format: Option<Format>, limit: u64) -> Result<Self, PlayError> {
        let mut reader = Reader::open(Path::new(path), format)?;
        let mut numbering = Numbering::default();
        let (mut accesses, mut parts): (Vec<_>, Vec<Part>) = (Vec::new(), Vec::new());
        let mut records = Vec::new();
        while (accesses.len() as u64) < limit && reader.read(&mut records)? {
            let room = (limit - accesses.len() as u64).min(records.len() as u64) as usize;
            if accesses.len() as u64 + room as u64 > ACCESSES_MAX {
                return Err(PlayError::Accesses(path.into()));
            }
            for record in &records[..room] {
                let number = numbering.number(record.page);
                if number >= Recorded::PAGES_MAX {
                    return Err(PlayError::Pages(path.into()));
                }
                let part = match (record.kind, record.op) {
                    (Kind::Anon | Kind::Object, _) => Part::Anon,
                    (Kind::Mapped, Op::Exec) => Part::Text,
                    (Kind::Mapped | Kind::Buffered, _) => Part::File,
                };
                match parts.get_mut(number as usize) {
                    None => parts.push(part),
                    // Text is read as well as executed, and a file may be used in both ways.
                    Some(known) if part == Part::Text && *known == Part::File => *known = part,
                    Some(_) => {}
                }
                let dt = u32::try_from(record.dt).unwrap_or(u32::MAX);
                accesses.push((Recorded::new(number, record.op, record.kind), dt));
            }
        }
        if accesses.is_empty() {
            return Err(PlayError::Empty(path.into()));
        }
        let (places, pages) = lay_out(&numbering.into_pages(), &parts);
        if pages.iter().sum::<u64>() > u64::from(u32::MAX / 4) {
            return Err(PlayError::TooLarge(path.into()));
        }
        Ok(Self { accesses, places, pages, lacks: reader.lacks() })
    }

    fn step(&self, access: Recorded, space: u16) -> Step {
        let page = self.places[access.page() as usize];
        let access = match (access.kind() == Kind::Buffered, access.op() == Op::Write) {
            (false, false) => Access::Read,
            (false, true) => Access::Write,
            (true, false) => Access::FdRead,
            (true, true) => Access::FdWrite,
        };
        Step::Touch { page, space, access }
    }
}

/// Returns the page in the space of each page number (TRACE-1), and the pages of each part.
fn lay_out(names: &[u64], parts: &[Part]) -> (Vec<u32>, [u64; 3]) {
    let mut order: Vec<u32> = (0..names.len() as u32).collect();
    order.sort_unstable_by_key(|&number| (parts[number as usize], names[number as usize]));
    let (mut places, mut pages) = (vec![0; names.len()], [0; 3]);
    let (mut at, mut before): (u64, Option<(Part, u64)>) = (0, None);
    for number in order {
        let (part, name) = (parts[number as usize], names[number as usize]);
        let gap = match before {
            Some((same, last)) if same == part => (name - last - 1).min(GAP_MAX),
            _ => 0,
        };
        places[number as usize] = (at + gap) as u32;
        pages[part as usize] += gap + 1;
        at += gap + 1;
        before = Some((part, name));
    }
    (places, pages)
}

/// Traces that were read (TRACE-2), by path, format and limit of accesses.
type Key = (String, Option<String>, u64);
static READ: Mutex<BTreeMap<Key, Arc<Loaded>>> = Mutex::new(BTreeMap::new());

impl Trace {
    fn loaded(&self) -> Result<Arc<Loaded>, PlayError> {
        let format = self.input_format.as_deref().map(|name| {
            Format::from_str(name, true).map_err(|_| {
                let all: BTreeSet<String> = Format::value_variants()
                    .iter()
                    .filter_map(|f| Some(f.to_possible_value()?.get_name().to_owned()))
                    .collect();
                let all: Vec<String> = all.into_iter().collect();
                PlayError::Format(name.into(), all.join(", "))
            })
        });
        let limit = self.accesses.unwrap_or(u64::MAX);
        let key = (self.file.clone(), self.input_format.clone(), limit);
        let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = read.get(&key) {
            return Ok(loaded.clone());
        }
        let loaded = Arc::new(Loaded::read(&self.file, format.transpose()?, limit)?);
        read.insert(key, loaded.clone());
        Ok(loaded)
    }

    /// Checks the values and the file.
    ///
    /// # Errors
    /// The file is no trace, or lacks accesses without `accept_faults` or `accept_regions`. A time,
    /// a share or a count is out of range.
    pub(crate) fn check(&self) -> Result<(), PlayError> {
        if !(0.0..1e12).contains(&self.unit_ns) {
            return Err(ValueError::Number("unit_ns", self.unit_ns, "0 or more nanoseconds").into());
        }
        if !(0.0..1.0).contains(&self.warm) {
            let range = "a share from 0 to below 1";
            return Err(ValueError::Number("warm", self.warm, range).into());
        }
        ValueError::of_zero(&[("rounds", self.rounds), ("processes", self.processes)])?;
        if self.processes > 1024 {
            let count = self.processes.into();
            return Err(ValueError::Count("processes", count, "1024 at most").into());
        }
        match self.loaded()?.lacks {
            Some(Lack::Touches) if !self.accept_faults => {
                Err(PlayError::FaultsOnly(self.file.clone()))
            }
            Some(Lack::Accesses) if !self.accept_regions => {
                Err(PlayError::Regions(self.file.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        // `check` has read the file, and `READ` keeps it.
        let Ok(loaded) = self.loaded() else { return };
        let region = |part: Part| Region {
            pages: loaded.pages[part as usize],
            backing: if part == Part::Anon { Backing::Anon } else { Backing::File },
            recency: true,
            exec: part == Part::Text,
            processes: 1,
        };
        for process in 0..self.processes {
            let space = plan.space(place.memcg, Part::ALL.map(region).to_vec());
            let len = loaded.accesses.len() as u64;
            let random = place.seed_of(0, u64::from(process));
            let first = if self.processes > 1 {
                u64::from(Random(random).below(len.min(u64::from(u32::MAX)) as u32))
            } else {
                0
            };
            let warm = (len as f64 * self.warm) as u64;
            let all = len * u64::from(self.rounds);
            let player = Player {
                spec: self.clone(),
                loaded: loaded.clone(),
                space,
                at: first,
                left: all,
                begins: Some(all - warm),
            };
            plan.thread(Box::new(player), space, place.measured);
        }
    }
}

/// Number of accesses in one call of `fill`.
const BATCH: u64 = 256;

/// A process that plays the trace.
struct Player {
    spec: Trace,
    loaded: Arc<Loaded>,
    space: u16,
    /// Index of the next access. After the last one comes the first.
    at: u64,
    /// Number of accesses still to come.
    left: u64,
    /// Number of accesses left when measuring begins; none: it has begun.
    begins: Option<u64>,
}

impl Player {
    fn time(&self, dt: u32, steps: &mut Vec<Step>) {
        let mut ns = (f64::from(dt) * self.spec.unit_ns).min(GAP_NS_MAX) as u64;
        if self.spec.waits {
            steps.extend((ns > 0).then_some(Step::Sleep(ns)));
            return;
        }
        while ns > 0 {
            let part = ns.min(u64::from(u32::MAX));
            steps.push(Step::Cpu(part as u32));
            ns -= part;
        }
        // Only the access is counted.
        steps.push(Step::Begin);
    }
}

impl Program for Player {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        for _ in 0..BATCH {
            if self.begins.is_some_and(|left| left == self.left) {
                self.begins = None;
                steps.push(Step::Start);
            }
            if self.left == 0 {
                return;
            }
            let (access, dt) = self.loaded.accesses[self.at as usize];
            self.at = (self.at + 1) % self.loaded.accesses.len() as u64;
            self.left -= 1;
            self.time(dt, steps);
            steps.push(self.loaded.step(access, self.space));
            steps.push(Step::Done(u8::from(access.op() == Op::Write)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Scenario, run_once};

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::with_suffix(".csv").unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn spec(file: &tempfile::NamedTempFile, more: &str) -> Trace {
        let path = file.path().display();
        toml::from_str(&format!("file = {:?}\nunit_ns = 10.0\n{more}", path.to_string())).unwrap()
    }

    #[test]
    fn pages_lie_by_their_numbers_and_far_apart_ones_are_not_near() {
        let f = file(
            "dt,page,op,kind\n1,1005,r,a\n1,1000,w,a\n1,9000000,r,a\n2,7,r,f\n0,9,x,f\n1,9,r,f\n1,8,w,b\n",
        );
        let loaded = spec(&f, "").loaded().unwrap();
        // 1000, 1005 and 65 further; 7 and 8; 9 alone.
        assert_eq!(loaded.pages, [6 + 65, 2, 1]);
        assert_eq!(loaded.places, [5, 0, 70, 71, 73, 72]);
        let steps: Vec<Step> = loaded.accesses.iter().map(|a| loaded.step(a.0, 3)).collect();
        let touch = |page, access| Step::Touch { page, space: 3, access };
        assert_eq!(steps[1], touch(0, Access::Write));
        assert_eq!(
            steps[4..],
            [touch(73, Access::Read), touch(73, Access::Read), touch(72, Access::FdWrite)]
        );
    }

    #[test]
    fn a_trace_that_cannot_be_played_is_refused() {
        let f = file("page\n1\n");
        let refused = |spec: &Trace| spec.check().unwrap_err().to_string();
        let wrong = |more: &str| refused(&spec(&f, more));
        assert_eq!(wrong("warm = 1.0"), "warm = 1: expected a share from 0 to below 1");
        assert_eq!(wrong("rounds = 0"), "rounds = 0: expected 1 or more");
        assert!(
            wrong("input_format = \"cvs\"")
                .ends_with("expected bpftrace, compact, csv, damon, lackey, oracle, pages, perf")
        );
        assert!(spec(&f, "").check().is_ok());
        let faults = file("dt,fault\n1,1\n");
        let error = refused(&spec(&faults, ""));
        assert!(
            error.contains("has page faults only") && error.contains("accept_faults"),
            "{error}"
        );
        assert!(spec(&faults, "accept_faults = true").check().is_ok());
        let regions = file("monitoring_start: 0\n1000-3000 (8.000 KiB) 1 0\n");
        let error = refused(&spec(&regions, "accept_faults = true"));
        assert!(error.contains("has regions") && error.contains("accept_regions"), "{error}");
        assert!(spec(&regions, "accept_regions = true").check().is_ok());
        let gone = Trace { file: "/nowhere/t.csv".into(), ..spec(&f, "") };
        assert!(refused(&gone).starts_with("/nowhere/t.csv: No such file"));
    }

    /// The played steps are those of the file: touches, their time and order, whatever the machine
    /// is like.
    #[test]
    fn a_trace_is_played_whole_and_at_its_own_times() {
        let lines: String = (0..30_000).map(|i| format!("100,{},w,a\n", i * 7 % 6000)).collect();
        let f = file(&format!("dt,page,op,kind\n{lines}"));
        let text = |more: &str| {
            format!(
                "name = \"t\"\ntitle = \"t\"\nsource = \"none\"\n[machine]\nframes = 16384\ncpus = 2\n\
                 swap = {{ kind = \"nvme\" }}\n[[memcg]]\nname = \"m\"\nlimit = 0.25\n[[workload]]\nname = \"w\"\n\
                 [workload.trace]\nfile = {:?}\nunit_ns = 10\n{more}\n[measure]\nmetric = \"ops_per_s\"\n\
                 [[arm]]\nname = \"a\"\n[[arm]]\nname = \"b\"\nset = [\"lru=classic\"]\n\
                 [[case]]\nname = \"c\"\n",
                f.path().display().to_string()
            )
        };
        let run = |more: &str| {
            let scenario = Scenario::parse("t.toml", &text(more)).unwrap();
            run_once(&scenario, 1, 0).unwrap().0
        };
        let one = run("");
        assert_eq!((one["ops"], one["write_per_s"] > 0.0), (30_000.0, true));
        assert!(one["refaults"] > 1000.0, "{}", one["refaults"]);
        // 30 ms of computing, and the loads.
        assert!(one["elapsed_s"] > 0.030, "{}", one["elapsed_s"]);
        assert!(one["write_p50_us"] < 1.0, "not the time between: {}", one["write_p50_us"]);
        let half = run("warm = 0.5\nrounds = 2");
        assert_eq!(half["ops"], 45_000.0);
        assert_eq!(run("processes = 3\naccesses = 10000\nwaits = true")["ops"], 30_000.0);
        let sized = Scenario::parse("t.toml", &text("")).unwrap().at_size(2.0).unwrap_err();
        assert!(sized.to_string().contains("a trace has one size"), "{sized}");
    }
}
