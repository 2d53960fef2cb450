//! Builds the agent that `ebb run` puts into programs, and includes it in the binary. One form is
//! the shared object that a loader loads. The other is an image for programs without a loader.
//!
//! Cargo cannot yet depend on another package's shared object, so this file calls the compiler
//! directly. The agent is one crate without dependencies.
//!
//! The other task is to tell the program its commit (`EBB_COMMIT`).

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = std::env::var("DEP_EBB_AGENT_SOURCE").expect("ebb-agent's build script says it");
    compile(&source, "ebb_preload", &["-Wl,-z,now"], &out.join("libebb_agent.so"));
    let alone =
        ["-nostdlib", "-nostartfiles", "-Wl,-Bsymbolic,--no-undefined,-z,norelro,-e,ebb_injected"];
    let object = out.join("libebb_injected.so");
    compile(&source, "ebb_injected", &alone, &object);
    lay_out(&std::fs::read(&object).expect("just made"), &out.join("agent.image"));
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=EBB_COMMIT");
    tell_commit();
}

/// Tells the program its commit if git knows it. A `+` follows if a crate has uncommitted changes.
/// A build for tests has no commit, so that a commit does not rebuild it.
fn tell_commit() {
    let is_for_tests = std::env::var("PROFILE").is_ok_and(|profile| profile == "debug");
    // A packager of a release without git history may set the variable.
    if is_for_tests || std::env::var_os("EBB_COMMIT").is_some() {
        return;
    }
    // In a vendored copy inside another repository, the commit is not Ebb's.
    if git(&["ls-files", "--error-unmatch", "build.rs"]).is_none() {
        return;
    }
    let of_git = ["HEAD", "logs/HEAD"].iter().filter_map(|f| git(&["rev-parse", "--git-path", f]));
    // A path that does not exist would run this script at each build.
    for path in of_git.filter(|path| Path::new(path).exists()).chain(["..".to_owned()]) {
        println!("cargo::rerun-if-changed={path}");
    }
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else { return };
    let clean = git(&["status", "--porcelain", "--", ".."]).is_some_and(|text| text.is_empty());
    println!("cargo::rustc-env=EBB_COMMIT={commit}{}", if clean { "" } else { "+" });
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned())
}

fn compile(source: &str, kind: &str, link: &[&str], object: &Path) {
    let compiler = std::env::var_os("RUSTC").expect("cargo sets RUSTC");
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    let status = Command::new(compiler)
        .args(["--edition", "2024", "--crate-name", "ebb_agent", "--crate-type", "cdylib"])
        .args(["--cfg", kind, "--target", &target])
        .args(["-C", "panic=abort", "-C", "opt-level=3", "-C", "strip=symbols"])
        // Nothing unwinds in the agent, but the precompiled core names the routine that would.
        .args(["-C", "link-arg=-Wl,--defsym=rust_eh_personality=0"])
        .args(link.iter().flat_map(|word| ["-C".to_owned(), format!("link-arg={word}")]))
        .arg("-o")
        .arg(object)
        .arg(format!("{source}/lib.rs"))
        .status()
        .expect("the compiler can be started");
    assert!(status.success(), "the agent does not compile");
}

/// Writes the object page by page as it is to lie in memory.
fn lay_out(object: &[u8], file: &Path) {
    const PAGE: usize = 4096;
    const LOAD: usize = 1;
    let number = |at: usize, bytes: usize| {
        object[at..at + bytes].iter().rev().fold(0, |number, &byte| number << 8 | usize::from(byte))
    };
    let headers = (0..number(56, 2)).map(|index| number(32, 8) + index * number(54, 2));
    let mut image = Vec::new();
    for at in headers.filter(|&at| number(at, 4) == LOAD) {
        let (from, to) = (number(at + 8, 8), number(at + 16, 8));
        let (len, whole) = (number(at + 32, 8), number(at + 40, 8));
        image.resize((to + whole).next_multiple_of(PAGE), 0);
        image[to..to + len].copy_from_slice(&object[from..from + len]);
    }
    // Checks that all relocations are relative to the load address (SHT_RELA, R_X86_64_RELATIVE).
    // The image can use no symbols of others.
    let sections = (0..number(60, 2)).map(|index| number(40, 8) + index * number(58, 2));
    for at in sections.filter(|&at| number(at + 4, 4) == 4) {
        let (from, len) = (number(at + 24, 8), number(at + 32, 8));
        assert!((from..from + len).step_by(24).all(|entry| number(entry + 8, 8) == 8));
    }
    std::fs::write(file, &image).expect("OUT_DIR can be written");
}
