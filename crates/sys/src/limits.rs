//! Limits of resources (`ulimit`): Ebb's own processes shed theirs as far as they may, the program keeps
//! them.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// One resource, by what a shell calls its limit.
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

/// Those that are shed.
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

    /// What binds this process; None for "nothing".
    #[must_use]
    pub fn now(self) -> Option<u64> {
        let soft = self.get().rlim_cur;
        (soft != libc::RLIM_INFINITY).then_some(soft)
    }
}

/// The limits as they were.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    limits: [libc::rlimit; ALL.len()],
}

impl Limits {
    /// Lifts those of this process: altogether where that is permitted, else up to the hard ones.
    #[must_use]
    pub fn shed() -> Self {
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

    /// Has the program to be started by `command` begin with what was there before.
    pub fn keep_for(self, command: &mut Command) {
        // SAFETY: the hook only calls the kernel.
        unsafe {
            command.pre_exec(move || {
                self.restore();
                Ok(())
            });
        }
    }

    /// Puts them back.
    pub fn restore(&self) {
        for (limit, was) in ALL.into_iter().zip(self.limits) {
            limit.set(was);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a process of its own: limits are the whole process's.
    #[test]
    fn what_is_shed_comes_back_for_a_program() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -St; ulimit -Ht"]);
        // SAFETY: only calls the kernel.
        unsafe {
            command.pre_exec(|| {
                Limit::CpuTime.set(libc::rlimit { rlim_cur: 100, rlim_max: 200 });
                let was = Limits::shed();
                assert!(Limit::CpuTime.now().is_none_or(|now| now == 200));
                was.restore();
                Ok(())
            });
        }
        assert_eq!(command.output().unwrap().stdout, b"100\n200\n");
    }
}
