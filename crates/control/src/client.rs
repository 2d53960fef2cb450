//! The client: one connection to the pager of a run.

use crate::{ANSWER_MAX, Content, ControlError, Request, answer_from_bytes};
use ebb_sys::socket::Socket;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

/// Pause between two looks at a run, and longest time of one look.
const LOOK: Duration = Duration::from_millis(20);

/// How long a client waits for a run. A client counts looks of 20 ms. So a host that stops takes
/// only one look from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// 10 s, for one question.
    Answer,
    /// 3 s, for a question to all runs, or to one run repeatedly.
    Glance,
    /// No limit, for a change, which may take long.
    Endless,
}

impl Patience {
    /// Calls `look` until it returns true. Returns false if the wait is over before.
    fn sees(self, mut look: impl FnMut() -> bool) -> bool {
        let looks = match self {
            Self::Answer => 500,
            Self::Glance => 150,
            Self::Endless => u64::MAX,
        };
        (0..looks).any(|_| look())
    }
}

/// A connection to the pager of a run, for one request.
#[derive(Debug)]
pub struct Client(Socket);

impl Client {
    /// Connects to the pager that listens at `socket`.
    ///
    /// # Errors
    /// `TimedOut` if the pager accepts no connection in time; the error of the socket otherwise.
    pub fn connect(socket: &Path, patience: Patience) -> io::Result<Self> {
        let mut line = Ok(None);
        patience.sees(|| {
            line = Socket::connect_now(socket);
            let is_full = matches!(line, Ok(None));
            if is_full {
                std::thread::sleep(LOOK);
            }
            !is_full
        });
        line?.map(Self).ok_or_else(|| ErrorKind::TimedOut.into())
    }

    /// Returns the process number of the pager.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn peer(&self) -> io::Result<u32> {
        self.0.peer()
    }

    /// Sends the request and returns the content of its answer.
    ///
    /// # Errors
    /// The pager's error, or the reason why there is no answer.
    pub fn ask<T: Content>(
        &self,
        request: &Request,
        patience: Patience,
    ) -> Result<T, ControlError> {
        self.send(request)?;
        self.receive(patience)
    }

    /// Sends the request.
    ///
    /// # Errors
    /// [`ControlError::NoAnswer`].
    pub fn send(&self, request: &Request) -> Result<(), ControlError> {
        Ok(self.0.send(&request.to_bytes(), &[])?)
    }

    /// Waits for the answer, and returns its content.
    ///
    /// # Errors
    /// The pager's error, or the reason why there is no answer.
    pub fn receive<T: Content>(&self, patience: Patience) -> Result<T, ControlError> {
        if !patience.sees(|| self.0.is_ready_within(LOOK)) {
            return Err(ControlError::Late);
        }
        let mut bytes = vec![0; ANSWER_MAX];
        let got = self.0.receive(&mut bytes, &mut Vec::new())?;
        answer_from_bytes(&bytes[..got])?.try_into()
    }
}
