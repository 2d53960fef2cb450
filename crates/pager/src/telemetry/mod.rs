//! Telemetry: what the pager counts, measures and tells about a run.
//!
//! Every thread counts here. `ebb stat` and `ebb top` read the figures while the run lasts
//! (`report/stat.rs`, `report/view.rs`), and the report reads them at its end (`report/mod.rs`).
//! The recorder and the events go to files. A pressure target (`monitor/pressure_target.rs`) and
//! `--strict` (`unmanaged.rs`) act on figures.
//!
//! * TELEMETRY-1: counters order nothing. Threads change them by relaxed operations, and a reader
//!   may see one change without another.
//! * TELEMETRY-2: an address space has figures of its own. They are added to the counters when it
//!   is dropped. Until then a reader adds them itself (`report/costs.rs`, `report/mod.rs`).
//! * TELEMETRY-3: no thread that serves the program waits for a file or for a reader. A record or
//!   an event that finds no room is lost.
//! * TELEMETRY-4: `thrashing` is set once. Later windows change nothing.
//!
//! Lock order: the locks in these parts are held for single operations, under any other lock. No
//! lock is taken under them.

pub mod account;
pub mod counters;
pub mod events;
pub mod finding;
pub mod history;
pub mod looks;
pub mod messages;
pub mod own_cost;
pub mod pressure;
pub mod record;
pub mod sampling;
pub mod stages;
pub mod unmanaged;
pub mod unseen;
pub mod writer;

use crate::config::Config;
use crate::wait::clock::Clock;
use account::Account;
use counters::Counters;
use events::Events;
use finding::Finding;
use history::History;
use looks::Looks;
use pressure::Pressure;
use record::Recorder;
use sampling::Sampling;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock};
use unmanaged::Unmanaged;

/// Figures of a run.
pub struct Telemetry {
    pub counters: Counters,
    pub account: Account,
    pub pressure: Arc<Pressure>,
    pub unmanaged: Unmanaged,
    /// Set once the monitor has found that the run thrashes.
    pub thrashing: OnceLock<Finding>,
    /// Views requested by `ebb top`.
    pub looks: Looks,
    pub resident_history: Mutex<History>,
    pub recorder: Option<Recorder>,
    /// Measures how soon pages are used again, if that is requested.
    pub sampling: Option<Sampling>,
    /// Writer of events, if the user wants them.
    pub events: Option<Events>,
    /// Number of messages for the user that may be left out.
    pub complained: AtomicU32,
}

impl Telemetry {
    /// Opens the files that the settings name.
    pub fn new(config: &Config, clock: &Clock) -> std::io::Result<Self> {
        let recorder = config.record.as_deref().map(Recorder::new).transpose()?;
        let events =
            config.events.as_deref().map(|path| Events::new(path, messages::say)).transpose()?;
        Ok(Self {
            counters: Counters::default(),
            account: Account::default(),
            pressure: Pressure::new(clock.clone()),
            unmanaged: Unmanaged::default(),
            thrashing: OnceLock::new(),
            looks: Looks::default(),
            resident_history: Mutex::default(),
            recorder,
            sampling: config.sample.then(|| Sampling::new(clock.now())),
            events,
            complained: AtomicU32::new(0),
        })
    }
}
