//! The times of faults, by kind and stage (`ebb stat --faults`).

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident $key:literal $text:literal,)+) => {
        /// Kinds of faults, by the page that the fault found.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum FaultKind { $($(#[doc = $doc])+ #[serde(rename = $key)] $name),+ }

        impl FaultKind {
            /// All kinds.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$name),+];
            /// Number of kinds.
            pub const COUNT: usize = [$($key),+].len();

            /// Returns the name for tables.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }

            /// Returns the name for programs.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self { $(Self::$name => $key),+ }
            }
        }
    };
}

kinds! {
    /// No page yet; the fault gets a zero page.
    Zero "zero_page" "zero page",
    /// A standby page.
    Reactivate "standby" "standby",
    /// A page in compressed memory.
    Compressed "compressed" "compressed",
    /// A stored page that repeats one word.
    Same "same_filled" "same-filled",
    /// A page in a file.
    File "file" "file",
    /// A page on another machine.
    Remote "remote" "remote",
    /// A page that is being loaded already, as readahead or for another thread.
    Ahead "read_ahead" "read-ahead",
    /// A resident page that is write-protected.
    Protected "protected" "protected",
    /// A page that has become resident meanwhile, or a hole in its place.
    There "there_already" "there already",
}

/// Durations of a stage, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Took {
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// Duration that 99 of 100 did not exceed.
    pub p99_ns: u64,
}

/// Durations of the stages of one kind of fault, in the order of time, and of the whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Stages {
    /// From the fault to the reading of its message: an estimate.
    pub fault_to_read: Took,
    /// Part of that time in which a fault thread waited for the lock of the address space.
    pub lock: Took,
    /// From the reading to the start of the fetch.
    pub look_up: Took,
    /// Fetching the content of the page.
    pub content: Took,
    /// Placing the page, and recording it.
    pub place: Took,
    /// From then until the faulting thread is woken.
    pub wake: Took,
    /// From waking until the thread runs: an estimate.
    pub wake_to_run: Took,
    /// Work of the kernel in the thread itself: an estimate.
    pub in_thread: Took,
    /// From the fault until the thread runs again: an estimate.
    pub all: Took,
}

impl Stages {
    /// Returns the rows of the table. A star marks an estimate.
    fn rows(&self) -> [(&'static str, Took); 9] {
        [
            ("fault->read *", self.fault_to_read),
            ("  of it lock", self.lock),
            ("look-up", self.look_up),
            ("content", self.content),
            ("place", self.place),
            ("wake", self.wake),
            ("->runs *", self.wake_to_run),
            ("in thread *", self.in_thread),
            ("all *", self.all),
        ]
    }
}

/// Figures of one kind of fault.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Kind.
    pub kind: FaultKind,
    /// Number of faults.
    pub count: u64,
    /// Durations of the stages.
    pub stages: Stages,
}

/// Figures of all faults. The text is the table of `ebb stat --faults`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Number of faults.
    pub count: u64,
    /// Time from fault to running again, summed over all faults: an estimate.
    pub waited_ns: u64,
    /// Part of it that the fault threads see, from reading to waking.
    pub served_ns: u64,
    /// Mean time of all faults before the reading.
    pub fault_to_read_ns: u64,
    /// Mean time of all faults after waking.
    pub wake_to_run_ns: u64,
    /// Mean time of the kernel in the thread itself.
    pub in_thread_ns: u64,
    /// Mean time for which a woken thread is kept from running on its CPU.
    pub driven_off_ns: u64,
    /// Time for which faulting threads were kept off their CPU between faults, summed: an estimate.
    pub kept_off_ns: u64,
    /// Durations of all faults from fault to running again.
    pub all: Took,
    /// Number of faults on which the estimate rests.
    pub faults_followed: u64,
    /// Number of sample windows without a result.
    pub windows_unclear: u64,
    /// Share of faults served on the CPU of the program's thread, in permille.
    pub on_own_cpu_permille: Option<u64>,
    /// The kinds of faults that occurred.
    pub kinds: Vec<Row>,
}

impl Faults {
    /// Returns the share of faults served on the program's own CPU, in words.
    #[must_use]
    pub fn own_cpu(&self) -> String {
        self.on_own_cpu_permille.map_or_else(
            || "no sample of the CPUs".to_owned(),
            |share| format!("{:.0} % served on the program's own CPU", share as f64 / 10.0),
        )
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14} {:<13} {:>10} {:>9} {:>9} {:>9}",
            "kind", "stage", "faults", "mean us", "p50 us", "p99 us"
        )?;
        for Row { kind, count, stages } in &self.kinds {
            for (stage, took) in stages.rows() {
                let [mean, p50, p99] =
                    [took.mean_ns, took.p50_ns, took.p99_ns].map(|ns| ns as f64 / 1e3);
                writeln!(
                    f,
                    "{:<14} {stage:<13} {count:>10} {mean:>9.2} {p50:>9.2} {p99:>9.2}",
                    kind.name()
                )?;
            }
        }
        writeln!(
            f,
            "{} faults; threads waited {:.3} s, {:.3} s of it between reading and waking; {}",
            self.count,
            self.waited_ns as f64 / 1e9,
            self.served_ns as f64 / 1e9,
            self.own_cpu()
        )?;
        writeln!(
            f,
            "* estimated from {} faults; {} sample windows gave no result",
            self.faults_followed, self.windows_unclear
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_and_the_json_have_each_stage() {
        let content = Took { mean_ns: 500, p50_ns: 450, p99_ns: 1000 };
        let stages = Stages { content, ..Stages::default() };
        let kinds = vec![Row { kind: FaultKind::Reactivate, count: 10, stages }];
        let faults = Faults { count: 10, kinds, ..Faults::default() };
        let text = faults.to_string();
        assert_eq!(text.lines().count(), 1 + 9 + 2, "{text}");
        let line = "standby        content               10      0.50      0.45      1.00\n";
        assert!(text.contains(line), "{text}");
        let json: serde_json::Value = serde_json::to_value(&faults).expect("JSON");
        assert_eq!(json["kinds"][0]["kind"], "standby");
        assert_eq!(json["kinds"][0]["stages"]["content"]["mean_ns"], 500);
        assert!(json["on_own_cpu_permille"].is_null());
    }

    #[test]
    fn the_keys_of_kinds_are_their_json() {
        for kind in FaultKind::ALL {
            assert_eq!(serde_json::to_value(kind).expect("JSON"), kind.key());
        }
    }
}
