//! `ebb run --exec`: the program has the number that was started, and whoever started it sees nothing else.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use ebb_e2e::account::Account;
use ebb_e2e::build::ebb;
use ebb_e2e::client::{Answer, Connection};
use ebb_e2e::launch::{Launch, Outcome, Running, send};
use ebb_e2e::same::{need, same};
use ebb_e2e::tree::is_alive;
use ebb_e2e::{MIB, SMALL};
use rustix::process::Signal;
use tempfile::TempDir;

/// How long Ebb's own processes may outlive the program on a machine with other things to do.
const GONE_WITHIN: Duration = Duration::from_secs(5);

fn python(script: &str) -> Launch {
    Launch::new("/usr/bin/python3").args(["-c", script]).arg(ebb().display().to_string())
}

/// The run's folders in the places where they can be.
fn folders(pid: i32) -> Vec<String> {
    let prefix = format!("ebb-{pid}-");
    let names =
        ["/tmp", "/dev/shm", "/var/tmp"].into_iter().filter_map(|place| fs::read_dir(place).ok());
    let names =
        names.flatten().flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// Waits until nothing of a run is there.
#[track_caller]
fn expect_nothing_left(run: &Running) {
    let began = Instant::now();
    loop {
        let left = run.root().find();
        let folders = folders(run.pid());
        if left.all().next().is_none() && folders.is_empty() {
            return;
        }
        assert!(began.elapsed() < GONE_WITHIN, "{folders:?} and\n{}", left.dump());
        thread::sleep(Duration::from_millis(5));
    }
}

/// The run's pager and its front.
fn pager_and_front(run: &Running) -> (i32, i32) {
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

/// It is the process that was started, in its session and group; it has no child; and it is paged.
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
    done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout
own = str(os.getpid())
assert "ebb_nr_limit 6144\n" in ask("stat", own)
[line] = [line for line in ask("ps").splitlines() if line.split()[0] == own]
assert "24.0M" in line and "/usr/bin/python3 -c" in line, line
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
    // The kernel's own numbers: where the leader stands outside this PID namespace, it says 0.
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
fn the_program_has_the_number_that_was_started_and_no_child() {
    let launch = python(ITSELF).limit(24 * MIB).options("--exec --quiet");
    let outcome = expect_itself(launch.start(), "well");
    outcome.expect_silence();
    assert!(outcome.report.contains("ebb: pages evicted"), "{}", outcome.report);
}

/// Who adopts orphans gets neither front nor pager, and goes on to adopt.
#[test]
fn a_program_that_adopts_orphans_does_not_get_ebbs() {
    let adopt = format!(
        "import ctypes, os, sys\nctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\nos.execv({0:?}, [{0:?}, *sys.argv[1:]])",
        ebb().display().to_string()
    );
    let words = ["run", "--exec", "--memory-max", "24M", "--", "/usr/bin/python3", "-c", ITSELF];
    let launch = Launch::new("/usr/bin/python3").args(["-c", &adopt]).args(words);
    expect_itself(launch.arg(ebb().display().to_string()).start(), "adopts");
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
        let began = Instant::now();
        while !folders(pid).is_empty() && began.elapsed() < GONE_WITHIN {
            thread::sleep(Duration::from_millis(5));
        }
        let report = fs::read_to_string(&file).expect("a report");
        assert!(report.contains(&format!("\"exit_status\":{status},")), "{report}");
    }
}

/// Directory, umask, priority, descriptors, signal masks and dispositions, limits, credentials, name.
#[test]
fn the_surroundings_stay() {
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
            "trap '' PIPE CHLD USR1; ulimit -Sn 200; ulimit -t 100; ulimit -f 800; exec {prefix} sh -c \
             'ulimit -a; grep Sig[PBIC] /proc/self/status; ls -l /proc/self/fd | wc -l' 7</dev/null <&-"
        );
        Launch::new("bash").args(["-c", &line]).run().expect_code(0).text()
    };
    assert_eq!(bash(""), bash(&format!("{} run --exec --memory-max 64M --", ebb().display())));
}

/// What a service manager does to a control group that it stops: all processes of it get the signal.
#[test]
fn ebbs_own_processes_take_no_signal_that_is_meant_for_the_program() {
    let script = "trap 'echo got it; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
    let launch = Launch::new("sh").args(["-c", script]).limit(SMALL).options("--exec");
    let mut run = launch.start();
    run.wait_for("ready");
    let (pager, front) = pager_and_front(&run);
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::TSTP]
    {
        send(pager, signal);
        send(front, signal);
    }
    thread::sleep(Duration::from_millis(300));
    assert!(is_alive(pager) && is_alive(front) && !run.ended());
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
        let launch = Launch::program("torture", &format!("30 {round}")).limit(24 * MIB);
        let mut run = launch.options("--exec").start();
        thread::sleep(Duration::from_millis(50 + 130 * round));
        // Its children are in the tree, and end by themselves.
        assert!(!run.ended(), "ended early: {}", run.stderr());
        run.signal(Signal::KILL);
        run.wait_until("its end", |run| !is_alive(run.pid()));
        expect_nothing_left(&run);
        run.finish().expect_code(137).expect_silence();
    }
}

/// Whichever of Ebb's two processes dies, the program dies at once and has never read a wrong byte.
#[test]
fn the_program_dies_with_ebb_and_is_told_of() {
    for round in 0..10 {
        let launch = Launch::program("torture", &format!("30 {round}")).limit(24 * MIB);
        let mut run = launch.options("--exec").start();
        thread::sleep(Duration::from_millis(60 + 90 * round));
        assert!(!run.ended(), "ended early: {}", run.stderr());
        let (pager, front) = pager_and_front(&run);
        send(if round % 2 == 0 { pager } else { front }, Signal::KILL);
        run.wait_until("its end", |run| !is_alive(run.pid()));
        expect_nothing_left(&run);
        let outcome = run.finish();
        outcome.expect_code(137);
        assert!(!outcome.stderr.contains("wrong"), "{}", outcome.stderr);
        if round % 2 == 0 {
            let told = "ebb: the pager ended before the program; the program was killed\n";
            assert!(outcome.stderr.ends_with(told), "{}", outcome.stderr);
        }
    }
}

/// Who has no agent and was left behind is found all the same: by what it was started with, and by who saw it before.
#[test]
fn orphans_without_an_agent_end_with_ebb() {
    let fixed = ebb_e2e::build::foreign_program("verify").display().to_string();
    for kills_pager in [true, false] {
        let script = format!(
            "(env -i {fixed} 4 100000000 5 1 & {fixed} 4 100000000 5 1 & sleep 0.5); echo ready; sleep 60"
        );
        let mut run =
            Launch::new("sh").args(["-c", &script]).limit(64 * MIB).options("--exec").start();
        run.wait_for("ready");
        let fixed_ones = || {
            let all = fs::read_dir("/proc").expect("/proc").flatten();
            let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
            let of = |pid: &i32| {
                fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(&fixed))
            };
            pids.filter(of).filter(|&pid| is_alive(pid)).collect::<Vec<_>>()
        };
        assert_eq!(fixed_ones().len(), 2, "{}", run.stderr());
        let (pager, front) = pager_and_front(&run);
        send(if kills_pager { pager } else { front }, Signal::KILL);
        run.wait_until("its end", |run| !is_alive(run.pid()));
        expect_nothing_left(&run);
        // The pager saw both. The front finds who still has the variables that it was started with.
        let left = fixed_ones();
        left.iter().for_each(|&pid| send(pid, Signal::KILL));
        assert_eq!(left.len(), usize::from(kills_pager), "{left:?}");
        run.finish().expect_code(137);
    }
}

/// The child of a program that has ended goes on in the memory that it has, and is found.
const DAEMON: &str = r#"
import os, subprocess, sys, time
memory = bytearray(48 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = at // 4096 % 251
if os.fork():
    os._exit(5)
os.setsid()
while os.getppid() == int(sys.argv[2]):
    time.sleep(0.01)
def ask(*words):
    done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout
time.sleep(0.5)
assert all(memory[at] == at // 4096 % 251 for at in range(0, len(memory), 4096))
assert "ebb_nr_limit 6144\n" in ask("stat", str(os.getpid()))
assert any(line.split()[0] == str(os.getpid()) for line in ask("ps").splitlines()), ask("ps")
open(sys.argv[3], "w").write("well")
time.sleep(0.3)
"#;

#[test]
fn a_daemon_outlives_the_program_that_made_it() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let word = folder.path().join("word");
    let own = format!("import os,sys\nsys.argv.insert(2, str(os.getpid()))\n{DAEMON}");
    let launch = python(&own).arg(&word).limit(24 * MIB).options("--exec");
    let mut run = launch.start();
    let began = Instant::now();
    while fs::read_to_string(&word).unwrap_or_default() != "well" {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{}\n{}",
            run.stderr(),
            run.root().find().dump()
        );
        thread::sleep(Duration::from_millis(5));
    }
    assert!(run.ended(), "it has ended long before");
    assert_eq!(run.root().find().ebb.len(), 2, "they serve the daemon");
    expect_nothing_left(&run);
    let outcome = run.finish();
    outcome.expect_code(5).expect_silence();
    assert!(outcome.report.contains("ebb: pages evicted"), "{}", outcome.report);
}

/// Standard output is the program's alone; standard error stays open a moment longer, for messages.
#[test]
fn the_end_of_a_pipe_comes_when_the_program_closes_it() {
    let run = format!("{} run --exec --memory-max 64M --", ebb().display());
    let bash = |line: &str| Launch::new("bash").args(["-c", line]).run().expect_code(0).text();
    let line = format!(
        "exec 3< <(exec {run} sh -c 'exec >&-; sleep 4' 2>/dev/null); read -t 2 x <&3; echo $?"
    );
    assert_eq!(bash(&line), "1\n", "1 is the end, more than 128 too long a wait");
    let line = format!(
        "exec 3< <(exec {run} sh -c 'exec 7>&-; sleep 4' 7>&1 >/dev/null 2>&1); read -t 2 x <&3; echo $?"
    );
    assert_eq!(bash(&line), "1\n", "a descriptor of the program's");
    let line = format!(
        "exec 3< <(exec {run} sh -c 'echo a' 2>&1); read x <&3; read -t 2 y <&3; echo $x $?"
    );
    assert_eq!(bash(&line), "a 1\n");
}

#[test]
fn a_program_that_runs_out_of_memory_is_told_on_standard_error() {
    let launch = Launch::program("verify", "48 60 5 1").limit(SMALL);
    let run = launch.options("--exec --swap ram:1M").start();
    let outcome = run.finish();
    outcome.expect_code(137);
    assert!(outcome.stderr.contains("ebb: out of memory"), "{}", outcome.stderr);
}

#[test]
fn the_number_in_a_pid_file_is_the_one_that_was_started() {
    need("/usr/bin/redis-server");
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let line = format!(
        "exec {} run --exec --memory-max 64M -- redis-server --port 0 --unixsocket {} --pidfile {} --dir {} --save ''",
        ebb().display(),
        path("socket"),
        path("pid"),
        path("")
    );
    let mut run = Launch::new("sh").args(["-c", &line]).start();
    let socket = path("socket");
    run.wait_until("its socket", |_| Connection::open(Path::new(&socket)).is_ok());
    // It listens first.
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

/// Readiness comes from the process that a service manager started.
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
fn a_service_manager_is_told_that_the_program_is_ready() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    python(READY).arg(folder.path().join("notify")).run().expect_line("well");
}

#[test]
fn an_ordinary_users_program_has_its_number_too() {
    let account = Account::new();
    account.follow_readme();
    let verify = account.program("verify");
    let line = format!(
        "sh -c 'echo $$; exec {} run --exec --memory-max 16M --report-file report -- sh -c \"echo \\$\\$; \
                        {verify} 40 3 5 1\"'; \
         left() {{ pgrep -u $USER -r R,S,D,T -x ebb; }}; \
         for i in $(seq 50); do [ -s report ] && ! left >/dev/null && break; sleep 0.1; done; cat report; left",
        account.ebb()
    );
    let outcome = account.run(&line);
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() > 4 && lines[0] == lines[1], "{text}\n{}", outcome.stderr);
    assert!(text.contains("ebb: pages evicted"), "{text}");
    assert_eq!(outcome.code(), 1, "no ebb is left: {text}");
}

/// A shell's job from before it became the program is none of the program's: nothing waits for it.
#[test]
fn children_from_before_are_none_of_the_run() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let file = folder.path().join("report");
    let line = format!(
        "sleep 60 & echo $!; exec {} run --exec --memory-max 64M --report json --report-file {} -- sh -c 'sleep 0.5'",
        ebb().display(),
        file.display()
    );
    let mut run = Launch::new("sh").args(["-c", &line]).start();
    run.wait_until("its end", |run| !is_alive(run.pid()));
    let began = Instant::now();
    while !run.root().find().ebb.is_empty() {
        assert!(began.elapsed() < GONE_WITHIN, "{}", run.root().find().dump());
        thread::sleep(Duration::from_millis(5));
    }
    let sleeper: i32 = run.stdout().trim().parse().expect("its number");
    assert!(is_alive(sleeper), "and nothing has ended it");
    send(sleeper, Signal::KILL);
    let report = fs::read_to_string(&file).expect("a report");
    assert!(report.contains("\"processes\":2,") && report.contains("\"unmanaged\":[]"), "{report}");
    run.finish().expect_code(0);
}

#[test]
fn a_run_inside_a_run() {
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
        "3",
        "5",
        "1",
    ]
    .map(str::to_owned);
    let [program, words @ ..] = inner;
    let plain = Launch::new(&verify).args(["40", "3", "5", "1"]).run();
    for options in ["", "--exec"] {
        let launch = Launch::new(&program).args(&words).limit(64 * MIB).options(options);
        // The outer run counts the program as one without an agent of its own, and may say so.
        assert_eq!(launch.run().expect_code(0).text(), plain.text());
    }
}

#[test]
fn what_cannot_be_executed_leaves_nothing() {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder");
    // The kernel looks for the loader that it names.
    let bytes = fs::read("/bin/true").expect("a program");
    let at = bytes.windows(8).position(|part| part == b"/lib64/l").expect("its loader");
    let (mut broken, path) = (bytes, folder.path().join("broken"));
    broken[at..at + 8].copy_from_slice(b"/nosuch/");
    fs::write(&path, broken).expect("a copy");
    Command::new("chmod").arg("+x").arg(&path).status().expect("chmod");
    let run = Launch::new(&path).limit(SMALL).options("--exec").start();
    let pid = run.pid();
    let tree = run.root().clone();
    let outcome = run.finish();
    outcome.expect_code(127);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("broken: No such file"), "{}", outcome.stderr);
    let left: Vec<i32> = tree.find().all().collect();
    assert!(left.is_empty() && folders(pid).is_empty(), "{left:?}");
}

#[test]
fn process_1_and_a_report_without_a_file_are_refused() {
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
    let outcome = Launch::new(&own).args(["run", "--exec", "--report", "json", "--", "true"]).run();
    outcome.expect_code(125);
    assert!(outcome.stderr.contains("--report-file"), "{}", outcome.stderr);
}
