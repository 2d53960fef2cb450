//! Tests `ebb stat --watch`, which prints figures repeatedly while a run lasts.

use ebb_e2e::MIB;
use ebb_e2e::build::ebb;
use ebb_e2e::launch::{Launch, Outcome, Running};
use ebb_e2e::same::need;
use ebb_testing::eventually;
use serde_json::Value;
use tempfile::TempDir;

/// Passes over 40 MiB repeatedly, until a file exists.
const PROGRAM: &str = r#"
import os, sys
area = bytearray(os.urandom(40 << 20))
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    for at in range(0, len(area), 4096): area[at] = 1
"#;

/// A program that runs in 32 MiB until it is told to end.
struct Program {
    run: Running,
    folder: TempDir,
}

impl Program {
    fn start() -> Self {
        let folder = TempDir::with_prefix("ebb-watch-").expect("a folder");
        let launch = Launch::new(need("/usr/bin/python3")).args(["-c", PROGRAM]);
        let mut run = launch.arg(folder.path().join("end")).limit(32 * MIB).start();
        run.wait_for("ready");
        Self { run, folder }
    }

    fn pid(&self) -> String {
        self.run.pid().to_string()
    }

    fn end(self) {
        std::fs::write(self.folder.path().join("end"), "").expect("a file");
        self.run.finish().expect_code(0);
    }
}

fn stat(words: &[&str]) -> Launch {
    Launch::new(ebb()).arg("stat").args(words)
}

/// Returns the complete lines.
fn lines(run: &Running) -> Vec<String> {
    run.stdout()
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(str::to_owned)
        .collect()
}

#[test]
fn watch_prints_all_figures_first_and_then_the_changed_ones() {
    let program = Program::start();
    let mut watch = stat(&["--watch=0.1", &program.pid()]).start();
    let has_changed = |line: &&String| line.starts_with("pgmajfault ") && line.contains('+');
    watch.wait_until("three changes", |run| lines(run).iter().filter(has_changed).count() >= 3);
    program.end();
    let outcome = watch.finish();
    assert_eq!(outcome.expect_code(0).stderr, "", "the run's end is the end");
    let text = outcome.text();
    let blocks: Vec<&str> = text.split("\n\n").collect();
    assert!(blocks.len() >= 4, "{text}");
    assert!(blocks[0].contains("\nebb_nr_limit 8192\n") && !blocks[0].contains("/s"), "{text}");
    let rates = blocks[1..].iter().flat_map(|block| block.lines());
    let mut faults = rates.filter(|line| line.starts_with("pgmajfault "));
    assert!(faults.all(|line| line.contains(" +") && line.ends_with("/s")), "{text}");
    assert!(
        !blocks[1..].iter().any(|block| block.contains("ebb_nr_limit")),
        "it is what it was: {text}"
    );
}

#[test]
fn watch_prints_lines_of_json_and_the_other_figures_too() {
    let program = Program::start();
    let pid = program.pid();
    let mut json = stat(&[&pid, "--watch", "0.1", "--format", "json"]).start();
    let mut pressure = stat(&[&pid, "--watch", "0.1", "--pressure"]).start();
    // A number alone is the process.
    let mut faults = stat(&["--faults", "--format", "json", "--watch", &pid]).start();
    let read = |lines: &[String]| -> Vec<Value> {
        lines.iter().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    };
    let number = |line: &Value, key: &str| line[key].as_u64().expect("a number");
    json.wait_until("three lines, and faults in between", |run| {
        let lines = read(&lines(run));
        let [first, .., last] = &lines[..] else { return false };
        lines.len() >= 3 && number(last, "pgmajfault") > number(first, "pgmajfault")
    });
    pressure.wait_until("three", |run| run.stdout().matches("some avg10=").count() >= 3);
    faults.wait_until("two", |run| lines(run).len() >= 2);
    program.end();
    let [json, pressure, faults] = [json, pressure, faults].map(Running::finish);
    let read = |outcome: &Outcome| {
        let text = outcome.expect_code(0).text();
        read(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    };
    assert!(read(&json).iter().all(|line| number(line, "time_unix_us") > 0));
    assert!(number(&read(&faults)[0], "waited_ns") > 0);
    pressure.expect_code(0);
}

#[test]
fn a_run_is_drawn_until_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.svg");
    let program = Program::start();
    let pid = program.pid();
    let draws = |file: &str| stat(&["--watch=0.1", "--svg"]).arg(file).arg(&pid);
    let nowhere = draws("/nowhere/run.svg").run();
    assert!(
        nowhere.expect_code(1).stderr.contains("--svg /nowhere/run.svg: "),
        "{}",
        nowhere.stderr
    );
    let drawn = draws(file.to_str().expect("a name")).start();
    let svg = || std::fs::read_to_string(&file).unwrap_or_default();
    // The picture is written while the program runs, and again at its end.
    eventually("a picture", || svg().contains("class=\"resident\" d=\"M64.0"));
    program.end();
    let outcome = drawn.finish();
    assert_eq!(outcome.expect_code(0).text() + &outcome.stderr, "", "the picture is all");
    let svg = svg();
    // Of 40 MiB in 32, some pages are in memory and some elsewhere, and threads have waited.
    for shown in [
        "ebb run -- python3",
        ">40 MiB<",
        "class=\"resident\" d=\"M64.0",
        "class=\"limit\"",
        "</svg>",
    ] {
        assert!(svg.contains(shown), "{shown} is not in {svg}");
    }
    let elsewhere = ["compressed", "file"].map(|place| format!("class=\"{place}\" d=\"M64.0"));
    assert!(elsewhere.iter().any(|area| svg.contains(area)), "{svg}");
}

#[test]
fn a_closed_pipe_ends_the_watch_and_wrong_arguments_are_refused() {
    let program = Program::start();
    let pid = program.pid();
    let script = format!("\"$ebb\" stat --watch=0.1 {pid} | head -1; echo over");
    let outcome = Launch::new("sh").args(["-c", &script]).env("ebb", ebb()).run();
    assert!(outcome.expect_code(0).text().ends_with("over\n") && outcome.stderr.is_empty());
    for (words, code, named) in [
        (vec!["--watch", "--format", "openmetrics", &*pid], 1, "--metrics"),
        (vec!["--watch=0", &pid], 2, "0.1 to 3600"),
        (vec!["--watch=often", &pid], 2, "as 1 or 0.5"),
        (vec!["--watch"], 2, "the process is missing"),
        (vec!["--watch", "2.5"], 2, "the process is missing"),
        (vec![], 2, "PID"),
        (vec!["--watch", "--", "1"], 1, "no run of yours"),
    ] {
        let outcome = stat(&words).run();
        outcome.expect_code(code);
        assert!(
            outcome.stderr.contains(named) && outcome.stdout.is_empty(),
            "{words:?}: {}",
            outcome.stderr
        );
    }
    let said = program.run.stderr();
    assert!(said.lines().all(|line| line.starts_with("ebb: thrashing: ")), "{said}");
}
