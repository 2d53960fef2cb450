//! Builds the agent as the shared object that `ebb run` preloads; the binary carries it inside.
//!
//! Cargo cannot yet depend on another package's shared object, so the compiler is called directly:
//! the agent is one crate without dependencies.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let compiler = std::env::var_os("RUSTC").expect("cargo sets RUSTC");
    let target = std::env::var("TARGET").expect("cargo sets TARGET");
    let source = std::env::var("DEP_EBB_AGENT_SOURCE").expect("ebb-agent's build script says it");
    let object = out.join("libebb_agent.so");
    let status = Command::new(compiler)
        .args(["--edition", "2024", "--crate-name", "ebb_agent", "--crate-type", "cdylib"])
        .args(["--cfg", "ebb_preload", "--target", &target])
        .args(["-C", "panic=abort", "-C", "opt-level=3", "-C", "strip=symbols"])
        // Nothing unwinds in there, but the precompiled core names the routine that would.
        .args(["-C", "link-arg=-Wl,--defsym=rust_eh_personality=0"])
        .args(["-C", "link-arg=-Wl,-z,now", "-o"])
        .arg(&object)
        .arg(format!("{source}/lib.rs"))
        .status()
        .expect("the compiler can be started");
    assert!(status.success(), "the agent does not compile");
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-changed=build.rs");
}
