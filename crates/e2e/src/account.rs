//! An account of an ordinary user, made for a test and gone after it, with a folder that holds what it
//! may run: `ebb` and the test programs, as the checkout may lie where nobody else can go.
//!
//! What is done as the user is done through a login shell, so that nothing of root's is left: no
//! environment, no group, no capability. Making it takes root, and a test that needs one is skipped without.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tempfile::TempDir;

use ebb_sys::process::capabilities;
use ebb_testing::{eventually_some, skip};
use rustix::process::{Resource, getrlimit};

use crate::build;
use crate::launch::{Launch, Outcome};
use crate::same::need;

const DEVICE: &str = "/dev/userfaultfd";

/// A test that needs root is skipped without.
#[track_caller]
pub fn need_root() {
    if !rustix::process::getuid().is_root() {
        skip("it needs root");
    }
}

/// A test that locks so many bytes is skipped where that is not permitted.
#[track_caller]
pub fn need_locked(bytes: u64) {
    const IPC_LOCK: u64 = 1 << 14;
    let most = getrlimit(Resource::Memlock).current;
    if capabilities("CapEff") & IPC_LOCK == 0 && most.is_some_and(|most| most < bytes) {
        skip("this user may not lock so much memory");
    }
}

/// Whether a process may look into one that is not below it.
pub fn may_look_up() -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => true,
        "1" | "2" => capabilities("CapEff") & SYS_PTRACE != 0,
        _ => false,
    }
}

/// What is the machine's, as its list of accounts and the rights of the device, is read, changed and written: by one at a
/// time, of all tests. The lock is on a folder: whoever changes a file there may put another in its place.
pub fn alone() -> Option<File> {
    let folder = File::open("/etc").ok()?;
    folder.lock().ok().map(|()| folder)
}

/// Changes accounts, when nobody else does.
fn of_accounts(command: &mut Command) -> Output {
    let _alone = alone();
    eventually_some("the list of accounts", || {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let is_taken = String::from_utf8_lossy(&output.stderr).contains("try again later");
        (!is_taken).then_some(output)
    })
}

/// The account.
#[derive(Debug)]
pub struct Account {
    name: String,
    folder: TempDir,
}

fn as_root(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    said
}

impl Account {
    /// Makes it; `ebb` is in its folder, without any right.
    #[expect(clippy::new_without_default, reason = "it changes the machine")]
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        need_root();
        for path in ["/usr/sbin/useradd", "/usr/sbin/userdel", "/bin/su", DEVICE] {
            need(path);
        }
        let name = format!("ebb{}x{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().join("home");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let mut useradd = Command::new("useradd");
        useradd.args(["--create-home", "--shell", "/bin/sh", "--home-dir"]);
        let output = of_accounts(useradd.arg(&home).arg(&name));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let account = Self { name, folder };
        account.copy(build::ebb(), "ebb");
        account
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path in the folder, which belongs to root.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The account's `ebb`.
    pub fn ebb(&self) -> String {
        self.path("ebb").display().to_string()
    }

    /// A folder of the user's own.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// Puts a file of root's into the folder, for all to read and to run.
    pub fn copy(&self, from: &Path, name: &str) -> String {
        let to = self.path(name);
        // By another process: a writable descriptor of this one would be inherited by what other tests
        // start meanwhile, and the copy could not be executed.
        as_root(Command::new("cp").arg(from).arg(&to));
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("chmod");
        to.display().to_string()
    }

    /// One of the C programs, there.
    pub fn program(&self, name: &str) -> String {
        self.copy(&build::program(name), name)
    }

    /// The static program of Go, there.
    pub fn go_program(&self) -> String {
        self.copy(&build::go_program("go-work", ".", &[]), "go-work")
    }

    /// A shell's command line, for the user's login shell.
    pub fn shell(&self, line: &str) -> Launch {
        Launch::new("su").args(["-", &self.name, "-c", line])
    }

    /// The same, to its end.
    pub fn run(&self, line: &str) -> Outcome {
        self.shell(line).run()
    }

    /// What an administrator types for the user: as root, by `sudo`, in a shell that has the user's name.
    pub fn administer(&self, line: &str) {
        let sudo = self.path("sudo");
        if !sudo.exists() {
            fs::write(&sudo, "#!/bin/sh\nexec \"$@\"\n").expect("a sudo");
            fs::set_permissions(&sudo, fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut folders = vec![self.folder.path().to_owned()];
        folders.extend(std::env::split_paths(&path));
        folders.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
        let path = std::env::join_paths(folders).expect("a PATH");
        let mut shell = Command::new("sh");
        let _alone = alone();
        as_root(shell.args(["-c", line]).env("PATH", path).env("USER", OsStr::new(&self.name)));
    }

    /// Follows the recipe of the README for an `ebb` that is not root's, as far as it is for ever: the line
    /// with the capability and the one with the device.
    pub fn follow_readme(&self) {
        let readme = fs::read_to_string(build::root().join("README.md")).expect("README.md");
        let (_, recipe) = readme.split_once("## Without root").expect("the section");
        let (recipe, _) = recipe.split_once("\n## ").expect("the next section");
        for what in ["sudo setcap ", "sudo setfacl "] {
            let line = recipe.lines().find(|line| line.starts_with(what)).expect(what);
            self.administer(&line.replace("target/release/ebb", &self.ebb()));
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // Each may have nothing to do.
        let acl = format!("u:{}", self.name);
        {
            let _alone = alone();
            let _ = Command::new("setfacl").args(["-x", &acl, DEVICE]).output();
        }
        of_accounts(Command::new("userdel").args(["--force", &self.name]));
    }
}
