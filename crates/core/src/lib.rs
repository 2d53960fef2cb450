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
//! ([`Engine::isolate`], [`Engine::oldest_standby`]). The driver moves the pages and reports each
//! step.
//!
//! ```
//! use ebb_mm::{Arrival, Engine, Entry, Evidence, Vpn};
//!
//! // Room for a hundred pages. Only unmapping a page (standby) shows whether it is used.
//! let evidence = Evidence::Standby;
//! let mut engine = Engine::new(100, 100, evidence.tunables(), evidence);
//! let mut space = engine.create_space(Vpn(1_000));
//! let page = Vpn(7);
//! assert_eq!(space.get(page), Entry::None);
//!
//! // The first touch. A page that is on its way is charged, and then in its place.
//! let charge = engine.set.zone.charge(1);
//! engine.set.zone.place(charge);
//! let pfn = engine.set.map(&mut space, page, Arrival::Fresh, None);
//! assert_eq!(space.get(page), Entry::Resident(pfn));
//!
//! // Reclaim chooses it and unmaps it. A fault finds it on standby and so proves that it is used.
//! let mut leaving = Vec::new();
//! engine.set.isolate_hard(1, &mut leaving);
//! assert_eq!(leaving, [pfn]);
//! engine.set.deactivate(&mut space, pfn, 0);
//! assert_eq!(space.get(page), Entry::Standby(pfn));
//! engine.set.reactivate(&mut space, pfn);
//!
//! // The next time nobody touches it. It is written to the store, and its memory is free.
//! leaving.clear();
//! engine.set.isolate_hard(1, &mut leaving);
//! engine.set.deactivate(&mut space, pfn, 0);
//! let slot = engine.set.take_slot()?;
//! engine.set.evict(&mut space, pfn, slot);
//! engine.set.zone.remove_resident(1);
//! assert!(matches!(space.get(page), Entry::Stored { slot: kept, .. } if kept == slot));
//! assert_eq!(engine.set.zone.used(), 0);
//!
//! // The next fault loads it. The frame keeps its slot, which is valid until the page is written.
//! let charge = engine.set.zone.charge(1);
//! engine.set.zone.place(charge);
//! let pfn = engine.set.map(&mut space, page, Arrival::Loaded, Some(slot));
//! assert_eq!(engine.set.frame(pfn).slot(), Some(slot));
//! # Ok::<(), ebb_mm::slots::NoSlot>(())
//! ```
//!
//! # A driver
//!
//! This is a complete driver in some sixty lines. The store accepts every page at once. The machine
//! finishes every order of the engine before the next access:
//!
//! ```
//! use ebb_mm::{Arrival, WakeRequests, Did, Do, Engine, Entry, Evidence, Pfn, Seen, Space, Vpn};
//!
//! struct Machine { engine: Engine, space: Space, wake_requests: WakeRequests, loads: u64 }
//!
//! impl Machine {
//!     fn touch(&mut self, vpn: Vpn) {
//!         let (set, space) = (&mut self.engine.set, &mut self.space);
//!         let slot = match space.get(vpn) {
//!             Entry::Resident(_) => return assert!(space.touch(vpn)),
//!             Entry::Standby(pfn) => return assert_eq!(set.reactivate(space, pfn), 0),
//!             Entry::Stored { slot, .. } => Some(slot),
//!             Entry::None => None,
//!         };
//!         // It is missing: one page of the budget, and kswapd if that leaves too little.
//!         self.loads += u64::from(slot.is_some());
//!         let charge = set.zone.charge(1);
//!         set.zone.place(charge);
//!         let how = if slot.is_some() { Arrival::Loaded } else { Arrival::Fresh };
//!         set.map(space, vpn, how, slot);
//!         space.touch(vpn);
//!         if set.zone.is_low() {
//!             self.engine.request_wake(&self.wake_requests);
//!             while self.work() {}
//!         }
//!     }
//!
//!     /// One step of kswapd. False if it sleeps.
//!     fn work(&mut self) -> bool {
//!         let (engine, space, mut pages) = (&mut self.engine, &mut self.space, Vec::<Pfn>::new());
//!         match engine.next(&self.wake_requests, Seen::default()) {
//!             Do::ToStandby(max) => {
//!                 engine.isolate(max, &mut pages);
//!                 pages.iter().for_each(|&pfn| engine.set.deactivate(space, pfn, 0));
//!             }
//!             Do::Store(max) => {
//!                 engine.oldest_standby(max, &mut pages);
//!                 for &pfn in &pages {
//!                     let kept = engine.set.frame(pfn).slot();
//!                     let slot = kept.unwrap_or_else(|| engine.set.take_slot().expect("room"));
//!                     engine.set.evict(space, pfn, slot);
//!                     engine.set.zone.remove_resident(1);
//!                 }
//!             }
//!             Do::Drop(_) | Do::Again => {}
//!             Do::Nap | Do::Sleep => return false,
//!             Do::OutOfMemory | Do::Thrashing => panic!("nothing can leave"),
//!         }
//!         let pages = pages.len() as u64;
//!         engine.did(Did { pages, scanned: pages, progress: pages });
//!         true
//!     }
//! }
//!
//! for evidence in [Evidence::Standby, Evidence::AccessedBits] {
//!     let mut engine = Engine::new(2_000, 2_000, evidence.tunables(), evidence);
//!     let space = engine.create_space(Vpn(10_000));
//!     let mut machine = Machine { engine, space, wake_requests: WakeRequests::new(), loads: 0 };
//!     // A thousand pages in constant use, and a pass over five thousand others.
//!     for round in 0..50 {
//!         (0..1_000).for_each(|page| machine.touch(Vpn(page)));
//!         (0..100).for_each(|page| machine.touch(Vpn(1_000 + round * 100 + page)));
//!     }
//!     assert!(machine.engine.set.zone.used() <= 2_000);
//!     assert!(machine.loads < 2_500, "{evidence:?}: {} of 50,000 were missing", machine.loads);
//! }
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
pub use engine::{Did, Do, Engine, Evidence, Loads, Seen};
pub use reclaim::{RequestResult, WakeRequests};
pub use resident::{Arrival, Charge, Dropped, Entry, Frame, Pressure, Resident, Space, Zone};
pub use tunables::Tunables;
pub use types::{MmId, PAGE_SIZE, Pfn, SlotId, Vpn};
