//! Fork group of an address space: what it shares with its parent and its children.
//!
//! `monitor/sharing.rs` counts the shared pages, and `cow_protect.rs` protects them.
//!
//! * FORKGROUP-1: `id` never changes. A forked child has its parent's.
//! * FORKGROUP-2: `related` is set while another member exists. The fork sets it in the parent
//!   after the child is in the list of address spaces. So the thread that clears it looks again
//!   (`monitor/sharing.rs`).
//! * FORKGROUP-3: forks and counts set `discount`. In between it falls with each page that the
//!   process releases and others keep. It may be below zero (SHARING-1).
//! * FORKGROUP-4: `cow_protected` says nothing of pages that an address space got after its last
//!   protection. A fork clears it in the parent.
//!
//! Lock order: no lock here.

use ebb_mm::types::MmId;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// Membership of an address space in its fork group.
#[derive(Debug)]
pub struct ForkGroup {
    /// Number of the fork group: the id of its first address space, from which forks made the
    /// others.
    pub id: MmId,
    /// Whether the address space may share pages with another member.
    pub related: AtomicBool,
    /// Discount: mapped pages minus the share of the process (PSS), by the last count. Each page
    /// that the process has released since, and that others keep, reduces the discount.
    pub discount: AtomicI64,
    /// Whether the shared pages have copy-on-write protection.
    pub cow_protected: AtomicBool,
}

impl ForkGroup {
    /// Creates the fork group whose only member is address space `id`.
    pub fn of_one(id: MmId) -> Self {
        Self {
            id,
            related: AtomicBool::new(false),
            discount: AtomicI64::new(0),
            cow_protected: AtomicBool::new(false),
        }
    }

    /// Creates the membership of a forked child.
    pub fn of_child(&self) -> Self {
        Self { related: AtomicBool::new(true), ..Self::of_one(self.id) }
    }

    /// Whether the address space may share pages with another member.
    pub fn is_related(&self) -> bool {
        self.related.load(Relaxed)
    }

    /// Whether the shared pages have copy-on-write protection.
    pub fn is_cow_protected(&self) -> bool {
        self.cow_protected.load(Relaxed)
    }

    /// Notes that `pages` shared pages are now this process's own, or the others' alone
    /// (SHARING-1).
    pub fn shares_less(&self, pages: u64) {
        self.discount.fetch_sub(pages.cast_signed(), Relaxed);
    }

    /// Returns how many of `resident` pages are the share of other members, as far as known.
    pub fn share_of_others(&self, resident: u64) -> u64 {
        self.discount.load(Relaxed).max(0).cast_unsigned().min(resident)
    }
}
