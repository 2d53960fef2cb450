//! Builds, starts and measures the contenders of `versus-pool` as programs.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ebb_bench::kernel::Cgroup;

use super::Args;

/// Memory of a program beside the memory that is compared: text, stacks, page tables.
const BESIDE_BYTES: u64 = 32 << 20;

/// A contender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    Ebb,
    Mmap,
    Lmdb,
    Vmcache,
}

impl Peer {
    const ALL: [Self; 4] = [Self::Ebb, Self::Mmap, Self::Lmdb, Self::Vmcache];

    /// Returns the name of the contender.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ebb => "ebb",
            Self::Mmap => "mmap",
            Self::Lmdb => "lmdb",
            Self::Vmcache => "vmcache",
        }
    }
}

/// Result of one run of a contender.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Lookups each second.
    pub per_second: f64,
    /// Processor time of each lookup, in microseconds.
    pub cpu_us: f64,
}

/// The available contenders.
pub struct Peers {
    lmdb: Option<PathBuf>,
    vmcache: Option<PathBuf>,
}

impl Peers {
    /// Builds LMDB's program, and checks that vmcache's exists.
    pub fn new(args: &Args) -> Result<Self, String> {
        let wanted = |peer: Peer| args.only.iter().any(|name| name == peer.name());
        let vmcache = args.vmcache.clone().filter(|_| wanted(Peer::Vmcache));
        if let Some(missing) = vmcache.as_ref().filter(|path| !path.exists()) {
            return Err(format!("{}: there is no such program", missing.display()));
        }
        let lmdb = if wanted(Peer::Lmdb) { Some(build_lmdb(args)?) } else { None };
        Ok(Self { lmdb, vmcache })
    }

    /// Returns the contenders of `only` that can be measured.
    pub fn there(&self, only: &[String]) -> Vec<Peer> {
        let there = |peer: &Peer| match peer {
            Peer::Ebb | Peer::Mmap => true,
            Peer::Lmdb => self.lmdb.is_some(),
            Peer::Vmcache => self.vmcache.is_some(),
        };
        let wanted = |peer: &Peer| only.iter().any(|name| name == peer.name());
        Peer::ALL.into_iter().filter(there).filter(wanted).collect()
    }

    /// Runs a contender.
    pub fn measure(&self, peer: Peer, args: &Args, threads: usize) -> Result<Measured, String> {
        sync_disks()?;
        let limit = match peer {
            Peer::Mmap | Peer::Lmdb => {
                let cgroup = Cgroup::new(Some((args.gib << 30) + BESIDE_BYTES));
                Some(cgroup.map_err(|error| error.to_string())?)
            }
            Peer::Ebb | Peer::Vmcache => None,
        };
        let mut command = self.command(peer, args, threads, limit.as_ref())?;
        command.stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", peer.name()))?;
        let measured = watch(&mut child, args, peer);
        let _ = child.kill();
        let _ = child.wait();
        measured
    }

    /// Returns the command that starts a contender.
    fn command(
        &self,
        peer: Peer,
        args: &Args,
        threads: usize,
        within: Option<&Cgroup>,
    ) -> Result<Command, String> {
        let (seconds, records) = (args.warm + args.seconds, args.records().to_string());
        Ok(match peer {
            Peer::Ebb | Peer::Mmap => {
                let this = std::env::current_exe().map_err(|error| error.to_string())?;
                let mut command = start(&this, within);
                command.args(["--child", peer.name()]).arg("--folder").arg(&args.folder);
                let (gib, times) = (args.gib.to_string(), args.times.to_string());
                command.args(["--gib", &gib, "--times", &times, "--threads", &threads.to_string()]);
                let (warm, counted) = (args.warm.to_string(), args.seconds.to_string());
                command.args(["--warm", &warm, "--seconds", &counted]);
                command
            }
            Peer::Lmdb => {
                let mut command = start(self.lmdb.as_ref().expect("it was built"), within);
                command.args([&lmdb_file(args), "run", &records]);
                command.args([threads.to_string(), seconds.to_string()]);
                command
            }
            Peer::Vmcache => {
                let block = args.folder.join("vmcache");
                let bytes = 2 * args.times * (args.gib << 30);
                File::create(&block)
                    .and_then(|file| file.set_len(bytes))
                    .map_err(|error| format!("{}: {error}", block.display()))?;
                let mut command = start(self.vmcache.as_ref().expect("it was given"), within);
                command.env("BLOCK", block).env("RNDREAD", "1").env("DATASIZE", records);
                command.env("VIRTGB", (args.gib * args.times * 2).to_string());
                command.env("PHYSGB", args.gib.to_string());
                command.env("THREADS", threads.to_string()).env("RUNFOR", seconds.to_string());
                command
            }
        })
    }
}

/// Returns the command of a program, in a cgroup if one is given.
fn start(program: &Path, within: Option<&Cgroup>) -> Command {
    let Some(cgroup) = within else { return Command::new(program) };
    let mut command = Command::new("sh");
    let enter = format!("echo $$ > '{}/cgroup.procs' && exec \"$@\"", cgroup.folder.display());
    command.args(["-c", &enter, "sh"]).arg(program);
    command
}

/// Syncs the disks, so that a contender's writes do not burden the next one.
fn sync_disks() -> Result<(), String> {
    Command::new("sync").status().map(drop).map_err(|error| format!("sync: {error}"))
}

/// Reads the line that the contender prints each second. Measures the contender's processor time
/// over the lines that count.
fn watch(child: &mut Child, args: &Args, peer: Peer) -> Result<Measured, String> {
    let ended = || format!("{} ended before its time", peer.name());
    let stat = PathBuf::from(format!("/proc/{}/stat", child.id()));
    let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let (mut seen, mut lookups, mut from) = (0, 0, 0.0);
    for line in lines {
        let line = line.map_err(|error| error.to_string())?;
        let mut cells = line.split(',');
        let second = cells.next().and_then(|cell| cell.parse::<usize>().ok());
        // vmcache prints a line of headings.
        let Some(_) = second else { continue };
        let count = cells.next().and_then(|cell| cell.parse::<u64>().ok()).ok_or_else(ended)?;
        seen += 1;
        if seen == args.warm {
            from = cpu_seconds(&stat)?;
        } else if seen > args.warm {
            lookups += count;
        }
        if seen == args.warm + args.seconds {
            // vmcache ends with its last line, and then its processor time is not available.
            let cpu = cpu_seconds(&stat).unwrap_or(f64::NAN) - from;
            let per_second = lookups as f64 / args.seconds as f64;
            return Ok(Measured { per_second, cpu_us: cpu * 1e6 / lookups as f64 });
        }
    }
    Err(ended())
}

/// Returns the processor time of a process, in seconds.
fn cpu_seconds(stat: &Path) -> Result<f64, String> {
    let text = fs::read_to_string(stat).map_err(|error| format!("{}: {error}", stat.display()))?;
    let after_name = text.rsplit(')').next().unwrap_or_default();
    // utime and stime are fields 14 and 15. The first two fields end with the name.
    let ticks = after_name.split_ascii_whitespace().skip(11).take(2);
    let ticks: Option<Vec<f64>> = ticks.map(|cell| cell.parse().ok()).collect();
    let ticks = ticks.ok_or_else(|| format!("{}: unexpected contents", stat.display()))?;
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

fn lmdb_file(args: &Args) -> String {
    args.folder.join(format!("lmdb-{}", args.records())).to_string_lossy().into_owned()
}

/// Compiles LMDB's program, and creates its file unless it exists.
fn build_lmdb(args: &Args) -> Result<PathBuf, String> {
    let program = args.folder.join("lmdb");
    let source = args.folder.join("lmdb.c");
    fs::write(&source, include_str!("../peers/lmdb.c")).map_err(|error| error.to_string())?;
    let mut cc = Command::new("cc");
    cc.arg("-O3").arg(&source).arg("-o").arg(&program).args(["-llmdb", "-lpthread"]);
    let compiled = cc.status();
    if !compiled.is_ok_and(|status| status.success()) {
        let without = "leave it out by --only ebb,mmap,vmcache";
        return Err(format!("lmdb.c cannot be built: install cc and liblmdb-dev, or {without}"));
    }
    let file = lmdb_file(args);
    if !Path::new(&file).exists() {
        eprintln!("versus-pool: makes LMDB's file");
        let part = format!("{file}-part");
        let _ = fs::remove_file(&part);
        let loaded =
            Command::new(&program).args([&part, "load", &args.records().to_string()]).status();
        if !loaded.is_ok_and(|status| status.success()) {
            return Err("cannot make LMDB's file".into());
        }
        fs::rename(&part, &file).map_err(|error| error.to_string())?;
    }
    Ok(program)
}

/// Drops a file from the page cache, and maps the file.
pub fn map(path: &Path) -> Result<Pages, String> {
    let error = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::open(path).map_err(error)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| error(e.into()))?;
    // SAFETY: no other program writes to the file of a benchmark.
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(error)?;
    // A program that reads random pages switches the kernel's readahead off.
    map.advise(memmap2::Advice::Random).map_err(error)?;
    Ok(Pages(map))
}

/// The pages of a file.
pub struct Pages(memmap2::Mmap);

impl std::ops::Deref for Pages {
    type Target = [[u8; 4096]];

    fn deref(&self) -> &Self::Target {
        self.0.as_chunks().0
    }
}
