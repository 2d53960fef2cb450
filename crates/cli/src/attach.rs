//! `ebb attach PID`: what runs already is put under a limit, and given back in the end. `ebb detach PID` asks for that.
//!
//! The front stays beside the program, of which it is no parent, until either ends.
//!
//! * ATTACH-1: nothing is done to the process before all that could be wrong has been looked at; if its agent then cannot join
//!   it is as it was.
//! * ATTACH-2: the limit begins above what is in memory and comes down step by step while the program goes on, as by `ebb set`;
//!   where it stops on the way it is tried again (RESIZE-3 in `pager/src/resize.rs`).
//! * ATTACH-3: a signal to the front, its end and `ebb detach` are the same: the process gets all of its memory back and goes on.

use crate::folder::Folder;
use crate::line::{connect, converse};
use crate::run::{self, FAILED, Front, Ground, Refusal};
use crate::stat::{self, ask};
use crate::{doctor, exec};
use ebb_agent::protocol::GREET_SET;
use ebb_pager::patience::Patience;
use ebb_pager::{Config, DETACH, FrontMessage, REFUSED, inject, shown};
use ebb_sys::proc;
use ebb_sys::process::Pidfd;
use rustix::event::{PollFd, PollFlags, poll};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Room above what is in memory when the limit begins to come down (ATTACH-2).
const ROOM_BYTES: u64 = 64 << 20;

#[derive(clap::Args)]
#[command(after_help = "\
The process goes on all the while; its limit comes down step by step, and what cannot leave yet (locked areas, a full
tier) is tried again, each minute at last. It gets its memory back, whole, when this command is ended (Ctrl-C, kill), by
`ebb detach PID`, or should ebb die. What it starts from then on is paged as well, what it had started before only with
--tree (servers that fork early: PostgreSQL, nginx). Programs of glibc and of Go are taken, loaded or static; it must be
yours to trace (/proc/sys/kernel/yama/ptrace_scope 0, or root). While it is attached it needs ebb's pager: if that is
killed the process dies with it.

SIZE and TIER are as for `ebb run`; `ebb ps`, `top`, `stat` and `set` take the process's number.

Exit status: 0 when it was given back or has ended; 125 if it could not be attached to, and is as it was.

Examples:
  ebb attach $(pgrep -x redis-server) --memory-max 1G
  ebb attach 4711 --memory-max 2G --swap ram,file:/var/tmp:8G --report-file cost.txt
  ebb attach 4711 --memory-max 8G --pressure-target 5%
  ebb attach --tree $(head -1 /var/lib/postgresql/15/main/postmaster.pid) --memory-max 4G
  ebb detach 4711")]
pub struct Arguments {
    /// The process
    #[arg(value_name = "PID")]
    pid: u32,
    /// What it had started before, and those in turn, are under the limit as well
    #[arg(long)]
    tree: bool,
    /// Most memory that it and all it starts may have resident
    #[arg(long, value_name = "SIZE")]
    memory_max: String,
    /// Above this it is slowed down, and reclaim brings it back [default: none]
    #[arg(long, value_name = "SIZE")]
    memory_high: Option<String>,
    /// Where pages go that do not fit [default: ram,file]
    #[arg(long, value_name = "TIER[,TIER...]")]
    swap: Option<String>,
    /// Which tiers get pages encrypted, under a key that is in memory alone [default: remote]
    #[arg(long, value_enum, value_name = "WHICH")]
    encrypt: Option<run::Encrypted>,
    /// Form of the report at the end [default: text]
    #[arg(long, value_enum)]
    report: Option<run::Report>,
    /// Write the report there instead of standard error; -: to standard output
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// No report on standard error; what is wrong is still said there
    #[arg(short, long)]
    quiet: bool,
    /// Append what happens to FILE, a line of JSON each; -: to standard error
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Find the limit that keeps the time lost to waiting for memory at this share, as 5%, from --memory-max downwards
    #[arg(long, value_name = "PERCENT")]
    pressure_target: Option<String>,
    /// A switch, as for `ebb run`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Returns when it has all of its memory back. What could not come back (there is no room for it) leaves all as it was.

Exit status: 0 when it is so; 1 if PID is of no run of yours that was attached to, or it could not be.

Examples:
  ebb detach 4711")]
pub struct DetachArguments {
    /// The process that was attached to, or any that it has started since
    #[arg(value_name = "PID")]
    pid: u32,
}

/// Gives a process back.
pub fn detach(arguments: &DetachArguments) -> ExitCode {
    let refused = |reason: String| {
        crate::tell(reason);
        ExitCode::FAILURE
    };
    match ask(arguments.pid, GREET_SET, DETACH) {
        Ok(answer) => match answer.strip_prefix(REFUSED) {
            Some(reason) => refused(reason.to_owned()),
            None => ExitCode::SUCCESS,
        },
        Err(reason) => refused(reason),
    }
}

/// Attaches to a process, and stays with it.
pub fn attach(arguments: Arguments) -> ExitCode {
    let refused = |(status, reason): Refusal| {
        crate::tell(reason);
        ExitCode::from(status)
    };
    let (pid, tree) = (arguments.pid, arguments.tree);
    if let Err(reason) = check(pid) {
        return refused((FAILED, format!("process {pid}: {reason}")));
    }
    let events = arguments.events.clone();
    let wanted = match run::configure(&run::Arguments {
        memory_max: Some(arguments.memory_max),
        memory_high: arguments.memory_high,
        swap: arguments.swap,
        encrypt: arguments.encrypt,
        report: arguments.report,
        report_file: arguments.report_file,
        quiet: Some(arguments.quiet),
        events: arguments.events,
        pressure_target: arguments.pressure_target,
        set: arguments.set,
        ..run::Arguments::default()
    }) {
        Ok(config) => config,
        Err(reason) => return refused((FAILED, reason)),
    };
    if let Some(reason) = doctor::why_not() {
        return refused((FAILED, reason));
    }
    let wanted = Config { tree, ..wanted };
    start(pid, &wanted, events.as_deref()).unwrap_or_else(refused)
}

/// Whether what `/proc/PID/WHAT` leads to is the same for process `pid` and this one.
fn is_same(pid: u32, what: &str) -> bool {
    let of = |process: &str| {
        let found = fs::metadata(format!("/proc/{process}/{what}")).ok()?;
        Some((found.dev(), found.ino()))
    };
    of(&pid.to_string()) == of("self")
}

/// Whether it may be attached to (ATTACH-1).
fn check(pid: u32) -> Result<(), String> {
    if let Some(reason) = inject::why_not_when_loaded(pid) {
        return Err(reason);
    }
    if stat::front_of(pid).is_ok() {
        return Err("it is in a run already (ebb ps); ebb set changes its limit".into());
    }
    if let Some(tracer) = proc::tracer(pid) {
        return Err(format!("it is being traced, by process {tracer} (a debugger?)"));
    }
    if matches!(proc::state(pid), Some('T' | 't')) {
        return Err(format!("it is stopped: kill -CONT {pid}"));
    }
    for what in ["ns/mnt", "root"] {
        if !is_same(pid, what) {
            let way = format!("nsenter -t {pid} -m -p ebb attach ...");
            return Err(format!(
                "it sees other files (a container?), and would not find ebb's; start ebb in there ({way})"
            ));
        }
    }
    Ok(())
}

fn start(pid: u32, wanted: &Config, events: Option<&Path>) -> Result<ExitCode, Refusal> {
    let failed = |reason: String| (FAILED, reason);
    let cannot = |what: &str, error: std::io::Error| failed(format!("cannot {what}: {error}"));
    let events = events.map(ebb_pager::events::open).transpose();
    let events = events.map_err(|error| cannot("open the file of events", error))?;
    let program = Pidfd::open(pid).map_err(|error| cannot("watch the process", error))?;
    let before = proc::children(pid);
    let members = if wanted.tree { with_all_below(pid) } else { vec![pid] };
    let resident =
        resident_bytes(&members).map_err(|error| cannot("measure the process", error))?;
    let Ground { signals, nothing, folder, .. } = Ground::lay(pid)?;
    let config = Config {
        socket: folder.socket(),
        root: Some(pid),
        attached: true,
        eager: true,
        memory_max_bytes: wanted.memory_max_bytes.max(resident + resident / 8 + ROOM_BYTES),
        memory_high_bytes: None,
        command: command_line(pid),
        ..wanted.clone()
    };
    let mut front = Front::start(config, events, signals, &nothing).map_err(failed)?;
    let cannot = |reason| failed(format!("process {pid}: {reason}; it is as it was"));
    open_to(&members, &folder);
    let told = FrontMessage::Attach(pid).send(&front.socket);
    match told.and_then(|()| run::hear(&front.socket, &front.pager_life)) {
        Ok(FrontMessage::Ready) => {}
        Ok(FrontMessage::Failed(reason)) => return Err(cannot(explained(reason))),
        Ok(other) => return Err(cannot(format!("the pager said {other:?}"))),
        Err(error) => return Err(cannot(format!("the pager ended: {error}"))),
    }
    come_down(&folder, wanted);
    let (socket, program) = (&folder.socket(), &program);
    let spared = if wanted.tree { &[] } else { &before[..] };
    watch(&mut front, &Attached { pid, program, socket, spared })
}

/// What was attached to.
struct Attached<'a> {
    pid: u32,
    program: &'a Pidfd,
    socket: &'a Path,
    /// What it had started before, if that is none of the run.
    spared: &'a [u32],
}

fn command_line(pid: u32) -> Vec<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    shown(words.split(|&byte| byte == 0).filter(|word| !word.is_empty()))
}

/// A process and all that it has started, and those in turn.
fn with_all_below(pid: u32) -> Vec<u32> {
    let (mut found, mut next) = (Vec::new(), vec![pid]);
    while let Some(pid) = next.pop() {
        found.push(pid);
        next.extend(proc::children(pid));
    }
    found
}

/// What the first of them has in memory, and the others as far as they are there: pages that several share count for each.
fn resident_bytes(members: &[u32]) -> std::io::Result<u64> {
    let of = |pid| proc::Statm::open(pid).and_then(|sizes| sizes.anonymous_pages());
    let (first, others) = members.split_first().expect("the process itself");
    let others: u64 = others.iter().filter_map(|&pid| of(pid).ok()).sum();
    Ok((of(*first)? + others) << 12)
}

/// Another user's process, which root may attach to, reaches the socket; its place is known to nobody else.
fn open_to(members: &[u32], folder: &Folder) {
    let own = rustix::process::getuid().as_raw();
    let is_anothers =
        |pid: &u32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() != own);
    if members.iter().any(is_anothers) {
        // If that cannot be its agent cannot join, which is told.
        let _ = fs::set_permissions(folder.socket(), PermissionsExt::from_mode(0o666));
    }
}

fn explained(reason: String) -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let not_permitted = reason.contains("Operation not permitted");
    if reason.contains("join") && (not_permitted || reason.contains("Permission denied")) {
        return format!(
            "{reason}: its user may make no userfaultfd; `ebb doctor`, run as that user, says how to permit it"
        );
    }
    if not_permitted && !matches!(scope.trim(), "" | "0") {
        return format!(
            "{reason}: it may not be traced; as root: sysctl kernel.yama.ptrace_scope=0, or sudo ebb attach"
        );
    }
    if not_permitted {
        return format!(
            "{reason}: it may not be traced (another user's, or one that hides itself); try as root"
        );
    }
    reason
}

/// Has the limit come down to what is wanted (ATTACH-2), and says so if it cannot yet.
fn come_down(folder: &Folder, wanted: &Config) {
    let socket = folder.socket();
    let high = wanted.memory_high_bytes.map(|bytes| format!(" memory.high={bytes}"));
    let request =
        format!("memory.max={} keep=1{}", wanted.memory_max_bytes, high.unwrap_or_default());
    std::thread::spawn(move || {
        let line = loop {
            match connect(&socket, Patience::Answer) {
                Ok(line) => break line,
                Err(error) if error.kind() == ErrorKind::TimedOut => {}
                // The run has ended.
                Err(_) => return,
            }
        };
        let answer = converse(&line, GREET_SET, &request, None).unwrap_or_default();
        if let Some(reason) = answer.strip_prefix(REFUSED) {
            crate::tell(reason);
        }
    });
}

/// What the program has started goes on being paged until all of that has ended, or a signal comes: the pager, left alone,
/// gives it back.
fn await_others(front: &mut Front, attached: &Attached) -> Result<ExitCode, Refusal> {
    loop {
        let mut waiting = [
            PollFd::new(&front.socket, PollFlags::IN),
            PollFd::new(&front.pager_life, PollFlags::IN),
            PollFd::new(&front.signals, PollFlags::IN),
        ];
        // Interrupted is as good as woken.
        let _ = poll(&mut waiting, None);
        let [spoke, life, signal] = waiting.map(|fd| !fd.revents().is_empty());
        if spoke || life {
            return match run::hear(&front.socket, &front.pager_life) {
                Ok(_) => Ok(ExitCode::SUCCESS),
                Err(_) => Err(pager_ended(front, attached)),
            };
        }
        if signal && front.is_to_end() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn pager_ended(front: &mut Front, attached: &Attached) -> Refusal {
    let &Attached { pid, program, socket, spared } = attached;
    exec::kill(front, pid, program, socket, spared.to_vec());
    front.note_pager_ended(pid);
    let limited = run::limit_of_time();
    (FAILED, format!("the pager ended before the process{limited}, which was killed"))
}

/// Until the program ends, or is given back.
fn watch(front: &mut Front, attached: &Attached) -> Result<ExitCode, Refusal> {
    let &Attached { pid, program, .. } = attached;
    loop {
        let mut waiting = [
            PollFd::new(program, PollFlags::IN),
            PollFd::new(&front.socket, PollFlags::IN),
            PollFd::new(&front.pager_life, PollFlags::IN),
            PollFd::new(&front.signals, PollFlags::IN),
        ];
        // Interrupted is as good as woken.
        let _ = poll(&mut waiting, None);
        let [ended, spoke, life, signal] = waiting.map(|fd| !fd.revents().is_empty());
        if spoke || life {
            return Err(pager_ended(front, attached));
        }
        if ended {
            // If the pager is gone there is nothing left to be seen to.
            let _ = FrontMessage::Left(exec::status(pid, program)).send(&front.socket);
            return await_others(front, attached);
        }
        if signal && front.is_to_end() {
            let told = FrontMessage::Detach.send(&front.socket);
            match told.and_then(|()| run::hear(&front.socket, &front.pager_life)) {
                Ok(FrontMessage::Failed(reason)) => {
                    crate::tell(format_args!(
                        "process {pid} cannot be given back: {reason}; it stays within its limit"
                    ));
                }
                Ok(_) => return Ok(ExitCode::SUCCESS),
                Err(error) => return Err((FAILED, format!("the pager ended: {error}"))),
            }
        }
    }
}
