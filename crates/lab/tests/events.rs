//! Tests the events of a run in the form of kernel tracepoints: their sums equal the run's
//! counters, and they change nothing.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use ebb_lab::machine::{Outcome, Patience, Tracepoints};
use ebb_lab::scenario::{Metrics, Scenario, run_once, run_traced};

const SMALL: &str = include_str!("small.toml");

/// Scenario with memory that is filled and freed, with pauses in which kswapd sleeps, beside files
/// that are read and written.
const MIX: &str = r#"
name = "mix"
title = "memory that comes and goes beside files"
source = "none"
[machine]
frames = 4096
cpus = 2
swap = { kind = "nvme" }
[[memcg]]
name = "m"
[[workload]]
name = "filler"
[workload.mix]
readers = 2
file = 0.2
stride = 4
rest_us = 2500
fillers = 2
anon = 0.8
warm_us = 1000
rounds = 3
pause_us = 300000
[[workload]]
name = "disk_job"
background = true
[workload.fio]
jobs = 1
data = 0.5
pattern = "zipfian"
writes = 0.3
op_ns = 100000
ops = 1000.0
[measure]
metric = "ops_per_s"
[[arm]]
name = "classic"
set = ["preset=classic"]
[[arm]]
name = "ebb"
"#;

/// Writer that keeps its contents.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a scenario. The first word is its text, the others are settings.
fn scenario(words: &[&str]) -> Scenario {
    let pairs: Vec<String> = words[1..].iter().map(|p| (*p).to_owned()).collect();
    Scenario::with(words[0], &pairs).unwrap()
}

/// Runs a scenario, and returns the text of its events.
fn traced(s: &Scenario) -> (Metrics, Outcome, String) {
    let kept = Kept::default();
    let tracepoints = Tracepoints::new(Box::new(kept.clone()), "test");
    let (metrics, outcome) = run_traced(s, 1, 0, Patience::default(), Some(tracepoints)).unwrap();
    let bytes = std::mem::take(&mut *kept.0.lock().unwrap());
    (metrics, outcome, String::from_utf8(bytes).unwrap())
}

/// One line of events: task, CPU, time, and the event with its fields in order.
#[derive(Debug)]
struct Line<'a> {
    task: &'a str,
    pid: u64,
    cpu: u64,
    us: u64,
    event: &'a str,
    rest: &'a str,
}

impl<'a> Line<'a> {
    /// Parses a line as scripts do. The task's name may contain a dash, and the number is behind
    /// the last one.
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" [")?;
        let (task, pid) = before.trim().rsplit_once('-')?;
        let (cpu, after) = after.split_once("] ")?;
        let (irq, after) = after.split_once(' ')?;
        let (time, after) = after.trim_start().split_once(": ")?;
        let (event, rest) = after.split_once(": ")?;
        let (seconds, micro) = time.split_once('.')?;
        (irq.len() == 5 && micro.len() == 6).then_some(())?;
        let us = seconds.parse::<u64>().ok()? * 1_000_000 + micro.parse::<u64>().ok()?;
        let (pid, cpu) = (pid.trim().parse().ok()?, cpu.parse().ok()?);
        Some(Self { task, pid, cpu, us, event, rest })
    }

    fn print(&self) -> String {
        let Self { task, pid, cpu, us, event, rest } = self;
        let (seconds, micro) = (us / 1_000_000, us % 1_000_000);
        format!("{task:>16}-{pid:<7} [{cpu:03}] ..... {seconds:5}.{micro:06}: {event}: {rest}")
    }

    fn field(&self, name: &str) -> &'a str {
        let pair = |word: &'a str| word.split_once('=').filter(|(key, _)| *key == name);
        self.rest.split(' ').find_map(pair).unwrap_or_else(|| panic!("{name} in {self:?}")).1
    }

    fn number(&self, name: &str) -> u64 {
        self.field(name).parse().unwrap()
    }
}

/// Parses all events, and checks that each prints as it was.
fn lines(text: &str) -> Vec<Line<'_>> {
    let events = text.lines().filter(|line| !line.starts_with('#'));
    let parse = |line| Line::parse(line).unwrap_or_else(|| panic!("{line}"));
    let lines: Vec<Line> = events.clone().map(parse).collect();
    for (line, text) in lines.iter().zip(events) {
        assert_eq!(line.print(), text);
    }
    lines
}

/// Machines on which all kinds of events happen.
const MACHINES: &[&[&str]] = &[
    &[SMALL, "preset=classic"],
    &[SMALL, "preset=k612"],
    &[SMALL, "preset=k72", "memcg.m.limit=1.0"],
    &[SMALL, "memcg.m.limit=1.0", "machine.swap={ kind = 'zram' }"],
    &[SMALL, "preset=k618", "memcg.m.reclaim=0.02", "memcg.m.reclaim_ms=1"],
    &[SMALL, "machine.swap.pages=500"],
    &[MIX],
    &[MIX, "preset=classic"],
    &[MIX, "preset=k618"],
    &[MIX, "preset=classic", "machine.frames=8192", "machine.nodes=2", "machine.cpus=4"],
];

/// Returns the kind of reclaim, as counters name it.
fn doer(line: &Line) -> &'static str {
    match line.task {
        "reclaimer" => "proactive",
        task if task.starts_with("kswapd") => "kswapd",
        _ => "direct",
    }
}

/// Returns the sum of a field over the matching events of a name; without a field, the number of
/// events.
fn sum(lines: &[Line], event: &str, field: &str, like: impl Fn(&Line) -> bool) -> u64 {
    let these = lines.iter().filter(|l| l.event == event && like(l));
    these.map(|l| if field.is_empty() { 1 } else { l.number(field) }).sum()
}

/// Returns names of counters, each with the sum of events and the run's counter.
fn sums(pairs: &[&str], run: &(Metrics, Outcome, String)) -> Vec<(String, u64, u64)> {
    let (metrics, outcome, text) = run;
    let all = lines(text);
    let place = |what: &str| all.iter().position(|l| l.rest == what).unwrap();
    let (from, to) = (place("measuring begins"), place("measuring ends"));
    let (all_of, measured) = (&all[..], &all[from..to]);
    let classic = pairs.contains(&"preset=classic");
    let counter = |name: &str| outcome.counters.iter().find(|(n, _)| *n == name).map_or(0, |c| c.1);
    let mut told = Vec::new();
    for who in ["kswapd", "direct", "proactive"] {
        let inactive = |l: &Line| doer(l) == who && l.field("lru").starts_with("inactive");
        // As in the kernel, the multi-gen LRU counts the pages it took, the classic LRU the pages
        // it scanned.
        let field = if classic { "nr_scanned" } else { "nr_taken" };
        let scanned = sum(measured, "mm_vmscan_lru_isolate", field, inactive);
        let by = |l: &Line| doer(l) == who;
        let freed = sum(measured, "mm_vmscan_lru_shrink_inactive", "nr_reclaimed", by);
        for (name, events) in [("pgscan", scanned), ("pgsteal", freed)] {
            let name = format!("{name}_{who}");
            told.push((name.clone(), events, counter(&name)));
        }
    }
    let count = |event: &str| sum(measured, event, "", |l| doer(l) != "proactive");
    let begun = count("mm_vmscan_direct_reclaim_begin") + count("mm_vmscan_memcg_reclaim_begin");
    let sleeps = count("mm_vmscan_kswapd_sleep");
    let active = |l: &Line| l.field("lru").starts_with("active");
    let refilled = sum(measured, "mm_vmscan_lru_isolate", "nr_scanned", active);
    let writes = sum(measured, "mm_vmscan_write_folio", "", |_| true);
    let at_once = pairs.iter().any(|pair| pair.contains("zram"));
    let written = if at_once { "pswpout" } else { "nr_vmscan_write" };
    // Kills of the whole run.
    let kills = sum(all_of, "mark_victim", "", |_| true);
    for (name, events, counted) in [
        ("allocstall", begun, counter("allocstall_normal")),
        ("pageoutrun", count("mm_vmscan_kswapd_wake"), counter("pageoutrun")),
        ("kswapd_sleeps", sleeps, metrics["kswapd_sleeps"] as u64),
        ("kswapd_wakes", wake_ups(&all, from, to), metrics["kswapd_wakes"] as u64),
        ("pgrefill", refilled, if classic { counter("pgrefill") } else { 0 }),
        (written, writes, counter(written)),
        ("kills", kills, outcome.kills),
    ] {
        told.push((name.into(), events, counted));
    }
    told
}

#[test]
fn the_sums_of_events_are_the_runs_counters() {
    let mut seen = BTreeMap::<String, u64>::new();
    for pairs in MACHINES {
        let run = traced(&scenario(pairs));
        for (name, events, counted) in sums(pairs, &run) {
            assert_eq!(events, counted, "{:?}: {name}", &pairs[1..]);
        }
        lines(&run.2).iter().for_each(|l| *seen.entry(l.event.into()).or_default() += 1);
    }
    for event in [
        "mm_vmscan_kswapd_sleep",
        "mm_vmscan_kswapd_wake",
        "mm_vmscan_wakeup_kswapd",
        "mm_vmscan_direct_reclaim_begin",
        "mm_vmscan_direct_reclaim_end",
        "mm_vmscan_memcg_reclaim_begin",
        "mm_vmscan_memcg_reclaim_end",
        "mm_vmscan_lru_isolate",
        "mm_vmscan_lru_shrink_inactive",
        "mm_vmscan_lru_shrink_active",
        "mm_vmscan_write_folio",
        "mark_victim",
    ] {
        assert!(seen.contains_key(event), "nobody has made {event}: {seen:?}");
    }
}

/// Counts the deep sleeps of kswapd that end with a wake-up during the measurement.
fn wake_ups(all: &[Line], from: usize, to: usize) -> u64 {
    let mut asleep = BTreeMap::new();
    let mut woken = 0;
    for (i, line) in all[..to].iter().enumerate() {
        match line.event {
            "mm_vmscan_kswapd_sleep" => _ = asleep.insert(line.pid, ()),
            "mm_vmscan_kswapd_wake" if asleep.remove(&line.pid).is_some() => {
                woken += u64::from(i > from);
            }
            _ => {}
        }
    }
    woken
}

#[test]
fn events_are_in_the_order_of_their_times_and_runs_end_after_they_begin() {
    for pairs in MACHINES {
        let (_, _, text) = traced(&scenario(pairs));
        let all = lines(&text);
        assert!(all.windows(2).all(|two| two[0].us <= two[1].us), "{:?}", &pairs[1..]);
        let mut open = BTreeMap::new();
        for line in all.iter().filter(|l| l.event.contains("_reclaim_")) {
            let begins = line.event.ends_with("_begin");
            let was = open.insert(line.pid, begins).unwrap_or(false);
            assert_ne!(was, begins, "{:?}: {line:?}", &pairs[1..]);
        }
    }
}

#[test]
fn a_run_whose_events_are_kept_measures_what_it_would_without() {
    for pairs in MACHINES {
        let s = scenario(pairs);
        assert_eq!(traced(&s).0, run_once(&s, 1, 0).unwrap().0, "{:?}", &pairs[1..]);
    }
}

/// Shows that the events of a tiny machine have the exact text.
#[test]
fn the_events_of_a_tiny_machine_have_the_exact_text() {
    let (_, _, text) = traced(&scenario(&[MIX, "preset=classic"]));
    let of = |event: &str| {
        let first = text.lines().find(|line| line.contains(event));
        first.unwrap_or_else(|| panic!("no {event}")).to_owned()
    };
    let mut told: Vec<String> = text.lines().take(12).map(str::to_owned).collect();
    let more = ["_kswapd_sleep:", "_end:", "_write_folio:", "_shrink_active:", "_mark_write:"];
    told.extend(more.map(of));
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/events.txt");
    let told = told.join("\n") + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(golden, &told).unwrap();
    }
    assert_eq!(told, std::fs::read_to_string(golden).unwrap());
}
