//! The figures of a run, as `ebb stat` and `ebb top` show them.
#![forbid(unsafe_code)]

mod faults;
mod metrics;
mod view;

pub use faults::{FaultKind, Faults, Row, Stages, Took};
pub use metrics::{MemoryPressure, Metric, MetricKind, Metrics, Pressure, Unit};
pub use view::{AreaView, Pages, ProcessView, Refaults, Tier, View};
