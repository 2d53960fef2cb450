//! `ebb run --exec`: the program replaces the process that was started, as with `nice` or
//! `setpriv`.
//!
//! The supervisor and the pager start before the program and apart from it. The supervisor is no
//! child of the program, so the program's calls of wait(2) return only its own children. The
//! supervisor has a session of its own, which no key of the terminal reaches.
//!
//! * EXEC-1: of the program's descriptors the supervisor keeps only standard error, for error
//!   messages. It passes no signals on, because the program gets its signals itself.
//! * EXEC-2: the program starts only when the pager is ready. If the program then cannot be
//!   executed, nothing is left behind when the error message appears.
//! * EXEC-3: if the program, the supervisor or the pager dies, the other two notice. The supervisor
//!   polls descriptors of both others, and the pager polls its connection to the supervisor. No
//!   process is identified by a PID alone, because a PID can be reused.

use crate::folder::Folder;
use crate::run::{self, FAILED, Outputs, Refusal, Resources, Supervisor, limit_of_time};
use ebb_agent::protocol::ENV_SOCKET;
use ebb_pager::patience::Patience;
use ebb_pager::{Config, SupervisorMessage};
use ebb_sys::process::{self, Pidfd};
use ebb_sys::socket::Socket;
use ebb_sys::{inherited, proc, signals};
use rustix::event::{PollFd, PollFlags, poll};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Number of times that [`kill`] looks for remaining processes and kills them.
const KILLS: u32 = 100;

/// Starts the supervisor as another process, and replaces this process by the program. Returns in
/// the supervisor, and after a failure also in this process.
pub fn start(
    config: Config,
    outputs: Outputs,
    path: &Path,
    words: &[OsString],
    inherited: Vec<OwnedFd>,
) -> Result<ExitCode, Refusal> {
    let failed = |reason: String| (FAILED, reason);
    let own = std::process::id();
    if own == 1 {
        return Err(failed(
            "--exec: this is process 1, and its end ends all others, the pager too; leave --exec out: `ebb run` \
             passes signals on and adopts orphans, as process 1 must"
                .into(),
        ));
    }
    let resources = Resources::prepare(own)?;
    let config = Config { socket: resources.folder.socket(), root: Some(own), ..config };
    let pool_bytes = config.pool_bytes;
    let cannot = |what: &str, error| failed(format!("cannot {what}: {error}"));
    let program = Pidfd::open(own).map_err(|error| cannot("watch the program", error))?;
    let (line, other) = Socket::pair().map_err(|error| cannot("make a socket", error))?;
    if process::double_fork().map_err(|error| cannot("start the supervisor", error))? {
        drop((line, inherited));
        return Ok(watch(config, outputs, resources, own, &program, other));
    }
    drop((other, program, outputs));
    let Resources { signals, limits, nothing, folder } = resources;
    match SupervisorMessage::receive(&line) {
        Ok(SupervisorMessage::Ready) => {}
        Ok(SupervisorMessage::Failed(reason)) => return Err(failed(reason)),
        _ => return Err(failed("the supervisor ended before the program started".into())),
    }
    drop((signals, nothing));
    // The supervisor removes the folder.
    let folder = std::mem::ManuallyDrop::new(folder);
    let refusal = replace(path, words, &folder, pool_bytes, limits);
    // EXEC-2: this process tells the supervisor and waits for the end of the connection. So the
    // supervisor cleans up before the error is reported.
    let _ = SupervisorMessage::Failed(refusal.1.clone()).send(&line);
    let _ = SupervisorMessage::receive(&line);
    Err(refusal)
}

/// Executes the program in place of this process. Returns only if that fails.
fn replace(
    path: &Path,
    words: &[OsString],
    folder: &Folder,
    pool_bytes: u64,
    limits: ebb_sys::limits::Limits,
) -> Refusal {
    let mut command = run::command(path, words, folder, pool_bytes);
    process::hand_over(&mut command);
    limits.keep_for(&mut command);
    run::not_started(path, &command.exec())
}

/// Runs the supervisor until the run has ended.
fn watch(
    config: Config,
    outputs: Outputs,
    resources: Resources,
    pid: u32,
    program: &Pidfd,
    line: Socket,
) -> ExitCode {
    let Resources { signals, nothing, folder, .. } = resources;
    let socket = config.socket.clone();
    // Children that the process had before do not belong to the run.
    let before = proc::children(pid);
    let supervisor = Supervisor::start(config, outputs.events, signals, &nothing);
    inherited::leave_streams(&nothing);
    let mut supervisor = match supervisor {
        Ok(supervisor) => supervisor,
        Err(reason) => {
            drop(folder);
            // A failed send means that the process has ended already.
            let _ = SupervisorMessage::Failed(reason.to_string()).send(&line);
            return ExitCode::from(FAILED);
        }
    };
    let _ = SupervisorMessage::Ready.send(&line);
    if let Ok(failed) = SupervisorMessage::receive(&line) {
        // The program could not be executed. If this message does not reach the pager, the pager
        // ends when its connection closes.
        let Supervisor { mut pager, socket, .. } = supervisor;
        let _ = failed.send(&socket);
        drop(socket);
        let _ = pager.wait();
        drop(folder);
        return ExitCode::from(FAILED);
    }
    drop(line);
    // If this message does not reach the pager, the pager ends when its connection closes.
    let _ = SupervisorMessage::Running(pid).send(&supervisor.socket);
    // Start this thread only now, because a process must have one thread when it forks.
    if let Some(listener) = outputs.metrics {
        run::serve_metrics(listener, socket.clone());
    }
    let ended = follow(&mut supervisor, pid, program);
    if ended.is_ok() {
        // The pager has written its report and is about to end. No other process waits for it.
        let _ = supervisor.pager.wait();
    } else {
        kill(&supervisor, pid, program, &socket, before);
        supervisor.note_pager_ended(pid);
        let limited = limit_of_time();
        crate::tell(format_args!(
            "the pager ended before the program{limited}; ebb killed the program"
        ));
    }
    ExitCode::SUCCESS
}

/// Watches the program until its whole run has ended. Returns an error if the pager ends before
/// that.
fn follow(supervisor: &mut Supervisor, pid: u32, program: &Pidfd) -> std::io::Result<()> {
    let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    loop {
        let mut waiting = [
            PollFd::new(program, PollFlags::IN),
            PollFd::new(&supervisor.socket, PollFlags::IN),
            PollFd::new(&supervisor.pager_life, PollFlags::IN),
        ];
        // An interrupted poll counts as a wake-up.
        let _ = poll(&mut waiting, None);
        let [ended, spoke, life] = waiting.map(|fd| !fd.revents().is_empty());
        if spoke || life {
            return Err(gone());
        }
        if ended {
            break;
        }
    }
    SupervisorMessage::Left(status(pid, program)).send(&supervisor.socket)?;
    run::receive(&supervisor.socket, &supervisor.pager_life).map(drop)
}

/// Returns the program's exit status as a shell shows it, or `None` where it cannot be known.
pub fn status(pid: u32, program: &Pidfd) -> Option<i32> {
    let mut status = None;
    Patience::Status.sees(|pause| match program.exit_status() {
        Ok(None) => {
            std::thread::sleep(pause);
            false
        }
        known => {
            status = known.ok().flatten();
            true
        }
    });
    status.or_else(|| proc::status_of_ended(pid)).map(signals::shown)
}

/// Kills the processes of a run whose pager has ended. Agents kill their own processes. This
/// function kills the others, including processes that do not have an agent yet.
pub fn kill(
    supervisor: &Supervisor,
    pid: u32,
    program: &Pidfd,
    socket: &Path,
    mut spared: Vec<u32>,
) {
    spared.extend([std::process::id(), supervisor.pager.id()]);
    for _ in 0..KILLS {
        let mut left = Vec::new();
        let sees = |look: &mut dyn FnMut(Duration) -> bool| Patience::Files.sees(look);
        let mut next = proc::started_with(ENV_SOCKET, socket.as_os_str(), sees);
        let mapping = |folder| proc::mapping_of(folder, sees);
        next.extend(socket.parent().map(mapping).unwrap_or_default());
        if !program.has_ended() {
            next.push(pid);
        }
        while let Some(pid) = next.pop() {
            if !spared.contains(&pid) && !left.contains(&pid) {
                next.extend(proc::children(pid));
                left.push(pid);
            }
        }
        let _ = program.send(signals::SIGKILL);
        left.retain(|&pid| !matches!(proc::state(pid), None | Some('Z' | 'X')));
        if left.is_empty() {
            return;
        }
        left.into_iter().for_each(|pid| signals::send(pid, signals::SIGKILL));
        std::thread::sleep(Duration::from_millis(10));
    }
}
