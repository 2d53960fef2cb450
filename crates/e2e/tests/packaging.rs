//! Tests the installation of Ebb: the Debian package in a bare root, its manual and completions,
//! the unit.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ebb_e2e::account::need_root;
use ebb_e2e::build::{ebb, ebb_lab, program, root};
use ebb_e2e::launch::Launch;
use ebb_e2e::same::need;
use ebb_testing::{HANG, skip};
use tempfile::TempDir;

/// Packages that are installed before Ebb: a C library, a shell and the commands that the test
/// calls. Nothing else of the machine is present.
const BASE: [&str; 12] = [
    "libc6",
    "libgcc-s1",
    "gcc-12-base",
    "libcrypt1",
    "dash",
    "coreutils",
    "libacl1",
    "libattr1",
    "libselinux1",
    "libpcre2-8-0",
    "libgmp10",
    "libssl3",
];

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    output
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Builds the package of the binaries under test without symbols, because packing those takes a
/// minute.
fn package(folder: &Path) -> PathBuf {
    let plain = folder.join("ebb");
    done(Command::new("strip").arg("-o").arg(&plain).arg(ebb()));
    done(Command::new("strip").arg("-o").arg(folder.join("ebb-lab")).arg(ebb_lab()));
    let mut deb = Command::new(root().join("packaging/deb"));
    deb.env("DPKG_DEB_COMPRESSOR_LEVEL", "0");
    let output = done(deb.arg("--binary").arg(&plain).arg("--out").arg(folder));
    PathBuf::from(text(&output).trim())
}

/// Makes a bare root with dpkg's database.
fn bare_root() -> TempDir {
    let place = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let at = |path: &str| place.path().join(path);
    for folder in [
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "var/lib/dpkg/info",
        "var/lib/dpkg/updates",
        "etc",
    ] {
        fs::create_dir_all(at(folder)).expect("a folder");
    }
    for folder in ["proc", "dev", "tmp", "var/tmp"] {
        fs::create_dir_all(at(folder)).expect("a folder");
    }
    done(Command::new("chmod").arg("1777").arg(at("tmp")).arg(at("var/tmp")));
    done(Command::new("chmod").arg("755").arg(place.path()));
    for name in ["bin", "sbin", "lib", "lib64"] {
        std::os::unix::fs::symlink(format!("usr/{name}"), at(name)).expect("a link");
    }
    let query =
        |words: &[&str]| Command::new("dpkg-query").args(words).output().expect("dpkg-query");
    let mut status = String::new();
    for name in BASE {
        let known = query(&["--status", name]);
        if !known.status.success() {
            continue;
        }
        status += &format!("{}\n", text(&known));
        let files = text(&query(&["--listfiles", name]));
        let files =
            files.lines().filter(|line| !line.contains("/share/") && !line.contains("/gconv/"));
        let kept = |path: &&str| Path::new(path).metadata().is_ok_and(|data| data.is_file());
        let files: Vec<&str> = files.filter(kept).collect();
        if files.is_empty() {
            continue;
        }
        let files = files.iter().map(|path| path.trim_start_matches('/'));
        let mut copy = Command::new("cp");
        copy.args(["-a", "--parents", "-t"]).arg(place.path()).args(files).current_dir("/");
        done(&mut copy);
    }
    fs::write(at("var/lib/dpkg/status"), status).expect("what is installed");
    for name in ["available", "triggers/File", "triggers/Unincorp"] {
        fs::create_dir_all(at("var/lib/dpkg/triggers")).expect("a folder");
        fs::write(at(&format!("var/lib/dpkg/{name}")), "").expect("an empty file");
    }
    place
}

/// Returns all files in a root, except dpkg's own database.
fn files(place: &Path) -> BTreeSet<String> {
    let found = done(Command::new("find").arg(".").current_dir(place));
    text(&found)
        .lines()
        .filter(|line| !line.starts_with("./var/lib/dpkg"))
        .map(str::to_owned)
        .collect()
}

/// Options of unshare for new namespaces.
const NEW: [&str; 4] = ["--mount", "--pid", "--fork", "--"];

/// Runs a shell's line in the root, with `/proc`, and with `/dev` without the shared memory of
/// other programs.
fn inside(place: &Path, line: &str) -> Output {
    let setup = "mount -t proc proc \"$0/proc\" && mount --rbind /dev \"$0/dev\" && \
                 mount -t tmpfs none \"$0/dev/shm\" && exec chroot \"$0\" /bin/sh -c \"$1\"";
    let mut unshare = Command::new("timeout");
    unshare.arg(HANG.as_secs().to_string()).arg("unshare").args(NEW);
    unshare.args(["sh", "-c", setup]).arg(place).arg(line);
    unshare.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output().expect("unshare")
}

#[test]
fn the_package_is_installed_in_a_bare_root_runs_there_and_leaves_nothing() {
    need_root();
    need("/usr/bin/dpkg-deb");
    let namespaces = Command::new("unshare").args(NEW).arg("true").output();
    if !namespaces.is_ok_and(|output| output.status.success()) {
        skip("no namespaces of one's own");
    }
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let deb = package(folder.path());
    let place = bare_root();
    fs::copy(program("verify"), place.path().join("usr/bin/verify")).expect("a program");
    let before = files(place.path());
    let dpkg = |words: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", place.path().display())).args(words);
        done(&mut dpkg)
    };
    dpkg(&["--install", &deb.display().to_string()]);
    let new: Vec<String> = files(place.path()).difference(&before).cloned().collect();
    for path in [
        "./usr/bin/ebb",
        "./usr/bin/ebb-lab",
        "./usr/share/man/man1/ebb.1.gz",
        "./usr/share/man/man1/ebb-run.1.gz",
        "./usr/share/bash-completion/completions/ebb",
        "./usr/share/zsh/vendor-completions/_ebb",
        "./usr/share/fish/vendor_completions.d/ebb.fish",
        "./usr/share/doc/ebb/copyright",
        "./usr/share/doc/ebb/examples/ebb.toml",
        "./usr/share/doc/ebb/examples/example.service",
    ] {
        assert!(new.iter().any(|file| file == path), "{path} is not among {new:?}");
    }
    let line = "ebb run --config /usr/share/doc/ebb/examples/ebb.toml --memory-max 16M -- verify 24 1 && \
                ebb run --exec --memory-max 16M -- verify 24 1; echo $?; \
                left() { ls -d /tmp/* /run/ebb-* /var/lib/ebb-* 2>/dev/null; }; \
                while [ \"$(ebb ps | wc -l)\" != 1 ] || [ \"$(left)\" ]; do sleep 0.1; done; ebb ps; left";
    let outcome = inside(place.path(), line);
    let told = text(&outcome);
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines.len() == 4 && lines[0].starts_with("verify: ok") && lines[1] == lines[0],
        "{told} {outcome:?}"
    );
    assert!(
        lines[2] == "0" && lines[3].starts_with("PID"),
        "nothing runs and nothing is left: {told}"
    );
    dpkg(&["--purge", "ebb"]);
    let after = files(place.path());
    let left: Vec<&String> = after.difference(&before).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Shows that each command has a manual page and that man accepts it. The pages come from the table
/// of the options.
#[test]
fn the_manual_has_a_page_for_each_command() {
    need("/usr/bin/man");
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    done(Command::new(ebb()).arg("man").arg(folder.path()));
    let page = |name: &str| {
        let path = folder.path().join(name);
        text(&done(
            Command::new("man")
                .args(["--warnings", "-l"])
                .arg(&path)
                .env("MANWIDTH", "100")
                .env("LC_ALL", "C"),
        ))
    };
    for name in [
        "ebb",
        "ebb-run",
        "ebb-ps",
        "ebb-stat",
        "ebb-set",
        "ebb-lru-gen",
        "ebb-doctor",
        "ebb-lab",
        "ebb-man",
    ] {
        let text = page(&format!("{name}.1"));
        assert!(text.contains("NAME") && text.contains("SYNOPSIS"), "{name}: {text}");
    }
    let run = page("ebb-run.1");
    for option in ["--memory-max", "--exec", "--config", "--profile", "--strict"] {
        assert!(run.contains(option), "{option}: {run}");
    }
    assert!(!run.contains("--inject"), "for tests only");
    assert!(!folder.path().join("ebb-__pager.1").exists());
}

#[test]
fn shells_complete_commands_and_options() {
    let script = format!(
        "source <('{}' completions bash); COMP_WORDS=(ebb run --memory-m); COMP_CWORD=2; _ebb ebb --memory-m run; \
         echo ${{COMPREPLY[@]}}; COMP_WORDS=(ebb do); COMP_CWORD=1; _ebb ebb do ebb; echo ${{COMPREPLY[@]}}",
        ebb().display()
    );
    let outcome = Launch::new("bash").args(["-c", &script]).run();
    assert_eq!(outcome.expect_code(0).text(), "--memory-max\ndoctor\n", "{}", outcome.stderr);
    for shell in ["zsh", "fish"] {
        let outcome = Launch::new(ebb()).args(["completions", shell]).run();
        assert!(outcome.expect_code(0).text().contains("memory-max"), "{shell}");
    }
}

/// Shows that the command line of the unit is a run that works.
#[test]
fn the_command_of_the_example_unit_is_a_run_that_works() {
    let unit = root().join("packaging/example.service");
    let words = fs::read_to_string(&unit).expect("the unit");
    let line = words
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart=/usr/bin/ebb "))
        .expect("a command");
    let (options, _) = line.split_once(" -- ").expect("a program");
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let options = options.replace("/var/lib/redis", &folder.path().display().to_string());
    Launch::new(ebb())
        .args(options.split(' '))
        .args(["--", "true"])
        .run()
        .expect_code(0)
        .expect_silence();
}

/// Shows that the service manager accepts the unit.
#[test]
fn the_service_manager_accepts_the_example_unit() {
    let analyze = need("/usr/bin/systemd-analyze");
    let words = fs::read_to_string(root().join("packaging/example.service")).expect("the unit");
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let copy = folder.path().join("example.service");
    fs::write(&copy, words.replace("/usr/bin/ebb", "/bin/true")).expect("a copy");
    let output = Command::new(analyze).arg("verify").arg(&copy).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("example.service:"), "{said}");
}
