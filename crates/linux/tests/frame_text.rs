//! Compares zoneinfo, buddyinfo, pagetypeinfo and vmstat byte for byte.
//!
//! After an intended change: `EBB_BLESS=1 cargo test -p ebb-mm --test frame_text`, then read the
//! diff.

use ebb_linux::frame::{
    Backend, Config, Frames, Gfp, NoHost, NodeText, Order, Request, ZoneKind, ZoneSpec,
};

fn machine(backend: Backend) -> Frames {
    let mut dma = ZoneSpec::new(ZoneKind::Dma, 0..4096);
    dma.reserved.push(0..1);
    dma.holes.push(159..256);
    let mut normal = ZoneSpec::new(ZoneKind::Normal, 4096..266_240);
    normal.cma.push(8192..16_384);
    let kinds = [ZoneKind::Dma, ZoneKind::Normal, ZoneKind::Movable];
    let mut config = Config::node(&kinds, vec![dma, normal], 2).faithful();
    config.nodes.push(vec![ZoneSpec::new(ZoneKind::Movable, 266_240..300_000)]);
    config.cpus = vec![0, 1];
    config.backend = backend;
    let frames = config.build().unwrap();
    let movable = Gfp::HIGHUSER_MOVABLE;
    let take = |cpu, gfp, order| {
        let request = Request::new(gfp, Order::new(order).unwrap());
        frames.alloc_on(cpu, &request, &NoHost).unwrap()
    };
    for _ in 0..10 {
        take(0, Gfp::KERNEL, 0);
        take(1, movable, 0);
    }
    take(0, Gfp::KERNEL.with(Gfp::RECLAIMABLE), 3);
    take(0, Gfp::KERNEL.with(Gfp::DMA), 5);
    let back = take(0, movable, 9);
    frames.free_on(0, back, Order::HUGE).unwrap();
    frames
}

fn golden(name: &str, text: &str) {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("EBB_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let expect = std::fs::read_to_string(&path).unwrap();
    assert!(text == expect, "{name} differs from {path}:\n{text}");
}

#[test]
fn zoneinfo_is_the_kernels() {
    let counters = vec![("nr_inactive_anon", 12), ("nr_dirty", 3), ("workingset_refault_anon", 7)];
    let nodes = [
        NodeText { counters, unreclaimable: false },
        NodeText { counters: vec![], unreclaimable: true },
    ];
    golden("zoneinfo", &machine(Backend::Lists).zoneinfo(&nodes));
}

#[test]
fn buddyinfo_and_pagetypeinfo_are_the_kernels() {
    golden("buddyinfo", &machine(Backend::Lists).buddyinfo());
    golden("pagetypeinfo", &machine(Backend::Lists).pagetypeinfo());
    golden("buddyinfo-bitmaps", &machine(Backend::Bitmaps).buddyinfo());
}

#[test]
fn vmstat_has_the_kernels_names_and_both_stores_count_alike() {
    golden("vmstat", &machine(Backend::Lists).vmstat());
    let blocks = |text: &str| text.lines().filter(|l| !l.contains("blocks")).collect::<String>();
    let (lists, bitmaps) = (machine(Backend::Lists), machine(Backend::Bitmaps));
    lists.drain_all();
    bitmaps.drain_all();
    assert_eq!(blocks(&lists.vmstat()), blocks(&bitmaps.vmstat()));
}
