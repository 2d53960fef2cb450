//! Answers requests of `ebb lru-gen`: shows the generations as the kernel's debugfs does, and
//! carries out its commands.
//!
//! The listener answers queries at once. Ageing and eviction are kswapd's work, because kswapd
//! alone takes pages off the lists. Such a request waits in [`Requests`] until kswapd takes it and
//! answers it.
//!
//! A request is text: nothing, `full`, `enabled`, `enabled VALUE`, or commands that begin with `+`
//! or `-`. An answer that begins with [`REFUSED`] gives the reason for a refusal.

use crate::seam::Connection;
use crate::server::Pager;
use ebb_mm::observe::lru_gen::Enabled;
use std::sync::{Mutex, PoisonError};

/// Prefix of an answer that reports an error.
pub const REFUSED: &str = "error: ";
/// Answer to a command that succeeded and has nothing to show.
pub const DONE: &str = "\n";

/// Commands for kswapd, each with the connection for its answer.
#[derive(Debug, Default)]
pub struct Requests(Mutex<Vec<(String, Box<dyn Connection>)>>);

impl Requests {
    /// Takes all requests.
    pub fn take(&self) -> Vec<(String, Box<dyn Connection>)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a request.
    pub fn add(&self, commands: String, line: Box<dyn Connection>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((commands, line));
    }
}

/// Answers a request, or passes it to kswapd.
pub fn asked(pager: &Pager, request: &str, line: Box<dyn Connection>) -> std::io::Result<()> {
    let answer = match request.split_once(' ').unwrap_or((request, "")) {
        ("", "") => pager.resident().lru_gen(false),
        ("full", "") => pager.resident().lru_gen(true),
        ("enabled", "") => pager.resident().enabled().show(),
        ("enabled", value) => match Enabled::parse(value) {
            Ok(enabled) => {
                pager.resident().enable(enabled);
                DONE.into()
            }
            Err(_) => {
                format!("{REFUSED}enabled takes y, n or a number (7 is everything), not '{value}'")
            }
        },
        _ => {
            pager.requests.add(request.to_owned(), line);
            pager.kswapd.raise();
            return Ok(());
        }
    };
    // A client that cannot take the answer now gets none.
    line.say(answer.as_bytes())
}
