//! Tells the lab which commit it is built from, where git knows: `EBB_COMMIT`, with a `+` where the lab or the engine has
//! changes that are in no commit. Without git it is not set; nor in a build for tests, which a commit does not begin anew.

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
    // Both sources and the commit may change; a path that is not there would have this run each time.
    let kept = ["src", "build.rs", "Cargo.toml", "../core/src"].map(str::to_owned);
    let of_git = ["HEAD", "logs/HEAD"].iter().filter_map(|f| git(&["rev-parse", "--git-path", f]));
    for path in kept.into_iter().chain(of_git).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-env-changed=EBB_COMMIT");
    // Who packages a release without its history may say it.
    if std::env::var_os("EBB_COMMIT").is_some() {
        return;
    }
    // In a folder of somebody else's repository (a vendored copy) its commit is not ours.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    let clean = git(&["status", "--porcelain", "--", ".", "../core"]).is_some_and(|t| t.is_empty());
    println!("cargo::rustc-env=EBB_COMMIT={commit}{}", if clean { "" } else { "+" });
}
