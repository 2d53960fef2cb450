//! Leaves the agent's file out of `LD_PRELOAD` for programs that the agent cannot follow.
//!
//! Behind a strict filter the agent's system calls would get such a program killed
//! ([`crate::filter`]). After a change of user, root or mounts the program may not reach the
//! agent's file. The loader would then complain on the program's standard error.
//!
//! The hooks run on the program's own threads, and in children of `vfork`. They allocate nothing,
//! and change none of the parent's memory. An environment that is too large to be copied is passed
//! on unchanged.

use crate::filter;
use crate::preload::set_errno;
use crate::state::{AGENT, ENV_PRELOAD, PATH_MAX};
use crate::syscall::{self, call};
use crate::threads::behind;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Relaxed;

/// Largest number of variables, and largest length in bytes of the preload list, that can be
/// copied.
const VARIABLES_MAX: usize = 510;
const LIST_MAX: usize = 2048;

type Strings = *const *const c_char;

/// Copy of an environment without the agent.
struct Without {
    variables: [*const c_char; VARIABLES_MAX + 2],
    list: [u8; LIST_MAX],
}

/// Has `start` start a program with this environment, or with a copy of it without the agent. The
/// copy takes much stack, and a crashing program may have little left. So only `start_without`
/// makes room for it.
///
/// # Safety
/// `environment` is a null-ended array of C strings.
unsafe fn start<T>(environment: Strings, start: impl FnOnce(Strings) -> T) -> T {
    // SAFETY: as promised.
    unsafe {
        if !filter::is_strict() && follows(environment) {
            start(environment)
        } else {
            start_without(environment, start)
        }
    }
}

/// Returns whether a program with this environment can have the agent, or would not load it anyway.
///
/// # Safety
/// `environment` is a null-ended array of C strings.
#[inline(never)]
unsafe fn follows(environment: Strings) -> bool {
    // SAFETY: as promised.
    let Some((_, list)) = (unsafe { find_list(environment) }) else { return true };
    let mut agent = [0; PATH_MAX + 8];
    let Some(agent) = agent_file(&mut agent) else { return true };
    !elements(list).any(|element| names(element, agent)) || is_reachable(agent)
}

/// Has `start` start a program with a copy of this environment without the agent.
///
/// # Safety
/// `environment` is a null-ended array of C strings.
#[cold]
#[inline(never)]
unsafe fn start_without<T>(environment: Strings, start: impl FnOnce(Strings) -> T) -> T {
    let mut agent = [0; PATH_MAX + 8];
    let empty = [core::ptr::null(); VARIABLES_MAX + 2];
    let mut without = Without { variables: empty, list: [0; LIST_MAX] };
    // SAFETY: as promised, and `at` is the index of the preload list in the environment.
    let copied = unsafe { find_list(environment) }
        .zip(agent_file(&mut agent))
        .and_then(|((at, list), agent)| unsafe { without.copy(environment, at, list, agent) });
    start(copied.unwrap_or(environment))
}

/// Removes the agent from the program's own environment. The C library passes this environment on
/// in more ways than there are hooks for.
pub fn leave_out() {
    let mut agent = [0; PATH_MAX + 8];
    let Some(agent) = agent_file(&mut agent) else { return };
    // SAFETY: this is the program's own environment. A list that names the agent was made by `ebb
    // run` or copied from such a list, so it is writable. The list does not grow.
    unsafe {
        let Some((_, list)) = find_list(environ) else { return };
        if !elements(list).any(|element| names(element, agent)) {
            return;
        }
        let first = list.as_ptr().cast_mut();
        let (mut from, mut to, len) = (0, 0, list.len());
        while from < len {
            let is_end = |at: &usize| matches!(*first.add(*at), b':' | b' ');
            let end = (from..len).find(is_end).unwrap_or(len);
            let element = core::slice::from_raw_parts(first.add(from), end - from);
            if !element.is_empty() && !names(element, agent) {
                if to > 0 {
                    *first.add(to) = b':';
                    to += 1;
                }
                core::ptr::copy(first.add(from), first.add(to), end - from);
                to += end - from;
            }
            from = end + 1;
        }
        *first.add(to) = 0;
    }
}

impl Without {
    /// Copies the environment with `list` (the variable at index `at`) less `agent`. Returns None
    /// if it does not fit.
    ///
    /// # Safety
    /// `environment` is a null-ended array of C strings.
    unsafe fn copy(
        &mut self,
        environment: Strings,
        at: usize,
        list: &[u8],
        agent: &CStr,
    ) -> Option<Strings> {
        let (mut from, mut to) = (0, 0);
        let others = self.copy_list(list, agent)?;
        loop {
            // SAFETY: the array is not read beyond its null.
            let variable = unsafe { *environment.add(from) };
            if variable.is_null() {
                return Some(self.variables.as_ptr());
            }
            if to >= VARIABLES_MAX {
                return None;
            }
            // An empty list is left out.
            if from != at || others {
                let own = self.list.as_ptr().cast();
                self.variables[to] = if from == at { own } else { variable };
                to += 1;
            }
            from += 1;
        }
    }

    /// Copies `list` without `agent`. Returns whether any element is left, or None if the list does
    /// not fit.
    fn copy_list(&mut self, list: &[u8], agent: &CStr) -> Option<bool> {
        let mut len = 0;
        let mut add = |bytes: &[u8]| {
            // The null byte at the end stays.
            let room = self.list[..LIST_MAX - 1].get_mut(len..len + bytes.len())?;
            room.copy_from_slice(bytes);
            len += bytes.len();
            Some(())
        };
        add(ENV_PRELOAD.as_bytes())?;
        let mut before: &[u8] = b"=";
        for element in elements(list).filter(|element| !names(element, agent)) {
            add(before)?;
            add(element)?;
            before = b":";
        }
        Some(before == b":")
    }
}

/// Returns the libraries in a preload list.
fn elements(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| matches!(byte, b':' | b' ')).filter(|element| !element.is_empty())
}

/// Returns the value of `LD_PRELOAD` and its index among the variables.
///
/// # Safety
/// `environment` is null or a null-ended array of C strings.
unsafe fn find_list<'a>(environment: Strings) -> Option<(usize, &'a [u8])> {
    if environment.is_null() {
        return None;
    }
    let mut at = 0;
    loop {
        // SAFETY: as promised, and the array is not read beyond its null.
        let variable = unsafe { *environment.add(at) };
        if variable.is_null() {
            return None;
        }
        // SAFETY: as promised.
        let text = unsafe { CStr::from_ptr(variable) }.to_bytes();
        let rest = text.strip_prefix(ENV_PRELOAD.as_bytes());
        if let Some(list) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
            return Some((at, list));
        }
        at += 1;
    }
}

/// Returns whether an element of a preload list is the agent whose file is `file`. The element has
/// the word for which the loader puts the name of the platform. A shell may have replaced that.
fn names(element: &[u8], file: &CStr) -> bool {
    let folder = file.to_bytes().strip_suffix(b"agent.so").unwrap_or_default();
    let rest = element.strip_prefix(folder).unwrap_or_default();
    matches!(rest, b"agent.so" | b"/agent.so" | b"$PLATFORM/agent.so")
}

/// Returns the path of the agent's own file, which is in the directory of the socket.
fn agent_file(buffer: &mut [u8; PATH_MAX + 8]) -> Option<&CStr> {
    const NAME: &[u8] = b"agent.so\0";
    for (chunk, word) in buffer.chunks_exact_mut(8).zip(&AGENT.path) {
        chunk.copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    let socket = &buffer[..AGENT.path_len.load(Relaxed)];
    let name = socket.iter().rposition(|&byte| byte == b'/')? + 1;
    buffer.get_mut(name..name + NAME.len())?.copy_from_slice(NAME);
    CStr::from_bytes_until_nul(buffer).ok()
}

/// Returns whether a program started now could read the file. Returns true if that is unknown.
fn is_reachable(file: &CStr) -> bool {
    /// Arguments of `faccessat2`: AT_FDCWD, R_OK, AT_EACCESS.
    const HERE: usize = -100isize as usize;
    const READ: usize = 4;
    const AS_ACTING: usize = 0x200;
    const EACCES: isize = -13;
    const ENOENT: isize = -2;
    const ENOTDIR: isize = -20;
    // SAFETY: a string that outlives the call.
    let result =
        unsafe { call(syscall::FACCESSAT2, [HERE, file.as_ptr() as usize, READ, AS_ACTING, 0, 0]) };
    !matches!(result, EACCES | ENOENT | ENOTDIR)
}

fn replace(path: *const c_char, arguments: Strings, environment: Strings) -> c_int {
    let args = [path as usize, arguments as usize, environment as usize, 0, 0, 0];
    // SAFETY: the caller of the hook vouches for the call.
    let result = unsafe { call(syscall::EXECVE, args) };
    set_errno(-result as c_int);
    -1
}

#[link(name = "c")]
unsafe extern "C" {
    static environ: Strings;
    fn execvpe(file: *const c_char, arguments: Strings, environment: Strings) -> c_int;
}

/// Hook before glibc's `execve`.
///
/// # Safety
/// As `execve`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the caller vouches for the environment.
    unsafe { start(environment, |environment| replace(path, arguments, environment)) }
}

/// Hook before glibc's `execv`.
///
/// # Safety
/// As `execv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's own environment.
    unsafe { start(environ, |environment| replace(path, arguments, environment)) }
}

/// Hook before glibc's `execvp`.
///
/// # Safety
/// As `execvp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the program's own environment; the caller vouches for the rest.
    unsafe { start(environ, |environment| execvpe(file, arguments, environment)) }
}

type Spawn = unsafe extern "C" fn(
    *mut c_int,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

static REAL_SPAWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REAL_SPAWNP: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Hook before glibc's `posix_spawn`.
///
/// # Safety
/// As `posix_spawn`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the symbol found is glibc's function of this type; the caller vouches for the rest.
    unsafe {
        let real: Spawn = core::mem::transmute(behind(&REAL_SPAWN, c"posix_spawn"));
        start(environment, |environment| {
            real(pid, path, actions, attributes, arguments, environment)
        })
    }
}

/// Hook before glibc's `posix_spawnp`.
///
/// # Safety
/// As `posix_spawnp`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the symbol found is glibc's function of this type; the caller vouches for the rest.
    unsafe {
        let real: Spawn = core::mem::transmute(behind(&REAL_SPAWNP, c"posix_spawnp"));
        start(environment, |environment| {
            real(pid, file, actions, attributes, arguments, environment)
        })
    }
}
