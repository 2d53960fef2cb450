//! Writes messages for the user to standard error. The threads that send messages also keep the
//! limit. None of them may wait for a stopped terminal or for a pipe without a reader ([`Writer`]).

use crate::telemetry::writer::Writer;
use ebb_sys::words::plain;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// Writer thread, started by the first message. A process has one standard error.
static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

/// Sends a line to the user.
pub fn say(text: &str) {
    let line = format!("ebb: {}\n", plain(text));
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    if writer.is_none() {
        *writer = Writer::start("messages", write).ok();
    }
    match &*writer {
        Some(writer) => writer.send(line),
        // No more threads can be started.
        None => write(&line),
    }
}

/// Waits until all messages are written, within a time limit. A concurrent caller waits for the
/// same end.
pub fn flush() {
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    writer.take().into_iter().for_each(Writer::end);
}

/// Ends the pager once all messages are written.
pub fn exit(code: i32) -> ! {
    flush();
    std::process::exit(code)
}

/// Writes to standard error and ignores errors. A closed standard error must not end the pager, and
/// with it the program.
fn write(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}
