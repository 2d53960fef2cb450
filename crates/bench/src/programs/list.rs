//! List of the programs that the benchmark can run.

use std::path::Path;

use super::error::ProgramsError;
use super::inputs::{self, find};

/// A program and its requirements.
#[derive(Debug)]
pub struct Program {
    /// Name on the command line.
    pub name: &'static str,
    /// Short description.
    pub about: &'static str,
    /// Commands that it needs, each with the Debian package that contains it.
    pub needs: &'static [(&'static str, &'static str)],
    /// Function that makes the input in the program's own folder.
    pub make: fn(&Path) -> Result<(), ProgramsError>,
    /// Command line, run in that folder. The first word is the first of `needs`.
    pub command: &'static [&'static str],
    /// How the benchmark uses the program.
    pub use_: Use,
}

/// How the benchmark uses a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// The program runs to its end, and its output is checked.
    Once,
    /// The program serves the client in `redis`. The answers are checked, and the client's time
    /// counts.
    Redis,
}

/// All programs.
pub const PROGRAMS: &[Program] = &[
    Program {
        name: "perl-table",
        about: "the demo's table of 100,000 rows",
        needs: &[("perl", "perl-base")],
        make: |folder| inputs::write(folder, "table.pl", include_str!("sources/table.pl")),
        command: &["perl", "table.pl"],
        use_: Use::Once,
    },
    Program {
        name: "perl-hash",
        about: "1,200,000 keys looked up at random",
        needs: &[("perl", "perl-base")],
        make: |folder| inputs::write(folder, "hash.pl", include_str!("sources/hash.pl")),
        command: &["perl", "hash.pl"],
        use_: Use::Once,
    },
    Program {
        name: "python-dicts",
        about: "300,000 records by name, changed at random",
        needs: &[("python3", "python3")],
        make: |folder| inputs::write(folder, "dicts.py", include_str!("sources/dicts.py")),
        command: &["python3", "dicts.py"],
        use_: Use::Once,
    },
    Program {
        name: "node-sort",
        about: "900,000 objects sorted by a key",
        needs: &[("node", "nodejs")],
        make: |folder| inputs::write(folder, "sort.js", include_str!("sources/sort.js")),
        // Without this option the size of the heap would depend on the cgroup.
        command: &["node", "--max-old-space-size=2048", "sort.js"],
        use_: Use::Once,
    },
    Program {
        name: "java",
        about: "a map of a million entries, some always replaced",
        needs: &[("java", "default-jdk-headless"), ("javac", "default-jdk-headless")],
        make: inputs::java,
        command: &["java", "-XX:+UseG1GC", "-XX:-UseContainerSupport", "-Xmx384m", "Churn"],
        use_: Use::Once,
    },
    Program {
        name: "sqlite",
        about: "a table of 500,000 rows in memory, with an index",
        needs: &[("python3", "python3")],
        make: |folder| inputs::write(folder, "memory.py", include_str!("sources/memory.py")),
        command: &["python3", "memory.py"],
        use_: Use::Once,
    },
    Program {
        name: "redis",
        about: "GET of 4 KiB values, keys by zipf",
        needs: &[("redis-server", "redis-server")],
        make: |_| Ok(()),
        command: &[
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            "redis.sock",
            "--save",
            "",
            "--logfile",
            "redis.log",
        ],
        use_: Use::Redis,
    },
    Program {
        name: "gcc",
        about: "a file of 9 MB, -O1",
        needs: &[("gcc", "gcc")],
        make: inputs::c,
        command: &["gcc", "-O1", "-S", "-o", "-", "large.c"],
        use_: Use::Once,
    },
    Program {
        name: "sort",
        about: "2,500,000 lines, -S 400M",
        needs: &[("sort", "coreutils")],
        make: inputs::lines,
        command: &["sort", "-S", "400M", "--parallel=2", "lines"],
        use_: Use::Once,
    },
];

/// Returns the names of all programs, for a message.
pub fn names() -> String {
    PROGRAMS.iter().map(|program| program.name).collect::<Vec<_>>().join(", ")
}

/// Returns the named programs in this order, or all if no name is given.
pub fn chosen(names: &[String]) -> Result<Vec<&'static Program>, ProgramsError> {
    if names.is_empty() {
        return Ok(PROGRAMS.iter().collect());
    }
    let find = |name: &String| {
        let found = PROGRAMS.iter().find(|program| program.name == name);
        found.ok_or_else(|| ProgramsError::Unknown(name.clone()))
    };
    names.iter().map(find).collect()
}

impl Program {
    /// Returns the Debian package of the first missing command.
    pub fn missing(&self) -> Option<&'static str> {
        let gone = self.needs.iter().find(|(command, _)| find(command).is_none());
        gone.map(|(_, package)| *package)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), PROGRAMS.len());
        let two = chosen(&["sort".into(), "gcc".into()]).unwrap();
        assert_eq!(two.iter().map(|program| program.name).collect::<Vec<_>>(), ["sort", "gcc"]);
        assert!(chosen(&["emacs".into()]).unwrap_err().to_string().contains("perl-hash"));
    }

    #[test]
    fn each_program_needs_what_it_runs() {
        for program in PROGRAMS {
            assert_eq!(program.command[0], program.needs[0].0);
        }
    }
}
