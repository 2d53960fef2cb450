//! Starts a program that has no loader to bring the agent: it stands at its first instruction until that is there.
//!
//! What cannot have the agent runs without, and is told of as any other static program.

use ebb_pager::inject;
use ebb_sys::tracee::stand_at_start;
use std::io;
use std::path::Path;
use std::process::{Child, Command};

/// The agent for it.
pub const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.image"));

/// Starts the program that `command` makes, with the agent whose image lies in file `image`; where that cannot be traced
/// (it is already, or may not be), without.
pub fn spawn(command: impl Fn() -> Command, image: &Path) -> io::Result<Child> {
    let mut traced = command();
    stand_at_start(&mut traced);
    let (program, put) = match traced.spawn() {
        Ok(program) => {
            let put = inject::at_start(program.id(), image);
            (program, put)
        }
        // If that was not why, it is said now.
        Err(error) => (command().spawn()?, Err(error)),
    };
    if let Err(error) = put {
        crate::tell(format_args!("the agent cannot be put into the program (ptrace): {error}"));
    }
    Ok(program)
}
