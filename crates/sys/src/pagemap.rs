//! `PAGEMAP_SCAN` and `/proc/PID/pagemap`: which pages of a process are present, exclusive or
//! unmapped.

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
/// Largest number of pages that [`Pagemap::exclusive_run`] looks at.
pub const EXCLUSIVE_RUN_MAX: usize = 256;

/// Filter of a scan.
#[derive(Clone, Copy)]
struct Wanted {
    /// Categories that decide whether a page is wanted, and the ones among them that a wanted page
    /// lacks. The last are the categories that the kernel distinguishes in the result.
    mask: u64,
    inverted: u64,
    told: u64,
}

/// Runs of pages, each with its start and end address.
pub type Runs = Vec<(u64, u64)>;

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

    /// Returns the runs of present pages in a range, and where the scan ended. It ends after `most`
    /// such pages. The shared zero page does not count as present.
    pub fn present(&self, start: u64, end: u64, most: u64) -> io::Result<(Runs, u64)> {
        let mask = PRESENT | ZERO_PAGE;
        self.scan(start, end, Wanted { mask, inverted: ZERO_PAGE, told: PRESENT }, most)
    }

    /// Returns the end of the range from `start` on that has `most` pages in memory. The shared
    /// zero page counts. Returns `end` if there are fewer pages.
    pub fn reach(&self, start: u64, end: u64, most: u64) -> io::Result<u64> {
        let wanted = Wanted { mask: PRESENT, inverted: 0, told: PRESENT };
        self.scan(start, end, wanted, most).map(|(_, stop)| stop)
    }

    /// Returns the runs of pages that are the kernel's shared zero page.
    pub fn zero(&self, start: u64, end: u64) -> io::Result<Runs> {
        let mask = PRESENT | ZERO_PAGE;
        let wanted = Wanted { mask, inverted: 0, told: PRESENT };
        self.scan(start, end, wanted, u64::MAX).map(|(runs, _)| runs)
    }

    /// Returns how many pages in a row, `most` at most, are in memory and mapped by the process
    /// alone. `page` is the number of the first page.
    pub fn exclusive_run(&self, page: u64, most: usize) -> io::Result<usize> {
        self.run(page, most, WORD_PRESENT | WORD_EXCLUSIVE)
    }

    /// Returns how many of `count` pages are in memory and mapped by other processes, too. `page`
    /// is the number of the first page.
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

    /// Returns whether page number `page` is in memory and mapped.
    pub fn is_present(&self, page: u64) -> io::Result<bool> {
        Ok(self.run(page, 1, WORD_PRESENT)? == 1)
    }

    /// Returns which of `count` pages are unmapped. `page` is the number of the first page. An
    /// unmapped page is neither in memory nor in the kernel's swap, and is neither a guard nor
    /// poisoned. Every kernel that has guards and poisoned pages shows them as swapped. A marker of
    /// write protection shows as swapped, too, but its page is unmapped. Only this marker also
    /// shows as write-protected.
    pub fn unmapped(&self, page: u64, count: usize) -> io::Result<Vec<bool>> {
        let mut words = vec![0; 8 * count];
        let is_vacant =
            |word| word & WORD_PRESENT == 0 && word & (WORD_SWAP | WORD_PROTECTED) != WORD_SWAP;
        let mut unmapped: Vec<bool> = self.words(page, &mut words)?.map(is_vacant).collect();
        // Beyond the last address no page can be mapped.
        unmapped.resize(count, false);
        Ok(unmapped)
    }

    /// Returns how many pages from `page` on, in a row, have all of `bits`.
    fn run(&self, page: u64, most: usize, bits: u64) -> io::Result<usize> {
        let mut words = [0; 8 * EXCLUSIVE_RUN_MAX];
        let words = self.words(page, &mut words[..8 * most.min(EXCLUSIVE_RUN_MAX)])?;
        Ok(words.take_while(|word| word & bits == bits).count())
    }

    /// Returns the words of the pages from `page` on, as many as exist and `buffer` has room for.
    fn words<'a>(
        &self,
        page: u64,
        buffer: &'a mut [u8],
    ) -> io::Result<impl Iterator<Item = u64> + use<'a>> {
        let got = self.file.read_at(buffer, page * 8)?;
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("chunks of eight"));
        Ok(buffer[..got].chunks_exact(8).map(word))
    }

    /// Returns the runs of wanted pages, and where the scan ended: after `most` such pages, or at
    /// `end`.
    fn scan(&self, start: u64, end: u64, wanted: Wanted, most: u64) -> io::Result<(Runs, u64)> {
        let mut regions = [Region::default(); REGIONS_MAX];
        let (mut runs, mut from, mut left) = (Vec::new(), start, most);
        while from < end && left > 0 {
            let (got, stop) = self.scan_some(from, end, wanted, left, &mut regions)?;
            for region in &regions[..got] {
                left = left.saturating_sub((region.end - region.start) / 4096);
                runs.push((region.start, region.end));
            }
            if stop <= from {
                return Ok((runs, end));
            }
            from = stop;
        }
        Ok((runs, from.min(end)))
    }

    /// Makes one call. Returns the number of regions found, and the address where the scan stopped.
    /// With `pages_max` 0 the number of pages is unlimited.
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
    fn a_range_reaches_as_far_as_the_wanted_number_of_present_pages() {
        let pages = 64;
        let mut memory = crate::anon::AnonBuffer::new(pages * 4096).unwrap();
        for page in (0..pages).step_by(2) {
            memory[page * 4096] = 1;
        }
        let start = memory.as_ptr() as u64;
        let map = Pagemap::open(std::process::id()).unwrap();
        let end = start + pages as u64 * 4096;
        let reach = |most| (map.reach(start, end, most).unwrap() - start) / 4096;
        // The range reaches up to the next present page, or to the end.
        assert_eq!(reach(1), 2);
        assert_eq!(reach(10), 20);
        assert_eq!(reach(31), 62);
        assert_eq!(reach(33), 64);
        let (runs, stop) = map.present(start, end, 3).unwrap();
        let page = |at: u64| (start + at * 4096, start + (at + 1) * 4096);
        assert_eq!((runs, stop), (vec![page(0), page(2), page(4)], start + 6 * 4096));
    }
}
