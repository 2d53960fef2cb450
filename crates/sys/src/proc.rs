//! Reads `/proc`: the areas of an address space, its resident sizes, the children, threads and
//! states of processes.

use crate::examine::examine;
use crate::words::plain;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// Returns the bytes of a file of `/proc`.
fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_all(File::open(path)?)
}

/// Returns the rest of a file whose size is unknown. `std::fs::read` would make three times as many
/// system calls.
pub(crate) fn read_all(mut file: File) -> io::Result<Vec<u8>> {
    let (mut bytes, mut len) = (vec![0; 4096], 0);
    loop {
        match file.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(got) => len += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if len == bytes.len() {
            bytes.resize(len * 2, 0);
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Returns the text of a file of `/proc`.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Area of an address space: one line of `/proc/PID/maps`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// Address behind the last one.
    pub end: u64,
    /// Whether the permissions include `r`.
    pub readable: bool,
    /// Whether the permissions include `w`.
    pub writable: bool,
    /// Whether the permissions include `x`.
    pub executable: bool,
    /// Whether the permissions include `s`: all processes that map the area see writes to it.
    pub shared: bool,
    /// Inode of the mapped file; 0 if there is none.
    pub inode: u64,
    /// Path or pseudo-path (`[heap]`); empty for unnamed anonymous memory.
    pub name: String,
}

impl Area {
    /// Returns whether the area is private anonymous memory, which can be paged. The present
    /// permissions do not matter, because the kernel must be able to merge parts whose permissions
    /// become equal again.
    #[must_use]
    pub fn is_pageable(&self) -> bool {
        let anonymous = self.inode == 0
            && (self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:"));
        anonymous && !self.shared
    }
}

/// Returns the areas of process `pid`.
pub fn areas(pid: u32) -> io::Result<Vec<Area>> {
    let text = read(format!("/proc/{pid}/maps"))?;
    Ok(parse_areas(&String::from_utf8_lossy(&text)))
}

/// Returns the areas in the text of a `/proc/PID/maps`.
pub(crate) fn parse_areas(text: &str) -> Vec<Area> {
    text.lines().filter_map(parse_area).collect()
}

fn parse_area(line: &str) -> Option<Area> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let permissions = fields.next()?.as_bytes();
    let _offset = fields.next()?;
    let _device = fields.next()?;
    let inode = fields.next()?.parse().ok()?;
    Some(Area {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        readable: permissions.first() == Some(&b'r'),
        writable: permissions.get(1) == Some(&b'w'),
        executable: permissions.get(2) == Some(&b'x'),
        shared: permissions.get(3) == Some(&b's'),
        inode,
        name: fields.next().unwrap_or("").trim_start().to_owned(),
    })
}

/// Request number of the query for the area that holds an address (Linux 6.11 and newer).
const PROCMAP_QUERY: u64 =
    (0b11 << 30) | ((size_of::<Query>() as u64) << 16) | ((b'f' as u64) << 8) | 17;
/// Flag of a query that returns the next area if none holds the address.
const COVERING_OR_NEXT: u64 = 0x10;
/// Bit in the answer: the area is readable. The next three: writable, executable, shared.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// Argument of [`PROCMAP_QUERY`].
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_len: u32,
    build_id_len: u32,
    name: u64,
    build_id: u64,
}

/// Returns the areas in this `/proc/PID/maps` that overlap one of the ranges. On a kernel without
/// the query, reads the whole list.
pub(crate) fn areas_in(maps: File, ranges: &[(u64, u64)]) -> io::Result<Vec<Area>> {
    let mut found: Vec<Area> = Vec::new();
    for &(start, end) in ranges {
        let mut at = start;
        while at < end {
            match area_from(&maps, at) {
                Ok(Some(area)) if area.start < end => {
                    at = area.end;
                    found.push(area);
                }
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                    let mut areas = parse_areas(&String::from_utf8_lossy(&read_all(maps)?));
                    areas.retain(|area| {
                        ranges.iter().any(|&(start, end)| area.start < end && area.end > start)
                    });
                    return Ok(areas);
                }
                Err(error) => return Err(error),
            }
        }
    }
    found.sort_by_key(|area| area.start);
    found.dedup();
    Ok(found)
}

/// Returns the area that holds an address, or the next one.
fn area_from(maps: &File, address: u64) -> io::Result<Option<Area>> {
    let mut name = [0u8; libc::PATH_MAX as usize];
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        address,
        name_len: name.len() as u32,
        name: name.as_mut_ptr() as u64,
        ..Query::default()
    };
    // SAFETY: the argument has the size that it states, and names a buffer that lives through the
    // call.
    let got = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if got != 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    }
    // `name_len` counts the null byte at the end.
    let name = &name[..(query.name_len as usize).saturating_sub(1)];
    let has = |right: u64| query.rights & right != 0;
    Ok(Some(Area {
        start: query.start,
        end: query.end,
        readable: has(READABLE),
        writable: has(WRITABLE),
        executable: has(EXECUTABLE),
        shared: has(SHARED),
        inode: query.inode,
        name: String::from_utf8_lossy(name).into_owned(),
    }))
}

/// Ranges of a process with special treatment at a fork.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passing {
    /// Ranges that a child gets empty (`MADV_WIPEONFORK`) or not at all (`MADV_DONTFORK`).
    pub withheld: Vec<(u64, u64)>,
    /// Ranges that are registered with a userfaultfd for missing pages.
    pub registered: Vec<(u64, u64)>,
}

/// Returns the ranges of process `pid` with special treatment at a fork. The kernel walks the page
/// tables for this.
pub fn passing(pid: u32) -> io::Result<Passing> {
    let text = read(format!("/proc/{pid}/smaps"))?;
    Ok(parse_passing(&String::from_utf8_lossy(&text)))
}

/// Returns the ranges with special treatment at a fork, from the text of a `/proc/PID/smaps`.
pub(crate) fn parse_passing(text: &str) -> Passing {
    let mut found = Passing::default();
    let mut current = (0, 0);
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has =
                |wanted: &[&str]| flags.split_ascii_whitespace().any(|flag| wanted.contains(&flag));
            if has(&["wf", "dc"]) {
                found.withheld.push(current);
            }
            if has(&["um"]) {
                found.registered.push(current);
            }
        } else if let Some(area) = parse_area(line) {
            current = (area.start, area.end);
        }
    }
    found
}

/// Open `/proc/PID/statm`, for repeated reads.
#[derive(Debug)]
pub struct Statm {
    file: File,
}

impl From<File> for Statm {
    fn from(file: File) -> Self {
        Self { file }
    }
}

impl Statm {
    /// Opens the file for process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/statm"))? })
    }

    /// Returns the number of resident pages of anonymous memory; 0 once the address space is gone.
    pub fn anonymous_pages(&self) -> io::Result<u64> {
        self.sizes().map(|(anonymous, _)| anonymous)
    }

    /// Returns the numbers of resident pages of anonymous memory, and of files and shared memory.
    pub fn sizes(&self) -> io::Result<(u64, u64)> {
        let mut buffer = [0u8; 128];
        let got = self.file.read_at(&mut buffer, 0)?;
        let text = std::str::from_utf8(&buffer[..got]).unwrap_or("");
        let mut fields =
            text.split_ascii_whitespace().skip(1).map(|field| field.parse().unwrap_or(0));
        let resident: u64 = fields.next().unwrap_or(0);
        let backed = fields.next().unwrap_or(0);
        Ok((resident.saturating_sub(backed), backed))
    }
}

/// Returns the direct children of a process, over all its threads.
#[must_use]
pub fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return found };
    for thread in threads.flatten() {
        let Ok(text) = read_text(thread.path().join("children")) else { continue };
        found.extend(text.split_ascii_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    found
}

/// Returns the printable name of a process, or `?`.
#[must_use]
pub fn name(pid: u32) -> String {
    let name = read(format!("/proc/{pid}/comm")).unwrap_or_default();
    match plain(&String::from_utf8_lossy(&name)).trim_end() {
        "" => "?".to_owned(),
        name => name.to_owned(),
    }
}

/// Returns the parent of a process.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Returns the start time of a process, in clock ticks since the machine was started.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Returns the state letter of a process (`R`, `S`, `T`, `Z`, ...), if the process exists.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    parse_state(&text)
}

/// Returns the state letter in the text of a `/proc/PID/stat`.
pub(crate) fn parse_state(text: &str) -> Option<char> {
    text.rsplit_once(") ")?.1.chars().next()
}

/// Returns whether the thread has begun to end, from the flags in the text of its `/proc/PID/stat`.
pub(crate) fn parse_is_ending(text: &str) -> bool {
    const PF_EXITING: u32 = 0x4;
    let flags = text.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(6)?.parse().ok());
    flags.is_some_and(|flags: u32| flags & PF_EXITING != 0)
}

/// Returns whether process `pid` has ended, or its first thread has begun to end. From then on its
/// files belong to root, and nobody may trace it. It does not count as ended yet.
#[must_use]
pub fn is_ending(pid: u32) -> bool {
    read_text(format!("/proc/{pid}/stat")).map_or(true, |text| parse_is_ending(&text))
}

/// Returns the exit code in the text of a `/proc/PID/stat`, whose last field is the status as
/// wait(2) reports it.
pub(crate) fn parse_exit_code(text: &str) -> Option<u8> {
    let status: u32 = text.split_ascii_whitespace().next_back()?.parse().ok()?;
    Some((status >> 8) as u8)
}

/// Returns the number of a process or thread in its own pid namespace, from the text of its
/// `/proc/PID/status`.
pub(crate) fn own_number(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Returns a thread's state and the kernel function in which it waits, if the kernel shows that.
#[must_use]
pub fn waits_for(thread: u32) -> String {
    let place = read_text(format!("/proc/{thread}/wchan")).unwrap_or_default();
    let place = if place.is_empty() || place == "0" { "?" } else { &place };
    format!("{} in {place}", state(thread).unwrap_or('?'))
}

/// Returns whether the first thread of process `pid` waits for a page that it has accessed in user
/// mode ([`crate::handle::Handle::touches`]).
#[must_use]
pub fn faults_in_user_mode(pid: u32) -> bool {
    read_text(format!("/proc/{pid}/syscall")).is_ok_and(|text| text.starts_with("-1 "))
}

/// Returns whether process `pid` has other seccomp filters than this process. An unexpected system
/// call may end such a process. Returns true if the filters cannot be known.
#[must_use]
pub fn has_other_filters(pid: u32) -> bool {
    let of = |process: &str| {
        let status = read_text(format!("/proc/{process}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u32>().ok()
        };
        // Linux shows these fields since 5.9. A kernel without seccomp filters has neither.
        Some((field("Seccomp:").unwrap_or(0), field("Seccomp_filters:").unwrap_or(0)))
    };
    of(&pid.to_string()).is_none_or(|its| Some(its) != of("self"))
}

/// Returns the kernel's estimate of the memory that is available without swapping, in bytes.
#[must_use]
pub fn memory_available() -> Option<u64> {
    let text = read_text("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Returns the tracer of process `pid`, if it is traced.
#[must_use]
pub fn tracer(pid: u32) -> Option<u32> {
    parse_tracer(&read_text(format!("/proc/{pid}/status")).ok()?)
}

fn parse_tracer(status: &str) -> Option<u32> {
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|&tracer| tracer != 0)
}

/// Returns whether a `/proc/PID/status` shows a process stopped by a signal or by a tracer that
/// `is_own` does not accept.
pub(crate) fn parse_stopped(status: &str, is_own: impl Fn(u32) -> bool) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    match state.and_then(|state| state.trim().chars().next()) {
        Some('T') => true,
        Some('t') => !parse_tracer(status).is_some_and(is_own),
        _ => false,
    }
}

/// Returns whether unblocked signals are pending for a thread. Returns true if the signals cannot
/// be known.
#[must_use]
pub fn has_signals(thread: u32) -> bool {
    let Ok(status) = read_text(format!("/proc/{thread}/status")) else { return true };
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    let [own, shared, blocked] = ["SigPnd:", "ShdPnd:", "SigBlk:"].map(set);
    let sets = own.zip(shared).zip(blocked);
    sets.is_none_or(|((own, shared), blocked)| (own | shared) & !blocked != 0)
}

/// Returns whether a process has only one number. Such a process is in the pid namespace of the
/// mounted `/proc`, and in no inner one.
#[must_use]
pub fn is_of_this_namespace(pid: u32) -> bool {
    let status = read_text(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// Returns all processes.
fn all() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns all processes whose real and effective user is this user. For root this leaves out the
/// processes of other users.
fn own() -> impl Iterator<Item = u32> {
    let user = rustix::process::geteuid().as_raw();
    all().filter(move |&pid| {
        let status = read_text(format!("/proc/{pid}/status")).unwrap_or_default();
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
        let mut users = users.unwrap_or_default().split_ascii_whitespace();
        let mut is_it = || users.next().and_then(|one| one.parse().ok()) == Some(user);
        is_it() && is_it()
    })
}

/// Returns the processes of this user that map a file of this directory. The search takes long.
/// [`examine`] says what `sees` is.
pub fn mapping_of(
    folder: &std::path::Path,
    sees: impl Fn(&mut dyn FnMut(Duration) -> bool) -> bool,
) -> Vec<u32> {
    let folder = folder.to_owned();
    let maps = move |pid: u32| {
        let areas = areas(pid).unwrap_or_default();
        areas.iter().any(|area| std::path::Path::new(&area.name).parent() == Some(&*folder))
    };
    examine(own(), maps, sees)
}

/// Returns the processes of this user that were started with the environment variable `name` set to
/// `value`. The search takes long. [`examine`] says what `sees` is.
pub fn started_with(
    name: &str,
    value: &std::ffi::OsStr,
    sees: impl Fn(&mut dyn FnMut(Duration) -> bool) -> bool,
) -> Vec<u32> {
    let wanted = [name.as_bytes(), b"=", value.as_encoded_bytes()].concat();
    let has = move |pid: u32| {
        let variables = read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == wanted)
    };
    examine(own(), has, sees)
}

/// Returns the status of the ended process `pid`, as wait(2) reports it. Returns None if its parent
/// has already waited for it, or if this user may not see the status.
#[must_use]
pub fn status_of_ended(pid: u32) -> Option<i32> {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid();
    // The kernel shows the status 0 to a user without permission.
    let own = |of: std::fs::Metadata| user.is_root() || of.uid() == user.as_raw();
    std::fs::metadata(format!("/proc/{pid}")).ok().filter(|of| own(of.clone()))?;
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    let status = || text.split_ascii_whitespace().next_back()?.parse().ok();
    (parse_state(&text) == Some('Z')).then(status)?
}

/// Returns the threads of process `pid` with their states.
#[must_use]
pub fn threads(pid: u32) -> Vec<(u32, char)> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|thread| Some((thread, state(thread)?)))
        .collect()
}

/// Returns the exit code of a process whose first thread has ended and which has at most one other
/// thread.
#[must_use]
pub fn exit_code_of_leader(pid: u32) -> Option<u8> {
    if state(pid) != Some('Z') {
        return None;
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.count();
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    if tasks > 2 { None } else { parse_exit_code(&text) }
}

/// Returns the number of pages of anonymous memory of process `pid`, each counted in proportion to
/// the processes that map it. The kernel walks the page tables for this.
pub fn proportional_anonymous_pages(pid: u32) -> io::Result<u64> {
    rolled_up_pages(pid, "Pss_Anon:")
}

/// Returns the number of pages that process `pid` has written and that no other process maps. The
/// kernel walks the page tables for this.
pub fn private_dirty_pages(pid: u32) -> io::Result<u64> {
    rolled_up_pages(pid, "Private_Dirty:")
}

/// Shared memory of one process, in pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SharedPages {
    /// Number of pages, each counted in proportion to the processes that map it.
    pub proportional: u64,
    /// Lower bound of the number of pages that no other process maps.
    pub alone: u64,
}

/// Returns the shared memory of process `pid`, which maps `mapped` pages of it. The kernel walks
/// the page tables for this.
pub fn shared_pages(pid: u32, mapped: u64) -> io::Result<SharedPages> {
    shared_pages_of(&read_text(format!("/proc/{pid}/smaps_rollup"))?, mapped)
}

fn shared_pages_of(text: &str, mapped: u64) -> io::Result<SharedPages> {
    let field = |name| rolled_up(text, name);
    // The kernel shows private pages for all memory together. The memory that is not shared may be
    // private entirely.
    let others = field("Rss:")?.saturating_sub(mapped);
    let alone = field("Private_Clean:")? + field("Private_Dirty:")?;
    Ok(SharedPages {
        proportional: field("Pss_Shmem:")?,
        alone: alone.saturating_sub(others).min(mapped),
    })
}

/// Returns the number of resident pages of shared memory that process `pid` maps, each counted once
/// for each mapping.
#[must_use]
pub fn shared_memory_pages(pid: u32) -> Option<u64> {
    let text = read_text(format!("/proc/{pid}/status")).ok()?;
    // Kernel threads and ended processes have no such field.
    rolled_up(&text, "RssShmem:").ok()
}

/// Returns a field of the sum over all areas, in pages.
fn rolled_up_pages(pid: u32, field: &str) -> io::Result<u64> {
    rolled_up(&read_text(format!("/proc/{pid}/smaps_rollup"))?, field)
}

/// Returns a field of a `/proc/PID/smaps_rollup` or a file of the same form, in pages.
pub(crate) fn rolled_up(text: &str, field: &str) -> io::Result<u64> {
    let kib = text.lines().find_map(|line| {
        let value = line.strip_prefix(field)?.trim().strip_suffix("kB")?;
        value.trim().parse::<u64>().ok()
    });
    let missing = || io::Error::other(format!("smaps_rollup has no line {field}"));
    kib.map(|kib| kib / 4).ok_or_else(missing)
}

/// Returns a field of `/proc/meminfo`, in kB.
#[must_use]
pub fn meminfo_kb(field: &str) -> Option<u64> {
    let text = read_text("/proc/meminfo").ok()?;
    let line =
        text.lines().find(|line| line.strip_prefix(field).is_some_and(|l| l.starts_with(':')))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn private_pages_that_cannot_be_other_memory_are_shared_memory_of_one_process() {
        let text =
            "Rss: 4000 kB\nPss_Shmem: 3200 kB\nPrivate_Clean: 400 kB\nPrivate_Dirty: 2000 kB\n";
        // 100 pages are other memory, and all of them may be private.
        let pages = SharedPages { proportional: 800, alone: 500 };
        assert_eq!(shared_pages_of(text, 900).unwrap(), pages);
        assert_eq!(shared_pages_of(text, 100).unwrap().alone, 0);
    }

    #[test]
    fn a_maps_line_is_read_field_by_field() {
        let heap =
            parse_area("55d0-55f1 rw-p 00000000 00:00 0                          [heap]").unwrap();
        assert_eq!((heap.start, heap.end, heap.name.as_str()), (0x55d0, 0x55f1, "[heap]"));
        assert!(heap.is_pageable());
        let file = parse_area("7f00-7f10 rw-p 00001000 fe:00 1234   /lib/a b.so").unwrap();
        assert_eq!((file.inode, file.name.as_str()), (1234, "/lib/a b.so"));
        assert!(!file.is_pageable());
        assert!(!parse_area("7f00-7f10 rw-p 00000000 00:00 0 [stack]").unwrap().is_pageable());
        assert!(!parse_area("7f00-7f10 rw-s 00000000 00:00 0 ").unwrap().is_pageable());
        assert!(parse_area("7f00-7f10 r--p 00000000 00:00 0 ").unwrap().is_pageable());
        assert_eq!(parse_area("garbage"), None);
    }

    #[test]
    fn only_the_requested_areas_are_read() {
        let buffer = crate::anon::AnonBuffer::new(16 * 4096).unwrap();
        let start = buffer.as_ptr() as u64;
        let maps = || File::open("/proc/self/maps").unwrap();
        let code = only_the_requested_areas_are_read as *const () as u64;
        let ranges = [(code, code + 1), (start, start + 4096), (start + 4096, start + 3 * 4096)];
        let mut read = areas(std::process::id()).unwrap();
        read.retain(|area| ranges.iter().any(|&(from, to)| area.start < to && area.end > from));
        assert!(read.len() >= 2);
        assert_eq!(areas_in(maps(), &ranges).unwrap(), read);
        assert_eq!(areas_in(maps(), &[(0, 4096), (u64::MAX - 4096, u64::MAX)]).unwrap(), []);
        // A plain file stands for a kernel without the query.
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(copy.path(), std::fs::read("/proc/self/maps").unwrap()).unwrap();
        assert_eq!(areas_in(copy.reopen().unwrap(), &ranges).unwrap(), read);
    }

    #[test]
    fn areas_that_a_fork_passes_on_are_read_from_their_flags() {
        let text = "1000-2000 rw-p 00000000 00:00 0 \nRss:    4 kB\nVmFlags: rd wr mr mw me ac wf um uw\n\
                    2000-3000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc\n\
                    3000-4000 rw-p 00000000 00:00 0 \nVmFlags: rd wr um\n";
        let withheld = vec![(0x1000, 0x2000), (0x2000, 0x3000)];
        let registered = vec![(0x1000, 0x2000), (0x3000, 0x4000)];
        assert_eq!(parse_passing(text), Passing { withheld, registered });
    }

    #[test]
    fn a_child_starts_after_its_parent() {
        let mut child = Command::new("sleep").arg("3600").spawn().unwrap();
        let [own, its] = [std::process::id(), child.id()].map(|pid| started(pid).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(own <= its && started(child.id()).is_none(), "{own} {its}");
    }

    /// Measures another, waiting process, because in this one other tests map memory and fork
    /// meanwhile.
    #[test]
    fn a_waiting_process_has_few_private_pages_and_no_larger_share_than_the_whole() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo x; read x"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 2]).unwrap();
        let pid = child.id();
        let own = private_dirty_pages(pid).unwrap();
        assert!(own > 0 && own < 1000, "{own} pages in a process that waits");
        let share = proportional_anonymous_pages(pid).unwrap();
        assert!(share > 0 && share <= Statm::open(pid).unwrap().anonymous_pages().unwrap() + 64);
        let mapped = shared_memory_pages(pid).unwrap();
        let shared = shared_pages(pid, mapped).unwrap();
        assert!(shared.proportional <= mapped + 64 && shared.alone <= mapped);
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn shared_memory_is_distinguished_from_other_memory() {
        let status = "VmRSS:\t  400 kB\nRssAnon:\t  100 kB\nRssShmem:\t  200 kB\n";
        assert_eq!(rolled_up(status, "RssShmem:").unwrap(), 50);
        if name(2) == "kthreadd" {
            assert_eq!(shared_memory_pages(2), None, "it has none");
        }
    }

    #[test]
    fn this_process_has_anonymous_memory() {
        let pid = std::process::id();
        assert!(Statm::open(pid).unwrap().anonymous_pages().unwrap() > 0);
        assert!(areas(pid).unwrap().iter().any(Area::is_pageable));
    }
}
