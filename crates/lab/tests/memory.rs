//! What a replay holds in memory, by the footprint of what it replays.

use std::process::{Command, Stdio};
use std::time::Duration;

/// The most a replay held, in bytes, read while it ran.
fn peak_bytes(arguments: &[&str]) -> u64 {
    let mut child = Command::new(env!("CARGO_BIN_EXE_ebb-lab"))
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let path = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    loop {
        // A process that has ended but was not waited for has a status without these lines.
        let status = std::fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = peak.max(kib.unwrap_or(0) * 1024);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{arguments:?}");
            return peak;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A loop is in memory whole after its first round, and stays so for two more.
#[test]
fn a_replay_holds_at_most_96_bytes_for_each_page_of_the_footprint() {
    const PAGES: u64 = 400_000;
    let trace = format!("synth:loop,pages={PAGES},accesses={}", 3 * PAGES);
    let small = peak_bytes(&["replay", "synth:loop,pages=1000,accesses=20000", "-p", "gen"]);
    for policies in ["gen", "classic", "lru,s3-fifo,belady"] {
        let peak = peak_bytes(&["replay", &trace, "-m", "100%", "-p", policies]);
        let each = peak.saturating_sub(small) / PAGES;
        assert!((20..=96).contains(&each), "{policies}: {each} bytes a page of footprint");
    }
}
