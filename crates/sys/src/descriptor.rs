//! Handles descriptors from processes that may be hostile.
//!
//! The server of a file system can make nearly every call on its files wait for ever, even `close`.
//! The calls in this module ask no file system.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Returns whether the descriptor is a userfaultfd.
#[must_use]
pub fn is_userfaultfd(fd: &impl AsFd) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    // The name of a file would begin with a slash.
    std::fs::read_link(path).is_ok_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Closes the descriptor in another thread, without waiting for that.
pub fn close_aside(fd: OwnedFd) {
    // If no thread can be started, this thread closes the descriptor.
    let _ = std::thread::Builder::new().stack_size(64 << 10).spawn(move || drop(fd));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_userfaultfd_is_taken_for_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("anon_inode:[userfaultfd]");
        let file = std::fs::File::create(&path).unwrap();
        assert!(!is_userfaultfd(&file));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::empty()).unwrap();
        assert!(!is_userfaultfd(&event));
        if let Ok(uffd) = crate::uffd::Uffd::create(true) {
            assert!(is_userfaultfd(&uffd));
        }
    }
}
