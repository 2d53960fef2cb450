//! /proc: the areas of an address space, its resident sizes, the children of a process.

use crate::words::plain;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The bytes of a file of /proc.
fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    read_all(File::open(path)?)
}

/// The rest of a file whose size is not known. `std::fs::read` asks the kernel three times as often.
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

/// The text of a file of /proc.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// One line of /proc/PID/maps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// Its first address.
    pub start: u64,
    /// The address behind its last.
    pub end: u64,
    /// `r` in its rights.
    pub readable: bool,
    /// `w` in its rights.
    pub writable: bool,
    /// `s` in its rights: what is written there is seen by all who map it.
    pub shared: bool,
    /// Inode of the file behind it; 0 if none.
    pub inode: u64,
    /// Path or pseudo-path (`[heap]`), empty for unnamed anonymous memory.
    pub name: String,
}

impl Area {
    /// Private anonymous memory: what can be paged. Whatever access is allowed now: parts whose access
    /// becomes alike again must be able to become one area again.
    #[must_use]
    pub fn is_pageable(&self) -> bool {
        let anonymous = self.inode == 0
            && (self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:"));
        anonymous && !self.shared
    }
}

/// The areas of process `pid`.
pub fn areas(pid: u32) -> io::Result<Vec<Area>> {
    let text = read(format!("/proc/{pid}/maps"))?;
    Ok(parse_areas(&String::from_utf8_lossy(&text)))
}

/// The areas of a /proc/PID/maps.
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
        shared: permissions.get(3) == Some(&b's'),
        inode,
        name: fields.next().unwrap_or("").trim_start().to_owned(),
    })
}

/// Request for the area that holds an address, of Linux 6.11 and newer.
const PROCMAP_QUERY: u64 =
    (0b11 << 30) | ((size_of::<Query>() as u64) << 16) | ((b'f' as u64) << 8) | 17;
/// Asks for the next area where none holds the address; told of an area that is readable, writable, shared.
const COVERING_OR_NEXT: u64 = 0x10;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const SHARED: u64 = 8;

/// Its argument.
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

/// The areas, of this /proc/PID/maps, that lie at least in part in one of these ranges. A kernel that cannot be asked for
/// one area tells of all.
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

/// The area that holds an address, or the next.
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
    // SAFETY: the argument has the size that it says, and names a buffer that lives through the call.
    let got = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY, &raw mut query) };
    if got != 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    }
    // With the zero byte at its end.
    let name = &name[..(query.name_len as usize).saturating_sub(1)];
    let has = |right: u64| query.rights & right != 0;
    Ok(Some(Area {
        start: query.start,
        end: query.end,
        readable: has(READABLE),
        writable: has(WRITABLE),
        shared: has(SHARED),
        inode: query.inode,
        name: String::from_utf8_lossy(name).into_owned(),
    }))
}

/// What a process passes on when it forks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passing {
    /// Ranges that a child sees empty (`MADV_WIPEONFORK`) or not at all (`MADV_DONTFORK`).
    pub withheld: Vec<(u64, u64)>,
    /// Ranges that are registered with a userfaultfd for pages that are missing.
    pub registered: Vec<(u64, u64)>,
}

/// What process `pid` passes on. Walks the page tables.
pub fn passing(pid: u32) -> io::Result<Passing> {
    let text = read(format!("/proc/{pid}/smaps"))?;
    Ok(parse_passing(&String::from_utf8_lossy(&text)))
}

/// The same of a /proc/PID/smaps.
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

/// An open /proc/PID/statm, read again and again.
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
    /// Opens it for process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/statm"))? })
    }

    /// Resident pages of anonymous memory; 0 once the address space is gone.
    pub fn anonymous_pages(&self) -> io::Result<u64> {
        self.sizes().map(|(anonymous, _)| anonymous)
    }

    /// The same, and resident pages of files and of shared memory.
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

/// The direct children of a process, over all its threads.
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

/// The name of a process as it may be shown, or `?`.
#[must_use]
pub fn name(pid: u32) -> String {
    let name = read(format!("/proc/{pid}/comm")).unwrap_or_default();
    match plain(&String::from_utf8_lossy(&name)).trim_end() {
        "" => "?".to_owned(),
        name => name.to_owned(),
    }
}

/// The parent of a process.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// When a process started, in ticks since the machine did.
#[must_use]
pub fn started(pid: u32) -> Option<u64> {
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// State letter of a process (`R`, `S`, `T`, `Z`, ...), if it exists.
#[must_use]
pub fn state(pid: u32) -> Option<char> {
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    parse_state(&text)
}

/// The state letter of a /proc/PID/stat.
pub(crate) fn parse_state(text: &str) -> Option<char> {
    text.rsplit_once(") ")?.1.chars().next()
}

/// The exit code in a /proc/PID/stat: its last field is the status as wait(2) reports it.
pub(crate) fn parse_exit_code(text: &str) -> Option<u8> {
    let status: u32 = text.split_ascii_whitespace().next_back()?.parse().ok()?;
    Some((status >> 8) as u8)
}

/// The number that a process or thread has in its own process namespace, from its /proc/PID/status.
pub(crate) fn own_number(status: &str) -> Option<u32> {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_ascii_whitespace().next_back()?.parse().ok()
}

/// A thread's state, and where in the kernel it waits, as far as that may be known.
#[must_use]
pub fn waits_for(thread: u32) -> String {
    let place = read_text(format!("/proc/{thread}/wchan")).unwrap_or_default();
    let place = if place.is_empty() || place == "0" { "?" } else { &place };
    format!("{} in {place}", state(thread).unwrap_or('?'))
}

/// Whether process `pid` has other filters of system calls (seccomp) than this one: a call that it does not expect may be the end
/// of it. True where that cannot be known.
#[must_use]
pub fn has_other_filters(pid: u32) -> bool {
    let of = |process: &str| {
        let status = read_text(format!("/proc/{process}/status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse::<u32>().ok()
        };
        // Since Linux 5.9; a kernel without filters has neither.
        Some((field("Seccomp:").unwrap_or(0), field("Seccomp_filters:").unwrap_or(0)))
    };
    of(&pid.to_string()).is_none_or(|its| Some(its) != of("self"))
}

/// Bytes of memory that could be had without swapping, as the kernel estimates.
#[must_use]
pub fn memory_available() -> Option<u64> {
    let text = read_text("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// The process by which process `pid` is traced, if it is.
#[must_use]
pub fn tracer(pid: u32) -> Option<u32> {
    parse_tracer(&read_text(format!("/proc/{pid}/status")).ok()?)
}

fn parse_tracer(status: &str) -> Option<u32> {
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    tracer.trim().parse().ok().filter(|&tracer| tracer != 0)
}

/// Whether a /proc/PID/status is that of one that was stopped, by a signal or by a tracer that is not one's own.
pub(crate) fn parse_stopped(status: &str, is_own: impl Fn(u32) -> bool) -> bool {
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    match state.and_then(|state| state.trim().chars().next()) {
        Some('T') => true,
        Some('t') => !parse_tracer(status).is_some_and(is_own),
        _ => false,
    }
}

/// Whether signals wait for a thread that it does not block, or that cannot be known.
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

/// Whether a process has but one number where `/proc` was mounted: it is of that process namespace and none within.
#[must_use]
pub fn is_of_this_namespace(pid: u32) -> bool {
    let status = read_text(format!("/proc/{pid}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.is_some_and(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

/// All processes.
fn all() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// All processes that act as this user and no other: root may look at everybody's.
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

/// The processes of this user that map a file of this folder. Takes long.
#[must_use]
pub fn mapping_of(folder: &std::path::Path) -> Vec<u32> {
    let maps = |pid: &u32| {
        let areas = areas(*pid).unwrap_or_default();
        areas.iter().any(|area| std::path::Path::new(&area.name).parent() == Some(folder))
    };
    own().filter(maps).collect()
}

/// The processes of this user that were started with the variable `name` so set. Takes long.
#[must_use]
pub fn started_with(name: &str, value: &std::ffi::OsStr) -> Vec<u32> {
    let wanted = [name.as_bytes(), b"=", value.as_encoded_bytes()].concat();
    let has = |pid: &u32| {
        let variables = read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|byte| *byte == 0).any(|variable| variable == wanted)
    };
    own().filter(has).collect()
}

/// What process `pid` ended with, as wait(2) reports it, if nobody has waited for it yet and this user may know.
#[must_use]
pub fn status_of_ended(pid: u32) -> Option<i32> {
    use std::os::unix::fs::MetadataExt;
    let user = rustix::process::geteuid();
    // Who may not know is shown zero.
    let own = |of: std::fs::Metadata| user.is_root() || of.uid() == user.as_raw();
    std::fs::metadata(format!("/proc/{pid}")).ok().filter(|of| own(of.clone()))?;
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    let status = || text.split_ascii_whitespace().next_back()?.parse().ok();
    (parse_state(&text) == Some('Z')).then(status)?
}

/// The threads of process `pid` with their states.
#[must_use]
pub fn threads(pid: u32) -> Vec<(u32, char)> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    tasks
        .filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|thread| Some((thread, state(thread)?)))
        .collect()
}

/// The exit code of a process whose first thread has ended, and of whose others at most one is left.
#[must_use]
pub fn deserted(pid: u32) -> Option<u8> {
    if state(pid) != Some('Z') {
        return None;
    }
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.count();
    let text = read_text(format!("/proc/{pid}/stat")).ok()?;
    if tasks > 2 { None } else { parse_exit_code(&text) }
}

/// Pages of anonymous memory of process `pid`, each counted by its share among those who map it. Walks
/// the page tables.
pub fn proportional_anonymous_pages(pid: u32) -> io::Result<u64> {
    rolled_up_pages(pid, "Pss_Anon:")
}

/// Pages that process `pid` has written to and nobody else maps. Walks the page tables.
pub fn private_dirty_pages(pid: u32) -> io::Result<u64> {
    rolled_up_pages(pid, "Private_Dirty:")
}

/// Shared memory of one process, in pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct SharedPages {
    /// Each page by the process's share among those who map it.
    pub proportional: u64,
    /// At least so many nobody else maps.
    pub alone: u64,
}

/// What process `pid` has of it, `mapped` pages in all. Walks the page tables.
pub fn shared_pages(pid: u32, mapped: u64) -> io::Result<SharedPages> {
    shared_pages_of(&read_text(format!("/proc/{pid}/smaps_rollup"))?, mapped)
}

fn shared_pages_of(text: &str, mapped: u64) -> io::Result<SharedPages> {
    let field = |name| rolled_up(text, name);
    // The kernel says what is the process's alone of all its memory. The rest of that may be all of it.
    let others = field("Rss:")?.saturating_sub(mapped);
    let alone = field("Private_Clean:")? + field("Private_Dirty:")?;
    Ok(SharedPages {
        proportional: field("Pss_Shmem:")?,
        alone: alone.saturating_sub(others).min(mapped),
    })
}

/// Resident pages of shared memory that process `pid` maps, each as often as it maps it.
#[must_use]
pub fn shared_memory_pages(pid: u32) -> Option<u64> {
    let text = read_text(format!("/proc/{pid}/status")).ok()?;
    // Threads of the kernel and ended processes have none.
    rolled_up(&text, "RssShmem:").ok()
}

/// A field of the sum over all areas, in pages.
fn rolled_up_pages(pid: u32, field: &str) -> io::Result<u64> {
    rolled_up(&read_text(format!("/proc/{pid}/smaps_rollup"))?, field)
}

/// A field of a /proc/PID/smaps_rollup, or another file of that form, in pages.
pub(crate) fn rolled_up(text: &str, field: &str) -> io::Result<u64> {
    let kib = text.lines().find_map(|line| {
        let value = line.strip_prefix(field)?.trim().strip_suffix("kB")?;
        value.trim().parse::<u64>().ok()
    });
    kib.map(|kib| kib / 4).ok_or_else(|| io::Error::other(format!("smaps_rollup without {field}")))
}

/// Value in kB of a field of /proc/meminfo.
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
    fn what_is_alone_in_shared_memory_is_what_no_other_memory_can_be() {
        let text =
            "Rss: 4000 kB\nPss_Shmem: 3200 kB\nPrivate_Clean: 400 kB\nPrivate_Dirty: 2000 kB\n";
        // 100 pages are something else, all of them perhaps its own.
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
    fn areas_that_are_asked_for_are_those_that_are_read() {
        let buffer = crate::anon::AnonBuffer::new(16 * 4096).unwrap();
        let start = buffer.as_ptr() as u64;
        let maps = || File::open("/proc/self/maps").unwrap();
        let code = areas_that_are_asked_for_are_those_that_are_read as *const () as u64;
        let ranges = [(code, code + 1), (start, start + 4096), (start + 4096, start + 3 * 4096)];
        let mut read = areas(std::process::id()).unwrap();
        read.retain(|area| ranges.iter().any(|&(from, to)| area.start < to && area.end > from));
        assert!(read.len() >= 2);
        assert_eq!(areas_in(maps(), &ranges).unwrap(), read);
        assert_eq!(areas_in(maps(), &[(0, 4096), (u64::MAX - 4096, u64::MAX)]).unwrap(), []);
        // As with a kernel that cannot be asked.
        let copy = tempfile::NamedTempFile::new().unwrap();
        std::fs::copy("/proc/self/maps", copy.path()).unwrap();
        assert_eq!(areas_in(copy.reopen().unwrap(), &ranges).unwrap(), read);
    }

    #[test]
    fn what_is_passed_on_is_read_from_the_flags_of_each_area() {
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

    /// Of another process that waits: in this one other tests map memory and fork meanwhile.
    #[test]
    fn a_process_that_waits_has_little_to_itself_and_no_more_than_the_whole() {
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
    fn shared_memory_is_told_from_other_memory() {
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
