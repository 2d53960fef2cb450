//! Compares with the misses of measured kernels, on the traces that code can generate.
//!
//! The other traces need files. With them, `examples/oracle.rs` replays every measured row.

use ebb_mm::lru::memory::{Access, Memory, Region};
use ebb_mm::space::Backing;
use ebb_mm::tunables::Tunables;

/// Returns the misses of a loop over 65,536 pages, 1,000,000 accesses, with memory for half of
/// them.
fn looped(preset: &str, access: Access) -> u64 {
    let backing = if access == Access::FdRead { Backing::File } else { Backing::Anon };
    let region = Region { start: 0, end: 65_536, backing, recency: true };
    let mut m = Memory::new(Tunables::preset(preset).expect("a preset"), &[region], 32_768);
    for i in 0..1_000_000u64 {
        m.touch(i % 65_536, access);
    }
    m.check_invariants();
    m.counts().refaults
}

#[test]
fn a_loop_twice_the_size_of_memory_misses_always_in_every_kernel() {
    for preset in ["k618", "k72", "classic"] {
        assert_eq!(looped(preset, Access::AnonWrite), 934_464, "{preset}, anonymous");
        assert_eq!(looped(preset, Access::FdRead), 934_464, "{preset}, file");
    }
}

#[test]
fn the_default_keeps_part_of_a_loop() {
    for access in [Access::AnonWrite, Access::FdRead] {
        let misses = looped("ebb", access);
        // The optimum keeps all but one of the pages that fit: about half the accesses hit.
        assert!(misses < 560_000, "{access:?}: {misses}");
    }
}

/// A Zipf load over shuffled pages from a fixed generator. Pins the misses of each switch set, in
/// the version whose misses agree with the measured kernels'.
#[test]
fn switch_sets_differ_where_the_kernels_do() {
    let misses = |preset: &str| {
        let mut m = Memory::anon(Tunables::preset(preset).expect("a preset"), 4096, 2048);
        let mut state = 88_172_645_463_325_252u64;
        for _ in 0..400_000 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // A power law by inversion, then a fixed shuffle.
            let u = (state >> 11) as f64 / (1u64 << 53) as f64;
            let rank = (4096f64.powf(u) - 1.0) as u64;
            let page = rank.wrapping_mul(2_654_435_761) % 4096;
            m.touch(page, if state & 7 == 0 { Access::AnonWrite } else { Access::AnonRead });
        }
        m.check_invariants();
        m.counts().refaults
    };
    let [ebb, k618, k72, classic] = ["ebb", "k618", "k72", "classic"].map(misses);
    assert!(k618 < k72, "the newer loop costs misses: {k618} {k72}");
    assert!(ebb < k618 && ebb < classic, "{ebb} {k618} {classic}");
}

/// Shows that reclaim follows swappiness while both types stream through memory.
#[test]
fn swappiness_is_a_ratio_that_holds_when_asked_to() {
    for swappiness in [40u64, 100, 160] {
        let mut tun = Tunables::default();
        tun.set("gen.type_select=ratio").expect("a switch");
        tun.set(&format!("swappiness={swappiness}")).expect("a switch");
        let half = 1 << 20;
        let region = |start, end, backing| Region { start, end, backing, recency: true };
        let regions = [region(0, half, Backing::Anon), region(half, 2 * half, Backing::File)];
        let mut m = Memory::new(tun, &regions, 8192);
        // Each type arrives at the rate at which it should be reclaimed, so that neither type is
        // used up.
        let (mut anon, mut file) = (0, half);
        for i in 0..60_000u64 {
            if i % 200 < swappiness {
                m.touch(anon, Access::AnonWrite);
                anon += 1;
            } else {
                m.touch(file, Access::FdRead);
                file += 1;
            }
        }
        // From here on both types arrive at the same rate. A ratio that held by supply alone would
        // break.
        let stolen = |m: &Memory| {
            use ebb_mm::observe::vmstat::Event;
            [Event::PgStealAnon, Event::PgStealFile].map(|e| m.vmstat().get(e))
        };
        let before = stolen(&m);
        for _ in 0..1_000 {
            m.touch(anon, Access::AnonWrite);
            m.touch(file, Access::FdRead);
            anon += 1;
            file += 1;
        }
        let after = stolen(&m);
        let [a, f] = [after[0] - before[0], after[1] - before[1]].map(|n| n as f64);
        let (got, want) = (a / f, swappiness as f64 / (200 - swappiness) as f64);
        assert!((got / want - 1.0).abs() < 0.2, "swappiness {swappiness}: {got:.3}, {want:.3}");
        m.check_invariants();
    }
}
