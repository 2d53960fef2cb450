//! Answers to clients of a run (`ebb-control`), through their connections.

use crate::seam::Connection;
use ebb_control::{Answer, ControlError, Response, answer_to_bytes};

/// Answers a client. A client that has left, or cannot take the answer now, gets none.
pub fn say(line: &dyn Connection, answer: &Answer) {
    let _ = line.say(&answer_to_bytes(answer));
}

/// Answers a client that its change is done, or why it is not.
pub fn done(line: &dyn Connection, result: Result<(), String>) {
    say(line, &result.map(Response::Done).map_err(ControlError::NotDone));
}
