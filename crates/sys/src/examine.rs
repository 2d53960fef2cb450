//! Examines processes whose files in `/proc` may make a reader wait.
//!
//! The kernel reads the environment and the areas of a process under the lock of its memory map. A
//! thread may hold that lock for ever, for example a thread that reads the process's memory where a
//! file is mapped whose server does not answer.
//!
//! * EXAMINE-1: a thread of its own does the reading. The caller waits a limited time for each
//!   process. It then goes on with the next process and leaves that thread behind. The thread ends
//!   with the read.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Returns the processes among `pids` for which `look` returns true. `sees` calls its argument,
/// which waits for the given time, until that returns true or the wait is over. It returns whether
/// the argument returned true. A process whose wait is over is left out.
pub fn examine(
    pids: impl IntoIterator<Item = u32>,
    look: impl Fn(u32) -> bool + Send + Sync + 'static,
    sees: impl Fn(&mut dyn FnMut(Duration) -> bool) -> bool,
) -> Vec<u32> {
    let (mut left, look): (Vec<u32>, _) = (pids.into_iter().collect(), Arc::new(look));
    let mut found = Vec::new();
    while !left.is_empty() {
        let (send, receive) = channel();
        let (its, looks) = (left.clone(), look.clone());
        let thread = std::thread::Builder::new().name("examine".to_owned()).spawn(move || {
            let mut results = its.into_iter().map(|pid| looks(pid));
            results.all(|result| send.send(result).is_ok())
        });
        if thread.is_err() {
            // Without a thread the caller reads itself.
            found.extend(left.iter().filter(|&&pid| look(pid)));
            return found;
        }
        let mut done = 0;
        for &pid in &left {
            let mut result = None;
            let is_seen = sees(&mut |time| match receive.recv_timeout(time) {
                Ok(is_it) => {
                    result = Some(is_it);
                    true
                }
                Err(error) => error == RecvTimeoutError::Disconnected,
            });
            done += 1;
            found.extend((result == Some(true)).then_some(pid));
            if !is_seen || result.is_none() {
                break;
            }
        }
        left.drain(..done);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::examine;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    /// Shows that a process whose files cannot be read does not stop a search. Without a limit, one
    /// such process of the user kept every run with `--exec` from ending.
    #[test]
    fn a_process_that_cannot_be_read_is_left_out() {
        let (release, stuck) = channel::<()>();
        let stuck = Mutex::new(stuck);
        let look = move |pid| {
            if pid == 3 {
                let _ = stuck.lock().expect("nobody panicked").recv();
            }
            pid % 2 == 1
        };
        // The wait for a result has a limit only for the process that gives none.
        let waits = Mutex::new(0);
        let sees = |look: &mut dyn FnMut(std::time::Duration) -> bool| {
            *waits.lock().expect("nobody panicked") += 1;
            let is_stuck = *waits.lock().expect("nobody panicked") == 3;
            if is_stuck { look(std::time::Duration::ZERO) } else { look(ebb_testing::HANG) }
        };
        assert_eq!(examine([1, 2, 3, 4, 5], look, sees), [1, 5]);
        drop(release);
    }
}
