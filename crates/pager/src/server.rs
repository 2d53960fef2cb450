//! Pager process: its start, its threads, its talk with the supervisor, and its end.
//!
//! Only the crate's root uses this file. `pager.rs` has the state that the threads share.

use crate::config::Config;
use crate::control::{detach, listener};
use crate::faults::pending::Pending;
use crate::faults::{self, slow_work};
use crate::monitor::{self, sharing};
use crate::pager::{Pager, World};
use crate::processes::host::Machine;
use crate::processes::{Processes, inject, lineage};
use crate::reclaim;
use crate::report::{self, view};
use crate::telemetry::events::{Event, Why};
use crate::telemetry::messages;
use crate::wait::clock::Clock;
use crate::wait::patience::{self, Patience, Wait};
use ebb_agent::protocol::ENV_SOCKET;
use ebb_swap::{Notice, Store};
use ebb_sys::process;
use ebb_sys::socket::Socket;
use ebb_sys::{proc, signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Exit status of a run that Ebb has ended.
const FAILED: i32 = 125;
/// Interval at which the pager checks whether a stopped program has been continued.
const STOPPED_LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Messages between supervisor and pager, one JSON message each.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SupervisorMessage {
    /// Supervisor: the settings of the run.
    Start(Box<Config>),
    /// Pager: agents may connect.
    Ready,
    /// Either: the request cannot be carried out.
    Failed(String),
    /// Supervisor: the program runs as this process.
    Running(u32),
    /// Supervisor: attach to this running process. The pager answers `Ready` or `Failed`.
    Attach(u32),
    /// Supervisor: detach from the program. The pager answers `Reported`; or `Failed`, and the run
    /// goes on.
    Detach,
    /// Supervisor: the program has stopped, and the supervisor will stop, too.
    Stopping,
    /// Supervisor: the supervisor runs again after its stop.
    GoesOn,
    /// Supervisor: every process has ended. Carries the program's exit status (as a shell shows
    /// it).
    Ended(i32),
    /// Supervisor: the program, which another process started, has ended. The status is absent if
    /// it is unknown. Other processes of the run may go on.
    Left(Option<i32>),
    /// Pager: the report is written.
    Reported {
        /// Whether `--strict` ended the run. `ebb run` then returns 125, except with `--exec`.
        failed: bool,
    },
}

impl SupervisorMessage {
    /// Sends the message.
    pub fn send(&self, socket: &Socket) -> std::io::Result<()> {
        socket.send(&serde_json::to_vec(self)?, &[])
    }

    /// Receives a message. Returns an error if the other end is gone.
    pub fn receive(socket: &Socket) -> std::io::Result<Self> {
        let mut bytes = vec![0; 64 * 1024];
        let got = socket.receive(&mut bytes, &mut Vec::new())?;
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&bytes[..got])?)
    }
}

/// Runs the pager over its connection to the supervisor, to the end.
pub fn serve(supervisor: &Socket) -> std::io::Result<()> {
    let ended = serve_to_the_end(supervisor);
    messages::flush();
    ended
}

fn serve_to_the_end(supervisor: &Socket) -> std::io::Result<()> {
    let SupervisorMessage::Start(config) = SupervisorMessage::receive(supervisor)? else {
        return Err(std::io::Error::other("the supervisor did not begin with a start message"));
    };
    let supervisor_pid = supervisor.peer()?;
    process::leave_process_group();
    let pager = match prepare(*config, supervisor_pid) {
        Ok(pager) => pager,
        Err(error) => return SupervisorMessage::Failed(error.to_string()).send(supervisor),
    };
    pager.run.begin_far(&pager.config.socket);
    let listener = match ebb_sys::socket::Listener::bind(&pager.config.socket) {
        Ok(listener) => listener,
        Err(error) => {
            let path = pager.config.socket.display();
            return SupervisorMessage::Failed(format!("cannot listen at {path}: {error}"))
                .send(supervisor);
        }
    };
    if let Err(error) = start(&pager, listener) {
        let limit = "a limit of processes (ulimit -u) or of the control group (pids.max)";
        return SupervisorMessage::Failed(format!("cannot start a thread: {error}; see {limit}"))
            .send(supervisor);
    }
    SupervisorMessage::Ready.send(supervisor)?;
    loop {
        match SupervisorMessage::receive(supervisor) {
            Ok(SupervisorMessage::Running(pid)) => {
                pager.processes.program.store(pid, SeqCst);
                note_start(&pager);
            }
            Ok(SupervisorMessage::Attach(pid)) => {
                let way = inject::Way::of(&pager.config);
                if let Err(error) = inject::attach(pid, &way) {
                    return SupervisorMessage::Failed(error.to_string()).send(supervisor);
                }
                pager.processes.program.store(pid, SeqCst);
                note_start(&pager);
                SupervisorMessage::Ready.send(supervisor)?;
            }
            Ok(SupervisorMessage::Detach) => match detach::run(&pager) {
                Ok(()) => return end(&pager, supervisor, None),
                Err(error) => SupervisorMessage::Failed(error.to_string()).send(supervisor)?,
            },
            Ok(SupervisorMessage::Stopping) => watch_stopped(&pager.processes, supervisor),
            Ok(SupervisorMessage::GoesOn) => {}
            Ok(SupervisorMessage::Ended(status)) => return end(&pager, supervisor, Some(status)),
            Ok(SupervisorMessage::Left(status)) => {
                if lineage::has_ended(&pager.processes, &pager.config, supervisor) {
                    return end(&pager, supervisor, status);
                }
                return without_supervisor(&pager);
            }
            // The program did not start.
            Ok(SupervisorMessage::Failed(_)) => return Ok(()),
            Ok(other) => {
                return Err(std::io::Error::other(format!("unexpected message {other:?}")));
            }
            Err(_) => return without_supervisor(&pager),
        }
    }
}

/// Ends the pager after every process has ended or a detach has given all of them back.
fn end(pager: &Pager, supervisor: &Socket, status: Option<i32>) -> std::io::Result<()> {
    pager.run.ending.store(true, SeqCst);
    drop(pager.run.last_words.lock());
    end_recording(pager);
    let failed = pager.telemetry.unmanaged.has_ended_run();
    // With `--exec` or `ebb attach` the program's own status counts, because another process is its
    // parent.
    let status = if failed && pager.config.root.is_none() { Some(FAILED) } else { status };
    note_end(pager, status);
    // The report comes after all messages.
    messages::flush();
    if let Err(error) = report::write(pager, status) {
        pager.say(&format!("cannot write the report: {error}"));
    }
    pager.budget.store.close();
    messages::flush();
    SupervisorMessage::Reported { failed }.send(supervisor)
}

/// Handles the end of the supervisor: detaches from an attached program, and ends a started one.
fn without_supervisor(pager: &Arc<Pager>) -> std::io::Result<()> {
    if !pager.config.attached {
        abandoned(pager);
        return Ok(());
    }
    while !pager.mms().is_empty() && detach::run(pager).is_err() {
        // The pager serves the program until it can detach.
        pager.host.sleep(Duration::from_secs(1));
    }
    if let Some(events) = &pager.telemetry.events {
        events.end();
    }
    if let Some(folder) = pager.config.socket.parent() {
        let _ = std::fs::remove_dir_all(folder);
    }
    pager.budget.store.close();
    Ok(())
}

/// Ends the run after the end of the supervisor. Removes the socket's folder, because the
/// supervisor no longer can. When the pager ends, agents kill the processes that are left.
fn abandoned(pager: &Pager) {
    let wait = Wait::new(&pager.clock, Patience::Killing);
    pager.kill_tree(Why::SupervisorEnded);
    while !pager.host.tree(&pager.processes).is_empty() && !wait.is_over(&pager.clock) {
        pager.host.sleep(Duration::from_millis(10));
        pager.host.kill_tree(&pager.processes);
    }
    if let Some(events) = &pager.telemetry.events {
        events.end();
    }
    if let Some(folder) = pager.config.socket.parent() {
        let _ = std::fs::remove_dir_all(folder);
    }
    pager.budget.store.close();
}

fn note_start(pager: &Pager) {
    let (memory_max_bytes, memory_high_bytes) = pager.budget.limits();
    let command = pager.config.command.clone();
    pager.note_run(&Event::Started { command, memory_max_bytes, memory_high_bytes });
}

fn note_end(pager: &Pager, exit_status: Option<i32>) {
    let Some(events) = &pager.telemetry.events else { return };
    let (faults, waited_ns) = pager.waited();
    pager.note_run(&Event::Ended {
        exit_status,
        wall_time_us: pager.clock.since(pager.started).as_micros() as u64,
        peak_resident_bytes: pager.telemetry.counters.peak_resident.load(Relaxed),
        faults,
        faults_loaded: pager.telemetry.counters.faults_loaded.load(Relaxed),
        waited_us: waited_ns / 1000,
    });
    events.end();
}

fn end_recording(pager: &Pager) {
    let (Some(recorder), Some(path)) = (&pager.telemetry.recorder, &pager.config.record) else {
        return;
    };
    if let Err(error) = recorder.end() {
        messages::say(&format!("the recording {} is not complete: {error}", path.display()));
        return;
    }
    let lost = recorder.lost.load(Relaxed);
    if lost > 0 {
        messages::say(&format!(
            "the recording {} lacks {lost} records: the file was too slow",
            path.display()
        ));
    }
}

/// Waits until the supervisor goes on after a stop. The supervisor stops with the program, so that
/// a shell sees a stopped job. A shell continues both. If another process continues only the
/// program, this function continues the supervisor. The supervisor may not have stopped yet. So
/// this function repeats the signal until the supervisor sends a message.
fn watch_stopped(processes: &Processes, supervisor: &Socket) {
    let is_stopped = |pid| matches!(proc::state(pid), Some('T' | 't'));
    loop {
        let mut says = [PollFd::new(supervisor, PollFlags::IN)];
        // An interrupted poll only makes the check earlier.
        let _ = poll(&mut says, Some(&STOPPED_LOOK));
        if !says[0].revents().is_empty() {
            return;
        }
        if !is_stopped(processes.program.load(SeqCst)) {
            signals::send(processes.supervisor, signals::SIGCONT);
        }
    }
}

/// Why a pager cannot start.
#[derive(Debug, thiserror::Error)]
enum PrepareError {
    #[error(transparent)]
    Tiers(#[from] ebb_swap::TierSpecError),
    #[error(transparent)]
    Inject(#[from] ebb_swap::inject::PlanError),
    #[error(transparent)]
    Store(#[from] ebb_swap::StoreError),
    #[error("cannot start: {0}")]
    Start(#[from] std::io::Error),
}

/// Opens the store and makes the pager. A pager that another run pages does not use io_uring. A
/// completed read counts as a pending signal for the thread that started it. Until such a thread
/// leaves the system call in which it needs a page, the kernel does not let it sleep
/// ([`ebb_sys::cgroup::may_be_used_up`]).
fn prepare(config: Config, supervisor: u32) -> Result<Arc<Pager>, PrepareError> {
    let tiers = ebb_swap::parse_tiers(&config.swap)?;
    let inject = config.inject.as_deref().map(ebb_swap::inject::Plan::parse).transpose()?;
    let options = ebb_swap::Options {
        ram_limit_default: config.memory_max_bytes / 2,
        use_io_uring: config.io_uring && std::env::var_os(ENV_SOCKET).is_none(),
        inject,
        encrypt: config.encrypt.into(),
        notice: Notice::new(messages::say),
    };
    let store = Store::open(&tiers, &options)?;
    let world = World { clock: Clock::real(), host: Box::new(Machine), store: Box::new(store) };
    Ok(Arc::new(Pager::new(config, world, supervisor)?))
}

fn start(pager: &Arc<Pager>, listener: ebb_sys::socket::Listener) -> std::io::Result<()> {
    let run = |name: &str, body: Box<dyn FnOnce() + Send>| {
        let guarded = move || {
            body();
            // A pager thread that ends leaves the program without service.
            messages::say("a thread of the pager ended; the program is killed");
            messages::exit(125);
        };
        let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(256 * 1024);
        builder.spawn(guarded).map(drop)
    };
    let pending = Arc::new(Pending::default());
    for place in 0..pager.faults.epoll_beside.len() {
        let (shared, pending) = (pager.clone(), pending.clone());
        run("faults", Box::new(move || faults::run_beside(&shared, &pending, place)))?;
    }
    let clock = pager.clock.clone();
    run("beat", Box::new(move || patience::beat(&clock)))?;
    let (shared, its) = (pager.clone(), pending.clone());
    run("slow-work", Box::new(move || slow_work::run(&shared, &its)))?;
    let shared = pager.clone();
    run("faults", Box::new(move || faults::run(&shared, &pending)))?;
    let shared = pager.clone();
    run("kswapd", Box::new(move || reclaim::run(&shared)))?;
    let shared = pager.clone();
    run("sharing", Box::new(move || sharing::run(&shared)))?;
    let shared = pager.clone();
    run("monitor", Box::new(move || monitor::run(&shared)))?;
    let shared = pager.clone();
    run("view", Box::new(move || view::run(&shared)))?;
    let shared = pager.clone();
    run("listener", Box::new(move || listener::run(&shared, &listener)))
}
