//! Errors in scenarios: the fault, the place, and the nearest right name.

use super::NODE_FRAMES_MIN;
use crate::machine::allocation::AllocationError;
use crate::machine::{BooksError, Stuck};
use crate::replay::ReplayError;
use crate::value::ValueError;
use crate::workload::spec::GeneratorCount;
use crate::workload::trace::PlayError;
use ebb_linux::frame::LayoutError;
use ebb_mm::nearest::nearest;
use ebb_mm::tunables::SetError;
use std::io;
use std::path::PathBuf;

/// Error that makes a scenario unusable.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A line of the file is wrong.
    #[error("{file}:{line}: {what}")]
    At {
        /// Name of the file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the fault.
        what: String,
    },
    /// The file as a whole is invalid.
    #[error("{file}: {what}")]
    Wrong {
        /// Name of the file.
        file: String,
        /// The fault.
        what: ScenarioFault,
    },
    /// A setting is invalid.
    #[error("--set {pair}: {what}")]
    Setting {
        /// The setting, `KEY=VALUE`.
        pair: String,
        /// The fault.
        what: SettingFault,
    },
    /// No scenario has the first name; the second is the nearest existing one.
    #[error("there is no scenario {0:?}; did you mean {1:?}? `ebb lab list` names them all")]
    Unknown(String, String),
}

/// Why a scenario as a whole is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioFault {
    /// A parameter of the machine or of the measurement makes no sense.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// A parameter of a part of the machine makes no sense. The part comes first.
    #[error("{0}{1}")]
    Part(&'static str, ValueError),
    /// A parameter of a memcg makes no sense.
    #[error("memcg {0:?}: {1}")]
    Memcg(String, ValueError),
    /// The parent of a memcg, the second name, does not precede it.
    #[error("memcg {0:?}: there is no memcg {1:?} before it")]
    Parent(String, String),
    /// The memcg of a workload, the second name, does not exist.
    #[error("workload {0:?}: there is no memcg {1:?}")]
    NoMemcg(String, String),
    /// A workload cannot be run.
    #[error("workload {0:?}: {1}")]
    Workload(String, Box<PlayError>),
    /// A workload replays a trace, which cannot be scaled.
    #[error("workload {0:?}: a trace has one size")]
    TraceSize(String),
    /// There is no workload.
    #[error("there is no [[workload]]")]
    NoWorkload,
    /// There is one arm at most.
    #[error("a comparison needs two [[arm]] tables at least")]
    FewArms,
    /// The machine has no node, or more nodes than the second number.
    #[error("machine.nodes = {0}: expected 1 to {1}, each with a CPU and {NODE_FRAMES_MIN} frames")]
    Nodes(u32, u32),
    /// A case names arms and has arms of its own.
    #[error("case {0:?}: expected arms = [NAME, ...] or [[case.arm]] tables, not both")]
    BothArms(String),
    /// An arm that a case names does not exist. The third name is the nearest.
    #[error("case {0:?}: there is no [[arm]] {1:?}; did you mean {2:?}?")]
    NoArm(String, String, String),
    /// A case has one arm at most.
    #[error("case {0:?}: a comparison needs two arms at least")]
    FewArmsOf(String),
}

/// Why a setting is invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingFault {
    /// The text has no `=`.
    #[error("expected KEY=VALUE")]
    NoValue,
    /// The engine refuses the switch.
    #[error(transparent)]
    Switch(#[from] SetError),
    /// The path of a key of a memcg has no such form.
    #[error("expected memcg.NAME.KEY")]
    MemcgKey,
    /// There is no memcg of this name.
    #[error("there is no memcg {0:?}")]
    NoMemcg(String),
    /// A part of the path is a value.
    #[error("{0} has no keys")]
    NoTable(String),
    /// There is no workload of this name.
    #[error("there is no workload {0:?}")]
    NoWorkload(String),
    /// There is no workload.
    #[error("the scenario has no workload")]
    NoWorkloads,
    /// The parser of TOML refuses the file with the setting, in these words.
    #[error("{0}")]
    Toml(String),
}

/// Why a run of a scenario failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine refuses a switch.
    #[error(transparent)]
    Switch(#[from] SetError),
    /// There is no such machine.
    #[error("machine: {0}")]
    Layout(#[from] LayoutError),
    /// A workload has no generator, or several.
    #[error(transparent)]
    Generators(#[from] GeneratorCount),
    /// The workload of a run under Ebb has memory that Ebb does not manage.
    #[error(
        "machine.live.on: `ebb run` manages private anonymous memory, and this workload has files or \
         shared memory"
    )]
    LiveFiles,
    /// A run under Ebb has so many memcgs.
    #[error("machine.live.on: expected one memcg, not {0}")]
    LiveMemcgs(usize),
    /// A run under Ebb has a file without a device.
    #[error("machine.live.file: expected machine.swap, the device of the file")]
    LiveFile,
    /// The run cannot go on.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// A conservation law does not hold at the end.
    #[error(transparent)]
    Books(#[from] BooksError),
    /// The benchmark of the allocator failed.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// The file of the events cannot be created.
    #[error("{}: {}", .0.display(), .1)]
    EventFile(PathBuf, io::Error),
    /// An event cannot be written.
    #[error("the events: {0}")]
    Events(io::Error),
    /// The curves of the accesses cannot be computed.
    #[error(transparent)]
    Curves(#[from] ReplayError),
}

impl ScenarioError {
    /// Converts an error of the TOML parser and finds the line.
    pub(super) fn in_file(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text[..at].matches('\n').count() + 1;
        Self::At { file: file.into(), line, what: explain(error.message()) }
    }
}

/// Rewrites a message of the parser: the nearest right name replaces the list of all names.
pub(super) fn explain(message: &str) -> String {
    let message = message.trim();
    for (words, what) in [("unknown field `", "key"), ("unknown variant `", "value")] {
        let Some(rest) = message.strip_prefix(words) else { continue };
        let Some((name, rest)) = rest.split_once('`') else { continue };
        let right: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
        return match nearest(name, right) {
            Some(best) => format!("unknown {what} '{name}'; did you mean '{best}'?"),
            None => format!("unknown {what} '{name}'"),
        };
    }
    message.to_owned()
}
