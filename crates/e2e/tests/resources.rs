//! What surrounds a run: limits, standard streams, signals and descriptors that it inherits, folders that
//! others may write to, disks that are full, files of the system that are missing.
//!
//! Each test is a line for the shell, with `$ebb` and `$verify` (a program that takes 48 MiB and
//! checks each byte of it), run plainly where the same is to come out as with Ebb. Both are found
//! by PATH: a path of theirs may have a space. What a line has to wait for it reads from `$gate`,
//! which a line is written to when it has come.

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

/// Where runs are made by a line for the shell, this user can make one.
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

/// PATH, with the folders of these.
fn path_of(files: &[&Path]) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = files.iter().filter_map(|file| file.parent()).map(Path::to_owned);
    let mut all: Vec<PathBuf> = folders.collect();
    // The first before all others, the rest behind: programs of the tests have names of others.
    all.splice(1..1, std::env::split_paths(&path));
    std::env::join_paths(all).expect("a PATH")
}

/// The line, in whose folder `$folder` is a pipe `$gate`.
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

/// What the line says without Ebb it says with it: `$run` is nothing, or Ebb.
#[track_caller]
fn alike(line: &str) {
    let plain = shell(line).env("run", "").run();
    let text = run(line).expect_code(plain.code()).text();
    assert_eq!(text, plain.text(), "{line}");
}

/// Ebb fails with one line that has `word` in it.
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

/// The pager was killed by SIGXFSZ as soon as its file was larger than what the program may write.
#[test]
fn a_limit_of_file_sizes_is_not_the_pagers() {
    let line = "ulimit -Sf 1024; exec \"$ebb\" run --memory-max 16M --swap file -- $verify 48 1";
    let outcome = run(line);
    assert_eq!(outcome.expect_code(0).text(), right_answer(48));
}

/// The memory that agent and pager share is a file, too: under the hard limit it could not be made, or the program
/// was killed by SIGXFSZ.
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

/// The pool counts in it, which a program that needs nearly all of it must be told.
#[test]
fn a_limit_of_data_is_told_by_the_doctor() {
    let outcome = shell("ulimit -d 131072; exec \"$ebb\" doctor").run();
    assert!(outcome.text().contains("ulimit -d: soft 134217728"), "{}", outcome.text());
}

/// A run waited for ever when the pager could not take its program in.
#[test]
fn too_few_descriptors_are_told() {
    refused("ulimit -n 10; exec $run true", "ulimit -n");
}

/// Without descriptors the pager found nobody to kill, and all went on waiting for it. Programs that could
/// not be taken in may run on without an agent; where a fork cannot be followed the run ends.
#[test]
fn a_tree_that_needs_more_descriptors_than_there_are_ends() {
    // All nine are there before the first may end.
    let tree = "exec 3<>\"$gate\"; for n in 1 2 3 4 5 6 7 8 9; do sh -c \"read x <&3\" & done; \
                for n in 1 2 3 4 5 6 7 8 9; do echo >&3; done; wait";
    for _ in 0..10 {
        let outcome = gated(&format!("ulimit -n 40; exec $run sh -c '{tree}'"));
        assert!([0, 125, 137].contains(&outcome.code()), "{}", outcome.code());
        let told = ["Too many open files", "no descriptor is left"];
        assert!(told.iter().any(|text| outcome.stderr.contains(text)), "{}", outcome.stderr);
    }
}

/// The program's own limit of CPU time ends it as it would without Ebb.
#[test]
fn a_limit_of_cpu_time_is_the_programs() {
    alike("ulimit -t 1; $run sh -c 'while :; do :; done'");
    alike("ulimit -St 1; $run sh -c 'while :; do :; done'");
    alike("ulimit -St 1; $run sh -c 'trap \"echo told; exit 3\" XCPU; while :; do :; done'");
}

/// One that the pager may not lift, and reaches before any of the programs does.
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
    // Plainly nothing would go: nor does it with Ebb.
    let line = "ulimit -v 20000; exec $run $verify 48 1";
    assert_ne!(shell(line).env("run", "").run().code(), 0);
    assert_ne!(run(line).code(), 0);
}

/// What is out cannot be dumped, and is not waited for.
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

/// The language's runtime puts /dev/null where standard streams are closed.
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
    // Who ignores the ends of its children is told of none.
    let ignoring = "import os, signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); \
                    os.execvp('sh', ['sh', '-c', 'exec $run sh -c \"exit 7\"'])";
    let outcome = shell("exec python3 -c \"$python\"").env("python", ignoring).run();
    outcome.expect_code(7);
}

/// In the idle class of CPUs they were in that of disks, too, and each read waited until nobody wrote, 10 ms now and then.
#[test]
fn fault_threads_read_as_anybody_does() {
    // The program's parent's children: the pager is the other.
    let look = "for task in $(grep -lx faults /proc/[0-9]*/task/*/comm); do \
                thread=${task%/comm}; grep -qs __pager ${thread%/task/*}/cmdline || continue; \
                [ $(cut -d' ' -f4 ${thread%/task/*}/stat) = $PPID ] && ionice -p ${thread##*/}; done; true";
    let text = run(&format!("$run sh -c '{}'", look.replace('\'', "\""))).text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() >= 2, "{text}");
    assert!(lines.iter().all(|line| line.starts_with("best-effort: prio 4")), "{text}");
}

/// Front and pager held copies of all that was meant for the program.
#[test]
fn the_end_of_a_pipe_comes_when_the_program_closes_it() {
    // The program runs on until the end has come.
    let end = "read x <&3; echo $?; echo >\"$gate\"";
    let line = format!("exec 3< <($run sh -c 'exec >&-; read x <\"$gate\"' 2>/dev/null); {end}");
    assert_eq!(gated(&line).text(), "1\n", "the end");
    let line =
        format!("exec 3< <($run sh -c 'exec 7>&-; read x <\"$gate\"' 7>&1 >/dev/null 2>&1); {end}");
    assert_eq!(gated(&line).text(), "1\n", "a descriptor of the program's");
}

/// Where messages go the end comes with the end of the run: Ebb may have one to say until then.
#[test]
fn the_end_of_a_pipe_for_messages_too_comes_with_the_end_of_the_run() {
    // It is given a second to come too early.
    let line = "exec 3< <($run sh -c 'exec >&- 2>&-; read x <\"$gate\"' 2>&1); \
                read -t 1 x <&3; echo $?; echo >\"$gate\"; read x <&3; echo $?";
    assert_eq!(gated(line).text(), "142\n1\n");
}

#[test]
fn the_class_of_the_program_stays() {
    // The idle class gets a three-hundredth of a busy CPU: one process, which fills no memory, looks at its policy.
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

/// The loader splits LD_PRELOAD at spaces and colons and complained about the parts.
#[test]
fn a_runtime_folder_that_will_not_do_is_passed_over() {
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

/// A job queue, or an editor, keeps the environment of a run. The folder lay in /tmp, and whoever made it again had root's
/// next program run his code.
#[test]
fn a_kept_environment_names_nothing_that_another_user_can_make() {
    let outcome = shell("exec $run sh -c 'echo $LD_PRELOAD'").env("XDG_RUNTIME_DIR", "").run();
    let agent = outcome.expect_code(0).text();
    let place = Path::new(agent.trim()).parent().and_then(Path::parent).expect("a place");
    let user = rustix::process::getuid().as_raw();
    for folder in place.ancestors() {
        let of = fs::metadata(folder).expect("a folder");
        let of_others = of.permissions().mode() & 0o022 != 0 || ![0, user].contains(&of.uid());
        assert!(!of_others, "{} of {agent}", folder.display());
    }
}

/// It ends well and says nothing of its own.
#[track_caller]
fn fine(launch: &Launch) {
    let outcome = launch.run();
    outcome.expect_code(0);
    assert!(outcome.text().ends_with("fine\n"), "{}", outcome.text());
    let loader = outcome.stderr.lines().find(|line| line.contains("ld.so"));
    assert_eq!(loader, None, "{}", outcome.stderr);
}

/// The loader complained on the program's standard error that it could not load the agent: root's runtime folder is
/// root's alone.
#[test]
fn programs_started_as_another_user_are_told_nothing_by_the_loader() {
    need_root();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let own = shell("exec $run setpriv --reuid 65534 --clear-groups sh -c 'true; echo fine'");
    fine(&own.env("XDG_RUNTIME_DIR", folder.path()));
}

/// Commands for a shell that has the root of the system under `$root`, with folders of its own where runs put
/// theirs.
const OTHER_ROOT: &str = "mount -t tmpfs none \"$root\"; cd \"$root\"; \
    for d in /*; do [ -d \"$d\" ] && [ ! -L \"$d\" ] && mkdir \".$d\" && mount --rbind \"$d\" \".$d\"; done; \
    for d in /*; do [ -L \"$d\" ] && cp -P \"$d\" .; done; mount -t tmpfs none ./tmp; mount -t tmpfs none ./dev/shm; \
    mount -t tmpfs none ./var/tmp; mount -t tmpfs none ./run; cd /;";

/// The same where the agent's file is not there any more.
#[test]
fn programs_started_where_the_agent_is_not_are_told_nothing_by_the_loader() {
    need_root();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let inside = |line: &str| {
        shell("exec $run unshare -m sh -c \"$script\"")
            .env("root", folder.path())
            .env("script", line)
    };
    const HIDE: &str = "mount -t tmpfs none \"${EBB_SOCKET%/*}\"";
    fine(&inside(&format!("{HIDE}; true; sh -c 'true; echo fine'")));
    // A list that has others in it keeps them.
    let kept = "sh -c 'echo $LD_PRELOAD | grep -q ^libc.so.6$ && echo fine'";
    let export = "export LD_PRELOAD=$LD_PRELOAD:libc.so.6";
    fine(&inside(&format!("{export}; {HIDE}; {kept}")));
    fine(&inside(&format!("{OTHER_ROOT} chroot \"$root\" sh -c 'true; echo fine'")));
    let python = "import os, sys; os.chroot(sys.argv[1]); pid = os.posix_spawn('/bin/echo', ['echo', 'fine'], os.environ); os.waitpid(pid, 0)";
    fine(&inside(&format!("{OTHER_ROOT} exec python3 -c \"{python}\" \"$root\"")));
}

/// The agent shared root and folder with the program: to enter another mount namespace was EINVAL.
#[test]
fn another_mount_namespace_is_entered() {
    need_root();
    alike("$run nsenter --mount=/proc/$$/ns/mnt echo in");
    let enters = "import ctypes, os; libc = ctypes.CDLL(None); fd = os.open('/proc/self/ns/mnt', os.O_RDONLY); \
                  child = os.fork(); child and os.waitpid(child, 0); print(libc.setns(fd, 0x20000), flush=True)";
    need("/usr/bin/python3");
    alike(&format!("$run /usr/bin/python3 -c \"{enters}\""));
}

/// All of Ebb in another root.
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

/// Prepares, as another user, what a run of this process's number would find, and becomes that run.
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

/// What another user had put where a run's folder was to be was removed.
#[test]
fn nothing_of_another_users_is_removed() {
    need_root();
    let outcome = shell("exec python3 -c \"$python\"").env("python", PREPARED).run();
    assert_eq!(outcome.expect_code(0).text(), "precious\nprecious\n");
}

/// Somebody listens where the socket of this process's run would be, and takes nobody in.
const DEAF: &str = r#"
import os, shutil, socket, subprocess, sys
folder = "/tmp/ebb-%d-0123456789abcdef" % os.getpid()
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

/// `ebb stat` hung at a socket whose owner takes nobody in.
#[test]
fn a_listener_that_takes_nobody_in_is_not_waited_for() {
    let user = rustix::process::getuid();
    let deaf = |owner: u32| {
        let line = "exec $run python3 -c \"$python\"";
        shell(line).env("python", DEAF).env("owner", owner.to_string()).run()
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

/// A signal that came before the program was there left the folder behind.
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
fn full_disks_are_told_and_the_program_goes_on() {
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

/// A message that could not be written made the status that of a panic.
#[test]
fn a_full_standard_error_changes_no_status() {
    run("exec $run /no/such/program 2>/dev/full").expect_code(127);
    run("exec \"$ebb\" run --memory-max lots true 2>/dev/full").expect_code(125);
    run("exec \"$ebb\" stat 1 2>/dev/full").expect_code(1);
    run("exec \"$ebb\" run --memory-max 16M -- sh -c 'exit 3' 2>/dev/full").expect_code(3);
}

#[test]
fn a_system_without_its_files_is_told() {
    need_root();
    // Both also where nothing is mounted over them, wherever this repository is.
    let inside = |mounts: &str, ebb: &str| {
        format!(
            "exec unshare -m sh -c 'mount -t tmpfs none /mnt && touch /mnt/ebb /mnt/verify && \
             mount --bind \"$ebb\" /mnt/ebb && mount --bind \"$verify_file\" /mnt/verify || exit 9; \
             {mounts}; exec /mnt/ebb run {ebb}'"
        )
    };
    let verify = "--memory-max 16M --report-file /dev/null -- /mnt/verify 48 1";
    refused(&inside("umount -l /proc", verify), "/proc");
    // Without a report, which would be a file there.
    refused(&inside("mount -t tmpfs none /dev", "-- true"), "/dev/null");
    for mounts in [
        "mount -t proc -o subset=pid proc /proc",
        "mount -t proc -o hidepid=2 proc /proc",
        // The next place is taken.
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

/// A control group's limit, as seen in a mount namespace in which its file says 32 MiB.
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
