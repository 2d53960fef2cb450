//! Replays the traces on which real kernels were measured, and compares the misses.
//!
//! `cargo run --release -p ebb-mm --example oracle -- DIR [FILTER] [--set KEY=VALUE]...` reads
//! `DIR/baselines/kernel-oracle.csv` and `DIR/traces/*.csv.zst` (through `zstdcat`). A row is
//! replayed with the switch set of its kernel unless `--set preset=ebb` or another setting changes
//! that.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use ebb_mm::lru::memory::{Access, Memory, Region, Touch};
use ebb_mm::space::Backing;
use ebb_mm::tunables::Tunables;

struct Row {
    trace: String,
    mode: String,
    pages: u64,
    limit: u32,
    gen_lru: bool,
    kernel: String,
    accesses: usize,
    misses: u64,
}

fn rows(dir: &str) -> Vec<Row> {
    let text = std::fs::read_to_string(format!("{dir}/baselines/kernel-oracle.csv"))
        .expect("the table of measured kernels");
    let number = |f: &[&str], i: usize| f[i].parse::<u64>().expect("a number");
    text.lines()
        .skip(1)
        .map(|line| {
            let f: Vec<&str> = line.split(',').collect();
            Row {
                trace: f[0].into(),
                mode: f[1].into(),
                pages: number(&f, 2),
                limit: number(&f, 3) as u32,
                gen_lru: f[4] == "1",
                kernel: f[5].split('-').next().unwrap_or("").into(),
                accesses: number(&f, 7) as usize,
                misses: number(&f, 9),
            }
        })
        .collect()
}

/// A trace with dense page numbers, anonymous pages first: `(page, write)` and the anonymous count.
struct Trace {
    records: Vec<(u32, bool)>,
    anon: u64,
}

fn load(dir: &str, name: &str, accesses: usize, mode: &str) -> Trace {
    let path =
        [format!("{dir}/traces/{name}.csv.zst"), format!("{dir}/traces/synth-{name}.csv.zst")]
            .into_iter()
            .find(|p| std::path::Path::new(p).exists())
            .expect("the trace");
    let mut child = Command::new("zstdcat")
        .args(["--long=27", &path])
        .stdout(Stdio::piped())
        .spawn()
        .expect("zstdcat runs");
    let reader = BufReader::with_capacity(1 << 20, child.stdout.take().expect("piped"));
    let mut ids: HashMap<(bool, u64), u32> = HashMap::new();
    let mut raw = Vec::with_capacity(accesses);
    let (mut anon, mut file) = (0u32, 0u32);
    for line in reader.lines().skip(1).take(accesses) {
        let line = line.expect("text");
        let f: Vec<&str> = line.split(',').collect();
        let page: u64 = f[1].parse().expect("a page number");
        let is_anon = match mode {
            "anon" => true,
            "file-read" | "file-mmap" => false,
            _ => f[3] == "a",
        };
        let next = if is_anon { &mut anon } else { &mut file };
        let id = *ids.entry((is_anon, page)).or_insert_with(|| {
            *next += 1;
            *next - 1
        });
        raw.push((is_anon, id, f[2] == "w"));
    }
    let _ = child.kill();
    let _ = child.wait();
    let records = raw.into_iter().map(|(a, id, w)| (if a { id } else { anon + id }, w)).collect();
    Trace { records, anon: u64::from(anon) }
}

fn regions(row: &Row, trace: &Trace) -> Vec<Region> {
    let anon = if row.mode == "anon" { row.pages + 1 } else { trace.anon };
    let region = |start, end, backing, recency| Region { start, end, backing, recency };
    match row.mode.as_str() {
        "anon" => vec![region(0, anon, Backing::Anon, true)],
        // Mappings without readahead and fault-around are mappings advised to be random.
        mode => vec![
            region(0, anon, Backing::Anon, true),
            region(anon, row.pages + 1, Backing::File, mode == "file-read"),
        ],
    }
}

fn replay(row: &Row, trace: &Trace, tun: Tunables) -> Memory {
    let mut m = Memory::new(tun, &regions(row, trace), row.limit);
    let read_fd = row.mode == "file-read";
    let anon = trace.anon;
    let mut seen = vec![false; row.pages as usize + 1];
    for &(page, write) in &trace.records {
        let first = !std::mem::replace(&mut seen[page as usize], true);
        let page = u64::from(page);
        let access = if page < anon {
            if write || first { Access::AnonWrite } else { Access::AnonRead }
        } else if read_fd {
            Access::FdRead
        } else {
            Access::MmapRead
        };
        let _: Touch = m.touch(page, access);
    }
    m
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.first().expect("usage: oracle DIR [FILTER] [--set KEY=VALUE]...");
    let mut filter = "";
    let mut sets = Vec::new();
    let mut i = 1;
    while i < args.len() {
        if args[i] == "--set" {
            sets.push(args[i + 1].clone());
            i += 2;
        } else {
            filter = &args[i];
            i += 1;
        }
    }
    let mut traces: HashMap<String, Trace> = HashMap::new();
    let (mut log_sum, mut n, mut worst) = (0.0f64, 0, 0.0f64);
    for row in rows(dir) {
        let preset = match (row.gen_lru, row.kernel.as_str()) {
            (false, _) => "classic",
            (true, k) if k.starts_with("6.12") => "k612",
            (true, k) if k.starts_with("6.18") => "k618",
            _ => "k72",
        };
        let label = format!("{} {} {} {preset}", row.trace, row.mode, row.kernel);
        if !label.contains(filter) {
            continue;
        }
        let key = format!("{} {} {}", row.trace, row.accesses, row.mode);
        let trace =
            traces.entry(key).or_insert_with(|| load(dir, &row.trace, row.accesses, &row.mode));
        let mut tun = Tunables::preset(preset).expect("a preset");
        for s in &sets {
            tun.set(s).unwrap_or_else(|e| panic!("{e}"));
        }
        let start = Instant::now();
        let m = replay(&row, trace, tun);
        let ns = start.elapsed().as_nanos() as f64 / row.accesses as f64;
        let c = m.counts();
        let ratio = c.refaults as f64 / row.misses as f64;
        println!(
            "{label:55} kernel {:7} here {:7} ratio {ratio:.4} \
             scanned {:9} protected {:8} {ns:.0} ns",
            row.misses, c.refaults, c.scanned, c.protected
        );
        log_sum += ratio.ln();
        worst = worst.max(ratio.ln().abs());
        n += 1;
    }
    let mean = (log_sum / f64::from(n.max(1))).exp();
    println!("{n} rows: geometric mean {mean:.4}, worst {:.4}", worst.exp());
}
