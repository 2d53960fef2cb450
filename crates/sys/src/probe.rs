//! Probes of the kernel's permissions: each function makes the real call once, in scratch memory.
//!
//! Nothing is concluded from version numbers, because containers, sandboxes and backports make them
//! misleading.

use crate::anon::AnonBuffer;
use crate::memory::Memory;
use crate::pagemap::Pagemap;
use crate::process::{self, CAP_SYS_PTRACE};
use crate::rights;
use crate::uffd::{Event, Mode, Uffd};
use std::io;
use std::process::{Child, Command, Stdio};
use std::thread::Builder;
use std::time::Duration;

const PAGE: usize = 4096;

/// Returns whether a program that this process starts will have `CAP_SYS_PTRACE`. The program does
/// not inherit a capability of this executable's file, but it inherits root's.
#[must_use]
pub fn program_may_trace() -> bool {
    let bit = 1 << CAP_SYS_PTRACE;
    let root = rustix::process::geteuid().is_root();
    process::capabilities("CapAmb") & bit != 0
        || (root && process::capabilities("CapBnd") & bit != 0)
}

/// Creates a userfaultfd as the program will, by the system call or by `/dev/userfaultfd`. It is
/// for faults in the kernel, too. The thread that creates it has no capability that only this
/// executable has.
pub fn userfaultfd_of_program() -> io::Result<Uffd> {
    if program_may_trace() {
        return Uffd::create(false);
    }
    // Capabilities belong to threads: this thread gives its own up and ends.
    let attempt = Builder::new().spawn(|| {
        process::drop_capabilities_of_thread()?;
        Uffd::create(false)
    })?;
    attempt.join().unwrap_or_else(|_| Err(io::Error::other("the attempt panicked")))
}

/// Returns the features that the kernel has, permitted or not.
pub fn features_known() -> io::Result<u64> {
    Uffd::create(false).or_else(|_| Uffd::create(true))?.handshake(0)
}

/// Agrees with the kernel on all of `features` together.
pub fn features_granted(features: u64) -> io::Result<()> {
    let _tracing = rights::tracing();
    Uffd::create(false).or_else(|_| Uffd::create(true))?.handshake(features).map(|_| ())
}

/// Moves a page to another address and checks its content there.
pub fn move_a_page(feature: u64) -> io::Result<()> {
    let uffd = Uffd::create(false).or_else(|_| Uffd::create(true))?;
    uffd.handshake(feature)?;
    let (mut from, to) = (AnonBuffer::new(PAGE)?, AnonBuffer::new(PAGE)?);
    from.fill(0x5A);
    uffd.register(to.as_ptr() as u64, PAGE as u64, Mode::Quiet)?;
    // SAFETY: this function owns both buffers and drops them below.
    unsafe { uffd.move_here(to.as_ptr() as u64, from.as_ptr() as u64, PAGE as u64) }?;
    // The page is read through the kernel, because the compiler does not know of the move.
    let mut seen = [[0; PAGE]];
    process::read_pages(std::process::id(), &[to.as_ptr() as u64], &mut seen)?;
    if seen[0].iter().all(|&byte| byte == 0x5A) {
        Ok(())
    } else {
        Err(io::Error::other("the page arrived with other content"))
    }
}

/// Makes the kernel itself fault on a missing page, and resolves the fault.
pub fn serve_the_kernel() -> io::Result<()> {
    let uffd = Uffd::create(false)?;
    uffd.handshake(0)?;
    let buffer = AnonBuffer::new(PAGE)?;
    let address = buffer.as_ptr() as u64;
    uffd.register(address, PAGE as u64, Mode::Managed)?;
    let toucher = Builder::new().spawn(move || {
        let mut pages = [[1; PAGE]];
        process::read_pages(std::process::id(), &[address], &mut pages).map(|_| pages[0])
    })?;
    // The kernel sends a message, or ends the access with an error.
    let mut events = Vec::new();
    while events.is_empty() && !toucher.is_finished() {
        uffd.read(|event| events.push(event))?;
        std::thread::sleep(Duration::from_micros(50));
    }
    let served = events.iter().any(|event| matches!(event, Event::Fault { .. }));
    if served {
        uffd.copy(address, &[7; PAGE]).map_err(|(_, error)| io::Error::other(error))?;
        uffd.wake(address, PAGE as u64)?;
    } else {
        // Wakes the accessing thread, whatever it waits for.
        uffd.unregister(address, PAGE as u64)?;
    }
    let seen = toucher.join().map_err(|_| io::Error::other("the touch panicked"))??;
    if served && seen == [7; PAGE] {
        Ok(())
    } else {
        Err(io::Error::other("a fault in the kernel raised no message"))
    }
}

/// Poisons a page of scratch memory, which is never accessed.
pub fn poison_a_page(feature: u64) -> io::Result<()> {
    let uffd = Uffd::create(false).or_else(|_| Uffd::create(true))?;
    uffd.handshake(feature)?;
    let buffer = AnonBuffer::new(PAGE)?;
    uffd.register(buffer.as_ptr() as u64, PAGE as u64, Mode::Managed)?;
    uffd.poison(buffer.as_ptr() as u64, PAGE as u64).map_err(io::Error::other)
}

/// Finds a freshly written page by `PAGEMAP_SCAN`.
pub fn scan_pages() -> io::Result<()> {
    let mut buffer = AnonBuffer::new(2 * PAGE)?;
    buffer[0] = 1;
    let start = buffer.as_ptr() as u64;
    let map = rights::with_own_files(|| Pagemap::open(std::process::id()))?;
    let (runs, _) = map.present(start, start + 2 * PAGE as u64, 2)?;
    if runs == [(start, start + PAGE as u64)] {
        Ok(())
    } else {
        Err(io::Error::other("it misses present pages"))
    }
}

/// Creates an io_uring.
pub fn set_up_ring() -> io::Result<()> {
    io_uring::IoUring::new(4).map(|_| ())
}

/// Reads memory of a child process.
pub fn read_a_child() -> io::Result<()> {
    struct Killed(Child);
    impl Drop for Killed {
        fn drop(&mut self) {
            // The child may have ended by itself.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let child = Command::new("/bin/cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
    let child = Killed(child);
    let areas = crate::proc::areas(child.0.id())?;
    let first = areas.first().ok_or_else(|| io::Error::other("the child has no memory"))?;
    match Memory::open(child.0.id())?.read_pages(&[first.start], &mut [[0; PAGE]])? {
        1 => Ok(()),
        _ => Err(io::Error::other("the kernel returned no page")),
    }
}

/// Returns a limit of this process as `(soft, hard)`, None for "no limit".
#[must_use]
pub fn limit(which: rustix::process::Resource) -> (Option<u64>, Option<u64>) {
    let limit = rustix::process::getrlimit(which);
    (limit.current, limit.maximum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uffd::feature;

    #[test]
    fn a_thread_without_capabilities_leaves_the_others_theirs() {
        let before = process::capabilities("CapEff");
        std::thread::spawn(|| {
            process::drop_capabilities_of_thread().expect("giving up is always permitted");
            let text = std::fs::read_to_string("/proc/thread-self/status").expect("status");
            assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
        })
        .join()
        .expect("the thread ends well");
        assert_eq!(process::capabilities("CapEff"), before);
    }

    #[test]
    fn userfaultfd_features_that_the_kernel_grants_work() {
        let Ok(known) = features_known() else {
            ebb_testing::skip("userfaultfd is refused here");
        };
        if known & feature::MOVE != 0 {
            move_a_page(feature::MOVE).expect("MOVE is granted and works");
        }
        if known & feature::POISON != 0 {
            poison_a_page(feature::POISON).expect("POISON is granted and works");
        }
        if Uffd::create(false).is_ok() {
            // `eventually` gives up if nothing happens for two seconds.
            ebb_testing::eventually("faults of the kernel to be served", || {
                serve_the_kernel().is_ok()
            });
        }
    }

    #[test]
    fn an_unknown_feature_is_refused() {
        assert!(features_known().is_err() || features_granted(1 << 62).is_err());
    }

    #[test]
    fn a_child_can_be_read_or_the_error_says_why() {
        if let Err(error) = read_a_child() {
            assert!(error.raw_os_error().is_some(), "{error}");
        }
    }
}
