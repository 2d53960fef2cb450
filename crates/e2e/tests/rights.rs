//! Tests permissions: the `ebb` of an ordinary user, set up as the README and `ebb doctor` say.
//! Also tests attacks that such an `ebb` must resist. The user's commands run in a login shell of
//! an account made for the test.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use ebb_control::{ControlError, Limits, Request, answer_to_bytes};
use ebb_e2e::account::Account;
use ebb_e2e::build;
use ebb_e2e::launch::{Launch, Outcome, Running};
use ebb_e2e::same::need;
use ebb_pager::{Config, ReportFormat, SupervisorMessage};
use ebb_testing::skip;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;

/// Largest number of rounds of `ebb doctor` until no required feature is missing.
const ROUNDS_MAX: usize = 4;

/// Makes an account whose `ebb` may run.
fn able() -> Account {
    need("/usr/bin/setfacl");
    need("/usr/sbin/setcap");
    let account = Account::new();
    account.follow_readme();
    account
}

/// Runs a program of the account's folder in 16 MiB, with a JSON report on standard error.
fn in_little(account: &Account, command: &str) -> Outcome {
    account.run(&format!("{} run --memory-max 16M --report json -- {command}", account.ebb()))
}

fn right_answer() -> String {
    Launch::program("verify", "48 1").run().text()
}

#[track_caller]
fn expect_paged(outcome: &Outcome, text: &str) {
    outcome.expect_code(0);
    assert_eq!(outcome.text(), text, "{}", outcome.stderr);
    assert!(outcome.figure("pages_evicted") > 1000, "{}", outcome.stderr);
}

/// Shows that the README's recipe works for an ordinary user. The probe of the page map must not
/// open a file of its own process. That file is root's if the program has file capabilities.
#[test]
fn the_readmes_recipe_works_for_an_ordinary_user() {
    let account = able();
    let (verify, process) = (account.program("verify"), account.program("process"));
    expect_paged(&in_little(&account, &format!("{verify} 48 1")), &right_answer());
    expect_paged(&in_little(&account, &format!("{process} fork 48")), "fork: ok\n");
    let outcome = in_little(&account, "sh -c 'grep CapEff /proc/self/status'");
    assert_eq!(outcome.expect_code(0).text(), "CapEff:\t0000000000000000\n", "handed on");
}

/// Shows that a program gets its variables and streams although the file of `ebb` has
/// capabilities. The C library takes some variables from such a program, and opens its closed
/// streams.
#[test]
fn a_program_gets_the_variables_and_streams_that_the_c_library_takes_from_ebb() {
    let account = able();
    let taken = "LD_LIBRARY_PATH=/nowhere LOCPATH=/nowhere TMPDIR=/var/tmp TZDIR=/nowhere";
    let seen = "for n in 0 1 2; do [ -e /proc/$$/fd/$n ] && s=$s+ || s=$s-; done; \
                echo $LD_LIBRARY_PATH $LOCPATH $TMPDIR $TZDIR $s > seen";
    let file = account.home().join("seen");
    for streams in ["<&-", ">&-", "2>&-", "</dev/full >/dev/null"] {
        let line = |ebb: &str| format!("export {taken}; exec {ebb} sh -c '{seen}' {streams}");
        let run = |ebb: &str| {
            account.shell(&line(ebb)).run().expect_code(0);
            fs::read_to_string(&file).expect("the program ran")
        };
        let ebb = format!("{} run --quiet --memory-max 64M --", account.ebb());
        assert_eq!(run(&ebb), run(""), "{streams}");
    }
}

/// Returns the environment of the run's process whose arguments begin with these words.
fn environment_of(run: &Running, words: &[&str]) -> String {
    let begin: String = words.iter().map(|word| format!("{word}\0")).collect();
    let text = |pid, file| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let tree = run.root().descendants();
    let found = tree.all().find(|&pid| text(pid, "cmdline").starts_with(&begin));
    found.map_or_else(String::new, |pid| text(pid, "environ"))
}

/// Shows that Ebb's own processes do not get these variables. The C library loads code by some of
/// them, and that code would have the capability of the file.
#[test]
fn a_variable_by_which_the_c_library_loads_code_stays_out_of_ebb() {
    let account = able();
    let ebb = account.ebb();
    let line =
        format!("export GCONV_PATH=/nowhere; exec {ebb} run --quiet --memory-max 64M sleep 1000");
    let mut run = account.shell(&line).start();
    run.wait_until("the program", |run| {
        environment_of(run, &["sleep", "1000"]).contains("GCONV_PATH=/nowhere\0")
    });
    let of_pager = environment_of(&run, &["/proc/self/exe", "__pager"]);
    assert!(of_pager.contains("PATH=") && !of_pager.contains("GCONV_PATH"), "{of_pager}");
    run.signal(Signal::TERM);
    run.finish().expect_code(128 + 15);
}

/// Shows that too few processes are reported. Root has no such limit.
#[test]
fn too_few_processes_are_reported() {
    let account = able();
    let mut refused = 0;
    for most in 2..14 {
        let line =
            format!("exec prlimit --nproc={most} {} run --memory-max 16M true", account.ebb());
        let outcome = account.shell(&line).run();
        if outcome.code() != 0 {
            outcome.expect_code(125);
            assert!(outcome.stderr.contains("ulimit -u"), "{most}: {}", outcome.stderr);
            refused += 1;
        }
    }
    assert!(refused > 0);
}

/// Shows that a program that makes itself undumpable is served. From then on root owns its files in
/// /proc.
#[test]
fn a_program_that_makes_itself_undumpable_is_served_for_an_ordinary_user() {
    let account = able();
    let command = format!("{} undumpable 48", account.program("process"));
    expect_paged(&in_little(&account, &command), "undumpable: ok\n");
}

/// Shows that the child of a hidden process reads its inherited pages. The pager can open nothing
/// of such a child in /proc. Without another way out for its standby pages the run is out of
/// memory.
#[test]
fn the_child_of_a_hidden_process_reads_what_it_inherited() {
    let account = able();
    let process = account.program("process");
    let outcome = in_little(&account, &format!("{process} hidden 24"));
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "hidden: ok\n", "{}", outcome.stderr);
}

/// Shows that a daemon of a hidden process reads its inherited pages. The pager cannot identify the
/// daemon's parent in /proc, and the run must not be killed for that.
#[test]
fn a_daemon_of_a_hidden_process_reads_what_it_inherited() {
    let account = able();
    let (process, word) = (account.program("process"), account.home().join("word"));
    let outcome = in_little(&account, &format!("{process} hidden-daemon 24 {}", word.display()));
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "hidden-daemon: left\n", "{}", outcome.stderr);
    let word = fs::read_to_string(word).unwrap_or_default();
    assert_eq!(word, "hidden-daemon: ok\n", "{}", outcome.stderr);
}

/// Shows that children in user namespaces of their own are paged. Such a child has capabilities
/// that its user lacks, but its standby pages must stay readable.
#[test]
fn children_in_user_namespaces_of_their_own_are_paged_for_an_ordinary_user() {
    let account = able();
    let outcome = in_little(&account, &format!("{} new-user 24", account.program("process")));
    if outcome.text() == "new-user: refused\n" {
        skip("this machine lets ordinary users have no user namespaces");
    }
    expect_paged(&outcome, "new-user: ok\n");
}

/// Shows that the agent gets into static Go programs with the user's own rights only. Either the
/// run or another program starts them.
#[test]
fn static_programs_of_go_are_paged_for_an_ordinary_user() {
    let account = able();
    let program = account.go_program();
    expect_paged(&in_little(&account, &format!("{program} waits 48 paged")), "waits: ok\n");
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let can_be_met = yama.trim().is_empty() || yama.trim() == "0";
    let paged = if can_be_met { "paged" } else { "" };
    let others = format!("sh -c '{program} waits 48 {paged}; true'");
    let outcome = in_little(&account, &others);
    if can_be_met {
        expect_paged(&outcome, "waits: ok\n");
    } else {
        outcome.expect_code(0);
        assert!(outcome.stderr.contains("statically linked"), "{}", outcome.stderr);
    }
}

/// Shows that a child which hides itself first has joined before. Otherwise the pager cannot tell
/// it from the processes of its fork group, and cannot read its standby pages.
#[test]
fn a_child_joins_before_it_can_hide_itself() {
    let account = able();
    let outcome = in_little(&account, &format!("{} hides-first 24", account.program("process")));
    expect_paged(&outcome, "hides-first: ok\n");
}

/// Shows that an ordinary user can run after an administrator has typed each command that `ebb
/// doctor` names, unchanged.
#[test]
fn the_commands_of_the_doctor_let_an_ordinary_user_run() {
    need("/usr/bin/setfacl");
    need("/usr/sbin/setcap");
    let account = Account::new();
    let verify = format!("{} 48 1", account.program("verify"));
    in_little(&account, &verify).expect_code(125);
    for _ in 0..ROUNDS_MAX {
        let answer = account.run(&format!("{} doctor --format json", account.ebb()));
        let answer: serde_json::Value = serde_json::from_slice(&answer.stdout).expect("JSON");
        if answer["can_run"] == true {
            expect_paged(&in_little(&account, &verify), &right_answer());
            return;
        }
        let checks = answer["checks"].as_array().expect("checks");
        for check in checks.iter().filter(|check| check["required"] == true) {
            if check["found"] == false {
                account.administer(check["fix"].as_str().expect("a command"));
            }
        }
    }
    panic!("{}", account.run(&format!("{} doctor", account.ebb())).text());
}

/// Shows that no command opens files that are closed to the user. With CAP_SYS_PTRACE a process can
/// follow /proc/PID/cwd past closed folders. So it must not be in effect in any command, nor in
/// `run` before its files are open.
#[test]
fn no_command_opens_a_file_that_is_closed_to_the_user() {
    let account = able();
    let closed = tempfile::tempdir().expect("a folder that is root's alone");
    let inner = closed.path().join("inner");
    fs::create_dir(&inner).expect("a folder");
    let file = |name: &str| inner.join(name);
    for name in ["secret", "existing"] {
        fs::write(file(name), "the secret line\n").expect("a file");
        fs::set_permissions(file(name), fs::Permissions::from_mode(0o666)).expect("chmod");
    }
    for (folder, mode) in [(inner.as_path(), 0o777), (closed.path(), 0o700)] {
        fs::set_permissions(folder, fs::Permissions::from_mode(mode)).expect("chmod");
    }
    let mut process = Command::new("sleep").arg("600").current_dir(&inner).spawn().expect("sleep");
    let (ebb, at) = (account.ebb(), format!("/proc/{}", process.id()));
    account.copy(&build::ebb_lab(), "ebb-lab");
    for words in [
        format!("fit --input {at}/cwd/secret -- cat"),
        format!("fit --input {at}/maps -- cat"),
        format!("fit --html {at}/cwd/existing -- true"),
        format!("lab mrc {at}/cwd/secret"),
        format!("run --config {at}/cwd/secret -- true"),
        format!("run --memory-max 16M --report-file {at}/cwd/planted -- true"),
        format!("run --memory-max 16M --events {at}/cwd/planted -- true"),
    ] {
        let outcome = account.run(&format!("{ebb} {words}"));
        assert!(outcome.code() != 0, "{words}: {}", outcome.stderr);
        let told = outcome.text() + &outcome.stderr;
        assert!(
            told.contains("Permission denied") && !told.contains("secret line"),
            "{words}: {told}"
        );
    }
    process.kill().expect("it runs");
    process.wait().expect("a child");
    assert!(!file("planted").exists());
    assert_eq!(fs::read_to_string(file("existing")).expect("root's"), "the secret line\n");
}

/// Starts a process with a secret, whose memory the thief claims as its own: see attack.c.
fn victim(account: &Account, start: impl FnOnce(&str) -> Launch) -> (Running, String) {
    let meeting = account.path("meeting");
    fs::create_dir(&meeting).expect("a folder to meet in");
    fs::set_permissions(&meeting, fs::Permissions::from_mode(0o777)).expect("chmod");
    let mut run = start(&meeting.display().to_string()).start();
    run.wait_until("the victim", |_| meeting.join("victim").exists());
    let number = fs::read_to_string(meeting.join("victim")).expect("its number");
    (run, number)
}

/// Runs the thief, which claims from its first message on that the victim is its agent.
fn steal(account: &Account, victim: &str) -> Outcome {
    let forge = account.copy(&build::library("forge"), "forge.so");
    let attack = account.path("attack").display().to_string();
    let meeting = account.path("meeting").display().to_string();
    let script = format!(
        "LD_PRELOAD=$LD_PRELOAD:{forge} FORGE_VICTIM={victim} exec {attack} steal {meeting} 48"
    );
    in_little(account, &format!("sh -c '{script}'"))
}

/// Shows that the memory of root's process cannot be read. The pager must not read, with
/// CAP_SYS_PTRACE, a process by a PID that the program can write.
#[test]
fn the_memory_of_a_process_of_root_cannot_be_read() {
    let account = able();
    let attack = account.program("attack");
    let (_victim, number) =
        victim(&account, |folder| Launch::new(&attack).args(["victim", folder]));
    expect_paged(&steal(&account, &number), "0 stolen, 0 wrong\n");
}

/// Shows that the memory of a setuid program cannot be read, though the user has started it.
#[test]
fn the_memory_of_a_setuid_program_cannot_be_read() {
    let account = able();
    let attack = account.program("attack");
    let setuid = account.copy(&account.path("attack"), "setuid");
    chown(account.path("setuid"), Some(0), Some(0)).expect("chown");
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let (_victim, number) =
        victim(&account, |folder| account.shell(&format!("{setuid} victim {folder}")));
    assert!(attack.ends_with("attack"));
    expect_paged(&steal(&account, &number), "0 stolen, 0 wrong\n");
}

/// Shows that the memory of a setgid program cannot be read. It acts for a group that the user does
/// not belong to.
#[test]
fn the_memory_of_a_setgid_program_cannot_be_read() {
    let account = able();
    let attack = account.program("attack");
    let setgid = account.copy(&account.path("attack"), "setgid");
    chown(account.path("setgid"), Some(0), Some(0)).expect("chown");
    fs::set_permissions(&setgid, fs::Permissions::from_mode(0o2755)).expect("chmod");
    let (_victim, number) =
        victim(&account, |folder| account.shell(&format!("{setgid} victim {folder}")));
    assert!(attack.ends_with("attack"));
    expect_paged(&steal(&account, &number), "0 stolen, 0 wrong\n");
}

/// Starts a process of the user that sends a false hello.
fn impostor(account: &Account, words: &str) -> Launch {
    let script = account.copy(&build::script("impostor.py"), "impostor.py");
    let python = need("/usr/bin/python3").display();
    let line = format!("{} run --memory-max 1G -- {python} {script} {words}", account.ebb());
    account.shell(&line)
}

/// Shows that the userfaultfd of another process is refused. Otherwise the pager would place pages
/// in one process and look for them in the other.
#[test]
fn the_userfaultfd_of_another_process_is_refused() {
    let account = able();
    let outcome = impostor(&account, "foreign").run();
    assert_eq!(outcome.expect_code(0).text(), "foreign: refused\n", "{}", outcome.stderr);
    let said = "could not join: its userfaultfd is another process's";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
}

/// Shows that a process which has become a setuid program is not read. The process keeps its
/// connection, but the user may no longer read the process.
#[test]
fn a_process_that_has_become_a_setuid_program_is_not_read() {
    let account = able();
    account.program("attack");
    let setuid = account.copy(&account.path("attack"), "setuid");
    chown(account.path("setuid"), Some(0), Some(0)).expect("chown");
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let home = account.home().display().to_string();
    let mut run = impostor(&account, &format!("exec {setuid} {home}")).start();
    let said = "could not join: Permission denied";
    run.wait_until("a refusal", |run| run.stderr().contains(said));
    fs::write(account.home().join("end"), "").expect("a file");
    let outcome = run.finish();
    assert_eq!(outcome.expect_code(128 + 9).text(), "exec: acts as 0\n", "{}", outcome.stderr);
}

/// Shows that no process of a run can make the pager wait for ever, or take others' resources: see
/// harass.c.
#[test]
fn no_process_of_a_run_keeps_the_others_from_joining() {
    for what in ["full", "drained", "others", "forged", "asks"] {
        let outcome = Launch::program("harass", what).limit(24 * ebb_e2e::MIB).run();
        outcome.expect_line(&format!("{what}: ok"));
    }
}

/// Attacks the files of run `$1`, which belongs to another user. Prints each success, and ends when
/// file `$2` exists.
const MEDDLE: &str = r#"
cd /tmp
for folder in ebb-$1-*; do
    ls $folder >/dev/null 2>&1 && echo listed
    for file in agent.so socket; do
        (echo x >$folder/$file) 2>/dev/null && echo written $file
        rm -f $folder/$file 2>/dev/null; mv $folder/$file $folder/x 2>/dev/null && echo moved $file
        ln -f $folder/$file mine-$1 2>/dev/null && echo linked $file
    done
    (echo x >$folder/new) 2>/dev/null && echo added
    rmdir $folder 2>/dev/null; mv $folder taken-$1 2>/dev/null && echo taken
    python3 -c "
import socket
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    line.connect('$folder/socket')
    print('connected')
except PermissionError:
    pass"
done
mkdir ebb-$1-0123456789abcdef
exec python3 -c "
import os, select, socket
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.bind('ebb-$1-0123456789abcdef/socket')
os.chmod('ebb-$1-0123456789abcdef/socket', 0o777)
line.listen(0)
print('done', flush=True)
while not os.path.exists('$2'):
    select.select([], [], [], 0.01)
os.remove('ebb-$1-0123456789abcdef/socket')
os.rmdir('ebb-$1-0123456789abcdef')"
"#;

/// Shows that root's run goes on, answers, and takes new processes in, whatever another user does
/// to its files.
#[test]
fn a_user_cannot_disturb_the_run_of_another_through_its_files() {
    let account = Account::new();
    let script = account.path("meddle");
    fs::write(&script, MEDDLE).expect("a script");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
    let verify = build::program("verify").display().to_string();
    // The program continues when a line is written to the pipe.
    let (gate, end) = (account.path("gate"), account.path("end"));
    mknodat(CWD, &gate, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let mut gate_end = fs::File::options().read(true).write(true).open(&gate).expect("its end");
    let words = ["-c", "echo begun; read line <\"$0\"; exec \"$1\" 48 1"];
    let launch = Launch::new("sh").args(words).arg(&gate).arg(&verify).limit(16 * ebb_e2e::MIB);
    let mut victim = launch.env("XDG_RUNTIME_DIR", "/tmp").start();
    victim.wait_for("begun");
    let supervisor = victim.pid();
    let meddle = format!("sh {} {supervisor} {}", script.display(), end.display());
    let mut meddler = account.shell(&meddle).start();
    meddler.wait_for("done");
    let stat = Launch::new(build::ebb()).args(["stat", &supervisor.to_string()]).run();
    assert!(stat.expect_code(0).text().contains("ebb_nr_limit"), "{}", stat.text());
    fs::write(&end, "").expect("a file");
    assert_eq!(meddler.finish().text(), "done\n");
    // The user cannot change the run's limit either, and the run is only in the list of its own
    // user.
    let ebb = account.copy(build::ebb(), "ebb");
    let set = account.shell(&format!("{ebb} set {supervisor} memory.max=8M")).run();
    set.expect_code(1);
    assert!(set.stderr.contains("no run of yours"), "{}", set.stderr);
    assert_eq!(account.shell(&format!("{ebb} ps")).run().text().lines().count(), 1);
    gate_end.write_all(b"\n").expect("written");
    let outcome = victim.finish();
    assert_eq!(outcome.expect_code(0).text(), format!("begun\n{}", right_answer()));
    outcome.expect_silence();
}

/// Shows that programs that start with rights of their own, and take no agent, are refused with a
/// message. A program that the user may execute but not read does run.
#[test]
fn programs_with_rights_of_their_own_are_refused_with_a_message() {
    let account = able();
    let with = |name: &str, mode: u32| {
        let program = account.copy(Path::new("/bin/true"), name);
        chown(&program, Some(0), Some(0)).expect("chown");
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("chmod");
        program
    };
    let refused = |program: &str, word: &str| {
        let outcome = in_little(&account, program);
        outcome.expect_code(126);
        assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    };
    refused(&with("setuid", 0o4755), "is setuid");
    refused(&with("setgid", 0o2755), "is setgid");
    let capable = with("capable", 0o755);
    account.administer(&format!("sudo setcap cap_net_raw+ep {capable}"));
    refused(&capable, "has capabilities");
    let hidden = account.copy(&build::program("verify"), "hidden");
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o711)).expect("chmod");
    // Root owns the files of such a process in /proc.
    let outcome = in_little(&account, &format!("{hidden} 48 1"));
    assert_eq!(outcome.expect_code(0).text(), right_answer());
    assert!(outcome.stderr.contains("could not join"), "{}", outcome.stderr);
    let root = Launch::new(&hidden).args(["48", "1"]).limit(16 * ebb_e2e::MIB).run();
    assert_eq!(root.expect_code(0).text(), right_answer());
}

/// Shows that Ebb refuses a setgid file to root if the file changes the group. A file with
/// capabilities does not change root's rights.
#[test]
fn programs_with_rights_of_their_own_are_refused_to_root_where_they_change_them() {
    need("/usr/sbin/setcap");
    let account = Account::new();
    let with = |name: &str, mode: u32, group: u32| {
        let program = account.copy(Path::new("/bin/true"), name);
        chown(&program, Some(0), Some(group)).expect("chown");
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).expect("chmod");
        program
    };
    let run = |program: &str| Launch::new(program).limit(16 * ebb_e2e::MIB).run();
    let setgid = run(&with("setgid", 0o2755, 65534));
    assert!(setgid.expect_code(126).stderr.contains("is setgid"), "{}", setgid.stderr);
    run(&with("locked", 0o2745, 65534)).expect_code(0);
    run(&with("own", 0o6755, 0)).expect_code(0);
    let capable = with("capable", 0o755, 0);
    account.administer(&format!("sudo setcap cap_net_raw+ep {capable}"));
    run(&capable).expect_code(0);
}

/// Returns a supervisor's first message that `ebb` itself did not write.
fn start_message(folder: &Path) -> Vec<u8> {
    let config = Config {
        memory_max_bytes: 16 << 20,
        memory_high_bytes: None,
        swap: "ram,file".to_owned(),
        socket: folder.join("socket"),
        pool_bytes: 16 << 20,
        report: ReportFormat::Json,
        report_to: ebb_pager::ReportTo::File(folder.join("report")),
        ..Config::default()
    };
    serde_json::to_vec(&SupervisorMessage::Start(Box::new(config))).expect("JSON")
}

/// Shows that a forged supervisor gains nothing. The pager's trust must not depend on its starter,
/// because an attacker can forge that.
#[test]
fn a_forged_supervisor_gains_nothing() {
    let account = able();
    let attack = account.program("attack");
    let (_victim, number) =
        victim(&account, |folder| Launch::new(&attack).args(["victim", folder]));
    let meeting = account.path("meeting");
    fs::write(account.path("start"), start_message(&meeting)).expect("the message");
    let agent = account.home().join("agent.so").display().to_string();
    in_little(&account, &format!("sh -c 'eval cp ${{LD_PRELOAD%%:*}} {agent}'")).expect_code(0);
    let (supervisor, forge) = (
        account.copy(&build::script("front.py"), "front.py"),
        account.copy(&build::library("forge"), "forge.so"),
    );
    let words = [
        need("/usr/bin/python3").display().to_string(),
        supervisor,
        account.ebb(),
        account.path("start").display().to_string(),
        agent,
        forge,
        attack.clone(),
        meeting.display().to_string(),
        number,
    ];
    let outcome = account.run(&words.join(" "));
    assert_eq!(outcome.expect_code(0).text(), "0 stolen, 0 wrong\n", "{}", outcome.stderr);
    let report = fs::read(meeting.join("report")).expect("the report");
    let report: serde_json::Value = serde_json::from_slice(&report).expect("JSON");
    assert!(report["pages_evicted"].as_u64() > Some(1000), "it was paged: {report}");
}

/// Shows that a pager that another program than `ebb` starts ends with a message.
#[test]
fn a_pager_refuses_a_supervisor_that_is_another_program() {
    let account = able();
    let outcome = account.run(&format!("{} __pager < /dev/null", account.ebb()));
    assert_eq!(outcome.expect_code(125).stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("only `ebb run` and `ebb attach` start the pager"),
        "{}",
        outcome.stderr
    );
}

/// Shows that a user's process joins root's run by attach, but the user cannot change the run. The
/// user sees the path of the run's socket in the maps of the process.
#[test]
fn a_process_of_another_user_joins_and_its_user_may_not_change_the_run() {
    const ASK: &str = r#"
import os, socket, sys
maps = open("/proc/%s/maps" % sys.argv[1]).read()
image = next(word for word in maps.split() if word.endswith("agent.image"))
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(os.path.dirname(image) + "/socket")
for request in sys.argv[2:]:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(os.path.dirname(image) + "/socket")
    line.send(bytes.fromhex(request))
    print(line.recv(64).hex())
"#;
    // Prints its PID and passes over its pages until a file exists.
    const PROGRAM: &str = r#"
import mmap, os, sys
pages = 64 * 256
area = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for n in range(pages):
    area[n * 4096:n * 4096 + 8] = n.to_bytes(8, "little")
print(os.getpid(), flush=True)
wrong, last = 0, False
while not last:
    last = os.path.exists(sys.argv[1])
    wrong += sum(area[n * 4096:n * 4096 + 8] != n.to_bytes(8, "little") for n in range(pages))
print("wrong", wrong)
"#;
    let account = able();
    let python = need("/usr/bin/python3").display();
    let (script, looks, end) =
        (account.path("ask.py"), account.path("looks.py"), account.path("end"));
    fs::write(&script, ASK).expect("a file");
    fs::write(&looks, PROGRAM).expect("a file");
    let line = format!("exec {python} {} {}", looks.display(), end.display());
    let mut program = account.shell(&line).start();
    program.wait_for("\n");
    let pid = program.stdout().trim().to_owned();
    let ebb = |words: &[&str]| {
        let mut ebb = std::process::Command::new(build::ebb());
        ebb.args([words, &[&pid]].concat());
        ebb
    };
    let mut attached =
        ebb(&["attach", "--memory-max", "24M", "--quiet"]).spawn().expect("ebb runs");
    program.wait_until("the limit", |_| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = anonymous.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        maps.contains("agent.image") && kib.is_some_and(|kib| kib < 32 << 10)
    });
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let limits = Request::Limits(Limits { max: Some(1 << 30), ..Limits::default() });
    let requests = [Request::Metrics, Request::Detach, limits].map(|it| hex(it.to_bytes()));
    let outcome =
        account.run(&format!("{python} {} {pid} {}", script.display(), requests.join(" ")));
    let refused = hex(answer_to_bytes(&Err(ControlError::Refused))) + "\n";
    assert_eq!(outcome.expect_code(0).text(), refused.repeat(3), "{}", outcome.stderr);
    assert!(ebb(&["detach"]).status().expect("ebb runs").success());
    assert!(attached.wait().expect("it ends").success());
    fs::write(&end, "").expect("a file");
    let outcome = program.finish();
    assert_eq!(outcome.expect_code(0).text(), format!("{pid}\nwrong 0\n"), "{}", outcome.stderr);
}
