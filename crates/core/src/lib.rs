//! The memory manager: frames, address spaces, generations, swap slots, reclaim.
//!
//! `core` is pure: no system call, no clock, no thread, no I/O, no unsafe code. Real memory (`ebb run`)
//! and simulated memory (`ebb lab`) drive the very same code and hand it what it cannot know: what time
//! it is, which pages the hardware says were touched, what became of a write.
//!
//! Its parts can be driven each by itself, as a kernel's are ([`frame`], [`lru`], [`space`], [`reclaim`], [`writeback`],
//! [`swap`], [`memcg`]), or all together as one budget of memory through [`engine::Engine`], which is what `ebb run` does.
//!
//! A driver in some sixty lines. Its store takes everything at once, and its machine does what it is told before it goes on:
//!
//! ```
//! use ebb_core::engine::{Did, Do, Engine, Evidence, Seen};
//! use ebb_core::reclaim::Desk;
//! use ebb_core::resident::{Arrival, Entry, Space};
//! use ebb_core::types::{Pfn, Vpn};
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
#![forbid(unsafe_code)]

pub mod engine;
pub mod folio;
pub mod frame;
pub mod lru;
pub mod memcg;
pub mod nearest;
pub mod observe;
pub mod readahead;
pub mod reclaim;
pub mod resident;
pub mod space;
pub mod swap;
pub mod tunables;
pub mod types;
pub mod writeback;
