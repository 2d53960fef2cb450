//! `/proc/PID/mem`: reads pages of another process without changing them.
//!
//! `process_vm_readv` pins the pages that it reads. Before the kernel pins a page that is shared
//! after a fork, it copies the page (`gup_must_unshare`, since Linux 5.19). Such a read would
//! double the page. A read of `/proc/PID/mem` leaves the page shared. It does not wait for a page
//! that is missing under a userfaultfd, either.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;

/// Memory of one address space. The handle stays valid if another process later gets the process's
/// number.
#[derive(Debug)]
pub struct Memory {
    file: File,
}

impl From<File> for Memory {
    fn from(file: File) -> Self {
        Self { file }
    }
}

impl Memory {
    /// Opens the memory of the process (or thread) `task`.
    pub fn open(task: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{task}/mem"))? })
    }

    /// Reads the pages at `addresses` into `pages`, by one call for each contiguous run. Returns
    /// how many pages were read, from the first on. The number is smaller if a page is missing, and
    /// 0 if the address space has ended.
    ///
    /// # Errors
    ///
    /// The kernel's error, if not even the first page could be read.
    ///
    /// # Panics
    ///
    /// If there are more addresses than pages.
    pub fn read_pages(&self, addresses: &[u64], pages: &mut [[u8; PAGE]]) -> io::Result<usize> {
        assert!(addresses.len() <= pages.len(), "room for all");
        let mut done = 0;
        for stretch in addresses.chunk_by(|one, next| one + PAGE as u64 == *next) {
            let into = pages[done..done + stretch.len()].as_flattened_mut();
            let got = match self.file.read_at(into, stretch[0]) {
                Ok(bytes) => bytes / PAGE,
                Err(error) if done == 0 => return Err(error),
                Err(_) => 0,
            };
            done += got;
            if got < stretch.len() {
                break;
            }
        }
        Ok(done)
    }
}
