//! What is wrong with a scenario, where, and what would be right.

use ebb_mm::nearest::nearest;

/// A scenario that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ScenarioError {
    /// The file's text is wrong at a line.
    #[error("{file}:{line}: {what}")]
    At {
        /// The file.
        file: String,
        /// The line.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The file as a whole makes no sense.
    #[error("{file}: {what}")]
    Wrong {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A setting makes no sense.
    #[error("--set {pair}: {what}")]
    Setting {
        /// The setting.
        pair: String,
        /// What is wrong.
        what: String,
    },
    /// No scenario has this name.
    #[error("there is no scenario {0:?}; did you mean {1:?}? `ebb lab list` names them all")]
    Unknown(String, String),
}

impl ScenarioError {
    /// What the parser found, with its line.
    pub(super) fn in_file(file: &str, text: &str, error: &toml::de::Error) -> Self {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        let line = text[..at].matches('\n').count() + 1;
        Self::At { file: file.into(), line, what: explain(error.message()) }
    }
}

/// The parser's words, with the nearest right name in place of the list of all.
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
