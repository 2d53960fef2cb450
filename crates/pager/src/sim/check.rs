//! Invariants that must hold whenever no thread is in the middle of an operation.
//!
//! * CHECK-1: the engine's own invariants: frames, lists, references to slots.
//! * CHECK-2: a pool slot is used as long as a standby page lies there, and no longer.
//! * CHECK-3: while an address space is not changing, a page known to be in memory is there, and
//!   one known to be elsewhere is not. An unknown page never had content.
//! * CHECK-4: a page in the pool, or in the store, has the content that the program wrote last.
//! * CHECK-5: the known pages of an address space equal those of its table and its pool, to the
//!   page.
//! * CHECK-6: the budget's charges equal those of the loads under way, and no more.
//! * CHECK-7: a page in the pool, or in the store, belongs to an area whose faults the pager gets.
//!   A resident page does, too, if its process is alone in its fork group. A child may keep entries
//!   of areas that it did not inherit, also after the others have ended. This happens if it was
//!   changing before the pager could follow its fork.
//! * CHECK-8: while no process has members in its fork group, the budget's count changes as the
//!   known pages of all do. This holds between ticks of the monitor, which measures, and adopts
//!   unknown pages.
//! * CHECK-9: no page is off the lists unless kswapd is moving it.
//! * CHECK-10: the process assigned to an address space, and the agent given to it, are its own.

use super::driver::{Driver, number_in};
use super::world::{Doing, Space, World};
use crate::faults::following::Following;
use crate::mm::{Mm, State};
use ebb_mm::resident::{Entry, FrameState, Resident};
use ebb_mm::types::{MmId, SlotId, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// State at a check (CHECK-8): monitor ticks, address spaces, uncounted pages, and by how much the
/// budget's count exceeded the known pages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Balance {
    looks: u64,
    mms: Vec<MmId>,
    uncounted: u64,
    beyond: i64,
}

/// Checks all invariants. Returns the first that does not hold.
pub fn check(driver: &Driver) -> Result<(), String> {
    let mms = driver.pager.mms();
    let states: Vec<_> = mms.iter().map(|mm| mm.lock()).collect();
    let resident = driver.pager.resident();
    let pending_state = driver.pending.lock();
    let loads: Vec<SlotId> = pending_state.loads.values().map(|load| load.slot).collect();
    let mut spaces: Vec<_> = states.iter().map(|state| &state.space).collect();
    spaces.extend(pending_state.followed().filter_map(Following::child));
    resident.check_invariants(&spaces, &loads);
    let charged: u64 = pending_state.loads.values().map(|load| load.charge.pages()).sum();
    if resident.zone.charged() != charged {
        let zone = resident.zone.charged();
        return Err(format!("{zone} pages are charged, to loads {charged}"));
    }
    balance(driver, &mms, &resident)?;
    let isolated = resident.count(FrameState::Isolated);
    if isolated > 0 && driver.is_kswapd_idle() {
        return Err(format!("{isolated} pages are on no list"));
    }
    let mut world = driver.world.lock();
    let deep = world.rng.once_in(64);
    for (mm, state) in mms.iter().zip(&states) {
        own(mm)?;
        // A batch is under way, or its agent was stopped in the middle, so pages are on their way.
        if state.reads_blocked || state.ended {
            continue;
        }
        pool(mm, state, &resident)?;
        let Some(id) = world.spaces.iter().position(|space| space.mm == Some(mm.id.0)) else {
            continue;
        };
        if is_still(&world.spaces[id]) {
            let alone = !mm.fork_group.is_related();
            let of = Of { driver, resident: &resident, world: &world, id, alone, deep };
            of.pages(state)?;
        }
    }
    Ok(())
}

/// CHECK-8.
fn balance(driver: &Driver, mms: &[Arc<Mm>], resident: &Resident) -> Result<(), String> {
    // The child of a fork may be unread yet. Its pages are shared and copied all the same.
    let is_known = |space: &Space| mms.iter().any(|mm| space.mm == Some(mm.id.0));
    let forked = driver.world.lock().spaces.iter().any(|space| space.alive && !is_known(space));
    if forked || mms.iter().any(|mm| mm.fork_group.is_related()) {
        driver.balance.take();
        return Ok(());
    }
    let known: i64 = mms.iter().map(|mm| mm.pages.known.load(Relaxed)).sum();
    let now = Balance {
        looks: driver.looks.get(),
        mms: mms.iter().map(|mm| mm.id).collect(),
        uncounted: resident.zone.uncounted(),
        beyond: resident.zone.resident().cast_signed() - known,
    };
    let before = driver.balance.replace(now);
    let now = driver.balance.borrow();
    let same =
        (before.looks, &before.mms, before.uncounted) == (now.looks, &now.mms, now.uncounted);
    if same && before.beyond != now.beyond {
        return Err(format!("the budget held {before:?}, and holds {now:?}"));
    }
    Ok(())
}

/// CHECK-10.
fn own(mm: &Mm) -> Result<(), String> {
    let id = number_in(&format!("{:?}", &*mm.uffd));
    let process = mm.process().map(|process| number_in(&format!("{process:?}")));
    let agent = mm.agent.link().and_then(|link| link.number());
    if process.is_some_and(|process| process != id) || agent.is_some_and(|agent| agent != id) {
        return Err(format!("{id} counts as process {process:?}, with the agent of {agent:?}"));
    }
    Ok(())
}

/// Whether no change of the address space is under way or unread.
fn is_still(space: &Space) -> bool {
    let still = |doing: &Doing| !matches!(doing, Doing::Call { .. } | Doing::Zap { .. });
    space.alive
        && space.changing == 0
        && space.threads.iter().all(|thread| still(&thread.doing))
        && still(&space.agent_doing)
}

/// CHECK-7.
fn ensure_registered(space: &Space, vpn: Vpn) -> bool {
    space.area_of(vpn.0).is_some_and(|(_, area)| area.registered)
}

/// CHECK-2.
fn pool(mm: &Arc<Mm>, state: &State, resident: &Resident) -> Result<(), String> {
    let mut standby = 0;
    let mut wrong = None;
    state.space.for_each(|vpn, entry| {
        if let Entry::Standby(pfn) = entry {
            standby += 1;
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
        held += i64::from(matches!(entry, Entry::Resident(_) | Entry::Standby(_)));
    });
    let known = mm.pages.known.load(Relaxed);
    if known != held {
        return Err(format!("{known} pages of {:?} are known, it holds {held}", mm.id));
    }
    let used = state.pool.used();
    if used != standby {
        return Err(format!("{used} places of {:?} are used by {standby} cool pages", mm.id));
    }
    Ok(())
}

/// An address space, seen from both sides.
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
            Entry::Resident(_)
                if self.alone && !ensure_registered(space, vpn) && !space.is_spared(vpn.0) =>
            {
                Err(format!("{:x} is known, and nobody would hear of a change", vpn.0))
            }
            Entry::Resident(_) if there.is_none() && !space.allows(vpn.0, 0) => {
                Err(format!("{:x} is known to be there and is not; it held {due}", vpn.0))
            }
            Entry::Resident(_) => Ok(()),
            Entry::Standby(_) | Entry::Stored { .. }
                if !ensure_registered(space, vpn) && !space.is_spared(vpn.0) =>
            {
                Err(format!("{:x} is {entry:?}, and nobody would hear of a touch", vpn.0))
            }
            Entry::Standby(_) | Entry::Stored { .. } if there.is_some() => {
                Err(format!("{:x} is there, and {entry:?}", vpn.0))
            }
            Entry::Standby(pfn) => {
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
