//! `ebb doctor` lists the features that Ebb needs or can use, whether each exists, and how to get
//! it.
//!
//! A line comes from an attempt to use the feature where that is possible (see `probes`). The other
//! lines come from the settings and limits of this machine. `why_not` is the short form that `ebb
//! run` calls before it starts anything.

use crate::check::Check;
use crate::probes;
use ebb_pager::FEATURES;
use ebb_sys::probe;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Version of the JSON form of the report.
const SCHEMA: u32 = 1;
/// Column at which results begin.
const NAME_WIDTH: usize = 30;

#[derive(clap::Args)]
#[command(after_help = "\
Exit status: 0 if `ebb run` can work here, 1 if something it requires is missing.

Examples:
  ebb doctor
  ebb doctor --format json | python3 -m json.tool")]
pub struct Arguments {
    /// Form of the answer
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Serialize)]
struct Answer<'a> {
    schema: u32,
    can_run: bool,
    checks: &'a [Check],
}

fn can_run(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.found || !check.required)
}

/// Runs all checks and prints their results.
pub fn doctor(arguments: &Arguments) -> ExitCode {
    let checks = probes::all();
    let can_run = can_run(&checks);
    let text = match arguments.format {
        Format::Text => text(&checks),
        Format::Json => {
            let answer = Answer { schema: SCHEMA, can_run, checks: &checks };
            serde_json::to_string_pretty(&answer).expect("plain data") + "\n"
        }
    };
    // A closed pipe is no failure: the reader has read as much as it wants.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    ExitCode::from(u8::from(!can_run))
}

fn text(checks: &[Check]) -> String {
    let mut out = String::new();
    for check in checks {
        let mark = match (check.found, check.required) {
            (true, _) => "ok      ",
            (false, true) => "MISSING ",
            (false, false) => "absent  ",
        };
        let name = check.name;
        let _ = write!(out, "{mark}{name:<NAME_WIDTH$}  {}", check.detail);
        let or = if check.fix.is_empty() { "; get it: " } else { "; or " };
        let parts =
            [("; ", &check.consequence), ("; get it: ", &check.fix), (or, &check.otherwise)];
        for (before, part) in parts {
            if !part.is_empty() {
                let _ = write!(out, "{before}{part}");
            }
        }
        out.push('\n');
    }
    let missing = checks.iter().filter(|check| check.required && !check.found).count();
    out += &match missing {
        0 => "ebb run can work here\n".to_owned(),
        1 => "ebb run cannot work here: 1 required thing is missing\n".to_owned(),
        n => format!("ebb run cannot work here: {n} required things are missing\n"),
    };
    out
}

/// Returns in one line why `ebb run` cannot work here, or `None` if it can. Cheap: a few system
/// calls.
pub fn why_not() -> Option<String> {
    let what = if let Err(error) = probe::userfaultfd_of_program() {
        match error.kind() {
            std::io::ErrorKind::WouldBlock => format!(
                "ebb cannot start a thread here ({error}): check the limit of processes (ulimit -u) or of \
                 the control group (pids.max)"
            ),
            _ => format!("programs may not create a userfaultfd here ({error})"),
        }
    } else if let Err(error) = probe::features_granted(FEATURES) {
        match error.raw_os_error() {
            Some(1) => "ebb may not follow forks (it needs CAP_SYS_PTRACE, or root)".to_owned(),
            _ => format!("the kernel lacks a feature of userfaultfd ({error}); Linux 6.8 has all"),
        }
    } else if let Err(error) = probe::scan_pages() {
        format!("the kernel cannot scan page maps ({error}); Linux 6.7 can")
    } else {
        return None;
    };
    Some(format!("{what}; ebb started nothing; `ebb doctor` shows the remedy"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> [Check; 3] {
        [
            Check::found("one", true, "seen"),
            Check::missing("two", false, "no ring", "slower reads", "sysctl -w a=0").or("hope"),
            Check::found("three", false, "on"),
        ]
    }

    #[test]
    fn each_check_is_one_line_with_its_consequence_and_its_fix() {
        let mut checks = sample();
        let lines = text(&checks);
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("ok      one ") && lines[0].ends_with("  seen"));
        assert!(lines[1].starts_with("absent  two "));
        assert!(lines[1].ends_with("no ring; slower reads; get it: sysctl -w a=0; or hope"));
        checks[1].fix.clear();
        assert!(text(&checks).contains("slower reads; get it: hope\n"));
        assert_eq!(lines[3], "ebb run can work here");
        checks[1].required = true;
        assert!(text(&checks).contains("MISSING two "));
        assert!(text(&checks).ends_with("1 required thing is missing\n"));
    }

    #[test]
    fn only_a_missing_requirement_stops_a_run() {
        let mut checks = sample();
        assert!(can_run(&checks));
        checks[1].required = true;
        assert!(!can_run(&checks));
    }

    #[test]
    fn the_reason_against_a_run_agrees_with_the_checks() {
        let reason = why_not();
        assert_eq!(why_not(), reason);
        if reason.is_some() {
            assert!(!can_run(&probes::all()), "{reason:?}");
        }
    }
}
