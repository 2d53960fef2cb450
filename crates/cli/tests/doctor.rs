//! Tests `ebb doctor` and the refusal of `ebb run`, as root and as a user without any rights.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder with a copy of `ebb` that every user may enter; removed at the end.
struct Public(PathBuf);

impl Public {
    fn new(name: &str) -> Self {
        let folder = format!("ebb-doctor-{name}-{}.ebb-tmp", std::process::id());
        let folder = PathBuf::from("/tmp").join(folder);
        std::fs::create_dir_all(&folder).expect("create a folder");
        let mode = |path: &PathBuf, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
        };
        mode(&folder, 0o777);
        let public = Self(folder);
        // Another process writes the copy. A writable descriptor of this process would be inherited
        // by programs of other tests. The copy could then not be executed ("text file busy").
        let from = env!("CARGO_BIN_EXE_ebb");
        let copied = Command::new("cp").arg(from).arg(public.ebb()).status().expect("cp");
        assert!(copied.success());
        mode(&public.ebb(), 0o755);
        public
    }

    fn ebb(&self) -> PathBuf {
        self.0.join("ebb")
    }
}

impl Drop for Public {
    fn drop(&mut self) {
        // A failure only leaves the folder behind.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs `ebb` as nobody, without a capability. Only root can change the user. Other users have no
/// rights anyway.
fn as_nobody(public: &Public, arguments: &[&str]) -> Output {
    let root = std::fs::metadata("/proc/self").expect("proc").uid() == 0;
    let mut command = if root {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(public.ebb());
        command
    } else {
        Command::new(public.ebb())
    };
    command.args(arguments).current_dir(&public.0).output().expect("ebb can be started")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

#[test]
fn each_line_of_the_json_form_has_every_key() {
    let output = Command::new(env!("CARGO_BIN_EXE_ebb"))
        .args(["doctor", "--format", "json"])
        .output()
        .expect("ebb can be started");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(answer["schema"], 1);
    assert_eq!(answer["can_run"].as_bool().expect("a truth"), output.status.success());
    let checks = answer["checks"].as_array().expect("a list");
    let names: Vec<&str> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in ["UFFDIO_MOVE", "EVENT_FORK", "PAGEMAP_SCAN", "io_uring", "glibc"] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    for check in checks {
        for key in ["found", "required"] {
            assert!(check[key].is_boolean(), "{key} of {check}");
        }
        for key in ["detail", "consequence", "fix", "otherwise"] {
            assert!(check[key].is_string(), "{key} of {check}");
        }
        let helpless = check["fix"] == "" && check["otherwise"] == "";
        let silent = check["consequence"] == "" || helpless;
        assert!(check["found"] == true || !silent, "says what follows and what to do: {check}");
    }
}

#[test]
fn the_doctor_names_missing_rights_and_how_to_get_them() {
    let public = Public::new("told");
    let output = as_nobody(&public, &["doctor"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    let line = said.lines().find(|line| line.starts_with("MISSING CAP_SYS_PTRACE"));
    assert!(line.is_some_and(|line| line.contains("sudo setcap cap_sys_ptrace+ep /")), "{said}");
    assert!(said.lines().last().unwrap().starts_with("ebb run cannot work here"), "{said}");
}

#[test]
fn a_run_without_rights_starts_nothing_and_names_the_doctor() {
    let public = Public::new("run");
    let output = as_nobody(&public, &["run", "--memory-max", "64M", "--", "touch", "started"]);
    assert_eq!(output.status.code(), Some(125));
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with("ebb: ") && said.contains("`ebb doctor`"), "{said}");
    assert!(!public.0.join("started").exists(), "the program was started");
}
