//! An ordered map on a pool: a B+ tree whose keys and values are bytes.
//!
//! Invariants (checked by [`BTree::check`]):
//! * BTREE-1: keys ascend within a page; what is below an inner entry is up to its key, and beyond that of the entry before.
//! * BTREE-2: all leaves are at level 0, and their links go through them in order.
//! * BTREE-3: the root never moves: when it is full its entries go to a new page, and it has that one child.
//!
//! Latches go from the root down, and among leaves to the right; no thread has more than three. Who reads has a page until it
//! has the child. Who writes reads down to the leaf and latches that alone; only if it is full they begin again and latch
//! all alone that they pass, and split on the way down what could be too full for a key more.

mod node;

use crate::error::{PageId, PoolError};
use crate::frames::Bytes;
use crate::guards::{Change, Exclusive, Shared};
use crate::pool::Pool;
use node::{NONE, Node, NodeMut, entry_bytes};
use std::ops::ControlFlow;

/// Longest key.
pub const KEY_MAX: usize = 512;
/// Longest key and value together.
pub const ENTRY_MAX: usize = 1_000;

/// An error of a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// Of its pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// An entry is longer than a page can hold several of.
    #[error(
        "a key of {key} bytes with a value of {value}: at most {KEY_MAX}, and {ENTRY_MAX} together"
    )]
    TooLong {
        /// Bytes of the key.
        key: usize,
        /// Bytes of the value.
        value: usize,
    },
}

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct BTree {
    root: PageId,
}

impl BTree {
    /// A new one, in a page of its own, which is how it is found again ([`BTree::open`]).
    ///
    /// # Errors
    /// As [`Change::allocate`].
    pub fn create(change: &Change<'_>) -> Result<Self, TreeError> {
        let mut page = change.allocate()?;
        NodeMut(&mut page).clear(0, NONE);
        Ok(Self { root: page.page() })
    }

    /// The tree whose root is there.
    #[must_use]
    pub fn open(root: PageId) -> Self {
        Self { root }
    }

    /// Its root.
    #[must_use]
    pub fn root(&self) -> PageId {
        self.root
    }

    /// The leaf where a key would be.
    fn leaf<'pool>(&self, pool: &'pool Pool, key: &[u8]) -> Result<Shared<'pool>, PoolError> {
        let mut page = pool.shared(self.root)?;
        loop {
            let node = Node(&page);
            if node.level() == 0 {
                return Ok(page);
            }
            page = pool.shared(node.child(node.find(key).0))?;
        }
    }

    /// Shows the value of a key, if there is one.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    pub fn get<T>(
        &self,
        pool: &Pool,
        key: &[u8],
        show: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, TreeError> {
        let page = self.leaf(pool, key)?;
        let node = Node(&page);
        let (at, found) = node.find(key);
        Ok(found.then(|| show(node.entry(at).1)))
    }

    /// The value of a key in pages that are had otherwise: a mapping of a file that nobody writes to.
    pub fn get_in<'pages>(
        &self,
        pages: impl Fn(PageId) -> &'pages Bytes,
        key: &[u8],
    ) -> Option<&'pages [u8]> {
        let mut node = Node(pages(self.root));
        while node.level() > 0 {
            node = Node(pages(node.child(node.find(key).0)));
        }
        let (at, found) = node.find(key);
        found.then(|| node.entry(at).1)
    }

    /// Shows every entry from a key on, in order, until told to end. What it reads it reads once: it pushes nothing out
    /// that is in use. While it shows entries of a leaf, that is latched.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    pub fn scan(
        &self,
        pool: &Pool,
        from: &[u8],
        mut show: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), TreeError> {
        let mut page = self.leaf(pool, from)?;
        let mut at = Node(&page).find(from).0;
        loop {
            let node = Node(&page);
            let next = PageId(node.link());
            if next.0 != NONE {
                pool.prefetch(&[next]);
            }
            for n in at..node.count() {
                let (key, value) = node.entry(n);
                if show(key, value).is_break() {
                    return Ok(());
                }
            }
            if next.0 == NONE {
                return Ok(());
            }
            page = pool.shared_once(next)?;
            at = 0;
        }
    }

    /// The leaf where a key would be, latched alone.
    fn leaf_to_write<'change>(
        &self,
        change: &'change Change<'_>,
        key: &[u8],
    ) -> Result<Exclusive<'change>, PoolError> {
        loop {
            let mut page = change.pool().shared(self.root)?;
            let mut node = Node(&page);
            if node.level() == 0 {
                drop(page);
                let page = change.exclusive(self.root)?;
                if Node(&page).level() == 0 {
                    return Ok(page);
                }
                // It was split meanwhile.
                continue;
            }
            while node.level() > 1 {
                page = change.pool().shared(node.child(node.find(key).0))?;
                node = Node(&page);
            }
            return change.exclusive(node.child(node.find(key).0));
        }
    }

    /// Puts an entry in, in place of one with that key. Returns whether there was one.
    ///
    /// # Errors
    /// The entry is too long, or as [`Change::exclusive`].
    pub fn insert(&self, change: &Change<'_>, key: &[u8], value: &[u8]) -> Result<bool, TreeError> {
        if key.len() > KEY_MAX || key.len() + value.len() > ENTRY_MAX {
            return Err(TreeError::TooLong { key: key.len(), value: value.len() });
        }
        let mut page = self.leaf_to_write(change, key)?;
        if Node(&page).room() < entry_bytes(key.len(), value.len()) {
            drop(page);
            page = self.leaf_with_room(change, key, entry_bytes(key.len(), value.len()))?;
        }
        let (at, found) = Node(&page).find(key);
        let mut node = NodeMut(&mut page);
        if !found {
            node.insert(at, key, value);
        } else if node.read().entry(at).1.len() == value.len() {
            node.overwrite(at, value);
        } else {
            node.remove(at);
            node.insert(at, key, value);
        }
        Ok(found)
    }

    /// The leaf where a key would be, with so much room, and all above it with room for a key more.
    fn leaf_with_room<'change>(
        &self,
        change: &'change Change<'_>,
        key: &[u8],
        bytes: usize,
    ) -> Result<Exclusive<'change>, PoolError> {
        let wanted =
            |node: Node<'_>| if node.level() == 0 { bytes } else { entry_bytes(KEY_MAX, 8) };
        let mut page = change.exclusive(self.root)?;
        if Node(&page).room() < wanted(Node(&page)) {
            // BTREE-3
            let mut child = change.allocate()?;
            child.copy_from_slice(&page[..]);
            let level = Node(&page).level() + 1;
            NodeMut(&mut page).clear(level, child.page().0);
        }
        while Node(&page).level() > 0 {
            let at = Node(&page).find(key).0;
            let mut child = change.exclusive(Node(&page).child(at))?;
            if Node(&child).room() < wanted(Node(&child)) {
                child = split(change, (&mut page, at), child, key)?;
            }
            page = child;
        }
        Ok(page)
    }

    /// Takes an entry out. Returns whether there was one. A page that has no entries any more stays where it is.
    ///
    /// # Errors
    /// As [`Change::exclusive`].
    pub fn remove(&self, change: &Change<'_>, key: &[u8]) -> Result<bool, TreeError> {
        let mut page = self.leaf_to_write(change, key)?;
        let (at, found) = Node(&page).find(key);
        if found {
            NodeMut(&mut page).remove(at);
        }
        Ok(found)
    }

    /// Walks all of it, and panics at the first broken invariant. Returns how many entries there are. For tests.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    pub fn check(&self, pool: &Pool) -> Result<u64, TreeError> {
        let mut leaves = Vec::new();
        let entries = check(pool, self.root, (None, None), None, &mut leaves)?;
        for (n, &(page, link)) in leaves.iter().enumerate() {
            let next = leaves.get(n + 1).map_or(NONE, |&(next, _)| next);
            assert_eq!(link, next, "BTREE-2: the link of {}", PageId(page));
        }
        Ok(entries)
    }
}

/// Splits a child that is full, which is the `at`th of its parent. Returns the half where a key would be.
fn split<'change>(
    change: &'change Change<'_>,
    (parent, at): (&mut Exclusive<'change>, usize),
    mut child: Exclusive<'change>,
    key: &[u8],
) -> Result<Exclusive<'change>, PoolError> {
    let node = Node(&child);
    // Keys that come in order leave full pages behind.
    let last = node.find(key).0 == node.count();
    let middle = match (last, node.level()) {
        (true, 0) => node.count(),
        (true, _) => node.count() - 1,
        (false, _) => node.middle(),
    };
    let mut right = change.allocate()?;
    let page = right.page();
    let between = NodeMut(&mut child).split(middle, (&mut NodeMut(&mut right), page));
    let mut parent = NodeMut(parent);
    parent.set_child(at, page);
    parent.insert(at, &between, &child.page().0.to_le_bytes());
    Ok(if key <= &between[..] { child } else { right })
}

fn check(
    pool: &Pool,
    page: PageId,
    (above, upto): (Option<&[u8]>, Option<&[u8]>),
    level: Option<u16>,
    leaves: &mut Vec<(u64, u64)>,
) -> Result<u64, PoolError> {
    let latched = pool.shared(page)?;
    let node = Node(&latched);
    assert!(level.is_none_or(|level| node.level() == level), "BTREE-2: the level of {page}");
    let keys: Vec<&[u8]> = (0..node.count()).map(|n| node.key(n)).collect();
    assert!(keys.is_sorted_by(|a, b| a < b), "BTREE-1: the keys of {page}");
    assert!(
        above.is_none_or(|above| keys.first().is_none_or(|&key| key > above)),
        "BTREE-1: {page}"
    );
    assert!(upto.is_none_or(|upto| keys.last().is_none_or(|&key| key <= upto)), "BTREE-1: {page}");
    if node.level() == 0 {
        leaves.push((page.0, node.link()));
        return Ok(node.count() as u64);
    }
    let mut entries = 0;
    for n in 0..=node.count() {
        let above = if n == 0 { above } else { Some(keys[n - 1]) };
        let upto = keys.get(n).copied().or(upto);
        entries += check(pool, node.child(n), (above, upto), Some(node.level() - 1), leaves)?;
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
