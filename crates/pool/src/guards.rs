//! Latches as values: a page is latched for as long as its guard lives.

use crate::error::{PageId, PoolError};
use crate::frames::Bytes;
use crate::pool::{Inner, Pool};
use crate::word::Latch;
use parking_lot::RwLockReadGuard;
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

/// A page latched for reading: others may read it at the same time, and no thread writes to it.
#[must_use = "the page is latched for as long as this lives"]
pub struct Shared<'pool> {
    pool: &'pool Inner,
    page: PageId,
    frame: u32,
}

impl<'pool> Shared<'pool> {
    pub(crate) fn new(pool: &'pool Inner, page: PageId, once: bool) -> Result<Self, PoolError> {
        let frame = pool.fix(page, Latch::Shared, once)?;
        Ok(Self { pool, page, frame })
    }

    /// Returns the number of the page.
    #[must_use]
    pub fn page(&self) -> PageId {
        self.page
    }
}

impl Deref for Shared<'_> {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        // SAFETY: the page is latched shared until `drop`.
        unsafe { self.pool.frames.bytes(self.frame) }
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.pool.table.word(self.page).unlatch_shared();
    }
}

/// A page latched for writing: no other thread has it. A write makes it dirty, and a commit makes
/// the write durable.
#[must_use = "the page is latched for as long as this lives"]
pub struct Exclusive<'change> {
    pool: &'change Inner,
    page: PageId,
    frame: u32,
}

impl<'change> Exclusive<'change> {
    pub(crate) fn of(pool: &'change Inner, page: PageId, frame: u32) -> Self {
        Self { pool, page, frame }
    }

    /// Returns the number of the page.
    #[must_use]
    pub fn page(&self) -> PageId {
        self.page
    }
}

impl Deref for Exclusive<'_> {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        // SAFETY: the page is latched exclusively until `drop`.
        unsafe { self.pool.frames.bytes(self.frame) }
    }
}

impl DerefMut for Exclusive<'_> {
    fn deref_mut(&mut self) -> &mut Bytes {
        self.pool.dirtied(self.page);
        // SAFETY: the page is latched exclusively until `drop`, and `self` is borrowed for as long
        // as the reference lives.
        unsafe { self.pool.frames.bytes_mut(self.frame) }
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.pool.table.word(self.page).unlatch_exclusive();
    }
}

thread_local! {
    /// Addresses of the pools that this thread is changing.
    static CHANGES: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn key(pool: &Inner) -> usize {
    std::ptr::from_ref(pool).addr()
}

/// Returns whether this thread is within a change of the pool.
pub(crate) fn changes(pool: &Inner) -> bool {
    CHANGES.with_borrow(|changes| changes.contains(&key(pool)))
}

/// A set of writes that belong together: after a crash the pool has all of them or none. A commit
/// waits until no change is under way.
///
/// There is no rollback: a change that ends, even by an error, is committed as far as it went. A
/// program that cannot continue from there opens the pool anew, or keeps the data to undo it.
///
/// A thread within a change must not begin a second change of the same pool. It could wait for a
/// commit that waits for the first.
#[must_use = "pages are written within a change"]
pub struct Change<'pool> {
    pool: &'pool Pool,
    _gate: RwLockReadGuard<'pool, ()>,
}

impl<'pool> Change<'pool> {
    pub(crate) fn new(pool: &'pool Pool) -> Self {
        assert!(!changes(pool.inner()), "a change within a change of the same pool");
        let gate = pool.inner().gate.read();
        CHANGES.with_borrow_mut(|changes| changes.push(key(pool.inner())));
        Self { pool, _gate: gate }
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &'pool Pool {
        self.pool
    }

    /// Latches a page for writing.
    ///
    /// # Errors
    /// There is no such page, or it cannot be read.
    pub fn exclusive(&self, page: PageId) -> Result<Exclusive<'_>, PoolError> {
        let pool = self.pool.inner();
        let frame = pool.fix(page, Latch::Exclusive, false)?;
        Ok(Exclusive::of(pool, page, frame))
    }

    /// Adds a page at the end, all zeros.
    ///
    /// # Errors
    /// The pool has as many pages as it was opened for, or no frame is available.
    pub fn allocate(&self) -> Result<Exclusive<'_>, PoolError> {
        let pool = self.pool.inner();
        let (page, frame) = pool.allocate()?;
        Ok(Exclusive::of(pool, page, frame))
    }

    /// Ends the change, and makes it and all changes before it durable.
    ///
    /// # Errors
    /// As [`Pool::commit`].
    pub fn commit(self) -> Result<(), PoolError> {
        let pool = self.pool;
        drop(self);
        pool.commit()
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let key = key(self.pool.inner());
        CHANGES.with_borrow_mut(|changes| changes.retain(|&other| other != key));
    }
}
