//! The memory manager: frames, address spaces, generations, swap slots, reclaim.
//!
//! `core` is pure: no system call, no clock, no thread, no I/O, no unsafe code. Real memory (`ebb run`)
//! and simulated memory (`ebb lab`) drive the very same code and hand it what it cannot know: what time
//! it is, which pages the hardware says were touched, what became of a write.
//!
//! Its parts can be driven each by itself, as a kernel's are ([`frame`], [`lru`], [`space`], [`reclaim`], [`writeback`],
//! [`swap`], [`memcg`]), or all together as one budget of memory through [`engine::Engine`], which is what `ebb run` does.
//!
//! # The life of a page
//!
//! A page is nothing yet, resident, cool (in memory, and out of its program's sight), or stored. Who drives the engine makes
//! each step and tells it; the engine says which pages are to make it ([`Engine::isolate`], [`Engine::coolest`]).
//!
//! ```
//! use ebb_mm::{Arrival, Engine, Entry, Evidence, Vpn};
//!
//! // Room for a hundred pages. Nobody can see whether they are used but by taking them out of sight.
//! let evidence = Evidence::Cooling;
//! let mut engine = Engine::new(100, 100, evidence.tunables(), evidence);
//! let mut space = engine.create_space(Vpn(1_000));
//! let page = Vpn(7);
//! assert_eq!(space.get(page), Entry::None);
//!
//! // The first touch. A page that is on its way is promised, and then in its place.
//! let charge = engine.set.zone.charge(1);
//! engine.set.zone.place(charge);
//! let pfn = engine.set.map(&mut space, page, Arrival::Fresh, None);
//! assert_eq!(space.get(page), Entry::Resident(pfn));
//!
//! // It is the one to leave: taken out of sight. It is touched there, and so proves that it is used.
//! let mut leaving = Vec::new();
//! engine.set.isolate_hard(1, &mut leaving);
//! assert_eq!(leaving, [pfn]);
//! engine.set.cool(&mut space, pfn, 0);
//! assert_eq!(space.get(page), Entry::Cool(pfn));
//! engine.set.rescue(&mut space, pfn);
//!
//! // The next time nobody touches it. It is written to the store, and its memory is free.
//! leaving.clear();
//! engine.set.isolate_hard(1, &mut leaving);
//! engine.set.cool(&mut space, pfn, 0);
//! let slot = engine.set.take_slot()?;
//! engine.set.evict(&mut space, pfn, slot);
//! engine.set.zone.gone(1);
//! assert!(matches!(space.get(page), Entry::Stored { slot: kept, .. } if kept == slot));
//! assert_eq!(engine.set.zone.used(), 0);
//!
//! // Touched again: loaded. It knows its copy, which is good for as long as nobody writes to the page.
//! let charge = engine.set.zone.charge(1);
//! engine.set.zone.place(charge);
//! let pfn = engine.set.map(&mut space, page, Arrival::Loaded, Some(slot));
//! assert_eq!(engine.set.frame(pfn).slot(), Some(slot));
//! # Ok::<(), ebb_mm::swap::NoSlot>(())
//! ```
//!
//! # A driver
//!
//! In some sixty lines. Its store takes everything at once, and its machine does what it is told before it goes on:
//!
//! ```
//! use ebb_mm::{Arrival, Desk, Did, Do, Engine, Entry, Evidence, Pfn, Seen, Space, Vpn};
//!
//! struct Machine { engine: Engine, space: Space, desk: Desk, loads: u64 }
//!
//! impl Machine {
//!     fn touch(&mut self, vpn: Vpn) {
//!         let (set, space) = (&mut self.engine.set, &mut self.space);
//!         let slot = match space.get(vpn) {
//!             Entry::Resident(_) => return assert!(space.touch(vpn)),
//!             Entry::Cool(pfn) => return assert_eq!(set.rescue(space, pfn), 0),
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
//!             self.engine.ask(&self.desk);
//!             while self.work() {}
//!         }
//!     }
//!
//!     /// One step of kswapd. False if it sleeps.
//!     fn work(&mut self) -> bool {
//!         let (engine, space, mut pages) = (&mut self.engine, &mut self.space, Vec::<Pfn>::new());
//!         match engine.next(&self.desk, Seen::default()) {
//!             Do::Cool(max) => {
//!                 engine.isolate(max, &mut pages);
//!                 pages.iter().for_each(|&pfn| engine.set.cool(space, pfn, 0));
//!             }
//!             Do::Store(max) => {
//!                 engine.coolest(max, &mut pages);
//!                 for &pfn in &pages {
//!                     let kept = engine.set.frame(pfn).slot();
//!                     let slot = kept.unwrap_or_else(|| engine.set.take_slot().expect("room"));
//!                     engine.set.evict(space, pfn, slot);
//!                     engine.set.zone.gone(1);
//!                 }
//!             }
//!             Do::Drop(_) | Do::Again => {}
//!             Do::Nap | Do::Sleep => return false,
//!             Do::Despair | Do::Thrashing => panic!("nothing can leave"),
//!         }
//!         let pages = pages.len() as u64;
//!         engine.did(Did { pages, scanned: pages, progress: pages });
//!         true
//!     }
//! }
//!
//! for evidence in [Evidence::Cooling, Evidence::AccessedBits] {
//!     let mut engine = Engine::new(2_000, 2_000, evidence.tunables(), evidence);
//!     let space = engine.create_space(Vpn(10_000));
//!     let mut machine = Machine { engine, space, desk: Desk::new(), loads: 0 };
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
//! In `examples/`, each run by a test: `machine` (the same program in less and less memory), `own_policy` (a driver that
//! keeps what is dear to bring back), `file_cache` (a cache of a file's pages, beside a plain LRU).
#![forbid(unsafe_code)]

pub mod engine;
pub mod folio;
pub mod frame;
pub mod lru;
pub mod memcg;
pub mod nearest;
pub mod observe;
pub mod random;
pub mod readahead;
pub mod reclaim;
pub mod resident;
pub mod space;
pub mod swap;
pub mod tunables;
pub mod types;
pub mod writeback;

// What a driver of the facade names.
pub use engine::{Did, Do, Engine, Evidence, Loads, Seen};
pub use reclaim::{Asked, Desk};
pub use resident::{Arrival, Charge, Dropped, Entry, Frame, Pressure, Resident, Space, Zone};
pub use tunables::Tunables;
pub use types::{MmId, PAGE_SIZE, Pfn, SlotId, Vpn};
