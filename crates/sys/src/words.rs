//! Words that somebody else chose: the name of a process, what a server says.

use std::borrow::Cow;

/// Without letters that a terminal acts upon: each is a space.
#[must_use]
pub fn plain(text: &str) -> Cow<'_, str> {
    match text.contains(char::is_control) {
        true => Cow::Owned(text.replace(char::is_control, " ")),
        false => Cow::Borrowed(text),
    }
}

/// The same, of the first `max` letters.
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

    /// A process was named after a line of Ebb's, and its message had that line.
    #[test]
    fn a_terminal_acts_upon_nothing_and_lines_stay_one() {
        assert_eq!(plain("\x1b[31m\nebb: ok\u{9b}2J"), " [31m ebb: ok 2J");
        assert_eq!(plain("köln 東京"), "köln 東京");
        assert_eq!(brief("köln\n", 3), "köl...");
        assert_eq!(brief("köln\n", 5), "köln ");
    }
}
