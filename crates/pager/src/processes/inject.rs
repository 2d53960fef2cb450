//! Puts the agent into a program into which no loader brings it. Such a program is static (of glibc
//! or Go), or already runs (`ebb attach`).
//!
//! The pager maps the agent's image into the program while one of its threads is stopped. That
//! thread makes the agent join the pager. If the supervisor starts the program, the thread is at
//! its first instruction. If the tree has started the program, or for `ebb attach`, the thread is
//! anywhere. A forked child inherits the image, and joins like this as soon as the pager finds it.
//!
//! * INJECT-1: The agent is put only into programs that can do without its hooks. These are
//!   programs of Go alone, and programs of glibc. When a thread of Go ends, the kernel has nothing
//!   to write. A thread of glibc tells the kernel where to write (`mm/thread_words.rs`). For other
//!   programs ([`takes_agent`]) the pager could not know which pages have to stay.
//! * INJECT-2: No process traces the program afterwards. A program that cannot be traced, or that
//!   has an agent already, is left as it is.
//! * INJECT-3: The pager gains no privilege for it: the kernel lets a user trace only his own
//!   processes. So an image that its owner has changed reaches nothing that the owner does not.
//! * INJECT-4: A running program's own stack is not used, because that of a goroutine has a few
//!   hundred bytes.
//! * INJECT-5: Each program gets a thread that may wait for it for any time. Hence only a few are
//!   under way at a time. A process for which there is no room must be found again.
//! * INJECT-6: The program makes system calls that it may not expect of itself. A program with a
//!   seccomp filter that the pager does not have is left as it is. So is a program that locks all
//!   future memory (`MCL_FUTURE`), because that would fill the pool.
//! * INJECT-7: The stop of a thread is pending until the thread leaves the kernel. A fault in a
//!   system call repeats again and again meanwhile. That may use up the CPU time of the control
//!   group ([`cgroup::may_be_used_up`]). There a forked child is stopped only while it sleeps, and
//!   not for a page within a call. Its rseq area stays in memory (`mm/thread_words.rs`). A child
//!   that has run for `SLEEPLESS` is stopped anyway, because it makes no such calls.
//! * INJECT-8: A thread of the pager may still trace a process that is given back. That thread gave
//!   the process the agent, or is the freezer's and waits until the process stops. [`clean`] waits
//!   for it, because a thread has one tracer. A first thread that has ended stays traced, so
//!   [`clean`] fails then.

use crate::config::Config;
use crate::wait::patience::{Patience, Watch};
use ebb_agent::protocol::{ENV_POOL, ENV_SOCKET};
use ebb_mm::types::Vpn;
use ebb_sys::cgroup;
use ebb_sys::pagemap::Pagemap;
use ebb_sys::proc::{self, Area};
use ebb_sys::process::{Pidfd, has_memory_apart, shares_memory};
use ebb_sys::tracee::Tracee;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Name of the image in the folder of a run.
pub const IMAGE_NAME: &str = "agent.image";

/// CPU time after which a child that never sleeps is stopped anyway (INJECT-7).
const SLEEPLESS: Duration = Duration::from_secs(1);
/// Pause between two looks whether a child sleeps, or whether a thread traces a process.
const PAUSE: Duration = Duration::from_millis(1);

/// Size in bytes of the memory mapped into a running program for the agent's start.
const BORROWED_BYTES: u64 = 128 << 10;
/// Size in bytes of the stack that the agent's entry code may use.
const STACK_BYTES: u64 = 16 << 10;

fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + len)?;
    Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
}

/// Layout of an image: an ELF object as it lies in memory.
struct Image {
    len: u64,
    entry: u64,
    /// Start, length and protection of each segment.
    parts: Vec<(u64, u64, u64)>,
    /// Relocated words: the offset of each word, and the offset to which it points.
    addresses: Vec<(u64, u64)>,
}

impl Image {
    fn read(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path)?;
        Self::parse(&bytes)
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the agent's image is damaged"))
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        const PAGE: u64 = 4096;
        const LOAD: u64 = 1;
        const DYNAMIC: u64 = 2;
        const RELOCATIONS: u64 = 7;
        const RELOCATIONS_BYTES: u64 = 8;
        let word = |at: u64| number(bytes, usize::try_from(at).ok()?, 8);
        let (first, count) = (word(32)?, number(bytes, 56, 2)?);
        let (mut parts, mut table) = (Vec::new(), (0, 0));
        for header in (0..count).map(|index| first + index * 56) {
            let kinds = word(header)?;
            let (start, len) = (word(header + 16)?, word(header + 40)?);
            match kinds & 0xffff_ffff {
                LOAD => {
                    // Converts PF_X, PF_W, PF_R to PROT_READ, PROT_WRITE, PROT_EXEC.
                    let flags = kinds >> 32;
                    let access = (flags & 4) >> 2 | flags & 2 | (flags & 1) << 2;
                    let end = (start + len).next_multiple_of(PAGE);
                    parts.push((start / PAGE * PAGE, end - start / PAGE * PAGE, access));
                }
                DYNAMIC => {
                    for entry in (start..start + len).step_by(16) {
                        match word(entry)? {
                            RELOCATIONS => table.0 = word(entry + 8)?,
                            RELOCATIONS_BYTES => table.1 = word(entry + 8)?,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        let entries = (table.0..table.0 + table.1).step_by(24);
        let addresses = entries.map(|entry| Some((word(entry)?, word(entry + 16)?)));
        let addresses = addresses.collect::<Option<_>>()?;
        Some(Self { len: bytes.len() as u64, entry: word(24)?, parts, addresses })
    }

    /// Maps the image into the program and starts the agent, with the arguments at `arguments` and
    /// a stack that ends at `stack`.
    fn put(&self, program: &mut Tracee, path: &Path, arguments: u64, stack: u64) -> Result<()> {
        // A private mapping of a file: the kernel pages it, and Ebb never does.
        let start = program.map(path, self.len, stack)?;
        let prepared = self.prepare(program, start);
        let joined = prepared.and_then(|()| self.begin(program, start, arguments, stack));
        if joined.is_err() {
            // No thread of the agent exists.
            let _ = program.unmap(start, self.len);
        }
        joined
    }

    /// Starts the agent of an image that is mapped at `start`.
    fn begin(&self, program: &mut Tracee, start: u64, arguments: u64, stack: u64) -> Result<()> {
        const JOINED: u64 = ebb_agent::protocol::JOINED as u64;
        match program.run(start + self.entry, arguments, stack)? {
            JOINED => Ok(()),
            0 => Err(Error::other("its agent could not join")),
            errno => {
                let why = Error::from_raw_os_error(errno as i32);
                Err(Error::other(format!("its agent could not join: {why}")))
            }
        }
    }

    fn prepare(&self, program: &mut Tracee, start: u64) -> Result<()> {
        for &(at, to) in &self.addresses {
            program.write(start + at, &(start + to).to_ne_bytes())?;
        }
        self.parts
            .iter()
            .try_for_each(|&(at, len, access)| program.protect(start + at, len, access))
    }
}

/// Puts the agent whose image is at `path` into process `pid`. The process is a child of this one
/// and is stopped at its first instruction. Its environment says where the pager is.
///
/// # Errors
/// Fails if the process cannot be traced or the agent cannot join. The program runs on without
/// an agent.
pub fn at_start(pid: u32, path: &Path) -> Result<()> {
    let mut program = Tracee::of(pid)?;
    let (arguments, stack) =
        (program.stack(), program.below_stack(path.as_os_str().len() as u64 + 1));
    Image::read(path)?.put(&mut program, path, arguments, stack)
}

/// Data by which an agent finds its pager.
#[derive(Clone, Debug)]
pub struct Way {
    /// Path of the pager's socket; the image lies beside it.
    pub socket: PathBuf,
    /// Bytes of address space for standby pages.
    pub pool_bytes: u64,
    /// Whether programs with a loader get the agent like this, too, because the loader brings none
    /// (`ebb attach`).
    pub loaded: bool,
}

impl Way {
    /// Returns the data of a run.
    pub fn of(config: &Config) -> Self {
        let (socket, pool_bytes) = (config.socket.clone(), config.pool_bytes);
        Self { socket, pool_bytes, loaded: config.attached }
    }

    fn image(&self) -> PathBuf {
        self.socket.with_file_name(IMAGE_NAME)
    }
}

/// Processes that are being given the agent (INJECT-5).
static UNDER_WAY: Mutex<UnderWay> = Mutex::new(UnderWay { pids: Vec::new(), ended: 0 });
const UNDER_WAY_MAX: usize = 16;

/// Processes that are being given the agent, and the number of attempts that have ended.
struct UnderWay {
    pids: Vec<u32>,
    ended: u64,
}

fn under_way() -> MutexGuard<'static, UnderWay> {
    UNDER_WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether any process is being given the agent.
pub fn is_under_way() -> bool {
    !under_way().pids.is_empty()
}

/// Returns the number of attempts that have ended. With each, a waiting process comes nearer to its
/// turn.
pub fn ended() -> u64 {
    under_way().ended
}

/// Returns whether one of these processes is runnable. If so, it waits for a CPU of the host, and
/// the other processes wait for the host, too.
pub fn is_kept_waiting() -> bool {
    let pids = under_way().pids.clone();
    pids.into_iter().any(|pid| proc::state(pid) == Some('R'))
}

/// Keeps a process on the list of attempts while this value lives.
struct UnderWayGuard(u32);

impl UnderWayGuard {
    fn take(pid: u32) -> Option<Self> {
        let mut all = under_way();
        (all.pids.len() < UNDER_WAY_MAX).then(|| {
            all.pids.push(pid);
            Self(pid)
        })
    }
}

impl Drop for UnderWayGuard {
    fn drop(&mut self) {
        let mut all = under_way();
        all.ended += 1;
        if let Some(at) = all.pids.iter().position(|&pid| pid == self.0) {
            all.pids.swap_remove(at);
        }
    }
}

/// Result of an attempt to give a process the agent.
#[derive(Debug)]
pub enum Attempt {
    /// A thread is giving the process the agent.
    Begun(JoinHandle<Result<()>>),
    /// Try again later: too many attempts are under way (INJECT-5), or the process is stopped.
    Later,
    /// The process may not get the agent like this, or has one already.
    No,
}

/// Starts a thread that gives process `pid` the agent, if the process may get it like this.
pub fn begin(pid: u32, way: Way) -> Attempt {
    let Some(process) = Pidfd::open(pid).ok().filter(|_| Candidate::of(pid, &way).is_some()) else {
        return Attempt::No;
    };
    if proc::tracer(pid).is_some() || matches!(proc::state(pid), Some('T' | 't')) {
        // The freezer, a debugger or a signal has stopped the process.
        return Attempt::Later;
    }
    let Some(guard) = UnderWayGuard::take(pid) else { return Attempt::Later };
    let put = move || {
        let _place = guard;
        running(pid, &process, &way, has_memory_apart)
    };
    std::thread::Builder::new()
        .name("inject".into())
        .spawn(put)
        .map_or(Attempt::Later, Attempt::Begun)
}

/// Gives a process of the tree the agent: `process`, by the number `pid`.
///
/// # Errors
/// Fails if the process cannot be traced, if the agent cannot join, or if the process may not
/// get the agent like this.
fn running(
    pid: u32,
    process: &Pidfd,
    way: &Way,
    is_apart: impl Fn(u32, u32) -> bool,
) -> Result<()> {
    let is_forked = matches!(Candidate::of(pid, way), Some(Candidate::Forked { .. }));
    if is_forked && cgroup::may_be_used_up() {
        let watch = Watch::new(pid);
        while may_fault_in_a_call(pid) && !watch.has_run(SLEEPLESS) {
            process.send(0)?;
            std::thread::sleep(PAUSE);
        }
    }
    let mut program = Tracee::interrupt(pid)?;
    // The number may have been another process's, or the process has executed another program. Or
    // it is the child of a vfork, which is about to.
    process.send(0)?;
    let apart = proc::parent(pid).is_some_and(|parent| is_apart(parent, pid));
    let candidate = Candidate::of(pid, way).filter(|_| apart);
    let candidate = candidate.ok_or_else(|| Error::other("it is another program by now"))?;
    let path = way.image();
    let image = Image::read(&path)?;
    let borrowed = program.allocate(BORROWED_BYTES)?;
    let (arguments, stack) = (borrowed, borrowed + BORROWED_BYTES - STACK_BYTES / 2);
    let joined = match candidate {
        // The program has not accessed the new memory.
        _ if is_there(pid, borrowed) => {
            Err(Error::other("it locks all memory that it maps (mlockall)"))
        }
        Candidate::Fresh => program
            .write(arguments, &environment(arguments, way))
            .and_then(|()| image.put(&mut program, &path, arguments, stack)),
        Candidate::Forked { image: start } => image.begin(&mut program, start, 0, stack),
    };
    // The process may have ended.
    let _ = program.unmap(borrowed, BORROWED_BYTES);
    joined
}

/// Returns whether the first thread of a process may need a page within a system call (INJECT-7).
fn may_fault_in_a_call(pid: u32) -> bool {
    match proc::state(pid) {
        Some('R' | 'D') => true,
        Some('S') => {
            !proc::faults_in_user_mode(pid) && proc::waits_for(pid).ends_with("handle_userfault")
        }
        _ => false,
    }
}

/// Returns whether the page at this address is in memory; true if that cannot be seen.
fn is_there(pid: u32, address: u64) -> bool {
    let pages = File::open(format!("/proc/{pid}/pagemap")).map(Pagemap::from);
    pages.and_then(|pages| pages.is_present(Vpn::of_address(address).0)).unwrap_or(true)
}

/// Lays out the arguments and environment at `at` as the kernel would. The program has no
/// arguments, and its environment says how to find the pager.
fn environment(at: u64, way: &Way) -> Vec<u8> {
    let socket = [ENV_SOCKET.as_bytes(), b"=", way.socket.as_os_str().as_bytes(), b"\0"].concat();
    let pool = format!("{ENV_POOL}={}\0", way.pool_bytes);
    // The words are: no arguments, their end, the two variables, and their end.
    let texts = at + 5 * 8;
    let words = [0, 0, texts, texts + socket.len() as u64, 0];
    let words = words.iter().flat_map(|word: &u64| word.to_ne_bytes());
    words.chain(socket).chain(pool.into_bytes()).collect()
}

/// A process that can get the agent like this, and has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Candidate {
    /// Nothing of the agent is in the process.
    Fresh,
    /// A process that was forked from one with the agent, so the image is mapped.
    Forked { image: u64 },
}

impl Candidate {
    /// Classifies process `pid`, which has not joined this run. None if it cannot get the agent
    /// like this.
    fn of(pid: u32, way: &Way) -> Option<Self> {
        if proc::has_other_filters(pid) {
            return None;
        }
        let areas = proc::areas(pid).ok()?;
        let is_image =
            |area: &&Area| Path::new(&area.name).file_name().is_some_and(|name| name == IMAGE_NAME);
        match areas.iter().find(is_image) {
            Some(area) if Path::new(&area.name) == way.image() => {
                Some(Self::Forked { image: area.start })
            }
            // The image is of a run inside this one, or around it.
            Some(_) => None,
            None if areas.iter().any(is_agent) || is_ebb(pid) => None,
            None => {
                let program = File::open(format!("/proc/{pid}/exe")).ok()?;
                let takes = || takes_agent(&program).unwrap_or(false);
                (way.loaded && has_glibc(&areas) || takes()).then_some(Self::Fresh)
            }
        }
    }
}

/// Returns whether a process with these areas has loaded glibc.
fn has_glibc(areas: &[Area]) -> bool {
    areas.iter().any(|area| Path::new(&area.name).file_name() == Some(OsStr::new("libc.so.6")))
}

/// Returns whether an area is mapped from the agent of any run.
fn is_agent(area: &Area) -> bool {
    let name = Path::new(&area.name);
    let is_in_folder =
        |folder: &Path| folder.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ebb-"));
    name.file_name().is_some_and(|file| file == IMAGE_NAME || file == "agent.so")
        && name.parent().is_some_and(is_in_folder)
}

/// Returns whether process `pid` runs this very program: the supervisor or the pager of a run.
fn is_ebb(pid: u32) -> bool {
    let program_of = |process: &str| {
        let found = std::fs::metadata(format!("/proc/{process}/exe")).ok()?;
        Some((found.dev(), found.ino()))
    };
    program_of("self").is_some_and(|own| program_of(&pid.to_string()) == Some(own))
}

/// Returns the reason why the running process `pid` may not get the agent (INJECT-1), or None if it
/// may.
#[must_use]
pub fn why_not(pid: u32) -> Option<String> {
    let program = match File::open(format!("/proc/{pid}/exe")) {
        Ok(program) => program,
        Err(error) if error.kind() == ErrorKind::NotFound && proc::state(pid).is_none() => {
            return Some("there is no such process".into());
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Some("it is a thread of the kernel, or has ended".into());
        }
        Err(error) => return Some(format!("it is another user's, or hides itself ({error})")),
    };
    if !matches!(head_of(&program), Ok(Some(_))) {
        return Some("it is not a 64-bit x86 program".into());
    }
    let areas = match proc::areas(pid) {
        Ok(areas) => areas,
        Err(error) => return Some(format!("ebb cannot read its mappings ({error})")),
    };
    if is_ebb(pid) {
        return Some("it is ebb itself".into());
    }
    if areas.iter().any(is_agent) {
        return Some("it is in a run already (ebb ps); ebb set changes its limit".into());
    }
    if proc::has_other_filters(pid) {
        return Some(
            "it has a filter of system calls (seccomp), which may kill it for the agent's calls"
                .into(),
        );
    }
    if !has_glibc(&areas) && !takes_agent(&program).unwrap_or(false) {
        return Some(OF_NEITHER.into());
    }
    None
}

const OF_NEITHER: &str = "it is a program neither of glibc nor of Go alone";
/// Limit of the CPU time that a loader takes until glibc is loaded.
const LOADING: Duration = Duration::from_secs(2);

/// Returns the reason why process `pid` may not get the agent, like [`why_not`]. A program that may
/// just have started gets time to load glibc.
#[must_use]
pub fn why_not_when_loaded(pid: u32) -> Option<String> {
    let watch = Watch::new(pid);
    let is_loading = || {
        let program = File::open(format!("/proc/{pid}/exe"));
        program.and_then(|program| has_loader(&program)).unwrap_or(false)
    };
    let mut reason = None;
    Patience::Loading.sees_by(pid, &['R', 'D'], |pause| {
        reason = why_not(pid);
        let may_change = reason.as_deref() == Some(OF_NEITHER) && is_loading();
        if may_change && !watch.has_run(LOADING) {
            std::thread::sleep(pause);
            return false;
        }
        true
    });
    reason
}

/// Gives the agent to the running process `pid`. Its environment does not say where the pager is.
///
/// # Errors
/// Fails if the process cannot be traced or the agent cannot join.
pub fn attach(pid: u32, way: &Way) -> Result<()> {
    // The user has chosen this process, so the check need not be able to look into its parent.
    running(pid, &Pidfd::open(pid)?, way, |parent, pid| !shares_memory(parent, pid))
}

/// Returns whether a thread of this process traces the first thread of process `pid`.
fn is_traced_by_us(pid: u32) -> bool {
    proc::tracer(pid).is_some_and(|tracer| Path::new(&format!("/proc/self/task/{tracer}")).exists())
}

/// Unmaps the memory in process `pid` that belongs to an agent that has ended. This is the image,
/// the shared memory, and the ranges `mapped`.
///
/// # Errors
/// Fails if the process cannot be traced now.
pub fn clean(pid: u32, socket: &Path, mapped: &[(u64, u64)]) -> Result<()> {
    let mut program = loop {
        let is_traced = is_traced_by_us(pid);
        match Tracee::interrupt(pid) {
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied
                    && (is_traced || is_traced_by_us(pid))
                    && !proc::is_ending(pid) =>
            {
                std::thread::sleep(PAUSE);
            }
            tracee => break tracee?,
        }
    };
    let image = socket.with_file_name(IMAGE_NAME);
    let areas = proc::areas(pid)?;
    let is_ours = |area: &&Area| {
        Path::new(&area.name) == image || area.shared && area.name.starts_with("/memfd:ebb-agent")
    };
    // An area within a range of the agent's is unmapped with it, and not again.
    let is_within = |area: &&Area| {
        mapped.iter().any(|&(start, len)| start <= area.start && area.end <= start + len)
    };
    let ours = (areas.iter().filter(is_ours).filter(|area| !is_within(area)))
        .map(|area| (area.start, area.end - area.start));
    for (start, len) in mapped.iter().copied().chain(ours).filter(|&(start, _)| start != 0) {
        program.unmap(start, len)?;
    }
    Ok(())
}

/// Returns whether a 64-bit program without a loader may get the agent (INJECT-1).
///
/// # Errors
/// Fails if the file cannot be read, or is shorter than its headers say.
pub fn takes_agent(file: &File) -> Result<bool> {
    Ok(is_of_glibc(file)? || is_go_alone(file)?)
}

/// Returns the ELF header of a 64-bit x86 program; None for any other file.
fn head_of(file: &File) -> Result<Option<[u8; 64]>> {
    const X86_64: u64 = 62;
    let mut head = [0; 64];
    file.read_exact_at(&mut head, 0)?;
    let is_one = head.starts_with(b"\x7fELF\x02") && number(&head, 18, 2) == Some(X86_64);
    Ok(is_one.then_some(head))
}

/// Types of program headers.
const INTERPRETER: u64 = 3;
const NOTE: u64 = 4;

/// Returns type, file offset and file length of each segment. Empty if it is no 64-bit x86 program.
fn parts_of(file: &File) -> Result<Vec<(u64, u64, u64)>> {
    const HEADER_BYTES: usize = 56;
    let short = || Error::from(ErrorKind::UnexpectedEof);
    let Some(head) = head_of(file)? else { return Ok(Vec::new()) };
    let of_head = |at, len| number(&head, at, len).ok_or_else(short);
    let mut headers = vec![0; of_head(56, 2)? as usize * HEADER_BYTES];
    file.read_exact_at(&mut headers, of_head(32, 8)?)?;
    let part = |header: &[u8]| {
        let field = |at, len| number(header, at, len).ok_or_else(short);
        Ok((field(0, 4)?, field(8, 8)?, field(32, 8)?))
    };
    headers.chunks_exact(HEADER_BYTES).map(part).collect()
}

/// Returns whether a loader brings the program's libraries.
fn has_loader(file: &File) -> Result<bool> {
    Ok(parts_of(file)?.iter().any(|&(kind, ..)| kind == INTERPRETER))
}

/// Returns whether a program has no loader, but has the note that glibc puts into each program
/// (`NT_GNU_ABI_TAG`). No other library writes that note.
fn is_of_glibc(file: &File) -> Result<bool> {
    const NOTES_MAX: u64 = 1 << 16;
    /// Type and owner of the note; the sizes of both texts come first.
    const ABI_TAG: &[u8] = b"\x01\0\0\0GNU\0";
    let parts = parts_of(file)?;
    if parts.iter().any(|&(kind, ..)| kind == INTERPRETER) {
        return Ok(false);
    }
    for (_, at, len) in parts.into_iter().filter(|&(kind, ..)| kind == NOTE) {
        let mut notes = vec![0; len.min(NOTES_MAX) as usize];
        file.read_exact_at(&mut notes, at)?;
        if notes.windows(ABI_TAG.len()).any(|word| word == ABI_TAG) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a static 64-bit program is of Go and nothing else. It must have the sections
/// that Go's own linker makes. It must have neither the sections that other linkers add for C, nor
/// the variables of C's threads.
fn is_go_alone(file: &File) -> Result<bool> {
    const OF_GO: [&[u8]; 2] = [b".gopclntab", b".go.buildinfo"];
    const OF_OTHERS: [&[u8]; 4] = [b".interp", b".eh_frame", b".tbss", b".tdata"];
    const SECTION_BYTES: usize = 64;
    const NAMES_MAX: u64 = 1 << 16;
    let short = || Error::from(ErrorKind::UnexpectedEof);
    let Some(head) = head_of(file)? else { return Ok(false) };
    let of_head = |at, len| number(&head, at, len).ok_or_else(short);
    let (first, count, of_names) = (of_head(40, 8)?, of_head(60, 2)?, of_head(62, 2)?);
    let mut sections = vec![0; count as usize * SECTION_BYTES];
    file.read_exact_at(&mut sections, first)?;
    let of_section = |index: u64, at: usize, len: usize| {
        number(&sections, index as usize * SECTION_BYTES + at, len).ok_or_else(short)
    };
    let mut names = vec![0; of_section(of_names, 32, 8)?.min(NAMES_MAX) as usize];
    file.read_exact_at(&mut names, of_section(of_names, 24, 8)?)?;
    let mut found = Vec::new();
    for index in 0..count {
        let name = names.get(of_section(index, 0, 4)? as usize..).unwrap_or(&[]);
        found.push(name.split(|&byte| byte == 0).next().unwrap_or(&[]));
    }
    let has = |name: &&[u8]| found.contains(name);
    Ok(OF_GO.iter().all(has) && !OF_OTHERS.iter().any(has))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_for_an_injected_agent_has_the_layout_of_the_kernel() {
        let way = Way { socket: "/run/ebb-1/socket".into(), pool_bytes: 4096, loaded: false };
        let laid = environment(0x1000, &way);
        let word = |index: usize| number(&laid, index * 8, 8).expect("a word");
        assert_eq!([word(0), word(1), word(4)], [0; 3]);
        let text = |at: u64| {
            let text = &laid[(at - 0x1000) as usize..];
            String::from_utf8_lossy(text.split(|&byte| byte == 0).next().unwrap_or(&[]))
                .into_owned()
        };
        assert_eq!(text(word(2)), "EBB_SOCKET=/run/ebb-1/socket");
        assert_eq!(text(word(3)), "EBB_POOL_BYTES=4096");
    }

    /// INJECT-7: a run in a fifth of a CPU hung for ever. The pager stopped a child whose rseq area
    /// was out, and the child's faults used up the time of the group.
    #[test]
    fn a_process_that_runs_may_fault_in_a_call() {
        let start = |script| std::process::Command::new("sh").args(["-c", script]).spawn();
        let mut spins = start("while :; do :; done").expect("a shell");
        let mut sleeps = start("exec sleep 1000").expect("a shell");
        ebb_testing::eventually("a sleep", || !may_fault_in_a_call(sleeps.id()));
        ebb_testing::eventually("a loop", || proc::state(spins.id()) == Some('R'));
        assert!(may_fault_in_a_call(spins.id()));
        for process in [&mut spins, &mut sleeps] {
            process.kill().expect("it runs");
            process.wait().expect("it was a child");
        }
    }

    /// INJECT-5: a process that never stops keeps a thread busy, so the number of attempts is
    /// limited.
    #[test]
    fn the_number_of_injections_under_way_is_limited() {
        let taken: Vec<UnderWayGuard> =
            std::iter::from_fn(|| UnderWayGuard::take(u32::MAX)).collect();
        assert_eq!(taken.len(), UNDER_WAY_MAX);
        assert!(is_under_way() && !is_kept_waiting(), "there is no such process");
        let before = ended();
        drop(taken);
        assert_eq!(ended() - before, UNDER_WAY_MAX as u64);
        assert!(UnderWayGuard::take(u32::MAX).is_some());
    }

    /// INJECT-8: a detach failed with "Operation not permitted" while a child had yet to stop for
    /// the freezer.
    #[test]
    fn a_process_is_cleaned_when_no_thread_of_the_pager_traces_it() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a process");
        let pid = child.id();
        let tracee = Tracee::interrupt(pid).expect("a child");
        let (tell, thread) = std::sync::mpsc::channel();
        let cleans = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("a receiver");
            clean(pid, Path::new("/no/socket"), &[])
        });
        let thread = thread.recv().expect("a thread");
        let waits = || proc::state(thread) == Some('S');
        ebb_testing::eventually("a wait", || cleans.is_finished() || waits());
        drop(tracee);
        cleans.join().expect("no panic").expect("nobody traces it");
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// INJECT-8: a detach would have waited for a thread that ended before it stopped, as long as
    /// the process lives.
    #[test]
    fn an_ended_thread_that_is_still_traced_is_not_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a process");
        let pid = child.id();
        ebb_sys::trace::seize(pid).expect("a child");
        child.kill().expect("it runs");
        ebb_testing::eventually("its end", || proc::state(pid) == Some('Z'));
        assert!(is_traced_by_us(pid));
        clean(pid, Path::new("/no/socket"), &[]).expect_err("it has ended");
        child.wait().expect("it was a child");
    }

    #[test]
    fn wrong_images_and_programs_that_take_no_agent_are_recognized() {
        assert!(Image::parse(&[]).is_none());
        let mut cut = vec![0; 64];
        cut[56] = 2;
        assert!(Image::parse(&cut).is_none(), "headers beyond its end");
        let own = File::open("/proc/self/exe").expect("there");
        assert!(!takes_agent(&own).expect("it can be read"), "it has a loader");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("short");
        for bytes in [&b"#!/bin/sh\n"[..], &[0x7f, b'E', b'L', b'F', 2]] {
            std::fs::write(&path, bytes).expect("a file");
            assert!(takes_agent(&File::open(&path).expect("there")).is_err());
        }
        let mut head = [0xffu8; 64];
        head[..5].copy_from_slice(b"\x7fELF\x02");
        head[18..20].copy_from_slice(&[62, 0]);
        std::fs::write(&path, head).expect("a file");
        let nowhere = File::open(&path).expect("there");
        assert!(is_go_alone(&nowhere).is_err() && is_of_glibc(&nowhere).is_err());
    }
}
