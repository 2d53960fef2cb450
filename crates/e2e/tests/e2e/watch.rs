//! `ebb stat --watch`: figures again and again while a run lasts.

use ebb_e2e::MIB;
use ebb_e2e::build::ebb;
use ebb_e2e::launch::{Launch, Outcome, Running};
use ebb_e2e::same::need;
use serde_json::Value;

const PROGRAM: &str = "import os, time\narea = bytearray(os.urandom(40 << 20))\nprint('ready', flush=True)\n\
                       end = time.time() + 4\nwhile time.time() < end:\n\
                       \x20   for at in range(0, len(area), 4096): area[at] = 1\n\
                       \x20   time.sleep(0.01)";

fn program() -> Running {
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", PROGRAM]).limit(32 * MIB);
    let mut run = launch.start();
    run.wait_for("ready");
    run
}

fn stat(words: &[&str]) -> Outcome {
    Launch::new(ebb()).arg("stat").args(words).run()
}

#[test]
fn all_figures_first_and_then_those_that_have_changed() {
    let run = program();
    let outcome = stat(&["--watch=0.4", &run.pid().to_string()]);
    run.finish().expect_code(0);
    assert_eq!(outcome.expect_code(0).stderr, "", "the run's end is the end");
    let text = outcome.text();
    let blocks: Vec<&str> = text.split("\n\n").collect();
    assert!((4..16).contains(&blocks.len()), "{text}");
    assert!(blocks[0].contains("\nebb_nr_limit 8192\n") && !blocks[0].contains("/s"), "{text}");
    let rates = blocks[1..].iter().flat_map(|block| block.lines());
    let faults: Vec<&str> = rates.filter(|line| line.starts_with("pgmajfault ")).collect();
    assert!(
        faults.len() >= 3 && faults.iter().all(|line| line.contains(" +") && line.ends_with("/s")),
        "{text}"
    );
    assert!(
        !blocks[1..].iter().any(|block| block.contains("ebb_nr_limit")),
        "it is what it was: {text}"
    );
}

#[test]
fn a_line_of_json_each_time_and_the_other_figures_too() {
    let run = program();
    let pid = run.pid().to_string();
    let json =
        Launch::new(ebb()).args(["stat", &pid, "--watch", "0.5", "--format", "json"]).start();
    let pressure = Launch::new(ebb()).args(["stat", &pid, "--watch", "0.5", "--pressure"]).start();
    // A number alone is the process.
    let faults =
        Launch::new(ebb()).args(["stat", "--faults", "--format", "json", "--watch", &pid]).start();
    run.finish().expect_code(0);
    let [json, pressure, faults] = [json, pressure, faults].map(Running::finish);
    let read = |outcome: &Outcome| -> Vec<Value> {
        outcome.expect_code(0);
        let text = outcome.text();
        text.lines().map(|line| serde_json::from_str(line).expect("an object a line")).collect()
    };
    let lines = read(&json);
    assert!((3..12).contains(&lines.len()), "{lines:?}");
    let number = |line: &Value, key: &str| line[key].as_u64().expect("a number");
    let times = lines
        .windows(2)
        .map(|pair| number(&pair[1], "time_unix_us") - number(&pair[0], "time_unix_us"));
    assert!(times.into_iter().all(|time| time > 400_000), "{lines:?}");
    assert!(number(&lines[lines.len() - 1], "pgmajfault") > number(&lines[0], "pgmajfault"));
    let lines = read(&faults);
    assert!(lines.len() >= 2 && number(&lines[0], "waited_ns") > 0);
    assert!(pressure.expect_code(0).text().matches("some avg10=").count() >= 3);
}

#[test]
fn a_run_is_drawn_until_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.svg");
    let run = program();
    let pid = run.pid().to_string();
    let draws = |file: &str| stat(&["--watch=0.1", "--svg", file, &pid]);
    let nowhere = draws("/nowhere/run.svg");
    assert!(
        nowhere.expect_code(1).stderr.contains("--svg /nowhere/run.svg: "),
        "{}",
        nowhere.stderr
    );
    let outcome = draws(file.to_str().expect("a name"));
    run.finish().expect_code(0);
    assert_eq!(outcome.expect_code(0).text() + &outcome.stderr, "", "the picture is all");
    let svg = std::fs::read_to_string(&file).expect("a picture");
    // 40 MiB in 32: they are in memory and elsewhere, and somebody waited.
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
fn who_reads_no_more_ends_it_and_what_makes_no_sense_is_refused() {
    let run = program();
    let pid = run.pid().to_string();
    let script = format!("{} stat --watch=0.1 {pid} | head -1; echo over", ebb().display());
    let outcome = Launch::new("sh").args(["-c", &script]).run();
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
        let outcome = stat(&words);
        outcome.expect_code(code);
        assert!(
            outcome.stderr.contains(named) && outcome.stdout.is_empty(),
            "{words:?}: {}",
            outcome.stderr
        );
    }
    assert!(run.stderr().is_empty(), "{}", run.stderr());
}
