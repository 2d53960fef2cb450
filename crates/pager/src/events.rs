//! What happens to a run, for programs: a line of JSON for each event (`ebb run --events FILE`).
//!
//! * EVENTS-1: a line is one write to a file that is appended to: several runs may share one.
//! * EVENTS-2: who has something to tell waits for no device: a thread of its own writes ([`Writer`]). What is more than may wait is lost.
//! * EVENTS-3: what cannot be written harms nothing. It is said once, and the end of a run waits for a while at most.
//! * EVENTS-4: the start is told of first, and times rise. What happens before the front has said that the program runs waits for that.

use crate::server::Pager;
use crate::unmanaged::Kind;
use crate::writer::{WAITING_MAX, Writer};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

/// Why every process of a run is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nothing more could be stored, and threads waited in vain.
    OutOfMemory,
    /// `gen.min_ttl_ms`.
    Thrashing,
    /// `--strict`.
    Unmanaged,
    /// No descriptor was left to take another process in.
    OutOfDescriptors,
    /// A process could not be served any more.
    NotServed,
    /// The `ebb run` was killed.
    FrontEnded,
    /// The pager was killed.
    PagerEnded,
}

/// Who has changed a limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// `ebb set`.
    Set,
    /// `--pressure-target`.
    PressureTarget,
}

/// What has happened, with its figures.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The program runs.
    Started {
        /// The program and its arguments.
        command: Vec<String>,
        /// The limit.
        memory_max_bytes: u64,
        /// Where reclaim aims.
        memory_high_bytes: u64,
    },
    /// `wanted_bytes` is more where it could not be had whole.
    LimitChanged {
        /// Who changed it.
        by: By,
        /// The limit.
        memory_max_bytes: u64,
        /// Where reclaim aims.
        memory_high_bytes: u64,
        /// What is resident, compressed memory with it.
        used_bytes: u64,
        /// The limit that was asked for.
        wanted_bytes: u64,
    },
    /// Most of the time is lost to waiting for pages.
    Thrashing {
        /// Time of threads lost to waiting, of the last ten seconds'.
        lost_percent: u64,
        /// The limit.
        memory_max_bytes: u64,
        /// A limit that would be enough.
        enough_bytes: u64,
    },
    /// Memory that counts and cannot be stored was met.
    Unmanaged {
        /// The process's name.
        name: String,
        /// What kind of memory.
        why: Kind,
    },
    /// Out of memory.
    Full {
        /// The limit.
        memory_max_bytes: u64,
        /// What would be resident if nobody waited.
        demand_bytes: u64,
        /// Time of threads, waiting.
        waited_us: u64,
        /// Why nothing more can be stored.
        why: String,
    },
    /// Every process is killed.
    Killed {
        /// Why.
        why: Why,
    },
    /// Every process has ended; the status is as a shell shows it.
    Ended {
        /// The program's, as a shell shows it; none where it cannot be known.
        exit_status: Option<i32>,
        /// How long the run took.
        wall_time_us: u64,
        /// The most that was resident.
        peak_resident_bytes: u64,
        /// Touches that were answered.
        faults: u64,
        /// Those of them for which a page was read from a tier.
        faults_loaded: u64,
        /// Time of threads, waiting.
        waited_us: u64,
    },
}

/// A line.
#[derive(Debug, Serialize)]
struct Line<'a> {
    time_unix_us: u64,
    /// The `ebb run`.
    run: u32,
    /// The process that it is about.
    pid: u32,
    #[serde(flatten)]
    event: &'a Event,
}

/// The line of an event that happens now, with its end.
#[must_use]
pub fn line(run: u32, pid: u32, event: &Event) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let line = Line { time_unix_us: since.as_micros() as u64, run, pid, event };
    // Numbers, names and texts alone: it cannot fail.
    serde_json::to_string(&line).unwrap_or_default() + "\n"
}

/// The file of events, or standard error for `-`. Nobody is waited for who is to read at the other end of a pipe.
///
/// # Errors
/// It cannot be written to.
pub fn open(path: &Path) -> Result<File> {
    if path.as_os_str() == "-" {
        return Ok(std::io::stderr().as_fd().try_clone_to_owned()?.into());
    }
    let flags =
        OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => Ok(file.into()),
        Err(rustix::io::Errno::NXIO) => {
            Err(Error::new(ErrorKind::NotConnected, "nobody reads from this pipe"))
        }
        Err(error) => Err(error.into()),
    }
}

/// The other end of the thread that writes.
#[derive(Debug)]
pub struct Events(Mutex<Lines>);

#[derive(Debug)]
struct Lines {
    /// None when nothing more happens.
    writer: Option<Writer>,
    /// What happened before the start was told of, with run and process; None since then (EVENTS-4).
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

    /// Those about process 0 are about the `program`, whose number was not known.
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
    /// Begins to write to a file; `say` tells the user what is wrong with it, once.
    ///
    /// # Errors
    /// It cannot be opened, or no thread can be started.
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

    fn add(&self, run: u32, pid: u32, event: &Event) {
        self.lines().add(run, pid, event);
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing more happens. Waits until all is written, for a while.
    pub fn end(&self) {
        let writer = {
            let mut lines = self.lines();
            let early = lines.early.take();
            // Of a program that could not be started.
            lines.flush(early, 0);
            lines.writer.take()
        };
        // EVENTS-3
        writer.into_iter().for_each(Writer::end);
    }
}

/// One write (EVENTS-1). A line that was cut short is ended before the next.
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

impl Pager {
    /// Something has happened to a process, or to the whole run (the program's process).
    pub fn note(&self, pid: u32, event: &Event) {
        if let Some(events) = &self.events {
            events.add(self.front, pid, event);
        }
    }

    /// Something has happened to the run.
    pub fn note_run(&self, event: &Event) {
        self.note(self.program.load(std::sync::atomic::Ordering::Relaxed), event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_and_of_whom_and_what() {
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

    /// A process was met, or asked something, before the front had said that the program runs.
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

    /// Takes so many bytes, then nothing for a while.
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

    /// A pipe that nobody empties: lines are lost, and nobody waits.
    #[test]
    fn who_has_something_to_tell_waits_for_nobody() {
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
