//! Provides the programs: C sources compiled on first use, and the binaries `ebb` and `ebb-lab`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// Returns the root of the repository.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("repository root")
    })
}

/// Returns the target folder of the running test, whatever `CARGO_TARGET_DIR` says.
pub fn target() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| {
        // target/PROFILE/deps/TEST-HASH, target/PROFILE/NAME
        let own = std::env::current_exe().expect("the test's own program");
        let is_profile = |folder: &&Path| folder.join("deps").is_dir();
        let profile = own.ancestors().find(is_profile).expect("cargo built this test");
        profile.parent().expect("a profile lies in target").to_owned()
    })
}

/// Returns the path of a file beside the C programs: a script, a Java source.
pub fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// Returns the `ebb` binary: `EBB_BIN`, the one of this build, or one built now.
pub fn ebb() -> &'static Path {
    static EBB: OnceLock<PathBuf> = OnceLock::new();
    EBB.get_or_init(|| {
        existing_ebb().unwrap_or_else(|| {
            let mut cargo = Command::new(env!("CARGO"));
            cargo
                .args(["build", "-p", "ebb-run", "--target-dir"])
                .arg(target())
                .current_dir(root());
            assert!(cargo.status().expect("cargo runs").success(), "ebb does not build");
            existing_ebb().expect("ebb is built")
        })
    })
}

/// Returns the `ebb-lab` binary, which is beside `ebb`.
pub fn ebb_lab() -> PathBuf {
    ebb().with_file_name("ebb-lab")
}

/// Returns the `ebb` binary if there is one already.
pub fn existing_ebb() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("EBB_BIN") {
        return Some(PathBuf::from(path).canonicalize().expect("EBB_BIN names a file"));
    }
    Some(target().join("debug/ebb")).filter(|path| path.exists())
}

/// Returns a compiled C program. `torture` has two source files, the others one.
pub fn program(name: &str) -> PathBuf {
    compile(name, &sources_of(name), &[])
}

fn sources_of(name: &str) -> Vec<PathBuf> {
    let chaos = (name == "torture").then(|| script("torture_chaos.c"));
    [script(&format!("{name}.c"))].into_iter().chain(chaos).collect()
}

/// Returns a C program linked statically, so that nothing can be preloaded into it.
pub fn static_program(name: &str) -> PathBuf {
    compile(&format!("{name}-static"), &sources_of(name), &["-static"])
}

/// Returns a C program as a static position-independent executable.
pub fn static_pie_program(name: &str) -> PathBuf {
    compile(&format!("{name}-static-pie"), &sources_of(name), &["-static-pie", "-fPIE"])
}

/// Returns a static C program without the note that identifies programs of glibc.
pub fn foreign_program(name: &str) -> PathBuf {
    let fixed = static_program(name);
    make(&format!("{name}-foreign"), |fresh| {
        let mut objcopy = Command::new("objcopy");
        objcopy.args(["--remove-section", ".note.ABI-tag"]).arg(&fixed).arg(fresh);
        objcopy
    })
}

/// Returns a C source compiled as a shared library, for preloading.
pub fn library(name: &str) -> PathBuf {
    compile(&format!("{name}.so"), &[script(&format!("{name}.c"))], &["-shared", "-fPIC"])
}

/// Returns a copy of a library on a path without spaces, because LD_PRELOAD is a list. Also returns
/// the folder that contains it.
pub fn library_to_preload(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let copy = folder.path().join(format!("{name}.so"));
    fs::copy(library(name), &copy).expect("a copy");
    (folder, copy)
}

/// Returns the Go program in `folder` of `programs/go`. It is static unless `options` of `go build`
/// say otherwise.
pub fn go_program(output: &str, folder: &str, options: &[&str]) -> PathBuf {
    make(output, |fresh| {
        let mut go = Command::new("go");
        go.arg("build").args(options).arg("-o").arg(fresh).arg(folder).current_dir(script("go"));
        go.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false");
        go.env("GOCACHE", target().join("e2e-programs/go-cache"));
        go
    })
}

fn compile(output: &str, sources: &[PathBuf], extra: &[&str]) -> PathBuf {
    make(output, |fresh| {
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-pthread", "-Wall", "-Wextra", "-Werror"]).args(extra);
        cc.arg("-o").arg(fresh).args(sources);
        cc
    })
}

fn make(output: &str, compiler: impl Fn(&Path) -> Command) -> PathBuf {
    let folder = target().join("e2e-programs");
    fs::create_dir_all(&folder).expect("folder for programs");
    let path = folder.join(output);
    if modified(&path) > newest_source() {
        return path;
    }
    // The tests of all processes compile one at a time.
    let lock = fs::File::create(folder.join("lock")).expect("a lock");
    lock.lock().expect("the lock");
    if modified(&path) > newest_source() {
        return path;
    }
    // Another test process may run the old file. So the compiler writes a file beside it, and a
    // rename replaces the old one.
    let fresh = folder.join(format!("{output}.{}", std::process::id()));
    let status = compiler(&fresh).status().expect("the compiler runs");
    assert!(status.success(), "{output} does not compile");
    fs::rename(&fresh, &path).expect("program in place");
    path
}

fn modified(path: &Path) -> SystemTime {
    fs::metadata(path).and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn newest_source() -> SystemTime {
    let files = ["", "go", "go/little"]
        .map(|folder| fs::read_dir(script(folder)).expect("folder of sources"));
    let files = files.into_iter().flatten().flatten();
    files.map(|entry| modified(&entry.path())).max().expect("sources")
}
