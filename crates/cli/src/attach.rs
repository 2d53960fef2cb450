//! `ebb attach PID` puts a running process under a limit and gives it back in the end. `ebb detach
//! PID` asks the pager to give the process back.
//!
//! The supervisor runs beside the program until the run ends. It is not the program's parent.
//!
//! * ATTACH-1: `ebb attach` checks all conditions before it changes anything in the process. If the
//!   agent then cannot join, the process is as it was.
//! * ATTACH-2: the limit starts above the resident memory. It comes down step by step while the
//!   program runs, as with `ebb set`. Where a step stops on the way, the pager tries again
//!   (RESIZE-3 in `pager/src/monitor/resize.rs`).
//! * ATTACH-3: a signal to the supervisor, the supervisor's end and `ebb detach` have one effect.
//!   The process gets all of its memory back and goes on.

use crate::folder::Folder;
use crate::run::{self, FAILED, Refusal, Resources, Supervisor};
use crate::stat::{self, ask};
use crate::{doctor, exec};
use ebb_control::{Bound, Client, ControlError, Limits, Patience, Request};
use ebb_pager::{Config, SupervisorMessage, inject, shown};
use ebb_sys::proc;
use ebb_sys::process::Pidfd;
use rustix::event::{PollFd, PollFlags, poll};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Least distance, in bytes, of the first limit from the resident memory (ATTACH-2).
const ROOM_BYTES: u64 = 64 << 20;

#[derive(clap::Args)]
#[command(after_help = "\
The process keeps running while its limit comes down step by step. Ebb tries again with memory that cannot leave yet
(locked areas, a full tier), in the end once a minute. The process gets all of its memory back when this command ends
(Ctrl-C, kill, a crash), or by `ebb detach PID`. Processes that it starts later belong to the run, too; those that it
started before belong to it only with --tree (servers that fork early: PostgreSQL, nginx). Ebb attaches to programs of
glibc and of Go, dynamic or static. You must be permitted to trace the process (/proc/sys/kernel/yama/ptrace_scope 0, or
root). An attached process needs ebb's pager: if the pager is killed, the process dies with it.

SIZE and TIER are as for `ebb run`; `ebb ps`, `top`, `stat` and `set` take the PID of the process.

Exit status: 0 when the process has its memory back or has ended; 125 if ebb could not attach to it, and left it
unchanged, or if the pager failed.

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
    /// Put the existing descendants of the process under the limit, too
    #[arg(long)]
    tree: bool,
    /// Most resident memory of the process and all that it starts
    #[arg(long, value_name = "SIZE")]
    memory_max: String,
    /// Limit above which Ebb throttles the process and reclaims its pages [default: none]
    #[arg(long, value_name = "SIZE")]
    memory_high: Option<String>,
    /// Tiers for pages that do not fit [default: ram,file]
    #[arg(long, value_name = "TIER[,TIER...]")]
    swap: Option<String>,
    /// Tiers whose pages Ebb encrypts; it keeps the key in memory only [default: remote]
    #[arg(long, value_enum, value_name = "WHICH")]
    encrypt: Option<run::Encrypted>,
    /// Form of the report at the end [default: text]
    #[arg(long, value_enum)]
    report: Option<run::Report>,
    /// Write the report to FILE instead of standard error; -: to standard output
    #[arg(long, value_name = "FILE")]
    report_file: Option<PathBuf>,
    /// Print only errors on standard error, no report
    #[arg(short, long)]
    quiet: bool,
    /// Append each event to FILE as a line of JSON; -: to standard error
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
    /// Lower the limit from --memory-max until threads lose this share of the time waiting for
    /// memory, as 5%
    #[arg(long, value_name = "PERCENT")]
    pressure_target: Option<String>,
    /// Set a switch, as for `ebb run`
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(clap::Args)]
#[command(after_help = "\
The command returns when the process has all of its memory back. If there is no room for all of it, nothing changes.

Exit status: 0 when the process has its memory back; 1 if ebb could not give it back, or PID belongs to no attached run
of yours.

Examples:
  ebb detach 4711")]
pub struct DetachArguments {
    /// The attached process, or any process that it has started since
    #[arg(value_name = "PID")]
    pid: u32,
}

/// Gives a process back: the pager lifts the limit, returns all pages and leaves the process.
pub fn detach(arguments: &DetachArguments) -> ExitCode {
    match ask(arguments.pid, &Request::Detach, Patience::Endless) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            crate::tell(reason);
            ExitCode::FAILURE
        }
    }
}

/// Attaches to a process and stays beside it until it ends or is given back.
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
        Err(reason) => return refused((FAILED, reason.to_string())),
    };
    if let Some(reason) = doctor::why_not() {
        return refused((FAILED, reason));
    }
    let wanted = Config { tree, ..wanted };
    start(pid, &wanted, events.as_deref()).unwrap_or_else(refused)
}

/// Returns whether `/proc/PID/WHAT` leads to one and the same file for process `pid` and for this
/// process.
fn is_same(pid: u32, what: &str) -> bool {
    let of = |process: &str| {
        let found = fs::metadata(format!("/proc/{process}/{what}")).ok()?;
        Some((found.dev(), found.ino()))
    };
    of(&pid.to_string()) == of("self")
}

/// Why a process cannot be attached to.
#[derive(Debug, thiserror::Error)]
enum AttachError {
    /// The agent cannot join, for this reason of the pager.
    #[error("{0}")]
    NoAgent(String),
    #[error("it is in a run already (ebb ps); ebb set changes its limit")]
    InRun,
    #[error("process {0} traces it already (a debugger?); detach that first")]
    Traced(u32),
    #[error("it is stopped: kill -CONT {0}")]
    Stopped(u32),
    #[error(
        "it has other files (a container?) and cannot find the agent; start ebb inside: \
         nsenter -t {0} -m -p ebb attach ..."
    )]
    OtherFiles(u32),
}

/// Checks that process `pid` can be attached to (ATTACH-1).
fn check(pid: u32) -> Result<(), AttachError> {
    if let Some(reason) = inject::why_not_when_loaded(pid) {
        return Err(AttachError::NoAgent(reason));
    }
    if stat::supervisor_of(pid).is_ok() {
        return Err(AttachError::InRun);
    }
    if let Some(tracer) = proc::tracer(pid) {
        return Err(AttachError::Traced(tracer));
    }
    if matches!(proc::state(pid), Some('T' | 't')) {
        return Err(AttachError::Stopped(pid));
    }
    for what in ["ns/mnt", "root"] {
        if !is_same(pid, what) {
            return Err(AttachError::OtherFiles(pid));
        }
    }
    Ok(())
}

fn start(pid: u32, wanted: &Config, events: Option<&Path>) -> Result<ExitCode, Refusal> {
    let failed = |reason: String| (FAILED, reason);
    let cannot = |what: &str, error: std::io::Error| failed(format!("cannot {what}: {error}"));
    let events = events.map(ebb_pager::events::open).transpose();
    let events = events.map_err(|error| cannot("open the event file", error))?;
    let program = Pidfd::open(pid).map_err(|error| cannot("watch the process", error))?;
    let before = proc::children(pid);
    let members = if wanted.tree { with_all_below(pid) } else { vec![pid] };
    let resident =
        resident_bytes(&members).map_err(|error| cannot("measure the process", error))?;
    let Resources { signals, nothing, folder, .. } = Resources::prepare(pid)?;
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
    let supervisor = Supervisor::start(config, events, signals, &nothing);
    let mut supervisor = supervisor.map_err(|error| failed(error.to_string()))?;
    let cannot = |reason| failed(format!("process {pid}: {reason}; the process is unchanged"));
    permit_socket(&members, &folder);
    let told = SupervisorMessage::Attach(pid).send(&supervisor.socket);
    match told.and_then(|()| run::receive(&supervisor.socket, &supervisor.pager_life)) {
        Ok(SupervisorMessage::Ready) => {}
        Ok(SupervisorMessage::Failed(reason)) => return Err(cannot(explained(reason))),
        Ok(other) => {
            return Err(cannot(format!("the pager sent an unexpected message: {other:?}")));
        }
        Err(error) => return Err(cannot(format!("the pager ended: {error}"))),
    }
    lower_limit(&folder, wanted);
    let (socket, program) = (&folder.socket(), &program);
    let spared = if wanted.tree { &[] } else { &before[..] };
    watch(&mut supervisor, &Attached { pid, program, socket, spared })
}

/// The process that `ebb attach` attached to.
struct Attached<'a> {
    pid: u32,
    program: &'a Pidfd,
    socket: &'a Path,
    /// Children that the process had before the attach and that do not belong to the run.
    spared: &'a [u32],
}

fn command_line(pid: u32) -> Vec<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    shown(words.split(|&byte| byte == 0).filter(|word| !word.is_empty()))
}

/// Returns process `pid` and all of its descendants.
fn with_all_below(pid: u32) -> Vec<u32> {
    let (mut found, mut next) = (Vec::new(), vec![pid]);
    while let Some(pid) = next.pop() {
        found.push(pid);
        next.extend(proc::children(pid));
    }
    found
}

/// Returns the anonymous resident memory of `members`, in bytes. Returns an error only if the first
/// member cannot be measured. A page that several members share counts for each of them.
fn resident_bytes(members: &[u32]) -> std::io::Result<u64> {
    let of = |pid| proc::Statm::open(pid).and_then(|sizes| sizes.anonymous_pages());
    let (first, others) = members.split_first().expect("the process itself");
    let others: u64 = others.iter().filter_map(|&pid| of(pid).ok()).sum();
    Ok((of(*first)? + others) << 12)
}

/// Permits every user to connect to the socket if a member belongs to another user. Root may attach
/// to such a process. No other process knows the path of the socket.
fn permit_socket(members: &[u32], folder: &Folder) {
    let own = rustix::process::getuid().as_raw();
    let is_anothers =
        |pid: &u32| fs::metadata(format!("/proc/{pid}")).is_ok_and(|found| found.uid() != own);
    if members.iter().any(is_anothers) {
        // If this fails, the agent cannot join, and the pager reports that.
        let _ = fs::set_permissions(folder.socket(), PermissionsExt::from_mode(0o666));
    }
}

fn explained(reason: String) -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let not_permitted = reason.contains("Operation not permitted");
    if reason.contains("join") && (not_permitted || reason.contains("Permission denied")) {
        return format!(
            "{reason}: its user may not create a userfaultfd; run `ebb doctor` as that user to see the remedy"
        );
    }
    if not_permitted && !matches!(scope.trim(), "" | "0") {
        return format!(
            "{reason}: you may not trace it; as root: sysctl kernel.yama.ptrace_scope=0, or sudo ebb attach"
        );
    }
    if not_permitted {
        return format!(
            "{reason}: you may not trace it (another user's process, or one that forbids it); try as root"
        );
    }
    reason
}

/// Starts a thread that asks the pager to lower the limit to the wanted one (ATTACH-2). The thread
/// reports if the limit cannot come down yet.
fn lower_limit(folder: &Folder, wanted: &Config) {
    let socket = folder.socket();
    let request = Request::Limits(Limits {
        max: Some(wanted.memory_max_bytes),
        high: wanted.memory_high_bytes.map(Bound::Bytes),
        keep: true,
        ..Limits::default()
    });
    std::thread::spawn(move || {
        // A run that has ended needs no message.
        let Ok(client) = Client::connect(&socket, Patience::Endless) else { return };
        if let Err(ControlError::NotDone(reason)) = client.ask::<()>(&request, Patience::Endless) {
            crate::tell(reason);
        }
    });
}

/// Waits until all descendants of the ended program have ended, or until a signal comes. Meanwhile
/// the pager keeps paging the descendants. After a signal the supervisor ends, and the pager gives
/// the processes back.
fn await_others(supervisor: &mut Supervisor, attached: &Attached) -> Result<ExitCode, Refusal> {
    loop {
        let mut waiting = [
            PollFd::new(&supervisor.socket, PollFlags::IN),
            PollFd::new(&supervisor.pager_life, PollFlags::IN),
            PollFd::new(&supervisor.signals, PollFlags::IN),
        ];
        // An interrupted poll counts as a wake-up.
        let _ = poll(&mut waiting, None);
        let [spoke, life, signal] = waiting.map(|fd| !fd.revents().is_empty());
        if spoke || life {
            return match run::receive(&supervisor.socket, &supervisor.pager_life) {
                Ok(_) => Ok(ExitCode::SUCCESS),
                Err(_) => Err(pager_ended(supervisor, attached)),
            };
        }
        if signal && supervisor.is_to_end() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn pager_ended(supervisor: &mut Supervisor, attached: &Attached) -> Refusal {
    let &Attached { pid, program, socket, spared } = attached;
    exec::kill(supervisor, pid, program, socket, spared.to_vec());
    supervisor.note_pager_ended(pid);
    let limited = run::limit_of_time();
    (FAILED, format!("the pager ended before the process{limited}; ebb killed the process"))
}

/// Waits until the program ends or is given back.
fn watch(supervisor: &mut Supervisor, attached: &Attached) -> Result<ExitCode, Refusal> {
    let &Attached { pid, program, .. } = attached;
    loop {
        let mut waiting = [
            PollFd::new(program, PollFlags::IN),
            PollFd::new(&supervisor.socket, PollFlags::IN),
            PollFd::new(&supervisor.pager_life, PollFlags::IN),
            PollFd::new(&supervisor.signals, PollFlags::IN),
        ];
        // An interrupted poll counts as a wake-up.
        let _ = poll(&mut waiting, None);
        let [ended, spoke, life, signal] = waiting.map(|fd| !fd.revents().is_empty());
        if spoke || life {
            return Err(pager_ended(supervisor, attached));
        }
        if ended {
            // A send error means that the pager has ended. `await_others` notices that.
            let _ = SupervisorMessage::Left(exec::status(pid, program)).send(&supervisor.socket);
            return await_others(supervisor, attached);
        }
        if signal && supervisor.is_to_end() {
            let told = SupervisorMessage::Detach.send(&supervisor.socket);
            match told.and_then(|()| run::receive(&supervisor.socket, &supervisor.pager_life)) {
                Ok(SupervisorMessage::Failed(reason)) => {
                    crate::tell(format_args!(
                        "cannot give process {pid} back: {reason}; it stays within its limit"
                    ));
                }
                Ok(_) => return Ok(ExitCode::SUCCESS),
                Err(error) => return Err((FAILED, format!("the pager ended: {error}"))),
            }
        }
    }
}
