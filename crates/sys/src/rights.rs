//! What this process may do that its user may not: CAP_SYS_PTRACE, from the capabilities of its file.
//!
//! * RIGHTS-1: the right lies unused (not effective) from [`lay_down`] on; it is taken up by one thread at a time, for
//!   the calls that need it, after it was seen whom they concern ([`crate::handle::Credentials::are_of`]).
//! * RIGHTS-2: root is root: nothing is laid down, and nothing need be taken up.

use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::io;

/// The user that really started this process.
#[must_use]
pub fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The group that this process really is of.
#[must_use]
pub fn group() -> u32 {
    rustix::process::getgid().as_raw()
}

/// Capabilities that the user has, whatever the file of this program gives: those handed down to any program.
#[must_use]
pub fn of_user() -> u64 {
    crate::process::capabilities("CapAmb")
}

/// Nothing more than its user may do can be done from now on, by this thread and those it starts, but for what is
/// [taken up](tracing).
pub fn lay_down() -> io::Result<()> {
    if user() == 0 {
        return Ok(());
    }
    let held = capabilities(None)?;
    // What is handed down is the program's, too, as it would be without Ebb.
    let handed_down = CapabilitySet::from_bits_retain(of_user());
    let permitted = held.permitted & (CapabilitySet::SYS_PTRACE | handed_down);
    let effective = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, ..held })?)
}

/// CAP_SYS_PTRACE in use by this thread, as long as this lives.
#[derive(Debug)]
pub struct Tracing {
    before: Option<CapabilitySets>,
}

/// Takes the right up, if there is one.
#[must_use]
pub fn tracing() -> Tracing {
    let right = CapabilitySet::SYS_PTRACE;
    let before = capabilities(None).ok().filter(|held| {
        held.permitted.contains(right)
            && !held.effective.contains(right)
            && set_capabilities(None, CapabilitySets { effective: held.effective | right, ..*held })
                .is_ok()
    });
    Tracing { before }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Less is always granted.
            let _ = set_capabilities(None, before);
        }
    }
}

/// Does something with this process's own files in /proc, which are root's while it has more rights than its user.
/// Nobody else gets at them meanwhile who could not before: to trace a process takes every right that it has.
pub fn with_own_files<T>(action: impl FnOnce() -> T) -> T {
    let hidden =
        matches!(dumpable_behavior(), Ok(behavior) if behavior != DumpableBehavior::Dumpable);
    if hidden {
        // Where that fails the files stay root's, and the action says so.
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
    let result = action();
    if hidden {
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As root in the tests: what is taken up is put down again, and nothing else changes.
    #[test]
    fn a_right_taken_up_is_put_down_again() {
        std::thread::spawn(|| {
            let held = capabilities(None).unwrap();
            let right = CapabilitySet::SYS_PTRACE;
            if !held.permitted.contains(right) {
                ebb_testing::skip("only root may trace any process");
            }
            let without = CapabilitySets { effective: held.effective - right, ..held };
            set_capabilities(None, without).unwrap();
            {
                let _tracing = tracing();
                assert!(capabilities(None).unwrap().effective.contains(right));
                drop(tracing());
                assert!(capabilities(None).unwrap().effective.contains(right), "still in use");
            }
            assert_eq!(capabilities(None).unwrap().effective, without.effective);
        })
        .join()
        .unwrap();
    }
}
