//! Encryption of pages that leave memory: ChaCha20-Poly1305 under a key of this run. The key exists
//! in memory alone (`ebb_sys::secret`).
//!
//! Invariants:
//! * CRYPT-1: no nonce is used twice. Each nonce has a number from `counter`, which gives no number
//!   twice. The 64 bits of the counter last longer than any run.
//! * CRYPT-2: a page opens only at the location that it was sealed for. The seal authenticates the
//!   tier and the page's number in the tier.

use crate::page::Page;
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{ChaCha20Poly1305, KeyInit};
use ebb_sys::secret::Secret;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// The data that opens a page, beside the encrypted bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seal {
    /// The part of the nonce that is new each time.
    pub number: u64,
    pub tag: [u8; 16],
}

/// The key of a run.
pub(crate) struct Key {
    key: Secret<32>,
    counter: AtomicU64,
}

/// Error: the page is not the one sealed for this location.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotAuthentic;

/// Returns the nonce and the associated data of a page at its location.
fn place(tier: u8, page: u32, number: u64) -> ([u8; 12], [u8; 5]) {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&page.to_le_bytes());
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    let [a, b, c, d] = page.to_le_bytes();
    (nonce, [tier, a, b, c, d])
}

impl Key {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { key: Secret::random()?, counter: AtomicU64::new(0) })
    }

    /// Creates the cipher. It erases its copy of the key when dropped.
    fn cipher(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new(self.key.expose().into())
    }

    /// Encrypts a page in place, for its location.
    pub(crate) fn seal(&self, tier: u8, page: u32, content: &mut Page) -> Seal {
        // Relaxed, because only uniqueness of the number matters (CRYPT-1).
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let (nonce, data) = place(tier, page, number);
        let tag = (self.cipher())
            .encrypt_in_place_detached(&nonce.into(), &data, content)
            .expect("a page is shorter than the cipher's limit");
        Seal { number, tag: tag.into() }
    }

    /// Decrypts a page in place, if it was sealed for this location. Otherwise leaves it unchanged.
    pub(crate) fn open(
        &self,
        tier: u8,
        page: u32,
        seal: &Seal,
        content: &mut Page,
    ) -> Result<(), NotAuthentic> {
        let (nonce, data) = place(tier, page, seal.number);
        (self.cipher())
            .decrypt_in_place_detached(&nonce.into(), &data, content, &seal.tag.into())
            .map_err(|_| NotAuthentic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_decrypts_only_at_its_own_tier_and_number() {
        let key = Key::new().expect("a key");
        let plain = std::array::from_fn(|at| (at / 7) as u8);
        let mut sealed = plain;
        let seal = key.seal(1, 70, &mut sealed);
        assert_ne!(sealed, plain);
        let open = |key: &Key, tier, page, seal: &Seal, bytes: &Page| {
            let mut bytes = *bytes;
            key.open(tier, page, seal, &mut bytes).map(|()| bytes)
        };
        assert_eq!(open(&key, 1, 70, &seal, &sealed), Ok(plain));
        assert_eq!(open(&key, 2, 70, &seal, &sealed), Err(NotAuthentic), "another tier");
        assert_eq!(open(&key, 1, 71, &seal, &sealed), Err(NotAuthentic), "another page");
        let later = Seal { number: seal.number + 1, ..seal };
        assert_eq!(open(&key, 1, 70, &later, &sealed), Err(NotAuthentic), "another nonce");
        let other = Key::new().expect("a key");
        assert_eq!(open(&other, 1, 70, &seal, &sealed), Err(NotAuthentic), "another run's key");
        for at in [0, 2000, 4095] {
            let mut changed = sealed;
            changed[at] ^= 1;
            assert_eq!(open(&key, 1, 70, &seal, &changed), Err(NotAuthentic), "byte {at}");
        }
        let mut tag = seal;
        tag.tag[15] ^= 0x80;
        assert_eq!(open(&key, 1, 70, &tag, &sealed), Err(NotAuthentic));
    }

    #[test]
    fn no_nonce_comes_twice_and_the_same_page_never_looks_the_same() {
        let key = Key::new().expect("a key");
        let (mut seen, mut numbers) =
            (std::collections::HashSet::new(), std::collections::HashSet::new());
        for turn in 0..200_u32 {
            let mut page = [7; 4096];
            let seal = key.seal(0, turn % 3, &mut page);
            assert!(seen.insert(page) && numbers.insert(seal.number), "turn {turn}");
        }
    }
}
