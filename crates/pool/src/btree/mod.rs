//! An ordered map on a pool: a B+ tree whose keys and values are bytes.
//!
//! Invariants (checked by [`BTree::check`]):
//! * BTREE-1: keys ascend within a page. The child of an inner entry holds keys above the previous
//!   entry's key, up to and including the entry's own.
//! * BTREE-2: all leaves are at level 0, and their links go through them in order.
//! * BTREE-3: the root never moves. When it is full, its entries go to a new page, which becomes
//!   its only child.
//!
//! Latches go from the root down, and among leaves to the right. No thread has more than three. A
//! reader keeps a page latched until it has the child. A writer descends like a reader and latches
//! only the leaf exclusively. If the leaf is full, the writer starts again from the root and
//! latches every page on its path exclusively. On the way down it splits each page that may have no
//! room for one more key.

mod node;

use crate::error::{PageId, PoolError};
use crate::frames::Bytes;
use crate::guards::{Change, Exclusive, Shared};
use crate::pool::Pool;
use node::{NONE, Node, NodeMut, entry_bytes};
use std::ops::ControlFlow;

/// Length of the longest key, in bytes.
pub const KEY_MAX: usize = 512;
/// Largest length of key and value together, in bytes.
pub const ENTRY_MAX: usize = 1_000;

/// An error of a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// An error of the pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The entry is too long for a page to hold several such entries.
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

/// A B+ tree. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct BTree {
    root: PageId,
}

impl BTree {
    /// Creates a tree. The page of its root identifies it for [`BTree::open`].
    ///
    /// # Errors
    /// As [`Change::allocate`].
    pub fn create(change: &Change<'_>) -> Result<Self, TreeError> {
        let mut page = change.allocate()?;
        NodeMut(&mut page).clear(0, NONE);
        Ok(Self { root: page.page() })
    }

    /// Opens the tree with the root page `root`.
    #[must_use]
    pub fn open(root: PageId) -> Self {
        Self { root }
    }

    /// Returns the root page.
    #[must_use]
    pub fn root(&self) -> PageId {
        self.root
    }

    /// Finds the leaf where a key would be.
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

    /// Passes the value of a key to `show`, if there is one.
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

    /// Returns the value of a key in pages that do not come from the pool, such as a mapping of a
    /// file without writers.
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

    /// Passes every entry from a key on to `show`, in order, until `show` breaks. A scan does not
    /// mark the leaves after the first as used ([`Pool::shared_once`]). A leaf is latched while
    /// `show` gets its entries.
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

    /// Finds the leaf where a key would be, and latches it exclusively.
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
                // Another thread split the root meanwhile.
                continue;
            }
            while node.level() > 1 {
                page = change.pool().shared(node.child(node.find(key).0))?;
                node = Node(&page);
            }
            return change.exclusive(node.child(node.find(key).0));
        }
    }

    /// Inserts an entry or replaces the one with its key. Returns whether there was one.
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

    /// Finds the leaf where a key would be, with `bytes` of room. Splits pages so that all above it
    /// have room for one more key.
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

    /// Removes an entry. Returns whether there was one. A page without entries stays in the tree.
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

    /// Walks the whole tree, and panics at the first broken invariant. Returns the number of
    /// entries. For tests.
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

/// Splits a full child, which is at index `at` of `parent`. Returns the half where a key would be.
fn split<'change>(
    change: &'change Change<'_>,
    (parent, at): (&mut Exclusive<'change>, usize),
    mut child: Exclusive<'change>,
    key: &[u8],
) -> Result<Exclusive<'change>, PoolError> {
    let node = Node(&child);
    // Inserts in key order leave full pages behind.
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
