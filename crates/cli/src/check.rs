//! What `ebb doctor` says of one thing that it looked at.

use serde::Serialize;

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub found: bool,
    /// `ebb run` cannot work without it.
    pub required: bool,
    /// What was seen.
    pub detail: String,
    /// What follows from that; empty if nothing does.
    pub consequence: String,
    /// The command that gets it, to be typed as it stands; empty if none does, or nothing is to be done.
    pub fix: String,
    /// What else gets it, in words.
    pub otherwise: String,
}

impl Check {
    /// Something that is there.
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

    /// Something that is not, with what follows and what gets it.
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

    /// What is missing can be had in another way, too.
    pub fn or(self, otherwise: impl Into<String>) -> Self {
        let otherwise = if self.found { String::new() } else { otherwise.into() };
        Self { otherwise, ..self }
    }
}
