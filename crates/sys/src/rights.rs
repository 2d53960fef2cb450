//! Manages the right that this process has beyond its user's rights: `CAP_SYS_PTRACE`, from the
//! capabilities of its file.
//!
//! * RIGHTS-1: from [`lower`] on the capability is permitted but not effective. A thread makes it
//!   effective for itself, for the calls that need it. Before that the thread checks whose process
//!   the calls concern ([`crate::handle::Credentials::are_of`]).
//! * RIGHTS-2: root gives up no capability, and so need not take one up again.

use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use std::io;
use std::sync::OnceLock;

/// Returns the real user of this process.
#[must_use]
pub fn user() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Returns the real group of this process.
#[must_use]
pub fn group() -> u32 {
    rustix::process::getgid().as_raw()
}

/// Returns the ambient capabilities: the user passes them to any program, whatever the program's
/// file grants. No code of Ebb changes them, so one read of `/proc/self/status` is enough.
#[must_use]
pub fn of_user() -> u64 {
    static AMBIENT: OnceLock<u64> = OnceLock::new();
    *AMBIENT.get_or_init(|| crate::process::capabilities("CapAmb"))
}

/// Limits this thread, and threads that it starts, to the user's own rights. Only [`tracing`] takes
/// the capability up again.
pub fn lower() -> io::Result<()> {
    if user() == 0 {
        return Ok(());
    }
    let held = capabilities(None)?;
    // Ambient capabilities stay for the program, as without Ebb.
    let handed_down = CapabilitySet::from_bits_retain(of_user());
    let permitted = held.permitted & (CapabilitySet::SYS_PTRACE | handed_down);
    let effective = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective, permitted, ..held })?)
}

/// `CAP_SYS_PTRACE` made effective for this thread, as long as this value lives.
#[derive(Debug)]
pub struct Tracing {
    before: Option<CapabilitySets>,
}

/// Makes the capability effective, if the process has it.
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
            // The kernel always grants a reduction.
            let _ = set_capabilities(None, before);
        }
    }
}

/// Calls `action`, which may use this process's own files in `/proc`. Those files belong to root
/// while the process has more rights than its user. Other processes gain no access meanwhile,
/// because tracing a process requires every right that it has.
pub fn with_own_files<T>(action: impl FnOnce() -> T) -> T {
    let hidden =
        matches!(dumpable_behavior(), Ok(behavior) if behavior != DumpableBehavior::Dumpable);
    if hidden {
        // If this fails, the files stay root's, and the action reports that.
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

    /// Runs as root: shows that the capability is dropped again and that nothing else changes.
    #[test]
    fn a_raised_capability_is_dropped_again() {
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
