//! A type for each kind of number: frame, page, slot, address space. The compiler then refuses one
//! kind for another.

/// Bytes in a base page.
pub const PAGE_SIZE: usize = 4096;
/// log2 of [`PAGE_SIZE`].
pub const PAGE_SHIFT: u32 = 12;

/// A page frame: an index into the frame table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pfn(pub u32);

/// A virtual page number: a virtual address divided by [`PAGE_SIZE`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vpn(pub u64);

/// A swap slot: identifies one stored page, wherever the store keeps it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotId(pub u32);

/// The number of an address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MmId(pub u32);

impl Vpn {
    /// Returns the page that holds `address`.
    #[must_use]
    pub const fn of_address(address: u64) -> Self {
        Self(address >> PAGE_SHIFT)
    }

    /// Returns the address of the page's first byte.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
}
