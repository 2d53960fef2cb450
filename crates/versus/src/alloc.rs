//! Compares the page-frame allocator with others, in one run and by ratios.
//!
//! Most goals are ratios to a bound that is no allocator: each thread pops and pushes an array of
//! its own. The contenders are Ebb's two stores and `buddy_system_allocator` behind a mutex. Ebb's
//! fast store also runs without claimed CPUs. LLFree is no contender, because it is not published
//! as a package. The lines about goals also have LLFree's own ratios to that bound.

mod facts;
mod goals;
mod peers;

use std::process::ExitCode;

use clap::Parser;
use ebb_bench::alloc::{
    Cell, Contender, Ebb, Hinted, Load, Mechanisms, Pattern, Table, measure, median,
};
use peers::{Arrays, MutexBuddy};

/// Ebb's frame allocator side by side with others.
#[derive(Debug, Parser)]
struct Args {
    /// MiB of frames.
    #[arg(long, default_value_t = 8192)]
    mib: u32,
    /// Samples per cell.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Thread counts.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Only this order.
    #[arg(long)]
    order: Option<u8>,
    /// Only this pattern.
    #[arg(long)]
    pattern: Option<String>,
    /// Only the bound and Ebb's fast store.
    #[arg(long)]
    quick: bool,
    /// Skip the tables; only checks, locks, drains, start-up.
    #[arg(long)]
    facts: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Names of the contenders, in the order of the columns.
const NAMES: [&str; 5] =
    ["array (bound)", "ebb fast", "ebb fast, hint", "ebb lists", "mutex buddy_system_allocator"];

struct Field {
    /// Arrays for each thread count; the arrays of one thread count hold all frames.
    arrays: Vec<(usize, Arrays)>,
    fast: Ebb,
    hint: Hinted,
    lists: Ebb,
    buddy: MutexBuddy,
}

impl Field {
    fn new(frames: u32, threads: &[usize], order: u8) -> Result<Self, String> {
        let most = threads.iter().copied().max().unwrap_or(1);
        let ebb =
            |how: &Mechanisms| Ebb::new(frames, most, how, None).map_err(|error| error.to_string());
        Ok(Self {
            arrays: threads.iter().map(|&n| (n, Arrays::new(frames, n, order))).collect(),
            fast: ebb(&Mechanisms::fast())?,
            hint: Hinted(ebb(&Mechanisms::fast())?),
            lists: ebb(&Mechanisms::faithful())?,
            buddy: MutexBuddy::new(frames),
        })
    }

    /// Takes one sample of contender `i`.
    fn sample(&self, i: usize, load: &Load) -> Cell {
        fn one<C: Contender>(contender: &C, load: &Load) -> Cell {
            contender.settle();
            measure(contender, load)
        }
        match i {
            0 => {
                let fits = |(n, _): &&(usize, Arrays)| *n == load.threads;
                self.arrays.iter().find(fits).map_or(Cell::default(), |(_, a)| one(a, load))
            }
            1 => one(&self.fast, load),
            2 => one(&self.hint, load),
            3 => one(&self.lists, load),
            _ => one(&self.buddy, load),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("versus-alloc: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let mut tables = Vec::new();
    if !args.facts {
        for order in [0, 9] {
            if args.order.is_none_or(|only| only == order) {
                tables.extend(order_tables(args, order)?);
            }
        }
    }
    let facts = if args.facts || !args.quick { facts::all(args.rounds)? } else { Vec::new() };
    let goals = goals::judge(&tables);
    if args.json {
        let tables: Vec<_> = tables.iter().map(Table::json).collect();
        println!(
            "{}",
            serde_json::json!({ "schema": 1, "tables": tables, "facts": facts, "goals": goals })
        );
        return Ok(());
    }
    tables.iter().for_each(|t| println!("{}", t.text()));
    facts.iter().chain(&goals).for_each(|line| println!("{line}"));
    Ok(())
}

fn order_tables(args: &Args, order: u8) -> Result<Vec<Table>, String> {
    let frames = args.mib.checked_mul(256).ok_or("--mib is too large")?;
    let field = Field::new(frames, &args.threads, order)?;
    let contenders = if args.quick { 2 } else { NAMES.len() };
    let mut tables = Vec::new();
    let wanted = |p: &Pattern| args.pattern.as_ref().is_none_or(|name| p.name() == name);
    for pattern in Pattern::ALL.into_iter().filter(wanted) {
        let mut rows = Vec::new();
        for &threads in &args.threads {
            let half = (frames as usize / 2 / threads) >> order;
            let blocks = if pattern.is_pair() { 1 << 18 } else { half };
            let passes = (1 << 17) / (blocks * threads).max(1) + 1;
            let load = Load { threads, order, blocks, pattern, passes };
            let mut samples: Vec<Vec<Cell>> = vec![Vec::new(); contenders];
            for round in 0..=args.rounds {
                for (i, samples) in samples.iter_mut().enumerate() {
                    let cell = field.sample(i, &load);
                    if round > 0 {
                        samples.push(cell);
                    }
                }
            }
            rows.push((load, samples.iter().map(|s| median(s)).collect()));
        }
        tables.push(Table {
            title: format!("order {order}, {}, {} MiB", pattern.name(), args.mib),
            columns: NAMES[..contenders].iter().map(ToString::to_string).collect(),
            rows,
            notes: Vec::new(),
        });
    }
    Ok(tables)
}
