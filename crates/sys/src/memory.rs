//! `/proc/PID/mem`: reads pages of another process and leaves them as they are.
//!
//! `process_vm_readv` pins what it reads, and a page that is shared after a fork is copied by the kernel before
//! it may be pinned (`gup_must_unshare`, since Linux 5.19): to read it would double it. This path only looks
//! at it. Nor does it wait for a page that is missing under a userfaultfd.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const PAGE: usize = 4096;

/// The memory of one address space, whatever becomes of its process's number.
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
    /// That of the process (or thread) `task`.
    pub fn open(task: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{task}/mem"))? })
    }

    /// Reads the pages at `addresses` into `pages`, one call for each stretch. Returns how many were read, from
    /// the front: fewer where a page is missing, none of an address space that has ended.
    ///
    /// # Errors
    ///
    /// That of the kernel, if not even the first could be read.
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
