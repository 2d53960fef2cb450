//! Connection of a command to the pager of a run: sends the request and reads the answer.

use ebb_agent::protocol::{Hello, MAGIC, VERSION};
use ebb_pager::patience::Patience;
use ebb_sys::socket::Socket;
use std::io::{ErrorKind, Result};
use std::path::Path;

/// Length of the longest answer, in bytes.
const ANSWER_MAX: usize = 64 << 10;

/// Connects to the pager that listens at `socket`.
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

/// Sends a request over a connection of the caller's own and waits for the answer. Waits without
/// limit if `patience` is `None`.
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

/// Sends a request and returns the raw answer. The answer is empty if the run has ended meanwhile.
pub fn ask(line: &Socket, kind: u32, request: &str, patience: Option<Patience>) -> Result<Vec<u8>> {
    let hello = Hello { magic: MAGIC, version: VERSION, kind, ..Hello::default() };
    line.send(&[&hello.to_bytes()[..], request.as_bytes()].concat(), &[])?;
    if patience.is_some_and(|patience| !patience.sees(|pause| line.is_ready_within(pause))) {
        return Err(ErrorKind::TimedOut.into());
    }
    let mut bytes = vec![0; ANSWER_MAX];
    let got = line.receive(&mut bytes, &mut Vec::new())?;
    bytes.truncate(got);
    Ok(bytes)
}

/// Returns the message about a run that does not answer.
pub fn no_answer(error: std::io::Error) -> String {
    format!("the run does not answer: {error}")
}
