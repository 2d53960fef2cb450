//! Result of one check of `ebb doctor`.

use serde::Serialize;

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub found: bool,
    /// Whether `ebb run` cannot work without the feature.
    pub required: bool,
    /// Text of the observation that the check made.
    pub detail: String,
    /// Text of the effect on Ebb; empty if there is none.
    pub consequence: String,
    /// Command that provides the feature, ready to type. Empty if no command does or none is
    /// needed.
    pub fix: String,
    /// Text about another way to get the feature; empty if there is none.
    pub otherwise: String,
}

impl Check {
    /// Returns the result for a feature that exists.
    pub fn found(name: &'static str, required: bool, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        let none = String::new;
        Self {
            name,
            found: true,
            required,
            detail,
            consequence: none(),
            fix: none(),
            otherwise: none(),
        }
    }

    /// Returns the result for a missing feature, with the effect and the command that provides the
    /// feature.
    pub fn missing(
        name: &'static str,
        required: bool,
        detail: impl Into<String>,
        consequence: &str,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name,
            found: false,
            required,
            detail: detail.into(),
            consequence: consequence.into(),
            fix: fix.into(),
            otherwise: String::new(),
        }
    }

    /// Adds another way to get the missing feature, in words. Has no effect on a found feature.
    pub fn or(self, otherwise: impl Into<String>) -> Self {
        let otherwise = if self.found { String::new() } else { otherwise.into() };
        Self { otherwise, ..self }
    }
}
