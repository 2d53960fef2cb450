//! Contents of pages: 4096 bytes, a hash, perhaps one repeated word.

use ebb_mm::types::PAGE_SIZE;
use std::sync::LazyLock;

/// The content of a page.
pub type Page = [u8; PAGE_SIZE];

/// A page of zeros.
pub const ZERO_PAGE: Page = [0; PAGE_SIZE];

/// Returns the 64-bit XXH3 hash by which the store tells one content from another.
#[must_use]
pub fn page_hash(page: &Page) -> u64 {
    twox_hash::XxHash3_64::oneshot(page)
}

/// Returns the word that a page repeats from its first byte to its last, if any. Zero pages are the
/// usual case.
#[must_use]
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = words[0];
    // Many pages repeat their first word for a while and end with another. The comparison with the
    // last word finds most of those at once.
    (words[words.len() - 1] == first && words.iter().all(|word| *word == first))
        .then(|| u64::from_ne_bytes(first))
}

/// Returns the hash of a page that repeats a word. The hash of the frequent zero page is cached.
pub(crate) fn same_filled_hash(word: u64, page: &Page) -> u64 {
    static ZERO: LazyLock<u64> = LazyLock::new(|| page_hash(&ZERO_PAGE));
    if word == 0 { *ZERO } else { page_hash(page) }
}

/// Returns the hash of the page that repeats `word`.
pub(crate) fn hash_of_same(word: u64) -> u64 {
    let mut page = ZERO_PAGE;
    fill(&mut page, word);
    same_filled_hash(word, &page)
}

/// Fills a page with one repeated word.
pub fn fill(page: &mut Page, word: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(word.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_filled_sees_one_word_and_nothing_else() {
        let mut page = ZERO_PAGE;
        assert_eq!(same_filled(&page), Some(0));
        fill(&mut page, 0x0102_0304_0506_0708);
        assert_eq!(same_filled(&page), Some(0x0102_0304_0506_0708));
        for at in [0, 7, 8, 2047, 4088, 4095] {
            page[at] ^= 0x80;
            assert_eq!(same_filled(&page), None, "byte {at}");
            page[at] ^= 0x80;
        }
    }

    #[test]
    fn the_hash_is_xxh3_with_seed_zero() {
        // The reference value of the xxHash tools for 4096 zero bytes would do as well. It only
        // matters that any changed bit changes the hash.
        let hash = page_hash(&ZERO_PAGE);
        for at in [0, 1000, 4095] {
            let mut page = ZERO_PAGE;
            page[at] = 1;
            assert_ne!(page_hash(&page), hash, "byte {at}");
        }
    }
}
