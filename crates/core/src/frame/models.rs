//! Models for loom: every schedule of a few threads within a bound on preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p ebb-core --lib models --target-dir target-loom`

use loom::sync::Arc;
use loom::thread;

use super::counter::{Counters, ZoneItem};
use super::{Backend, Config, Frames, Gfp, NoHost, Order, PcpRule, Request};

fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
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

fn small(backend: Backend) -> Frames {
    let mut config = Config::flat(1024, 1);
    config.backend = backend;
    config.min_free_kbytes = Some(4);
    config.watermark_boost_factor = 0;
    config.pcp = Some(PcpRule::Fixed { high: 2, batch: 1, huge_high: 0, huge_batch: 1 });
    config.build().unwrap()
}

fn everything_is_back(frames: &Frames) {
    frames.drain_all();
    assert_eq!(frames.pages_in_sets(0), 0);
    assert_eq!(frames.check(), Ok(()));
    assert_eq!(frames.zones()[0].free_blocks()[10].iter().sum::<u64>(), 1);
}

/// The owner of a CPU takes and frees while somebody else drains its sets.
fn drain_against_free(backend: Backend) {
    model(2, move || {
        let frames = Arc::new(small(backend));
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
    drain_against_free(Backend::Lists);
}

#[test]
fn a_drain_and_frees_lose_nothing_with_bitmaps() {
    drain_against_free(Backend::Bitmaps);
}

#[test]
fn a_claimed_cpu_and_a_caller_that_names_it_never_share_a_frame() {
    model(2, || {
        let frames = Arc::new(small(Backend::Bitmaps));
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
