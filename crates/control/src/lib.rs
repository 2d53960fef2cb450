//! The management protocol of a run: the requests of `ebb stat`, `ebb top`, `ebb set` and other
//! commands to the pager, and its answers.
//!
//! A [`Client`] connects to the run's socket, sends one [`Request`] and reads one [`Answer`]. Then
//! the pager closes the connection. Agents connect to the same socket, with a protocol of their
//! own.
//!
//! * CONTROL-1: a message begins with [`MAGIC`] and the version, in every version. So the pager
//!   tells clients from agents, and both ends notice another version.
//! * CONTROL-2: a message is one packet of a limited size: [`REQUEST_MAX`], [`ANSWER_MAX`].
#![forbid(unsafe_code)]

mod client;
mod faults;
mod message;
mod metrics;
mod view;

pub use client::{Client, Patience};
pub use faults::{FaultKind, Faults, Row, Stages, Took};
pub use message::{
    ANSWER_MAX, Answer, Bound, CONTROL_VERSION, Content, ControlError, Limits, MAGIC, REQUEST_MAX,
    Reclaim, Request, Response, answer_from_bytes, answer_to_bytes,
};
pub use metrics::{MemoryPressure, Metric, MetricKind, Metrics, Pressure, Unit};
pub use view::{AreaView, Pages, ProcessView, Refaults, Tier, View};
