//! Creates a swap file: readable by its owner alone, without a name, bypassing the page cache if
//! possible.
//!
//! The file must not outlive the program that swaps to it, and no other user may read it. So it is
//! created without a name (`O_TMPFILE`), or under a unique name and unlinked before anything is
//! written. Page cache would be RAM outside every budget, so the file is used with `O_DIRECT` if
//! the file system supports it.

use crate::error::StoreError;
use ebb_mm::types::PAGE_SIZE;
use ebb_sys::anon::AnonBuffer;
use ebb_sys::inherited;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// A new, empty, nameless file.
pub(crate) struct SwapFile {
    pub file: OwnedFd,
    /// Path at which the file was created.
    pub path: PathBuf,
    /// Whether transfers bypass the page cache.
    pub direct: bool,
    /// Whether the file system keeps its files in RAM.
    pub in_ram: bool,
}

/// Creates a swap file at `path` (a folder, or an unused name), or in the best default folder.
pub(crate) fn open(path: Option<&Path>) -> Result<SwapFile, StoreError> {
    let (file, path) = match path {
        None => in_default_folder()?,
        Some(path) if path.is_dir() => (in_folder(path)?, path.to_path_buf()),
        Some(path) => (at_name(path)?, path.to_path_buf()),
    };
    let direct = go_direct(&file);
    let in_ram = fs::fstatfs(&file).is_ok_and(|fs| keeps_in_ram(&fs));
    Ok(SwapFile { file, path, direct, in_ram })
}

/// Creates a file in $TMPDIR, /var/tmp or /tmp: the first that is on a disk, else the first that
/// works at all.
fn in_default_folder() -> Result<(OwnedFd, PathBuf), StoreError> {
    let set = inherited::variable("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let folders = set.into_iter().chain(["/var/tmp".into(), "/tmp".into()]);
    let (in_ram, on_disk): (Vec<PathBuf>, Vec<_>) = folders.partition(|path| is_in_ram(path));
    let mut failure = None;
    for folder in on_disk.into_iter().chain(in_ram) {
        match in_folder(&folder) {
            Ok(file) => return Ok((file, folder)),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    Err(failure.expect("there is at least one folder to try"))
}

fn is_in_ram(folder: &Path) -> bool {
    fs::statfs(folder).is_ok_and(|fs| keeps_in_ram(&fs))
}

fn keeps_in_ram(fs: &fs::StatFs) -> bool {
    fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC
}

/// Creates a nameless file in a folder.
fn in_folder(folder: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match fs::open(folder, flags, MODE) {
        Ok(file) => return Ok(file),
        // No O_TMPFILE in this file system or kernel: use a name for a moment.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(errno) => return Err(refusal(folder, errno)),
    }
    let mut last = Errno::EXIST;
    for attempt in 0..16 {
        let name = format!(".ebb-swap-{}-{attempt}", std::process::id());
        match create_and_unlink(&folder.join(name)) {
            Ok(file) => return Ok(file),
            Err(errno) => last = errno,
        }
        if last != Errno::EXIST {
            break;
        }
    }
    Err(refusal(folder, last))
}

/// Creates a file at a name that the user chose.
fn at_name(path: &Path) -> Result<OwnedFd, StoreError> {
    create_and_unlink(path).map_err(|errno| refusal(path, errno))
}

fn create_and_unlink(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let file = fs::open(path, flags, MODE)?;
    fs::unlink(path)?;
    Ok(file)
}

fn refusal(path: &Path, errno: Errno) -> StoreError {
    let advice = match errno {
        Errno::EXIST => {
            "Ebb overwrites and removes its file: name a folder, or a file that does not exist"
        }
        Errno::NOENT => "create the folder first, or name one that exists (file:/var/tmp)",
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            "name a folder you may write to, for example file:$HOME/"
        }
        Errno::NOSPC | Errno::DQUOT => "free some space, or name a folder on another disk",
        _ => "name another folder, for example file:/var/tmp",
    };
    StoreError::OpenFile { path: path.to_path_buf(), source: errno.into(), advice }
}

/// Turns O_DIRECT on if the file system really supports it. Some file systems accept the flag and
/// fail the transfer.
fn go_direct(file: &OwnedFd) -> bool {
    let Ok(flags) = fs::fcntl_getfl(file) else { return false };
    if fs::fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    if try_page(file).is_ok() {
        return true;
    }
    let _ = fs::fcntl_setfl(file, flags);
    false
}

/// Writes a page and reads it back, at an offset that fails with a block size above 4096 bytes.
fn try_page(file: &OwnedFd) -> io::Result<()> {
    let mut page = AnonBuffer::new(PAGE_SIZE)?;
    let offset = PAGE_SIZE as u64;
    let written = rustix::io::pwrite(file, &page, offset)?;
    let read = rustix::io::pread(file, &mut page[..], offset)?;
    if written == PAGE_SIZE && read == PAGE_SIZE { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// Allocates blocks up to `end`. A later write then cannot find the disk full, and need not wait
/// for the file to grow.
pub(crate) fn reserve(file: &OwnedFd, start: u64, end: u64) -> io::Result<()> {
    match fs::fallocate(file, fs::FallocateFlags::empty(), start, end - start) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(fs::ftruncate(file, end)?),
        other => Ok(other?),
    }
}

/// Returns the metadata of the file; for tests.
#[cfg(test)]
fn metadata(file: &OwnedFd) -> std::fs::Metadata {
    std::fs::File::from(file.try_clone().expect("dup")).metadata().expect("fstat")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn assert_private(file: &OwnedFd) {
        let metadata = metadata(file);
        assert_eq!(metadata.mode() & 0o777, 0o600);
        assert_eq!(metadata.nlink(), 0, "the file has no name");
    }

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("{name}-{}.ebb-tmp", std::process::id()));
        std::fs::create_dir_all(&path).expect("create a folder");
        path
    }

    #[test]
    fn the_file_is_private_and_has_no_name() {
        assert_private(&open(None).expect("default folder").file);
        let folder = scratch("open");
        let in_folder = open(Some(&folder)).expect("in a folder");
        assert_private(&in_folder.file);
        let named = open(Some(&folder.join("swap"))).expect("at a name");
        assert_private(&named.file);
        assert_eq!(std::fs::read_dir(&folder).expect("list").count(), 0, "nothing is left behind");
        std::fs::remove_dir(&folder).expect("remove");
    }

    #[test]
    fn an_existing_file_is_left_alone() {
        let folder = scratch("exists");
        let path = folder.join("precious");
        std::fs::write(&path, "data").expect("write");
        let error = open(Some(&path)).err().expect("refused").to_string();
        assert!(error.contains("name a folder, or a file that does not exist"), "{error}");
        assert_eq!(std::fs::read(&path).expect("read"), b"data");
        std::fs::remove_dir_all(&folder).expect("remove");
    }

    #[test]
    fn a_missing_folder_is_named_in_the_error() {
        let error = open(Some(Path::new("/nowhere/at/all"))).err().expect("refused").to_string();
        assert!(
            error.contains("/nowhere/at/all") && error.contains("create the folder"),
            "{error}"
        );
    }
}
