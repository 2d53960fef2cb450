//! How soon pages are used again, and the limit that a program needs.

use ebb_e2e::build;
use ebb_e2e::launch::{Launch, Outcome, send};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::process::Command;

/// 64 MiB, of which 16 are used all the time.
const LOAD: &str = "64 16 10000000";

fn ebb(words: &[&str]) -> std::process::Output {
    Command::new(build::ebb()).args(words).output().expect("ebb runs")
}

/// The sample finds how often memories of other sizes would miss: within a tenth of the most, and its own interval. (Sizes below
/// what stays in sight are left out, as the report says.)
#[test]
fn the_curve_of_a_sample_is_that_of_all_touches() {
    let sizes = "20 24 28 32 40 48 56";
    let exact = Command::new(build::program("reuse"))
        .args(format!("exact {LOAD} {sizes}").split(' '))
        .output()
        .expect("it runs");
    let exact: BTreeMap<u64, f64> = String::from_utf8_lossy(&exact.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(size, misses)| Some((size.parse().ok()?, misses.parse().ok()?)))
        .collect();
    assert_eq!(exact.len(), 7, "{exact:?}");
    let launch = Launch::program("reuse", &format!("run {LOAD}")).limit(1 << 30);
    let outcome: Outcome = launch.options("--sample --report json").run();
    outcome.expect_code(0).expect_line("run: ok");
    let report = outcome.stderr.lines().find(|line| line.starts_with('{')).expect("a report");
    let report: serde_json::Value = serde_json::from_str(report).expect("JSON");
    let reuse = &report["reuse"];
    let grain = reuse["grain_bytes"].as_u64().expect("what stays in sight");
    let curve = reuse["curve"].as_array().expect("a curve");
    let most = exact.values().copied().fold(0.0, f64::max);
    let mut compared = 0;
    for (size, exact) in exact {
        let bytes = size << 20;
        let point = curve.iter().find(|point| point["bytes"].as_u64() >= Some(bytes));
        let of = |name: &str| point.and_then(|point| point[name].as_f64()).unwrap_or(0.0);
        let (found, error) = (of("misses"), of("error"));
        println!("{size} MiB: {found} ± {error}, exactly {exact}; grain {grain}");
        if bytes > grain + grain / 8 {
            compared += 1;
            assert!(
                (found - exact).abs() < 0.1 * most + error,
                "{size} MiB: {found} ± {error}, not {exact}"
            );
        }
    }
    assert!(compared >= 3, "{compared} sizes beyond {grain} bytes");
}

/// What is named has been run, and keeps what was asked for; a memory that only holds what is used all the time is found.
#[test]
fn the_limit_that_is_found_was_run_and_keeps_the_slowdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("fit.html");
    let program = build::program("reuse");
    let load: Vec<&str> = "64 16 1000000".split(' ').collect();
    let mut words = vec!["fit", "--slowdown", "300%", "--format", "json", "--html"];
    words.extend([page.to_str().expect("a name"), "--", program.to_str().expect("a name"), "run"]);
    words.extend(load);
    let output = ebb(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let fit: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    println!("{fit}");
    let best = fit["memory_max_bytes"].as_u64().expect("a size");
    assert!(best < fit["peak_bytes"].as_u64().expect("a peak"), "less than all of it");
    let runs = fit["runs"].as_array().expect("runs");
    let proof = runs.iter().find(|run| run["memory_max_bytes"].as_u64() == Some(best));
    let slowdown = proof.expect("it was run")["slowdown_percent"].as_f64().expect("a number");
    assert!(slowdown <= 300.0 && fit["slowdown_percent"].as_f64() == Some(slowdown));
    let smaller = |run: &&serde_json::Value| run["memory_max_bytes"].as_u64() < Some(best);
    let lost = |run: &serde_json::Value| run["slowdown_percent"].as_f64() > Some(300.0);
    assert!(runs.iter().filter(smaller).all(lost), "no smaller one kept it: {fit}");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("<svg") && page.contains("measured"), "{page}");
}

#[test]
fn what_cannot_be_fitted_says_why() {
    for (words, why) in [
        (&["fit"][..], "no program; write: ebb fit -- PROGRAM"),
        (
            &["fit", "--slowdown", "5", "--", "true"],
            "--slowdown 5: write a share of the time, as 5%",
        ),
        (&["fit", "--swap", "tape", "--", "true"], "--swap: "),
        (&["fit", "--", "/no/such/program"], "/no/such/program"),
        (&["fit", "--input", "/no/such/file", "--", "true"], "--input /no/such/file: "),
        (&["fit", "--", "sh", "-c", "echo is broken >&2; exit 3"], "ended with status 3"),
    ] {
        let output = ebb(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{words:?}: {said}");
        assert!(said.contains(why), "{words:?}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    let output = ebb(&["fit", "--", "sh", "-c", "echo is broken >&2; exit 3"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("\n  is broken"),
        "what it said is shown"
    );
}

/// Its folder had a name that another user could have made before, and stayed after a Ctrl-C, as did the run.
#[test]
fn a_signal_ends_the_search_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mark = format!("271.{}", std::process::id());
    let mut child = Command::new(build::ebb())
        .args(["fit", "--", "sleep", &mark])
        .env("TMPDIR", folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("ebb runs");
    let sleeps = || {
        let all = std::fs::read_dir("/proc").expect("processes").flatten();
        let words =
            all.map(|process| std::fs::read(process.path().join("cmdline")).unwrap_or_default());
        words
            .filter(|words| {
                words.starts_with(b"sleep\0") && words.ends_with(format!("{mark}\0").as_bytes())
            })
            .count()
    };
    let began = std::time::Instant::now();
    while sleeps() == 0 {
        assert!(began.elapsed().as_secs() < 20, "it does not begin");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("names").flatten().collect();
    assert_eq!(names.len(), 1);
    let name = names[0].file_name().into_string().expect("a name");
    assert!(name.starts_with("ebb-fit-") && name.len() == "ebb-fit-".len() + 16, "{name}");
    let sent = std::time::Instant::now();
    send(child.id() as i32, Signal::TERM);
    assert_eq!(child.wait().expect("its status").code(), Some(128 + 15));
    assert!(sent.elapsed().as_secs() < 5, "the signal was blocked in the program");
    assert_eq!(sleeps(), 0, "its program goes on");
    assert_eq!(std::fs::read_dir(folder.path()).expect("names").count(), 0, "its folder stays");
}
