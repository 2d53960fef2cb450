//! Finds the program to be run and checks whether and how the agent can get into it.

use ebb_pager::inject::takes_agent;
use rustix::fs::{StatVfsMountFlags, statvfs};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Reason why a program cannot be run, and the exit status for it.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u8,
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// Directories that the C library searches if PATH is not set.
const PATH_DEFAULT: &str = "/bin:/usr/bin";
/// Depth of scripts whose interpreters are scripts; the kernel's own limit.
const INTERPRETERS_MAX: u32 = 5;

fn refuse<T>(status: u8, reason: String) -> Result<T, Refusal> {
    Err(Refusal { status, reason })
}

/// How the agent gets into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The program's loader loads the agent.
    Loaded,
    /// Ebb injects the agent at the start of the program. The program is static: linked with glibc,
    /// or of Go without C.
    Injected,
}

/// Finds `name` as a shell would. Checks that the agent can get into the program, and how.
pub fn find(name: &OsStr) -> Result<(PathBuf, Kind), Refusal> {
    let path = locate(name)?;
    let kind = check(&path, INTERPRETERS_MAX)?;
    Ok((path, kind))
}

fn locate(name: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = name.display();
    if name.is_empty() {
        return refuse(NOT_FOUND, "the program's name is empty".into());
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return if path.exists() {
            Ok(path)
        } else {
            refuse(NOT_FOUND, format!("{shown}: no such program; check the path"))
        };
    }
    let mut found_other = None;
    for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap_or(PATH_DEFAULT.into())) {
        // An empty entry is the current folder.
        let path = Path::new(".").join(folder).join(name);
        if is_executable(&path) {
            return Ok(path);
        }
        if path.is_file() {
            found_other = Some(path);
        }
    }
    match found_other {
        Some(path) => Ok(path),
        None => refuse(
            NOT_FOUND,
            format!("{shown}: not found in PATH; install it or give its full path"),
        ),
    }
}

/// Returns whether a program loads the library of Address Sanitizer. The name of the library then
/// stands near the beginning of the file.
pub fn has_address_sanitizer(path: &Path) -> bool {
    const NAMES_WITHIN: u64 = 4 << 20;
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(NAMES_WITHIN).read_to_end(&mut head));
    read.is_ok() && head.windows(11).any(|word| word == b"libasan.so.")
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

fn check(path: &Path, interpreters_left: u32) -> Result<Kind, Refusal> {
    let shown = path.display();
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return refuse(NOT_FOUND, format!("{shown}: {error}")),
    };
    if metadata.is_dir() {
        return refuse(NOT_EXECUTABLE, format!("{shown} is a directory; name a program in it"));
    }
    if !is_executable(path) {
        return refuse(
            NOT_EXECUTABLE,
            format!(
                "{shown} is not executable; try chmod +x {shown}, or name its interpreter first"
            ),
        );
    }
    let mut head = [0; 4096];
    let read = File::open(path).and_then(|mut file| file.read(&mut head));
    let head = match &read {
        Ok(got) => &head[..*got],
        Err(error) if error.kind() != ErrorKind::PermissionDenied => {
            return refuse(NOT_EXECUTABLE, format!("{shown} cannot be read: {error}"));
        }
        Err(_) => &[],
    };
    if let Some(rest) = head.strip_prefix(b"#!") {
        // For a script the rights of its interpreter count.
        return check_script(path, rest, interpreters_left);
    }
    if let Some(reason) = other_rights(path, &metadata) {
        return refuse(
            NOT_EXECUTABLE,
            format!(
                "{shown} {reason}: it starts with other rights and cannot load the agent; run it without ebb"
            ),
        );
    }
    // A file that may be executed but not read is no script, because an interpreter could not read
    // it. Ebb takes it for a program with a loader.
    if read.is_ok() { check_elf(path, head) } else { Ok(Kind::Loaded) }
}

/// Returns why the kernel would start a program with rights that this process lacks. In that case
/// the loader refuses the agent.
fn other_rights(path: &Path, metadata: &Metadata) -> Option<&'static str> {
    const SETUID: u32 = 0o4000;
    /// Without the right to execute, the setgid bit has another meaning.
    const SETGID: u32 = 0o2010;
    let ignored = statvfs(path).is_ok_and(|at| at.f_flag.contains(StatVfsMountFlags::NOSUID))
        || rustix::thread::no_new_privs().unwrap_or(false);
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    let mode = metadata.mode();
    let capable = || {
        let mut value = [0; 64];
        rustix::fs::getxattr(path, c"security.capability", &mut value[..]).is_ok()
    };
    if ignored {
        None
    } else if mode & SETUID != 0 && metadata.uid() != user.as_raw() {
        Some("is setuid")
    } else if mode & SETGID == SETGID && metadata.gid() != group.as_raw() {
        Some("is setgid")
    } else if !user.is_root() && capable() {
        Some("has capabilities on its file (getcap)")
    } else {
        None
    }
}

fn check_script(path: &Path, rest: &[u8], left: u32) -> Result<Kind, Refusal> {
    let shown = path.display();
    let line = rest.split(|&byte| byte == b'\n').next().unwrap_or(&[]);
    let line = String::from_utf8_lossy(line.trim_ascii());
    let (interpreter, words) = line.split_once([' ', '\t']).unwrap_or((&line, ""));
    if interpreter.is_empty() {
        return refuse(NOT_EXECUTABLE, format!("{shown} names no interpreter after #!"));
    };
    if left == 0 {
        return refuse(NOT_EXECUTABLE, format!("{shown}: too many nested interpreters"));
    }
    let kind = check(Path::new(interpreter), left - 1)?;
    // `#!/usr/bin/env python3` runs python3, not env.
    if Path::new(interpreter).file_name().is_some_and(|name| name == "env")
        && let Some(program) = program_of_env(words)
    {
        check(&locate(OsStr::new(program))?, left - 1)?;
    }
    Ok(kind)
}

/// Returns the program that these words make env(1) run. Returns `None` if the words contain quotes
/// or change the search path.
fn program_of_env(words: &str) -> Option<&str> {
    if words.contains(['"', '\'', '\\', '$']) {
        return None;
    }
    let mut words = words.split_ascii_whitespace();
    while let Some(word) = words.next() {
        let split = ["-S", "-vS", "--split-string="];
        let word = split.iter().find_map(|option| word.strip_prefix(option)).unwrap_or(word);
        match word {
            "" => {}
            "-u" | "--unset" | "-a" | "--argv0" => _ = words.next()?,
            _ if word.starts_with("-C") || word.starts_with("--chdir") => return None,
            _ if word.starts_with("PATH=") => return None,
            _ if word.starts_with('-') || word.contains('=') => {}
            _ => return Some(word),
        }
    }
    None
}

/// Returns whether `path` is the loader of the C library. A user may run the loader with a
/// program's name, and the loader loads the libraries in LD_PRELOAD.
fn is_loader(path: &Path) -> bool {
    let name = path.canonicalize().unwrap_or_default();
    let name = name.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"ld-linux-") || (name.starts_with(b"ld-2.") && name.ends_with(b".so"))
}

fn check_elf(path: &Path, head: &[u8]) -> Result<Kind, Refusal> {
    let shown = path.display();
    let not_a_program = || {
        refuse(
            NOT_EXECUTABLE,
            format!(
                "{shown} is neither an ELF program nor a script with #!; name its interpreter first"
            ),
        )
    };
    if head.len() < 64 || !head.starts_with(b"\x7fELF") {
        return not_a_program();
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if head[4] != 2 || half(18) != 62 {
        return refuse(
            NOT_EXECUTABLE,
            format!("{shown} is not a 64-bit x86 program; ebb run supports no other yet"),
        );
    }
    let offset = u64::from_le_bytes(head[32..40].try_into().expect("eight bytes"));
    let (size, count) = (u64::from(half(54)), u64::from(half(56)));
    let Ok(file) = File::open(path) else { return not_a_program() };
    for index in 0..count {
        let mut entry = [0; 56];
        if file.read_exact_at(&mut entry, offset + index * size).is_err() {
            return not_a_program();
        }
        const INTERPRETER: u32 = 3;
        if u32::from_le_bytes(entry[..4].try_into().expect("four bytes")) != INTERPRETER {
            continue;
        }
        let at = u64::from_le_bytes(entry[8..16].try_into().expect("eight bytes"));
        let mut name = [0; 64];
        let got = file.read_at(&mut name, at).unwrap_or(0);
        let name = name[..got].split(|&byte| byte == 0).next().unwrap_or(&[]);
        let name = String::from_utf8_lossy(name);
        if name.contains("musl") {
            return refuse(
                NOT_EXECUTABLE,
                format!("{shown} is linked against musl; ebb run needs a glibc program"),
            );
        }
        return Ok(Kind::Loaded);
    }
    if is_loader(path) {
        return Ok(Kind::Loaded);
    }
    if takes_agent(&file).unwrap_or(false) {
        return Ok(Kind::Injected);
    }
    refuse(
        NOT_EXECUTABLE,
        format!(
            "{shown} is statically linked, but neither against glibc nor of Go alone, so it cannot load the agent; \
             link it against glibc (Go: build with CGO_ENABLED=0)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::{Kind, check, program_of_env};
    use std::path::Path;

    #[test]
    fn the_program_of_env_is_found_behind_options_with_values() {
        for (words, program) in [
            ("python3", Some("python3")),
            ("-S python3 -u", Some("python3")),
            ("-Spython3 -u script", Some("python3")),
            ("-S -i -u NAME A=b python3 -c x", Some("python3")),
            ("-S --unset NAME --argv0 a python3", Some("python3")),
            ("--split-string=-uNAME python3", Some("python3")),
            ("-S -C / python3", None),
            ("-S --chdir=/ python3", None),
            ("-S PATH=/opt python3", None),
            ("-S \"python3\" -u", None),
            ("-S ${PYTHON}", None),
            ("-S -u", None),
            ("", None),
        ] {
            assert_eq!(program_of_env(words), program, "{words}");
        }
    }

    #[test]
    fn the_dynamic_loader_counts_as_a_program_that_loads_the_agent() {
        let loader = Path::new("/lib64/ld-linux-x86-64.so.2");
        assert_eq!(check(loader, 0), Ok(Kind::Loaded));
    }
}
