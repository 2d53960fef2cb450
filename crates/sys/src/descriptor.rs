//! Descriptors that came from somebody who may mean harm.
//!
//! Nearly every call on a file can be made to wait for ever by who serves the file system that it is in, closing
//! it included. What is asked here asks no file system.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Whether it is a userfaultfd.
#[must_use]
pub fn is_userfaultfd(fd: &impl AsFd) -> bool {
    let path = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    // A file's name would begin with a slash.
    std::fs::read_link(path).is_ok_and(|name| name.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Closes it, without waiting for that.
pub fn close_aside(fd: OwnedFd) {
    // Without a thread for it, it is closed here.
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
