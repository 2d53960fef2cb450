//! PAGEMAP_SCAN: which pages of a process are present, and which were written to, as runs.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const PAGEMAP_SCAN: libc::c_ulong =
    ((3 << 30) | ((size_of::<ScanArg>() as u32) << 16) | (0x66 << 8) | 16) as libc::c_ulong;
const PRESENT: u64 = 1 << 3;
const ZERO_PAGE: u64 = 1 << 5;
const REGIONS_MAX: usize = 512;
/// Bits of a word of the page map.
const WORD_PRESENT: u64 = 1 << 63;
const WORD_SWAP: u64 = 1 << 62;
const WORD_PROTECTED: u64 = 1 << 57;
const WORD_EXCLUSIVE: u64 = 1 << 56;
/// Most pages that `exclusive_run` looks at.
pub const EXCLUSIVE_RUN_MAX: usize = 256;

/// What a scan looks for.
#[derive(Clone, Copy)]
struct Wanted {
    /// Categories a page must have, those of them it must not have, and what is told apart.
    mask: u64,
    inverted: u64,
    told: u64,
}

/// The page map of one process.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
}

impl From<File> for Pagemap {
    fn from(file: File) -> Self {
        Self { file }
    }
}

impl Pagemap {
    /// Opens the page map of process `pid`.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self { file: File::open(format!("/proc/{pid}/pagemap"))? })
    }

    /// Calls `found(start, end)` for each run of present pages (the shared zero page is not one).
    pub fn scan_present(
        &self,
        start: u64,
        end: u64,
        found: impl FnMut(u64, u64),
    ) -> io::Result<()> {
        let mask = PRESENT | ZERO_PAGE;
        self.scan(start, end, Wanted { mask, inverted: ZERO_PAGE, told: PRESENT }, found)
    }

    /// Where a stretch from `start` on ends that has `most` pages in memory (the shared zero page counts): at
    /// `end`, if there are not so many.
    pub fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64> {
        let wanted = Wanted { mask: PRESENT, inverted: 0, told: PRESENT };
        let mut regions = [Region::default(); REGIONS_MAX];
        let (mut from, mut left) = (start, most);
        while from < end && left > 0 {
            let (got, stop) = self.scan_some(from, end, wanted, left, &mut regions)?;
            left -=
                regions[..got].iter().map(|region| (region.end - region.start) / 4096).sum::<u64>();
            if stop <= from {
                return Ok(end);
            }
            from = stop;
        }
        Ok(from.min(end))
    }

    /// Calls `found(start, end)` for each run of pages that are the kernel's shared zero page.
    pub fn scan_zero(&self, start: u64, end: u64, found: impl FnMut(u64, u64)) -> io::Result<()> {
        let mask = PRESENT | ZERO_PAGE;
        self.scan(start, end, Wanted { mask, inverted: 0, told: PRESENT }, found)
    }

    /// Of the pages from `page` (a page number) on, at most `most`: how many in a row are in memory
    /// and mapped by this process alone.
    pub fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize> {
        self.run(page, most, WORD_PRESENT | WORD_EXCLUSIVE)
    }

    /// Of the `count` pages from `page` (a page number) on: how many are in memory and mapped by others,
    /// too.
    pub fn shared(&self, page: u64, count: u64) -> io::Result<u64> {
        let (mut at, mut shared) = (page, 0);
        while at < page + count {
            let most = (page + count - at).min(EXCLUSIVE_RUN_MAX as u64) as usize;
            let mut words = [0; 8 * EXCLUSIVE_RUN_MAX];
            let words = self.words(at, &mut words[..8 * most])?;
            let others = |word: &u64| word & (WORD_PRESENT | WORD_EXCLUSIVE) == WORD_PRESENT;
            shared += words.filter(others).count() as u64;
            at += most as u64;
        }
        Ok(shared)
    }

    /// Whether page number `page` is in memory and mapped.
    pub fn is_present(&self, page: u64) -> io::Result<bool> {
        Ok(self.run(page, 1, WORD_PRESENT)? == 1)
    }

    /// Of the `count` pages from `page` (a page number) on: which have nothing at their place, neither a
    /// page, in memory or in the kernel's swap, nor a marker, of a guard or of a lost page. Each of these
    /// shows as swapped, on every kernel that has it. So does the marker of write protection, under which
    /// there is nothing; it alone says that it is one.
    pub fn vacant(&self, page: u64, count: usize) -> io::Result<Vec<bool>> {
        let mut words = vec![0; 8 * count];
        let is_vacant =
            |word| word & WORD_PRESENT == 0 && word & (WORD_SWAP | WORD_PROTECTED) != WORD_SWAP;
        let mut vacant: Vec<bool> = self.words(page, &mut words)?.map(is_vacant).collect();
        // Beyond the last address there is room for nothing.
        vacant.resize(count, false);
        Ok(vacant)
    }

    /// How many pages in a row have all of `bits`.
    fn run(&self, page: u64, most: usize, bits: u64) -> io::Result<usize> {
        let mut words = [0; 8 * EXCLUSIVE_RUN_MAX];
        let words = self.words(page, &mut words[..8 * most.min(EXCLUSIVE_RUN_MAX)])?;
        Ok(words.take_while(|word| word & bits == bits).count())
    }

    /// The words of the pages from `page` on, as many as `buffer` has room for and there are.
    fn words<'a>(
        &self,
        page: u64,
        buffer: &'a mut [u8],
    ) -> io::Result<impl Iterator<Item = u64> + use<'a>> {
        let got = self.file.read_at(buffer, page * 8)?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("chunks of eight"));
        Ok(buffer[..got].chunks_exact(8).map(word))
    }

    fn scan(
        &self,
        start: u64,
        end: u64,
        wanted: Wanted,
        mut found: impl FnMut(u64, u64),
    ) -> io::Result<()> {
        let mut regions = [Region::default(); REGIONS_MAX];
        let mut from = start;
        while from < end {
            let (got, stop) = self.scan_some(from, end, wanted, 0, &mut regions)?;
            for region in &regions[..got] {
                found(region.start, region.end);
            }
            if stop <= from {
                break;
            }
            from = stop;
        }
        Ok(())
    }

    /// One call: how many regions it found, and where it stopped. `pages_max` 0: any number of pages.
    fn scan_some(
        &self,
        start: u64,
        end: u64,
        wanted: Wanted,
        pages_max: u64,
        regions: &mut [Region; REGIONS_MAX],
    ) -> io::Result<(usize, u64)> {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: 0,
            start,
            end,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: REGIONS_MAX as u64,
            max_pages: pages_max,
            category_inverted: wanted.inverted,
            category_mask: wanted.mask,
            category_anyof_mask: 0,
            return_mask: wanted.told,
        };
        // SAFETY: the argument names a vector of REGIONS_MAX regions that lives through the call.
        let got = unsafe {
            libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, std::ptr::from_mut(&mut arg))
        };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((got as usize, arg.walk_end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_reaches_as_far_as_so_many_pages_do() {
        let pages = 64;
        let mut memory = crate::anon::AnonBuffer::new(pages * 4096).unwrap();
        for page in (0..pages).step_by(2) {
            memory[page * 4096] = 1;
        }
        let start = memory.as_ptr() as u64;
        let map = Pagemap::open(std::process::id()).unwrap();
        let end = start + pages as u64 * 4096;
        let reach = |most| (map.reach(start, end, most).unwrap() - start) / 4096;
        // Up to the next page that there is, or the end.
        assert_eq!(reach(1), 2);
        assert_eq!(reach(10), 20);
        assert_eq!(reach(31), 62);
        assert_eq!(reach(33), 64);
    }
}
