//! Runs every combination of the switches for checks and CMA counting, by number of threads.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use ebb_linux::frame::{Checks, CmaCount, LayoutError};

use super::ebb::{Ebb, HoldTimes, Mechanisms};
use super::harness::{Cell, Load, Pattern, measure, median};
use super::table::Table;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Store {
    Lists,
    Bitmaps,
    Both,
}

/// Nanoseconds per page-frame allocation and free, by thread count and mechanism.
#[derive(Debug, Parser)]
#[command(name = "ebb bench alloc")]
struct Args {
    /// Thread counts; by default 1, 2, 4, ... up to the processors at hand.
    #[arg(long, value_delimiter = ',')]
    threads: Vec<usize>,
    /// Orders of the blocks.
    #[arg(long, value_delimiter = ',', default_value = "0,9")]
    orders: Vec<u8>,
    /// Patterns: bulk, random, repeat, burst64, cross.
    #[arg(long, value_delimiter = ',', default_value = "bulk")]
    patterns: Vec<String>,
    /// The store of free frames.
    #[arg(long, value_enum, default_value = "both")]
    store: Store,
    /// Samples per cell.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// MiB of frames.
    #[arg(long, default_value_t = 2048)]
    mib: u32,
    /// Also measure how long locks are held per refill.
    #[arg(long)]
    holds: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Why there is no table.
#[derive(Debug, thiserror::Error)]
enum AllocError {
    #[error("--patterns {0}: write bulk, random, repeat, burst64, cross")]
    Pattern(String),
    #[error("--orders must be 0 to 10, --threads and --rounds at least 1")]
    Range,
    #[error("--mib is too large")]
    Mib,
    #[error("{threads} threads need more than {mib} MiB; raise --mib")]
    Memory { threads: usize, mib: u32 },
    #[error(transparent)]
    Layout(#[from] LayoutError),
}

/// Runs `ebb bench alloc` with these arguments, which leave out the command's name.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Args = match crate::parse("ebb bench alloc", args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(tables) => {
            match args.format {
                Format::Text => tables.iter().for_each(|t| println!("{}", t.text())),
                Format::Json => {
                    let tables: Vec<_> = tables.iter().map(Table::json).collect();
                    println!("{}", serde_json::json!({ "schema": 1, "tables": tables }));
                }
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("ebb bench alloc: {why}");
            ExitCode::from(2)
        }
    }
}

fn thread_counts(args: &Args) -> Vec<usize> {
    if !args.threads.is_empty() {
        return args.threads.clone();
    }
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n <= most).collect()
}

fn patterns(args: &Args) -> Result<Vec<Pattern>, AllocError> {
    let find = |name: &String| {
        let found = Pattern::ALL.into_iter().find(|p| p.name() == name);
        found.ok_or_else(|| AllocError::Pattern(name.clone()))
    };
    args.patterns.iter().map(find).collect()
}

/// Returns the variants of one table: a name and the choices.
fn variants(store: Store) -> Vec<(String, Mechanisms)> {
    let bases: &[(&str, Mechanisms)] = &[
        ("lists", Mechanisms { cma: true, ..Mechanisms::faithful() }),
        ("bitmaps", Mechanisms { cma: true, ..Mechanisms::fast() }),
    ];
    let wanted = |name: &str| match store {
        Store::Both => true,
        Store::Lists => name == "lists",
        Store::Bitmaps => name == "bitmaps",
    };
    let mut all = Vec::new();
    for (name, base) in bases.iter().filter(|(name, _)| wanted(name)) {
        for checks in Checks::ALL {
            for cma_count in CmaCount::ALL {
                let title = format!("{name}, {}, {}", checks.name(), cma_count.name());
                all.push((title, Mechanisms { checks, cma_count, ..*base }));
            }
        }
    }
    all
}

fn run(args: &Args) -> Result<Vec<Table>, AllocError> {
    let threads = thread_counts(args);
    let patterns = patterns(args)?;
    if args.orders.iter().any(|&o| o > 10) || threads.contains(&0) || args.rounds == 0 {
        return Err(AllocError::Range);
    }
    let mut tables = Vec::new();
    for &order in &args.orders {
        for &pattern in &patterns {
            tables.push(table(args, &threads, order, pattern)?);
        }
    }
    Ok(tables)
}

/// Returns the number of blocks for each thread: 32 Ki blocks of one or two frames, fewer larger
/// blocks, 128 huge pages (order 9).
fn blocks_per_thread(order: u8) -> usize {
    (65_536 >> order).clamp(32, 32_768)
}

fn table(args: &Args, threads: &[usize], order: u8, pattern: Pattern) -> Result<Table, AllocError> {
    let frames = args.mib.checked_mul(256).ok_or(AllocError::Mib)?;
    let variants = variants(args.store);
    let most = threads.iter().copied().max().unwrap_or(1);
    let blocks = blocks_per_thread(order);
    if (most * blocks) << order > frames as usize / 4 * 3 {
        return Err(AllocError::Memory { threads: most, mib: args.mib });
    }
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    for &threads in threads {
        let load = Load { threads, order, blocks, pattern, passes: 2 };
        let mut cells: Vec<Vec<Cell>> = vec![Vec::new(); variants.len()];
        let build = |how: &Mechanisms, meter| Ebb::new(frames, most, how, meter);
        // All machines are in memory together. Each round samples every variant in turn.
        let machines: Vec<Ebb> =
            variants.iter().map(|(_, how)| build(how, None)).collect::<Result<_, _>>()?;
        for round in 0..=args.rounds {
            for (machine, cells) in machines.iter().zip(&mut cells) {
                let cell = measure(machine, &load);
                // The first round accesses everything for the first time, so it does not count.
                if round > 0 {
                    cells.push(cell);
                }
            }
        }
        rows.push((load, cells.iter().map(|c| median(c)).collect()));
        if args.holds {
            for (name, how) in &variants {
                let times = Arc::new(HoldTimes::default());
                measure(&build(how, Some(times.clone()))?, &load);
                let (holds, mean) = times.mean();
                notes.push(format!(
                    "{threads} threads, {name}: {holds} refills, lock held {mean:.0} ns each"
                ));
            }
        }
    }
    let columns = variants.into_iter().map(|(name, _)| name).collect();
    let title = format!(
        "order {order}, {}, {blocks} blocks per thread: ns of CPU per {}",
        pattern.name(),
        if pattern.is_pair() { "pair" } else { "get / put" }
    );
    Ok(Table { title, columns, rows, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: &str) -> Args {
        Args::try_parse_from(line.split_whitespace()).unwrap()
    }

    #[test]
    fn every_combination_of_the_switches_has_a_column() {
        let line = "alloc --threads 1 --orders 9 --rounds 1 --store both --holds --mib 512";
        let tables = run(&args(line)).unwrap();
        assert_eq!(tables[0].columns.len(), 2 * 4 * 3);
        assert_eq!(tables[0].rows.len(), 1);
        assert!(tables[0].rows[0].1.iter().all(|c| c.get > 0.0));
        assert_eq!(tables[0].notes.len(), 24);
    }

    #[test]
    fn a_load_that_does_not_fit_and_a_wrong_pattern_are_refused() {
        assert!(run(&args("alloc --threads 8 --mib 64")).is_err());
        assert!(run(&args("alloc --patterns sideways")).is_err());
        assert!(run(&args("alloc --orders 11")).is_err());
    }
}
