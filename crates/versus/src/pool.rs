//! Compares random reads through `ebb-pool` and other stores, of a tree several times as large as
//! their memory.
//!
//! Each contender looks random records up in a tree of equal records. A key has 8 bytes, and a
//! value 120. The contenders are:
//! * `ebb`: [`BTree`] on a [`Pool`], direct I/O, frames for the given memory;
//! * `mmap`: the file and tree of `ebb`, mapped, in a memory cgroup;
//! * `lmdb`: in a memory cgroup (`peers/lmdb.c`, built here; needs liblmdb);
//! * `vmcache`: its own program (`--vmcache`), which takes whole GiB only, and inserts its records
//!   each time.
//!
//! The cgroup of `mmap` and `lmdb` has room for the given memory and for the program beside it.
//! Each contender prints its number of lookups in each second. After `--warm` seconds, `--seconds`
//! seconds count.

mod pool_peers;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use clap::Parser;
use ebb_bench::stats::{Summary, median};
use ebb_pool::btree::BTree;
use ebb_pool::{Options, PageId, Pool};
use pool_peers::{Measured, Peer, Peers};

/// Number of records of a full page.
const RECORDS_PER_PAGE: u64 = 30;
const PAGE: u64 = 4096;
/// Number of records of one change.
const BATCH: u64 = 20_000;
const ROOT: PageId = PageId(0);

/// Random reads through ebb-pool, LMDB, a plain mapping and vmcache.
#[derive(Debug, Parser)]
struct Args {
    /// GiB of memory of each contender.
    #[arg(long, default_value_t = 1)]
    gib: u64,
    /// Size of the tree, as a multiple of the memory.
    #[arg(long, default_value_t = 3)]
    times: u64,
    /// Numbers of threads that look records up.
    #[arg(long, value_delimiter = ',', default_value = "1,2,8")]
    threads: Vec<usize>,
    /// Rounds; each contender runs once in each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds that count.
    #[arg(long, default_value_t = 10)]
    seconds: usize,
    /// Seconds of warming up.
    #[arg(long, default_value_t = 20)]
    warm: usize,
    /// Folder of the trees; existing ones are used again.
    #[arg(long, default_value = "target/versus-pool")]
    folder: PathBuf,
    /// The program built from vmcache's sources.
    #[arg(long)]
    vmcache: Option<PathBuf>,
    /// Only these contenders.
    #[arg(long, value_delimiter = ',', default_value = "ebb,mmap,lmdb,vmcache")]
    only: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Run as this contender: used when the program starts itself.
    #[arg(long, hide = true)]
    child: Option<String>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.child.as_deref() {
        Some(child) => run_child(&args, child),
        None => compare(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("versus-pool: {why}");
            ExitCode::from(2)
        }
    }
}

impl Args {
    fn records(&self) -> u64 {
        (self.gib << 30) / PAGE * self.times * RECORDS_PER_PAGE
    }

    fn tree(&self) -> PathBuf {
        self.folder.join(format!("tree-{}", self.records()))
    }

    fn frames(&self) -> u32 {
        u32::try_from((self.gib << 30) / PAGE).unwrap_or(u32::MAX)
    }
}

fn value(key: u64) -> [u8; 120] {
    let mut value = [0; 120];
    value[..8].copy_from_slice(&key.to_be_bytes());
    value
}

/// Creates the tree, unless it exists.
fn make_tree(args: &Args) -> Result<(), String> {
    let (tree, part) = (args.tree(), args.folder.join("tree-part"));
    if tree.exists() {
        return Ok(());
    }
    eprintln!("versus-pool: makes a tree of {} records", args.records());
    for left in [part.clone(), journal(&part)] {
        if left.exists() {
            fs::remove_file(&left).map_err(|error| format!("{}: {error}", left.display()))?;
        }
    }
    let make = || -> Result<(), ebb_pool::btree::TreeError> {
        let pool = Pool::open(&part, Options::frames(args.frames()))?;
        let tree = BTree::create(&pool.change())?;
        assert_eq!(tree.root(), ROOT);
        for first in (0..args.records()).step_by(BATCH as usize) {
            let change = pool.change();
            for key in first..(first + BATCH).min(args.records()) {
                tree.insert(&change, &key.to_be_bytes(), &value(key))?;
            }
            change.commit()?;
        }
        Ok(pool.checkpoint()?)
    };
    make().map_err(|error| error.to_string())?;
    fs::remove_file(journal(&part))
        .and_then(|()| fs::rename(&part, &tree))
        .map_err(|e| e.to_string())
}

fn journal(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-journal");
    name.into()
}

/// Looks records up in the given number of threads, and prints the number of lookups in each
/// second. Then ends the process.
fn look_up(args: &Args, find: impl Fn(u64) -> bool + Sync) {
    let done = AtomicU64::new(0);
    let threads = args.threads.first().copied().unwrap_or(1);
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let (done, find, records) = (&done, &find, args.records());
            scope.spawn(move || {
                let mut x = (thread + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
                loop {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    assert!(find(x % records), "a record is missing, or wrong");
                    done.fetch_add(1, Relaxed);
                }
            });
        }
        for second in 0..args.warm + args.seconds {
            std::thread::sleep(Duration::from_secs(1));
            println!("{second},{}", done.swap(0, Relaxed));
        }
        std::process::exit(0);
    });
}

fn run_child(args: &Args, child: &str) -> Result<(), String> {
    let tree = BTree::open(ROOT);
    match child {
        "ebb" => {
            let pool = Pool::open(args.tree(), Options::frames(args.frames()));
            let pool = pool.map_err(|error| error.to_string())?;
            look_up(args, |key| {
                let copied = |bytes: &[u8]| bytes == value(key);
                tree.get(&pool, &key.to_be_bytes(), copied).is_ok_and(|right| right == Some(true))
            });
        }
        "mmap" => {
            let pages = pool_peers::map(&args.tree())?;
            look_up(args, |key| {
                let found = tree.get_in(|page| &pages[page.0 as usize], &key.to_be_bytes());
                found.is_some_and(|bytes| bytes == value(key))
            });
        }
        other => return Err(format!("there is no contender {other:?}")),
    }
    Ok(())
}

fn compare(args: &Args) -> Result<(), String> {
    fs::create_dir_all(&args.folder).map_err(|e| format!("{}: {e}", args.folder.display()))?;
    make_tree(args)?;
    let peers = Peers::new(args)?;
    let names: Vec<Peer> = peers.there(&args.only);
    let mut rows = Vec::new();
    for &threads in &args.threads {
        let mut samples: Vec<Vec<Measured>> = vec![Vec::new(); names.len()];
        for round in 0..args.rounds {
            for (peer, samples) in names.iter().zip(&mut samples) {
                let measured = peers.measure(*peer, args, threads)?;
                eprintln!(
                    "round {round}, {threads} threads, {}: {:.0} lookups/s, {:.1} us of CPU",
                    peer.name(),
                    measured.per_second,
                    measured.cpu_us
                );
                samples.push(measured);
            }
        }
        rows.push((threads, samples));
    }
    show(args, &names, &rows);
    Ok(())
}

fn show(args: &Args, names: &[Peer], rows: &[(usize, Vec<Vec<Measured>>)]) {
    let of = |samples: &[Measured], what: fn(&Measured) -> f64| {
        samples.iter().map(what).collect::<Vec<_>>()
    };
    if args.json {
        let rows: Vec<_> = rows
            .iter()
            .flat_map(|(threads, all)| {
                names.iter().zip(all).map(move |(peer, samples)| {
                    serde_json::json!({
                        "threads": threads,
                        "contender": peer.name(),
                        "lookups_per_s": of(samples, |m| m.per_second),
                        "cpu_us_per_lookup": of(samples, |m| m.cpu_us),
                    })
                })
            })
            .collect();
        let (gib, times) = (args.gib, args.times);
        println!(
            "{}",
            serde_json::json!({ "schema": 1, "gib": gib, "times": times, "rows": rows })
        );
        return;
    }
    println!("{} GiB, a tree {} times as large, {} rounds", args.gib, args.times, args.rounds);
    println!(
        "threads  contender  lookups/s [quartiles]            CPU us/lookup  ebb / it, round by round"
    );
    for (threads, all) in rows {
        let ebb = names.iter().position(|peer| *peer == Peer::Ebb).map(|at| &all[at]);
        for (peer, samples) in names.iter().zip(all) {
            let rate = Summary::of(&of(samples, |m| m.per_second)).expect("a round at least");
            let ratio = ebb.map(|ebb| {
                let ratios = ebb.iter().zip(samples).map(|(a, b)| a.per_second / b.per_second);
                Summary::of(&ratios.collect::<Vec<_>>()).expect("a round at least").show(2)
            });
            println!(
                "{threads:7}  {:9}  {:32} {:13.1}  {}",
                peer.name(),
                rate.show(0),
                median(&of(samples, |m| m.cpu_us)),
                ratio.unwrap_or_default()
            );
        }
    }
}
