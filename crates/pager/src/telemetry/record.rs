//! Records which pages a run requests and when, as a trace that `ebb lab replay` reads.
//!
//! Every fault that reaches the pager is a record (a first touch, a reactivation, a load, a write
//! to a write-protected page). Accesses to mapped pages are invisible, and are not in the trace.
//! The trace is text with the header `dt,fault,op,kind`, which tells readers so. It is compressed
//! by zstd if the file is named `.zst`. `dt` is in microseconds. `fault` is the page number, with
//! the number of the address space above it (bit 36 on).
//!
//! * RECORD-1: recording waits for no device. A thread of its own writes full buffers. If that
//!   thread is too far behind, the records are counted as lost.
//! * RECORD-2: records are in the order of their times, because one lock covers both. It is taken
//!   last.

use crate::telemetry::counters;
use ebb_mm::types::{MmId, Vpn};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Number of records in one buffer.
const BUFFER: usize = 4096;
/// Maximum number of buffers that wait for the file: 4 MiB.
const WAITING_MAX: usize = 64;
/// Number of bits of a page number.
const PAGE_BITS: u32 = 36;
const LEVEL: i32 = 3;

#[derive(Clone, Copy, Debug)]
struct Record {
    at_us: u64,
    /// Page number, shifted by one bit. The lowest bit is set for a write.
    page: u64,
}

/// A recording under way.
#[derive(Debug)]
pub struct Recorder {
    began: Instant,
    buffer: Mutex<Vec<Record>>,
    full: Mutex<Option<SyncSender<Vec<Record>>>>,
    writer: Mutex<Option<JoinHandle<io::Result<()>>>>,
    pub written: AtomicU64,
    pub lost: AtomicU64,
}

impl Recorder {
    /// Begins a recording in `path`.
    ///
    /// # Errors Fails if the file cannot be written, or no thread can be started.
    pub fn new(path: &Path) -> io::Result<Self> {
        let file = BufWriter::new(File::create(path)?);
        let packed = path.extension().is_some_and(|end| end == "zst");
        let (full, chunks) = sync_channel(WAITING_MAX);
        let writer = std::thread::Builder::new().name("record".to_owned()).spawn(move || {
            if packed { write_packed(&chunks, file) } else { write(&chunks, file) }
        })?;
        Ok(Self {
            began: Instant::now(),
            buffer: Mutex::new(Vec::with_capacity(BUFFER)),
            full: Mutex::new(Some(full)),
            writer: Mutex::new(Some(writer)),
            written: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        })
    }

    /// Records accesses to pages of an address space at the current time.
    pub fn note(&self, mm: MmId, pages: impl IntoIterator<Item = Vpn>, writes: bool) {
        let at_us = self.began.elapsed().as_micros() as u64;
        let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
        for vpn in pages {
            let page = (u64::from(mm.0) << PAGE_BITS | vpn.0) << 1 | u64::from(writes);
            buffer.push(Record { at_us, page });
            if buffer.len() == BUFFER {
                self.pass_on(&mut buffer);
            }
        }
    }

    fn pass_on(&self, buffer: &mut Vec<Record>) {
        let records = std::mem::replace(buffer, Vec::with_capacity(BUFFER));
        let count = records.len() as u64;
        let full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = match full.as_ref().map(|full| full.try_send(records)) {
            Some(Ok(())) => true,
            // The writer is too far behind or has failed; `end` reports a failure.
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => false,
        };
        counters::add(if passed { &self.written } else { &self.lost }, count);
    }

    /// Ends the recording and waits for the file.
    ///
    /// # Errors Fails if the file cannot be written completely.
    pub fn end(&self) -> io::Result<()> {
        {
            let mut buffer = self.buffer.lock().unwrap_or_else(PoisonError::into_inner);
            self.pass_on(&mut buffer);
        }
        drop(self.full.lock().unwrap_or_else(PoisonError::into_inner).take());
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match writer.map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(written)) => written,
            Some(Err(_)) => Err(io::Error::other("its thread has panicked")),
        }
    }
}

fn write_packed(chunks: &Receiver<Vec<Record>>, file: impl Write) -> io::Result<()> {
    let mut packed = zstd::Encoder::new(file, LEVEL)?;
    write_text(chunks, &mut packed)?;
    packed.finish()?.flush()
}

fn write(chunks: &Receiver<Vec<Record>>, mut file: impl Write) -> io::Result<()> {
    write_text(chunks, &mut file)?;
    file.flush()
}

fn write_text(chunks: &Receiver<Vec<Record>>, to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "dt,fault,op,kind")?;
    let mut before = 0;
    for Record { at_us, page } in chunks.iter().flatten() {
        let op = if page & 1 == 1 { 'w' } else { 'r' };
        writeln!(to, "{},{},{op},a", at_us - before, page >> 1)?;
        before = at_us;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_recording_is_a_trace_of_what_was_noted() {
        let folder = tempfile::tempdir().expect("a folder");
        let plain = folder.path().join("faults.csv");
        let packed = folder.path().join("faults.csv.zst");
        for path in [&plain, &packed] {
            let recorder = Recorder::new(path).expect("it can be written");
            recorder.note(MmId(3), [Vpn(7)], true);
            recorder.note(MmId(4), (0..10_000).map(Vpn), false);
            recorder.end().expect("it is written");
            recorder.end().expect("ending twice is no harm");
            assert_eq!((recorder.written.load(Relaxed), recorder.lost.load(Relaxed)), (10_001, 0));
        }
        let text = std::fs::read_to_string(&plain).expect("text");
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("dt,fault,op,kind"));
        let first = lines.next().expect("a record").split_once(',').expect("fields").1.to_owned();
        assert_eq!(first, format!("{},w,a", (3u64 << 36) + 7));
        assert!(lines.clone().all(|line| line.ends_with(",r,a")) && lines.count() == 10_000);
        let bytes = std::fs::read(&packed).expect("bytes");
        let unpacked = zstd::decode_all(&bytes[..]).expect("zstd");
        let pages = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.split(',').skip(1).collect()).collect()
        };
        assert_eq!(pages(&String::from_utf8(unpacked).expect("text")), pages(&text));
    }

    #[test]
    fn a_full_disk_under_a_recording_is_reported_at_the_end() {
        let recorder = Recorder::new(Path::new("/dev/full")).expect("it can be opened");
        for _ in 0..40 {
            recorder.note(MmId(2), (0..5_000).map(Vpn), false);
        }
        let error = recorder.end().expect_err("the device is full");
        assert_eq!(error.raw_os_error(), Some(28));
        let all = recorder.written.load(Relaxed) + recorder.lost.load(Relaxed);
        assert_eq!(all, 200_000, "each is counted once");
    }
}
