//! Reclaim on the simulated machine: who does it, how long it takes, and who waits meanwhile.
//!
//! A run of the engine happens at one moment of virtual time; what it did is read off its counters
//! and turned into time by the cost model. The part under the lru lock makes the next run on the
//! same lists wait.

use std::sync::Arc;

use ebb_core::folio::{LruType, MemcgId, Word};
use ebb_core::frame::Order;
use ebb_core::lru::{Ctx, Protection, Scan};
use ebb_core::memcg::Memcgs;
use ebb_core::observe::vmstat::Event;
use ebb_core::reclaim::oom::ROUNDS_MAX as HOPE_ROUNDS;
use ebb_core::reclaim::throttle::Wait;
use ebb_core::reclaim::{
    Achieved, Direct, DirectPassed, Flags, Hope, Outlook, Reason, Verdict, direct,
};
use ebb_core::tunables::{Dirty, OomRule};
use ebb_core::types::Pfn;

use super::mem::{Fault, Mem, cx};

/// Rounds of reclaim in one fault: those after which hope is given up, and the one that does it.
const ROUNDS_MAX: u32 = HOPE_ROUNDS + 1;
/// Frames looked at for a slot to take back.
const RECOVER_FRAMES: u32 = 1024;
/// How often a task that waits for writes looks.
const WRITE_WAIT_NS: u64 = 1_000_000;

impl Mem {
    /// The memcg that has no room for `pages` more, of `memcg` and those above it.
    fn full(&self, memcg: usize, pages: u64) -> Option<usize> {
        let full = self.out.groups.full(MemcgId(memcg as u16 + 1), pages)?;
        Some(usize::from(full.0) - 1)
    }

    /// Reclaims until `pages` fit, at least one. Returns how many fit and what that cost; if none
    /// do, `out.patience` says when to try again, or that there is no use in it.
    pub(super) fn make_room(&mut self, now: u64, memcg: usize, pages: u64) -> (u64, u64) {
        let mut cost = 0;
        self.out.patience = None;
        if self.still_waits(now) {
            return (0, 0);
        }
        let mut drained = false;
        for _ in 0..ROUNDS_MAX {
            let full = self.full(memcg, pages);
            let from = if full.is_some() {
                full
            } else if let Some(pfn) = self.alloc() {
                // Kept for who asks: given back, it would be in a CPU's set, and the next look at
                // the watermark would not count it.
                self.held = Some(pfn);
                self.hopes().0 = Hope::default();
                return (pages, cost);
            } else {
                None
            };
            let (freed, took) = self.direct(now + cost, from);
            cost += took;
            if freed > 0 || (from.is_some() && self.full(memcg, 1).is_none()) {
                continue;
            }
            if from.is_none() && !std::mem::replace(&mut drained, true) {
                // What other CPUs have in their sets is given back before anybody despairs.
                self.out.frames.drain_all();
                continue;
            }
            if let Some(first) = self.out.started.iter().map(|&(done, _)| done).min() {
                // It has begun writes itself: the first of them to end is worth a look.
                self.out.patience = Some(first.max(now + cost));
                return (0, cost);
            }
            match self.hope(now + cost) {
                Verdict::Retry => {}
                Verdict::Wait(ms) => {
                    self.begin_wait(now + cost, ms);
                    return (0, cost);
                }
                Verdict::GiveUp => return (0, cost),
            }
        }
        // Something is freed each time, and others take it: there is hope.
        self.out.patience = Some(now + cost);
        (0, cost)
    }

    fn hopes(&mut self) -> &mut (Hope, Option<(Wait, u64)>) {
        let task = self.out.task;
        if self.out.hopes.len() <= task {
            self.out.hopes.resize_with(task + 1, Default::default);
        }
        &mut self.out.hopes[task]
    }

    /// Whether this task waits for writes and has to go on doing so.
    fn still_waits(&mut self, now: u64) -> bool {
        let Some((wait, until)) = self.hopes().1 else { return false };
        if now < until && !self.out.throttle.over(&wait, self.pages_written()) {
            self.out.patience = Some(until.min(now + self.timer(WRITE_WAIT_NS)));
            return true;
        }
        self.out.throttle.end(wait);
        self.hopes().1 = None;
        false
    }

    fn begin_wait(&mut self, now: u64, ms: u64) {
        let seen = Outlook { written: self.pages_written(), ..Outlook::default() };
        let until = now + self.timer(ms * 1_000_000);
        if self.tun.oom == OomRule::Progress {
            // Whatever ends first may be enough.
        } else if let Some(wait) = self.out.throttle.begin(Reason::Writeback, &seen) {
            self.hopes().1 = Some((wait, until));
        }
        self.out.patience = Some(until.min(now + self.timer(WRITE_WAIT_NS)));
    }

    fn pages_written(&self) -> u64 {
        self.out.writes.ended()
    }

    /// What a reclaimer that freed nothing may hope for. By the kernel's rule, who waits for file
    /// pages to be written is what the treatments of dirty pages differ in: 6.18's multi-gen LRU
    /// goes round without waiting, the classic one and 7.2's wait.
    fn hope(&mut self, now: u64) -> Verdict {
        let files = self.out.cache.writing();
        let count = |e| self.stat.get(e);
        let seen = Achieved {
            freed: count(Event::PgStealAnon) + count(Event::PgStealFile),
            written: self.pages_written(),
            pending: self.out.writes.pending() + self.out.cache.dirty(),
        };
        let waits = self.tun.dirty != Dirty::K618 || self.out.writes.pending() > files;
        let (rule, now_ms) = (self.tun.oom, now * self.haste.max(1) / 1_000_000);
        self.hopes().0.judge(rule, now_ms, 0, &seen, waits)
    }

    /// Direct reclaim in a task, from one memcg or from all.
    pub(super) fn direct(&mut self, now: u64, memcg: Option<usize>) -> (u64, u64) {
        let size = match memcg {
            Some(id) => self.memcgs[id].limit,
            None => self.memcgs.iter().map(|m| m.limit).min().unwrap_or(0),
        };
        let target = direct::target(size, self.tun.reclaim_parts);
        let mut run = Direct::new(target, Order::ZERO);
        self.stat.add(Event::AllocStall, 1);
        self.begin_reclaim(now);
        while let Some(pass) = run.next() {
            let mut sc = pass.scan(memcg.is_none(), Order::ZERO, self.tun.swappiness.0);
            let spared = self.protect(memcg, pass.forced);
            let before = (self.out.freed, self.out.writes.pending());
            self.reclaim_pass(now, memcg, &mut sc);
            run.passed(&DirectPassed {
                reclaimed: self.out.freed - before.0,
                begun: self.out.writes.pending() - before.1,
                scanned: sc.scanned,
                spared: sc.skipped_deactivate || spared,
                compactable: false,
            });
        }
        if run.reclaimed() > 0 {
            self.out.desk.progress();
        }
        let mut cost = self.end_reclaim(now, memcg);
        if memcg.is_none() && self.out.desk.has_flag(Flags::CONGESTED) {
            cost += self.congested_ns();
        }
        self.spent.direct_runs += 1;
        self.spent.direct_ns += cost;
        (self.out.freed, cost)
    }

    /// How long somebody waits who reclaims while the disk has more than it can take.
    fn congested_ns(&self) -> u64 {
        let lists = self.memcgs.iter().map(|m| &m.lruvec);
        let seen = Outlook {
            hopeless: self.out.desk.hopeless(),
            write_pending: self.out.cache.dirty() + self.out.writes.pending(),
            reclaimable: lists.map(|v| v.size(LruType::File, false)).sum(),
            written: 0,
        };
        let limit = self.timer(self.tun.congested_ms * 1_000_000);
        if self.tun.congested_ms > Reason::Congested.limit_ms() {
            // `wait_iff_congested`: a disk that has anything to write has more than its queue takes.
            return if self.out.writes.pending() > 0 { limit } else { 0 };
        }
        self.out.throttle.begin(Reason::Congested, &seen).map_or(0, |_| limit)
    }

    /// One pass at the priority in `sc`. Returns what it cost; `out.freed` is its yield.
    pub fn shrink(&mut self, now: u64, memcg: Option<usize>, sc: &mut Scan) -> u64 {
        self.begin_reclaim(now);
        self.reclaim_pass(now, memcg, sc);
        self.end_reclaim(now, memcg)
    }

    fn begin_reclaim(&mut self, now: u64) {
        self.out.now_ns = now;
        self.out.spent_ns = 0;
        self.out.freed = 0;
        self.recover_slots(now);
        let cx = cx!(self, now);
        for m in &mut self.memcgs {
            m.pagevec.drain(&m.lruvec, &cx);
        }
        for space in &self.list {
            space.note_scheduled();
        }
    }

    fn reclaim_pass(&mut self, now: u64, memcg: Option<usize>, sc: &mut Scan) {
        // With swap full, pages whose copy is there already can still go.
        let room = self.out.stored.has_room() || self.out.stored_here;
        sc.may_swap &= room;
        sc.lift = self.lift;
        sc.file_is_tiny = memcg.is_none() && self.files_are_few();
        let cx = cx!(self, now);
        let Some(top) = memcg else {
            self.lru.shrink(&cx, sc, &mut self.out);
            return;
        };
        // Each run goes on below `top` where the last one stopped.
        let all = self.memcgs.len();
        let (begin, mut seen) = (self.turns[top], false);
        for id in (begin..all).chain(0..begin) {
            let group = MemcgId(id as u16 + 1);
            if !self.out.groups.is_within(group, MemcgId(top as u16 + 1)) {
                continue;
            }
            if seen && sc.reclaimed >= sc.target {
                self.turns[top] = id;
                return;
            }
            seen = true;
            sc.protection = self.protection[id];
            if sc.protection.below_min || sc.protection.below_low {
                continue;
            }
            let v = Arc::clone(&self.memcgs[id].lruvec);
            v.shrink(&cx, sc, &mut self.out);
        }
    }

    /// Works out how much of each memcg is spared in reclaim from `top`; `forced`: soft protection does
    /// not count. Whether any is spared for that alone.
    pub(super) fn protect(&mut self, top: Option<usize>, forced: bool) -> bool {
        self.protection.resize(self.memcgs.len(), Protection::default());
        if !self.out.groups.any_protected() {
            return false;
        }
        let groups = &mut self.out.groups;
        let top = top.map_or(Memcgs::ROOT, |id| MemcgId(id as u16 + 1));
        groups.protect(top);
        let mut spared = false;
        for (id, protection) in self.protection.iter_mut().enumerate() {
            let group = MemcgId(id as u16 + 1);
            let soft = groups.protection(group, false);
            *protection = if forced { groups.protection(group, true) } else { soft };
            spared |= !forced && soft.below_low;
            if forced && soft.below_low && groups.is_within(group, top) {
                groups.note_low(group);
            }
            if top == Memcgs::ROOT {
                self.lru.protect(group, *protection);
            }
        }
        spared
    }

    /// A task whose memcg, or one above it, is above its `high` reclaims there, and is held the longer
    /// the further above it that is.
    pub(super) fn hold_above_high(&mut self, now: u64, memcg: usize, fault: Fault) -> Fault {
        let group = MemcgId(memcg as u16 + 1);
        let (Some(above), false) =
            (self.out.groups.above_high(group), matches!(fault, Fault::NoMemory(_)))
        else {
            return fault;
        };
        let (at, until) = match fault {
            Fault::Done(cost) | Fault::NoMemory(cost) => (now + cost, now + cost),
            Fault::Wait { until_ns, cost_ns } => (now + cost_ns, until_ns),
        };
        let (_, took) = self.direct(at, Some(usize::from(above.0) - 1));
        let pages = self.brought.len().max(1) as u64;
        let delay = self.timer(self.out.groups.high_delay_ms(group, pages) * 1_000_000);
        self.spent.high_ns += delay;
        if delay == 0 {
            return match fault {
                Fault::Wait { until_ns, cost_ns } => {
                    Fault::Wait { until_ns, cost_ns: cost_ns + took }
                }
                other => Fault::Done(other.cost_ns() + took),
            };
        }
        self.stalls = true;
        let cost_ns = at - now + took;
        Fault::Wait { until_ns: until.max(now + cost_ns) + delay, cost_ns }
    }

    /// Whether all files and all free frames would not balance the machine: files are left alone then.
    fn files_are_few(&self) -> bool {
        let files: u64 = self.memcgs.iter().map(|m| m.lruvec.total(LruType::File)).sum();
        let high: u64 = self.out.frames.zones().iter().map(|z| z.state().marks().high).sum();
        files <= high && files + self.free_pages() <= high
    }

    /// Ends a reclaim run. Returns what it cost.
    fn end_reclaim(&mut self, now: u64, memcg: Option<usize>) -> u64 {
        let cx = cx!(self, now);
        self.out.submit(&cx, &mut self.disk);
        for m in &self.memcgs {
            m.lruvec.end_reclaim();
        }
        self.charge(now, memcg)
    }

    /// Takes slots back from resident pages while swap is more than half full, as the kernel does
    /// when it looks for a free one: some frames further each time.
    fn recover_slots(&mut self, now: u64) {
        let full = self.out.swap.is_some() && self.out.stored.is_scarce();
        self.out.stored_here = false;
        if !full {
            return;
        }
        let frames = self.folios.frames();
        for looked in 0..frames {
            // More of them when there is no other way to store anything; the next call goes on.
            let enough = self.out.stored.has_room() || looked >= 8 * RECOVER_FRAMES;
            if looked >= RECOVER_FRAMES && enough {
                break;
            }
            let pfn = Pfn(self.slot_hand);
            self.slot_hand = (self.slot_hand + 1) % frames;
            let w = self.folios.word(pfn);
            let kept = w.has(Word::LRU) && w.has(Word::SWAPBACKED) && w.has(Word::SWAPCACHE);
            if kept && w.has(Word::MAPPED) && !w.has(Word::WRITEBACK) {
                self.out.stored.drop_copy(&cx!(self, now), pfn);
                self.out.settle_pool();
            }
            self.out.stored_here |= kept && !w.has(Word::MAPPED);
        }
    }

    pub(super) fn fold(&mut self) {
        // The classic LRU reads memcg counters that are settled only now and then.
        if self.tun.classic_fold > 0 {
            self.next_fold = self.next_fold.saturating_sub(1);
            if self.next_fold == 0 {
                self.next_fold = self.tun.classic_fold;
                self.memcgs.iter().for_each(|m| m.lruvec.fold());
            }
        }
    }

    /// When a task that found nothing to reclaim tries again; none if nothing will change by
    /// waiting.
    pub(super) fn next_write(&self) -> Option<u64> {
        self.out.patience
    }
}
