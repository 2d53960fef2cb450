//! A command's line to the pager of a run: the request, and the answer.

use ebb_agent::protocol::{Greeting, MAGIC, VERSION};
use ebb_pager::patience::Patience;
use ebb_sys::socket::Socket;
use std::io::{ErrorKind, Result};
use std::path::Path;

/// The longest answer.
const ANSWER_MAX: usize = 64 << 10;

/// A line to the pager that listens at `socket`.
pub fn connect(socket: &Path, patience: Patience) -> Result<Socket> {
    let mut line = Ok(None);
    patience.sees(|pause| {
        line = Socket::connect_now(socket);
        let is_full = matches!(line, Ok(None));
        if is_full {
            std::thread::sleep(pause);
        }
        !is_full
    });
    line?.ok_or_else(|| ErrorKind::TimedOut.into())
}

/// Asks over a line that nobody else uses, and waits for the answer: without end where no patience is given.
pub fn converse(
    line: &Socket,
    kind: u32,
    request: &str,
    patience: Option<Patience>,
) -> std::result::Result<String, String> {
    let answer = ask(line, kind, request, patience).map_err(no_answer)?;
    if answer.is_empty() {
        return Err("the run has just ended".into());
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The answer as it comes: none from a run that has ended meanwhile.
pub fn ask(line: &Socket, kind: u32, request: &str, patience: Option<Patience>) -> Result<Vec<u8>> {
    let greeting = Greeting { magic: MAGIC, version: VERSION, kind, ..Greeting::default() };
    line.send(&[&greeting.to_bytes()[..], request.as_bytes()].concat(), &[])?;
    if patience.is_some_and(|patience| !patience.sees(|pause| line.is_ready_within(pause))) {
        return Err(ErrorKind::TimedOut.into());
    }
    let mut bytes = vec![0; ANSWER_MAX];
    let got = line.receive(&mut bytes, &mut Vec::new())?;
    bytes.truncate(got);
    Ok(bytes)
}

/// What is said of a run that does not answer.
pub fn no_answer(error: std::io::Error) -> String {
    format!("the run does not answer: {error}")
}
