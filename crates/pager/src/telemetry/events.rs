//! Events of a run for other programs: a line of JSON for each event (`ebb run --events FILE`).
//!
//! * EVENTS-1: A line is one write to a file opened for appending, so several runs may share a
//!   file.
//! * EVENTS-2: A thread that reports an event waits for no device, because a thread of its own
//!   writes (`Writer`). Lines beyond the limit of waiting ones are lost.
//! * EVENTS-3: A failed write harms nothing. It is reported once. The end of a run waits for a
//!   limited time.
//! * EVENTS-4: The start is the first event, and times rise. Earlier events wait until the
//!   supervisor has reported that the program runs.

use crate::telemetry::unmanaged::Kind;
use crate::telemetry::writer::{WAITING_MAX, Writer};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Reason why every process of a run is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nothing more could be stored, and threads waited without progress.
    OutOfMemory,
    /// The limit `gen.min_ttl_ms` was not met.
    Thrashing,
    /// `--strict` forbids memory that cannot be managed.
    Unmanaged,
    /// No descriptor was left to take another process in.
    OutOfDescriptors,
    /// A process could not be served any more.
    NotServed,
    /// The `ebb run` was killed.
    SupervisorEnded,
    /// The pager was killed.
    PagerEnded,
}

/// Source of a changed limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// `ebb set`.
    Set,
    /// `--pressure-target`.
    PressureTarget,
}

/// An event, with its figures.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The program runs.
    Started {
        /// The program and its arguments.
        command: Vec<String>,
        /// Limit of the run, in bytes.
        memory_max_bytes: u64,
        /// Amount of memory at which reclaim aims, in bytes.
        memory_high_bytes: u64,
    },
    /// The limit has changed. `wanted_bytes` differs from it if the wanted limit could not be
    /// reached wholly.
    LimitChanged {
        /// Source of the change.
        by: By,
        /// Limit now in force, in bytes.
        memory_max_bytes: u64,
        /// Amount of memory at which reclaim aims, in bytes.
        memory_high_bytes: u64,
        /// Resident memory, including compressed memory, in bytes.
        used_bytes: u64,
        /// Limit that was asked for, in bytes.
        wanted_bytes: u64,
    },
    /// Threads lose most of their time waiting for pages.
    Thrashing {
        /// Share of the threads' time in the last ten seconds that was lost to waiting, in percent.
        lost_percent: u64,
        /// Limit of the run, in bytes.
        memory_max_bytes: u64,
        /// Limit that would be enough, in bytes.
        enough_bytes: u64,
    },
    /// A process has memory that counts and cannot be stored.
    Unmanaged {
        /// Name of the process.
        name: String,
        /// Kind of the memory.
        why: Kind,
    },
    /// The run is out of memory.
    Full {
        /// Limit of the run, in bytes.
        memory_max_bytes: u64,
        /// Memory that would be resident if no thread waited, in bytes.
        demand_bytes: u64,
        /// Time that threads have waited, in microseconds.
        waited_us: u64,
        /// Reason why nothing more can be stored.
        why: String,
    },
    /// Every process is killed.
    Killed {
        /// Reason of the kill.
        why: Why,
    },
    /// Every process has ended.
    Ended {
        /// Exit status of the program, as a shell shows it; None if it is unknown.
        exit_status: Option<i32>,
        /// Duration of the run, in microseconds.
        wall_time_us: u64,
        /// Highest amount of resident memory, in bytes.
        peak_resident_bytes: u64,
        /// Number of page faults that were answered.
        faults: u64,
        /// Number of page faults for which a page was read from a tier.
        faults_loaded: u64,
        /// Time that threads have waited, in microseconds.
        waited_us: u64,
    },
}

/// One line of the file.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time_unix_us: u64,
    /// Number of the `ebb run` process.
    run: u32,
    /// Number of the process that the event concerns.
    pid: u32,
    #[serde(flatten)]
    event: &'a Event,
}

/// Returns the line of an event that happens now, with a newline.
#[must_use]
pub fn line(run: u32, pid: u32, event: &Event) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = Line { time_unix_us: since.as_micros() as u64, run, pid, event };
    // The line has only numbers, names and texts, so this cannot fail.
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}

/// Opens the file of events, or standard error for `-`. Does not wait for a reader of a pipe.
///
/// # Errors
/// Fails if the file cannot be written to.
pub fn open(path: &Path) -> Result<File> {
    if path.as_os_str() == "-" {
        return Ok(std::io::stderr().as_fd().try_clone_to_owned()?.into());
    }
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => Ok(file.into()),
        Err(rustix::io::Errno::NXIO) => {
            Err(Error::new(ErrorKind::NotConnected, "no process reads from this pipe"))
        }
        Err(error) => Err(error.into()),
    }
}

/// Sends lines to the thread that writes them.
#[derive(Debug)]
pub struct Events(Mutex<Lines>);

#[derive(Debug)]
struct Lines {
    /// None after the last event.
    writer: Option<Writer>,
    /// Events before the start, with run and process; None after the start (EVENTS-4).
    early: Option<Vec<(u32, u32, Event)>>,
}

impl Lines {
    fn add(&mut self, run: u32, pid: u32, event: &Event) {
        let early = match (event, &mut self.early) {
            (Event::Started { .. }, early) => early.take(),
            (_, Some(early)) => {
                if early.len() < WAITING_MAX {
                    early.push((run, pid, event.clone()));
                }
                return;
            }
            (_, None) => None,
        };
        self.send(line(run, pid, event));
        self.flush(early, pid);
    }

    /// Sends the early events. Process 0 stands for the `program`, whose number was not known.
    fn flush(&self, early: Option<Vec<(u32, u32, Event)>>, program: u32) {
        for (run, pid, event) in early.into_iter().flatten() {
            self.send(line(run, if pid == 0 { program } else { pid }, &event));
        }
    }

    fn send(&self, line: String) {
        if let Some(writer) = &self.writer {
            writer.send(line);
        }
    }
}

impl Events {
    /// Starts a thread that writes to a file. It calls `say` once to report a failure to the user.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or no thread can be started.
    pub fn new(path: &Path, say: impl Fn(&str) + Send + 'static) -> Result<Self> {
        let mut file = open(path)?;
        let name = path.display().to_string();
        let (mut said, mut torn) = (false, false);
        let write = move |line: &str| {
            let result = write_line(&mut file, line, &mut torn);
            if let Err(error) = result
                && !std::mem::replace(&mut said, true)
            {
                say(&format!("--events {name}: {error}; the run goes on, and events are lost"));
            }
        };
        let writer = Some(Writer::start("events", write)?);
        Ok(Self(Mutex::new(Lines { writer, early: Some(Vec::new()) })))
    }

    /// Records an event of process `pid` in run `run`.
    pub fn add(&self, run: u32, pid: u32, event: &Event) {
        self.lines().add(run, pid, event);
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the events. Waits for a limited time until all lines are written.
    pub fn end(&self) {
        let writer = {
            let mut lines = self.lines();
            let early = lines.early.take();
            // Such events are of a program that could not be started.
            lines.flush(early, 0);
            lines.writer.take()
        };
        // EVENTS-3
        writer.into_iter().for_each(Writer::end);
    }
}

/// Writes a line with one call (EVENTS-1). Ends a torn line before the next one.
fn write_line(file: &mut impl Write, line: &str, torn: &mut bool) -> Result<()> {
    let text = if *torn { format!("\n{line}") } else { line.to_owned() };
    let written = loop {
        match file.write(text.as_bytes()) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => break other?,
        }
    };
    *torn = written < text.len() && (written > 0 || *torn);
    if written < text.len() { Err(ErrorKind::WriteZero.into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_line_has_its_time_its_run_its_process_and_its_kind() {
        let event = Event::Unmanaged { name: "a\nb".into(), why: Kind::StaticProgram };
        let text = line(7, 8, &event);
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&value["run"], &value["pid"]), (&7.into(), &8.into()));
        assert_eq!(
            (&value["event"], &value["why"]),
            (&"unmanaged".into(), &"static_program".into())
        );
        assert!(value["time_unix_us"].as_u64() > Some(1_700_000_000_000_000));
    }

    /// Events that come before the start are written after it. A process was met, or asked for
    /// something, before the supervisor had reported that the program runs.
    #[test]
    fn the_start_is_the_first_event_whatever_comes_before() {
        let (to, written) = std::sync::mpsc::channel();
        let write = move |line: &str| to.send(line.to_owned()).expect("it is awaited");
        let writer = Some(Writer::start("events", write).expect("a thread"));
        let mut lines = Lines { writer, early: Some(Vec::new()) };
        let met = Event::Unmanaged { name: "a".into(), why: Kind::StaticProgram };
        lines.add(7, 9, &met);
        lines.add(7, 0, &met);
        let command = vec!["true".to_owned()];
        let started = Event::Started { command, memory_max_bytes: 1, memory_high_bytes: 1 };
        lines.add(7, 8, &started);
        lines.add(7, 8, &met);
        lines.writer.take().expect("a thread").end();
        let of = |line: String| -> (String, u64) {
            let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
            let name = value["event"].as_str().expect("a name").to_owned();
            (name, value["pid"].as_u64().expect("a number"))
        };
        let all: Vec<_> = written.iter().map(of).collect();
        let expected = [("started", 8), ("unmanaged", 9), ("unmanaged", 8), ("unmanaged", 8)];
        assert_eq!(all, expected.map(|(name, pid)| (name.to_owned(), pid)));
    }

    /// A file that takes `room` bytes, then nothing.
    #[derive(Default)]
    struct Disk {
        room: usize,
        written: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            let takes = bytes.len().min(self.room);
            self.room -= takes;
            self.written.extend(&bytes[..takes]);
            if takes == 0 { Err(ErrorKind::StorageFull.into()) } else { Ok(takes) }
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_was_cut_short_spoils_no_other() {
        let (mut disk, mut torn) = (Disk { room: 7, ..Disk::default() }, false);
        let mut write = |disk: &mut Disk, line| write_line(disk, line, &mut torn).is_ok();
        assert!(write(&mut disk, "one\n") && !write(&mut disk, "twotwo\n"));
        assert!(!write(&mut disk, "three\n"));
        disk.room = 100;
        assert!(write(&mut disk, "four\n") && write(&mut disk, "five\n"));
        assert_eq!(String::from_utf8_lossy(&disk.written), "one\ntwo\nfour\nfive\n");
    }

    /// With a pipe that no process empties, lines are lost and no thread waits.
    #[test]
    fn no_thread_waits_to_write_an_event() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RWXU, 0)
            .expect("a pipe");
        assert_eq!(open(&path).expect_err("nobody reads").kind(), ErrorKind::NotConnected);
        let _reader = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            .expect("a reader");
        let (say, said) = std::sync::mpsc::channel();
        let events = Events::new(&path, move |text| say.send(text.to_owned()).expect("heard"))
            .expect("events");
        (0..2000).for_each(|_| events.lines().send("x".repeat(1000) + "\n"));
        events.end();
        let said: Vec<String> = said.try_iter().collect();
        assert!(said.len() == 1 && said[0].contains("the run goes on"), "{said:?}");
    }
}
