//! The folder of a run. It holds the agent that programs load and the socket of the pager.
//!
//! The name identifies the run, so that `ebb stat PID` finds it: `ebb-PID-` and a random number
//! that no other user can guess.
//!
//! * FOLDER-1: a folder is always created and never taken over, so no other user can have prepared
//!   it.
//! * FOLDER-2: a directory is used only if no other user can rename or replace entries in it. It
//!   belongs to this user or to root. If others may write to it, it has the sticky bit.
//! * FOLDER-3: Ebb never connects to or removes anything of another user.
//! * FOLDER-4: other users may load the agent, whose path they know from their environment. Root's
//!   programs may start others as another user, so root uses only a directory that others can
//!   reach. Others cannot list the folder. They cannot connect to the socket, unless `ebb attach`
//!   permits that.
//! * FOLDER-5: the folder is locked (`flock`) as long as the run lasts. So programs that remove old
//!   files spare it.
//! * FOLDER-6: an environment may outlast the run (a job queue, an editor), and `LD_PRELOAD` in it
//!   names the agent. Directories where only this user or root can create that name again come
//!   first.
//! * FOLDER-7: programs get the agent's path with `$PLATFORM` in it, which the loader of glibc
//!   replaces. So 32-bit programs find another file ([`stub`]). The loader of musl replaces nothing
//!   and finds no file, about which it is silent. Where a shell has replaced the word by nothing,
//!   the path leads to the agent, too.

use crate::{inject, stub};
use ebb_control::{Client, Content, ControlError, Patience, Request};
use ebb_pager::far_file;
use ebb_pager::inject::IMAGE_NAME;
use ebb_sys::proc;
use ebb_sys::socket::Socket;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, StatVfsMountFlags, lstat, statvfs};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The agent's shared object, built together with this binary.
const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libebb_agent.so"));
const AGENT_NAME: &str = "agent.so";
const SOCKET: &str = "socket";
/// Word for which the loader puts the name of the platform (ld.so(8)).
const PLATFORM: &str = "$PLATFORM";
/// Platforms of 64-bit programs, by the names that versions of glibc give them.
const PLATFORMS: [&str; 3] = ["x86_64", "haswell", "xeon_phi"];
/// Platform of 32-bit programs.
const PLATFORM_OF_32_BITS: &str = "i686";
/// Longest path of a directory for run folders. A socket's path holds 107 bytes. The names of the
/// run folder and of a file in it need the rest.
const DIRECTORY_MAX: usize = 107 - "/ebb-4194304-0123456789abcdef/agent.so".len();
/// Age after which a folder without a listening pager belongs to a killed run.
const LEFT_FOR: Duration = Duration::from_secs(600);

/// The folder of a run; removed at the end of the run.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Descriptor that holds the lock (FOLDER-5).
    _held: OwnedFd,
}

impl Folder {
    /// Creates the folder in the first directory that will do. `number` is the PID of the
    /// supervisor, or of the program with `--exec` and `ebb attach`.
    pub fn create(number: u32) -> Result<Self> {
        let mut reasons = Vec::new();
        for directory in directories() {
            if cache().as_ref() == Some(&directory) {
                // The XDG base directory specification asks for that. It may be impossible.
                let _ = std::fs::DirBuilder::new().mode(0o700).create(&directory);
            }
            let made = usable(&directory).map_err(Error::other).and_then(|()| {
                sweep(&directory);
                Self::create_in(&directory, number)
            });
            match made {
                Ok(folder) => return Ok(folder),
                Err(error) => reasons.push(format!("{}: {error}", directory.display())),
            }
        }
        Err(Error::other(reasons.join("; ")))
    }

    fn create_in(directory: &Path, number: u32) -> Result<Self> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let random = u64::from_ne_bytes(random);
        let path = directory.join(format!("{}{random:016x}", prefix(number)));
        std::fs::DirBuilder::new().mode(0o711).create(&path)?;
        let held = hold(&path, FlockOperation::NonBlockingLockShared)?;
        // From here on `Drop` removes the folder if a later step fails.
        let folder = Self { path, _held: held };
        // Set explicitly, because the umask may have removed bits.
        std::fs::set_permissions(&folder.path, PermissionsExt::from_mode(0o711))?;
        let of_32_bits = folder.path.join(PLATFORM_OF_32_BITS);
        std::fs::DirBuilder::new().mode(0o711).create(&of_32_bits)?;
        std::fs::set_permissions(&of_32_bits, PermissionsExt::from_mode(0o711))?;
        let files = [
            (folder.agent(), AGENT),
            (folder.image(), inject::IMAGE),
            (of_32_bits.join(AGENT_NAME), &stub::library()),
        ];
        for (path, content) in files {
            let mut file =
                std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?;
            file.set_permissions(PermissionsExt::from_mode(0o644))?;
            file.write_all(content)?;
        }
        for platform in PLATFORMS {
            std::os::unix::fs::symlink(".", folder.path.join(platform))?;
        }
        Ok(folder)
    }

    /// Returns the path of the agent for `LD_PRELOAD` (FOLDER-7).
    pub fn agent_to_preload(&self) -> PathBuf {
        self.path.join(PLATFORM).join(AGENT_NAME)
    }

    /// Returns the path of the agent's shared object.
    pub fn agent(&self) -> PathBuf {
        self.path.join(AGENT_NAME)
    }

    /// Returns the path of the agent's image for programs without a loader ([`inject`]).
    pub fn image(&self) -> PathBuf {
        self.path.join(IMAGE_NAME)
    }

    /// Returns the path of the pager's socket.
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// Connects to the run whose supervisor is process `supervisor`, if that is a run of this user.
pub fn client_to(supervisor: u32) -> Result<Option<Client>> {
    let prefix = prefix(supervisor);
    for directory in directories().filter(|directory| usable(directory).is_ok()) {
        for path in own_folders(&directory, |name| name.starts_with(prefix.as_bytes())) {
            match Client::connect(&path.join(SOCKET), Patience::Answer) {
                // The number can belong to another process in another PID namespace, or to a killed
                // run.
                Ok(client) if is_below(&client, supervisor) => return Ok(Some(client)),
                Ok(_) => {}
                Err(error) if nobody_listens(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

/// Returns whether the listening process is a child of that supervisor.
fn is_below(client: &Client, supervisor: u32) -> bool {
    client.peer().ok().and_then(proc::parent) == Some(supervisor)
}

/// Returns the runs of this user, each as the number in its name and the path of its socket.
fn sockets() -> Vec<(u32, PathBuf)> {
    let named = directories()
        .filter(|directory| usable(directory).is_ok())
        .flat_map(|directory| own_folders(&directory, is_run_folder));
    let number = |path: &Path| path.file_name()?.to_str()?.split('-').nth(1)?.parse().ok();
    named.filter_map(|path| Some((number(&path)?, path.join(SOCKET)))).collect()
}

/// Asks the run at `socket` if its supervisor is not the process with the number in the name. That
/// number is then the program's (`--exec`, `ebb attach`). A run of another PID namespace is not
/// asked, because PIDs differ there. Returns an error if the run does not answer in time.
fn ask_if_not_child<T: Content>(
    (number, socket): &(u32, PathBuf),
    request: &Request,
) -> Result<Option<T>> {
    let client = match Client::connect(socket, Patience::Glance) {
        Ok(client) => client,
        Err(error) if error.kind() == ErrorKind::TimedOut => return Err(error),
        // The run has ended.
        Err(_) => return Ok(None),
    };
    if is_below(&client, *number) || !client.peer().is_ok_and(proc::is_of_this_namespace) {
        return Ok(None);
    }
    match client.ask(request, Patience::Glance) {
        Ok(answer) => Ok(Some(answer)),
        Err(ControlError::Late) => Err(ErrorKind::TimedOut.into()),
        Err(_) => Ok(None),
    }
}

/// Connects to the run that contains process `pid`. Looks only at runs whose pager is no child of
/// the numbered process.
pub fn client_of_member(pid: u32) -> Result<Option<(u32, Client)>> {
    let mut late = None;
    for run in sockets() {
        match ask_if_not_child(&run, &Request::Member(pid)) {
            Ok(Some(true)) => {
                let client = Client::connect(&run.1, Patience::Answer)?;
                return Ok(Some((run.0, client)));
            }
            Ok(_) => {}
            Err(error) => late = Some(error),
        }
    }
    late.map_or(Ok(None), Err)
}

/// Returns the numbers of this user's runs: the PID of each supervisor, or of the program with
/// `--exec` and `ebb attach`.
pub fn runs() -> Vec<u32> {
    let number = |run: (u32, PathBuf)| match ask_if_not_child(&run, &Request::Process) {
        Ok(Some(number)) => number,
        _ => Some(run.0),
    };
    let mut numbers: Vec<u32> = sockets().into_iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// Returns the beginning of the names of a run's folders.
fn prefix(supervisor: u32) -> String {
    format!("ebb-{supervisor}-")
}

/// Returns the path in an environment variable.
fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|directory| !directory.is_empty()).map(PathBuf::from)
}

/// Returns the user's directory for caches.
fn cache() -> Option<PathBuf> {
    cache_of(named("XDG_CACHE_HOME"), named("HOME"))
}

/// Returns the directory for caches by these two variables. A relative path does not count.
fn cache_of(cache: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let below_home = || home.map(|home| home.join(".cache"));
    cache.filter(|path| path.is_absolute()).or_else(below_home).filter(|path| path.is_absolute())
}

/// Returns the directories for run folders, the best first (FOLDER-6).
fn directories() -> impl Iterator<Item = PathBuf> {
    let user = rustix::process::geteuid();
    let own = if user.is_root() {
        vec!["/run".into(), "/var/lib".into()]
    } else {
        let session = PathBuf::from(format!("/run/user/{}", user.as_raw()));
        [Some(session), cache()].into_iter().flatten().collect()
    };
    let common = ["/tmp", "/dev/shm", "/var/tmp"].map(PathBuf::from);
    named("XDG_RUNTIME_DIR").into_iter().chain(own).chain(common)
}

/// Why no run folder can be created in a directory.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("not an absolute path")]
    Relative,
    #[error("longer than {DIRECTORY_MAX} bytes, too long for a socket in it")]
    TooLong,
    #[error("the path has a space or a colon")]
    Separator,
    #[error("the path has a $")]
    Dollar,
    #[error(transparent)]
    System(#[from] Errno),
    #[error("other users cannot reach it")]
    Hidden,
    #[error("mounted with noexec")]
    NoExec,
    #[error("not a folder")]
    NoFolder,
    #[error("belongs to another user")]
    Foreign,
    #[error("other users may rename its entries (chmod +t)")]
    Open,
}

/// Checks that a run folder can be created in `directory` (FOLDER-2).
fn usable(directory: &Path) -> std::result::Result<(), Unusable> {
    let bytes = directory.as_os_str().as_bytes();
    if !directory.is_absolute() {
        return Err(Unusable::Relative);
    }
    if bytes.len() > DIRECTORY_MAX {
        return Err(Unusable::TooLong);
    }
    // The loader splits LD_PRELOAD at these bytes.
    if bytes.iter().any(|byte| byte.is_ascii_whitespace() || *byte == b':') {
        return Err(Unusable::Separator);
    }
    // The loader of the agent expands `$`.
    if bytes.contains(&b'$') {
        return Err(Unusable::Dollar);
    }
    let stat = rustix::fs::stat(directory)?;
    let user = rustix::process::geteuid();
    safe(&stat, user.as_raw())?;
    if user.is_root() && !is_reachable_by_all(directory) {
        return Err(Unusable::Hidden);
    }
    let flags = statvfs(directory)?.f_flag;
    if flags.contains(StatVfsMountFlags::NOEXEC) {
        return Err(Unusable::NoExec);
    }
    Ok(())
}

/// Returns whether every user can reach the entries of a directory (FOLDER-4).
fn is_reachable_by_all(directory: &Path) -> bool {
    const OTHERS_SEARCH: u32 = 0o001;
    let Ok(directory) = directory.canonicalize() else { return false };
    let open = |folder: &Path| {
        rustix::fs::stat(folder).is_ok_and(|stat| stat.st_mode & OTHERS_SEARCH != 0)
    };
    directory.ancestors().all(open)
}

fn safe(stat: &Stat, user: u32) -> std::result::Result<(), Unusable> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return Err(Unusable::NoFolder);
    }
    if stat.st_uid != user && stat.st_uid != 0 {
        return Err(Unusable::Foreign);
    }
    if stat.st_mode & OTHERS_WRITE != 0 && stat.st_mode & STICKY == 0 {
        return Err(Unusable::Open);
    }
    Ok(())
}

/// Returns the run folders in `directory` that belong to this user and that no other user can write
/// to (FOLDER-3).
fn own_folders(directory: &Path, named: impl Fn(&[u8]) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let user = rustix::process::geteuid().as_raw();
    let own = |path: &PathBuf| {
        lstat(path).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::Directory
                && stat.st_uid == user
                && stat.st_mode & 0o022 == 0
        })
    };
    let entries = entries.flatten().filter(|entry| named(entry.file_name().as_bytes()));
    entries.map(|entry| entry.path()).filter(own).collect()
}

/// Removes the folders of this user's killed runs.
fn sweep(directory: &Path) {
    for path in own_folders(directory, is_run_folder) {
        let changed = path.metadata().and_then(|metadata| metadata.modified());
        let old = changed.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > LEFT_FOR));
        if !old {
            continue;
        }
        let is_held = hold(&path, FlockOperation::NonBlockingLockExclusive).is_err();
        let listens = || Socket::connect_now(&path.join(SOCKET));
        if !is_held && listens().is_err_and(|error| nobody_listens(&error)) {
            remove(&path);
        }
    }
}

/// Locks a folder. The lock lasts until the returned descriptor is closed.
fn hold(folder: &Path, how: FlockOperation) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let held = rustix::fs::open(folder, flags, Mode::empty())?;
    rustix::fs::flock(&held, how)?;
    Ok(held)
}

/// Removes the folder of a run and only the files of a run in it. Needs no descriptor. A folder
/// that is gone is no error.
fn remove(folder: &Path) {
    let socket = folder.join(SOCKET);
    let of_32_bits = folder.join(PLATFORM_OF_32_BITS);
    let files = [AGENT_NAME, IMAGE_NAME].into_iter().chain(PLATFORMS).map(|name| folder.join(name));
    let others = [far_file(&socket), socket, of_32_bits.join(AGENT_NAME)];
    for file in files.chain(others) {
        let _ = std::fs::remove_file(file);
    }
    let _ = std::fs::remove_dir(of_32_bits);
    let _ = std::fs::remove_dir(folder);
}

/// Returns whether `name` is that of a run's folder: `ebb-`, a PID, and 16 hexadecimal digits.
fn is_run_folder(name: &[u8]) -> bool {
    let rest = OsStr::from_bytes(name).to_str().and_then(|name| name.strip_prefix("ebb-"));
    let Some((supervisor, random)) = rest.and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    supervisor.parse::<u32>().is_ok()
        && random.len() == 16
        && random.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns whether the error means that there is no socket or that no process listens at it.
fn nobody_listens(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a relative path is no directory for caches. A run would make it below the working
    /// directory.
    #[test]
    fn a_relative_directory_for_caches_does_not_count() {
        let of = |cache: Option<&str>, home: Option<&str>| {
            cache_of(cache.map(PathBuf::from), home.map(PathBuf::from))
        };
        let below_home = Some(PathBuf::from("/home/u/.cache"));
        assert_eq!(of(Some("/var/c"), Some("/home/u")), Some("/var/c".into()));
        assert_eq!(of(Some("c"), Some("/home/u")), below_home);
        assert_eq!(of(None, Some("/home/u")), below_home);
        assert_eq!(of(Some("c"), Some("u")), None);
    }

    /// Shows that a run leaves no folder behind: the agent's image is removed, too.
    #[test]
    fn a_run_leaves_no_folder_behind() {
        let directory = tempfile::tempdir().expect("a folder");
        let folder =
            Folder::create_in(directory.path(), std::process::id()).expect("it can be made");
        let path = folder.path.clone();
        assert!(folder.agent().is_file() && folder.image().is_file());
        drop(folder);
        assert!(!path.exists());
    }

    /// Shows that systemd-tmpfiles, which cleans /tmp by age, and the next run spare a locked
    /// folder.
    #[test]
    fn the_folder_of_a_run_is_locked_while_it_lasts() {
        let directory = tempfile::tempdir().expect("a folder");
        let folder =
            Folder::create_in(directory.path(), std::process::id()).expect("it can be made");
        let exclusive = || hold(&folder.path, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(exclusive().expect_err("locked").kind(), ErrorKind::WouldBlock);
    }

    fn is_safe(mode: u32, owner: u32) -> bool {
        let mut stat = rustix::fs::stat("/").unwrap();
        (stat.st_mode, stat.st_uid) = (mode, owner);
        safe(&stat, 1000).is_ok()
    }

    #[test]
    fn directories_where_others_can_replace_a_folder_are_not_used() {
        const FOLDER: u32 = 0o040_000;
        assert!(is_safe(FOLDER | 0o1777, 0), "/tmp");
        assert!(is_safe(FOLDER | 0o700, 1000));
        assert!(!is_safe(FOLDER | 0o777, 0));
        assert!(!is_safe(FOLDER | 0o775, 1000));
        assert!(!is_safe(FOLDER | 0o700, 1001), "another user's, as sudo leaves it");
        assert!(!is_safe(0o100_700, 1000), "a file");
    }

    #[test]
    fn a_folder_that_other_users_cannot_reach_is_recognized() {
        // TMPDIR may lie in a directory that other users cannot reach.
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let inner = folder.path().join("inner");
        let set = |mode| {
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
        };
        std::fs::create_dir(&inner).unwrap();
        std::fs::set_permissions(&inner, PermissionsExt::from_mode(0o755)).unwrap();
        set(0o711);
        let reached = is_reachable_by_all(&inner);
        set(0o700);
        let behind = is_reachable_by_all(&inner);
        assert!(reached && !behind);
    }

    #[test]
    fn only_a_runs_folder_is_ever_swept() {
        assert!(is_run_folder(b"ebb-12-0123456789abcdef"));
        for name in ["ebb-12", "ebb-x-0123456789abcdef", "ebb-12-keep-this-please!", "ebb-e2e-a8df"]
        {
            assert!(!is_run_folder(name.as_bytes()), "{name}");
        }
    }
}
