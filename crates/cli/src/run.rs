//! `ebb run`: the supervisor. It starts the pager and the program, and passes signals on. It waits
//! for the end of the tree, and has the pager write the report.
//!
//! The supervisor is the program's parent, and both are in one process group. So the shell's job
//! control and the terminal treat both as one job. The pager is outside that group. So a Ctrl-C or
//! Ctrl-Z meant for the program does not stop the pager.

use crate::folder::Folder;
use crate::program::{self, Kind};
use crate::serve::ServeError;
use crate::size::SizeError;
use crate::{config_file, doctor, exec, inject, serve, size};
use ebb_agent::protocol::{ENV_POOL, ENV_SOCKET};
use ebb_mm::tunables::{SetError, Tunables};
use ebb_pager::events::{self, Event, Why};
use ebb_pager::patience::Patience;
use ebb_pager::{
    Config, Encrypt, MEMORY_MIN_BYTES, ReportFormat, ReportTo, SupervisorMessage, shown,
};
use ebb_swap::TierSpecError;
use ebb_swap::inject::PlanError;
use ebb_sys::limits::{Limit, Limits};
use ebb_sys::process::Pidfd;
use ebb_sys::signals::{self, Change, Signals};
use ebb_sys::socket::Socket;
use ebb_sys::{cgroup, inherited, proc, process, rights};
use rustix::event::{PollFd, PollFlags, poll};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Signals that the supervisor takes: signals meant for the program, and SIGCHLD.
const TAKEN: [i32; 10] = [
    signals::SIGINT,
    signals::SIGQUIT,
    signals::SIGTERM,
    signals::SIGHUP,
    signals::SIGUSR1,
    signals::SIGUSR2,
    signals::SIGALRM,
    signals::SIGTSTP,
    signals::SIGCONT,
    signals::SIGCHLD,
];
/// Environment variable from which Address Sanitizer takes its settings.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
/// Exit status of a failure of Ebb itself.
pub const FAILED: u8 = 125;
/// Number of descriptors that the pager needs for itself and one process.
const DESCRIPTORS_MIN: u64 = 32;

#[derive(clap::Args, Default)]
#[command(after_help = "\
SIZE is a number of bytes, a number with K, M, G or T (base 1024), or a percentage of the machine's
memory, or of the control group's limit if that is less.
TIER is ram[:SIZE] (compressed; counts in the limit, of which it takes half at most without SIZE),
or file[:PATH][:SIZE] (does not count), or redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/DB][?OPTIONS][:SIZE]
(a Redis or Valkey server or cluster, over TLS as rediss://; docs/guide.md).

Exit status: the program's own; 128+n if signal n killed it; 125 if ebb itself failed; 126 if the
program cannot be executed; 127 if it was not found. With --exec, once the program runs, only its own.

Examples:
  ebb run --memory-max 256M -- python3 job.py
  ebb run --memory-max 25% --swap ram:64M,file:/var/tmp:8G -- redis-server --save ''
  ebb run --memory-max 1G --memory-high 800M -- make -j4
  ebb run --memory-max 4G --swap ram,redis://10.0.0.7:6379:32G -- ./simulate
  ebb run --memory-max 4G --swap ram,rediss://ebb@n1:6379,n2:6379?password-file=/etc/ebb.pw -- ./simulate
  ebb run --memory-max 2G --pressure-target 5% -- redis-server
  ebb run --memory-max 1G --report json --report-file cost.json -- ./simulate --steps 100
  exec ebb run --exec --memory-max 1G --report-file /run/redis.report -- redis-server
  ebb run --config /etc/ebb.toml --profile redis -- redis-server
  ebb run --memory-max 1G --metrics 9464 --events events.jsonl -- redis-server
  ebb run --memory-max 64M --record faults.csv.zst -- python3 job.py
  ebb lab mrc faults.csv.zst")]
pub struct Arguments {
    /// Most resident memory of the program and all that it starts [default: 50%]
    #[arg(long, value_name = "SIZE")]
    pub memory_max: Option<String>,
    /// Limit above which Ebb throttles the program and reclaims its pages [default: none]
    #[arg(long, value_name = "SIZE")]
    pub memory_high: Option<String>,
    /// Tiers for pages that do not fit [default: ram,file]
    #[arg(long, value_name = "TIER[,TIER...]")]
    pub swap: Option<String>,
    /// Tiers whose pages Ebb encrypts; it keeps the key in memory only [default: remote]
    #[arg(long, value_enum, value_name = "WHICH")]
    pub encrypt: Option<Encrypted>,
    /// Form of the report at the end [default: text]
    #[arg(long, value_enum)]
    pub report: Option<Report>,
    /// Write the report to FILE instead of standard error; -: to standard output, which then stays
    /// open for it
    #[arg(long, value_name = "FILE")]
    pub report_file: Option<PathBuf>,
    /// Replace this process by the program, which keeps the PID: for service managers, pid files
    /// and test harnesses. A report goes only to --report-file
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub exec: Option<bool>,
    /// Print only errors on standard error, no report
    #[arg(short, long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub quiet: Option<bool>,
    /// Record page faults with their times as a trace for `ebb lab replay` (zstd if the name ends
    /// in .zst)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Sample how soon pages are reused, resident ones too; adds a miss-ratio curve to the JSON
    /// report (ebb fit)
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub sample: Option<bool>,
    /// Serve the run's figures for Prometheus at http://ADDR/metrics; ADDR is a local port (9464;
    /// 0: any free port, which is printed), or an address and a port (0.0.0.0:9464)
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// Append each event of the run to FILE as a line of JSON (started, limit_changed, thrashing,
    /// unmanaged, full, killed, ended); -: to standard error
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Lower the limit from --memory-max until threads lose this share of the time waiting for
    /// memory, as 5%
    #[arg(long, value_name = "PERCENT")]
    pub pressure_target: Option<String>,
    /// End the run with status 125 on memory that Ebb cannot manage: static programs, shared
    /// memory. With --exec Ebb kills the program
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub strict: Option<bool>,
    /// Faults to inject into the tiers (for tests)
    #[arg(long, value_name = "PLAN", hide = true)]
    pub inject: Option<String>,
    /// Set a switch of the engine (`ebb lab policies` lists them), or standby, readahead,
    /// look_around, cpu_follow, split, eager, io_uring
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Read options from a TOML file (example: docs/ebb.toml); the command line takes precedence
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Also apply this profile of the file
    #[arg(long, value_name = "NAME", requires = "config")]
    pub profile: Option<String>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub command: Vec<OsString>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Encrypted {
    /// Tiers on other machines
    Remote,
    /// Remote tiers and files
    All,
    /// No tier
    None,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum Report {
    Text,
    Json,
}

/// Prints the reason of a failure and returns the exit status.
fn fail(status: u8, reason: impl std::fmt::Display) -> ExitCode {
    crate::tell(reason);
    ExitCode::from(status)
}

/// Runs the program under the pager.
pub fn run(mut arguments: Arguments) -> ExitCode {
    // This call comes first, before the process opens any descriptor of its own.
    let inherited = inherited::descriptors();
    if !Path::new("/proc/self/exe").exists() {
        return fail(
            FAILED,
            "/proc is not mounted, and ebb cannot run without it: mount -t proc proc /proc",
        );
    }
    if let Err(reason) = config_file::read(&mut arguments) {
        return fail(FAILED, reason);
    }
    let config = match configure(&arguments) {
        Ok(config) => config,
        Err(reason) => return fail(FAILED, reason),
    };
    let Some(name) = arguments.command.first() else {
        return fail(FAILED, "no program; write: ebb run --memory-max SIZE -- PROGRAM [ARGS...]");
    };
    if name.as_encoded_bytes().starts_with(b"-") {
        let name = name.to_string_lossy();
        return fail(FAILED, format!("{name}: unknown option; see ebb run --help"));
    }
    let (path, kind) = match program::find(name) {
        Ok(found) => found,
        Err(refusal) => return fail(refusal.status, refusal),
    };
    if let Some(reason) = doctor::why_not() {
        return fail(FAILED, reason);
    }
    let outputs = match Outputs::new(&arguments) {
        Ok(outputs) => outputs,
        Err(reason) => return fail(FAILED, reason),
    };
    let words = &arguments.command;
    let ended = if arguments.exec == Some(true) {
        exec::start(config, outputs, &path, words, inherited)
    } else {
        start(config, outputs, (&path, kind), words, inherited)
    };
    ended.unwrap_or_else(|(status, reason)| fail(status, reason))
}

/// Reason why a run does not start or go on: the exit status and the message.
pub type Refusal = (u8, String);

/// Resources of a run that exist before its pager starts.
pub struct Resources {
    pub signals: Signals,
    pub limits: Limits,
    pub nothing: File,
    pub folder: Folder,
}

impl Resources {
    /// Makes the resources of the run with this number. From here on the signals in `TAKEN` do not
    /// end this process, so that the process can remove the folder.
    pub fn prepare(number: u32) -> Result<Self, Refusal> {
        let failed = |reason: String| (FAILED, reason);
        let signals = Signals::take(&TAKEN)
            .map_err(|error| failed(format!("cannot take signals: {error}")))?;
        inherited::keep_going();
        let limits = Limits::lift();
        if let Some(number) = Limit::Descriptors.now().filter(|&number| number < DESCRIPTORS_MIN) {
            return Err(failed(format!(
                "the limit of descriptors (ulimit -Hn) is {number}, but ebb needs {DESCRIPTORS_MIN}; raise it: \
                 ulimit -n 1024"
            )));
        }
        let nothing = File::open("/dev/null").map_err(|error| {
            failed(format!("/dev/null: {error}; in a chroot: mount --bind /dev ROOT/dev"))
        })?;
        let folder = Folder::create(number).map_err(|error| {
            failed(format!(
                "cannot make a folder for the agent: {error}; set XDG_RUNTIME_DIR to another folder"
            ))
        })?;
        Ok(Self { signals, limits, nothing, folder })
    }
}

/// Why an output cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file of the events cannot be opened.
    #[error("--events {}: {}", .0.display(), .1)]
    Events(PathBuf, io::Error),
    /// The figures cannot be served.
    #[error(transparent)]
    Metrics(#[from] ServeError),
}

/// Outputs that show the run to others while it lasts.
pub struct Outputs {
    /// Listener of the server for the figures.
    pub metrics: Option<TcpListener>,
    /// File of the events. The supervisor writes the event of the pager's end there.
    pub events: Option<File>,
}

impl Outputs {
    /// Opens the outputs before any process of the run starts, so that a failure starts nothing.
    fn new(arguments: &Arguments) -> Result<Self, OutputError> {
        let events = arguments.events.as_ref().map(|path| {
            events::open(path).map_err(|error| OutputError::Events(path.clone(), error))
        });
        let metrics = arguments.metrics.as_deref().map(serve::listen).transpose()?;
        if let Some(listener) = &metrics
            && arguments
                .metrics
                .as_deref()
                .is_some_and(|asked| serve::address(asked).is_ok_and(|at| at.port() == 0))
            && let Ok(address) = listener.local_addr()
        {
            crate::tell(format_args!("metrics at http://{address}/metrics"));
        }
        Ok(Self { metrics, events: events.transpose()? })
    }
}

/// Serves the figures of the run whose pager listens at `socket`. A failure is reported and does
/// not end the run.
pub fn serve_metrics(listener: TcpListener, socket: PathBuf) {
    if let Err(error) = serve::start(listener, socket) {
        crate::tell(format_args!("--metrics: cannot start a thread: {error}; the run goes on"));
    }
}

/// Returns the command of the program, with the agent and the pager's socket in its environment.
pub fn command(path: &Path, words: &[OsString], folder: &Folder, pool_bytes: u64) -> Command {
    let mut command = Command::new(path);
    std::os::unix::process::CommandExt::arg0(&mut command, &words[0]);
    command.args(&words[1..]).envs(inherited::removed_variables().iter().cloned());
    command.env("LD_PRELOAD", preload(&folder.agent_to_preload()));
    if program::has_address_sanitizer(path) {
        // The library of Address Sanitizer asks to be loaded before all others, but works without
        // that.
        let others = std::env::var_os(ASAN_OPTIONS).unwrap_or_default();
        let joined = if others.is_empty() { "" } else { ":" };
        let mut options = others;
        options.push(format!("{joined}verify_asan_link_order=0"));
        command.env(ASAN_OPTIONS, options);
    }
    command.env(ENV_SOCKET, folder.socket());
    command.env(ENV_POOL, pool_bytes.to_string());
    command
}

/// Returns the refusal for a program that the kernel did not start.
pub fn not_started(path: &Path, error: &std::io::Error) -> Refusal {
    let shown = path.display();
    match error.kind() {
        std::io::ErrorKind::NotFound => (127, format!("{shown}: {error}")),
        // The reason is not the program: the limit of processes may be reached.
        std::io::ErrorKind::WouldBlock => {
            let limit = "the limit of processes (ulimit -u) or of the control group (pids.max)";
            (125, format!("cannot start {shown}: {error}; check {limit}"))
        }
        _ => (126, format!("{shown}: {error}")),
    }
}

/// Starts the pager and the program, and watches over them.
fn start(
    config: Config,
    outputs: Outputs,
    (path, kind): (&Path, Kind),
    words: &[OsString],
    inherited: Vec<OwnedFd>,
) -> Result<ExitCode, Refusal> {
    let Resources { signals, limits, nothing, folder } = Resources::prepare(std::process::id())?;
    let config = Config { socket: folder.socket(), ..config };
    let pool_bytes = config.pool_bytes;
    let supervisor = Supervisor::start(config, outputs.events, signals, &nothing);
    let mut supervisor = supervisor.map_err(|error| (FAILED, error.to_string()))?;
    let command = || {
        let mut command = command(path, words, &folder, pool_bytes);
        process::prepare_child(&mut command);
        limits.keep_for(&mut command);
        command
    };
    let program = match kind {
        Kind::Loaded => command().spawn(),
        Kind::Injected => inject::spawn(command, &folder.image()),
    };
    let program = program.map_err(|error| not_started(path, &error))?;
    // From here on only the program has these descriptors. So the processes at the other ends see
    // when the program closes them.
    drop(inherited);
    inherited::leave_streams(&nothing);
    // Start this thread only now, because a process must have one thread when it forks.
    if let Some(listener) = outputs.metrics {
        serve_metrics(listener, folder.socket());
    }
    Ok(supervisor.watch(&program))
}

/// Returns the memory in bytes that percentages refer to: the machine's, or the control group's
/// limit if that is less.
pub fn memory_total() -> u64 {
    // /proc/meminfo is no source for this, because some mounts of /proc lack it.
    let info = rustix::system::sysinfo();
    let machine = info.totalram * u64::from(info.mem_unit);
    cgroup::memory_limit().map_or(machine, |limit| limit.bytes.min(machine))
}

/// Why the options of a run are not valid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The limit is no size.
    #[error("--memory-max: {0}")]
    MemoryMax(SizeError),
    /// A program cannot run in the limit.
    #[error("--memory-max {0}: less than a program can run in; the least is {LEAST_MIB}M")]
    LowMax(String),
    /// The limit of throttling is no size.
    #[error("--memory-high: {0}")]
    MemoryHigh(SizeError),
    /// The limit of throttling exceeds the limit, which follows it.
    #[error(
        "--memory-high {0}: more than --memory-max ({1}), so it would have no effect; give less, or \
         leave it out"
    )]
    HighAboveMax(String, String),
    /// A program cannot run in the limit of throttling.
    #[error("--memory-high {0}: less than a program can run in; the least is {LEAST_MIB}M")]
    LowHigh(String),
    /// The tiers are not valid.
    #[error("--swap: {0}")]
    Swap(#[from] TierSpecError),
    /// The faults to inject are not valid.
    #[error("--inject: {0}")]
    Inject(#[from] PlanError),
    /// The report of `--exec` has no file.
    #[error(
        "--report: with --exec the report goes only to a file; add --report-file FILE, or leave \
         --report out"
    )]
    ReportWithExec,
    /// The target is no share.
    #[error("--pressure-target {0}")]
    PressureTarget(#[from] ShareError),
    /// A switch is not valid.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The file of an option cannot be created.
    #[error("{} {}: {}", .0, .1.display(), .2)]
    File(&'static str, PathBuf, io::Error),
}

/// A text is no share.
#[derive(Debug, thiserror::Error)]
#[error("{0}: write a share from 0.1% to 50%, as 5%")]
pub struct ShareError(String);

/// Why a switch is not valid. The first field is the setting.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// A switch of the pager cannot have the value.
    #[error("--set {0}: no valid value; {own}", own = own_switches_in_words())]
    Value(String),
    /// Only the laboratory reads the switch.
    #[error("--set {0}: no run reads {1}; only `ebb lab run --set {0}` does")]
    LabOnly(String, String),
    /// The engine refuses the switch.
    #[error("--set {0}: {1}; {own}", own = own_switches_in_words())]
    Engine(String, SetError),
}

const LEAST_MIB: u64 = MEMORY_MIN_BYTES >> 20;

/// Returns the configuration of the run. Checks all arguments.
pub fn configure(arguments: &Arguments) -> Result<Config, ConfigError> {
    let (group, total) = (cgroup::memory_limit(), memory_total());
    let memory_max = arguments.memory_max.as_deref().unwrap_or("50%");
    let memory_max_bytes = size::parse(memory_max, total).map_err(ConfigError::MemoryMax)?;
    if memory_max_bytes < MEMORY_MIN_BYTES {
        return Err(ConfigError::LowMax(memory_max.into()));
    }
    if let Some(limit) = group.filter(|limit| limit.bytes < memory_max_bytes) {
        let (file, allowed) = (limit.file.display(), limit.bytes >> 20);
        crate::tell(format_args!(
            "--memory-max {memory_max}: more than the control group allows ({allowed} MiB: {file}); the kernel will \
             kill the program before ebb pages anything; give less"
        ));
    }
    let memory_high_bytes = match &arguments.memory_high {
        None => None,
        Some(text) => Some(memory_high(text, total, memory_max_bytes, memory_max)?),
    };
    let swap = arguments.swap.clone().unwrap_or_else(|| "ram,file".into());
    ebb_swap::parse_tiers(&swap)?;
    if let Some(plan) = &arguments.inject {
        ebb_swap::inject::Plan::parse(plan)?;
    }
    let exec = arguments.exec == Some(true);
    if exec && arguments.report.is_some() && arguments.report_file.is_none() {
        return Err(ConfigError::ReportWithExec);
    }
    let target = arguments.pressure_target.as_deref().map(permille).transpose();
    let mut config = Config {
        memory_max_bytes,
        memory_high_bytes,
        swap,
        pool_bytes: memory_max_bytes.clamp(1 << 20, 16 << 30) & !4095,
        report: match arguments.report {
            None | Some(Report::Text) => ReportFormat::Text,
            Some(Report::Json) => ReportFormat::Json,
        },
        report_to: report_to(arguments),
        record: arguments.record.clone(),
        events: arguments.events.clone(),
        inject: arguments.inject.clone(),
        encrypt: match arguments.encrypt {
            None | Some(Encrypted::Remote) => Encrypt::Remote,
            Some(Encrypted::All) => Encrypt::All,
            Some(Encrypted::None) => Encrypt::None,
        },
        sample: arguments.sample == Some(true),
        strict: arguments.strict == Some(true),
        pressure_target_permille: target?,
        command: shown(arguments.command.iter().map(|word| word.as_encoded_bytes())),
        ..Config::default()
    };
    for setting in &arguments.set {
        apply(&mut config, setting)?;
    }
    // The files are created now, because an error at the end of the run comes too late.
    let report = match &config.report_to {
        ReportTo::File(path) => Some(path),
        _ => None,
    };
    for (option, path) in [("--report-file", report), ("--record", config.record.as_ref())] {
        if let Some(path) = path {
            File::create(path).map_err(|error| ConfigError::File(option, path.clone(), error))?;
        }
    }
    Ok(config)
}

/// Parses a share in percent, as 5% or 2.5%, into thousandths.
pub fn permille(text: &str) -> Result<u32, ShareError> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match number.map(|percent| (percent * 10.0).round()) {
        Some(permille @ 1.0..=500.0) => Ok(permille as u32),
        _ => Err(ShareError(text.into())),
    }
}

fn report_to(arguments: &Arguments) -> ReportTo {
    match &arguments.report_file {
        Some(path) if path.as_os_str() == "-" => ReportTo::Stdout,
        Some(path) => ReportTo::File(path.clone()),
        // With `--exec` another process may have the terminal when the run ends.
        None if arguments.quiet == Some(true) || arguments.exec == Some(true) => ReportTo::Nowhere,
        None => ReportTo::Stderr,
    }
}

fn memory_high(text: &str, total: u64, max: u64, max_text: &str) -> Result<u64, ConfigError> {
    let high = size::parse(text, total).map_err(ConfigError::MemoryHigh)?;
    if high > max {
        return Err(ConfigError::HighAboveMax(text.into(), max_text.into()));
    }
    if high < MEMORY_MIN_BYTES {
        return Err(ConfigError::LowHigh(text.into()));
    }
    Ok(high)
}

/// A switch of the pager itself.
#[derive(Debug)]
pub struct OwnSwitch {
    /// Key of the switch.
    pub key: &'static str,
    /// Values that it may have.
    pub values: &'static str,
    /// Value without a setting.
    pub default: u32,
    /// Meaning of the switch.
    pub meaning: &'static str,
}

/// Returns the switches of the pager, besides those of the engine.
#[must_use]
pub fn own_switches() -> [OwnSwitch; 7] {
    let config = Config::default();
    let switch = |key, values, default, meaning| OwnSwitch { key, values, default, meaning };
    let flag = |key, default, meaning| switch(key, "0|1", u32::from(default), meaning);
    [
        switch(
            "standby",
            "0..900",
            config.standby_permille,
            "Share of the resident pages on the standby list, in permille.",
        ),
        switch(
            "readahead",
            "0..256",
            config.readahead_pages,
            "Most pages fetched ahead of a sequential pass.",
        ),
        flag(
            "look_around",
            config.look_around,
            "Standby pages ahead of a pass are reactivated with the faulting page.",
        ),
        flag(
            "cpu_follow",
            config.cpu_follow,
            "The fault thread may stay on the CPU of the one faulting thread.",
        ),
        flag("split", config.split, "The share of compressed memory adapts to demand."),
        flag("eager", config.eager, "Every area is managed from the start of the run."),
        flag("io_uring", config.io_uring, "The file tier may use io_uring."),
    ]
}

/// Returns the switches of the pager for a message.
fn own_switches_in_words() -> String {
    let mut all = own_switches().map(|switch| format!("{}={}", switch.key, switch.values)).to_vec();
    let last = all.pop().unwrap_or_default();
    format!("the switches of the pager are {} and {last}", all.join(", "))
}

/// Checks that a switch and its value are valid.
pub fn check_switch(setting: &str) -> Result<(), SwitchError> {
    apply(&mut Config::default(), setting)
}

fn apply(config: &mut Config, setting: &str) -> Result<(), SwitchError> {
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    match (key, value.parse::<u32>()) {
        ("standby", Ok(number @ 0..=900)) => config.standby_permille = number,
        ("readahead", Ok(number @ 0..=256)) => config.readahead_pages = number,
        ("look_around", Ok(number @ (0 | 1))) => config.look_around = number == 1,
        ("cpu_follow", Ok(number @ (0 | 1))) => config.cpu_follow = number == 1,
        ("split", Ok(number @ (0 | 1))) => config.split = number == 1,
        ("eager", Ok(number @ (0 | 1))) => config.eager = number == 1,
        ("io_uring", Ok(number @ (0 | 1))) => config.io_uring = number == 1,
        (
            "standby" | "readahead" | "look_around" | "cpu_follow" | "split" | "eager" | "io_uring",
            _,
        ) => return Err(SwitchError::Value(setting.into())),
        (key, _) if Tunables::LAB_ONLY.contains(&key) => {
            return Err(SwitchError::LabOnly(setting.into(), key.into()));
        }
        _ => {
            config.switches.push(setting.to_owned());
            config.tunables().map_err(|error| SwitchError::Engine(setting.into(), error))?;
        }
    }
    Ok(())
}

/// Returns the value of LD_PRELOAD: the user's libraries, then the agent. So the user's libraries
/// get the program's calls first, as without the agent, and pass them on to the agent. The agent of
/// an outer run is left out. Two agents would both join this run, and every page would count twice.
fn preload(agent: &Path) -> OsString {
    let others = inherited::variable("LD_PRELOAD").unwrap_or_default();
    let around = std::env::var_os(ENV_SOCKET).map(PathBuf::from);
    preload_list(agent, &others, around.as_deref().and_then(Path::parent))
}

fn preload_list(agent: &Path, others: &OsStr, around: Option<&Path>) -> OsString {
    let mut value = OsString::new();
    for other in others.as_bytes().split(|byte| matches!(byte, b':' | b' ')) {
        let other = Path::new(OsStr::from_bytes(other));
        let theirs = around.is_some_and(|folder| other.starts_with(folder));
        if !other.as_os_str().is_empty() && !theirs {
            value.push(other);
            value.push(":");
        }
    }
    value.push(agent);
    value
}

/// Why the pager of a run does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A step, which the text names, failed.
    #[error("cannot {0}: {1}")]
    Step(&'static str, io::Error),
    /// The pager refuses the run, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The pager sends no message that answers the start.
    #[error("the pager sent an unexpected message: {0:?}")]
    Unexpected(SupervisorMessage),
}

/// The supervisor of a running program.
pub struct Supervisor {
    pub pager: Child,
    /// Becomes readable when the pager begins to end. The pager's socket closes only when the last
    /// thread of the pager ends. A thread in the idle class may take long to end beside busy
    /// threads.
    pub pager_life: Pidfd,
    pub socket: Socket,
    pub signals: Signals,
    events: Option<File>,
}

impl Supervisor {
    pub fn start(
        config: Config,
        events: Option<File>,
        signals: Signals,
        nothing: &File,
    ) -> Result<Self, StartError> {
        let cannot = StartError::Step;
        process::adopt_orphans();
        let (socket, other) = Socket::pair().map_err(|error| cannot("make a socket", error))?;
        let other: OwnedFd =
            other.as_fd().try_clone_to_owned().map_err(|error| cannot("copy a socket", error))?;
        let stdout = if config.report_to == ReportTo::Stdout {
            Stdio::inherit()
        } else {
            // The pager does not get the program's output, so that a reader of that output waits
            // for the program only.
            nothing.try_clone().map_err(|error| cannot("copy a descriptor", error))?.into()
        };
        let pager = Command::new("/proc/self/exe")
            .arg("__pager")
            .envs(inherited::variable("TMPDIR").map(|path| ("TMPDIR", path)))
            .stdin(Stdio::from(other))
            .stdout(stdout)
            .spawn()
            .map_err(|error| cannot("start the pager", error))?;
        let pager_life = Pidfd::open_thread(pager.id())
            // Older kernels have pidfds of whole processes only.
            .or_else(|_| Pidfd::open(pager.id()))
            .map_err(|error| cannot("watch the pager", error))?;
        let start = SupervisorMessage::Start(Box::new(config));
        start.send(&socket).map_err(|error| cannot("reach the pager", error))?;
        match receive(&socket, &pager_life) {
            Ok(SupervisorMessage::Ready) => Ok(Self { pager, pager_life, socket, signals, events }),
            Ok(SupervisorMessage::Failed(reason)) => Err(StartError::Refused(reason)),
            Ok(other) => Err(StartError::Unexpected(other)),
            Err(error) => Err(cannot("receive from the pager", error)),
        }
    }

    /// Watches over the program until every process of the tree has ended.
    fn watch(&mut self, program: &Child) -> ExitCode {
        let program = program.id();
        if SupervisorMessage::Running(program).send(&self.socket).is_err() {
            return self.pager_is_gone(program);
        }
        let mut status = None;
        loop {
            let mut waiting = [
                PollFd::new(&self.signals, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
                PollFd::new(&self.pager_life, PollFlags::IN),
            ];
            // An interrupted poll counts as a wake-up.
            let _ = poll(&mut waiting, None);
            let pager_spoke = waiting[1..].iter().any(|fd| !fd.revents().is_empty());
            while let Some(signal) = self.signals.next() {
                if signal.number == signals::SIGCHLD {
                    self.reap(program, &mut status);
                } else if !signal.from_terminal && status.is_none() {
                    signals::send(program, signal.number);
                } else if status.is_some() {
                    self.others().into_iter().for_each(|pid| signals::send(pid, signal.number));
                }
            }
            if pager_spoke {
                return self.pager_is_gone(program);
            }
            if let Some(status) = status
                && self.others().is_empty()
            {
                return self.finish(program, status);
            }
        }
    }

    fn reap(&self, program: u32, status: &mut Option<i32>) {
        while let Some(change) = signals::next_change() {
            match change {
                Change::Exited { pid, code } if pid == program => *status = Some(code),
                Change::Killed { pid, signal } if pid == program => *status = Some(128 + signal),
                // The supervisor stops too, because the shell sees the job stop only when both have
                // stopped.
                Change::Stopped { pid, .. } if pid == program => {
                    // Send errors do not matter: without the pager the run is over.
                    let _ = SupervisorMessage::Stopping.send(&self.socket);
                    signals::stop_self();
                    let _ = SupervisorMessage::GoesOn.send(&self.socket);
                }
                _ => {}
            }
        }
    }

    /// Returns the supervisor's children without the pager.
    fn others(&self) -> Vec<u32> {
        let mut children = proc::children(std::process::id());
        children.retain(|&pid| pid != self.pager.id());
        children
    }

    fn pager_is_gone(&mut self, program: u32) -> ExitCode {
        signals::send(program, signals::SIGKILL);
        // The supervisor adopts the children of a killed process only when that process ends. So
        // the loop looks again.
        Patience::Ending.sees(|pause| {
            let others = self.others();
            others.iter().for_each(|&pid| signals::send(pid, signals::SIGKILL));
            if !others.is_empty() {
                std::thread::sleep(pause);
                while signals::next_change().is_some() {}
            }
            others.is_empty()
        });
        self.note_pager_ended(program);
        let limited = limit_of_time();
        fail(FAILED, format!("the pager ended before the program{limited}; ebb killed the program"))
    }

    /// Returns whether a signal has come that ends programs.
    pub fn is_to_end(&mut self) -> bool {
        const ENDS: [i32; 4] =
            [signals::SIGINT, signals::SIGTERM, signals::SIGHUP, signals::SIGQUIT];
        std::iter::from_fn(|| self.signals.next())
            .fold(false, |ends, signal| ends | ENDS.contains(&signal.number))
    }

    /// Writes the event of the pager's end, which the pager itself cannot write any more.
    pub fn note_pager_ended(&mut self, program: u32) {
        if let Some(file) = &mut self.events {
            let killed = Event::Killed { why: Why::PagerEnded };
            // A failed write changes nothing: the supervisor also reports the pager's end on
            // standard error.
            let _ = file.write_all(events::line(std::process::id(), program, &killed).as_bytes());
        }
    }

    fn finish(&mut self, program: u32, status: i32) -> ExitCode {
        let told = SupervisorMessage::Ended(status).send(&self.socket);
        match told.and_then(|()| receive(&self.socket, &self.pager_life)) {
            Ok(SupervisorMessage::Reported { failed: true }) => ExitCode::from(FAILED),
            Ok(_) => ExitCode::from(status as u8),
            Err(_) => {
                self.note_pager_ended(program);
                fail(
                    FAILED,
                    format!("the pager ended before it wrote the report{}", limit_of_time()),
                )
            }
        }
    }
}

/// Returns a hint for the message about a pager that ended, if its CPU time is limited.
pub fn limit_of_time() -> String {
    Limit::CpuTime.now().map_or_else(String::new, |seconds| {
        format!(" (its limit is {seconds} s of CPU time; raise it: ulimit -Ht unlimited)")
    })
}

/// Returns the next message of the pager, or an error if the pager ends first.
pub fn receive(socket: &Socket, life: &Pidfd) -> std::io::Result<SupervisorMessage> {
    loop {
        let mut waiting = [PollFd::new(socket, PollFlags::IN), PollFd::new(life, PollFlags::IN)];
        // After an interruption the loop polls again.
        let _ = poll(&mut waiting, None);
        if waiting[0].revents().contains(PollFlags::IN) {
            return SupervisorMessage::receive(socket);
        }
        if waiting.iter().any(|fd| !fd.revents().is_empty()) {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Returns whether the other end is the process that started this one, and runs the same program
/// file.
fn is_own_supervisor(socket: &Socket) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(supervisor) = socket.peer() else { return false };
    let program = |process: &str| {
        let file = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((file.dev(), file.ino()))
    };
    let _tracing = rights::tracing();
    let own = program("self");
    supervisor == std::os::unix::process::parent_id()
        && own.is_some()
        && own == program(&supervisor.to_string())
}

/// Runs the pager process. Its standard input is the socket to the supervisor.
pub fn pager() -> ExitCode {
    // The pager closes the descriptors that were inherited for the program.
    drop(inherited::descriptors());
    inherited::keep_going();
    let socket = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => Socket::new(socket),
        Err(_) => return fail(FAILED, "the pager was started without a supervisor"),
    };
    if !is_own_supervisor(&socket) {
        return fail(FAILED, "only `ebb run` and `ebb attach` start the pager; see ebb --help");
    }
    match ebb_pager::serve(&socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(FAILED, format!("the pager failed: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_of_an_outer_run_is_not_preloaded_in_an_inner_run() {
        let agent = Path::new("/tmp/ebb-2/agent.so");
        let list = |others: &str, around| preload_list(agent, OsStr::new(others), around);
        assert_eq!(list("", None), "/tmp/ebb-2/agent.so");
        let others = "/tmp/ebb-1/agent.so:/lib/a.so /lib/b.so";
        let outer = Path::new("/tmp/ebb-1");
        assert_eq!(list(others, Some(outer)), "/lib/a.so:/lib/b.so:/tmp/ebb-2/agent.so");
        assert_eq!(list("/lib/a.so", None), "/lib/a.so:/tmp/ebb-2/agent.so");
    }

    /// Shows that EAGAIN from fork is reported as a limit of processes. The program is not the
    /// cause.
    #[test]
    fn a_fork_beyond_the_process_limit_is_reported_as_such() {
        let refused =
            |errno| not_started(Path::new("/bin/p"), &std::io::Error::from_raw_os_error(errno));
        let (status, text) = refused(rustix::io::Errno::AGAIN.raw_os_error());
        assert!(status == 125 && text.contains("ulimit -u"), "{status}: {text}");
        assert_eq!(refused(rustix::io::Errno::NOENT.raw_os_error()).0, 127);
        assert_eq!(refused(rustix::io::Errno::ACCESS.raw_os_error()).0, 126);
    }
}
