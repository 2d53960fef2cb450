//! `ebb run --exec`: the program takes the place of the process that was started, as with `nice` or `setpriv`.
//!
//! Front and pager are made before, apart from it: the front is no child of the program, whose calls of wait(2) see
//! nobody who is not its own, and is in a session of its own, which no key of the terminal reaches.
//!
//! * EXEC-1: the front keeps nothing of the program's but standard error, for what is wrong. It passes no signal on: the
//!   program gets its own.
//! * EXEC-2: the program runs only when the pager is ready. If it then cannot be executed nothing is left behind by the time that
//!   is said.
//! * EXEC-3: whoever dies of program, front and pager, the others notice: the front looks at descriptors of both, the pager
//!   at its line to the front. Nobody is known by a number that could be another's.

use crate::folder::Folder;
use crate::run::{self, FAILED, Front, Ground, Refusal, Watchers, limit_of_time};
use ebb_agent::protocol::ENV_SOCKET;
use ebb_pager::patience::Patience;
use ebb_pager::{Config, FrontMessage};
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

/// How often those left of a run without a pager are killed again.
const KILLS: u32 = 100;

/// Becomes the program, if that can be done. The front, which is another process, does return.
pub fn start(
    config: Config,
    watchers: Watchers,
    path: &Path,
    words: &[OsString],
    inherited: Vec<OwnedFd>,
) -> Result<ExitCode, Refusal> {
    let failed = |reason: String| (FAILED, reason);
    let own = std::process::id();
    if own == 1 {
        return Err(failed(
            "--exec: this is process 1, whose end ends all others, the pager among them; leave --exec out: \
             `ebb run` passes signals on and adopts orphans as process 1 has to"
                .into(),
        ));
    }
    let ground = Ground::lay(own)?;
    let config = Config { socket: ground.folder.socket(), root: Some(own), ..config };
    let pool_bytes = config.pool_bytes;
    let cannot = |what: &str, error| failed(format!("cannot {what}: {error}"));
    let program = Pidfd::open(own).map_err(|error| cannot("watch the program", error))?;
    let (line, other) = Socket::pair().map_err(|error| cannot("make a socket", error))?;
    if process::fork_apart().map_err(|error| cannot("start the front", error))? {
        drop((line, inherited));
        return Ok(watch(config, watchers, ground, own, &program, other));
    }
    drop((other, program, watchers));
    let Ground { signals, limits, nothing, folder } = ground;
    match FrontMessage::receive(&line) {
        Ok(FrontMessage::Ready) => {}
        Ok(FrontMessage::Failed(reason)) => return Err(failed(reason)),
        _ => return Err(failed("the front ended before the program".into())),
    }
    drop((signals, nothing));
    // The front removes it.
    let folder = std::mem::ManuallyDrop::new(folder);
    let refusal = replace(path, words, &folder, pool_bytes, limits);
    // EXEC-2: whoever is heard no more has left nothing.
    let _ = FrontMessage::Failed(refusal.1.clone()).send(&line);
    let _ = FrontMessage::receive(&line);
    Err(refusal)
}

/// Becomes the program.
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

/// The front's life.
fn watch(
    config: Config,
    watchers: Watchers,
    ground: Ground,
    pid: u32,
    program: &Pidfd,
    line: Socket,
) -> ExitCode {
    let Ground { signals, nothing, folder, .. } = ground;
    let socket = config.socket.clone();
    // Children that the process had before are none of the program's.
    let before = proc::children(pid);
    let front = Front::start(config, watchers.events, signals, &nothing);
    inherited::leave_streams(&nothing);
    let mut front = match front {
        Ok(front) => front,
        Err(reason) => {
            drop(folder);
            // It may have ended.
            let _ = FrontMessage::Failed(reason).send(&line);
            return ExitCode::from(FAILED);
        }
    };
    let _ = FrontMessage::Ready.send(&line);
    if let Ok(failed) = FrontMessage::receive(&line) {
        // It could not be executed. Should the pager not hear that, it ends with its line.
        let Front { mut pager, socket, .. } = front;
        let _ = failed.send(&socket);
        drop(socket);
        let _ = pager.wait();
        drop(folder);
        return ExitCode::from(FAILED);
    }
    drop(line);
    // Should the pager not hear that, it ends with its line.
    let _ = FrontMessage::Running(pid).send(&front.socket);
    // Not before: who forks does so with one thread.
    if let Some(listener) = watchers.metrics {
        run::serve_metrics(listener, socket.clone());
    }
    let ended = follow(&mut front, pid, program);
    if ended.is_ok() {
        // It has reported, and is about to end: nobody else waits for it.
        let _ = front.pager.wait();
    } else {
        kill(&front, pid, program, &socket, before);
        front.note_pager_ended(pid);
        let limited = limit_of_time();
        crate::tell(format_args!(
            "the pager ended before the program{limited}; the program was killed"
        ));
    }
    ExitCode::SUCCESS
}

/// Watches over the program until all of its run has ended. An error if the pager ends before.
fn follow(front: &mut Front, pid: u32, program: &Pidfd) -> std::io::Result<()> {
    let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    loop {
        let mut waiting = [
            PollFd::new(program, PollFlags::IN),
            PollFd::new(&front.socket, PollFlags::IN),
            PollFd::new(&front.pager_life, PollFlags::IN),
        ];
        // Interrupted is as good as woken.
        let _ = poll(&mut waiting, None);
        let [ended, spoke, life] = waiting.map(|fd| !fd.revents().is_empty());
        if spoke || life {
            return Err(gone());
        }
        if ended {
            break;
        }
    }
    FrontMessage::Left(status(pid, program)).send(&front.socket)?;
    run::hear(&front.socket, &front.pager_life).map(drop)
}

/// What the program ended with, as a shell shows it, where that can be known.
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

/// Nobody serves them any more. Agents kill their processes; here are the others, those that have yet to get one among them.
pub fn kill(front: &Front, pid: u32, program: &Pidfd, socket: &Path, mut spared: Vec<u32>) {
    spared.extend([std::process::id(), front.pager.id()]);
    for _ in 0..KILLS {
        let mut left = Vec::new();
        let mut next = proc::started_with(ENV_SOCKET, socket.as_os_str());
        next.extend(socket.parent().map(proc::mapping_of).unwrap_or_default());
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
