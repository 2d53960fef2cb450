//! What measured kernels did, on the traces that can be made by code.
//!
//! The other traces need files; `examples/oracle.rs` replays every measured row when it is given
//! them.

use ebb_core::lru::memory::{Access, Memory, Region};
use ebb_core::space::Backing;
use ebb_core::tunables::Tunables;

/// A loop over 65,536 pages, 1,000,000 accesses, memory for half of them.
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

/// Zipf over shuffled pages from a fixed generator: pins each switch set to what it does now, in
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
