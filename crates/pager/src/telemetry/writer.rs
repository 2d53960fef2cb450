//! A thread that writes lines for threads that may not wait for a reader or for a device.
//!
//! * WRITER-1: [`Writer::send`] never waits. A line without room is lost.
//! * WRITER-2: [`Writer::end`] waits until all is written. If the thread is stuck, it gives up
//!   after [`Patience::LastLines`].

use crate::wait::patience::Patience;
use ebb_sys::sched;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};

/// Maximum number of lines that may wait.
pub const WAITING_MAX: usize = 256;
const STACK_BYTES: usize = 128 * 1024;

/// Handle of the writer thread.
#[derive(Debug)]
pub struct Writer {
    lines: SyncSender<String>,
    ended: Receiver<()>,
    thread: u32,
}

impl Writer {
    /// Starts the thread, which calls `write` for each line.
    ///
    /// # Errors Fails if no thread can be started.
    pub fn start(
        name: &str,
        mut write: impl FnMut(&str) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (lines, waiting) = sync_channel::<String>(WAITING_MAX);
        let (end, ended) = sync_channel(1);
        let (number, thread) = sync_channel(1);
        let body = move || {
            let _ = number.send(sched::this_thread());
            waiting.iter().for_each(|line| write(&line));
            // After a long time no thread waits for it any more.
            let _ = end.send(());
        };
        std::thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES).spawn(body)?;
        let thread = thread.recv().unwrap_or(0);
        Ok(Self { lines, ended, thread })
    }

    /// Sends a line, including its newline. WRITER-1.
    pub fn send(&self, line: String) {
        let _ = self.lines.try_send(line);
    }

    /// Ends the thread after the last line. WRITER-2.
    pub fn end(self) {
        drop(self.lines);
        let has_ended = |pause| self.ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout);
        Patience::LastLines.sees_by(self.thread, &['R'], has_ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn lines_come_in_order_and_the_end_waits_for_them() {
        let written = Arc::new(Mutex::new(String::new()));
        let to = written.clone();
        let writer =
            Writer::start("messages", move |line| to.lock().expect("whole").push_str(line));
        let writer = writer.expect("a thread");
        (0..9).for_each(|number| writer.send(format!("{number}\n")));
        writer.end();
        assert_eq!(*written.lock().expect("whole"), "0\n1\n2\n3\n4\n5\n6\n7\n8\n");
    }

    /// Shows that no thread waits for a reader that does not read. A monitor that stands in `write`
    /// cannot keep the limit.
    #[test]
    fn nobody_waits_for_a_reader_that_does_not_read() {
        let (to, _reader) = sync_channel::<()>(0);
        let writer = Writer::start("messages", move |_| {
            let _ = to.send(());
        });
        let writer = writer.expect("a thread");
        (0..2000).for_each(|_| writer.send("line\n".to_owned()));
        writer.end();
    }
}
