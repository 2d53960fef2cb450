//! What the fault threads share: touches that wait, loads under way, messages that are being followed.
//!
//! Lock order: `Mm::state`, then this, then `Pager::resident`. Held for moments, never over a call into the world.
//!
//! * PENDING-1: who has set a touch aside or begun to follow a message need not be who goes on with it: that is the first fault thread,
//!   which is woken for it.
//! * PENDING-2: a load is noted before its read begins: whoever takes its completion finds it.

use crate::errand::Errand;
use crate::faults::{Touch, Unheard};
use crate::following::Following;
use crate::loads::Load;
use crate::mm::Mm;
use crate::signal::Signal;
use crate::spin;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// The books.
#[derive(Default)]
pub struct Books {
    pub waiting: VecDeque<Touch>,
    /// Touches that pause, and until when (`--memory-high`).
    pub pausing: Vec<(Instant, Touch)>,
    pub loads: HashMap<u64, Load>,
    /// Messages that take longer, and what was said after them.
    pub following: VecDeque<(Following, Unheard)>,
    /// What is to be done for them, and others, that takes long (`errand.rs`).
    pub errands: VecDeque<Errand>,
    /// For whom an errand is being gone.
    pub away: Option<Arc<Mm>>,
}

impl Books {
    /// The messages that are being followed, with nobody on an errand.
    #[cfg(test)]
    pub fn followed(&self) -> impl Iterator<Item = &Following> {
        let sent = self.errands.iter().filter_map(|errand| match errand {
            Errand::Follow(following, _) => Some(following),
            Errand::Seek(_) => None,
        });
        self.following.iter().map(|(following, _)| following).chain(sent)
    }

    /// Whether a message of it is being followed.
    pub fn is_followed(&self, mm: &Arc<Mm>) -> bool {
        let sent = |errand: &Errand| match errand {
            Errand::Follow(following, _) => Arc::ptr_eq(following.mm(), mm),
            Errand::Seek(_) => false,
        };
        self.following.iter().any(|(following, _)| Arc::ptr_eq(following.mm(), mm))
            || self.errands.iter().any(sent)
            || self.away.as_ref().is_some_and(|away| Arc::ptr_eq(away, mm))
    }
}

/// The same, for several threads.
#[derive(Default)]
pub struct Pending {
    books: Mutex<Books>,
    /// There is an errand.
    pub errand: Signal,
    /// One of those that wait found no memory: who comes later is not served before it.
    barred: AtomicBool,
    next_token: AtomicU64,
}

impl Pending {
    /// The books.
    pub fn books(&self) -> MutexGuard<'_, Books> {
        spin::lock(&self.books)
    }

    /// Has an errand gone.
    pub fn send(&self, errand: Errand) {
        self.books().errands.push_back(errand);
        self.errand.raise();
    }

    /// Whether who comes later has to wait.
    pub fn is_barred(&self) -> bool {
        self.barred.load(Relaxed)
    }

    /// Who comes later has to wait, or not.
    pub fn bar(&self, barred: bool) {
        self.barred.store(barred, Relaxed);
    }

    /// A number that no other load has.
    pub fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Relaxed)
    }
}
