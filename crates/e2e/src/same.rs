//! Compares a run in less memory with a plain run: output and status must be equal.

use std::path::Path;

use crate::launch::Outcome;

/// Fails unless both runs wrote the same bytes and ended alike.
#[track_caller]
pub fn same(plain: &Outcome, limited: &Outcome) {
    limited.expect_code(plain.code());
    assert!(
        plain.stderr == without_thrashing(&limited.stderr),
        "stderr differs: {:?}",
        limited.stderr
    );
    if plain.stdout != limited.stdout {
        let pairs = plain.stdout.iter().zip(&limited.stdout);
        let at = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        let lengths = (plain.stdout.len(), limited.stdout.len());
        panic!("stdout differs at byte {at} (lengths {lengths:?}) of {}", limited.command);
    }
}

/// Returns standard error without the line about thrashing. A quarter of the memory may be too
/// little.
fn without_thrashing(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with("ebb: thrashing: ")).collect()
}

/// Returns the path of a program that the test needs, or skips the test.
#[track_caller]
pub fn need(path: &str) -> &Path {
    let path = Path::new(path);
    if !path.exists() {
        ebb_testing::skip(&format!("{} is missing", path.display()));
    }
    path
}

/// Skips the test on a kernel older than Linux `major.minor`, because `what` needs that.
pub fn need_linux(major: u32, minor: u32, what: &str) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    if [numbers.next(), numbers.next()] < [Some(major), Some(minor)] {
        ebb_testing::skip(&format!("{what} needs Linux {major}.{minor}, and this is {release}"));
    }
}
