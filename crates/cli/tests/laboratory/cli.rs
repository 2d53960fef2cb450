//! Tests the commands from outside: the output, and the answers to invalid arguments.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::{SMALL, stdout};

fn lab(arguments: &[&str]) -> Output {
    crate::lab(arguments).output().unwrap()
}

fn failure(arguments: &[&str]) -> String {
    let output = lab(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A file in the folder for tests, removed when dropped.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        Self(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Writes a trace file that accesses `pages` pages in a loop.
fn looping(name: &str, pages: u32, accesses: u32) -> Scratch {
    let trace = Scratch::new(name);
    let text: String = (0..accesses).map(|i| format!("1,{},r,a\n", i % pages)).collect();
    let packed = zstd::encode_all(format!("dt,page,op,kind\n{text}").as_bytes(), 1).unwrap();
    std::fs::write(&trace.0, packed).unwrap();
    trace
}

const LOOP: &str = "synth:loop,pages=1000,accesses=10000";

#[test]
fn replay_prints_a_table_csv_and_json() {
    let text = stdout(&["replay", LOOP, "-m", "50%", "-p", "lru,belady,gen"]);
    assert!(text.starts_with(&format!("{LOOP}: 10,000 accesses to 1,000 pages (3.9 MiB)\n")));
    assert!(text.contains("memory 500 pages (2.0 MiB, 50.0 % of the footprint)"), "{text}");
    assert!(text.contains("lru         100.000 %        10,000         9,000"), "{text}");
    let csv = stdout(&["replay", LOOP, "-m", "500,1000", "-p", "lru", "--format", "csv"]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines[1].starts_with(&format!("\"{LOOP}\",lru,500,10000,10000,1.00000000,9000,9500,")));
    assert!(lines[2].starts_with(&format!("\"{LOOP}\",lru,1000,10000,1000,0.10000000,0,0,0,")));
    let json = stdout(&["replay", LOOP, "-m", "500", "-p", "belady", "--format", "json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["trace"]["footprint_pages"], 1000);
    let result = &json["results"][0];
    assert_eq!((&result["policy"], &result["memory_pages"]), (&"belady".into(), &500.into()));
    assert_eq!(result["refaults"], result["misses"].as_u64().unwrap() - 1000);
}

#[test]
fn errors_say_what_is_wrong_and_what_would_be_right() {
    let unknown = failure(&["replay", LOOP, "-p", "cloc"]);
    assert!(unknown.starts_with("ebb: there is no policy \"cloc\"; the nearest is \"clock\""));
    let memory = failure(&["replay", LOOP, "-m", "half"]);
    assert!(memory.starts_with("ebb: --memory \"half\": expected a number of pages"));
    let setting = failure(&["replay", LOOP, "--set", "gen.bulkmove=on"]);
    assert!(setting.contains("the nearest is \"gen.bulk_move\""), "{setting}");
    let synth = failure(&["replay", "synth:loop,page=3"]);
    assert!(synth.contains("no parameter \"page\""), "{synth}");
    let file = failure(&["replay", "/nowhere/t.csv.zst"]);
    assert!(file.starts_with("ebb: /nowhere/t.csv.zst: No such file"), "{file}");
    let small = failure(&["replay", LOOP, "-m", "3", "-p", "clock-pro"]);
    assert_eq!(small, "ebb: clock-pro needs at least 4 pages of memory, not 3\n");
    assert!(failure(&["mrc", LOOP, "--sample", "2"]).contains("--sample 2: expected a share"));
    assert!(failure(&["mrc", LOOP, "--sample", "0.001"]).contains("use a higher rate"));
}

#[test]
fn converted_traces_replay_alike() {
    let csv = Scratch::new("converted.csv");
    let text: String =
        (0..5000u64).map(|i| format!("1,{},r,a\n", i * i % 997 + (1 << 40))).collect();
    std::fs::write(&csv.0, format!("dt,page,op,kind\n{text}")).unwrap();
    let results = |path: &str| {
        let json = stdout(&["replay", path, "-m", "100", "-p", "arc", "--format", "json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        (json["results"][0]["misses"].clone(), json["trace"]["footprint_pages"].clone())
    };
    for name in ["converted.ebbtrace", "converted.ebbtrace.zst"] {
        let compact = Scratch::new(name);
        stdout(&["convert", csv.path(), compact.path()]);
        assert!(compact.0.metadata().unwrap().len() < csv.0.metadata().unwrap().len() / 3);
        assert_eq!(results(compact.path()), results(csv.path()));
    }
}

/// Shows that no curve is drawn of page faults. `ebb run --record` and perf see faults only, so
/// such a curve would not be one of all accesses.
#[test]
fn no_curve_is_drawn_of_page_faults() {
    let (csv, perf) = (Scratch::new("faults.csv"), Scratch::new("faults.perf"));
    let (packed, new) = (Scratch::new("faults.ebbtrace"), Scratch::new("faults.toml"));
    let lines: String = (0..5000u64).map(|i| format!("2,{},r,a\n", i * i % 997)).collect();
    std::fs::write(&csv.0, format!("dt,fault,op,kind\n{lines}")).unwrap();
    let lines: String =
        (0..900).map(|i| format!("  cc1 77 5.{i:06}: page-faults:  7f00{i:08x}\n")).collect();
    std::fs::write(&perf.0, lines).unwrap();
    stdout(&["convert", csv.path(), packed.path()]);
    for file in [&csv, &perf, &packed] {
        for sample in [&[][..], &["--sample", "0.9"]] {
            let refused = failure(&[&["mrc", file.path()], sample].concat());
            assert!(refused.contains("has page faults only; accesses to resident"), "{refused}");
        }
        // A replay of page faults is allowed, and states that it shows only these.
        assert!(stdout(&["replay", file.path(), "-p", "lru"]).contains("lru"));
        let mine = ["new", new.path(), "--trace", file.path()];
        stdout(&mine);
        let text = std::fs::read_to_string(&new.0).unwrap();
        assert!(text.contains("accept_faults = true"), "{text}");
        let strict = text.replace("accept_faults = true", "accept_faults = false");
        std::fs::write(&new.0, strict).unwrap();
        assert!(failure(&["run", new.path()]).contains("has page faults only"));
        std::fs::remove_file(&new.0).unwrap();
    }
}

#[test]
fn a_trace_is_thinned_to_the_view_of_passes_over_accessed_bits() {
    let (csv, thin) = (Scratch::new("thick.csv"), Scratch::new("thin.ebbtrace"));
    // Four pages in turn, 100 times, then four others.
    let text: String = (0..800u64).map(|i| format!("1,{},r,a\n", i % 4 + i / 400 * 4)).collect();
    std::fs::write(&csv.0, format!("dt,page,op,kind\n{text}")).unwrap();
    for (more, accesses, pages) in [(vec![], 4 + 7 * 4, 8), (vec!["--frame", "4"], 1 + 7, 2)] {
        let mut args = vec!["convert", csv.path(), thin.path(), "--window", "100"];
        args.extend(more);
        stdout(&args);
        let json = stdout(&["replay", thin.path(), "-m", "100", "-p", "lru", "--format", "json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        let trace = &json["trace"];
        let seen =
            (trace["accesses"].as_u64().unwrap(), trace["footprint_pages"].as_u64().unwrap());
        assert!(seen.0.abs_diff(accesses) <= 8 && seen.1 == pages, "{seen:?}");
    }
    let alone = failure(&["convert", csv.path(), thin.path(), "--frame", "4"]);
    assert!(alone.contains("--window"), "{alone}");
}

#[test]
fn curves_are_printed_and_drawn() {
    let html = Scratch::new("curves.html");
    let trace = "synth:zipf,pages=3000,accesses=50000";
    let text = stdout(&["mrc", trace, "-p", "lru,belady", "--html", html.path()]);
    assert_eq!(text.lines().count(), 3 + 20, "{text}");
    let page = std::fs::read_to_string(&html.0).unwrap();
    assert_eq!(page.matches("<g class=\"series").count(), 4, "two curves, wide and narrow");
    assert_eq!(page.matches("<circle").count(), 2 * 2 * 20);
    let sampled =
        stdout(&["mrc", trace, "-p", "lru", "--sample", "0.2", "--verify", "--format", "json"]);
    let sampled: Value = serde_json::from_str(&sampled).unwrap();
    let measured = &sampled["sampling"]["measured"];
    assert!(measured["mean"].as_f64().unwrap() < 0.03, "{measured}");
    assert!(sampled["curves"][0]["points"][19]["error"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_wrong_baseline_fails_the_check() {
    let baseline = Scratch::new("baseline.csv");
    let _trace = looping("checked.csv.zst", 50, 4000);
    for (misses, code) in [("4000", 0), ("3990", 0), ("3900", 1)] {
        let rows =
            format!("trace,size_pages,policy,misses\nchecked,40,LRU,{misses}\nother,4,LRU,1\n");
        std::fs::write(&baseline.0, rows).unwrap();
        let dir = env!("CARGO_TARGET_TMPDIR");
        let output = lab(&["check-baseline", dir, "--baseline", baseline.path()]);
        assert_eq!(output.status.code(), Some(code), "{misses}");
    }
}

/// Shows that recorded traces give the measured miss counts. The traces are too large for the
/// repository. `EBB_TRACES` names their folder, and `EBB_BASELINE` the counts.
#[test]
#[ignore = "needs EBB_TRACES and EBB_BASELINE, and minutes"]
fn recorded_traces_match_the_measured_miss_counts() {
    let variable = |name| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let (dir, baseline) = (variable("EBB_TRACES"), variable("EBB_BASELINE"));
    let output = lab(&["check-baseline", &dir, "--baseline", &baseline]);
    assert!(output.status.success(), "a miss ratio is more than 0.5 points off");
}

#[test]
fn a_policy_is_ranked_among_those_of_a_baseline() {
    let baseline = Scratch::new("ranked.csv");
    let _trace = looping("ranked.csv.zst", 500, 40_000);
    let rows = "trace,size_pages,policy,misses\nranked,400,Belady,20000\nranked,400,LRU,30000\n";
    std::fs::write(&baseline.0, rows).unwrap();
    let dir = env!("CARGO_TARGET_TMPDIR");
    let rank = ["rank", dir, "--baseline", baseline.path(), "--policy"];
    let text = stdout(&[&rank[..], &["lru"]].concat());
    assert_eq!(
        text.lines().nth(1),
        Some("all                    1      2.000      1.500"),
        "{text}"
    );
    let text = failure(&[&rank[..], &["lru", "--pages-min", "401"]].concat());
    assert!(text.contains("401 pages or more"), "{text}");
}

/// Shows that a browser draws the plot and fetches nothing.
#[test]
fn a_browser_draws_the_plot() {
    if Command::new("chromium").arg("--version").output().is_err() {
        ebb_testing::skip("chromium is missing");
    }
    let html = Scratch::new("browser.html");
    let picture = Scratch::new("browser.png");
    stdout(&["mrc", "synth:zipf,pages=3000,accesses=50000", "--html", html.path()]);
    for (theme, background) in [("1", "light"), ("0", "dark")] {
        let output = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--window-size=400,900"])
            .arg(format!("--blink-settings=preferredColorScheme={theme}"))
            .arg(format!("--screenshot={}", picture.path()))
            .arg("--dump-dom")
            .arg(format!("file://{}", html.path()))
            .output()
            .unwrap();
        let dom = String::from_utf8_lossy(&output.stdout);
        assert!(dom.contains("<g class=\"series") && dom.contains("</html>"), "{background}");
        let bytes = picture.0.metadata().unwrap().len();
        assert!(bytes > 20_000, "{background}: a picture of {bytes} bytes shows nothing");
        std::fs::remove_file(&picture.0).unwrap();
    }
}

fn words<'a>(parts: &[&[&'a str]]) -> Vec<&'a str> {
    parts.concat()
}

/// Shows that merged shards give the report of one run, in each format, and that missing shards are
/// named.
#[test]
fn shards_together_say_what_one_run_says() {
    let scenario = Scratch::new("shards scenario.toml");
    std::fs::copy(SMALL, &scenario.0).unwrap();
    let asked: &[&str] = &[scenario.path(), "--seeds", "2", "--ab", "gen.walk=on,off"];
    let parts: Vec<Scratch> = (1..=3)
        .map(|number| {
            let part = Scratch::new(&format!("shards-{number}.json"));
            let shard = format!("{number}/3");
            let text = stdout(&words(&[&["run"], asked, &["--shard", &shard]]));
            std::fs::write(&part.0, text).unwrap();
            part
        })
        .collect();
    // The parts contain the scenario, so its file may change.
    let text = std::fs::read_to_string(&scenario.0).unwrap();
    std::fs::write(&scenario.0, "nonsense").unwrap();
    let files: &[&str] = &[2, 0, 1].map(|at| parts[at].path());
    let merged = |format: &str| stdout(&words(&[&["merge", "--format", format], files]));
    let [as_json, as_csv, as_text] = ["json", "csv", "text"].map(merged);
    std::fs::write(&scenario.0, text).unwrap();
    let whole = |format: &str| stdout(&words(&[&["run"], asked, &["--format", format]]));
    assert_eq!(as_json, whole("json"));
    assert_eq!((as_csv, as_text), (whole("csv"), whole("text")));
    let lost = failure(&["merge", parts[0].path(), parts[2].path()]);
    assert!(
        lost.contains("missing: shard 2/3; to run it: ebb lab run --ab gen.walk=on,off"),
        "{lost}"
    );
    assert!(lost.contains("shards scenario.toml' --shard 2/3"), "{lost}");
    let wrong = failure(&words(&[&["run"], asked, &["--shard", "4/3"]]));
    assert!(wrong.contains("expected I/N, such as 1/4 to 4/4"), "{wrong}");
    let wrong = failure(&words(&[&["run"], asked, &["--shard", "1/3", "--html", "x"]]));
    assert!(wrong.contains("cannot be used with"), "{wrong}");
}

/// Shows that a seed and a file reproduce a finding, and that the exit status tells of it.
#[test]
fn a_finding_is_found_again_by_its_seed_and_by_its_file() {
    let bug: &[&str] = &["fuzz", "--set", "preset=k618", "--only", "over-reclaim"];
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz-found");
    let out = folder.to_str().unwrap();
    let run = |more: &[&str]| {
        let output = lab(&words(&[bug, more, &["--format", "json"]]));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), json)
    };
    let (code, json) = run(&["--machines", "200", "--first", "--out", out]);
    assert_eq!(code, Some(1));
    let found = &json["findings"][0];
    let seed = found["seed"].to_string();
    let (code, again) = run(&["--seed", &seed, "--machines", "1"]);
    assert_eq!((code, &again["findings"][0]["told"]), (Some(1), &found["told"]));
    let file = folder.join(format!("over-reclaim-{seed}.toml"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), found["small"].as_str().unwrap());
    // The file contains the bug; the arm without the bug shows nothing.
    let by_file = lab(&["fuzz", file.to_str().unwrap(), "--only", "over-reclaim"]);
    let text = String::from_utf8(by_file.stdout).unwrap();
    assert_eq!(by_file.status.code(), Some(1), "{text}");
    assert!(text.contains("default: nothing was found") && text.contains("drawn: over-reclaim: "));
    // The file is a scenario like others.
    assert!(stdout(&["run", file.to_str().unwrap(), "--seeds", "2"]).contains("drawn"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_fuzzer_that_finds_nothing_says_so_and_wrong_arguments_are_answered() {
    let text = stdout(&["fuzz", "--machines", "3", "--seed", "7", "--jobs", "1"]);
    assert!(text.starts_with("3 machines in ") && text.contains("seeds 7 to 9: nothing"), "{text}");
    assert!(stdout(&["fuzz", "--show", "--seed", "7"]).contains("\n[machine]\n"));
    assert!(failure(&["fuzz", "--only", "false-ooms"]).contains("did you mean \"false-oom\"?"));
    assert!(failure(&["fuzz", "--time", "soon"]).contains("expected a time such as 60s"));
    assert!(failure(&["fuzz", "--set", "machine.cpus=4"]).contains("expected a switch"));
    assert!(failure(&["fuzz", "--set", "gen.wlak=off"]).contains("did you mean 'gen.walk'?"));
    assert!(failure(&["fuzz", "/nowhere/x.toml"]).contains("/nowhere/x.toml: No such file"));
}
