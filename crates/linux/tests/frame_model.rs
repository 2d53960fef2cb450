//! Tests both stores, both rules for per-CPU sets, and every switch, against a model. The model
//! knows only which frames each caller holds.

use std::collections::HashMap;
use std::sync::Arc;

use ebb_linux::frame::{
    Backend, Census, Checks, CmaCount, Config, Frames, Gfp, MAX_ORDER, Migratetype, NoHost, ORDERS,
    Order, PAGEBLOCK_PAGES, PcpRule, Request, ZoneKind, ZoneSpec,
};
use ebb_mm::types::Pfn;
use proptest::prelude::*;
use proptest::sample;

const FRAMES: u32 = 16 * 1024;
const CPUS: usize = 3;
/// Miri takes a thousand times as long.
const OPS: usize = if cfg!(miri) { 12 } else { 400 };
const ROUNDS: u32 = if cfg!(miri) { 20 } else { 6000 };

#[derive(Clone, Copy, Debug)]
enum Op {
    Alloc {
        cpu: usize,
        order: u8,
        kind: u8,
        atomic: bool,
    },
    Free {
        cpu: usize,
        pick: usize,
    },
    /// Allocates many single frames, so that pageblocks become empty.
    Many {
        cpu: usize,
        kind: u8,
        count: usize,
    },
    /// Frees many frames in any order, so that pageblocks fill again.
    FreeMany {
        cpu: usize,
        pick: usize,
        count: usize,
    },
    Drain {
        cpu: usize,
    },
    Tick,
    Retype {
        block: u32,
        kind: u8,
    },
    /// Changes, in a running allocator, when frames are checked and how CMA is counted.
    Switch {
        checks: Checks,
        cma_count: CmaCount,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let order =
        prop_oneof![8 => Just(0u8), 4 => 1..4u8, 2 => 4..9u8, 2 => Just(9u8), 1 => Just(10u8)];
    prop_oneof![
        12 => (0..CPUS, order, 0..3u8, any::<bool>())
            .prop_map(|(cpu, order, kind, atomic)| Op::Alloc { cpu, order, kind, atomic }),
        9 => (0..CPUS, any::<usize>()).prop_map(|(cpu, pick)| Op::Free { cpu, pick }),
        2 => (0..CPUS, 0..3u8, 1..900usize)
            .prop_map(|(cpu, kind, count)| Op::Many { cpu, kind, count }),
        2 => (0..CPUS, any::<usize>(), 1..900usize)
            .prop_map(|(cpu, pick, count)| Op::FreeMany { cpu, pick, count }),
        1 => (0..CPUS).prop_map(|cpu| Op::Drain { cpu }),
        1 => Just(Op::Tick),
        1 => (0..FRAMES / PAGEBLOCK_PAGES, 0..3u8)
            .prop_map(|(block, kind)| Op::Retype { block, kind }),
        1 => (sample::select(&Checks::ALL[..]), sample::select(&CmaCount::ALL[..]))
            .prop_map(|(checks, cma_count)| Op::Switch { checks, cma_count }),
    ]
}

type Mechanisms = (Backend, Option<PcpRule>, Checks, CmaCount, bool);

fn mechanisms() -> impl Strategy<Value = Mechanisms> {
    let small = PcpRule::Fixed { high: 32, batch: 8, huge_high: 2, huge_batch: 1 };
    (
        prop_oneof![Just(Backend::Lists), Just(Backend::Bitmaps)],
        prop_oneof![
            Just(None),
            Just(Some(PcpRule::Kernel)),
            Just(Some(PcpRule::FAST)),
            Just(Some(small))
        ],
        sample::select(&Checks::ALL[..]),
        sample::select(&CmaCount::ALL[..]),
        any::<bool>(),
    )
}

struct EvenMoves;

impl Census for EvenMoves {
    fn is_movable(&self, pfn: u32) -> bool {
        pfn.is_multiple_of(2)
    }
}

fn machine((backend, pcp, checks, cma_count, checkable): Mechanisms) -> Frames {
    let mut dma = ZoneSpec::new(ZoneKind::Dma, 0..4096);
    dma.reserved.push(0..16);
    let mut normal = ZoneSpec::new(ZoneKind::Normal, 4096..FRAMES - 100);
    normal.holes = vec![5000..5100, 9216..10_240];
    normal.cma.push(12_288..14_336);
    let mut config = Config::node(&[ZoneKind::Dma, ZoneKind::Normal], vec![dma, normal], CPUS);
    config.backend = backend;
    config.pcp = pcp;
    config.checks = checks;
    config.cma_count = cma_count;
    config.checkable = checkable;
    config.census = Arc::new(EvenMoves);
    config.build().unwrap()
}

/// The frames that are allocated, with their holders; all others are free.
struct Model {
    held: Vec<(u32, u8)>,
    owner: HashMap<u32, u32>,
}

impl Model {
    fn take(&mut self, frames: &Frames, pfn: Pfn, order: u8) {
        assert_eq!(pfn.0 & ((1 << order) - 1), 0, "misaligned block {pfn:?} of order {order}");
        let zone = frames.blocks().get(pfn).zone().expect("a frame of no zone");
        for frame in pfn.0..pfn.0 + (1 << order) {
            assert!(is_memory(frame), "{frame} is no memory");
            assert!(frames.span(zone).contains(&frame));
            assert_eq!(self.owner.insert(frame, pfn.0), None, "frame {frame} handed out twice");
        }
        self.held.push((pfn.0, order));
    }

    fn release(&mut self, pick: usize) -> Option<(Pfn, Order)> {
        if self.held.is_empty() {
            return None;
        }
        let (pfn, order) = self.held.swap_remove(pick % self.held.len());
        for frame in pfn..pfn + (1 << order) {
            self.owner.remove(&frame);
        }
        Some((Pfn(pfn), Order::new(order).unwrap()))
    }

    fn free(&self, frame: u32) -> bool {
        is_memory(frame) && !self.owner.contains_key(&frame)
    }

    /// Returns the free blocks by order and type after complete merging.
    fn merged(&self, frames: &Frames, zone: usize) -> [[u64; 6]; ORDERS] {
        let span = frames.span(zone);
        let kind = |pfn: u32| frames.blocks().get(Pfn(pfn)).migratetype();
        let whole = |pfn: u32, order: u8| {
            let pages = 1u32 << order;
            let apart = order == MAX_ORDER && {
                let (a, b) = (kind(pfn), kind(pfn + PAGEBLOCK_PAGES));
                a != b && !(a.mergeable() && b.mergeable())
            };
            !apart && pfn + pages <= span.end && (pfn..pfn + pages).all(|f| self.free(f))
        };
        let mut counts = [[0; 6]; ORDERS];
        let mut at = span.start;
        while at < span.end {
            if !self.free(at) {
                at += 1;
                continue;
            }
            let fits = at.trailing_zeros().min(u32::from(MAX_ORDER)) as u8;
            let order = (0..=fits).rev().find(|&o| whole(at, o)).unwrap();
            counts[order as usize][kind(at).index()] += 1;
            at += 1 << order;
        }
        counts
    }
}

fn is_memory(frame: u32) -> bool {
    (16..FRAMES - 100).contains(&frame)
        && !(5000..5100).contains(&frame)
        && !(9216..10_240).contains(&frame)
}

fn gfp(kind: u8, atomic: bool) -> Gfp {
    let base = if atomic { Gfp::ATOMIC } else { Gfp::NOWAIT };
    match kind {
        0 => base,
        1 => base.with(Gfp::HIGHMEM).with(Gfp::MOVABLE),
        _ => base.with(Gfp::RECLAIMABLE),
    }
}

fn step(frames: &Frames, model: &mut Model, op: Op) {
    match op {
        Op::Alloc { cpu, order, kind, atomic } => {
            let request = Request::new(gfp(kind, atomic), Order::new(order).unwrap());
            if let Some(pfn) = frames.alloc_on(cpu, &request, &NoHost) {
                let got = frames.blocks().get(pfn).migratetype();
                assert!(kind == 1 || got != Migratetype::Cma, "CMA for an immovable request");
                model.take(frames, pfn, order);
            }
        }
        Op::Free { cpu, pick } => {
            if let Some((pfn, order)) = model.release(pick) {
                frames.free_on(cpu, pfn, order).unwrap();
            }
        }
        Op::Many { cpu, kind, count } => {
            for _ in 0..count {
                step(frames, model, Op::Alloc { cpu, order: 0, kind, atomic: false });
            }
        }
        Op::FreeMany { cpu, pick, count } => {
            for i in 0..count {
                let pick = pick.wrapping_add(i.wrapping_mul(0x9e37_79b9));
                step(frames, model, Op::Free { cpu, pick });
            }
        }
        Op::Drain { cpu } => frames.drain_cpu(cpu),
        Op::Tick => frames.tick(),
        Op::Switch { checks, cma_count } => {
            // The change is refused where there is no frame table, and then nothing changes.
            let before = frames.checks();
            let refused = frames.set_checks(checks).is_err();
            assert_eq!(refused, frames.table().is_none() && checks != Checks::Off);
            assert_eq!(frames.checks(), if refused { before } else { checks });
            frames.set_cma_count(cma_count);
        }
        Op::Retype { block, kind } => {
            // Does to pageblocks exactly what a failing contiguous allocation does.
            let pfn = block * PAGEBLOCK_PAGES;
            let end = (pfn + 1 + u32::from(kind)).min(FRAMES - 100);
            let _ = frames.alloc_contig(pfn..end, &mut |_| false).map(|()| {
                (pfn..end).for_each(|f| model.take(frames, Pfn(f), 0));
            });
        }
    }
}

fn at_rest(frames: &Frames, model: &Model) {
    frames.drain_all();
    for zone in 0..frames.zones().len() {
        assert_eq!(frames.pages_in_sets(zone), 0, "drain_all left pages in sets");
        assert_eq!(frames.zones()[zone].free_blocks(), model.merged(frames, zone), "zone {zone}");
    }
    if let Err(why) = frames.check() {
        panic!("{why}");
    }
    let cpus = frames.cpu_count() as u32;
    for zone in frames.zones() {
        let counters = zone.state().counters();
        let drift = counters.drift(ebb_linux::frame::ZoneItem::FreePages);
        assert!(drift <= counters.threshold(), "{cpus} CPUs: a delta strayed by {drift}");
        assert_eq!(zone.state().bad_frames(), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 96 }))]

    #[test]
    fn no_sequence_of_requests_loses_doubles_or_splits_a_frame(
        how in mechanisms(),
        ops in prop::collection::vec(op(), 1..OPS),
        look in 1..60usize,
    ) {
        let frames = machine(how);
        let mut model = Model { held: Vec::new(), owner: HashMap::new() };
        let start = frames.buddyinfo();
        for (i, &op) in ops.iter().enumerate() {
            step(&frames, &mut model, op);
            if i % look == 0 {
                at_rest(&frames, &model);
            }
        }
        at_rest(&frames, &model);
        while let Some((pfn, order)) = model.release(7) {
            frames.free_on(1, pfn, order).unwrap();
        }
        at_rest(&frames, &model);
        if frames.zones().iter().all(|z| z.free_blocks().iter().all(|t| t[3] == 0)) {
            prop_assert_eq!(frames.buddyinfo(), start, "not merged back to the start");
        }
    }

    #[test]
    fn both_stores_agree_on_whether_they_have_a_single_frame(
        ops in prop::collection::vec((any::<bool>(), 0..3u8, any::<usize>()), 1..OPS),
    ) {
        let plain = |backend| machine((backend, None, Checks::Off, CmaCount::InLock, false));
        let stores = [plain(Backend::Lists), plain(Backend::Bitmaps)];
        let mut held: [Vec<Pfn>; 2] = [Vec::new(), Vec::new()];
        for (alloc, kind, pick) in ops {
            let request = Request::new(gfp(kind, true), Order::ZERO);
            let mut got = [false; 2];
            for (i, frames) in stores.iter().enumerate() {
                for _ in 0..50 {
                    if alloc {
                        let pfn = frames.alloc_on(0, &request, &NoHost);
                        got[i] = pfn.is_some();
                        held[i].extend(pfn);
                    } else if !held[i].is_empty() {
                        let at = pick % held[i].len();
                        frames.free_on(0, held[i].swap_remove(at), Order::ZERO).unwrap();
                    }
                }
            }
            prop_assert_eq!(got[0], got[1]);
            prop_assert_eq!(held[0].len(), held[1].len());
        }
        for frames in &stores {
            prop_assert_eq!(frames.check(), Ok(()));
        }
    }
}

/// Runs many threads, with claimed CPUs and hints, while sets are drained all the time.
#[test]
fn threads_that_share_everything_never_share_a_frame() {
    for backend in [Backend::Lists, Backend::Bitmaps] {
        let rules = [Some(PcpRule::FAST), Some(PcpRule::Kernel), None];
        for &pcp in &rules[..if cfg!(miri) { 1 } else { 3 }] {
            let frames = machine((backend, pcp, Checks::OnPop, CmaCount::InLock, true));
            let owner: Vec<_> = (0..FRAMES).map(|_| std::sync::atomic::AtomicU32::new(0)).collect();
            std::thread::scope(|scope| {
                for thread in 1..=4u32 {
                    let (frames, owner) = (&frames, &owner);
                    scope.spawn(move || churn(frames, owner, thread));
                }
                for round in 0..if cfg!(miri) { 3 } else { 200 } {
                    frames.set_checks(Checks::ALL[round % 4]).unwrap();
                    frames.set_cma_count(CmaCount::ALL[round % 3]);
                    frames.drain_all();
                    frames.tick();
                    std::thread::yield_now();
                }
            });
            frames.drain_all();
            assert_eq!(frames.check(), Ok(()));
            let free: u64 = frames
                .zones()
                .iter()
                .map(|z| z.state().counters().snapshot(ebb_linux::frame::ZoneItem::FreePages))
                .sum();
            let managed: u64 = frames.zones().iter().map(|z| z.state().managed()).sum();
            assert_eq!(free, managed);
        }
    }
}

fn churn(frames: &Frames, owner: &[std::sync::atomic::AtomicU32], thread: u32) {
    use std::sync::atomic::Ordering::Relaxed;
    // Two threads claim a CPU. The others name a CPU, which may be a claimed one.
    let claim = if thread <= 2 { frames.cpu(thread as usize) } else { None };
    let hint = thread as usize % CPUS;
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    let mut seed = u64::from(thread) * 0x9e37_79b9;
    for _ in 0..ROUNDS {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let dice = seed >> 33;
        let order = Order::new([0, 0, 0, 1, 2, 3, 9][dice as usize % 7]).unwrap();
        if dice & 8 == 0 || held.len() > 200 {
            if let Some((pfn, order)) =
                (!held.is_empty()).then(|| held.swap_remove(dice as usize % held.len()))
            {
                for f in pfn.0..pfn.0 + order.pages() {
                    assert_eq!(owner[f as usize].swap(0, Relaxed), thread);
                }
                match &claim {
                    Some(cpu) => cpu.free(pfn, order),
                    None => frames.free_on(hint, pfn, order),
                }
                .unwrap();
            }
            continue;
        }
        let request = Request::new(gfp((dice >> 4) as u8 % 3, false), order);
        let got = match &claim {
            Some(cpu) => cpu.alloc(&request, &NoHost),
            None => frames.alloc_on(hint, &request, &NoHost),
        };
        if let Some(pfn) = got {
            for f in pfn.0..pfn.0 + order.pages() {
                assert_eq!(owner[f as usize].swap(thread, Relaxed), 0, "frame {f} doubled");
            }
            held.push((pfn, order));
        }
    }
    for (pfn, order) in held {
        for f in pfn.0..pfn.0 + order.pages() {
            owner[f as usize].store(0, Relaxed);
        }
        frames.free_on(hint, pfn, order).unwrap();
    }
}
