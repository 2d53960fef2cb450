//! The central promise: in less memory a program does exactly what it does with plenty.

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

/// What was said, but for the one line by which a run says that it has too little memory: a quarter may be.
fn without_thrashing(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with("ebb: thrashing: ")).collect()
}

/// A program that the test needs; without it the test is skipped.
#[track_caller]
pub fn need(path: &str) -> &Path {
    let path = Path::new(path);
    if !path.exists() {
        ebb_testing::skip(&format!("{} is missing", path.display()));
    }
    path
}
