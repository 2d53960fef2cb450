//! Media that keep the pages: normally files. Tests use a medium that loses unsynced writes.

use crate::error::PoolError;
use ebb_mm::PAGE_SIZE;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes at offsets, which are durable once they are synced.
///
/// A crash of the machine may lose writes since the last successful sync, whole or in part and in
/// any order. A sector of 512 bytes is written whole or not at all.
pub trait Medium: Send + Sync {
    /// Fills `into` with the page `page`. The part beyond the end reads as zeros.
    ///
    /// # Errors
    /// The medium cannot be read.
    fn read(&self, page: u64, into: &mut [u8; PAGE_SIZE]) -> io::Result<()>;

    /// Writes consecutive pages from `page` on.
    ///
    /// # Errors
    /// Not all of it could be written. It is unknown which part was.
    fn write(&self, page: u64, pages: &[&[u8; PAGE_SIZE]]) -> io::Result<()>;

    /// Makes all writes durable.
    ///
    /// # Errors
    /// It is unknown which writes are durable.
    fn sync(&self) -> io::Result<()>;

    /// Returns the number of pages; the last one may be partial.
    ///
    /// # Errors
    /// The length cannot be determined.
    fn pages(&self) -> io::Result<u64>;

    /// Sets the number of pages.
    ///
    /// # Errors
    /// The medium cannot be shortened or lengthened.
    fn set_pages(&self, pages: u64) -> io::Result<()>;
}

/// Largest number of pages in one system call.
const PARTS_MAX: usize = 256;

/// A file, with direct I/O if its file system supports that.
#[derive(Debug)]
pub struct Disk(File);

impl Disk {
    /// Opens or creates a file. With `direct`, transfers bypass the page cache, if that is
    /// possible.
    pub(crate) fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        if direct {
            match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
                Ok(file) => return Ok(Self(file.into())),
                Err(Errno::INVAL) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self(rustix::fs::open(path, flags, mode)?.into()))
    }

    /// Locks the file against other pools for as long as it is open.
    pub(crate) fn lock(&self, path: &Path) -> Result<(), PoolError> {
        flock(&self.0, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            Errno::WOULDBLOCK => PoolError::InUse { path: path.into() },
            error => PoolError::Io { what: "lock", path: path.into(), source: error.into() },
        })
    }
}

fn offset(page: u64) -> u64 {
    page * PAGE_SIZE as u64
}

impl Medium for Disk {
    fn read(&self, page: u64, into: &mut [u8; PAGE_SIZE]) -> io::Result<()> {
        let mut done = 0;
        while done < PAGE_SIZE {
            match self.0.read_at(&mut into[done..], offset(page) + done as u64) {
                // The end of the file.
                Ok(0) => break,
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The end of the file lies within a sector, where direct I/O cannot begin a read.
                Err(error)
                    if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) && done > 0 =>
                {
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        into[done..].fill(0);
        Ok(())
    }

    fn write(&self, page: u64, pages: &[&[u8; PAGE_SIZE]]) -> io::Result<()> {
        for (at, pages) in (page..).step_by(PARTS_MAX).zip(pages.chunks(PARTS_MAX)) {
            let mut parts: Vec<IoSlice<'_>> =
                pages.iter().map(|page| IoSlice::new(&page[..])).collect();
            let (mut left, mut at) = (&mut parts[..], offset(at));
            while !left.is_empty() {
                match rustix::io::pwritev(&self.0, left, at) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(bytes) => {
                        IoSlice::advance_slices(&mut left, bytes);
                        at += bytes as u64;
                    }
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn pages(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len().div_ceil(PAGE_SIZE as u64))
    }

    fn set_pages(&self, pages: u64) -> io::Result<()> {
        self.0.set_len(offset(pages))
    }
}
