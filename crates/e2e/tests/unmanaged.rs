//! Tests memory that Ebb sees but does not manage. It counts, is reported once, and ends the run if
//! the user wants that.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ebb_e2e::MIB;
use ebb_e2e::account::need_root;
use ebb_e2e::build::{foreign_program, program};
use ebb_e2e::client::stat;
use ebb_e2e::group::Group;
use ebb_e2e::launch::{Launch, Outcome, Running};
use ebb_e2e::same::need;
use ebb_testing::eventually;
use tempfile::TempDir;

const LIMIT: u64 = 64 * MIB;

/// A file whose creation ends the programs that a test has started.
struct Word(TempDir);

impl Word {
    fn new() -> Self {
        Self(TempDir::with_prefix("ebb-e2e-").expect("temporary folder"))
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("word")
    }

    fn say(&self) {
        fs::write(self.path(), "").expect("the word");
    }
}

/// Starts a script with `$0` as a program and `$1` as the path of the file.
fn script(text: &str, program: PathBuf, word: &Word) -> Launch {
    Launch::new("sh").args(["-c", text]).arg(program).arg(word.path())
}

/// Waits until a run's figures contain so many bytes.
fn wait_until_held(run: &mut Running, bytes: u64) {
    let held = |run: &Running| stat(run.pid(), "nr_anon_pages").is_some_and(|n| n * 4096 >= bytes);
    run.wait_until("its memory in its figures", held);
}

/// Runs three static programs of 24 MiB, which stay until all of them count.
fn static_programs() -> Outcome {
    let word = Word::new();
    let three = "for n in 1 2 3; do \"$0\" own 24 0 \"$1\" & done; wait";
    let launch = script(three, foreign_program("keeper"), &word).limit(2 * LIMIT);
    let mut run = launch.options("--report json").start();
    wait_until_held(&mut run, 72 * MIB);
    run.wait_until("word of them", |run| run.stderr().contains("is statically linked"));
    word.say();
    run.finish()
}

fn lines_with<'a>(outcome: &'a Outcome, text: &str) -> Vec<&'a str> {
    outcome.stderr.lines().filter(|line| line.contains(text)).collect()
}

#[test]
fn static_programs_cause_one_message_and_count_in_the_report() {
    // The programs count from the beginning, and under their own kind as soon as the pager knows
    // it.
    eventually("all of them as what they are", || {
        let outcome = static_programs();
        assert_eq!(outcome.expect_code(0).text().matches("keeper: ok\n").count(), 3);
        let told = lines_with(&outcome, "is statically linked");
        assert_eq!(told.len(), 1, "{}", outcome.stderr);
        let peak = outcome.figure("peak_bytes");
        assert!(peak < 80 * MIB, "{peak} at most");
        let report = lines_with(&outcome, "\"why\":\"static_program\"");
        report[0].contains("\"static_program\",\"processes\":3,") && peak >= 72 * MIB
    });
}

#[test]
fn a_strict_run_ends_with_the_first_unmanaged_program() {
    let word = Word::new();
    let launch = script("\"$0\" own 24 0 \"$1\"; :", foreign_program("keeper"), &word);
    let outcome = launch.limit(LIMIT).options("--report json --strict").run();
    outcome.expect_code(125);
    let told = lines_with(&outcome, "--strict");
    assert!(told.len() == 1 && told[0].contains("Link it dynamically"), "{}", outcome.stderr);
    assert_eq!(outcome.figure("exit_status"), 125);
}

/// Shows that a process of another user is reported. Its agent may not be inspected, so it does not
/// join.
#[test]
fn a_process_of_another_user_causes_a_message_and_is_in_the_report() {
    need_root();
    let word = Word::new();
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(word.0.path(), all).expect("for all to enter");
    assert!(Command::new("mkfifo").arg(word.path()).status().expect("mkfifo runs").success());
    let words = ["--reuid", "65534", "--clear-groups", "cat"];
    let launch = Launch::new(need("/usr/bin/setpriv")).args(words).arg(word.path()).limit(LIMIT);
    let mut run = launch.options("--report json").start();
    run.wait_until("word of it", |run| run.stderr().contains(" (cat) can have no agent"));
    // The program ends when it has read this.
    word.say();
    let outcome = run.finish();
    outcome.expect_code(0);
    let told = lines_with(&outcome, " (cat) can have no agent");
    assert!(told.len() == 1 && told[0].contains("cannot be stored"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"processes\":1,\"peak_bytes\":"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"names\":[\"cat\"]"), "{}", outcome.stderr);
}

/// Shows that a program with an empty environment, which cannot know the agent, is reported.
#[test]
fn a_program_with_an_empty_environment_causes_a_message_and_is_in_the_report() {
    let word = Word::new();
    let launch = script("env -i \"$0\" own 24 0 \"$1\"; :", program("keeper"), &word);
    let mut run = launch.limit(LIMIT).options("--report json").start();
    run.wait_for("keeper: ready");
    run.wait_until("word of it", |run| run.stderr().contains("(keeper) has no agent"));
    word.say();
    let outcome = run.finish();
    assert_eq!(outcome.expect_code(0).text(), "keeper: ready\nkeeper: ok\n");
    let told = lines_with(&outcome, "(keeper) has no agent");
    assert!(told.len() == 1 && told[0].contains("empty environment"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"why\":\"no_agent\",\"processes\":1,"), "{}", outcome.stderr);
    let peak = outcome.figure("peak_bytes");
    assert!(peak < 27 * MIB, "{peak} at most");
}

/// Shows that unmanageable memory takes its part of the limit, and the other programs get the rest.
#[test]
fn a_static_program_squeezes_the_others() {
    let (begin, word) = (Word::new(), Word::new());
    assert!(Command::new("mkfifo").arg(begin.path()).status().expect("mkfifo runs").success());
    let text = "\"$0\" own 24 0 \"$1\" & read go <\"$2\"; \"$3\" 48 2; : >\"$1\"; wait";
    let launch = script(text, foreign_program("keeper"), &word).limit(40 * MIB);
    let launch = launch.arg(begin.path()).arg(program("verify")).options("--report json");
    let mut run = launch.start();
    wait_until_held(&mut run, 24 * MIB);
    fs::write(begin.path(), "go\n").expect("it reads");
    let outcome = run.finish();
    outcome.expect_code(0);
    let right = Launch::program("verify", "48 2").run().text();
    assert!(outcome.text().contains(right.trim()), "{}", outcome.text());
    // Pages above 16 MiB leave while the other program is there, except for those that the freezer
    // allows.
    assert!(outcome.figure("pages_evicted") > 6000, "{}", outcome.stderr);
}

/// Shows that shared memory counts once. Four processes map the same 24 MiB, so counting each of
/// them would far exceed the limit.
#[test]
fn shared_memory_counts_once_however_many_map_it() {
    eventually("all of them in the report", || {
        let word = Word::new();
        let launch = Launch::program("keeper", "shared 24 3").arg(word.path()).limit(LIMIT);
        let mut run = launch.options("--report json").start();
        run.wait_for("keeper: ready");
        wait_until_held(&mut run, 24 * MIB);
        word.say();
        let outcome = run.finish();
        assert_eq!(outcome.expect_code(0).text(), "keeper: ready\nkeeper: ok\n");
        assert_eq!(lines_with(&outcome, "shares memory").len(), 1, "{}", outcome.stderr);
        let peak = outcome.figure("peak_bytes");
        assert!(peak < 26 * MIB, "{peak} at most");
        outcome.stderr.contains("\"shared_memory\",\"processes\":4,") && peak >= 24 * MIB
    });
}

/// Shows that shared memory of more than half of the limit leaves the rest to run in. Compressed
/// memory must not take that rest while a file has room.
#[test]
fn shared_memory_of_more_than_half_of_the_limit_leaves_the_rest_to_run_in() {
    let word = Word::new();
    let text = "\"$0\" shared 20 1 \"$1\" & \"$2\" 48 2 1 1 150; : >\"$1\"; wait";
    let launch = script(text, program("keeper"), &word).arg(program("verify")).limit(32 * MIB);
    let outcome = launch.run();
    let right = Launch::program("verify", "48 2 1 1 150").run().text();
    assert!(outcome.expect_code(0).text().contains(right.trim()), "{}", outcome.text());
}

#[test]
fn shared_memory_beyond_the_limit_ends_the_run_and_is_named() {
    // One program has more than the limit, and the other needs some memory. Neither ends by itself.
    let word = Word::new();
    let text = "\"$0\" shared 96 1 \"$1\" & \"$2\" 16 0";
    let launch = script(text, program("keeper"), &word).arg(program("verify")).limit(LIMIT);
    let outcome = launch.run();
    outcome.expect_code(137);
    assert_eq!(lines_with(&outcome, "ebb: out of memory: the limit is 64.0 MiB").len(), 1);
    // The freezer holds it soon after it exceeds the memory that the other leaves of the limit.
    let named = lines_with(&outcome, "ebb: not managed: ");
    assert!(named.len() == 1 && named[0].contains("with shared memory"), "{}", outcome.stderr);
    let mib = named[0].split_ascii_whitespace().nth(3).and_then(|mib| mib.parse::<f64>().ok());
    assert!(mib.is_some_and(|mib| (40.0..98.0).contains(&mib)), "{}", outcome.stderr);
}

/// Shows that a single program whose shared memory exceeds the limit is ended, though no other
/// thread waits for memory.
#[test]
fn a_single_program_with_too_much_shared_memory_is_ended() {
    let word = Word::new();
    let launch = Launch::program("keeper", "shared 96 1").arg(word.path()).limit(LIMIT);
    let outcome = launch.run();
    outcome.expect_code(137);
    assert!(outcome.stderr.contains("with shared memory"), "{}", outcome.stderr);
}

/// Shows that such a program is ended where CPU time is limited. The freezer does not work there,
/// and a program that waits for nothing would go on for ever.
#[test]
fn a_program_with_too_much_shared_memory_is_ended_where_cpu_time_is_limited() {
    let group = Group::new("cpu", "cpu.cfs_quota_us", "50000");
    let word = Word::new();
    let launch = Launch::program("keeper", "shared 96 1").arg(word.path()).limit(LIMIT);
    let run = launch.start();
    group.take_in(&run);
    run.finish().expect_code(137);
}

#[test]
fn a_strict_run_of_managed_programs_goes_on() {
    let launch = Launch::program("process", "fork 16").limit(LIMIT).options("--strict");
    launch.run().expect_line("fork: ok");
}

/// Compiles a program into a file of `word`'s folder.
fn compiled(word: &Word, compiler: &Path, words: &[&str], text: &str) -> PathBuf {
    let [source, program] = ["main.c", "main"].map(|name| word.0.path().join(name));
    fs::write(&source, text).expect("a file");
    let mut command = Command::new(compiler);
    let status = command.args(words).arg("-o").arg(&program).arg(&source).status();
    assert!(status.expect("a compiler").success());
    program
}

/// Shows that a program of musl that the program starts runs on unpaged, and is named. Its loader
/// refused to start it, because the agent needs glibc.
#[test]
fn a_program_of_musl_runs_on_by_itself_and_is_named() {
    const TEXT: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv) {
    memset(malloc(8 << 20), 1, 8 << 20);
    while (access(argv[argc - 1], F_OK)) usleep(10000);
    return puts("fine") < 0;
}"#;
    let word = Word::new();
    let program = compiled(&word, need("/usr/bin/musl-gcc"), &["-O0"], TEXT);
    let mut run = script("\"$0\" \"$1\"; :", program, &word).limit(LIMIT).start();
    run.wait_until("word of it", |run| run.stderr().contains(" (main) has no agent"));
    word.say();
    let outcome = run.finish();
    assert_eq!(outcome.expect_code(0).text(), "fine\n");
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

/// Shows that the loader of a 32-bit program prints no error, because it finds a library of its own
/// class.
#[test]
fn a_program_of_32_bits_starts_without_a_word() {
    const TEXT: &str = r#"
static int call(int number, int a, const void *b, int c) {
    __asm__ volatile("int $0x80" : "+a"(number) : "b"(a), "c"(b), "d"(c) : "memory");
    return number;
}
void _start(void) {
    call(4, 1, "fine\n", 5);
    call(1, 0, 0, 0);
}"#;
    let loader = need("/lib/ld-linux.so.2");
    let loader = format!("-Wl,--dynamic-linker={}", loader.display());
    let words = ["-m32", "-nostdlib", "-fno-stack-protector", "-pie", "-fPIE", &loader];
    let word = Word::new();
    let program = compiled(&word, need("/usr/bin/gcc"), &words, TEXT);
    let outcome = script("\"$0\"; :", program, &word).limit(LIMIT).run();
    outcome.expect_line("fine");
    outcome.expect_silence();
}
