//! What `ebb lru-gen` asks of a run: the generations, as the kernel's debugfs shows them, and its commands.
//!
//! Looking is answered at once. Ageing and evicting is kswapd's work, which alone takes pages off the
//! lists: a request waits in [`Requests`] until it looks, and takes its answer along.
//!
//! A request is text: nothing, `full`, `enabled`, `enabled VALUE`, or commands that begin with `+` or `-`.
//! An answer that begins with [`REFUSED`] says why not.

use crate::seam::Connection;
use crate::server::Pager;
use ebb_mm::observe::lru_gen::Enabled;
use std::sync::{Mutex, PoisonError};

/// Begins an answer that is an error.
pub const REFUSED: &str = "error: ";
/// All was carried out, and there is nothing to show.
pub const DONE: &str = "\n";

/// Commands for kswapd, each with the line its answer goes to.
#[derive(Debug, Default)]
pub struct Requests(Mutex<Vec<(String, Box<dyn Connection>)>>);

impl Requests {
    /// Takes them all.
    pub fn take(&self) -> Vec<(String, Box<dyn Connection>)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// One more.
    pub fn add(&self, commands: String, line: Box<dyn Connection>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((commands, line));
    }
}

/// Answers a request, or passes it on.
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
    // Who takes no answer gets none.
    line.say(answer.as_bytes())
}
