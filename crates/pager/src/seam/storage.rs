//! The store, as far as the pager uses it.

use ebb_mm::types::SlotId;
use ebb_swap::{Page, Source, Store, StoreError, StoreReads, StoreStats, Whereabouts};
use std::os::fd::BorrowedFd;

/// Calls of the store; [`Store`] documents each.
pub trait Storage: Send + Sync {
    /// Stores pages, each in a slot of its own.
    fn put_batch(&self, writes: &[(SlotId, &Page)], results: &mut Vec<Result<(), StoreError>>);
    /// Fills `page` if that takes no waiting. Returns the source.
    fn get_now(&self, slot: SlotId, page: &mut Page) -> Result<Option<Source>, StoreError>;
    /// Starts several reads; each token completes exactly once.
    fn start_batch(&self, reads: &[(SlotId, u64)]);
    /// Calls `each` for every completed read.
    fn poll_completions(&self, each: &mut dyn FnMut(u64, Result<&Page, StoreError>));
    /// Whether the content of a slot may stand for a page with this hash.
    fn reuse_copy(&self, slot: SlotId, hash: u64) -> bool;
    /// Whether the copy in a slot is worth keeping beside the page itself.
    fn is_worth_keeping(&self, slot: SlotId) -> bool;
    /// Reports the locations of the pages in slots, in their order.
    fn places(&self, slots: &[SlotId], found: &mut dyn FnMut(Option<Whereabouts>));
    /// Whether the page in a slot is on another machine.
    fn is_remote(&self, slot: SlotId) -> bool;
    /// Forgets the page in a slot.
    fn remove(&self, slot: SlotId);
    /// Returns the bytes of memory that the store takes.
    fn ram_bytes(&self) -> u64;
    /// Changes the limit of compressed memory.
    fn set_ram_limit(&self, bytes: u64);
    /// Lets compressed memory grow by `step` bytes, up to `most`.
    fn grow_ram(&self, step: u64, most: u64);
    /// Whether pages can move from compressed memory to a tier behind it.
    fn can_demote(&self) -> bool;
    /// Returns the counts of pages read.
    fn reads(&self) -> StoreReads;
    /// Returns the figures of the tiers.
    fn stats(&self) -> StoreStats;
    /// Closes the store at the end of the run.
    fn close(&self);
    /// Returns a descriptor that is readable while completions wait; a simulated store has none.
    fn completion_fd(&self) -> Option<BorrowedFd<'_>>;
}

impl Storage for Store {
    fn put_batch(&self, writes: &[(SlotId, &Page)], results: &mut Vec<Result<(), StoreError>>) {
        Self::put_batch(self, writes, results);
    }

    fn get_now(&self, slot: SlotId, page: &mut Page) -> Result<Option<Source>, StoreError> {
        Self::get_now(self, slot, page)
    }

    fn start_batch(&self, reads: &[(SlotId, u64)]) {
        Self::start_batch(self, reads);
    }

    fn poll_completions(&self, each: &mut dyn FnMut(u64, Result<&Page, StoreError>)) {
        Self::poll_completions(self, each);
    }

    fn reuse_copy(&self, slot: SlotId, hash: u64) -> bool {
        Self::reuse_copy(self, slot, hash)
    }

    fn is_worth_keeping(&self, slot: SlotId) -> bool {
        Self::is_worth_keeping(self, slot)
    }

    fn places(&self, slots: &[SlotId], found: &mut dyn FnMut(Option<Whereabouts>)) {
        Self::places(self, slots, found);
    }

    fn is_remote(&self, slot: SlotId) -> bool {
        Self::is_remote(self, slot)
    }

    fn remove(&self, slot: SlotId) {
        Self::remove(self, slot);
    }

    fn ram_bytes(&self) -> u64 {
        Self::ram_bytes(self)
    }

    fn set_ram_limit(&self, bytes: u64) {
        Self::set_ram_limit(self, bytes);
    }

    fn grow_ram(&self, step: u64, most: u64) {
        Self::grow_ram(self, step, most);
    }

    fn can_demote(&self) -> bool {
        Self::can_demote(self)
    }

    fn reads(&self) -> StoreReads {
        Self::reads(self)
    }

    fn stats(&self) -> StoreStats {
        Self::stats(self)
    }

    fn close(&self) {
        Self::close(self);
    }

    fn completion_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(Self::completion_fd(self))
    }
}
