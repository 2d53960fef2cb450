//! Tests where an allocation looks, in which order, and which callbacks it makes; and which blocks
//! serve requests of another type.

use std::cell::RefCell;

use ebb_linux::frame::{
    Backend, Config, Frames, Gfp, Host, Migratetype, NoHost, Order, PAGEBLOCK_PAGES, Request,
    ZoneItem, ZoneKind, ZoneSpec,
};
use ebb_mm::types::Pfn;

const BACKENDS: [Backend; 2] = [Backend::Lists, Backend::Bitmaps];
const MOVABLE: Gfp = Gfp::NOWAIT.with(Gfp::HIGHMEM).with(Gfp::MOVABLE);
const UNMOVABLE: Gfp = Gfp::NOWAIT;

/// A host that gives fixed answers and records calls.
#[derive(Default)]
struct World<'a> {
    log: RefCell<Vec<String>>,
    /// Nodes whose kswapd is awake.
    awake: Vec<usize>,
    /// Nodes over their dirty limit.
    dirty: Vec<usize>,
    /// Number of tries for which another caller is busy with an OOM kill.
    oom_busy: RefCell<u32>,
    /// Frames that reclaim frees, one at a time, from its third call on.
    spare: RefCell<Vec<Pfn>>,
    frames: Option<&'a Frames>,
}

impl World<'_> {
    fn say(&self, what: String) {
        self.log.borrow_mut().push(what);
    }

    fn said(&self, what: &str) -> usize {
        self.log.borrow().iter().filter(|line| line.starts_with(what)).count()
    }
}

impl Host for World<'_> {
    fn wake_kswapd(&self, node: usize, order: Order, highest: usize) {
        self.say(format!("wake {node} {} {highest}", order.get()));
    }
    fn kswapd_awake(&self, node: usize) -> bool {
        self.awake.contains(&node)
    }
    fn over_dirty_limit(&self, node: usize) -> bool {
        self.dirty.contains(&node)
    }
    fn reclaim(&self, _: &Request, _: usize, _: u64) -> u64 {
        self.say("reclaim".into());
        if self.said("reclaim") < 3 {
            return 0;
        }
        let Some(pfn) = self.spare.borrow_mut().pop() else { return 0 };
        self.frames.unwrap().free_on(0, pfn, Order::ZERO).unwrap();
        1
    }
    fn oom_begin(&self) -> bool {
        let mut busy = self.oom_busy.borrow_mut();
        let mine = *busy == 0;
        *busy = busy.saturating_sub(1);
        self.say(if mine { "oom" } else { "busy" }.into());
        mine
    }
    fn oom_kill(&self, _: &Request, _: usize) -> bool {
        self.say("kill".into());
        false
    }
    fn sleep_tick(&self) {
        self.say("tick".into());
    }
}

fn two_nodes(backend: Backend) -> Frames {
    let mut config = Config::flat(16_384, 2);
    config.nodes.push(vec![ZoneSpec::new(ZoneKind::Normal, 16_384..32_768)]);
    config.cpus = vec![0, 1];
    (config.backend, config.pcp) = (backend, None);
    config.build().unwrap()
}

fn node_of(frames: &Frames, pfn: Pfn) -> usize {
    frames.zones()[zone_of(frames, pfn)].state().node()
}

fn zone_of(frames: &Frames, pfn: Pfn) -> usize {
    frames.blocks().get(pfn).zone().unwrap()
}

fn one(frames: &Frames, gfp: Gfp, host: &dyn Host) -> Option<Pfn> {
    frames.alloc_on(0, &Request::new(gfp, Order::ZERO), host)
}

/// Allocates all memory, whatever the watermarks say.
fn exhaust(frames: &Frames, gfp: Gfp) -> Vec<Pfn> {
    std::iter::from_fn(|| one(frames, gfp.with(Gfp::MEMALLOC), &NoHost)).collect()
}

#[test]
fn nodes_whose_kswapd_is_awake_are_tried_last() {
    for backend in BACKENDS {
        let frames = two_nodes(backend);
        let from = |awake: &[usize], gfp| {
            let world = World { awake: awake.to_vec(), ..World::default() };
            one(&frames, gfp, &world).map(|pfn| node_of(&frames, pfn))
        };
        assert_eq!(from(&[], MOVABLE), Some(0));
        assert_eq!(from(&[0], MOVABLE), Some(1));
        assert_eq!(from(&[0, 1], MOVABLE), Some(0), "all are awake: the nearest");
        assert_eq!(from(&[0], MOVABLE.with(Gfp::THISNODE)), Some(0), "nowhere else to go");
    }
}

#[test]
fn dirty_limits_spread_pages_and_fail_no_request() {
    for backend in BACKENDS {
        let frames = two_nodes(backend);
        let from = |dirty: &[usize], gfp| {
            let world = World { dirty: dirty.to_vec(), ..World::default() };
            let got = one(&frames, gfp, &world).map(|pfn| node_of(&frames, pfn));
            (got, world.said("wake"))
        };
        let write = MOVABLE.with(Gfp::WRITE);
        assert_eq!(from(&[0], MOVABLE), (Some(0), 0), "only what will be written");
        assert_eq!(from(&[0], write), (Some(1), 0));
        // The fast path finds no frame; the slow path ignores dirty limits.
        assert_eq!(from(&[0, 1], write), (Some(0), 2));
    }
}

/// Returns a machine with DMA32 and Normal. Every second frame of Normal's pageblocks is free, and
/// all blocks are movable.
fn fragmented(backend: Backend) -> Frames {
    let zones = vec![
        ZoneSpec::new(ZoneKind::Dma32, 0..16_384),
        ZoneSpec::new(ZoneKind::Normal, 16_384..32_768),
    ];
    let mut config = Config::node(&[ZoneKind::Dma32, ZoneKind::Normal], zones, 1);
    (config.backend, config.pcp) = (backend, None);
    let frames = config.build().unwrap();
    let held = exhaust(&frames, MOVABLE);
    assert_eq!(held.len(), 32_768);
    for pfn in held {
        if pfn.0 < 16_384 || pfn.0 % 2 == 0 {
            frames.free_on(0, pfn, Order::ZERO).unwrap();
        }
    }
    frames
}

#[test]
fn another_zone_is_taken_rather_than_a_mixed_pageblock_and_mixing_raises_the_marks() {
    for backend in BACKENDS {
        let frames = fragmented(backend);
        let world = World::default();
        let pfn = one(&frames, UNMOVABLE, &world).unwrap();
        assert_eq!(zone_of(&frames, pfn), 0, "{backend:?}: Normal was mixed");
        assert_eq!(frames.zones()[1].state().boost_pages(), 0);
        // DMA32 has no frame left, so the request must mix a pageblock.
        exhaust(&frames, UNMOVABLE.with(Gfp::DMA32));
        let pfn = one(&frames, UNMOVABLE, &world).unwrap();
        assert_eq!(zone_of(&frames, pfn), 1);
        let state = frames.zones()[1].state();
        assert_eq!(state.boost_pages(), u64::from(PAGEBLOCK_PAGES));
        assert_eq!(world.said("wake 0 0 1"), 1, "kswapd is told of the boost, once");
        one(&frames, UNMOVABLE, &world).unwrap();
        assert_eq!(world.said("wake 0 0 1"), 1);
        assert_eq!(frames.check(), Ok(()));
    }
}

#[test]
fn an_urgent_page_is_had_below_a_boosted_min() {
    for backend in BACKENDS {
        let frames = fragmented(backend);
        exhaust(&frames, UNMOVABLE.with(Gfp::DMA32));
        one(&frames, UNMOVABLE, &NoHost).unwrap();
        let state = frames.zones()[1].state();
        let (min, boost) = (state.marks().min, state.boost_pages());
        let free = || state.counters().snapshot(ZoneItem::FreePages);
        while one(&frames, UNMOVABLE, &NoHost).is_some() {}
        // The watermark test reads the shared count, which may lag by a delta.
        assert!(free() + 8 >= min + boost, "{} of {min} and {boost}: not raised", free());
        while one(&frames, Gfp::ATOMIC, &NoHost).is_some() {}
        let lowest = min - min / 2 - min / 2 / 4;
        assert!(free() <= lowest + 8, "{backend:?}: {} of {min} and {boost} left", free());
    }
}

#[test]
fn a_task_that_finds_an_oom_kill_under_way_waits_a_tick_and_tries_again() {
    let frames = two_nodes(Backend::Lists);
    exhaust(&frames, MOVABLE);
    let world = World { oom_busy: RefCell::new(2), ..World::default() };
    assert_eq!(one(&frames, Gfp::KERNEL, &world), None);
    let log = world.log.borrow();
    let after: Vec<&str> = log.iter().map(String::as_str).filter(|l| !l.starts_with('w')).collect();
    assert_eq!(
        after,
        ["reclaim", "busy", "tick", "reclaim", "busy", "tick", "reclaim", "oom", "kill"]
    );
}

#[test]
fn a_request_that_must_not_fail_goes_on_until_there_is_a_page() {
    let frames = two_nodes(Backend::Bitmaps);
    let held = exhaust(&frames, MOVABLE);
    let spare = held[..600].to_vec();
    let world = World { spare: RefCell::new(spare), frames: Some(&frames), ..World::default() };
    assert!(one(&frames, Gfp::KERNEL.with(Gfp::NOFAIL), &world).is_some());
    assert!(world.said("tick") > 0 && world.said("kill") > 0);
}

fn flat(backend: Backend, cma: std::ops::Range<u32>) -> Frames {
    let mut zone = ZoneSpec::new(ZoneKind::Normal, 0..16_384);
    if !cma.is_empty() {
        zone.cma.push(cma);
    }
    let mut config = Config::node(&[ZoneKind::Normal], vec![zone], 1);
    (config.backend, config.pcp) = (backend, None);
    config.build().unwrap()
}

#[test]
fn a_request_without_a_block_of_its_type_takes_over_the_largest_of_another() {
    for backend in BACKENDS {
        let frames = flat(backend, 0..0);
        let pfn = one(&frames, UNMOVABLE, &NoHost).unwrap();
        assert_eq!(frames.blocks().get(pfn).migratetype(), Migratetype::Unmovable);
        assert_eq!(frames.blocks_of_type(Migratetype::Unmovable), 2, "both halves of it");
        for _ in 1..1024 {
            one(&frames, UNMOVABLE, &NoHost).unwrap();
        }
        assert_eq!(frames.blocks_of_type(Migratetype::Unmovable), 2, "{backend:?}");
        one(&frames, UNMOVABLE, &NoHost).unwrap();
        assert_eq!(frames.blocks_of_type(Migratetype::Unmovable), 4, "{backend:?}");
    }
}

#[test]
fn a_movable_page_is_stolen_from_a_small_block_and_its_pageblock_keeps_its_type() {
    for backend in BACKENDS {
        let frames = flat(backend, 0..0);
        let mine: Vec<Pfn> = (0..1024).map(|_| one(&frames, UNMOVABLE, &NoHost).unwrap()).collect();
        exhaust(&frames, MOVABLE);
        for pfn in mine.iter().filter(|pfn| pfn.0 % 16 == 3) {
            frames.free_on(0, *pfn, Order::ZERO).unwrap();
        }
        let before = frames.pagetypeinfo().lines().last().map(str::to_owned);
        let pfn = one(&frames, MOVABLE.with(Gfp::MEMALLOC), &NoHost).unwrap();
        assert_eq!(frames.blocks().get(pfn).migratetype(), Migratetype::Unmovable, "{backend:?}");
        assert_eq!(frames.pagetypeinfo().lines().last().map(str::to_owned), before);
        assert_eq!(frames.check(), Ok(()));
    }
}

#[test]
fn cma_serves_movable_pages_first_once_it_is_most_of_what_is_free_and_others_never() {
    for backend in BACKENDS {
        let is_cma =
            |frames: &Frames, pfn: Pfn| frames.blocks().get(pfn).migratetype() == Migratetype::Cma;
        let few = flat(backend, 4096..8192);
        let pfn = one(&few, MOVABLE, &NoHost).unwrap();
        assert!(!is_cma(&few, pfn), "{backend:?}: a quarter of what is free");
        let many = flat(backend, 4096..14_336);
        let pfn = one(&many, MOVABLE, &NoHost).unwrap();
        assert!(is_cma(&many, pfn), "{backend:?}: most of what is free");
        let others = exhaust(&many, UNMOVABLE);
        assert_eq!(others.len(), 16_384 - 10_240, "{backend:?}");
        assert!(others.iter().all(|&pfn| !is_cma(&many, pfn)));
    }
}
