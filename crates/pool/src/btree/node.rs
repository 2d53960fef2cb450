//! One page of a tree: a slotted page, with entries sorted by key.
//!
//! ```text
//! 0..2   level: 0 in a leaf      6..8    bytes of removed entries
//! 2..4   number of entries       8..16   leaf: the next one, or NONE; inner: the last child
//! 4..6   start of the entries    16..    for each entry, by key, a slot of two bytes: its offset
//!             ... room ...       entries, from the end of the page down:
//!                                length of key, length of value (two bytes each), key, value
//! ```
//! An inner entry consists of a key and the number of a child. The child holds keys up to and
//! including that key.

use crate::error::PageId;
use crate::frames::Bytes;
use ebb_mm::PAGE_SIZE;

/// Marks a missing page.
pub const NONE: u64 = u64::MAX;
const SLOTS: usize = 16;
/// Number of bytes of an entry before its key.
const HEAD: usize = 4;

/// Returns the bytes that an entry takes, its slot included.
pub const fn entry_bytes(key: usize, value: usize) -> usize {
    2 + HEAD + key + value
}

/// A page to be read.
#[derive(Clone, Copy)]
pub struct Node<'page>(pub &'page Bytes);

impl<'page> Node<'page> {
    fn get(self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
    }

    /// Returns the level: 0 in a leaf, and in an inner node one more than in its children.
    pub fn level(self) -> u16 {
        self.get(0) as u16
    }

    pub fn count(self) -> usize {
        self.get(2)
    }

    /// Returns the next leaf, or the last child.
    pub fn link(self) -> u64 {
        u64::from_le_bytes(self.0[8..16].try_into().expect("eight bytes"))
    }

    pub fn entry(self, n: usize) -> (&'page [u8], &'page [u8]) {
        let at = self.get(SLOTS + 2 * n);
        let (key, value) = (self.get(at), self.get(at + 2));
        let (at, end) = (at + HEAD, at + HEAD + key);
        (&self.0[at..end], &self.0[end..end + value])
    }

    pub fn key(self, n: usize) -> &'page [u8] {
        self.entry(n).0
    }

    /// Returns the index of the first entry with that key or a greater one, and whether it has that
    /// key.
    pub fn find(self, key: &[u8]) -> (usize, bool) {
        let (mut low, mut high) = (0, self.count());
        while low < high {
            let middle = usize::midpoint(low, high);
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return (middle, true),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        (low, false)
    }

    /// Returns the `n`th child of an inner node. There is one more child than entries.
    pub fn child(self, n: usize) -> PageId {
        let number = if n == self.count() {
            self.link()
        } else {
            u64::from_le_bytes(self.entry(n).1.try_into().expect("a child's number"))
        };
        PageId(number)
    }

    /// Returns the bytes that more entries could take.
    pub fn room(self) -> usize {
        self.get(4) - (SLOTS + 2 * self.count()) + self.get(6)
    }

    /// Returns the index at which to split, so that both sides have about as many bytes.
    pub fn middle(self) -> usize {
        let all = PAGE_SIZE - SLOTS - self.room();
        let mut bytes = 0;
        let half = |n: &usize| {
            let (key, value) = self.entry(*n);
            bytes += entry_bytes(key.len(), value.len());
            bytes * 2 >= all
        };
        (0..self.count()).find(half).unwrap_or(0).max(1)
    }
}

/// A page to be written to.
pub struct NodeMut<'page>(pub &'page mut Bytes);

impl NodeMut<'_> {
    pub fn read(&self) -> Node<'_> {
        Node(self.0)
    }

    fn put(&mut self, at: usize, value: usize) {
        let value = u16::try_from(value).expect("less than a page");
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Removes all entries.
    pub fn clear(&mut self, level: u16, link: u64) {
        self.put(0, level.into());
        self.put(2, 0);
        self.put(4, PAGE_SIZE);
        self.put(6, 0);
        self.set_link(link);
    }

    pub fn set_link(&mut self, link: u64) {
        self.0[8..16].copy_from_slice(&link.to_le_bytes());
    }

    /// Inserts an entry at index `n`. There must be room for it.
    pub fn insert(&mut self, n: usize, key: &[u8], value: &[u8]) {
        let bytes = HEAD + key.len() + value.len();
        let count = self.read().count();
        if self.read().get(4) < SLOTS + 2 * (count + 1) + bytes {
            self.compact();
        }
        let at = self.read().get(4) - bytes;
        assert!(at >= SLOTS + 2 * (count + 1), "an entry of {bytes} bytes where there is no room");
        self.put(4, at);
        self.put(at, key.len());
        self.put(at + 2, value.len());
        self.0[at + HEAD..at + HEAD + key.len()].copy_from_slice(key);
        self.0[at + HEAD + key.len()..at + bytes].copy_from_slice(value);
        let slot = SLOTS + 2 * n;
        self.0.copy_within(slot..SLOTS + 2 * count, slot + 2);
        self.put(slot, at);
        self.put(2, count + 1);
    }

    pub fn remove(&mut self, n: usize) {
        let node = self.read();
        let (count, dead) = (node.count(), node.get(6));
        let (key, value) = node.entry(n);
        let bytes = HEAD + key.len() + value.len();
        let slot = SLOTS + 2 * n;
        self.0.copy_within(slot + 2..SLOTS + 2 * count, slot);
        self.put(2, count - 1);
        self.put(6, dead + bytes);
    }

    /// Replaces a value by one of equal length.
    pub fn overwrite(&mut self, n: usize, value: &[u8]) {
        let at = self.read().get(SLOTS + 2 * n);
        let from = at + HEAD + self.read().get(at);
        self.0[from..from + value.len()].copy_from_slice(value);
    }

    pub fn set_child(&mut self, n: usize, child: PageId) {
        if n == self.read().count() {
            self.set_link(child.0);
        } else {
            self.overwrite(n, &child.0.to_le_bytes());
        }
    }

    /// Moves the entries together, so that the bytes of removed ones become room.
    fn compact(&mut self) {
        let copy = *self.0;
        self.keep(Node(&copy), 0..Node(&copy).count());
    }

    /// Replaces the entries by the entries `which` of another page.
    fn keep(&mut self, from: Node<'_>, which: std::ops::Range<usize>) {
        self.clear(from.level(), from.link());
        for (to, n) in which.enumerate() {
            let (key, value) = from.entry(n);
            self.insert(to, key, value);
        }
    }

    /// Moves the entries from index `n` on to `right`, whose number is `page`. Returns the key that
    /// separates the two. In an inner node that is the key at `n`, which is then in neither.
    pub fn split(&mut self, n: usize, (right, page): (&mut NodeMut<'_>, PageId)) -> Vec<u8> {
        let copy = *self.0;
        let all = Node(&copy);
        if all.level() == 0 {
            right.keep(all, n..all.count());
            self.keep(all, 0..n);
            self.set_link(page.0);
            all.key(n - 1).to_vec()
        } else {
            right.keep(all, n + 1..all.count());
            self.keep(all, 0..n);
            self.set_link(all.child(n).0);
            all.key(n).to_vec()
        }
    }
}
