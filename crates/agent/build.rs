//! Gives dependent crates the path of this crate's source (`DEP_EBB_AGENT_SOURCE`). `ebb` builds
//! the source a second time, as the shared object that it preloads.

fn main() {
    let here = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::metadata=source={here}/src");
    println!("cargo::rerun-if-changed=build.rs");
}
