//! Where `ebb top` has its figures from: a thread asks the runs, so that keys are heard while one does not answer.

use crate::line::converse;
use crate::stat::{has_ended, line_to_front};
use crate::{ps, set};
use ebb_agent::protocol::GREET_STAT;
use ebb_pager::REFUSED;
use ebb_pager::patience::Patience;
use ebb_pager::view::{VIEW, View};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// What is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// All runs.
    Runs,
    /// This run, and the areas of a process of it (0: of none yet).
    Run { front: u32, areas_of: u32 },
}

/// What was found.
#[derive(Debug)]
pub enum News {
    Runs(Vec<ps::Run>),
    View {
        front: u32,
        at: Instant,
        view: Box<View>,
    },
    /// The run has ended.
    Ended(u32),
    /// It does not answer, and why.
    Silent(u32, String),
    /// What was asked for is done, or why it is not.
    Done(Result<String, String>),
}

/// The other end of the thread.
#[derive(Debug)]
pub struct Source {
    wants: Sender<Want>,
    pub news: Receiver<News>,
    tell: Sender<News>,
}

impl Source {
    /// Begins to ask, once in `every`.
    pub fn start(want: Want, every: Duration) -> std::io::Result<Self> {
        let (wants, wanted) = channel();
        let (tell, news) = channel();
        let to = tell.clone();
        let asking = move || ask_on(want, every, &wanted, &to);
        std::thread::Builder::new().name("ask".to_owned()).spawn(asking)?;
        Ok(Self { wants, news, tell })
    }

    /// Something else is looked at from now on, at once.
    pub fn want(&self, want: Want) {
        // The thread ends with the receiver, and so after this.
        let _ = self.wants.send(want);
    }

    /// Has a run changed, as `ebb set` does. The news has what became of it.
    pub fn change(&self, front: u32, setting: String, done: String) {
        let to = self.tell.clone();
        let work = move || {
            let result = set::have(front, &[setting]).map(|()| done);
            // Nobody may look any more.
            let _ = to.send(News::Done(result));
        };
        if let Err(error) = std::thread::Builder::new().name("set".to_owned()).spawn(work) {
            let _ = self.tell.send(News::Done(Err(format!("cannot start a thread: {error}"))));
        }
    }
}

/// The thread, until nobody wants anything any more.
fn ask_on(mut want: Want, every: Duration, wanted: &Receiver<Want>, to: &Sender<News>) {
    loop {
        if to.send(look(want)).is_err() {
            return;
        }
        match wanted.recv_timeout(every) {
            Ok(other) => want = other,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // The last one counts.
        want = wanted.try_iter().last().unwrap_or(want);
    }
}

fn look(want: Want) -> News {
    match want {
        Want::Runs => News::Runs(ps::runs()),
        Want::Run { front, areas_of } => match view(front, areas_of) {
            Ok(view) => News::View { front, at: Instant::now(), view: Box::new(view) },
            Err(_) if has_ended(front) => News::Ended(front),
            Err(reason) => News::Silent(front, reason),
        },
    }
}

fn view(front: u32, areas_of: u32) -> Result<View, String> {
    let line = line_to_front(front)?;
    let request = if areas_of == 0 { VIEW.to_owned() } else { format!("{VIEW} {areas_of}") };
    let text = converse(&line, GREET_STAT, &request, Some(Patience::Glance))?;
    if let Some(reason) = text.strip_prefix(REFUSED) {
        return Err(reason.to_owned());
    }
    serde_json::from_str(&text).map_err(|_| {
        "the run is of another version of ebb, and its figures cannot be read".to_owned()
    })
}
