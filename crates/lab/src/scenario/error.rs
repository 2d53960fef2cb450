//! Errors in scenarios: the fault, the place, and the nearest right name.

use ebb_mm::nearest::nearest;

/// Error that makes a scenario unusable.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
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
        /// Description of the fault.
        what: String,
    },
    /// A setting is invalid.
    #[error("--set {pair}: {what}")]
    Setting {
        /// The setting, `KEY=VALUE`.
        pair: String,
        /// Description of the fault.
        what: String,
    },
    /// No scenario has the first name; the second is the nearest existing one.
    #[error("there is no scenario {0:?}; did you mean {1:?}? `ebb lab list` names them all")]
    Unknown(String, String),
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
