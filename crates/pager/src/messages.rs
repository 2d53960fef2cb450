//! Lines for the user, on standard error. Those that have something to tell keep the limit: none of them may wait for a
//! terminal that is held, or for a pipe that nobody reads ([`Writer`]).

use crate::writer::Writer;
use ebb_sys::words::plain;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// The thread, from the first line on: a process has one standard error.
static WRITER: Mutex<Option<Writer>> = Mutex::new(None);

/// A line for the user.
pub fn say(text: &str) {
    let line = format!("ebb: {}\n", plain(text));
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    if writer.is_none() {
        *writer = Writer::start("messages", write).ok();
    }
    match &*writer {
        Some(writer) => writer.send(line),
        // No more threads may be started.
        None => write(&line),
    }
}

/// Waits until all is written, for a while. Another caller waits for the same end.
pub fn flush() {
    let mut writer = WRITER.lock().unwrap_or_else(PoisonError::into_inner);
    writer.take().into_iter().for_each(Writer::end);
}

/// Ends the pager once all is written.
pub fn exit(code: i32) -> ! {
    flush();
    std::process::exit(code)
}

/// A closed standard error must not end the pager, and with it the program.
fn write(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}
