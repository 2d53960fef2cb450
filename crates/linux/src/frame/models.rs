//! Loom models: every schedule of a few threads within a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p ebb-mm --lib models --target-dir target-loom`

use loom::sync::Arc;
use loom::thread;

use super::counter::{Counters, ZoneItem};
use super::state::BELOW_HIGH;
use super::sync::{Relaxed, full_fence};
use super::{Backend, Config, Frames, Gfp, NoHost, Order, PcpRule, RemoteFence, Request};

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // One schedule passes a drain, a few refills and the checks of both, so it takes more steps
    // than usual.
    builder.max_branches = 20_000;
    builder.check(body);
}

#[test]
fn deltas_of_one_cpu_shared_by_two_threads_add_up() {
    model(3, || {
        let counters = Arc::new(Counters::new(1, 1));
        let other = {
            let counters = counters.clone();
            thread::spawn(move || {
                counters.add(0, ZoneItem::FreePages, 1);
                counters.add(0, ZoneItem::FreePages, 1);
            })
        };
        counters.add(0, ZoneItem::FreePages, -1);
        counters.fold(0);
        other.join().unwrap();
        assert_eq!(counters.snapshot(ZoneItem::FreePages), 1);
        assert!(counters.drift(ZoneItem::FreePages) <= 1);
    });
}

/// Stands for a system with a remote fence. Loom has no such fence, so both sides use full fences
/// there.
#[derive(Debug)]
struct Fence;

impl RemoteFence for Fence {
    fn heavy(&self) {
        full_fence();
    }
}

fn small(backend: Backend, fence: bool) -> Frames {
    let mut config = Config::flat(1024, 1);
    config.backend = backend;
    config.min_free_kbytes = Some(4);
    config.watermark_boost_factor = 0;
    config.fence = fence.then(|| std::sync::Arc::new(Fence) as _);
    config.pcp = Some(PcpRule::Fixed { high: 2, batch: 1, huge_high: 0, huge_batch: 1 });
    config.build().unwrap()
}

fn everything_is_back(frames: &Frames) {
    frames.drain_all();
    assert_eq!(frames.pages_in_sets(0), 0);
    assert_eq!(frames.check(), Ok(()));
    assert_eq!(frames.zones()[0].free_blocks()[10].iter().sum::<u64>(), 1);
}

/// The owner of a CPU allocates and frees while another thread drains its sets.
fn drain_against_free(backend: Backend, fence: bool) {
    model(2, move || {
        let frames = Arc::new(small(backend, fence));
        let request = Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO);
        let drainer = {
            let frames = frames.clone();
            thread::spawn(move || frames.drain_cpu(0))
        };
        {
            let cpu = frames.cpu(0).unwrap();
            let a = cpu.alloc(&request, &NoHost).unwrap();
            let b = cpu.alloc(&request, &NoHost).unwrap();
            assert_ne!(a, b);
            cpu.free(a, Order::ZERO).unwrap();
            cpu.free(b, Order::ZERO).unwrap();
        }
        drainer.join().unwrap();
        everything_is_back(&frames);
    });
}

#[test]
fn a_drain_and_frees_lose_nothing_with_lists() {
    drain_against_free(Backend::Lists, false);
}

#[test]
fn a_drain_and_frees_lose_nothing_with_bitmaps() {
    drain_against_free(Backend::Bitmaps, false);
}

#[test]
fn a_drain_and_hits_lose_nothing_where_a_remote_fence_exists() {
    drain_against_free(Backend::Bitmaps, true);
}

#[test]
fn a_drain_and_frees_lose_nothing_with_lists_where_a_remote_fence_exists() {
    drain_against_free(Backend::Lists, true);
}

/// Two threads set and clear flags. At the end the gate must agree with the flags.
#[test]
fn a_gate_agrees_with_flags_that_two_threads_set_and_clear() {
    model(3, || {
        let frames = Arc::new(small(Backend::Bitmaps, true));
        let other = {
            let frames = frames.clone();
            thread::spawn(move || frames.set_reclaim_active(0, 0, true))
        };
        let state = &frames.zones()[0].state;
        state.set_flag(BELOW_HIGH);
        state.clear_flag(BELOW_HIGH);
        other.join().unwrap();
        assert_eq!(frames.cpus[0].gate.enter(), state.flags.load(Relaxed) == 0);
        frames.cpus[0].gate.leave();
    });
}

#[test]
fn a_claimed_cpu_and_a_caller_that_names_it_never_share_a_frame() {
    model(2, || {
        let frames = Arc::new(small(Backend::Bitmaps, false));
        let request = Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO);
        let guest = {
            let frames = frames.clone();
            thread::spawn(move || {
                let pfn = frames.alloc_on(0, &request, &NoHost).unwrap();
                frames.free_on(0, pfn, Order::ZERO).unwrap();
                pfn
            })
        };
        {
            let cpu = frames.cpu(0).unwrap();
            let pfn = cpu.alloc(&request, &NoHost).unwrap();
            cpu.free(pfn, Order::ZERO).unwrap();
        }
        guest.join().unwrap();
        everything_is_back(&frames);
    });
}
