//! Life of an agent: from the request of a process to the end of the agent.
//!
//! A new program is awaited until its hello is answered, and so is a forked child. A child may ask
//! for an agent before its hello, and it may report that it will have none.
//!
//! * LIFE-1: the life changes only by the methods of [`Life`] that return the next one. Each says
//!   which states it leaves. All other states stay as they are.
//! * LIFE-2: a request ends when the child hangs up before its hello. Such a child may still join,
//!   if it asks again or connects by itself.
//! * LIFE-3: a child that has declined has declined for ever. It may still join.
//! * LIFE-4: the end is final. The monitor drops the address space as soon as it is gone.
//! * LIFE-5: a life is one word. Fault threads read it for each fault, and kswapd for each batch,
//!   without a lock.
//!
//! Lock order: no lock here.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

/// Request of a process for an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// The process has not asked, or has hung up since.
    Unasked,
    /// The process asked at this age of its address space, in milliseconds.
    Asked { at: u64 },
    /// The process has reported that it will have no agent.
    Declined,
}

/// State of an agent's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The agent has no link.
    Awaited(Request),
    /// The agent has a link. It may be yet to start.
    Joined(Request),
    /// The agent has hung up, or the userfaultfd has failed.
    Closing { joined: bool, request: Request },
}

impl Life {
    /// Returns the request.
    pub fn request(self) -> Request {
        match self {
            Self::Awaited(request) | Self::Joined(request) | Self::Closing { request, .. } => {
                request
            }
        }
    }

    /// Whether the agent has or had a link.
    pub fn has_joined(self) -> bool {
        matches!(self, Self::Joined(_) | Self::Closing { joined: true, .. })
    }

    /// Returns the same state with another request.
    fn with(self, request: Request) -> Self {
        match self {
            Self::Awaited(_) => Self::Awaited(request),
            Self::Joined(_) => Self::Joined(request),
            Self::Closing { joined, .. } => Self::Closing { joined, request },
        }
    }

    /// Returns the life after the process has asked, `at` milliseconds old. Leaves every request
    /// but Declined.
    pub fn ask(self, at: u64) -> Self {
        match self.request() {
            Request::Unasked | Request::Asked { .. } => self.with(Request::Asked { at }),
            Request::Declined => self,
        }
    }

    /// Returns the life after the process has hung up before its hello. Leaves Asked alone.
    pub fn take_back(self) -> Self {
        match self.request() {
            Request::Asked { .. } => self.with(Request::Unasked),
            Request::Unasked | Request::Declined => self,
        }
    }

    /// Returns the life after the process has reported that it will have no agent. Leaves every
    /// other request.
    pub fn decline(self) -> Self {
        self.with(Request::Declined)
    }

    /// Returns the life after the link is set. Leaves Awaited. A link after the end is noted, and
    /// the end stays.
    pub fn join(self) -> Self {
        match self {
            Self::Awaited(request) => Self::Joined(request),
            Self::Joined(_) => self,
            Self::Closing { request, .. } => Self::Closing { joined: true, request },
        }
    }

    /// Returns the life after the agent has hung up, or the userfaultfd has failed. Leaves every
    /// other state.
    pub fn close(self) -> Self {
        Self::Closing { joined: self.has_joined(), request: self.request() }
    }

    /// Packs the life into a word. The state takes two bits, the request two, and its age the rest.
    fn pack(self) -> u64 {
        let (request, at) = match self.request() {
            Request::Unasked => (0, 0),
            Request::Asked { at } => (1, at),
            Request::Declined => (2, 0),
        };
        let state = match self {
            Self::Awaited(_) => 0,
            Self::Joined(_) => 1,
            Self::Closing { joined: false, .. } => 2,
            Self::Closing { joined: true, .. } => 3,
        };
        at << 4 | request << 2 | state
    }

    /// Returns the life packed into `word`.
    fn unpack(word: u64) -> Self {
        let request = match word >> 2 & 3 {
            0 => Request::Unasked,
            1 => Request::Asked { at: word >> 4 },
            _ => Request::Declined,
        };
        match word & 3 {
            0 => Self::Awaited(request),
            1 => Self::Joined(request),
            state => Self::Closing { joined: state == 3, request },
        }
    }
}

/// Life of an agent, in a word that threads share (LIFE-5).
#[derive(Debug)]
pub struct LifeWord(AtomicU64);

impl LifeWord {
    /// Creates the life of an agent for which the process has not asked.
    pub fn new() -> Self {
        Self(AtomicU64::new(Life::Awaited(Request::Unasked).pack()))
    }

    /// Returns the life.
    pub fn read(&self) -> Life {
        Life::unpack(self.0.load(Acquire))
    }

    /// Makes the life that of `next` (LIFE-1).
    pub fn change(&self, next: impl Fn(Life) -> Life) {
        let change = |word| Some(next(Life::unpack(word)).pack());
        // The closure refuses no word.
        let _ = self.0.fetch_update(SeqCst, Acquire, change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns every life, with a request at this age.
    fn all(at: u64) -> Vec<Life> {
        let requests = [Request::Unasked, Request::Asked { at }, Request::Declined];
        let lives = |request| {
            let closing = |joined| Life::Closing { joined, request };
            [Life::Awaited(request), Life::Joined(request), closing(false), closing(true)]
        };
        requests.into_iter().flat_map(lives).collect()
    }

    #[test]
    fn a_life_comes_back_from_its_word() {
        for life in all(1).into_iter().chain(all((1 << 60) - 1)) {
            assert_eq!(Life::unpack(life.pack()), life);
        }
    }

    /// Shows which part of a life each step changes, for every life (LIFE-1 to LIFE-4).
    #[test]
    fn each_step_changes_the_request_or_the_state_and_never_goes_back() {
        for life in all(5) {
            let declined = life.request() == Request::Declined;
            let is_closing = |life| matches!(life, Life::Closing { .. });
            let same = |next: Life| {
                (next.has_joined(), is_closing(next)) == (life.has_joined(), is_closing(life))
            };
            let [asked, back, none] = [life.ask(7), life.take_back(), life.decline()];
            assert!(same(asked) && same(back) && same(none), "{life:?}");
            assert_eq!(none.request(), Request::Declined);
            let [after, hung_up] = match declined {
                true => [Request::Declined; 2],
                false => [Request::Asked { at: 7 }, Request::Unasked],
            };
            assert_eq!((asked.request(), back.request()), (after, hung_up), "{life:?}");
            let (joined, closed) = (life.join(), life.close());
            assert!(joined.has_joined() && is_closing(joined) == is_closing(life));
            assert!(is_closing(closed) && closed.has_joined() == life.has_joined());
            assert_eq!((joined.request(), closed.request()), (life.request(), life.request()));
            assert_eq!(life.close().join(), life.join().close(), "in either order");
        }
    }
}
