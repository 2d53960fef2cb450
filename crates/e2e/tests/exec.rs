//! Tests `ebb run --exec`: the program has the PID of the started process. The process that starts
//! it sees no difference from a plain start.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ebb_e2e::account::Account;
use ebb_e2e::build::ebb;
use ebb_e2e::client::{Answer, Connection};
use ebb_e2e::launch::{
    Launch, Outcome, Running, need_paging, need_root_for, need_sight_of_ebb, send,
};
use ebb_e2e::same::{need, same};
use ebb_e2e::tree::{folders_of, is_alive};
use ebb_e2e::{MIB, SMALL};
use ebb_testing::{eventually, eventually_some, give_time, skip};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Signal, getuid};
use tempfile::TempDir;

fn python(script: &str) -> Launch {
    Launch::new(need("/usr/bin/python3")).args(["-c", script]).arg(ebb().display().to_string())
}

/// Waits until nothing of a run is left.
#[track_caller]
fn expect_nothing_left(run: &Running) {
    eventually("nothing of the run is there", || {
        run.root().find().all().next().is_none() && folders_of(run.pid()).is_empty()
    });
}

/// Waits until the started process is the program.
#[track_caller]
fn until_it_is(run: &mut Running, name: &str) {
    let file = format!("/proc/{}/comm", run.pid());
    let is_it = |_: &Running| fs::read_to_string(&file).is_ok_and(|comm| comm.trim_end() == name);
    run.wait_until("the program", is_it);
}

/// Returns a named pipe, from which a program reads when it is to go on.
pub fn fifo() -> (TempDir, PathBuf) {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    (folder, fifo)
}

/// Writes to a named pipe and closes it, as soon as a process reads from it.
#[track_caller]
pub fn write_to(fifo: &Path, text: &str) {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let pipe = eventually_some("a reader", || open(fifo, flags, Mode::empty()).ok());
    File::from(pipe).write_all(text.as_bytes()).expect("it is read");
}

/// Returns the run's pager and its supervisor.
fn pager_and_supervisor(run: &Running) -> (i32, i32) {
    need_sight_of_ebb();
    let own = run.root().find().ebb;
    let parent = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let field =
            stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse().ok());
        field.unwrap_or(0)
    };
    let pager = own.iter().copied().find(|&pid| own.contains(&parent(pid)));
    let pager = pager.unwrap_or_else(|| panic!("no pager among {own:?}"));
    (pager, parent(pager))
}

/// Prints the PID of this process, of its parent, session and group. Checks that the process has no
/// child and is paged.
const ITSELF: &str = r#"
import ctypes, os, resource, subprocess, sys
print(os.getpid(), os.getppid(), os.getsid(0), os.getpgid(0))
try:
    os.waitpid(-1, os.WNOHANG)
    print("a child")
except ChildProcessError:
    pass
adopts = ctypes.c_int()
ctypes.CDLL(None).prctl(37, ctypes.byref(adopts), 0, 0, 0)
memory = bytearray(40 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = at // 4096 % 251
assert all(memory[at] == at // 4096 % 251 for at in range(0, len(memory), 4096))
def ask(*words):
    while True:
        done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        # A run that gets no CPU may be late.
        assert "does not answer" in done.stderr, done
own = str(os.getpid())
assert "ebb_nr_limit 6144\n" in ask("stat", own)
lines = []
while not lines:
    # So may it be with the list.
    lines = [line for line in ask("ps").splitlines() if line.split()[0] == own]
assert "24.0M" in lines[0] and "/usr/bin/python3 -c" in lines[0], lines
ask("set", own, "memory.max=32M")
assert "ebb_nr_limit 8192\n" in ask("stat", own)
print("adopts" if adopts.value else "well")
"#;

fn expect_itself(run: Running, last: &str) -> Outcome {
    let pid = run.pid();
    let outcome = run.finish();
    outcome.expect_code(0);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    let own = std::process::id();
    // The expected numbers come from the kernel, which says 0 for a leader outside this PID
    // namespace.
    let stat = fs::read_to_string("/proc/self/stat").expect("our own state");
    let (_, stat) = stat.rsplit_once(") ").expect("a name");
    let stat: Vec<&str> = stat.split(' ').collect();
    let (group, session) = (stat[2], stat[3]);
    assert_eq!(
        lines,
        [format!("{pid} {own} {session} {group}").as_str(), last],
        "{}",
        outcome.stderr
    );
    outcome
}

#[test]
fn the_program_has_the_process_number_that_was_started_and_no_child() {
    need_sight_of_ebb();
    let launch = python(ITSELF).limit(24 * MIB).options("--exec --quiet");
    let outcome = expect_itself(launch.start(), "well");
    outcome.expect_silence();
    assert!(outcome.report.contains("ebb: pages evicted"), "{}", outcome.report);
}

/// Shows that a program that adopts orphans gets neither supervisor nor pager, and still adopts
/// orphans.
#[test]
fn a_program_that_adopts_orphans_gets_no_processes_of_ebb() {
    need_paging();
    let adopt = format!(
        "import ctypes, os, sys\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nos.execv({0:?}, [{0:?}, *sys.argv[1:]])",
        ebb().display().to_string()
    );
    let words = ["run", "--exec", "--memory-max", "24M", "--", "/usr/bin/python3", "-c", ITSELF];
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", &adopt]).args(words);
    expect_itself(launch.arg(ebb().display().to_string()).start(), "adopts");
}

/// Returns whether the kernel gives the exit status of a process to a process that is not its
/// parent. Linux does so since 6.15.
fn tells_status() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel has a release");
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(15))
}

#[test]
fn the_status_is_the_programs_own_and_the_report_has_it() {
    for (what, status) in [("exit 0", 0), ("exit 7", 7), ("signal 15 1", 143), ("signal 9 1", 137)]
    {
        let options = "--exec --report json --report-file";
        let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
        let file = folder.path().join("report.json");
        let launch = Launch::program("process", what).limit(SMALL);
        let run = launch.options(&format!("{options} {}", file.display())).start();
        let pid = run.pid();
        let outcome = run.finish();
        outcome.expect_code(status).expect_silence();
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(
            outcome.status.signal(),
            (status > 128).then(|| status - 128),
            "not passed on, its own"
        );
        eventually("its folder is gone", || folders_of(pid).is_empty());
        let read = || serde_json::from_str(&fs::read_to_string(&file).unwrap_or_default()).ok();
        let report: serde_json::Value = eventually_some("a report", read);
        let told = &report["exit_status"];
        assert!(*told == status || told.is_null() && !tells_status(), "{report}");
    }
}

/// Shows that directory, umask, priority, descriptors, signal masks and dispositions, limits,
/// credentials and name stay.
#[test]
fn the_process_attributes_stay() {
    let launch = Launch::program("process", "surroundings").args(["-x", "--", "", "a b", "*"]);
    let seen = |outcome: Outcome| -> Vec<String> {
        let text = outcome.expect_code(0).text();
        text.lines().filter(|line| !line.starts_with("Threads")).map(str::to_owned).collect()
    };
    assert_eq!(seen(launch.run()), seen(launch.clone().limit(SMALL).options("--exec").run()));
    let launch = Launch::program("process", "group");
    same(&launch.run(), &launch.clone().limit(SMALL).options("--exec").run());
    let bash = |prefix: &str| {
        let line = format!(
            "trap '' PIPE CHLD USR1; ulimit -Sn 200; ulimit -t 100000; ulimit -f 800; \
             exec {prefix} sh -c 'ulimit -a; grep Sig[PBIC] /proc/self/status; ls -l /proc/self/fd | wc -l' 7</dev/null <&-"
        );
        Launch::new("bash").args(["-c", &line]).arg(ebb()).run().expect_code(0).text()
    };
    assert_eq!(bash(""), bash("\"$0\" run --exec --memory-max 64M --"));
}

/// Shows that Ebb's own processes ignore a signal to the whole control group. A service manager
/// sends one on a stop.
#[test]
fn ebbs_own_processes_take_no_signal_that_is_meant_for_the_program() {
    let script = "trap 'kill $!; echo got it; exit 3' TERM; tail -f /dev/null & echo ready; wait";
    let launch = Launch::new("sh").args(["-c", script]).limit(SMALL).options("--exec");
    let mut run = launch.start();
    run.wait_for("ready");
    let (pager, supervisor) = pager_and_supervisor(&run);
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::TSTP]
    {
        send(pager, signal);
        send(supervisor, signal);
    }
    give_time(Duration::from_millis(300));
    assert!(is_alive(pager) && is_alive(supervisor) && !run.ended());
    run.signal(Signal::TERM);
    run.wait_until("its end", |run| !is_alive(run.pid()));
    expect_nothing_left(&run);
    let outcome = run.finish();
    assert_eq!(outcome.expect_code(3).text(), "ready\ngot it\n");
    outcome.expect_silence();
}

#[test]
fn nothing_outlives_a_program_that_is_killed() {
    for round in 0..6 {
        let launch = Launch::program("torture", &format!("0 {round}")).limit(24 * MIB);
        let mut run = launch.options("--exec").start();
        until_it_is(&mut run, "torture");
        // Each round kills at another stage.
        give_time(Duration::from_millis(130 * round));
        // The program's children are in the tree and end by themselves.
        assert!(!run.ended(), "ended early: {}", run.stderr());
        run.signal(Signal::KILL);
        run.wait_until("its end", |run| !is_alive(run.pid()));
        expect_nothing_left(&run);
        run.finish().expect_code(137).expect_silence();
    }
}

/// Shows that the program dies with the supervisor or the pager, and has never read a wrong byte.
#[test]
fn the_program_dies_with_ebb_and_its_end_is_reported() {
    for round in 0..8 {
        let launch = Launch::program("torture", &format!("0 {round}")).limit(24 * MIB);
        let mut run = launch.options("--exec").start();
        until_it_is(&mut run, "torture");
        // Each round kills at another stage.
        give_time(Duration::from_millis(90 * round));
        assert!(!run.ended(), "ended early: {}", run.stderr());
        let (pager, supervisor) = pager_and_supervisor(&run);
        send(if round % 2 == 0 { pager } else { supervisor }, Signal::KILL);
        run.wait_until("its end", |run| !is_alive(run.pid()));
        expect_nothing_left(&run);
        let outcome = run.finish();
        outcome.expect_code(137);
        assert!(!outcome.stderr.contains("wrong"), "{}", outcome.stderr);
        if round % 2 == 0 {
            let told = "ebb: the pager ended before the program; ebb killed the program\n";
            assert!(outcome.stderr.ends_with(told), "{}", outcome.stderr);
        }
    }
}

/// Shows that orphans without an agent end with Ebb. The supervisor finds them by their
/// environment. The pager kills those that it has seen before.
#[test]
fn orphans_without_an_agent_end_with_ebb() {
    for kills_pager in [true, false] {
        let (folder, fifo) = fifo();
        // No other process executes a program at this path.
        let fixed = folder.path().canonicalize().expect("a folder").join("fixed");
        let original = ebb_e2e::build::foreign_program("verify");
        let copied = Command::new("cp").arg(original).arg(&fixed).status();
        assert!(copied.expect("cp runs").success());
        // The second read opens the pipe for writing, too. So it does not see the end of the pipe
        // when the first writer closes it.
        let script = "(env -i \"$0\" 4 0 5 1 & \"$0\" 4 0 5 1 & read x < \"$1\"); echo ready; \
                      read x <> \"$1\"";
        let launch = Launch::new("sh").args(["-c", script]).arg(&fixed).arg(&fifo);
        let mut run = launch.limit(64 * MIB).options("--exec").start();
        let fixed_ones = || {
            let all = fs::read_dir("/proc").expect("/proc").flatten();
            let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            let of =
                |pid: &i32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == fixed);
            pids.filter(of).filter(|&pid| is_alive(pid)).collect::<Vec<_>>()
        };
        run.wait_until("both of them", |_| fixed_ones().len() == 2);
        let (pager, supervisor) = pager_and_supervisor(&run);
        run.wait_until("that the pager has seen both", |_| {
            fixed_ones().into_iter().all(|pid| has_descriptor_of(pager, pid))
        });
        write_to(&fifo, "left\n");
        run.wait_for("ready");
        send(if kills_pager { pager } else { supervisor }, Signal::KILL);
        run.wait_until("its end", |run| !is_alive(run.pid()));
        // The pager saw both. The supervisor finds processes with the environment variables of the
        // run.
        let left = usize::from(kills_pager);
        eventually("they end", || fixed_ones().len() == left && run.root().find().ebb.is_empty());
        fixed_ones().iter().for_each(|&pid| send(pid, Signal::KILL));
        expect_nothing_left(&run);
        run.finish().expect_code(137);
    }
}

/// Returns whether process `holder` has a descriptor of process `pid`.
fn has_descriptor_of(holder: i32, pid: i32) -> bool {
    let all = fs::read_dir(format!("/proc/{holder}/fdinfo")).into_iter().flatten().flatten();
    let texts = all.map(|entry| fs::read_to_string(entry.path()).unwrap_or_default());
    let line = format!("Pid:\t{pid}");
    texts.into_iter().any(|text| text.lines().any(|found| found == line))
}

/// A program whose child outlives it. The child goes on with its inherited memory, and `ebb stat`
/// and `ebb ps` find it.
const DAEMON: &str = r#"
import os, select, subprocess, sys
memory = bytearray(48 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = at // 4096 % 251
own = os.getpid()
if os.fork():
    os._exit(5)
os.setsid()
while os.getppid() == own:
    select.select([], [], [], 0.01)
def ask(*words):
    while True:
        done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        # A run that gets no CPU may be late.
        assert "does not answer" in done.stderr, done
select.select([], [], [], 0.5)
assert all(memory[at] == at // 4096 % 251 for at in range(0, len(memory), 4096))
assert "ebb_nr_limit 6144\n" in ask("stat", str(os.getpid()))
# So may it be with the list.
while not any(line.split()[0] == str(os.getpid()) for line in ask("ps").splitlines()):
    pass
open(sys.argv[2], "w").write("well")
open(sys.argv[3]).read()
"#;

#[test]
fn a_daemon_outlives_the_program_that_made_it() {
    need_sight_of_ebb();
    let (folder, fifo) = fifo();
    let word = folder.path().join("word");
    let launch = python(DAEMON).arg(&word).arg(&fifo).limit(24 * MIB).options("--exec");
    let mut run = launch.start();
    eventually("the daemon's word", || {
        let tree = run.root().find();
        let said = fs::read_to_string(&word).unwrap_or_default();
        let is_over = run.ended() && tree.all().next().is_none();
        assert!(said == "well" || !is_over, "{}", run.stderr());
        said == "well"
    });
    eventually("the end of the program that made it", || run.ended());
    assert_eq!(run.root().find().ebb.len(), 2, "they serve the daemon");
    write_to(&fifo, "");
    expect_nothing_left(&run);
    let outcome = run.finish();
    outcome.expect_code(5).expect_silence();
    assert!(outcome.report.contains("ebb: pages evicted"), "{}", outcome.report);
}

/// Shows that only the program holds its standard output open. Standard error stays open a moment
/// longer, for messages.
#[test]
fn the_end_of_a_pipe_comes_when_the_program_closes_it() {
    need_paging();
    // The program goes on until the reader has seen the end of the pipe. A reader that waits for
    // Ebb's own end hangs.
    let (_folder, fifo) = fifo();
    let bash = |line: &str| {
        let launch = Launch::new("bash").args(["-c", line]).arg(ebb()).arg(&fifo);
        launch.run().expect_code(0).text()
    };
    let run = "\"$0\" run --exec --memory-max 64M --";
    let waits = "read x < \"$0\"";
    let seen = "read x <&3; echo $?; echo > \"$1\"";
    let line =
        format!("exec 3< <(exec {run} sh -c 'exec >&-; {waits}' \"$1\" 2>/dev/null); {seen}");
    assert_eq!(bash(&line), "1\n", "1 is the end");
    let line = format!(
        "exec 3< <(exec {run} sh -c 'exec 7>&-; {waits}' \"$1\" 7>&1 >/dev/null 2>&1); {seen}"
    );
    assert_eq!(bash(&line), "1\n", "a descriptor of the program's");
    let line =
        format!("exec 3< <(exec {run} sh -c 'echo a' 2>&1); read x <&3; read y <&3; echo $x $?");
    assert_eq!(bash(&line), "a 1\n");
}

#[test]
fn out_of_memory_is_reported_on_standard_error() {
    let launch = Launch::program("verify", "48 1 5 1").limit(SMALL);
    let run = launch.options("--exec --swap ram:1M").start();
    let outcome = run.finish();
    outcome.expect_code(137);
    assert!(outcome.stderr.contains("ebb: out of memory"), "{}", outcome.stderr);
}

#[test]
fn a_pid_file_has_the_process_number_that_was_started() {
    need_paging();
    need("/usr/bin/redis-server");
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let line = "exec \"$0\" run --exec --memory-max 64M -- redis-server --port 0 \
                --unixsocket \"$1\" --pidfile \"$2\" --dir \"$3\" --save ''";
    let words = ["socket", "pid", ""].map(path);
    let mut run = Launch::new("sh").args(["-c", line]).arg(ebb()).args(words).start();
    let socket = path("socket");
    run.wait_until("its socket", |_| Connection::open(Path::new(&socket)).is_ok());
    // The program listens before it writes the file.
    let file = path("pid");
    let read = || fs::read_to_string(&file).unwrap_or_default();
    run.wait_until("its pid file", |_| read().ends_with('\n'));
    let written = read();
    assert_eq!(written.trim(), run.pid().to_string());
    let mut connection = Connection::open(Path::new(&socket)).expect("it listens");
    let info = connection.redis(&[b"INFO", b"server"]);
    let Answer::Bytes(info) = info else { panic!("{info:?}") };
    let own = format!("process_id:{}\r\n", run.pid());
    assert!(String::from_utf8_lossy(&info).contains(&own));
    run.signal(Signal::TERM);
    run.wait_until("its end", |run| !is_alive(run.pid()));
    expect_nothing_left(&run);
    run.finish().expect_code(0);
}

/// Reports readiness from the process that a service manager started.
const READY: &str = r#"
import os, socket, subprocess, sys
where = sys.argv[2]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.setsockopt(socket.SOL_SOCKET, 16, 1)
listener.bind(where)
program = ("import os, socket; line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); "
           "line.connect(os.environ['NOTIFY_SOCKET']); line.send(b'READY=1\\nMAINPID=%d' % os.getpid())")
for options, own in [(["--exec"], True), ([], False)]:
    command = [sys.argv[1], "run", *options, "--quiet", "--memory-max", "64M", "--", sys.executable, "-c", program]
    service = subprocess.Popen(command, env={**os.environ, "NOTIFY_SOCKET": where})
    text, credentials, _, _ = listener.recvmsg(200, 200)
    sender = int.from_bytes(credentials[0][2][:4], sys.byteorder)
    ready, main = text.decode().split("\n")
    assert ready == "READY=1" and main == f"MAINPID={sender}", text
    assert (sender == service.pid) == own, (sender, service.pid)
    assert service.wait() == 0
print("well")
"#;

#[test]
fn a_service_manager_is_notified_that_the_program_is_ready() {
    need_paging();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    python(READY).arg(folder.path().join("notify")).run().expect_line("well");
}

#[test]
fn the_program_of_an_ordinary_user_has_the_process_number_too() {
    if !getuid().is_root() {
        skip("it makes a user account, which only root may");
    }
    for program in ["/usr/sbin/useradd", "/usr/sbin/setcap", "/usr/bin/setfacl"] {
        need(program);
    }
    let account = Account::new();
    account.follow_readme();
    let verify = account.program("verify");
    let line = format!(
        "sh -c 'echo $$; exec {} run --exec --memory-max 16M --report-file report -- \
         sh -c \"echo \\$\\$; {verify} 40 1 5 1\"'",
        account.ebb()
    );
    let outcome = account.run(&line);
    outcome.expect_code(0);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 3 && lines[0] == lines[1], "{text}\n{}", outcome.stderr);
    let report = account.home().join("report");
    eventually("a report", || {
        fs::read_to_string(&report).is_ok_and(|text| text.contains("ebb: pages evicted"))
    });
    eventually("no ebb is left", || {
        let mut left = Command::new("pgrep");
        left.args(["-u", account.name(), "-r", "R,S,D,T", "-x", "ebb"]);
        left.output().expect("pgrep runs").status.code() == Some(1)
    });
}

/// Shows that a job of the shell from before its exec does not belong to the program. Ebb does not
/// wait for that job.
#[test]
fn children_from_before_the_exec_are_not_part_of_the_run() {
    need_sight_of_ebb();
    let (folder, fifo) = fifo();
    let file = folder.path().join("report");
    let line = "tail -f /dev/null & echo $!; exec \"$0\" run --exec --memory-max 64M \
                --report json --report-file \"$1\" -- sh -c 'read x < \"$0\"' \"$2\"";
    let launch = Launch::new("sh").args(["-c", line]).arg(ebb()).arg(&file).arg(&fifo);
    let mut run = launch.start();
    run.wait_until("the run", |run| run.root().find().ebb.len() == 2);
    // A pager that counts the job to the run reports it.
    give_time(Duration::from_millis(500));
    write_to(&fifo, "\n");
    run.wait_until("its end", |run| !is_alive(run.pid()));
    eventually("the end of Ebb's own", || run.root().find().ebb.is_empty());
    let job: i32 = run.stdout().trim().parse().expect("its number");
    assert!(is_alive(job), "and nothing has ended it");
    send(job, Signal::KILL);
    let report = fs::read_to_string(&file).expect("a report");
    // The program may have ended before its agent connected.
    let few = ["0", "1"].iter().any(|count| report.contains(&format!("\"processes\":{count},")));
    assert!(few && report.contains("\"unmanaged\":[]"), "{report}");
    run.finish().expect_code(0);
}

#[test]
fn a_run_inside_a_run() {
    need_root_for("the agent goes into no program whose file has capabilities");
    let verify = ebb_e2e::build::program("verify").display().to_string();
    let inner = [
        &ebb().display().to_string(),
        "run",
        "--exec",
        "--memory-max",
        "16M",
        "--",
        &verify,
        "40",
        "1",
        "5",
        "1",
    ]
    .map(str::to_owned);
    let [program, words @ ..] = inner;
    let plain = Launch::new(&verify).args(["40", "1", "5", "1"]).run();
    for options in ["", "--exec"] {
        let launch = Launch::new(&program).args(&words).limit(64 * MIB).options(options);
        // The outer run counts the program as one without an agent of its own, and may report that.
        assert_eq!(launch.run().expect_code(0).text(), plain.text());
    }
}

/// Shows that the pager of a run inside a run has no io_uring. A completed read counted as a signal
/// for its fault thread, which then waited for a page of its own without sleeping. In a control
/// group with little CPU time the outer pager got none, and both runs hung.
#[test]
fn a_pager_that_another_run_pages_has_no_io_uring() {
    // The pager is the other child of the shell's parent.
    let count = "for it in /proc/[0-9]*; do
        [ \"$(cut -d' ' -f4 $it/stat 2>/dev/null)\" = $PPID ] && ls -l $it/fd
        done | grep -c '\\[io_uring\\]'; true";
    let of = |launch: Launch| {
        launch.limit(64 * MIB).run().expect_code(0).text().trim().parse::<u32>().expect("a count")
    };
    if of(Launch::new("/bin/sh").args(["-c", count])) == 0 {
        skip("io_uring is refused here");
    }
    let words = ["run", "--memory-max", "32M", "--", "/bin/sh", "-c", count];
    assert_eq!(of(Launch::new(ebb()).args(words)), 0);
}

#[test]
fn a_program_that_cannot_be_executed_leaves_nothing_behind() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder");
    // The copy names a loader that does not exist, so the kernel cannot execute it.
    let bytes = fs::read("/bin/true").expect("a program");
    let at = bytes.windows(8).position(|part| part == b"/lib64/l").expect("its loader");
    let (mut broken, path) = (bytes, folder.path().join("broken"));
    broken[at..at + 8].copy_from_slice(b"/nosuch/");
    let written = folder.path().join("written");
    fs::write(&written, broken).expect("a copy");
    // Another process writes the copy. A child may inherit a writable descriptor of this process,
    // and the copy could then not be executed.
    Command::new("cp").arg(&written).arg(&path).status().expect("cp");
    Command::new("chmod").arg("+x").arg(&path).status().expect("chmod");
    let run = Launch::new(&path).limit(SMALL).options("--exec").start();
    let pid = run.pid();
    let tree = run.root().clone();
    let outcome = run.finish();
    outcome.expect_code(127);
    assert_eq!(outcome.said().len(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("broken: No such file"), "{}", outcome.stderr);
    let left: Vec<i32> = tree.find().all().collect();
    assert!(left.is_empty() && folders_of(pid).is_empty(), "{left:?}");
}

/// Shows that a foreign process of another user does not delay the end of root's run. That process
/// has put the run's socket into its own environment.
#[test]
fn a_foreign_process_of_another_user_does_not_delay_the_end_of_a_run() {
    let account = Account::new();
    let report = account.path("report");
    let (_folder, gate) = fifo();
    let words = ["-c", "echo $EBB_SOCKET; read line <\"$0\""];
    let options = format!("--exec --report json --report-file {}", report.display());
    let launch = Launch::new("sh").args(words).arg(&gate).limit(SMALL).options(&options);
    let mut run = launch.start();
    run.wait_for("socket");
    let socket = run.stdout();
    let line = format!("export EBB_SOCKET={}; echo ready; exec sleep 3600", socket.trim());
    let mut other = account.shell(&line).start();
    other.wait_for("ready");
    let variable = format!("EBB_SOCKET={}\0", socket.trim());
    eventually("it says so", || {
        other.root().find().program.iter().any(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).contains(&variable)
        })
    });
    write_to(&gate, "\n");
    assert_eq!(run.finish().code(), 0);
    eventually("a report", || fs::read_to_string(&report).is_ok_and(|text| !text.is_empty()));
    assert!(!other.ended(), "it was killed");
    other.root().find().program.iter().for_each(|&pid| send(pid, Signal::KILL));
    other.finish();
}

#[test]
fn process_1_is_refused() {
    if !getuid().is_root() {
        skip("it makes a process namespace, which root may");
    }
    let own = ebb().display().to_string();
    let words = [
        "--pid",
        "--fork",
        "--mount-proc",
        &own,
        "run",
        "--exec",
        "--memory-max",
        "64M",
        "--",
        "true",
    ];
    let outcome = Launch::new("unshare").args(words).run();
    outcome.expect_code(125);
    assert!(outcome.stderr.contains("--exec: this is process 1"), "{}", outcome.stderr);
}

#[test]
fn a_report_without_a_file_is_refused() {
    let outcome =
        Launch::new(ebb()).args(["run", "--exec", "--report", "json", "--", "true"]).run();
    outcome.expect_code(125);
    assert!(outcome.stderr.contains("--report-file"), "{}", outcome.stderr);
}
