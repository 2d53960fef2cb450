//! Tests the memory of a replay, by the footprint of its trace.

use ebb_testing::{eventually, skip};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

/// Returns the largest memory of a replay in bytes, up to its first output. The replay then blocks,
/// because the socket it writes to is full.
fn peak_bytes(arguments: &[&str]) -> u64 {
    let (mut from, mut to) = UnixStream::pair().unwrap();
    to.set_nonblocking(true).unwrap();
    while to.write(&[0; 4096]).is_ok_and(|written| written > 0) {}
    // Fill the rest, byte by byte.
    while to.write(&[0]).is_ok() {}
    assert_eq!(to.write(&[0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    to.set_nonblocking(false).unwrap();
    let mut child = crate::lab(arguments).stdout(Stdio::from(OwnedFd::from(to))).spawn().unwrap();
    let folder = format!("/proc/{}", child.id());
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}"));
    if read("syscall").is_err_and(|error| error.kind() != ErrorKind::NotFound) {
        skip("the calls of other processes are not to be seen here");
    }
    // write(1, …)
    eventually("its output", || {
        assert!(child.try_wait().unwrap().is_none(), "{arguments:?}");
        read("syscall").unwrap().starts_with("1 0x1 ")
    });
    let status = read("status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let mut output = Vec::new();
    from.read_to_end(&mut output).unwrap();
    assert!(child.wait().unwrap().success(), "{arguments:?}");
    kib.unwrap() * 1024
}

/// Shows the bound on the memory of a replay. A loop is in memory whole after its first round, and
/// stays so for two more.
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
