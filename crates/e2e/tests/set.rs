//! Tests `ebb set`, which changes the limits of a run while it lasts.

use ebb_e2e::MIB;
use ebb_e2e::account::need_locked;
use ebb_e2e::build::ebb;
use ebb_e2e::launch::{Launch, send};
use ebb_e2e::same::need;
use ebb_testing::{eventually, give_time};
use rustix::process::Signal;
use std::process::Command;
use std::time::Duration;

/// Beginning of the programs below: functions for their own memory and for changes of their limits.
const PROLOGUE: &str = r#"
import ctypes, mmap, os, select, subprocess, sys
MIB, PAGE = 1 << 20, 4096

def kib(field):
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith(field)).split()[1])

def resident():
    return kib("RssAnon") / 1024

def eventually(holds):
    while not holds():
        select.select([], [], [], 0.01)

def ask(*words):
    done = subprocess.run([sys.argv[1], words[0], str(os.getpid()), *words[1:]], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr

# Asks again where less has left in time than could.
def change(*words):
    answer = ask("set", *words)
    while "could leave memory" in answer[2]:
        answer = ask("set", *words)
    return answer

def limit():
    lines = dict(line.split(" ", 1) for line in ask("stat")[1].splitlines())
    return int(lines["ebb_nr_limit"]) / 256

def fill(mib):
    area = mmap.mmap(-1, mib * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(mib * 256):
        area[page * PAGE : page * PAGE + 8] = (page * 7919 + 1).to_bytes(8, "little")
    return area

def right(area):
    return all(
        int.from_bytes(area[at : at + 8], "little") == at // PAGE * 7919 + 1 for at in range(0, len(area), PAGE)
    )
"#;

fn run(script: &str, limit: u64) {
    let launch = Launch::new(need("/usr/bin/python3"));
    let launch = launch.args(["-c", &format!("{PROLOGUE}{script}")]);
    launch.arg(ebb().display().to_string()).limit(limit).run().expect_line("well");
}

#[test]
fn a_limit_goes_down_and_up_and_every_byte_stays() {
    run(
        r#"
area = fill(96)
for turn in range(2):
    assert resident() > 90, resident()
    assert change("memory.max=48M") == (0, "", "")
    assert limit() == 48, limit()
    eventually(lambda: resident() <= 56)
    assert right(area)
    eventually(lambda: resident() <= 56)
    assert ask("set", "memory.max=160MiB") == (0, "", "")
    assert limit() == 160 and right(area)
print("well")
"#,
        160 * MIB,
    );
}

#[test]
fn memory_reclaim_frees_the_requested_amount_and_memory_high_is_the_aim() {
    run(
        r#"
area = fill(64)
before = resident()
assert change("memory.reclaim=16M")[0] == 0
eventually(lambda: resident() < before - 15)
code, _, error = ask("set", "memory.reclaim=1G")
assert code == 1 and "could leave memory" in error, error
assert right(area)
assert ask("set", "memory.high=32M", "tier.ram=8M")[0] == 0
# Reclaim follows.
eventually(lambda: resident() <= 34)
assert limit() == 128, limit()
assert ask("set", "memory.high=max")[0] == 0 and right(area)
print("well")
"#,
        128 * MIB,
    );
}

/// Shows that a limit below the locked memory is taken back. The run goes on with its old limit.
#[test]
fn a_limit_below_the_locked_memory_is_taken_back() {
    need_locked(48 * MIB);
    run(
        r#"
area = fill(64)
libc = ctypes.CDLL(None)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
assert libc.mlock(ctypes.c_void_p(start), ctypes.c_size_t(48 * MIB)) == 0
code, _, error = ask("set", "memory.max=24M")
assert code == 1 and "memory.max is " in error and "not 24.0" in error, error
assert 48 <= limit() <= 80, limit()
assert right(area)
# A process that is started next has room, too.
assert ask("set", "memory.max=128M")[0] == 0 and limit() == 128
print("well")
"#,
        128 * MIB,
    );
}

/// Shows that a run far from its limit, with nothing under management, reaches a lower limit.
#[test]
fn a_run_far_from_its_limit_comes_near_a_lower_one() {
    run(
        r#"
area = fill(96)
assert change("memory.max=40M")[0] == 0
eventually(lambda: resident() <= 48)
assert right(area)
print("well")
"#,
        4096 * MIB,
    );
}

#[test]
fn a_wrong_setting_changes_nothing() {
    run(
        r#"
for words, named in [
    (["memory.max"], "'memory.max'"), (["memory.max=lots"], "'lots'"), (["memory.max=1M"], "the least is 4M"),
    (["memory.max=32M", "swappiness=1"], "'swappiness'"), (["memory.max=max"], "'max'"),
]:
    code, out, error = ask("set", *words)
    assert (code, out) == (1, "") and error.startswith("ebb: ") and named in error, (words, error)
    assert limit() == 64
assert subprocess.run([sys.argv[1], "set", "1", "memory.max=32M"], capture_output=True).returncode == 1
assert subprocess.run([sys.argv[1], "set", "1"], capture_output=True).returncode == 2
print("well")
"#,
        64 * MIB,
    );
}

/// Shows that unused memory leaves and the program waits for no page. `./test measure` measures the
/// wait for used pages.
#[test]
fn the_limit_that_keeps_the_pressure_at_its_target_is_found() {
    let script = r#"
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
cold = fill(96)
print("filled", flush=True)
signal.sigwait([signal.SIGUSR1])
assert right(cold)
print("well")
"#;
    let launch = Launch::new(need("/usr/bin/python3"));
    let launch = launch.args(["-c", &format!("{PROLOGUE}{script}")]).limit(1024 * MIB);
    let mut run = launch.options("--pressure-target 5%").start();
    run.wait_for("filled");
    let program = run.root().find().first().expect("a program");
    // The questions come from outside, because a process of the tree would wait for pages itself.
    let ask = |words: &[&str]| {
        let asked = Command::new(ebb()).args(words).output().expect("ebb runs");
        assert!(asked.status.success(), "{words:?}: {}", String::from_utf8_lossy(&asked.stderr));
        String::from_utf8_lossy(&asked.stdout).into_owned()
    };
    let pid = program.to_string();
    let limit = || {
        let stat = ask(&["stat", &pid]);
        let pages = stat.lines().find_map(|line| line.strip_prefix("ebb_nr_limit "));
        pages.and_then(|pages| pages.parse().ok()).map(|pages: u64| pages * 4096)
    };
    eventually("the limit comes down", || limit().is_some_and(|limit| limit < 80 * MIB));
    ask(&["set", &pid, "memory.max=200M"]);
    // Gives the search time to change the limit again, which it must not do.
    give_time(Duration::from_millis(2500));
    assert_eq!(limit(), Some(200 * MIB), "who says a limit has it");
    send(program, Signal::USR1);
    assert_eq!(run.finish().expect_code(0).text(), "filled\nwell\n");
}

#[test]
fn a_wrong_pressure_target_is_refused() {
    for target in ["0%", "60%", "5", "much"] {
        let command = ["run", "--pressure-target", target, "--", "true"];
        let outcome = Launch::new(ebb()).args(command).run();
        outcome.expect_code(125);
        assert!(outcome.stderr.contains("as 5%"), "{}", outcome.stderr);
    }
}
