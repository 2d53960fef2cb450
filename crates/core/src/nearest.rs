//! What somebody most likely meant who wrote a name that there is not.

/// The one of `names` that somebody who wrote `name` most likely meant.
pub fn nearest<S: AsRef<str>>(name: &str, names: impl IntoIterator<Item = S>) -> Option<S> {
    names.into_iter().min_by_key(|n| distance(name.as_bytes(), n.as_ref().as_bytes()))
}

/// Edit distance, one row at a time.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, &x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &y) in b.iter().enumerate() {
            let keep = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = keep.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_pen_is_seen_through() {
        assert_eq!(nearest("swapines", ["min_ttl", "swappiness", "swap"]), Some("swappiness"));
        assert_eq!(nearest("gne", ["lru", "gen"]), Some("gen"));
        assert_eq!(nearest("any", [""; 0]), None);
    }

    #[test]
    fn edit_distance_counts_single_changes() {
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"", b"abc"), 3);
        assert_eq!(distance(b"abc", b"abc"), 0);
    }
}
