//! Tests the surroundings of a run: limits, streams, signals, descriptors, folders that others may
//! write to, full disks, missing files.
//!
//! Each test is a line for the shell with `$ebb` and `$verify`. `verify` is a program that fills
//! memory and checks each byte. Some tests compare the line with a plain run. PATH finds both
//! programs, because their paths may contain a space. A program waits for an event by a read from
//! `$gate`. The shell writes a line to `$gate` when the event has come.

use ebb_e2e::account::need_root;
use ebb_e2e::build::{ebb, program};
use ebb_e2e::launch::{Launch, Outcome};
use ebb_e2e::same::need;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;

/// Skips the test if this user cannot make a run, for tests in which a shell starts the runs.
fn need_ebb() {
    static CAN_RUN: OnceLock<bool> = OnceLock::new();
    let doctor = || Launch::new(ebb()).args(["doctor", "--format", "json"]).run().text();
    let can_run = || doctor().replace(' ', "").contains("\"can_run\":true");
    if !CAN_RUN.get_or_init(can_run) {
        ebb_testing::skip("this user may not page programs: see `ebb doctor`");
    }
}

fn shell(line: &str) -> Launch {
    need_ebb();
    let (ebb, verify) = (ebb(), program("verify"));
    let name = |path: &Path| path.file_name().expect("a name").display().to_string();
    Launch::new("bash")
        .args(["-c", line])
        .env("PATH", path_of(&[ebb, &verify]))
        .env("ebb", ebb)
        .env("run", format!("{} run --memory-max 16M --report-file /dev/null --", name(ebb)))
        .env("verify", name(&verify))
        .env("verify_file", &verify)
}

/// Returns PATH with the folders of these files.
fn path_of(files: &[&Path]) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = files.iter().filter_map(|file| file.parent()).map(Path::to_owned);
    let mut all: Vec<PathBuf> = folders.collect();
    // The first folder goes before PATH and the rest behind it, because test programs share names
    // with system programs.
    all.splice(1..1, std::env::split_paths(&path));
    std::env::join_paths(all).expect("a PATH")
}

/// Runs a line for which `$gate` is a named pipe in a folder of the test.
fn gated(line: &str) -> Outcome {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let gate = folder.path().join("gate");
    shell(&format!("mkfifo \"$gate\"; {line}")).env("gate", gate).run()
}

fn run(line: &str) -> Outcome {
    shell(line).run()
}

fn right_answer(mib: u32) -> String {
    Launch::program("verify", &format!("{mib} 1")).run().text()
}

/// Checks that a line prints the same without and with Ebb. `$run` is empty, or Ebb.
#[track_caller]
fn alike(line: &str) {
    let plain = shell(line).env("run", "").run();
    let text = run(line).expect_code(plain.code()).text();
    assert_eq!(text, plain.text(), "{line}");
}

/// Checks that Ebb fails with one line that has `word` in it.
#[track_caller]
fn refused(line: &str, word: &str) {
    let outcome = run(line);
    let stderr = &outcome.stderr;
    outcome.expect_code(125);
    assert!(stderr.lines().count() == 1 && stderr.contains(word), "{line}: {stderr}");
}

fn is_root() -> bool {
    rustix::process::getuid().is_root()
}

// ---- limits ----------------------------------------------------------------------------------

#[test]
fn limits_of_the_program_stay_as_they_were() {
    alike(
        "ulimit -t 100; ulimit -Sn 200; ulimit -Sf 4096; ulimit -c 0; $run bash -c 'ulimit -Sa; ulimit -Ha'",
    );
}

/// Shows that the program's limit of file sizes does not apply to the pager. SIGXFSZ kills a pager
/// whose file exceeds it.
#[test]
fn a_limit_of_file_sizes_is_not_the_pagers() {
    let line = "ulimit -Sf 1024; exec \"$ebb\" run --memory-max 16M --swap file -- $verify 48 1";
    let outcome = run(line);
    assert_eq!(outcome.expect_code(0).text(), right_answer(48));
}

/// Shows that a hard limit of file sizes does not apply to the memory that agent and pager share.
/// Otherwise the agent could not create that memory, which is a file, or SIGXFSZ would kill the
/// program.
#[test]
fn a_hard_limit_of_file_sizes_leaves_the_agent_its_memory() {
    let script = "x = b''.join(b'%-4096d' % i for i in range(8000)); import os; \
                  c = os.fork(); print(sum(x[i * 4096:i * 4096 + 9].split()[0] == b'%d' % i \
                  for i in range(8000)), flush=True) if c == 0 else os.waitpid(c, 0)";
    need("/usr/bin/python3");
    let line = "ulimit -f 64; exec \"$ebb\" run --memory-max 16M --swap ram --report json";
    let outcome = run(&format!("{line} -- /usr/bin/python3 -c \"{script}\""));
    assert_eq!(outcome.expect_code(0).text(), "8000\n");
    assert!(outcome.figure("pages_evicted") > 1000, "{}", outcome.stderr);
}

#[test]
fn limits_of_data_stacks_and_locked_memory_leave_room() {
    for (limits, mib) in [
        ("-l 0", 24),
        ("-s 64", 24),
        ("-s 128", 24),
        ("-s unlimited", 24),
        ("-d 131072", 24),
        ("-l 0 -s 128 -d 131072", 48),
    ] {
        let outcome = run(&format!("ulimit {limits}; exec $run $verify {mib} 1"));
        assert_eq!(outcome.expect_code(0).text(), right_answer(mib), "ulimit {limits}");
    }
}

/// Shows that the doctor reports a limit of data. The pool counts in that limit, which matters to a
/// program that needs nearly all of it.
#[test]
fn the_doctor_reports_a_limit_of_data() {
    let outcome = shell("ulimit -d 131072; exec \"$ebb\" doctor").run();
    assert!(outcome.text().contains("ulimit -d: soft 134217728"), "{}", outcome.text());
}

/// Shows that too few descriptors are reported. A run must not wait for ever when the pager cannot
/// take its program in.
#[test]
fn too_few_descriptors_are_reported() {
    refused("ulimit -n 10; exec $run true", "ulimit -n");
}

/// Shows that a tree which needs more descriptors than there are ends. Without descriptors the
/// pager must still find the processes to kill. Programs that cannot join may run on without an
/// agent, but a fork that cannot be followed ends the run.
#[test]
fn a_tree_that_needs_more_descriptors_than_there_are_ends() {
    // All nine processes exist before the first may end.
    let tree = "exec 3<>\"$gate\"; for n in 1 2 3 4 5 6 7 8 9; do sh -c \"read x <&3\" & done; \
                for n in 1 2 3 4 5 6 7 8 9; do echo >&3; done; wait";
    for _ in 0..10 {
        let outcome = gated(&format!("ulimit -n 40; exec $run sh -c '{tree}'"));
        assert!([0, 125, 137].contains(&outcome.code()), "{}", outcome.code());
        let told = ["Too many open files", "no descriptor is left"];
        assert!(told.iter().any(|text| outcome.stderr.contains(text)), "{}", outcome.stderr);
    }
}

/// Shows that the program's own limit of CPU time ends it as without Ebb.
#[test]
fn a_limit_of_cpu_time_is_the_programs() {
    alike("ulimit -t 1; $run sh -c 'while :; do :; done'");
    alike("ulimit -St 1; $run sh -c 'while :; do :; done'");
    alike("ulimit -St 1; $run sh -c 'trap \"echo told; exit 3\" XCPU; while :; do :; done'");
}

/// Shows that Ebb names the limit of CPU time when the pager reaches it. In this test the pager may
/// not lift the limit, and reaches it before any program does.
#[test]
fn a_limit_of_cpu_time_that_the_pager_reaches_is_named() {
    need_root();
    let many = "while :; do $verify 48 1 >/dev/null; done";
    let line = format!(
        "exec setpriv --bounding-set=-sys_resource --inh-caps=-all \
         bash -c 'ulimit -St 3; ulimit -Ht 4; exec $run bash -c \"{many}\"'"
    );
    let outcome = run(&line);
    outcome.expect_code(125);
    assert!(outcome.stderr.contains("4 s of CPU time"), "{}", outcome.stderr);
}

#[test]
fn a_limit_of_address_space_leaves_room() {
    let outcome = run("ulimit -v 400000; exec $run $verify 48 1");
    assert_eq!(outcome.expect_code(0).text(), right_answer(48));
    // With this limit the plain program fails, and so does the run.
    let line = "ulimit -v 20000; exec $run $verify 48 1";
    assert_ne!(shell(line).env("run", "").run().code(), 0);
    assert_ne!(run(line).code(), 0);
}

/// Shows that a core dump does not wait for stored pages, which it cannot contain.
#[test]
fn a_program_that_dumps_core_ends_as_it_would() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let line = "cd \"$odd\"; ulimit -c unlimited; exec $run process crash 48";
    let path = path_of(&[ebb(), &program("process")]);
    let launch = shell(line).env("odd", folder.path()).env("PATH", path);
    let plain = launch.clone().env("run", "").run();
    launch.run().expect_code(plain.code());
}

// ---- streams, signals, descriptors -----------------------------------------------------------

/// Shows that closed streams stay closed. Rust's runtime opens /dev/null in their place.
#[test]
fn closed_streams_stay_closed() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let seen = folder.path().join("seen");
    let program = format!(
        "sh -c 's=; for n in 0 1 2; do [ -e /proc/$$/fd/$n ] && s=$s+ || s=$s-; done; echo $s >\"{}\"; exit 7'",
        seen.display()
    );
    for (closed, streams) in
        [("<&-", "-++"), (">&-", "+-+"), ("2>&-", "++-"), ("<&- >&- 2>&-", "---")]
    {
        run(&format!("$run {program} {closed}")).expect_code(7);
        let seen = fs::read_to_string(&seen).expect("the program ran");
        assert_eq!(seen.trim(), streams, "{closed}");
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    alike("trap '' PIPE XFSZ XCPU; $run grep SigIgn /proc/self/status");
    alike("$run grep SigIgn /proc/self/status");
    // A parent that ignores SIGCHLD gets no report of the ends of its children.
    let ignoring = "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                    os.execvp('sh', ['sh', '-c', 'exec $run sh -c \"exit 7\"'])";
    let outcome = shell("exec python3 -c \"$python\"").env("python", ignoring).run();
    outcome.expect_code(7);
}

/// Shows that fault threads have the normal I/O class. The idle CPU class implies the idle I/O
/// class. A read in that class waits until no process writes, at times for 10 ms.
#[test]
fn fault_threads_have_the_normal_io_class() {
    // The program and the pager are the two children of the supervisor. A thread takes its name and
    // its class when it first runs.
    let look = "look() { for task in $(grep -lxs faults /proc/[0-9]*/task/*/comm); do \
                thread=${task%/comm}; grep -qs __pager ${thread%/task/*}/cmdline || continue; \
                [ $(cut -d' ' -f4 ${thread%/task/*}/stat) = $PPID ] && ionice -p ${thread##*/}; \
                done; true; }; until found=$(look) && [ -n '$found' ]; do :; done; echo '$found'";
    let text = run(&format!("$run sh -c '{}'", look.replace('\'', "\""))).text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(!lines.is_empty(), "{text}");
    assert!(lines.iter().all(|line| line.starts_with("best-effort: prio 4")), "{text}");
}

/// Shows that supervisor and pager keep no copies of the descriptors meant for the program.
#[test]
fn the_end_of_a_pipe_comes_when_the_program_closes_it() {
    // The program runs on until the end of the pipe has come.
    let end = "read x <&3; echo $?; echo >\"$gate\"";
    let line = format!("exec 3< <($run sh -c 'exec >&-; read x <\"$gate\"' 2>/dev/null); {end}");
    assert_eq!(gated(&line).text(), "1\n", "the end");
    let line =
        format!("exec 3< <($run sh -c 'exec 7>&-; read x <\"$gate\"' 7>&1 >/dev/null 2>&1); {end}");
    assert_eq!(gated(&line).text(), "1\n", "a descriptor of the program's");
}

/// Shows that a pipe that also gets messages ends only with the run. Ebb may print a message until
/// then.
#[test]
fn the_end_of_a_pipe_for_messages_too_comes_with_the_end_of_the_run() {
    // The read waits for a second to see that the end does not come too early.
    let line = "exec 3< <($run sh -c 'exec >&- 2>&-; read x <\"$gate\"' 2>&1); \
                read -t 1 x <&3; echo $?; echo >\"$gate\"; read x <&3; echo $?";
    assert_eq!(gated(line).text(), "142\n1\n");
}

#[test]
fn the_scheduling_class_of_the_program_stays() {
    // The idle class gets a three-hundredth of a busy CPU. So only one process, which fills no
    // memory, reads its policy.
    alike("chrt -i 0 $run cut -d' ' -f41 /proc/self/stat");
    for before in ["chrt -b 0", "nice -n 19", "taskset -c 0"] {
        alike(&format!(
            "{before} $run sh -c 'chrt -p $$ | sed s/.*current//; nice; taskset -p $$ | sed s/.*current//'"
        ));
        let outcome = run(&format!("{before} $run $verify 20 1"));
        assert_eq!(outcome.expect_code(0).text(), right_answer(20), "{before}");
    }
}

// ---- folders ---------------------------------------------------------------------------------

/// Shows that a runtime folder with a space or a colon in its path is not used. The loader splits
/// LD_PRELOAD there and complains about the parts.
#[test]
fn an_unsuitable_runtime_folder_is_passed_over() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let make = |name: &str, mode: u32| {
        let path = folder.path().join(name);
        fs::create_dir_all(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("its mode");
        path.display().to_string()
    };
    let mut places = vec![
        make("with space", 0o700),
        make("with:colon", 0o700),
        make(&"long".repeat(25), 0o700),
        make("for-all", 0o777),
        make("$ORIGIN", 0o700),
        "relative".to_owned(),
        "/no/such/folder".to_owned(),
        "/etc/passwd".to_owned(),
        String::new(),
    ];
    if is_root() {
        let theirs = make("theirs", 0o700);
        chown(&theirs, Some(65534), None).expect("another owner");
        places.push(theirs);
    }
    for place in places {
        let outcome =
            shell("exec $run sh -c 'echo $EBB_SOCKET'").env("XDG_RUNTIME_DIR", &place).run();
        let socket = outcome.expect_code(0).text();
        let is_elsewhere = place.is_empty() || !socket.starts_with(&place);
        assert!(socket.contains("/ebb-") && is_elsewhere, "{place}: {socket}");
        assert_eq!(outcome.stderr, "", "{place}");
    }
    let good = make("good", 0o755);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let outcome = shell("exec $run sh -c 'echo $EBB_SOCKET'").env("XDG_RUNTIME_DIR", &good).run();
    assert!(outcome.text().starts_with(&good), "{}", outcome.text());
}

/// Shows that a kept environment names no path that another user can create. A job queue or an
/// editor keeps the environment of a run. If the path were in /tmp, another user could create it
/// again. Then root's next program would run that user's code.
#[test]
fn a_kept_environment_names_nothing_that_another_user_can_make() {
    let outcome = shell("exec $run sh -c 'eval echo $LD_PRELOAD'").env("XDG_RUNTIME_DIR", "").run();
    let agent = outcome.expect_code(0).text();
    let place = Path::new(agent.trim());
    assert!(place.file_name().is_some_and(|name| name == "agent.so"), "{agent}");
    let place = place.parent().and_then(Path::parent).expect("a place");
    let user = rustix::process::getuid().as_raw();
    for folder in place.ancestors() {
        let of = fs::metadata(folder).expect("a folder");
        let of_others = of.permissions().mode() & 0o022 != 0 || ![0, user].contains(&of.uid());
        assert!(!of_others, "{} of {agent}", folder.display());
    }
}

/// Checks that the launch ends well and that the loader (`ld.so`) prints no message.
#[track_caller]
fn fine(launch: &Launch) {
    let outcome = launch.run();
    outcome.expect_code(0);
    assert!(outcome.text().ends_with("fine\n"), "{}", outcome.text());
    let loader = outcome.stderr.lines().find(|line| line.contains("ld.so"));
    assert_eq!(loader, None, "{}", outcome.stderr);
}

/// Shows that the loader prints no error in programs started as another user. Root's runtime folder
/// is root's alone, so the agent there cannot be loaded.
#[test]
fn the_loader_prints_no_error_in_programs_of_another_user() {
    need_root();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let own = shell("exec $run setpriv --reuid 65534 --clear-groups sh -c 'true; echo fine'");
    fine(&own.env("XDG_RUNTIME_DIR", folder.path()));
}

/// Shell commands that mount the root of the system under `$root`, with separate directories where
/// runs put their folders.
const OTHER_ROOT: &str = "mount -t tmpfs none \"$root\"; cd \"$root\"; \
    for d in /*; do [ -d \"$d\" ] && [ ! -L \"$d\" ] && mkdir \".$d\" && mount --rbind \"$d\" \".$d\"; done; \
    for d in /*; do [ -L \"$d\" ] && cp -P \"$d\" .; done; mount -t tmpfs none ./tmp; mount -t tmpfs none ./dev/shm; \
    mount -t tmpfs none ./var/tmp; mount -t tmpfs none ./run; cd /;";

/// Shows that the loader prints no error where the agent's file no longer exists.
#[test]
fn the_loader_prints_no_error_where_the_file_of_the_agent_is_missing() {
    need_root();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let inside = |line: &str| {
        shell("exec $run unshare -m sh -c \"$script\"")
            .env("root", folder.path())
            .env("script", line)
    };
    const HIDE: &str = "mount -t tmpfs none \"${EBB_SOCKET%/*}\"";
    fine(&inside(&format!("{HIDE}; true; sh -c 'true; echo fine'")));
    // A list with other libraries in it keeps them.
    let kept = "sh -c 'echo $LD_PRELOAD | grep -q ^libc.so.6$ && echo fine'";
    let export = "export LD_PRELOAD=$LD_PRELOAD:libc.so.6";
    fine(&inside(&format!("{export}; {HIDE}; {kept}")));
    fine(&inside(&format!("{OTHER_ROOT} chroot \"$root\" sh -c 'true; echo fine'")));
    let python = "import os, sys; os.chroot(sys.argv[1]); pid = os.posix_spawn('/bin/echo', ['echo', 'fine'], os.environ); os.waitpid(pid, 0)";
    fine(&inside(&format!("{OTHER_ROOT} exec python3 -c \"{python}\" \"$root\"")));
}

/// Shows that another mount namespace can be entered. If the agent shares root and working
/// directory with the program, that fails with EINVAL.
#[test]
fn another_mount_namespace_is_entered() {
    need_root();
    alike("$run nsenter --mount=/proc/$$/ns/mnt echo in");
    let enters = "import ctypes, os; libc = ctypes.CDLL(None); fd = os.open('/proc/self/ns/mnt', os.O_RDONLY); \
                  child = os.fork(); child and os.waitpid(child, 0); print(libc.setns(fd, 0x20000), flush=True)";
    need("/usr/bin/python3");
    alike(&format!("$run /usr/bin/python3 -c \"{enters}\""));
}

/// Runs all of Ebb in another root.
#[test]
fn a_run_in_another_root() {
    need_root();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let line = format!(
        "{OTHER_ROOT} cp \"$ebb\" \"$root/tmp/ebb\"; cp \"$verify_file\" \"$root/tmp/verify\"; \
         exec chroot \"$root\" /tmp/ebb run --memory-max 16M --report json -- /tmp/verify 48 1"
    );
    let outcome = shell("exec unshare -m sh -c \"$script\"")
        .env("root", folder.path())
        .env("script", line)
        .run();
    assert_eq!(outcome.expect_code(0).text(), right_answer(48));
    assert!(outcome.figure("pages_evicted") > 1000, "{}", outcome.stderr);
}

/// Creates the paths that a run with this process's PID would use, for another user. Then becomes
/// that run.
const PREPARED: &str = r#"
import os, sys
places = ["/tmp/ebb-%d" % os.getpid(), "/tmp/ebb-%d-0123456789abcdef" % os.getpid()]
for place in places:
    os.mkdir(place)
    open(place + "/precious", "w").close()
    for path in place + "/precious", place:
        os.chown(path, 65534, 65534)
script = "for p in %s; do ls $p; rm -r $p; done" % " ".join(places)
os.execv(os.environ["ebb"], ["ebb", "run", "--memory-max", "16M", "--report-file", "/dev/null", "--", "sh", "-c", script])
"#;

/// Shows that Ebb removes nothing of another user at the path of a run's folder.
#[test]
fn nothing_of_another_users_is_removed() {
    need_root();
    let outcome = shell("exec python3 -c \"$python\"").env("python", PREPARED).run();
    assert_eq!(outcome.expect_code(0).text(), "precious\nprecious\n");
}

/// Listens where the socket of this process's run would be, and accepts no connection.
const DEAF: &str = r#"
import os, shutil, socket, subprocess, sys
folder = os.environ["XDG_RUNTIME_DIR"] + "/ebb-%d-0123456789abcdef" % os.getpid()
os.mkdir(folder)
deaf = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
deaf.bind(folder + "/socket")
deaf.listen(0)
callers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2)]
for caller in callers:
    caller.setblocking(False)
    try:
        caller.connect(folder + "/socket")
    except BlockingIOError:
        pass
if os.environ["owner"] != "0":
    os.chown(folder, int(os.environ["owner"]), -1)
done = subprocess.run([os.environ["ebb"], "stat", str(os.getpid())], capture_output=True, text=True)
shutil.rmtree(folder)
print(done.returncode, "ebb_nr_limit" in done.stdout)
"#;

/// Shows that `ebb stat` does not hang at a socket whose owner accepts no connection.
#[test]
fn ebb_stat_does_not_wait_for_a_socket_that_accepts_no_connection() {
    let user = rustix::process::getuid();
    // The commands of other tests connect to every run in the common directories.
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let deaf = |owner: u32| {
        let line = "exec $run python3 -c \"$python\"";
        let launch = shell(line).env("python", DEAF).env("owner", owner.to_string());
        launch.env("XDG_RUNTIME_DIR", folder.path()).run()
    };
    assert_eq!(deaf(0).expect_code(0).text(), "1 False\n", "one's own");
    if user.is_root() {
        assert_eq!(deaf(65534).expect_code(0).text(), "0 True\n", "another user's");
    }
}

/// Ends runs as soon as they have made their folder.
const EARLY: &str = r#"
import os, select, subprocess, sys
words = [os.environ["ebb"], "run", "--memory-max", "16M", "--report-file", "/dev/null", "--", "tail", "-f", "/dev/null"]
place = os.environ["XDG_RUNTIME_DIR"]
for _ in range(10):
    run = subprocess.Popen(words)
    while not os.listdir(place) and run.poll() is None:
        pass
    run.terminate()
    run.wait()
    while os.listdir(place):
        select.select([], [], [], 0.01)
    print("none")
"#;

/// Shows that a signal before the program's start leaves no folder behind.
#[test]
fn a_run_ended_early_leaves_no_folder() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let python = shell("exec python3 -c \"$python\"").env("python", EARLY);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let outcome = python.env("XDG_RUNTIME_DIR", folder.path()).run();
    assert_eq!(outcome.expect_code(0).text(), "none\n".repeat(10));
}

// ---- what is full or missing -----------------------------------------------------------------

#[test]
fn full_disks_are_reported_and_the_program_goes_on() {
    let outcome =
        run("exec \"$ebb\" run --memory-max 16M --report-file /dev/full -- sh -c 'exit 3'");
    outcome.expect_code(3);
    assert!(
        outcome.stderr.contains("cannot write the report: No space left"),
        "{}",
        outcome.stderr
    );
    let line = "exec \"$ebb\" run --memory-max 16M --report-file /dev/null --record /dev/full -- $verify 48 1";
    let outcome = run(line);
    assert_eq!(outcome.expect_code(0).text(), right_answer(48));
    assert!(outcome.stderr.contains("is not complete: No space left"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("too slow"), "{}", outcome.stderr);
}

/// Shows that a message that cannot be written does not change the exit status.
#[test]
fn a_full_standard_error_changes_no_status() {
    run("exec $run /no/such/program 2>/dev/full").expect_code(127);
    run("exec \"$ebb\" run --memory-max lots true 2>/dev/full").expect_code(125);
    run("exec \"$ebb\" stat 1 2>/dev/full").expect_code(1);
    run("exec \"$ebb\" run --memory-max 16M -- sh -c 'exit 3' 2>/dev/full").expect_code(3);
}

#[test]
fn a_run_without_proc_or_dev_null_is_refused() {
    need_root();
    // Both programs are mounted in /mnt, because a test may mount over the folder of this
    // repository.
    let inside = |mounts: &str, ebb: &str| {
        format!(
            "exec unshare -m sh -c 'mount -t tmpfs none /mnt && touch /mnt/ebb /mnt/verify && \
             mount --bind \"$ebb\" /mnt/ebb && mount --bind \"$verify_file\" /mnt/verify || exit 9; \
             {mounts}; exec /mnt/ebb run {ebb}'"
        )
    };
    let verify = "--memory-max 16M --report-file /dev/null -- /mnt/verify 48 1";
    refused(&inside("umount -l /proc", verify), "/proc");
    // This run has no report file, because the file would be in the new /dev.
    refused(&inside("mount -t tmpfs none /dev", "-- true"), "/dev/null");
    for mounts in [
        "mount -t proc -o subset=pid proc /proc",
        "mount -t proc -o hidepid=2 proc /proc",
        // The run uses the next directory of its list.
        "mount -t tmpfs -o ro none /tmp",
        "mount -t tmpfs -o size=4k none /tmp",
    ] {
        let outcome = run(&inside(mounts, verify));
        assert_eq!(outcome.expect_code(0).text(), right_answer(48), "{mounts}");
    }
}

#[test]
fn names_and_environments_of_any_kind() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let name = folder.path().join("odd");
    fs::copy("/bin/echo", &name).expect("a copy");
    let line = "cd \"$(dirname \"$odd\")\"; mv odd $'odd\\xff'; exec $run ./$'odd\\xff' fine";
    assert_eq!(run_with(line, &name).expect_code(0).text(), "fine\n");
    // An empty entry of PATH is the current folder.
    let line = "cd \"$(dirname \"$odd\")\"; mv $'odd\\xff' odd; PATH=:/nowhere; exec \"$ebb\" ${run#* } odd fine";
    assert_eq!(run_with(line, &name).expect_code(0).text(), "fine\n");
    assert_eq!(
        run("unset PATH; exec \"$ebb\" ${run#* } echo fine").expect_code(0).text(),
        "fine\n"
    );
    assert_eq!(run("exec env -i \"$ebb\" ${run#* } echo fine").expect_code(0).text(), "fine\n");
}

fn run_with(line: &str, odd: &Path) -> Outcome {
    shell(line).env("odd", odd).run()
}

/// Runs in a mount namespace in which the file of a control group's limit says 32 MiB.
const GROUPED: &str = "exec unshare -m bash -c '
    second=/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/memory.max
    for file in $second /sys/fs/cgroup/memory/memory.limit_in_bytes; do
        [ -e $file ] || continue
        mount -t tmpfs none /mnt && echo 33554432 >/mnt/limit && mount --bind /mnt/limit $file || exit 9
        eval \"$inside\"
        exit
    done
    echo none
'";

#[test]
fn percentages_are_of_what_the_control_group_allows() {
    need_root();
    let grouped = |inside: &str| shell(GROUPED).env("inside", inside).run();
    let outcome = grouped("\"$ebb\" run --memory-max 50% --report json -- true");
    if outcome.text() == "none\n" {
        ebb_testing::skip("it needs a group for memory");
    }
    outcome.expect_code(0);
    assert!(outcome.stderr.contains("\"memory_max_bytes\":16777216"), "{}", outcome.stderr);
    let outcome = grouped("\"$ebb\" run --memory-max 64M --report-file /dev/null -- true");
    assert_eq!(outcome.expect_code(0).stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the control group allows (32 MiB"), "{}", outcome.stderr);
    let outcome = grouped("\"$ebb\" doctor");
    assert!(outcome.text().contains("32 MiB (/sys/fs/cgroup"), "{}", outcome.text());
}
