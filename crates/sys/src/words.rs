//! Texts from other programs, made safe for a terminal: names of processes, answers of servers.

use std::borrow::Cow;

/// Replaces each control character, on which a terminal might act, by a space.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => Cow::Owned(text.replace(char::is_control, " ")),
        false => Cow::Borrowed(text),
    }
}

/// Returns the first `max` characters, with each control character replaced by a space.
#[must_use]
pub fn brief(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((end, _)) => Cow::Owned(plain(&text[..end]).into_owned() + "..."),
        None => plain(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that was named after an output line of Ebb's could put that line into Ebb's
    /// messages.
    #[test]
    fn plain_text_has_no_control_characters_and_stays_one_line() {
        assert_eq!(plain("\x1b[31m\nebb: ok\u{9b}2J"), " [31m ebb: ok 2J");
        assert_eq!(plain("köln 東京"), "köln 東京");
        assert_eq!(brief("köln\n", 3), "köl...");
        assert_eq!(brief("köln\n", 5), "köln ");
    }
}
