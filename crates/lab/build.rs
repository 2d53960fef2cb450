//! Tells the lab the commit it is built from, if git knows it, by `EBB_COMMIT`. A `+` follows if
//! the lab or the engine has uncommitted changes. Without git the variable is not set. A build for
//! tests has none either, so that a commit does not rebuild it.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let out = Command::new("git").args(arguments).output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.trim().to_owned())
}

fn main() {
    if std::env::var("PROFILE").is_ok_and(|profile| profile == "debug") {
        println!("cargo::rerun-if-changed=build.rs");
        return;
    }
    // Sources and commit may change. A path that does not exist would run this script at each
    // build.
    let kept = ["src", "build.rs", "Cargo.toml", "../core/src"].map(str::to_owned);
    let of_git = ["HEAD", "logs/HEAD"].iter().filter_map(|f| git(&["rev-parse", "--git-path", f]));
    for path in kept.into_iter().chain(of_git).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=EBB_COMMIT");
    // A packager of a release without git history may set the variable.
    if std::env::var_os("EBB_COMMIT").is_some() {
        return;
    }
    // In a vendored copy inside another repository, the commit is not Ebb's.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    let clean = git(&["status", "--porcelain", "--", ".", "../core"]).is_some_and(|t| t.is_empty());
    println!("cargo::rustc-env=EBB_COMMIT={commit}{}", if clean { "" } else { "+" });
}
