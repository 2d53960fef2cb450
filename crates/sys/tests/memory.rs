//! Tests of the effect that reading has on another process's memory.

use ebb_sys::memory::Memory;
use ebb_sys::pagemap::Pagemap;
use ebb_sys::process::{self, Pidfd};

const PAGES: usize = 8;
const PAGE: usize = 4096;

/// Forked child that shares the caller's memory until this value is dropped.
struct Child(libc::pid_t);

impl Child {
    fn new() -> Self {
        // SAFETY: the child only waits for its end.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            loop {
                // SAFETY: waits for a signal; SIGKILL ends it.
                unsafe { libc::pause() };
            }
        }
        assert!(pid > 0, "fork");
        Self(pid)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = Pidfd::open(self.0.cast_unsigned()).and_then(|child| child.send(libc::SIGKILL));
        // SAFETY: a null status pointer asks for no status.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

/// Maps `PAGES` small pages, each of which begins with its index plus one.
fn filled() -> u64 {
    let len = PAGES * PAGE;
    let (rights, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, which stays until the test's process ends.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    for page in 0..PAGES {
        // SAFETY: the address is within the mapping.
        unsafe { at.cast::<u8>().add(page * PAGE).write(page as u8 + 1) };
    }
    at as u64
}

/// A read that copied each shared standby page before it was stored would undo its reclaim. The
/// dropped copy would count as freed, and the original would stay.
#[test]
fn a_shared_page_that_is_read_stays_shared() {
    let at = filled();
    let child = Child::new();
    let task = child.0.cast_unsigned();
    let map = Pagemap::open(task).expect("the page map of a child");
    let memory = Memory::open(task).expect("the memory of a child");
    let addresses: Vec<u64> = [0, 1, 2, 5, 7].map(|page| at + page * PAGE as u64).to_vec();
    let mut pages = [[0; PAGE]; PAGES];
    assert_eq!(memory.read_pages(&addresses, &mut pages).expect("they are there"), 5);
    assert_eq!(pages.map(|page| page[0]), [1, 2, 3, 6, 8, 0, 0, 0]);
    assert_eq!(map.shared(at / PAGE as u64, PAGES as u64).expect("it runs"), PAGES as u64);
    // `process_vm_readv`, which the pager avoids, copies the page.
    process::read_pages(task, &[at], &mut pages).expect("it is there");
    assert_eq!(map.shared(at / PAGE as u64, PAGES as u64).expect("it runs"), PAGES as u64 - 1);
}

#[test]
fn a_missing_page_ends_a_read() {
    let at = filled();
    let hole = (at + 3 * PAGE as u64) as *mut libc::c_void;
    // SAFETY: the range is within the mapping, and no other code uses it.
    assert_eq!(unsafe { libc::munmap(hole, PAGE) }, 0);
    let child = Child::new();
    let memory = Memory::open(child.0.cast_unsigned()).expect("the memory of a child");
    let mut pages = [[0; PAGE]; PAGES];
    let all: Vec<u64> = (0..PAGES as u64).map(|page| at + page * PAGE as u64).collect();
    assert_eq!(memory.read_pages(&all, &mut pages).expect("the first is there"), 3);
    assert!(memory.read_pages(&all[3..], &mut pages).is_err(), "not even the first");
    drop(child);
    assert_eq!(memory.read_pages(&all, &mut pages).expect("nothing went wrong"), 0, "it has ended");
}
