//! Suggests the known name that is nearest to a misspelt one.

/// Returns the one of `names` with the smallest edit distance (Levenshtein) to `name`. The first of
/// several wins. None if `names` is empty.
pub fn nearest<S: AsRef<str>>(name: &str, names: impl IntoIterator<Item = S>) -> Option<S> {
    names.into_iter().min_by_key(|n| strsim::levenshtein(name, n.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_finds_the_nearest_one() {
        assert_eq!(nearest("swapines", ["min_ttl", "swappiness", "swap"]), Some("swappiness"));
        assert_eq!(nearest("gne", ["lru", "gen"]), Some("gen"));
        assert_eq!(nearest("any", [""; 0]), None);
    }
}
