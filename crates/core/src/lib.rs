//! The engine of Ebb: address spaces, LRU lists and generations, kswapd, swap slots, the budget.
//!
//! `core` is pure: it has no system call, clock, thread, I/O or unsafe code. A driver calls it:
//! `ebb run` with real memory, `ebb lab` with simulated memory. The driver passes in all that
//! `core` cannot know: the time, accessed bits from hardware, the result of a write.
//!
//! A driver can use each part by itself: [`lru`], [`space`], [`reclaim`], [`slots`]. The model of
//! Linux in `ebb-linux` uses the first three so. [`engine::Engine`] joins the parts under one
//! budget of memory, and `ebb run` uses the `Engine`.
//!
//! # The life of a page
//!
//! A page has no entry yet, or it is resident, on standby, or stored. A standby page is still in
//! memory, but unmapped from its program. The engine chooses the pages that leave
//! ([`Engine::work`]). The driver moves the pages and reports each step.
//!
//! # A driver
//!
//! This is a complete driver. The store accepts every page at once. The machine finishes all work
//! of kswapd before the next access:
//!
//! ```
//! use ebb_mm::{Engine, Entry, Evidence, Fault, Space, Vpn, WakeRequests, Work};
//!
//! struct Machine { engine: Engine, space: Space, wake_requests: WakeRequests, loads: u64 }
//!
//! impl Machine {
//!     fn touch(&mut self, vpn: Vpn) -> Result<(), ebb_mm::NoSlot> {
//!         match self.engine.fault(&mut self.space, vpn) {
//!             Fault::Present(_) | Fault::Reactivated { .. } => return Ok(()),
//!             Fault::Load(_, charge) => {
//!                 self.loads += 1;
//!                 self.engine.complete(&mut self.space, vpn, charge)
//!             }
//!             Fault::Fresh(charge) => self.engine.complete(&mut self.space, vpn, charge),
//!         };
//!         let mut pages = Vec::new();
//!         while let Some(work) = self.engine.work(&self.wake_requests, &mut pages) {
//!             assert!(matches!(work, Work::ToStandby | Work::Store), "nothing can leave");
//!             for &pfn in &pages {
//!                 if work == Work::ToStandby {
//!                     self.engine.stand_by(&mut self.space, pfn, 0);
//!                 } else {
//!                     let slot = self.engine.slot_for(pfn)?;
//!                     self.engine.leave(&mut self.space, pfn, slot);
//!                 }
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! for evidence in [Evidence::Standby, Evidence::AccessedBits] {
//!     let mut engine = Engine::new(2_000, 2_000, evidence.tunables(), evidence);
//!     let space = engine.create_space(Vpn(10_000));
//!     let mut machine = Machine { engine, space, wake_requests: WakeRequests::new(), loads: 0 };
//!     // A thousand pages in constant use, and a pass over five thousand others.
//!     for round in 0..50 {
//!         (0..1_000).try_for_each(|page| machine.touch(Vpn(page)))?;
//!         (0..100).try_for_each(|page| machine.touch(Vpn(1_000 + round * 100 + page)))?;
//!     }
//!     assert!(machine.engine.set.zone.used() <= 2_000);
//!     assert!(machine.loads < 2_500, "{evidence:?}: {} of 50,000 were missing", machine.loads);
//!     assert!(matches!(machine.space.get(Vpn(1_000)), Entry::Stored { .. }));
//! }
//! # Ok::<(), ebb_mm::NoSlot>(())
//! ```
//!
//! # Examples
//!
//! `cargo test` runs a test of each of these drivers in `examples/`:
//! * `machine`: one program in less and less memory.
//! * `own_policy`: a driver that keeps pages whose load is expensive.
//! * `file_cache`: a cache of a file's pages, compared with a plain LRU.
#![forbid(unsafe_code)]

pub mod driver;
pub mod engine;
pub mod folio;
pub mod lru;
pub mod nearest;
pub mod observe;
pub mod order;
pub mod random;
pub mod readahead;
pub mod reclaim;
pub mod resident;
pub mod slots;
pub mod space;
mod sync;
pub mod tunables;
pub mod types;
pub mod watermark;

// Names that a driver of the engine needs.
pub use engine::{Did, Do, Engine, Evidence, Fault, Loads, Seen, Work};
pub use reclaim::{RequestResult, WakeRequests};
pub use resident::{Arrival, Charge, Dropped, Entry, Frame, Pressure, Resident, Space, Zone};
pub use slots::NoSlot;
pub use tunables::Tunables;
pub use types::{MmId, PAGE_SIZE, Pfn, SlotId, Vpn};
