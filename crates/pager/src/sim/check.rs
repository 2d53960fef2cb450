//! What must hold whenever nobody is in the middle of something.
//!
//! * CHECK-1: the engine's own invariants: frames, lists, shares of slots.
//! * CHECK-2: a place of a pool is used as long as a cool page lies there, and no longer.
//! * CHECK-3: where an address space is not changing: a page that is known to be in memory is there, one that is
//!   known to be elsewhere is not, and one that nobody knows of never held anything.
//! * CHECK-4: what lies in the pool, or in the store, is what the program wrote last.
//! * CHECK-5: what is known of an address space is what its table and its pool hold, to the page.
//! * CHECK-6: what the budget has promised is what the loads under way have been promised, and no more.
//! * CHECK-7: what lies in the pool, or in the store, belongs to an area whose touches the pager is told of; so does what is
//!   in memory of who has no relatives (a child may keep entries of areas that it was not given, also after they have
//!   ended, if it was changing before its fork could be followed).
//! * CHECK-8: while nobody has relatives, what the budget holds changes as what is known of all does; between the looks of
//!   the monitor, which measures, and takes on what nobody knew.
//! * CHECK-9: no page is off the lists but while kswapd has it moved.
//! * CHECK-10: the process that an address space is taken for, and the agent it is given, are its own.

use super::driver::{Driver, number_in};
use super::world::{Doing, Space, World};
use crate::following::Following;
use crate::mm::{Mm, State};
use ebb_mm::resident::{Entry, Place, Resident};
use ebb_mm::types::{MmId, SlotId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What stood beside what at a look (CHECK-8): when, of whom, and by how much the budget's count exceeded what was known.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Balance {
    looks: u64,
    mms: Vec<MmId>,
    unheld: u64,
    beyond: i64,
}

/// Looks at everything; what does not hold.
pub fn check(driver: &Driver) -> Result<(), String> {
    let mms = driver.pager.mms();
    let states: Vec<_> = mms.iter().map(|mm| mm.lock()).collect();
    let resident = driver.pager.resident();
    let books = driver.pending.books();
    let loads: Vec<SlotId> = books.loads.values().map(|load| load.slot).collect();
    let mut spaces: Vec<_> = states.iter().map(|state| &state.space).collect();
    spaces.extend(books.followed().filter_map(Following::child));
    resident.check_invariants(&spaces, &loads);
    let promised: u64 = books.loads.values().map(|load| load.charge.pages()).sum();
    if resident.zone.promised() != promised {
        let zone = resident.zone.promised();
        return Err(format!("{zone} pages are promised, to loads {promised}"));
    }
    balance(driver, &mms, &resident)?;
    let isolated = resident.count(Place::Isolated);
    if isolated > 0 && driver.is_kswapd_idle() {
        return Err(format!("{isolated} pages are on no list"));
    }
    let mut world = driver.world.lock();
    let deep = world.rng.once_in(64);
    for (mm, state) in mms.iter().zip(&states) {
        own(mm)?;
        // A batch is under way, or was left in the middle: pages are on their way.
        if state.busy || state.ended {
            continue;
        }
        pool(mm, state, &resident)?;
        let Some(id) = world.spaces.iter().position(|space| space.mm == Some(mm.id.0)) else {
            continue;
        };
        if is_still(&world.spaces[id]) {
            let alone = !mm.related.load(Relaxed);
            let of = Of { driver, resident: &resident, world: &world, id, alone, deep };
            of.pages(state)?;
        }
    }
    Ok(())
}

/// CHECK-8.
fn balance(driver: &Driver, mms: &[Arc<Mm>], resident: &Resident) -> Result<(), String> {
    // Or one that has forked, of whose child nobody has told yet: its pages are shared all the same, and copied.
    let is_known = |space: &Space| mms.iter().any(|mm| space.mm == Some(mm.id.0));
    let forked = driver.world.lock().spaces.iter().any(|space| space.alive && !is_known(space));
    if forked || mms.iter().any(|mm| mm.related.load(Relaxed)) {
        driver.balance.take();
        return Ok(());
    }
    let known: i64 = mms.iter().map(|mm| mm.known.load(Relaxed)).sum();
    let now = Balance {
        looks: driver.looks.get(),
        mms: mms.iter().map(|mm| mm.id).collect(),
        unheld: resident.zone.unheld(),
        beyond: resident.zone.held().cast_signed() - known,
    };
    let before = driver.balance.replace(now);
    let now = driver.balance.borrow();
    let same = (before.looks, &before.mms, before.unheld) == (now.looks, &now.mms, now.unheld);
    if same && before.beyond != now.beyond {
        return Err(format!("the budget held {before:?}, and holds {now:?}"));
    }
    Ok(())
}

/// CHECK-10.
fn own(mm: &Mm) -> Result<(), String> {
    let id = number_in(&format!("{:?}", mm.uffd));
    let process = mm.process().map(|process| number_in(&format!("{process:?}")));
    let agent = mm.link.get().and_then(|link| link.number());
    if process.is_some_and(|process| process != id) || agent.is_some_and(|agent| agent != id) {
        return Err(format!("{id} counts as process {process:?}, with the agent of {agent:?}"));
    }
    Ok(())
}

/// Nothing of it changes, and nothing that changed is still to be heard of.
fn is_still(space: &Space) -> bool {
    let still = |doing: &Doing| !matches!(doing, Doing::Call { .. } | Doing::Zap { .. });
    space.alive
        && space.changing == 0
        && space.threads.iter().all(|thread| still(&thread.doing))
        && still(&space.agent_doing)
}

/// CHECK-7.
fn is_told(space: &Space, vpn: Vpn) -> bool {
    space.area_of(vpn.0).is_some_and(|(_, area)| area.registered)
}

/// CHECK-2.
fn pool(mm: &Arc<Mm>, state: &State, resident: &Resident) -> Result<(), String> {
    let mut cool = 0;
    let mut wrong = None;
    state.space.for_each(|vpn, entry| {
        if let Entry::Cool(pfn) = entry {
            cool += 1;
            if !state.pool.is_used(resident.frame(pfn).pool) {
                wrong = Some(vpn);
            }
        }
    });
    if let Some(vpn) = wrong {
        return Err(format!("page {:x} of {:?} is cool in a place that is free", vpn.0, mm.id));
    }
    let mut held = state.pool.undropped() as i64;
    state.space.for_each(|_, entry| {
        held += i64::from(matches!(entry, Entry::Resident(_) | Entry::Cool(_)));
    });
    let known = mm.known.load(Relaxed);
    if known != held {
        return Err(format!("{known} pages of {:?} are known, it holds {held}", mm.id));
    }
    let used = state.pool.used();
    if used != cool {
        return Err(format!("{used} places of {:?} are used by {cool} cool pages", mm.id));
    }
    Ok(())
}

/// One address space, seen from both sides.
struct Of<'a> {
    driver: &'a Driver,
    resident: &'a Resident,
    world: &'a World,
    id: usize,
    alone: bool,
    deep: bool,
}

impl Of<'_> {
    /// CHECK-3 and CHECK-4.
    fn pages(&self, state: &State) -> Result<(), String> {
        let space = &self.world.spaces[self.id];
        let mut wrong = None;
        state.space.for_each(|vpn, entry| {
            if wrong.is_none() {
                wrong = self.page(space, state, vpn, entry).err();
            }
        });
        if let Some(wrong) = wrong {
            return Err(format!("page of {}: {wrong}", self.id));
        }
        for (&page, &stamp) in &space.truth {
            let managed = space.area_of(page).is_some_and(|(_, area)| area.registered);
            let unknown = state.space.get(Vpn(page)) == Entry::None;
            let nowhere = managed && unknown && !space.pages.contains_key(&page);
            if nowhere && stamp != 0 && !space.loose.contains(&page) {
                return Err(format!("page {page:x} of {} is nowhere: it held {stamp}", self.id));
            }
        }
        Ok(())
    }

    fn page(&self, space: &Space, state: &State, vpn: Vpn, entry: Entry) -> Result<(), String> {
        let there = space.pages.get(&vpn.0);
        let due = space.truth.get(&vpn.0).copied().unwrap_or(0);
        match entry {
            Entry::None => Ok(()),
            Entry::Resident(_) if self.alone && !is_told(space, vpn) && !space.is_spared(vpn.0) => {
                Err(format!("{:x} is known, and nobody would hear of a change", vpn.0))
            }
            Entry::Resident(_) if there.is_none() && !space.allows(vpn.0, 0) => {
                Err(format!("{:x} is known to be there and is not; it held {due}", vpn.0))
            }
            Entry::Resident(_) => Ok(()),
            Entry::Cool(_) | Entry::Stored { .. }
                if !is_told(space, vpn) && !space.is_spared(vpn.0) =>
            {
                Err(format!("{:x} is {entry:?}, and nobody would hear of a touch", vpn.0))
            }
            Entry::Cool(_) | Entry::Stored { .. } if there.is_some() => {
                Err(format!("{:x} is there, and {entry:?}", vpn.0))
            }
            Entry::Cool(pfn) => {
                let place = state.pool.address(self.resident.frame(pfn).pool) >> 12;
                let found = space.pages.get(&place).map(|page| page.stamp);
                match found {
                    Some(stamp) if space.allows(vpn.0, stamp) => Ok(()),
                    _ => Err(format!("{:x} is cool as {found:?}, not {due}", vpn.0)),
                }
            }
            Entry::Stored { slot, .. } if self.deep => {
                let mut page = [0; 4096];
                let stamp = self.driver.storage.read(slot, &mut page);
                match stamp {
                    Some(stamp) if space.allows(vpn.0, stamp) => Ok(()),
                    _ => Err(format!("{:x} is stored as {stamp:?}, not {due}", vpn.0)),
                }
            }
            Entry::Stored { .. } => Ok(()),
        }
    }
}
