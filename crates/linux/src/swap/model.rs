//! Checks swap against a trivial model: an array of pages.
//!
//! The test keeps the contents: a cell for each frame, a cell for each slot. A write carries the
//! contents of the page at its submission, and may fail. A read may fail, too. The test compares
//! every page read, and every page in the end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::SwapCache;
use crate::writeback::{PageCache, Request, To, Writes};
use ebb_mm::folio::{Folios, LruType, MemcgId, Word};
use ebb_mm::lru::{Ctx, Evicted, Lruvec, Pageout, Reclaimer, Scan, Shadow};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::space::{Area, Backing, Pte, Space, Spaces};
use ebb_mm::tunables::{LruKind, SwapOrder, Tunables};
use ebb_mm::types::{MmId, Pfn, SlotId, Vpn};

const FRAMES: u32 = 24;
const PAGES: u64 = 40;
const SPACES: usize = 2;

#[derive(Clone, Debug)]
enum Op {
    Read(usize, u64),
    Write(usize, u64, u8),
    Free(usize, u64),
    Reclaim(u64),
    Complete(usize),
    Device { reads: bool, writes: bool },
}

struct Out<'a> {
    writes: &'a mut Writes,
    cache: &'a mut PageCache,
    swap: &'a mut SwapCache,
    free: &'a mut Vec<u32>,
}

impl Pageout for Out<'_> {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, ty: LruType, shadow: Shadow) -> Evicted {
        assert_eq!(ty, LruType::Anon);
        if !self.swap.is_stored(cx, pfn) {
            let begun = self.writes.begin(cx, self.cache, self.swap, pfn);
            return if begun { Evicted::Writing } else { Evicted::Young };
        }
        cx.spaces.unmap(cx.folios, pfn, shadow.0);
        self.swap.leave(cx, pfn);
        cx.folios.unpin(pfn);
        cx.folios.unpin(pfn);
        self.free.push(pfn.0);
        Evicted::Freed
    }
}

struct World {
    folios: Folios,
    spaces: Spaces,
    tun: Tunables,
    stat: VmStat,
    v: Lruvec,
    cache: PageCache,
    swap: SwapCache,
    writes: Writes,
    list: Vec<Arc<Space>>,
    memory: Vec<u8>,
    device: HashMap<SlotId, u8>,
    model: Vec<Vec<u8>>,
    free: Vec<u32>,
    flying: VecDeque<(Request, Vec<u8>)>,
    works: (bool, bool),
    failed_writes: u64,
    keep: bool,
}

macro_rules! cx {
    ($w:expr) => {
        Ctx { folios: &$w.folios, spaces: &$w.spaces, tun: &$w.tun, stat: &$w.stat, now_ms: 0 }
    };
}

impl World {
    fn new(lru: LruKind, order: SwapOrder, slots: u32, keep: bool) -> Self {
        let mut tun = Tunables::default();
        (tun.lru, tun.swap.order) = (lru, order);
        let (folios, spaces) = (Folios::new(FRAMES), Spaces::new());
        let v = Lruvec::new(MemcgId(1), lru, 0);
        let space = || {
            let space = spaces.create(MemcgId(1));
            space.add_area(Area::new(Vpn(0), Vpn(PAGES), Backing::Anon));
            v.generations().spaces().join(space.id());
            space
        };
        let list = (0..SPACES).map(|_| space()).collect();
        Self {
            folios,
            spaces,
            tun,
            stat: VmStat::default(),
            v,
            cache: PageCache::new(),
            swap: SwapCache::new(slots),
            writes: Writes::default(),
            list,
            memory: vec![0; FRAMES as usize],
            device: HashMap::new(),
            model: vec![vec![0; PAGES as usize]; SPACES],
            free: (0..FRAMES).collect(),
            flying: VecDeque::new(),
            works: (true, true),
            failed_writes: 0,
            keep,
        }
    }

    fn reclaim(&mut self, target: u64) {
        let cx = cx!(self);
        let mut sc = Scan::new(Reclaimer::Direct, false, target, 200);
        sc.priority = 0;
        let out = &mut Out {
            writes: &mut self.writes,
            cache: &mut self.cache,
            swap: &mut self.swap,
            free: &mut self.free,
        };
        self.v.shrink(&cx, &mut sc, out);
        for request in self.writes.submit(&cx, &mut self.swap) {
            let held = request.frames.iter().map(|p| self.memory[p.0 as usize]).collect();
            self.flying.push_back((request, held));
        }
    }

    fn complete(&mut self) {
        let Some((request, held)) = self.flying.pop_front() else { return };
        let To::Swap(SlotId(first)) = request.to else { panic!("no file is here") };
        for (i, &pfn) in request.frames.iter().enumerate() {
            if self.works.1 {
                self.device.insert(SlotId(first + i as u32), held[i]);
            } else {
                self.failed_writes += 1;
            }
            let cx = cx!(self);
            let ended = (pfn, self.works.1);
            self.writes.end(&cx, &mut self.cache, &mut self.swap, &self.v, ended);
            let kept = cx.folios.word(pfn).has(Word::SWAPCACHE);
            assert!(self.works.1 || !kept, "a copy that was not written is none");
        }
    }

    /// Makes a page accessible. Returns `None` if there is no frame, or the page cannot be read.
    fn touch(&mut self, space: usize, page: u64, store: bool) -> Option<Pfn> {
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let bits = Pte::MAPPED | Pte::ACCESSED | if store { Pte::DIRTY } else { 0 };
        let pte = place.get();
        if pte.present() {
            let first = store && !pte.all(Pte::DIRTY);
            self.folios.set(pte.pfn(), Word::MAPPED);
            place.touch(pte, bits);
            if first && !self.folios.word(pte.pfn()).has(Word::WRITEBACK) {
                self.swap.drop_copy(&cx!(self), pte.pfn());
            }
            return Some(pte.pfn());
        }
        let mm = tree.id();
        let slot = self.swap.slot_outside(mm, Vpn(page));
        if slot.is_some() && !self.works.0 {
            return None;
        }
        for _ in 0..4 {
            if !self.free.is_empty() {
                break;
            }
            self.reclaim(4);
            self.complete();
        }
        let pfn = Pfn(self.free.pop()?);
        self.memory[pfn.0 as usize] = slot.map_or(0, |slot| self.device[&slot]);
        self.place(mm, page, pfn, slot.is_some() && self.keep && !store);
        place.table.set(place.index, Pte::of_frame(pfn, bits));
        self.v.add(&cx!(self), pfn);
        Some(pfn)
    }

    fn place(&mut self, mm: MmId, page: u64, pfn: Pfn, keep: bool) {
        let cx = cx!(self);
        let word = Word::new(LruType::Anon, 0, 0).with(Word::MAPPED);
        cx.folios.init(pfn, word, MemcgId(1), mm, Vpn(page));
        self.swap.arrive(&cx, pfn, keep);
    }

    fn free(&mut self, space: usize, page: u64) {
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let pte = place.get();
        if !pte.present() {
            self.swap.forget(tree.id(), Vpn(page));
        } else if self.folios.word(pte.pfn()).has(Word::WRITEBACK) {
            return;
        } else {
            let cx = cx!(self);
            self.v.remove(&cx, pte.pfn());
            self.swap.drop_copy(&cx, pte.pfn());
            cx.folios.unpin(pte.pfn());
            self.free.push(pte.pfn().0);
        }
        place.table.set(place.index, Pte(0));
        self.model[space][page as usize] = 0;
    }

    fn read(&mut self, space: usize, page: u64) {
        if let Some(pfn) = self.touch(space, page, false) {
            let expected = self.model[space][page as usize];
            assert_eq!(self.memory[pfn.0 as usize], expected, "page {page} of {space}");
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Read(space, page) => self.read(space, page),
            Op::Write(space, page, value) => {
                if let Some(pfn) = self.touch(space, page, true) {
                    self.memory[pfn.0 as usize] = value;
                    self.model[space][page as usize] = value;
                }
            }
            Op::Free(space, page) => self.free(space, page),
            Op::Reclaim(target) => self.reclaim(target),
            Op::Complete(n) => (0..n).for_each(|_| self.complete()),
            Op::Device { reads, writes } => self.works = (reads, writes),
        }
        self.check();
    }

    fn inside(&self) -> Vec<Pfn> {
        let pages = self.list.iter().flat_map(|s| (0..PAGES).map(move |p| (s, p)));
        let entry = |(s, p): (&Arc<Space>, u64)| s.tree().find(Vpn(p)).map(|place| place.get());
        pages.filter_map(entry).filter(|pte| pte.present()).map(Pte::pfn).collect()
    }

    fn check(&self) {
        let cx = cx!(self);
        let inside = self.inside();
        assert_eq!(inside.len() + self.free.len(), FRAMES as usize);
        let writing = inside.iter().filter(|&&p| cx.folios.word(p).has(Word::WRITEBACK)).count();
        assert_eq!(writing as u64, self.writes.pending());
        self.swap.check(&cx, inside.into_iter());
    }

    /// Repairs the device, lets all writes end, and checks that every page has its contents.
    fn settle(&mut self) {
        self.works = (true, true);
        while !self.flying.is_empty() {
            self.complete();
        }
        for space in 0..SPACES {
            for page in 0..PAGES {
                self.read(space, page);
                while !self.flying.is_empty() {
                    self.complete();
                }
            }
        }
        self.check();
        self.v.check_invariants(&cx!(self));
    }
}

fn ops() -> impl Strategy<Value = Op> {
    let at = (0..SPACES, 0..PAGES);
    prop_oneof![
        6 => at.clone().prop_map(|(s, p)| Op::Read(s, p)),
        8 => (at.clone(), 1u8..).prop_map(|((s, p), v)| Op::Write(s, p, v)),
        1 => at.prop_map(|(s, p)| Op::Free(s, p)),
        3 => (1u64..12).prop_map(Op::Reclaim),
        3 => (1usize..4).prop_map(Op::Complete),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(reads, writes)| Op::Device { reads, writes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]
    #[test]
    fn no_page_is_lost_whatever_fails(
        ops in prop::collection::vec(ops(), 1..400),
        classic in any::<bool>(),
        by_address in any::<bool>(),
        slots in 20u32..200,
        keep in any::<bool>(),
    ) {
        let kind = if classic { LruKind::Classic } else { LruKind::Gen };
        let order = if by_address { SwapOrder::Address } else { SwapOrder::Time };
        let mut w = World::new(kind, order, slots, keep);
        for op in &ops {
            w.apply(op);
        }
        // Only with slots for everything: a full device is no data loss, but then not all pages can
        // be read.
        if slots as usize >= SPACES * PAGES as usize {
            w.settle();
        }
    }
}

/// Writes all pages of the first space, and reclaims so that pages are written out.
fn full(order: SwapOrder) -> World {
    let mut w = World::new(LruKind::Classic, order, 1000, true);
    for page in 0..PAGES {
        w.apply(&Op::Write(0, page, page as u8 + 1));
    }
    w
}

#[test]
fn a_page_whose_write_failed_is_dirty_in_memory_and_stored_by_the_next_write() {
    let mut w = full(SwapOrder::Time);
    while !w.flying.is_empty() {
        w.complete();
    }
    w.works = (true, false);
    for _ in 0..8 {
        if w.flying.is_empty() {
            w.reclaim(8);
        }
    }
    let (request, _) = w.flying.front().expect("something is written").clone();
    let pfn = request.frames[0];
    w.complete();
    assert!(w.failed_writes > 0);
    let word = w.folios.word(pfn);
    assert!(word.has(Word::DIRTY) && !word.has(Word::WRITEBACK.or(Word::SWAPCACHE)));
    assert!(w.inside().contains(&pfn), "it stays");
    w.check();
    w.settle();
    assert!(w.stat.get(Event::PswpOut) > 0);
}

#[test]
fn a_page_that_cannot_be_read_keeps_its_slot_and_is_read_later() {
    let mut w = full(SwapOrder::Time);
    let mm = w.list[0].id();
    let page = (0..PAGES).find(|&p| w.swap.slot_outside(mm, Vpn(p)).is_some()).expect("one is out");
    w.works = (false, true);
    assert_eq!(w.touch(0, page, false), None);
    assert!(w.swap.slot_outside(mm, Vpn(page)).is_some());
    w.works = (true, true);
    w.read(0, page);
}

#[test]
fn neighbours_that_leave_together_are_one_request() {
    // Pages are touched out of order. They are written in that order, or by address.
    let requests = |order| {
        let mut w = World::new(LruKind::Classic, order, 1000, true);
        for i in 0..16 {
            w.apply(&Op::Write(0, i * 5 % 16, 1));
        }
        // The first scan clears the accessed bits, the second evicts the pages.
        for _ in 0..4 {
            w.reclaim(16);
        }
        let sizes: Vec<usize> = w.flying.iter().map(|(r, _)| r.frames.len()).collect();
        let slots: Vec<u32> = (0..16)
            .filter_map(|p| w.list[0].tree().find(Vpn(p)))
            .filter_map(|place| w.folios.store_slot(place.get().pfn()))
            .collect();
        (sizes, slots)
    };
    let (time, by_time) = requests(SwapOrder::Time);
    let (address, by_address) = requests(SwapOrder::Address);
    assert_eq!((time, address), (vec![16], vec![16]), "slots are in a row either way");
    assert!(by_address.is_sorted(), "{by_address:?}");
    assert!(!by_time.is_sorted(), "{by_time:?}");
}
