//! Random machines: makes the text of a scenario from a seed.
//!
//! Invariants
//! * DRAW-1: one seed always gives one text, to the byte.
//! * DRAW-2: a drawn text is a valid scenario, and sets no switch to a value that is a known bug.
//! * DRAW-3: a machine is small: a few thousand frames, and a few times as many accesses.

use ebb_mm::random::Random;
use toml::{Table, Value};

use super::text;

/// Random choices.
struct Dice(Random);

impl Dice {
    fn one_in(&mut self, n: u32) -> bool {
        self.0.below(n) == 0
    }

    fn count(&mut self, from: u32, to: u32) -> i64 {
        i64::from(from + self.0.below(to - from + 1))
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.below(all.len() as u32) as usize]
    }

    /// Returns a share in hundredths.
    fn share(&mut self, from: u32, to: u32) -> f64 {
        self.count(from, to) as f64 / 100.0
    }
}

/// Makes a table of these keys.
macro_rules! table {
    ($($key:literal = $value:expr),* $(,)?) => {{
        let mut table = Table::new();
        $(table.insert($key.to_owned(), Value::from($value));)*
        table
    }};
}

/// Returns the text of the scenario of a seed.
#[must_use]
pub fn draw(seed: u64) -> String {
    with(seed, &[])
}

/// Returns the text of the scenario of a seed, with the settings `set` of the engine after the
/// drawn ones.
#[must_use]
pub fn with(seed: u64, set: &[String]) -> String {
    text::scenario(&drawn(seed, set))
}

fn drawn(seed: u64, set: &[String]) -> Table {
    let dice = &mut Dice(Random(ebb_mm::random::mix(seed)));
    let mut machine = machine(dice);
    let memcgs = memcgs(dice);
    let workloads = workloads(dice, &memcgs);
    if live(dice, &memcgs, &workloads) {
        machine.insert("live".into(), table! { "on" = true }.into());
        if !machine.contains_key("swap") {
            machine.insert("swap".into(), table! { "kind" = "nvme" }.into());
        }
    }
    let mut all = switches(dice);
    all.extend(set.iter().map(|pair| Value::from(pair.as_str())));
    let arms = [
        table! { "name" = "default", "set" = Vec::<Value>::new() },
        table! { "name" = "drawn", "set" = all },
    ];
    let measure = table! {
        "metric" = "ops_per_s",
        "seeds" = 2,
        "seconds" = dice.of(&[0.5, 2.0, 8.0]),
    };
    let list = |all: Vec<Table>| Value::from(all.into_iter().map(Value::from).collect::<Vec<_>>());
    let mut scenario = table! {
        "name" = format!("drawn-{seed}"),
        "title" = "a machine drawn at random",
        "source" = format!("ebb lab fuzz --seed {seed}"),
        "machine" = machine,
        "measure" = measure,
    };
    scenario.insert("arm".into(), list(arms.into()));
    scenario.insert("memcg".into(), list(memcgs));
    scenario.insert("workload".into(), list(workloads));
    scenario
}

fn device(dice: &mut Dice, kinds: &[&str]) -> Table {
    let kind = dice.of(kinds);
    let mut device = table! { "kind" = kind };
    if kind == "nvme" && dice.one_in(4) {
        device.insert("read_us".into(), (dice.count(1, 20) as f64 * 50.0).into());
    }
    if ["nvme", "ssd"].contains(&kind) && dice.one_in(4) {
        device.insert("write_mb_s".into(), dice.of(&[5.0, 20.0, 100.0]).into());
    }
    device
}

fn machine(dice: &mut Dice) -> Table {
    let nodes: i64 = if dice.one_in(8) { 2 } else { 1 };
    let cpus = dice.count(nodes as u32, 4);
    let frames = nodes * dice.of(&[4096, 4096, 4096, 5120, 6144]);
    let mut m = table! { "frames" = frames, "cpus" = cpus };
    if nodes > 1 {
        m.insert("nodes".into(), nodes.into());
    }
    match dice.count(0, 9) {
        0..=2 => {
            m.insert("dma".into(), 1024.into());
            if dice.one_in(2) {
                m.insert("dma_free".into(), dice.count(0, 1000).into());
            }
        }
        3 if nodes == 1 => drop(m.insert("second_node".into(), true.into())),
        _ => {}
    }
    if dice.one_in(8) {
        m.insert("reserved".into(), (frames / 8).into());
    }
    if !dice.one_in(3) {
        let mut swap = device(dice, &["zram", "ramdisk", "nvme", "nvme", "ssd", "disk"]);
        if dice.one_in(3) {
            swap.insert("pages".into(), dice.count(256, 4096).into());
        }
        m.insert("swap".into(), swap.into());
    }
    if dice.one_in(2) {
        let disk = device(dice, &["ramdisk", "nvme", "flash", "ssd", "disk"]);
        m.insert("disk".into(), disk.into());
    }
    // Timers of a scaled-down machine are shorter, but its devices are not faster. A slow device
    // would count as dead.
    let fast = |device: &Value| {
        let device = device.as_table().expect("so it was drawn");
        device.len() == 1 && !["ssd", "disk"].contains(&device["kind"].as_str().unwrap_or_default())
    };
    if ["swap", "disk"].iter().filter_map(|key| m.get(*key)).all(fast) && dice.one_in(4) {
        m.insert("gb".into(), dice.of(&[1.0, 4.0, 16.0]).into());
    }
    if dice.one_in(3) {
        let background = dice.count(1, 20);
        let limit = background + dice.count(1, 40);
        let dirty = table! {
            "background_pct" = background as f64,
            "limit_pct" = limit as f64,
            "expire_s" = dice.of(&[0.1, 1.0, 30.0]),
            "interval_s" = dice.of(&[0.05, 0.5, 5.0]),
        };
        m.insert("dirty".into(), dirty.into());
    }
    if dice.one_in(8) {
        m.insert("slab".into(), table! { "objects" = dice.count(1000, 20_000) }.into());
    }
    if dice.one_in(4) {
        m.insert("read_ahead".into(), dice.of(&[1, 4, 128]).into());
    }
    m
}

fn memcgs(dice: &mut Dice) -> Vec<Table> {
    let mut all: Vec<Table> = Vec::new();
    let count = dice.of(&[0, 1, 1, 2, 2, 3, 4]);
    // The `min` and `low` shares of all memcgs together stay within memory.
    let mut left = 50;
    for i in 0..count {
        let mut m = table! { "name" = format!("m{i}") };
        if !dice.one_in(3) {
            m.insert("limit".into(), dice.share(10, 80).into());
        }
        if dice.one_in(6) {
            m.insert("high".into(), dice.share(10, 60).into());
        }
        if dice.one_in(5) {
            let least = m.get("limit").and_then(Value::as_float).unwrap_or(1.0);
            let share = dice.count(2, 30).min(left).min((least * 50.0) as i64);
            left -= share;
            let key = if dice.one_in(2) { "min" } else { "low" };
            m.insert(key.into(), (share as f64 / 100.0).into());
        } else if dice.one_in(8) {
            m.insert("reclaim".into(), dice.share(1, 10).into());
            m.insert("reclaim_ms".into(), dice.of(&[10.0, 30.0, 100.0]).into());
        }
        if i > 0 && dice.one_in(5) {
            let parent = dice.0.below(i) as usize;
            if !all[parent].contains_key("copies") {
                m.insert("parent".into(), format!("m{parent}").into());
            }
        } else if !m.contains_key("min") && !m.contains_key("low") && dice.one_in(4) {
            m.insert("copies".into(), dice.count(2, 4).into());
        }
        all.push(m);
    }
    all
}

const PATTERNS: [&str; 6] =
    ["zipfian", "latest", "uniform", "exponential", "gaussian", "sequential"];

fn workloads(dice: &mut Dice, memcgs: &[Table]) -> Vec<Table> {
    let count = dice.of(&[1, 1, 2, 2, 3]);
    let mut all = Vec::new();
    for i in 0..count {
        let mut w = table! { "name" = format!("w{i}") };
        if !memcgs.is_empty() {
            let m = &memcgs[dice.0.below(memcgs.len() as u32) as usize];
            w.insert("memcg".into(), m["name"].clone());
        }
        if i > 0 && dice.one_in(5) {
            w.insert("background".into(), true.into());
        }
        let (kind, generator) = generator(dice);
        w.insert(kind.into(), generator.into());
        all.push(w);
    }
    all
}

fn generator(dice: &mut Dice) -> (&'static str, Table) {
    match dice.count(0, 7) {
        0 | 1 => ("key-value", key_value(dice)),
        2 | 3 => ("fio", fio(dice)),
        4 | 5 => ("simoop", simoop(dice)),
        6 => ("mix", mix(dice)),
        _ => ("build", build(dice)),
    }
}

fn key_value(dice: &mut Dice) -> Table {
    table! {
        "threads" = dice.count(1, 4),
        "data" = dice.share(20, 180),
        "item_bytes" = dice.of(&[256, 1024, 4096, 16_384]),
        "pattern" = dice.of(&PATTERNS),
        "writes" = dice.of(&[0.0, 0.1, 0.5, 1.0]),
        "op_ns" = dice.count(5, 50) * 100,
        "warm" = 0.2,
        "ops" = dice.share(20, 60),
    }
}

fn fio(dice: &mut Dice) -> Table {
    table! {
        "jobs" = dice.count(1, 4),
        "data" = dice.share(20, 200),
        "pattern" = dice.of(&PATTERNS),
        "writes" = dice.of(&[0.0, 0.1, 0.5, 1.0]),
        "op_ns" = dice.count(5, 50) * 100,
        "warm" = 0.2,
        "ops" = dice.share(20, 60),
    }
}

fn simoop(dice: &mut Dice) -> Table {
    let mut threads = [dice.count(0, 3), dice.count(0, 3), dice.count(0, 2)];
    if threads == [0; 3] {
        threads[2] = 1;
    }
    table! {
        "readers" = threads[0],
        "writers" = threads[1],
        "allocators" = threads[2],
        "data" = dice.share(50, 300),
        "chunk" = dice.of(&[8, 16, 64]),
        "write" = dice.of(&[4, 16, 64]),
        "sync_every" = dice.of(&[4, 32, 1000]),
        "area" = dice.share(1, 50),
        "hold_us" = dice.of(&[100, 1000, 10_000]),
        "rest_us" = dice.of(&[100, 500, 5000, 50_000]),
        "ops" = dice.count(5, 20),
    }
}

fn mix(dice: &mut Dice) -> Table {
    table! {
        "readers" = dice.count(1, 8),
        "file" = dice.share(5, 50),
        "stride" = dice.of(&[1, 8, 64]),
        "rest_us" = dice.of(&[500, 2000, 10_000]),
        "fillers" = dice.count(1, 4),
        "anon" = dice.share(20, 100),
        "warm_us" = dice.of(&[1000, 10_000]),
        "rounds" = dice.count(1, 3),
        "pause_us" = dice.of(&[100, 1000, 10_000]),
    }
}

fn build(dice: &mut Dice) -> Table {
    let jobs = dice.count(1, 3);
    table! {
        "jobs" = jobs,
        "programs" = jobs * dice.count(2, 4),
        "text" = dice.share(5, 20),
        "headers" = dice.share(2, 10),
        "sources" = dice.share(2, 20),
        "memory" = dice.share(5, 40),
        "passes" = dice.count(1, 2),
        "page_ns" = dice.count(2, 20) * 100,
    }
}

/// Returns whether to draw a machine under Ebb. `ebb run` manages one memcg at most, and only
/// private memory.
fn live(dice: &mut Dice, memcgs: &[Table], workloads: &[Table]) -> bool {
    let private = workloads.iter().all(|w| w.contains_key("key-value"));
    let one = memcgs.len() < 2 && memcgs.iter().all(|m| !m.contains_key("copies"));
    private && one && dice.one_in(3)
}

/// Switch values that are mechanisms of the engine, Ebb's own and other kernels'; none is a known
/// bug.
const SWITCHES: &[(&str, &[&str])] = &[
    ("swappiness", &["1", "100", "200"]),
    ("lru.add_batch", &["1", "15"]),
    ("gen.loop", &["k72"]),
    ("gen.placement", &["k612", "k72"]),
    ("gen.admission", &["open"]),
    ("gen.history", &["off"]),
    ("gen.second_chance", &["off"]),
    ("gen.promote", &["first"]),
    ("gen.set_refs", &["k72"]),
    ("gen.tiers", &["off"]),
    ("gen.type_select", &["ratio"]),
    ("gen.walk", &["off"]),
    ("gen.bloom", &["off"]),
    ("gen.non_leaf", &["off"]),
    ("gen.look_around", &["off", "on"]),
    ("gen.bulk_move", &["off"]),
    ("gen.counter_batch", &["off"]),
    ("gen.prefetch", &["off"]),
    ("gen.target_end", &["head"]),
    ("gen.memcg_lru", &["off"]),
    ("gen.per_type_aging", &["on"]),
    ("gen.refault_distance", &["off", "place"]),
    ("classic.rotations", &["off"]),
    ("classic.fold", &["4096"]),
    ("reclaim.parts", &["0"]),
    ("reclaim.batch", &["8"]),
    ("kswapd.trim_again", &["off"]),
    ("swap.keep_slot", &["off"]),
    ("swap.order", &["time"]),
    ("swap.ahead", &["cluster"]),
    ("swap.page_cluster", &["0", "5"]),
    ("file.one_mark", &["on"]),
    ("file.fault_around", &["1", "64"]),
];

/// Draws switches. A third of all machines have none, as most users run.
fn switches(dice: &mut Dice) -> Vec<Value> {
    let mut pairs: Vec<String> = Vec::new();
    if dice.one_in(3) {
        return Vec::new();
    }
    if dice.one_in(3) {
        pairs.extend(["lru=classic".into(), "dirty=classic".into()]);
    } else if dice.one_in(4) {
        pairs.push("dirty=classic".into());
    }
    for (key, values) in SWITCHES {
        if dice.one_in(8) {
            pairs.push(format!("{key}={}", dice.of(values)));
        }
    }
    pairs.into_iter().map(Value::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::machine;
    use crate::scenario::Scenario;

    #[test]
    fn the_same_seed_gives_the_same_text_and_another_another() {
        for seed in 0..50 {
            assert_eq!(draw(seed), draw(seed));
            assert_ne!(draw(seed), draw(seed + 1));
        }
    }

    #[test]
    fn every_drawn_scenario_is_one_that_ebb_lab_run_takes() {
        let (mut live, mut classic, mut nodes) = (0, 0, 0);
        for seed in 0..1000 {
            let text = draw(seed);
            let scenario =
                Scenario::parse("drawn", &text).unwrap_or_else(|e| panic!("{seed}: {e}"));
            assert_eq!(scenario.arm.len(), 2);
            let machine = machine(&text).unwrap();
            live += u32::from(machine.machine.live.on);
            nodes += u32::from(machine.machine.nodes > 1);
            classic += u32::from(machine.switches.iter().any(|s| s == "lru=classic"));
        }
        assert!(live > 5 && classic > 100 && nodes > 50, "{live} {classic} {nodes}");
    }

    #[test]
    fn settings_come_after_those_that_were_drawn() {
        let text = with(7, &["kswapd.balanced=all".into()]);
        assert_eq!(machine(&text).unwrap().switches.last().unwrap(), "kswapd.balanced=all");
    }
}
