//! Tests the two programs of the package: their contents, and how `ebb` starts `ebb-lab`
//! (PROGRAMS-1).

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const EBB: &str = env!("CARGO_BIN_EXE_ebb");
const EBB_LAB: &str = env!("CARGO_BIN_EXE_ebb-lab");

fn run(program: impl AsRef<Path>, words: &str, path: &Path) -> Output {
    let mut command = Command::new(program.as_ref());
    command.args(words.split_whitespace()).env("PATH", path);
    command.output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns a new folder on the file system of the programs, with a link to each of `programs`.
fn folder(programs: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    for program in programs {
        let name = Path::new(program).file_name().expect("a name");
        fs::hard_link(program, folder.path().join(name)).expect("a link");
    }
    folder
}

#[test]
fn ebb_holds_neither_the_laboratory_nor_a_benchmark() {
    let contents = |program: &str| text(&fs::read(program).expect("it is built"));
    let (ebb, lab) = (contents(EBB), contents(EBB_LAB));
    for part in ["Published effects reproduced", "/proc/sys/vm/page-cluster", "COMPREPLY"] {
        assert!(lab.contains(part), "{part} is not in ebb-lab");
        assert!(!ebb.contains(part), "{part} is in ebb");
    }
}

#[test]
fn the_help_of_ebb_lists_the_commands_of_ebb_lab() {
    let none = folder(&[]);
    let commands = |program| {
        let help = text(&run(program, "--help", none.path()).stdout);
        let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        let lines = lines.take_while(|line| !line.is_empty()).map(str::trim);
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let (ebb, lab) = (commands(EBB), commands(EBB_LAB));
    assert_eq!(ebb[ebb.len() - lab.len()..], lab);
    assert_eq!(lab.len(), 5, "{lab:?}");
}

/// Shows that the commands are those of `ebb`, whichever program the user starts.
#[test]
fn ebb_starts_the_program_beside_it() {
    let none = folder(&[]);
    for (words, code, start) in [
        (
            "lab --help",
            0,
            "Measure reclaim: replay page traces, draw miss-ratio curves\n\nUsage: ebb lab <",
        ),
        (
            "help lab run",
            0,
            "Run a scenario on the simulated machine and compare its arms\n\nUsage: ebb lab run ",
        ),
        ("lab", 2, ""),
        ("lab run --sedes", 2, ""),
        ("lab replay /nowhere/trace.csv", 2, ""),
        ("lab list", 0, ""),
        ("bench", 2, ""),
        ("bench paging --help", 0, "1 GiB of pages "),
        ("completions bash", 0, "_ebb() {"),
        ("man", 0, ".ie"),
    ] {
        let [one, other] = [EBB, EBB_LAB].map(|program| run(program, words, none.path()));
        assert_eq!(one.status.code(), Some(code), "{words}: {}", text(&one.stderr));
        assert!(text(&one.stdout).starts_with(start), "{words}: {}", text(&one.stdout));
        assert!(!text(&one.stderr).contains("ebb-lab"), "{words}: {}", text(&one.stderr));
        assert_eq!(one, other, "{words}");
    }
}

#[test]
fn ebb_without_ebb_lab_says_how_to_get_it() {
    let alone = folder(&[EBB]);
    for words in ["lab list", "help lab", "bench paging", "man", "completions bash"] {
        let output = run(alone.path().join("ebb"), words, alone.path());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}");
        let told = text(&output.stderr);
        assert!(told.starts_with("ebb: there is no ebb-lab for `ebb "), "{words}: {told}");
        assert!(told.ends_with("cargo build --release --package ebb-run\n"), "{words}: {told}");
    }
    let output = run(alone.path().join("ebb"), "--help", alone.path());
    assert!(output.status.success() && text(&output.stdout).contains("\n  lab "));
    let path = folder(&[EBB_LAB]);
    let output = run(alone.path().join("ebb"), "lab list", path.path());
    assert!(output.status.success(), "{}", text(&output.stderr));
}
