//! Signs of trouble: records of a run beside its figures, for the search for bugs.
//!
//! Each sign is recorded where it happens, over the whole run, and changes nothing.
//!
//! * Sleep: [`early`](Signs::early), [`idle`](Signs::idle), [`wake_ns`](Signs::wake_ns).
//! * Pages that reclaim takes: [`over`](Signs::over), [`needless`](Signs::needless),
//!   [`below_min`](Signs::below_min).
//! * Tasks that wait or die for want of memory: [`short_ns`](Signs::short_ns),
//!   [`spared`](Signs::spared).

use ebb_linux::frame::{Order, ZoneItem};
use ebb_linux::memcg::UNLIMITED;
use ebb_mm::folio::{LruType, MemcgId};
use ebb_mm::reclaim::Node;

use super::mem::Mem;
use super::outflow::Outflow;
use super::sched::Machine;

/// A part of a whole, both in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Part {
    /// The part.
    pub pages: u64,
    /// The whole.
    pub of: u64,
}

impl Part {
    /// Keeps the larger share of the two.
    fn keep(&mut self, other: Self) {
        let larger = u128::from(other.pages) * u128::from(self.of.max(1))
            > u128::from(self.pages) * u128::from(other.of.max(1));
        if larger {
            *self = other;
        }
    }
}

/// Signs of trouble in a run.
#[derive(Clone, Default, Debug)]
pub struct Signs {
    /// Number of sleeps that kswapd began while no zone of its node was in balance and the node was
    /// not given up.
    pub early: u64,
    /// Most steps that kswapd took in a row, each begun with a node in balance and nothing to work
    /// off.
    pub idle: u64,
    /// Longest time from a wake-up of kswapd to its next step, in nanoseconds.
    pub wake_ns: u64,
    /// Pages freed by a run of a task or a pass of kswapd, of the pages it was asked for. That
    /// number includes the batches of its lists.
    pub over: Part,
    /// Pages that reclaim from all memcgs took from a node, while more than twice the high mark was
    /// free in its highest zone.
    pub needless: u64,
    /// Pages that reclaim from all memcgs took from a memcg below its `min`, of that `min`.
    pub below_min: Part,
    /// Longest time that a task had no memory for one page, in nanoseconds.
    pub short_ns: u64,
    /// When a process was killed: pages that could still have gone, of all pages of the memcg that
    /// ran out of memory.
    pub spared: Part,
    /// Operations of measured threads by memcg.
    pub shares: Vec<u64>,
}

/// Pages that a list may give beyond the request: a batch of each of its kinds, and those of the
/// pagevecs.
const LIST_SLACK: u64 = 4 * 64;
/// Pages that may be free beyond twice a zone's high mark.
const ZONE_SLACK: u64 = 256;

impl Mem {
    /// Returns whether one of the node's zones is in balance, and whether none has a boost to work
    /// off.
    pub(super) fn is_fine(&self, node: usize) -> (bool, bool) {
        let node = self.frames_of(node);
        let highest = node.classes() - 1;
        let calm = node.boosts(highest).iter().all(|&boost| boost == 0);
        (node.balanced(Order::ZERO, highest), calm)
    }

    /// Records that a run or pass has freed `freed` pages. It was to free `target` from each of so
    /// many lists.
    pub(super) fn note_freed(&mut self, freed: u64, target: u64, lists: usize) {
        if freed > target {
            let of = lists as u64 * (target + LIST_SLACK);
            self.signs.over.keep(Part { pages: freed, of });
        }
    }

    /// Records that reclaim from all memcgs took so many pages of a node.
    pub(super) fn note_taken(&mut self, node: usize, freed: u64) {
        let zones = self.out.frames.zones().iter().map(|z| z.state());
        let Some(top) = zones.filter(|z| z.node() == node).max_by_key(|z| z.class()) else {
            return;
        };
        let free = top.counters().snapshot(ZoneItem::FreePages);
        if free.saturating_sub(freed) > 2 * top.marks().high + ZONE_SLACK {
            self.signs.needless += freed;
        }
    }

    /// Records that a process is killed because a task of this memcg has found no memory.
    pub(super) fn note_kill(&mut self, memcg: usize) {
        let top = self.full(memcg, 1);
        let within = |id: usize| {
            let group = |id: usize| MemcgId(id as u16 + 1);
            top.is_none_or(|top| self.out.groups.is_within(group(id), group(top)))
        };
        let stores = self.out.swap.is_some() && self.out.stored.has_room();
        let mut spared = Part::default();
        for (id, m) in self.memcgs.iter().enumerate().filter(|&(id, _)| within(id)) {
            let [anon, file] = [m.total(LruType::Anon), m.total(LruType::File)];
            let goes = file + if stores { anon } else { 0 };
            let knobs = self.out.groups.knobs(MemcgId(id as u16 + 1));
            let kept = if top == Some(id) { 0 } else { knobs.min };
            spared.pages += goes.saturating_sub(kept);
            spared.of += anon + file;
        }
        self.signs.spared.keep(spared);
    }
}

impl Outflow {
    /// Records that reclaim from all memcgs takes a page of this group.
    pub(super) fn note_protected(&mut self, group: MemcgId) {
        let knobs = self.groups.knobs(group);
        let usage = self.groups.usage(group);
        let below = knobs.min.saturating_sub(usage);
        // Memory of a group below another has no more protection than that one leaves it.
        if below > 0 && knobs.high == UNLIMITED && self.groups.path(group).count() == 1 {
            self.below_min.keep(Part { pages: below, of: knobs.min });
        }
    }
}

impl Machine {
    /// Records whether the thread lacks memory for the page that it touches.
    pub(super) fn note_short(&mut self, id: usize, t: u64, short: bool) {
        let since = &mut self.threads[id].short_since;
        if short {
            since.get_or_insert(t);
        } else if let Some(since) = since.take() {
            self.mem.signs.short_ns = self.mem.signs.short_ns.max(t.saturating_sub(since));
        }
    }

    /// Returns the signs until now.
    pub(super) fn signs(&mut self, now: u64) -> Signs {
        for id in 0..self.threads.len() {
            if !self.threads[id].ended {
                self.note_short(id, now, false);
            }
        }
        for node in 0..self.kswapds.len() {
            self.note_woken(node, now);
        }
        let mut signs = std::mem::take(&mut self.mem.signs);
        signs.below_min = self.mem.out.below_min;
        signs.shares = vec![0; self.mem.memcgs.len()];
        for thread in self.threads.iter().filter(|t| t.measured) {
            signs.shares[self.mem.memcg_of(thread.home)] += thread.ops;
        }
        signs
    }
}
