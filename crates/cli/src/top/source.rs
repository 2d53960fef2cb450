//! Gets the figures for `ebb top`. A thread asks the runs, so that keys work while a run does not
//! answer.

use crate::set::SetError;
use crate::stat::{AskError, ask_supervisor, has_ended};
use crate::{ps, set};
use ebb_control::{Request, View};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// Subject of the screen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// All runs.
    Runs,
    /// One run, and the areas of one of its processes (0: no process yet).
    Run { supervisor: u32, areas_of: u32 },
}

/// Why a change is not done.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The setting is not in effect.
    #[error(transparent)]
    Set(#[from] SetError),
    /// The change needs a thread, which cannot start.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Result of a question to the runs.
#[derive(Debug)]
pub enum Update {
    Runs(Vec<ps::Run>),
    View {
        supervisor: u32,
        at: Instant,
        view: Box<View>,
    },
    /// The run has ended.
    Ended(u32),
    /// The run does not answer; with the reason.
    Silent(u32, AskError),
    /// A change is done, or the reason why it is not.
    Done(Result<String, ChangeError>),
}

/// Handle of the thread that asks the runs.
#[derive(Debug)]
pub struct Source {
    wants: Sender<Want>,
    pub updates: Receiver<Update>,
    tell: Sender<Update>,
}

impl Source {
    /// Starts the thread, which asks once in `every`.
    pub fn start(want: Want, every: Duration) -> std::io::Result<Self> {
        let (wants, wanted) = channel();
        let (tell, updates) = channel();
        let to = tell.clone();
        let asking = move || ask_on(want, every, &wanted, &to);
        std::thread::Builder::new().name("ask".to_owned()).spawn(asking)?;
        Ok(Self { wants, updates, tell })
    }

    /// Has the thread ask for another subject at once.
    pub fn want(&self, want: Want) {
        // The thread runs as long as `self.updates` exists, so this cannot fail.
        let _ = self.wants.send(want);
    }

    /// Changes a run as `ebb set` does, in a thread of its own. The result comes as an update.
    pub fn change(&self, supervisor: u32, setting: String, done: String) {
        let to = self.tell.clone();
        let work = move || {
            let result = set::have(supervisor, &[setting]).map(|()| done).map_err(ChangeError::Set);
            // The screen may be gone.
            let _ = to.send(Update::Done(result));
        };
        if let Err(error) = std::thread::Builder::new().name("set".to_owned()).spawn(work) {
            let _ = self.tell.send(Update::Done(Err(ChangeError::Thread(error))));
        }
    }
}

/// Runs the thread until [`Source`] is dropped.
fn ask_on(mut want: Want, every: Duration, wanted: &Receiver<Want>, to: &Sender<Update>) {
    loop {
        if to.send(look(want)).is_err() {
            return;
        }
        match wanted.recv_timeout(every) {
            Ok(other) => want = other,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // Only the last request counts.
        want = wanted.try_iter().last().unwrap_or(want);
    }
}

fn look(want: Want) -> Update {
    match want {
        Want::Runs => Update::Runs(ps::runs()),
        Want::Run { supervisor, areas_of } => {
            match ask_supervisor(supervisor, &Request::View { areas_of }) {
                Ok(view) => Update::View { supervisor, at: Instant::now(), view },
                Err(_) if has_ended(supervisor) => Update::Ended(supervisor),
                Err(reason) => Update::Silent(supervisor, reason),
            }
        }
    }
}
