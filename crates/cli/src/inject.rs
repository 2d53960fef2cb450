//! Starts a program whose loader cannot bring the agent. The program stands at its first
//! instruction until the agent is in place.
//!
//! A program that cannot have the agent runs without it. The run reports it like any other static
//! program.

use ebb_pager::inject;
use ebb_sys::tracee::stop_at_start;
use std::io;
use std::path::Path;
use std::process::{Child, Command};

/// The agent's image.
pub const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.image"));

/// Starts the program of `command` with the agent from file `image`. Starts it without the agent if
/// it cannot be traced, because it is traced already or tracing is not permitted.
pub fn spawn(command: impl Fn() -> Command, image: &Path) -> io::Result<Child> {
    let mut traced = command();
    stop_at_start(&mut traced);
    let (program, put) = match traced.spawn() {
        Ok(program) => {
            let put = inject::at_start(program.id(), image);
            (program, put)
        }
        // If tracing was not the reason, this second attempt reports the real error.
        Err(error) => (command().spawn()?, Err(error)),
    };
    if let Err(error) = put {
        crate::tell(format_args!(
            "cannot put the agent into the program (ptrace): {error}; the program runs without it"
        ));
    }
    Ok(program)
}
