//! Makes an ordinary user for a test and removes it afterwards. A folder of the account holds
//! copies of `ebb` and of the test programs. Other users may be unable to reach the checkout.
//!
//! The user's commands run in a login shell. So they have no environment, group or capability of
//! root. Making an account takes root, and a test that needs one is skipped without root.

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
use crate::launch::{Launch, Outcome, need_root_for};
use crate::same::need;

const DEVICE: &str = "/dev/userfaultfd";

/// Skips the test without root.
#[track_caller]
pub fn need_root() {
    need_root_for("it needs root");
}

/// Skips the test if this user may not lock so many bytes.
#[track_caller]
pub fn need_locked(bytes: u64) {
    const IPC_LOCK: u64 = 1 << 14;
    let most = getrlimit(Resource::Memlock).current;
    if capabilities("CapEff") & IPC_LOCK == 0 && most.is_some_and(|most| most < bytes) {
        skip("this user may not lock so much memory");
    }
}

/// Returns whether a process may read another process that is not its descendant.
pub fn may_look_up() -> bool {
    const SYS_PTRACE: u64 = 1 << 19;
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => true,
        "1" | "2" => capabilities("CapEff") & SYS_PTRACE != 0,
        _ => false,
    }
}

/// Takes a lock under which tests change the machine: its list of accounts and the rights of the
/// device. Only one test at a time holds it. The lock is on the folder, because a change may
/// replace the file itself.
pub fn alone() -> Option<File> {
    let folder = File::open("/etc").ok()?;
    folder.lock().ok().map(|()| folder)
}

/// Runs a command that changes accounts, under the lock. Runs it again if another process holds the
/// list.
fn change_accounts(command: &mut Command) -> Output {
    let _alone = alone();
    eventually_some("the list of accounts", || {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let is_taken = String::from_utf8_lossy(&output.stderr).contains("try again later");
        (!is_taken).then_some(output)
    })
}

/// An ordinary user's account.
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
    /// Makes the account. `ebb` is in its folder, without any capability.
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
        let output = change_accounts(useradd.arg(&home).arg(&name));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let account = Self { name, folder };
        account.copy(build::ebb(), "ebb");
        account
    }

    /// Returns the name of the account.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a path in the account's folder, which belongs to root.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of the account's `ebb`.
    pub fn ebb(&self) -> String {
        self.path("ebb").display().to_string()
    }

    /// Returns the user's own folder.
    pub fn home(&self) -> PathBuf {
        self.path("home")
    }

    /// Copies a file into the account's folder, so that every user may read and execute it.
    pub fn copy(&self, from: &Path, name: &str) -> String {
        let to = self.path(name);
        // Another process writes the copy. Programs of other tests could inherit a writable
        // descriptor of this process. The kernel could then not execute the copy.
        as_root(Command::new("cp").arg(from).arg(&to));
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("chmod");
        to.display().to_string()
    }

    /// Copies one of the C programs into the account's folder.
    pub fn program(&self, name: &str) -> String {
        self.copy(&build::program(name), name)
    }

    /// Copies the static Go program into the account's folder.
    pub fn go_program(&self) -> String {
        self.copy(&build::go_program("go-work", ".", &[]), "go-work")
    }

    /// Returns a launch of a shell's command line in the user's login shell.
    pub fn shell(&self, line: &str) -> Launch {
        Launch::new("su").args(["-", &self.name, "-c", line])
    }

    /// Runs a shell's command line in the user's login shell to its end.
    pub fn run(&self, line: &str) -> Outcome {
        self.shell(line).run()
    }

    /// Runs an administrator's command for the user, as root. A `sudo` in PATH only runs its
    /// arguments, and USER is the user's name.
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

    /// Follows the README's recipe for an `ebb` of an ordinary user, as far as it is permanent.
    /// These are the lines with the capability and with the device.
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
        // Each of these commands may have nothing to do.
        let acl = format!("u:{}", self.name);
        {
            let _alone = alone();
            let _ = Command::new("setfacl").args(["-x", &acl, DEVICE]).output();
        }
        change_accounts(Command::new("userdel").args(["--force", &self.name]));
    }
}
