//! Secret of a few bytes that is only in memory. It is never swapped out, is in no core dump and in
//! no forked child, and is overwritten on drop.

use crate::anon::AnonBuffer;
use rustix::mm::{Advice, madvise, mlock};
use std::fmt;
use std::io;
use zeroize::Zeroize;

/// Secret of `N` bytes on its own locked page.
pub struct Secret<const N: usize> {
    page: AnonBuffer,
}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl<const N: usize> Secret<N> {
    /// Creates a secret of random bytes from the kernel.
    ///
    /// # Errors
    ///
    /// The page cannot be mapped, locked (`ulimit -l`) or kept out of dumps and children.
    pub fn random() -> io::Result<Self> {
        const { assert!(N > 0 && N <= 256, "the kernel gives as much at once") };
        let mut page = AnonBuffer::new(N)?;
        let base = page.as_mut_ptr();
        for advice in [Advice::LinuxDontDump, Advice::LinuxWipeOnFork] {
            // SAFETY: the page is the buffer's own (ANON-1 in `anon.rs`), and the advice changes
            // nothing in this process.
            unsafe { madvise(base.cast(), page.len(), advice) }?;
        }
        // SAFETY: the page is the buffer's own; unmapping it ends the lock.
        unsafe { mlock(base.cast(), page.len()) }?;
        let got = rustix::rand::getrandom(&mut page[..N], rustix::rand::GetRandomFlags::empty())?;
        if got < N {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self { page })
    }

    /// Returns the bytes. The caller must erase every copy of them.
    #[must_use]
    pub fn expose(&self) -> &[u8; N] {
        self.page.first_chunk().expect("a page is larger")
    }
}

impl<const N: usize> Drop for Secret<N> {
    fn drop(&mut self) {
        self.page[..N].zeroize();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the flags of the mapping that holds an address, as smaps shows them.
    fn flags(address: usize) -> String {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let mut inside = false;
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let ends = range.and_then(|(start, end)| {
                let hex = |text| usize::from_str_radix(text, 16).ok();
                Some((hex(start)?, hex(end)?))
            });
            if let Some((start, end)) = ends {
                inside = (start..end).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return format!("{flags} ");
            }
        }
        panic!("{address:#x} is not mapped");
    }

    #[test]
    fn a_secret_is_random_locked_and_in_no_dump_or_child() {
        let (one, other) =
            (Secret::<32>::random().expect("one"), Secret::<32>::random().expect("other"));
        assert_ne!(one.expose(), other.expose());
        let flags = flags(one.expose().as_ptr() as usize);
        for flag in [" lo ", " dd ", " wf "] {
            assert!(flags.contains(flag), "no{flag}in{flags}");
        }
        assert_eq!(format!("{one:?}"), "Secret");
    }
}
