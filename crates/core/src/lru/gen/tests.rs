//! Tests: the ordering vectors, the race in the middle of a batch, and random interleavings.

use proptest::prelude::*;

use super::access::race;
use super::pid::Recency;
use super::window;
use super::*;
use crate::folio::{Folios, MemcgId};
use crate::lru::{Evicted, Reclaimer};
use crate::observe::vmstat::VmStat;
use crate::space::{Area, Backing, Pte, Spaces};
use crate::tunables::{LruKind, TargetEnd, Tunables};
use crate::types::Vpn;

/// All tables that an operation needs.
pub(crate) struct Rig {
    pub folios: Folios,
    pub spaces: Spaces,
    pub tun: Tunables,
    pub stat: VmStat,
    pub v: Lruvec,
    free: Vec<u32>,
}

impl Rig {
    pub fn new(frames: u32, tun: Tunables) -> Self {
        Self::of_kind(frames, tun, LruKind::Gen)
    }

    pub fn of_kind(frames: u32, tun: Tunables, kind: LruKind) -> Self {
        let spaces = Spaces::new();
        let space = spaces.create(MemcgId(1));
        space.add_area(Area::new(Vpn(0), Vpn(u64::from(frames)), Backing::Anon));
        let v = Lruvec::new(MemcgId(1), kind, 0);
        v.r#gen.mm.join(space.id());
        let free = (0..frames).rev().collect();
        Self { folios: Folios::new(frames), spaces, tun, stat: VmStat::default(), v, free }
    }

    pub fn cx(&self) -> Ctx<'_> {
        Ctx {
            folios: &self.folios,
            spaces: &self.spaces,
            tun: &self.tun,
            stat: &self.stat,
            now_ms: 0,
        }
    }

    pub(crate) fn mm(&self) -> crate::types::MmId {
        crate::types::MmId(0)
    }

    /// Maps a new anonymous or file folio of one page at its own number.
    pub(crate) fn fill(&mut self, ty: LruType) -> Option<Pfn> {
        let pfn = Pfn(self.free.pop()?);
        let word = Word::new(ty, 0, 0).with(Word::MAPPED);
        self.folios.init(pfn, word, MemcgId(1), self.mm(), Vpn(u64::from(pfn.0)));
        let space = self.spaces.get(self.mm())?;
        self.spaces.map(&space, Vpn(u64::from(pfn.0)), pfn, 1, Pte::MAPPED | Pte::ACCESSED);
        self.v.add(&self.cx(), pfn);
        Some(pfn)
    }

    /// Puts folios on the list of a slot, newest first.
    pub(super) fn list(&self, slot: usize, ids: &[u32]) {
        let mut lists = self.v.lock();
        for &id in ids {
            let word = Word::new(LruType::Anon, 0, 0).at_list_slot(slot).with(Word::LRU);
            self.folios.init(Pfn(id), word, MemcgId(1), self.mm(), Vpn(u64::from(id)));
            lists.r#gen[slot][0][0].push_tail(&self.folios, Pfn(id));
            insert::resize(&self.v, slot, word, 1);
        }
    }

    pub(super) fn order(&self, slot: usize) -> Vec<u32> {
        self.order_of(slot, LruType::Anon)
    }

    pub(super) fn order_of(&self, slot: usize, ty: LruType) -> Vec<u32> {
        let lists = self.v.lock();
        let list = &lists.r#gen[slot][ty.index()][0];
        list.check(&self.folios);
        list.order(&self.folios).iter().map(|p| p.0).collect()
    }
}

pub(crate) struct Free<'a>(pub &'a mut Vec<u32>);

impl Pageout for Free<'_> {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, shadow: Shadow) -> Evicted {
        cx.spaces.unmap(cx.folios, pfn, shadow.0);
        cx.folios.unpin(pfn);
        cx.folios.unpin(pfn);
        self.0.push(pfn.0);
        Evicted::Freed
    }
}

fn batching(bulk: bool, end: TargetEnd) -> Tunables {
    let mut t = Tunables::preset("k618").unwrap();
    t.mglru.bulk_move = bulk;
    t.mglru.counter_batch = bulk;
    t.mglru.prefetch = bulk;
    t.mglru.target_end = end;
    t
}

/// Ages an old generation a..f (newest first) over x y. Returns the next generation after aging.
fn age(tun: Tunables, victims: &[(Pfn, usize)]) -> (Rig, Vec<u32>) {
    let rig = Rig::new(16, tun);
    rig.list(0, &[0, 1, 2, 3, 4, 5]);
    rig.list(1, &[10, 11]);
    race::VICTIMS.set(victims.to_vec());
    assert!(window::inc_max_seq(&rig.v, &rig.cx(), 3, 100));
    assert_eq!(rig.v.r#gen.min_seq(LruType::Anon), 1);
    // The walk that promoted the folios applies its counters when its slice ends.
    let mut walked = Deltas::default();
    for &(pfn, slot) in victims {
        walked.moved(rig.folios.word(pfn), 0, slot);
    }
    walked.flush(&rig.v, &rig.v.lock());
    rig.v.check_invariants(&rig.cx());
    let order = rig.order(1);
    (rig, order)
}

#[test]
fn the_four_target_ends_order_as_specified() {
    for (bulk, end, expect) in [
        (false, TargetEnd::Tail, [10, 11, 5, 4, 3, 2, 1, 0]),
        (true, TargetEnd::Tail, [10, 11, 0, 1, 2, 3, 4, 5]),
        (false, TargetEnd::Head, [0, 1, 2, 3, 4, 5, 10, 11]),
        (true, TargetEnd::Head, [0, 1, 2, 3, 4, 5, 10, 11]),
    ] {
        assert_eq!(age(batching(bulk, end), &[]).1, expect, "bulk={bulk} {end:?}");
    }
}

#[test]
fn aging_with_a_lock_hold_of_three_moves_six_folios_in_two_segments() {
    let mut tun = batching(true, TargetEnd::Tail);
    tun.mglru.lock_hold = 3;
    assert_eq!(age(tun, &[]).1, [10, 11, 3, 4, 5, 0, 1, 2]);
}

#[test]
fn a_folio_promoted_between_read_and_exchange_is_no_end_of_a_segment() {
    // Aging goes from the tail (5) to the head (0). Victims: first, middle, last, and several at
    // once.
    for victims in [vec![5], vec![3], vec![0], vec![5, 3, 0], vec![5, 4, 3, 2, 1, 0]] {
        for bulk in [false, true] {
            let raced: Vec<(Pfn, usize)> = victims.iter().map(|&v| (Pfn(v), 3)).collect();
            let (rig, next) = age(batching(bulk, TargetEnd::Tail), &raced);
            let mut expect: Vec<u32> = (0..6).filter(|v| !victims.contains(v)).collect();
            if !bulk {
                expect.reverse();
            }
            assert_eq!(next, [vec![10, 11], expect].concat(), "{victims:?} bulk={bulk}");
            let mut promoted = rig.order(3);
            promoted.sort_unstable();
            let mut all = victims.clone();
            all.sort_unstable();
            assert_eq!(promoted, all);
            assert!(rig.order(0).is_empty());
        }
    }
}

#[test]
fn batching_changes_the_order_and_nothing_else() {
    let counts = |bulk| {
        let (rig, mut order) = age(batching(bulk, TargetEnd::Tail), &[(Pfn(2), 3)]);
        order.sort_unstable();
        let g = &rig.v.r#gen;
        let pages: Vec<u64> = (1..=4).map(|s| g.pages(s, LruType::Anon)).collect();
        let sizes: Vec<u64> = [false, true].map(|a| rig.v.size(LruType::Anon, a)).to_vec();
        (order, pages, sizes)
    };
    assert_eq!(counts(false), counts(true));
}

#[test]
fn eviction_moves_protected_folios_in_a_row_and_in_order() {
    for bulk in [false, true] {
        let rig = Rig::new(16, batching(bulk, TargetEnd::Tail));
        rig.list(0, &[0, 1, 2, 3, 4, 5]);
        rig.list(1, &[10, 11]);
        // The access counts are full, so the folios are protected whatever the refaults of their
        // tiers.
        for id in [0, 2, 3, 5] {
            rig.folios.update(Pfn(id), |w| {
                w.with_refs_field(3).with(Word::REFERENCED.or(Word::WORKINGSET))
            });
        }
        let mut out = Vec::new();
        let mut sc = crate::lru::Scan::new(Reclaimer::Direct, false, 4, 100);
        sc.priority = 0;
        rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut out));
        assert_eq!(out, [4, 1], "bulk={bulk}");
        assert_eq!(rig.order(1), [0, 2, 3, 5, 10, 11], "bulk={bulk}");
        rig.v.check_invariants(&rig.cx());
    }
}

#[test]
fn refaults_are_recent_for_three_window_moves_and_not_for_four() {
    let rig = Rig::new(4, Tunables::preset("k618").unwrap());
    let token = pid::shadow(&rig.v, &rig.cx(), Word::new(LruType::File, 0, 0)).token();
    // Evicted in generation 0 while 3 was the youngest: 3 - 0 < 4.
    assert_eq!(pid::recent(&rig.v, &rig.cx(), LruType::Anon, token), Recency::VerySoon);
    assert!(window::inc_max_seq(&rig.v, &rig.cx(), 3, 60));
    assert_eq!(pid::recent(&rig.v, &rig.cx(), LruType::Anon, token), Recency::Long, "it is four");
    let later = pid::shadow(&rig.v, &rig.cx(), Word::new(LruType::File, 0, 0)).token();
    assert_eq!(pid::recent(&rig.v, &rig.cx(), LruType::Anon, later), Recency::VerySoon);
}

#[test]
fn a_page_that_comes_back_late_joins_the_generations_the_second_time() {
    let mut tun = Tunables::standby();
    (tun.mglru.near, tun.mglru.near_once) = (100, 25);
    let mut rig = Rig::new(100, tun);
    for _ in 0..100 {
        rig.fill(LruType::Anon);
    }
    let word = Word::new(LruType::Anon, 0, 0);
    // Refaults a folio that left with word `left` after `later` other pages have left.
    let back = |left: Word, later: u64| {
        let shadow = pid::shadow(&rig.v, &rig.cx(), left);
        (0..later).for_each(|_| rig.v.note_evicted(&rig.cx(), word));
        rig.folios.store(Pfn(0), word);
        rig.v.refault(&rig.cx(), Pfn(0), shadow, true);
        rig.folios.word(Pfn(0))
    };
    assert!(back(word, 25).has(Word::RETURNED), "a quarter of memory is soon enough");
    let late = back(word, 60);
    assert!(!late.has(Word::RETURNED) && late.has(Word::WORKINGSET), "remembered");
    assert!(back(late, 60).has(Word::RETURNED), "the second time");
    assert!(!back(late, 101).has(Word::RETURNED.or(Word::WORKINGSET)), "not soon at all");
}

/// Shows that folios of another node are treated as in `get_pfn_folio` and `lru_gen_refault`.
#[test]
fn folios_of_another_node_are_left_alone_by_walks_and_come_back_as_new() {
    let mut rig = Rig::new(512, Tunables::preset("k618").unwrap());
    rig.folios = Folios::new(512).with_node_ends(vec![256]);
    while rig.fill(LruType::Anon).is_some() {}
    assert!(rig.v.age(&rig.cx(), 3, 60, false).is_ok());
    let met = |pfn: u32| rig.folios.word(Pfn(pfn)).has(Word::REFERENCED);
    assert!((0..256).all(met), "what a walk meets first it remembers");
    assert!(!(256..512).any(met), "but not of the other node");
    let other = Lruvec::on_node(MemcgId(1), 1, LruKind::Gen, 0);
    let shadow = other.eviction_shadow(&rig.cx(), Pfn(400));
    assert!(!rig.v.refault_from(&other, &rig.cx(), Pfn(1), shadow, true));
    assert_eq!(rig.stat.get(crate::observe::vmstat::Event::WorkingsetRefaultAnon), 0);
    assert!(other.refault(&rig.cx(), Pfn(400), shadow, true));
}

#[test]
fn the_walk_fills_the_filter_that_the_next_walk_tests() {
    // One table under Miri, where every access costs microseconds.
    let tables = if cfg!(miri) { 1 } else { 8 };
    let mut rig = Rig::new(512 * tables as u32, Tunables::preset("k618").unwrap());
    while rig.fill(LruType::Anon).is_some() {}
    let key = |table: u64| walk::table_key(&rig.spaces.get(rig.mm()).unwrap(), Vpn(table << 9));
    assert!(rig.v.age(&rig.cx(), 3, 60, false).is_ok());
    let filled = &rig.v.r#gen.bloom[0];
    assert!((0..tables).all(|t| filled.may_hold(key(t))), "every table was young");
    assert!(!filled.may_hold(key(9)));
    // No page is accessed now. The walk of 4 tests filter 0 and leaves filter 1 empty.
    assert!(rig.v.age(&rig.cx(), 4, 60, false).is_ok());
    assert!((0..tables).all(|t| !rig.v.r#gen.bloom[1].may_hold(key(t))));
    rig.v.check_invariants(&rig.cx());
}

#[test]
fn only_one_of_many_walkers_opens_the_generation() {
    let mut rig = Rig::new(if cfg!(miri) { 16 } else { 512 }, Tunables::preset("k618").unwrap());
    while rig.fill(LruType::Anon).is_some() {}
    let rig = &rig;
    let won: usize = std::thread::scope(|s| {
        let walkers: Vec<_> =
            (0..4).map(|_| s.spawn(|| rig.v.age(&rig.cx(), 3, 60, false).is_ok())).collect();
        walkers.into_iter().map(|w| usize::from(w.join().unwrap())).sum()
    });
    assert!(won >= 1, "somebody ages");
    assert_eq!(rig.v.r#gen.max_seq(), 3 + won as u64);
    rig.v.check_invariants(&rig.cx());
}

#[test]
fn anonymous_pages_on_probation_are_not_due_when_only_files_can_go() {
    use std::sync::atomic::Ordering::Relaxed;
    let mut rig = Rig::new(400, Tunables::default());
    (0..100).for_each(|_| assert!(rig.fill(LruType::File).is_some()));
    let files = rig.v.r#gen.fresh_pages(LruType::File);
    rig.v.r#gen.evictions[0].store(1, Relaxed);
    (0..200).for_each(|_| assert!(rig.fill(LruType::Anon).is_some()));
    assert_eq!(rig.v.r#gen.fresh_pages(LruType::Anon), 200);
    // Fifty pages of probation and two percent: more than the files have, fewer than all pages.
    rig.v.r#gen.fresh_extra.store(51, Relaxed);
    assert!((1..50).contains(&files), "{files}");
    let sc = Scan::new(Reclaimer::Direct, true, 1, 60);
    assert!(!super::probation::due(&rig.v, &rig.cx(), &sc, 0));
    assert!(super::probation::due(&rig.v, &rig.cx(), &sc, 60));
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Fill(bool),
    Touch(u32),
    MarkAccessed(u32),
    Age,
    Evict(u8),
    Remove(u32),
    Isolate(u32),
    Deactivate(u32),
    LazyFree(u32),
    Unevictable(u32),
    Switch,
    Slice,
}

fn op() -> impl Strategy<Value = Op> {
    let id = 0u32..48;
    prop_oneof![
        6 => any::<bool>().prop_map(Op::Fill),
        6 => id.clone().prop_map(Op::Touch),
        3 => id.clone().prop_map(Op::MarkAccessed),
        3 => Just(Op::Age),
        4 => (0u8..13).prop_map(Op::Evict),
        1 => id.clone().prop_map(Op::Remove),
        1 => id.clone().prop_map(Op::Isolate),
        1 => id.clone().prop_map(Op::Deactivate),
        1 => id.clone().prop_map(Op::LazyFree),
        1 => id.prop_map(Op::Unevictable),
        1 => Just(Op::Switch),
        2 => Just(Op::Slice),
    ]
}

fn apply(rig: &mut Rig, op: Op) {
    let on_list = |rig: &Rig, id: u32| rig.folios.word(Pfn(id)).has(Word::LRU);
    match op {
        Op::Fill(anon) => {
            rig.fill(if anon { LruType::Anon } else { LruType::File });
        }
        Op::Touch(id) => {
            let space = rig.spaces.get(rig.mm()).unwrap();
            let place = space.tree().find(Vpn(id.into()));
            if let Some(place) = place.filter(|p| p.get().present()) {
                place.touch(place.get(), Pte::ACCESSED);
            }
        }
        Op::MarkAccessed(id) if on_list(rig, id) => rig.v.mark_accessed(&rig.cx(), Pfn(id)),
        Op::Age => {
            let seq = rig.v.r#gen.max_seq();
            let _ = rig.v.age(&rig.cx(), seq, 60, false);
        }
        Op::Evict(priority) => {
            let mut sc = Scan::new(Reclaimer::Direct, false, 4, 60);
            sc.priority = priority;
            let mut free = std::mem::take(&mut rig.free);
            rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut free));
            rig.free = free;
        }
        Op::Remove(id) if on_list(rig, id) => {
            assert!(rig.v.remove(&rig.cx(), Pfn(id)));
            rig.spaces.unmap(&rig.folios, Pfn(id), 0);
            rig.free.push(id);
        }
        Op::Isolate(id) if on_list(rig, id) => {
            assert!(rig.v.isolate(&rig.cx(), Pfn(id)));
            assert!(!rig.v.isolate(&rig.cx(), Pfn(id)), "it is off the lists");
            rig.v.add(&rig.cx(), Pfn(id));
        }
        Op::Deactivate(id) if on_list(rig, id) => rig.v.deactivate(&rig.cx(), Pfn(id)),
        Op::LazyFree(id) if on_list(rig, id) => rig.v.lazyfree(&rig.cx(), Pfn(id)),
        Op::Unevictable(id) if on_list(rig, id) => {
            rig.folios.set(Pfn(id), Word::UNEVICTABLE);
        }
        Op::Switch => {
            let to = match rig.v.kind() {
                LruKind::Gen => LruKind::Classic,
                LruKind::Classic => LruKind::Gen,
            };
            rig.v.begin_switch(to);
        }
        Op::Slice => {
            rig.v.switch_slice(&rig.cx());
        }
        _ => {}
    }
}

const CASES: u32 = if cfg!(miri) { 2 } else { 128 };
const OPS: usize = if cfg!(miri) { 20 } else { 300 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_interleaving_keeps_the_lists_and_their_counters(
        preset in prop::sample::select(vec!["ebb", "standby", "k612", "k618", "k72"]),
        bulk in any::<bool>(),
        held in any::<bool>(),
        ops in prop::collection::vec(op(), 1..OPS),
    ) {
        let mut tun = Tunables::preset(preset).unwrap();
        tun.mglru.bulk_move = bulk;
        tun.mglru.counter_batch = bulk;
        if held {
            tun.mglru.type_select = crate::tunables::TypeSelect::Ratio;
            (tun.mglru.clean_floor, tun.mglru.per_type_aging) = (8, true);
        }
        let mut rig = Rig::new(48, tun);
        for op in ops {
            apply(&mut rig, op);
            rig.v.check_invariants(&rig.cx());
        }
        let lists = rig.v.lock();
        let gens = lists.r#gen.iter().flatten().flatten().map(|l| l.len()).sum::<u32>();
        let rest = lists.classic.iter().map(|l| l.len()).sum::<u32>() + lists.unevictable.len();
        prop_assert_eq!(gens + rest + rig.free.len() as u32, 48, "every frame is somewhere once");
    }
}

/// Runs promotion, aging, eviction and switching at once. Afterwards all counts must add up.
#[test]
fn threads_that_promote_age_evict_and_switch_leave_sound_lists() {
    let frames = if cfg!(miri) { 64 } else { 8192 };
    let rounds = if cfg!(miri) { 3 } else { 300 };
    for preset in ["ebb", "k618", "k72"] {
        let mut rig = Rig::new(frames, Tunables::preset(preset).unwrap());
        for i in 0..frames {
            rig.fill(if i % 3 == 0 { LruType::File } else { LruType::Anon });
        }
        let freed = {
            let rig = &rig;
            std::thread::scope(|s| {
                s.spawn(|| touch_all(rig, rounds));
                s.spawn(|| age_often(rig, rounds));
                s.spawn(|| switch_often(rig, rounds / 20));
                let evictors: Vec<_> =
                    (0..2).map(|_| s.spawn(|| evict_some(rig, rounds))).collect();
                evictors.into_iter().map(|e| e.join().unwrap()).sum::<usize>()
            })
        };
        while rig.v.is_switching() {
            rig.v.switch_slice(&rig.cx());
        }
        rig.v.check_invariants(&rig.cx());
        let left: u64 = LruType::ALL.iter().map(|&ty| rig.v.total(ty)).sum();
        assert_eq!(left as usize + freed, frames as usize, "{preset}");
    }
}

fn touch_all(rig: &Rig, rounds: u32) {
    let space = rig.spaces.get(rig.mm()).unwrap();
    for round in 0..rounds {
        let step = u64::from(round % 7 + 1);
        for vpn in (0..u64::from(rig.folios.frames())).step_by(step as usize) {
            if let Some(place) = space.tree().find(Vpn(vpn)) {
                let pte = place.get();
                if pte.present() {
                    place.touch(pte, Pte::ACCESSED);
                }
            }
        }
        space.note_scheduled();
    }
}

fn age_often(rig: &Rig, rounds: u32) {
    for _ in 0..rounds {
        let seq = rig.v.r#gen.max_seq();
        let _ = rig.v.age(&rig.cx(), seq, 60, false);
    }
}

fn switch_often(rig: &Rig, rounds: u32) {
    for i in 0..rounds {
        let to = if i % 2 == 0 { LruKind::Classic } else { LruKind::Gen };
        rig.v.switch(&rig.cx(), to);
    }
}

fn evict_some(rig: &Rig, rounds: u32) -> usize {
    let mut freed = Vec::new();
    for i in 0..rounds {
        let mut sc = Scan::new(Reclaimer::Direct, false, 4, 60);
        sc.priority = (i % 13) as u8;
        rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut freed));
    }
    freed.len()
}

/// Without swap the window passes anonymous folios that cannot be moved. The slot of a folio that
/// was promoted within the window before then seems older than its list.
#[test]
fn a_promoted_folio_that_the_window_passed_by_is_not_older_than_its_list() {
    let mut tun = Tunables::preset("k618").unwrap();
    tun.mglru.walk = false;
    let mut rig = Rig::new(64, tun);
    let pfns: Vec<Pfn> = (0..16).filter_map(|_| rig.fill(LruType::Anon)).collect();
    let cx = rig.cx();
    rig.v.check_invariants(&cx);
    for turn in 0..12 {
        let max = rig.v.r#gen.max_seq();
        rig.v.age(&cx, max, 0, true).unwrap();
        for &pfn in &pfns[turn..turn + 2] {
            let w = rig.folios.word(pfn);
            let to = (rig.v.r#gen.max_seq() % 4) as usize;
            for _ in 0..2 {
                if let Some(from) = update_gen(&cx, pfn, to, 0)
                    && from != to
                {
                    window::moved_up(&rig.v, w, from, to);
                }
            }
        }
        rig.v.check_invariants(&cx);
    }
    // With swap again, all folios are found, moved in order and finally reclaimed.
    for _ in 0..8 {
        let max = rig.v.r#gen.max_seq();
        rig.v.age(&cx, max, 60, true).unwrap();
        rig.v.check_invariants(&cx);
    }
}

/// Shows that kswapd for a low zone does not evict folios on probation in other zones.
#[test]
fn probation_gives_nothing_of_zones_that_do_not_help() {
    let pages = if cfg!(miri) { 48 } else { 256 };
    let mut rig = Rig::new(pages, Tunables::default());
    for i in 0..pages {
        let word = Word::new(LruType::File, 0, u8::from(i % 2 == 0));
        rig.folios.init(Pfn(i), word, MemcgId(1), rig.mm(), Vpn(i.into()));
        rig.v.add(&rig.cx(), Pfn(i));
    }
    rig.free.clear();
    let fresh = rig.v.r#gen.fresh_pages(LruType::File);
    assert!(fresh > 0, "some are on probation");
    for priority in (0..=12).rev() {
        let mut sc = Scan::new(Reclaimer::Kswapd, true, 256, 60);
        (sc.zone, sc.priority) = (0, priority);
        let mut free = std::mem::take(&mut rig.free);
        rig.v.shrink(&rig.cx(), &mut sc, &mut Free(&mut free));
        rig.free = free;
    }
    assert!(!rig.free.is_empty() && rig.free.iter().all(|pfn| pfn % 2 == 1), "{:?}", rig.free);
    rig.v.check_invariants(&rig.cx());
}
