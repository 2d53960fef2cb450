//! The memcg LRU: the order in which root reclaim visits memcgs.
//!
//! Owns, for a node, three slots of generations with eight bins each. Root reclaim takes memcgs
//! from the old generation, starting at a random bin. A memcg that was reclaimed joins the young
//! generation. When the old generation is empty, the generations advance. With the third slot, a
//! reader that still uses the generation just retired does no harm.
//!
//! Lock order: the memcg LRU lock is taken before any lru lock, and is never held across a shrink.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::classic::Seen;
use super::super::scan::{self, DEF_PRIORITY};
use super::super::{Ctx, Lruvec, Pageout, Protection, Reclaimer, Scan};
use crate::folio::{LruType, MemcgId};
use crate::observe::vmstat::Event;
use crate::tunables::LruKind;

const GENS: u64 = 3;
const BINS: usize = 8;

/// The position in its generation at which a memcg was last put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seg {
    /// No chosen position.
    Default,
    /// At the front.
    Head,
    /// At the back, for a second chance.
    Tail,
}

/// An event that moves a memcg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// The memcg is over its soft limit: to the front of its generation.
    Head,
    /// A first try to reclaim failed: to the back of its generation.
    Tail,
    /// The memcg was removed: to the old generation.
    Old,
    /// The memcg was reclaimed, or is protected: to the young generation.
    Young,
}

#[derive(Debug)]
struct Member {
    lruvec: Arc<Lruvec>,
    r#gen: usize,
    bin: usize,
    seg: Seg,
    protection: Protection,
}

#[derive(Debug)]
struct State {
    seq: u64,
    members: Vec<Member>,
    fifo: [[VecDeque<usize>; BINS]; GENS as usize],
    random: u64,
}

/// A pass over the memcgs in progress.
#[derive(Clone, Default, Debug)]
pub(crate) struct Visits {
    /// Slot of the old generation, and the bin the pass began with.
    from: Option<(usize, usize)>,
    /// Number of bins taken by this pass.
    turn: usize,
    /// Memcgs of the last bin that are still to be visited.
    waiting: VecDeque<usize>,
    /// Memcg that is being visited.
    now: Option<usize>,
    /// Pages that kswapd had freed before this pass.
    before: u64,
}

/// The memcgs of a node, in generations and bins.
#[derive(Debug)]
pub struct MemcgLru {
    state: Mutex<State>,
}

impl State {
    /// Returns a pseudorandom bin (xorshift). Any spread will do, but one seed must always give one
    /// run.
    fn random_bin(&mut self) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % BINS as u64) as usize
    }

    fn unlink(&mut self, i: usize) {
        let (g, b) = (self.members[i].r#gen, self.members[i].bin);
        self.fifo[g][b].retain(|&m| m != i);
    }

    fn link(&mut self, i: usize, r#gen: u64, front: bool, seg: Seg) {
        let (slot, bin) = ((r#gen % GENS) as usize, self.random_bin());
        let m = &mut self.members[i];
        (m.r#gen, m.bin, m.seg) = (slot, bin, seg);
        if front {
            self.fifo[slot][bin].push_front(i);
        } else {
            self.fifo[slot][bin].push_back(i);
        }
    }

    fn rotate(&mut self, i: usize, op: Op) {
        let old_slot = (self.seq % GENS) as usize;
        let here = if self.members[i].r#gen == old_slot { self.seq } else { self.seq + 1 };
        self.unlink(i);
        match op {
            Op::Head => self.link(i, here, true, Seg::Head),
            Op::Tail => self.link(i, here, false, Seg::Tail),
            Op::Old => self.link(i, self.seq, false, Seg::Default),
            Op::Young => self.link(i, self.seq + 1, false, Seg::Default),
        }
        if self.fifo[old_slot].iter().all(VecDeque::is_empty) {
            self.seq += 1;
        }
    }
}

impl MemcgLru {
    /// Creates a list without memcgs. `seed` decides the sequence of bins.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state =
            State { seq: 0, members: Vec::new(), fifo: Default::default(), random: seed | 1 };
        Self { state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a memcg at the back of a bin of the old generation.
    pub fn online(&self, lruvec: Arc<Lruvec>) {
        let mut s = self.lock();
        let i = s.members.len();
        let protection = Protection::default();
        s.members.push(Member { lruvec, r#gen: 0, bin: 0, seg: Seg::Default, protection });
        let seq = s.seq;
        s.link(i, seq, false, Seg::Default);
    }

    /// Marks a memcg as removed. Reclaim then takes all its memory.
    pub fn offline(&self, memcg: MemcgId) {
        self.apply(memcg, Op::Old);
        for m in &self.lock().members {
            if m.lruvec.memcg() == memcg {
                m.lruvec.set_offline();
            }
        }
    }

    /// Moves a memcg as `op` says.
    pub fn apply(&self, memcg: MemcgId, op: Op) {
        let mut s = self.lock();
        if let Some(i) = s.members.iter().position(|m| m.lruvec.memcg() == memcg) {
            s.rotate(i, op);
        }
    }

    /// Sets how much of a memcg is spared.
    pub fn protect(&self, memcg: MemcgId, protection: Protection) {
        for m in &mut self.lock().members {
            if m.lruvec.memcg() == memcg {
                m.protection = protection;
            }
        }
    }

    /// Returns how often the generations have advanced.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.lock().seq
    }

    /// Returns the memcg's generation (true: old) and segment.
    #[must_use]
    pub fn place(&self, memcg: MemcgId) -> Option<(bool, Seg)> {
        let s = self.lock();
        let old = (s.seq % GENS) as usize;
        let m = s.members.iter().find(|m| m.lruvec.memcg() == memcg)?;
        Some((m.r#gen == old, m.seg))
    }

    /// Runs root reclaim: visits memcgs until the target is met, or until the pass is paused.
    pub fn shrink(&self, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) {
        sc.root = true;
        let mut visits = sc.visits.take().unwrap_or_else(|| {
            self.set_initial_priority(cx, sc);
            sc.seen = self.seen(cx);
            let before = if sc.reclaimer == Reclaimer::Kswapd {
                std::mem::take(&mut sc.reclaimed)
            } else {
                0
            };
            Visits { before, ..Visits::default() }
        });
        while let Some(i) = self.next_visit(cx, &mut visits, sc.is_paused()) {
            let op = self.shrink_one(cx, sc, out, i);
            if sc.is_paused() {
                sc.visits = Some(visits);
                return;
            }
            if let Some(op) = op.filter(|_| cx.tun.mglru.memcg_lru) {
                self.lock().rotate(i, op);
                cx.stat.add(Event::EbbMemcgRotated, 1);
            }
            if sc.reclaimed >= sc.target.max(2 << sc.order) {
                break;
            }
        }
        sc.reclaimed += visits.before;
    }

    /// Returns the memcg to visit next. If the visit was `paused`, it is visited again. Otherwise
    /// the order is that of the generations, or without `gen.memcg_lru` simply that of the table.
    fn next_visit(&self, cx: &Ctx, v: &mut Visits, paused: bool) -> Option<usize> {
        if paused {
            return v.now;
        }
        let mut s = self.lock();
        if !cx.tun.mglru.memcg_lru {
            v.now = v.now.map_or(Some(0), |i| Some(i + 1)).filter(|&i| i < s.members.len());
            return v.now;
        }
        let (slot, first) = *v.from.get_or_insert_with(|| {
            let slot = (s.seq % GENS) as usize;
            (slot, s.random_bin())
        });
        loop {
            while let Some(i) = v.waiting.pop_front() {
                // The memcg may have moved while another was being shrunk.
                if s.members[i].r#gen == slot {
                    v.now = Some(i);
                    return v.now;
                }
            }
            if v.turn == BINS {
                return None;
            }
            v.waiting.clone_from(&s.fifo[slot][(first + v.turn) % BINS]);
            v.turn += 1;
        }
    }

    fn shrink_one(&self, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout, i: usize) -> Option<Op> {
        let (v, seg, protection) = {
            let s = self.lock();
            let m = &s.members[i];
            (Arc::clone(&m.lruvec), m.seg, m.protection)
        };
        let paused = sc.is_paused();
        if !paused && protection.below_min {
            return Some(Op::Young);
        }
        if !paused && protection.below_low && seg != Seg::Tail {
            return Some(Op::Tail);
        }
        sc.protection = protection;
        let rotate = v.shrink(cx, sc, out);
        if rotate && v.online() {
            return Some(Op::Young);
        }
        if !rotate && sizable(&v, sc) {
            return None;
        }
        Some(if seg == Seg::Tail { Op::Young } else { Op::Tail })
    }

    fn set_initial_priority(&self, cx: &Ctx, sc: &mut Scan) {
        let s = self.lock();
        // The classic lists have no such rule.
        let generations = s.members.iter().any(|m| m.lruvec.kind() == LruKind::Gen);
        if generations && sc.priority == DEF_PRIORITY && sc.target >= scan::gen_batch(cx.tun) {
            let inactive = |ty: LruType| s.members.iter().map(|m| m.lruvec.size(ty, false)).sum();
            let file: u64 = inactive(LruType::File);
            let anon: u64 = if sc.swappiness_now() > 0 { inactive(LruType::Anon) } else { 0 };
            sc.priority = initial_priority((file + anon) << sc.lift, sc.target);
        }
    }

    /// Returns the classic lists of all memcgs together, including those that are spared. Their sum
    /// decides which lists of the others are scanned.
    fn seen(&self, cx: &Ctx) -> Option<Seen> {
        let s = self.lock();
        let mut seen = Seen::default();
        for m in &s.members {
            if m.lruvec.kind() != LruKind::Classic {
                return None;
            }
            seen.add(&m.lruvec, cx);
        }
        Some(seen)
    }

    /// Whether reclaim could only take working sets of the last `min_ttl_ms`. Background reclaim
    /// calls this; true is a reason for an OOM kill.
    #[must_use]
    pub fn all_within_ttl(&self, cx: &Ctx, sc: &Scan) -> bool {
        let ttl = cx.tun.mglru.min_ttl_ms;
        ttl > 0
            && self.lock().members.iter().all(|m| {
                let g = &m.lruvec.r#gen;
                let born = g.born_ms(g.evictable_min_seq(sc.swappiness_now()));
                m.protection.below_min
                    || !sizable(&m.lruvec, sc)
                    || cx.now_ms <= born.saturating_add(ttl)
            })
    }
}

fn sizable(v: &Lruvec, sc: &Scan) -> bool {
    sc.share_of(v.r#gen.evictable_pages(sc.swappiness_now())) > 0
}

/// Returns the priority at which one pass over `reclaimable` pages scans about `target`.
#[must_use]
pub fn initial_priority(reclaimable: u64, target: u64) -> u8 {
    let floor = u64::from(reclaimable.max(1).ilog2());
    let ceil = u64::from(target.max(1).next_power_of_two().ilog2());
    floor.saturating_sub(ceil).clamp(6, u64::from(DEF_PRIORITY)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folio::{Folios, Word};
    use crate::lru::{Evicted, Shadow};
    use crate::observe::vmstat::VmStat;
    use crate::space::Spaces;
    use crate::tunables::Tunables;
    use crate::types::{MmId, Pfn, Vpn};

    struct Drop(Vec<u32>);

    impl Pageout for Drop {
        fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, _: Shadow) -> Evicted {
            self.0[usize::from(cx.folios.memcg(pfn).0)] += 1;
            cx.folios.unpin(pfn);
            cx.folios.unpin(pfn);
            Evicted::Freed
        }
    }

    const EACH: u32 = if cfg!(miri) { 512 } else { 4096 };

    fn node(memcgs: u16, tun: &Tunables) -> (MemcgLru, Folios) {
        let folios = Folios::new(u32::from(memcgs) * EACH);
        let (spaces, stat) = (Spaces::new(), VmStat::default());
        let cx = Ctx { folios: &folios, spaces: &spaces, tun, stat: &stat, now_ms: 0 };
        let lru = MemcgLru::new(7);
        for m in 0..memcgs {
            let v = Arc::new(Lruvec::new(MemcgId(m), tun.lru, 0));
            for i in 0..EACH {
                let pfn = Pfn(u32::from(m) * EACH + i);
                let word = Word::new(LruType::File, 0, 0);
                folios.init(pfn, word, MemcgId(m), MmId(0), Vpn(u64::from(pfn.0)));
                v.add(&cx, pfn);
            }
            lru.online(v);
        }
        (lru, folios)
    }

    fn reclaim(lru: &MemcgLru, folios: &Folios, tun: &Tunables, target: u64, rounds: u32) -> Drop {
        let (spaces, stat) = (Spaces::new(), VmStat::default());
        let cx = Ctx { folios, spaces: &spaces, tun, stat: &stat, now_ms: 0 };
        let mut out = Drop(vec![0; 64]);
        for _ in 0..rounds {
            let mut sc = Scan::new(Reclaimer::Kswapd, true, target, 60);
            lru.shrink(&cx, &mut sc, &mut out);
        }
        out
    }

    #[test]
    fn the_initial_priority_fits_one_pass_to_the_target() {
        assert_eq!(initial_priority(1 << 20, 64), 12);
        assert_eq!(initial_priority(1 << 20, 1024), 10);
        assert_eq!(initial_priority(1 << 16, 1 << 12), 6);
        assert_eq!(initial_priority(0, 4096), 6);
        assert_eq!(initial_priority((1 << 19) + 5, 1000), 9);
    }

    #[test]
    fn operations_move_memcgs_and_generations_turn() {
        let tun = Tunables::preset("k618").unwrap();
        let (lru, _) = node(3, &tun);
        assert_eq!(lru.place(MemcgId(0)), Some((true, Seg::Default)));
        lru.apply(MemcgId(0), Op::Tail);
        assert_eq!(lru.place(MemcgId(0)), Some((true, Seg::Tail)));
        lru.apply(MemcgId(0), Op::Young);
        lru.apply(MemcgId(1), Op::Young);
        assert_eq!((lru.place(MemcgId(1)), lru.seq()), (Some((false, Seg::Default)), 0));
        lru.apply(MemcgId(2), Op::Young);
        assert_eq!((lru.place(MemcgId(1)), lru.seq()), (Some((true, Seg::Default)), 1));
        lru.apply(MemcgId(1), Op::Head);
        assert_eq!(lru.place(MemcgId(1)), Some((true, Seg::Head)));
    }

    #[test]
    fn protected_memcgs_are_spared() {
        let tun = Tunables::preset("k618").unwrap();
        let (lru, folios) = node(2, &tun);
        lru.protect(MemcgId(0), Protection { below_min: true, ..Protection::default() });
        let out = reclaim(&lru, &folios, &tun, 256, 8);
        assert_eq!(out.0[0], 0);
        assert!(out.0[1] > 0);
        assert_eq!(lru.place(MemcgId(0)).map(|p| p.1), Some(Seg::Default));
    }

    #[test]
    fn every_memcg_gives_its_share() {
        let tun = Tunables::preset("k618").unwrap();
        let (lru, folios) = node(16, &tun);
        let out = reclaim(&lru, &folios, &tun, 2048, 40);
        let given = &out.0[..16];
        let mean = given.iter().sum::<u32>() as f64 / 16.0;
        let var = given.iter().map(|&g| (f64::from(g) - mean).powi(2)).sum::<f64>() / 16.0;
        assert!(mean > 500.0, "{given:?}");
        assert!(var.sqrt() / mean < 0.5, "{given:?}");
    }

    /// Frees pages and pauses after every batch.
    struct Pausing(Drop, u32);

    impl Pageout for Pausing {
        fn evict(&mut self, cx: &Ctx, pfn: Pfn, ty: LruType, shadow: Shadow) -> Evicted {
            self.0.evict(cx, pfn, ty, shadow)
        }

        fn pause(&mut self) -> bool {
            self.1 += 1;
            true
        }
    }

    #[test]
    fn a_pass_paused_after_each_batch_takes_what_an_uninterrupted_one_takes() {
        for name in ["classic", "k612", "k618", "k72", "ebb"] {
            let tun = Tunables::preset(name).unwrap();
            let (spaces, stat) = (Spaces::new(), VmStat::default());
            let run = |pausing: bool| {
                let (lru, folios) = node(3, &tun);
                let cx =
                    Ctx { folios: &folios, spaces: &spaces, tun: &tun, stat: &stat, now_ms: 0 };
                let mut out = Pausing(Drop(vec![0; 4]), 0);
                let mut calls = Vec::new();
                for reclaimer in [Reclaimer::Kswapd, Reclaimer::Direct, Reclaimer::Kswapd] {
                    let mut sc = Scan::new(reclaimer, true, u64::from(EACH / 4), 60);
                    sc.priority = 5;
                    sc.reclaimed = 7;
                    let mut n = 1;
                    if pausing {
                        lru.shrink(&cx, &mut sc, &mut out);
                        while sc.is_paused() {
                            n += 1;
                            lru.shrink(&cx, &mut sc, &mut out);
                        }
                    } else {
                        lru.shrink(&cx, &mut sc, &mut out.0);
                    }
                    calls.push((n, sc.reclaimed, sc.scanned));
                }
                let taken: Vec<_> = calls.iter().map(|c| (c.1, c.2)).collect();
                (calls.iter().map(|c| c.0).max(), taken, out.0.0)
            };
            let (whole, parts) = (run(false), run(true));
            assert_eq!((&whole.1, &whole.2), (&parts.1, &parts.2), "{name}");
            assert!(whole.0 == Some(1), "{name}: {whole:?}");
            // In this preset a single batch brings probation to its share.
            assert!(parts.0 > Some(2) || name == "ebb", "{name}: {parts:?}");
        }
    }

    /// Models a machine whose cached files are nearly all in a slice with `memory.min`. The node
    /// has enough files, so kswapd scans no other type in memcgs that have no files.
    #[test]
    fn protected_files_keep_kswapd_from_the_anonymous_pages_of_other_memcgs() {
        for (name, kept) in [("classic", true), ("k618", false)] {
            let mut tun = Tunables::preset(name).unwrap();
            tun.classic.fold = 0;
            let (lru, folios) = node(1, &tun);
            let (spaces, stat) = (Spaces::new(), VmStat::default());
            let cx = Ctx { folios: &folios, spaces: &spaces, tun: &tun, stat: &stat, now_ms: 0 };
            let folios = Folios::new(2 * EACH);
            let cx = Ctx { folios: &folios, ..cx };
            let anon = Arc::new(Lruvec::new(MemcgId(1), tun.lru, 0));
            for i in 0..EACH {
                let word = Word::new(LruType::Anon, 0, 0);
                folios.init(Pfn(i), word, MemcgId(1), MmId(0), Vpn(u64::from(i)));
                anon.add(&cx, Pfn(i));
            }
            lru.online(anon);
            lru.protect(MemcgId(0), Protection { below_min: true, ..Protection::default() });
            let mut out = Drop(vec![0; 2]);
            for priority in (1..=DEF_PRIORITY).rev() {
                let mut sc = Scan::new(Reclaimer::Kswapd, true, 64, 60);
                sc.priority = priority;
                lru.shrink(&cx, &mut sc, &mut out);
            }
            assert_eq!(out.0[1] == 0, kept, "{name}: {:?}", out.0);
            // Direct reclaim goes on to the highest pressure, at which both types are scanned.
            let mut sc = Scan::new(Reclaimer::Direct, true, 32, 60);
            sc.priority = 0;
            lru.shrink(&cx, &mut sc, &mut out);
            assert!(out.0[0] == 0 && sc.reclaimed >= 32, "{name}: {:?}", out.0);
        }
    }

    #[test]
    fn a_young_working_set_is_within_its_ttl() {
        let mut tun = Tunables::preset("k618").unwrap();
        tun.mglru.min_ttl_ms = 1000;
        let (lru, folios) = node(2, &tun);
        let (spaces, stat) = (Spaces::new(), VmStat::default());
        let at = |now_ms| Ctx { folios: &folios, spaces: &spaces, tun: &tun, stat: &stat, now_ms };
        let sc = Scan::new(Reclaimer::Kswapd, true, 32, 60);
        assert!(lru.all_within_ttl(&at(1000), &sc));
        assert!(!lru.all_within_ttl(&at(1001), &sc));
        let mut off = tun.clone();
        off.mglru.min_ttl_ms = 0;
        let cx = Ctx { tun: &off, ..at(0) };
        assert!(!lru.all_within_ttl(&cx, &sc), "zero is off");
    }
}
