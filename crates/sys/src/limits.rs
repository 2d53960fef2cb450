//! Resource limits (`ulimit`): Ebb's own processes lift their limits as far as permitted, and the
//! program keeps its limits.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Resource, by the shell option of its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// `ulimit -t`, in seconds.
    CpuTime,
    /// `ulimit -f`.
    FileSize,
    /// `ulimit -d`.
    Data,
    /// `ulimit -v`.
    AddressSpace,
    /// `ulimit -n`.
    Descriptors,
    /// `ulimit -l`.
    Locked,
    /// `ulimit -u`.
    Processes,
    /// `ulimit -s`.
    Stack,
}

/// Limits that Ebb's own processes lift.
const ALL: [Limit; 7] = [
    Limit::CpuTime,
    Limit::FileSize,
    Limit::Data,
    Limit::AddressSpace,
    Limit::Descriptors,
    Limit::Locked,
    Limit::Processes,
];

impl Limit {
    fn number(self) -> libc::__rlimit_resource_t {
        match self {
            Self::CpuTime => libc::RLIMIT_CPU,
            Self::FileSize => libc::RLIMIT_FSIZE,
            Self::Data => libc::RLIMIT_DATA,
            Self::AddressSpace => libc::RLIMIT_AS,
            Self::Descriptors => libc::RLIMIT_NOFILE,
            Self::Locked => libc::RLIMIT_MEMLOCK,
            Self::Processes => libc::RLIMIT_NPROC,
            Self::Stack => libc::RLIMIT_STACK,
        }
    }

    fn get(self) -> libc::rlimit {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure outlives the call, which knows every resource of `number`.
        unsafe { libc::getrlimit(self.number(), &raw mut limit) };
        limit
    }

    fn set(self, limit: libc::rlimit) -> bool {
        // SAFETY: the structure outlives the call.
        unsafe { libc::setrlimit(self.number(), &raw const limit) == 0 }
    }

    /// Returns the soft limit of this process; None for "unlimited".
    #[must_use]
    pub fn now(self) -> Option<u64> {
        let soft = self.get().rlim_cur;
        (soft != libc::RLIM_INFINITY).then_some(soft)
    }
}

/// Limits of this process before it lifted them.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    limits: [libc::rlimit; ALL.len()],
}

impl Limits {
    /// Lifts the limits of this process: entirely if permitted, else up to the hard limits. Returns
    /// the earlier limits.
    #[must_use]
    pub fn lift() -> Self {
        let limits = ALL.map(Limit::get);
        for (limit, was) in ALL.into_iter().zip(limits) {
            let none =
                libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
            if !limit.set(none) {
                limit.set(libc::rlimit { rlim_cur: was.rlim_max, ..was });
            }
        }
        Self { limits }
    }

    /// Has the program started by `command` begin with the earlier limits.
    pub fn keep_for(self, command: &mut Command) {
        // SAFETY: the hook only calls the kernel.
        unsafe {
            command.pre_exec(move || {
                self.restore();
                Ok(())
            });
        }
    }

    /// Restores the earlier limits of this process.
    pub fn restore(&self) {
        for (limit, was) in ALL.into_iter().zip(self.limits) {
            limit.set(was);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a separate process, because limits apply to the whole process.
    #[test]
    fn limits_that_the_pager_sheds_come_back_for_a_program() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -St; ulimit -Ht"]);
        // SAFETY: the hook only calls the kernel.
        unsafe {
            command.pre_exec(|| {
                Limit::CpuTime.set(libc::rlimit { rlim_cur: 100, rlim_max: 200 });
                let was = Limits::lift();
                assert!(Limit::CpuTime.now().is_none_or(|now| now == 200));
                was.restore();
                Ok(())
            });
        }
        assert_eq!(command.output().unwrap().stdout, b"100\n200\n");
    }
}
