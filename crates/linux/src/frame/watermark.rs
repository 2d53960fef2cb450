//! Watermarks, reserves and thresholds: pure arithmetic on zone sizes.
//!
//! All divisions round down, and each value is derived from the rounded one before it. The results
//! equal the kernel's to the last page.

use super::kinds::AllocFlags;

pub use ebb_mm::watermark::{Level, Marks, marks};

/// The default distance between watermarks, in ten-thousandths of a zone.
pub const SCALE_FACTOR_DEFAULT: u64 = 10;
/// The default limit of a boost, in ten-thousandths of the high watermark.
pub const BOOST_FACTOR_DEFAULT: u64 = 15_000;

/// Returns the KiB kept free, from the pages of low memory.
#[must_use]
pub fn min_free_kbytes(lowmem_pages: u64) -> u64 {
    (lowmem_pages * 4 * 16).isqrt().clamp(128, 262_144)
}

/// Returns the new boost of a zone's watermarks after a fragmenting fallback, from the boost
/// before.
#[must_use]
pub fn boosted(boost: u64, high: u64, factor: u64, managed: u64, pageblock_pages: u64) -> u64 {
    if factor == 0 || managed < 4 * pageblock_pages {
        return boost;
    }
    let limit = (high * factor / 10_000).max(pageblock_pages);
    (boost + pageblock_pages).min(limit)
}

/// Returns the reserves. `reserve[z][j]`: pages of zone `z` that a request which may go as high as
/// zone `j` must leave. `managed` and `ratio` are by zone, lowest first; a ratio of 0 reserves
/// nothing.
#[must_use]
pub fn lowmem_reserve(managed: &[u64], ratio: &[u64]) -> Vec<Vec<u64>> {
    let reserve_of = |z: usize, j: usize| {
        let above: u64 = managed.get(z + 1..=j).map_or(0, |zones| zones.iter().sum());
        above.checked_div(ratio[z]).unwrap_or(0)
    };
    (0..managed.len()).map(|z| (0..managed.len()).map(|j| reserve_of(z, j)).collect()).collect()
}

/// The data about a zone that a watermark test needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct ZoneView {
    /// Free pages of all types.
    pub free: i64,
    /// Free pages in CMA blocks.
    pub free_cma: i64,
    /// Free pages in high-atomic blocks.
    pub free_highatomic: i64,
    /// Pages reserved: `reserve[this zone][highest zone of the request]`.
    pub reserve: u64,
    /// Where a block of the requested order, or a larger one, is free.
    pub blocks: BlocksFree,
}

/// Which lists have a free block that is large enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlocksFree {
    /// Lists of unmovable, movable or reclaimable blocks.
    pub ordinary: bool,
    /// Lists of CMA blocks.
    pub cma: bool,
    /// Lists of high-atomic blocks.
    pub highatomic: bool,
}

/// Whether a request of `order` leaves the zone above `mark`. Equality fails.
#[must_use]
pub fn watermark_ok(zone: &ZoneView, order: u8, mark: u64, flags: AllocFlags) -> bool {
    let reserves = AllocFlags::NON_BLOCK
        .with(AllocFlags::MIN_RESERVE)
        .with(AllocFlags::HIGHATOMIC)
        .with(AllocFlags::OOM);
    let mut unusable = (1i64 << order) - 1;
    if !flags.any(reserves) {
        unusable += zone.free_highatomic;
    }
    if !flags.has(AllocFlags::CMA) {
        unusable += zone.free_cma;
    }
    let mut min = mark as i64;
    if flags.has(AllocFlags::MIN_RESERVE) {
        min -= min / 2;
        if flags.has(AllocFlags::NON_BLOCK) {
            min -= min / 4;
        }
    }
    if flags.has(AllocFlags::OOM) {
        min -= min / 2;
    }
    if zone.free - unusable <= min + zone.reserve as i64 {
        return false;
    }
    order == 0
        || zone.blocks.ordinary
        || (flags.has(AllocFlags::CMA) && zone.blocks.cma)
        || (flags.any(AllocFlags::HIGHATOMIC.with(AllocFlags::OOM)) && zone.blocks.highatomic)
}

/// Returns the threshold of one CPU's delta in normal times.
#[must_use]
pub fn threshold_normal(cpus: u32, managed: u64) -> u32 {
    let chunks = managed >> 15;
    125.min(2 * bits_of(u64::from(cpus)) * (1 + bits_of(chunks)))
}

/// Returns the threshold of one CPU's delta while kswapd is awake.
#[must_use]
pub fn threshold_pressure(cpus: u32, marks: &Marks) -> u32 {
    let per_cpu = (marks.low - marks.min) / u64::from(cpus);
    per_cpu.clamp(1, 125) as u32
}

/// Returns the number of free pages below which the plain count is too inexact. None if the count
/// is never off by that much.
#[must_use]
pub fn drift_mark(cpus: u32, normal: u32, marks: &Marks) -> Option<u64> {
    let drift = u64::from(cpus) * u64::from(normal);
    (drift > marks.low - marks.min).then_some(marks.high + drift)
}

/// Returns the position of the highest set bit, counted from 1; 0 for 0.
fn bits_of(value: u64) -> u32 {
    u64::BITS - value.leading_zeros()
}

/// The size of a per-CPU page set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PcpSize {
    /// Pages moved in one hold of the lock.
    pub batch: u32,
    /// Lowest value of `high`.
    pub high_min: u32,
    /// Highest value of `high`.
    pub high_max: u32,
}

/// Returns the size of a zone's per-CPU sets. A `fraction` of at least 8 fixes `high` at that share
/// of the zone.
#[must_use]
pub fn pcp_size(managed: u64, marks: &Marks, cpus: u32, fraction: u64) -> PcpSize {
    let cpus = u64::from(cpus.max(1));
    let base = ((managed >> 10).min(256) / 4).max(1);
    let batch = ((1u64 << (base + base / 2).ilog2()) - 1).max(1);
    let floor = 4 * batch;
    let (min, max) = if fraction >= 8 {
        let fixed = managed / fraction / cpus;
        (fixed, fixed)
    } else {
        (marks.low / cpus, managed / 8 / cpus)
    };
    PcpSize {
        batch: batch as u32,
        high_min: min.max(floor).min(u64::from(u32::MAX)) as u32,
        high_max: max.max(floor).min(u64::from(u32::MAX)) as u32,
    }
}

/// Returns the fragmentation index for a request. It is -1000 if a block is free, else 0 (failure
/// from lack of memory) to 1000 (failure from fragmentation).
#[must_use]
pub fn fragmentation_index(order: u8, free_pages: u64, free_blocks: u64, has_block: bool) -> i64 {
    if free_blocks == 0 {
        return 0;
    }
    if has_block {
        return -1000;
    }
    let wanted = 1u64 << order;
    1000 - ((1000 + free_pages * 1000 / wanted) / free_blocks) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Row {
        zones: &'static [u64],
        cpus: u32,
        min_free: u64,
        marks: &'static [[u64; 4]],
        pcp: &'static [[u32; 3]],
        normal: &'static [u32],
        pressure: &'static [u32],
        drift: &'static [Option<u64>],
    }

    const ROWS: &[Row] = &[
        Row {
            zones: &[262_144],
            cpus: 4,
            min_free: 4096,
            marks: &[[1024, 1286, 1548, 1810]],
            pcp: &[[63, 321, 8192]],
            normal: &[30],
            pressure: &[65],
            drift: &[None],
        },
        Row {
            zones: &[4096, 262_144],
            cpus: 4,
            min_free: 4127,
            marks: &[[15, 19, 23, 27], [1015, 1277, 1539, 1801]],
            pcp: &[[1, 4, 128], [63, 319, 8192]],
            normal: &[6, 30],
            pressure: &[1, 65],
            drift: &[Some(47), None],
        },
        Row {
            zones: &[65_536],
            cpus: 2,
            min_free: 2048,
            marks: &[[512, 640, 768, 896]],
            pcp: &[[15, 320, 4096]],
            normal: &[12],
            pressure: &[64],
            drift: &[None],
        },
        Row {
            zones: &[3840, 520_000, 3_600_000],
            cpus: 16,
            min_free: 16_245,
            marks: &[[3, 6, 9, 12], [512, 1032, 1552, 2072], [3545, 7145, 10_745, 14_345]],
            pcp: &[[1, 4, 30], [63, 252, 4062], [63, 446, 28_125]],
            normal: &[10, 50, 80],
            pressure: &[1, 32, 125],
            drift: &[Some(169), Some(2352), None],
        },
    ];

    #[test]
    fn every_row_of_the_kernel_table_is_met_to_the_page() {
        for row in ROWS {
            let lowmem: u64 = row.zones.iter().sum();
            assert_eq!(min_free_kbytes(lowmem), row.min_free);
            for (z, &managed) in row.zones.iter().enumerate() {
                let m = marks(managed, lowmem, row.min_free, SCALE_FACTOR_DEFAULT, false);
                assert_eq!([m.min, m.low, m.high, m.promo], row.marks[z]);
                let p = pcp_size(managed, &m, row.cpus, 0);
                assert_eq!([p.batch, p.high_min, p.high_max], row.pcp[z]);
                let normal = threshold_normal(row.cpus, managed);
                assert_eq!(normal, row.normal[z]);
                assert_eq!(threshold_pressure(row.cpus, &m), row.pressure[z]);
                assert_eq!(drift_mark(row.cpus, normal, &m), row.drift[z]);
            }
        }
    }

    #[test]
    fn a_high_zone_has_a_small_min_and_a_delta_of_its_share() {
        // 1 GiB of high memory beside 1 GiB of low memory: the share is 1024, so the delta is 262
        // although min is capped.
        let m = marks(262_144, 262_144, 4096, 10, true);
        assert_eq!([m.min, m.low, m.high, m.promo], [128, 390, 652, 914]);
        assert_eq!(marks(10_000, 262_144, 4096, 10, true).min, 32);
    }

    #[test]
    fn min_free_has_a_floor_and_a_ceiling() {
        assert_eq!(min_free_kbytes(1), 128);
        assert_eq!(min_free_kbytes(1 << 40), 262_144);
    }

    #[test]
    fn the_scale_factor_spreads_marks_and_stays_in_range() {
        let at = |factor| marks(262_144, 262_144, 4096, factor, false);
        assert_eq!(at(100).low - at(100).min, 2621);
        assert_eq!(at(9999), at(3000));
        assert_eq!(at(0), at(1));
    }

    #[test]
    fn a_fraction_of_the_zone_fixes_the_high_mark_of_the_per_cpu_sets() {
        let m = marks(262_144, 262_144, 4096, 10, false);
        let p = pcp_size(262_144, &m, 4, 8);
        assert_eq!((p.high_min, p.high_max), (8192, 8192));
        let tiny = pcp_size(262_144, &m, 4, 100_000);
        assert_eq!((tiny.high_min, tiny.high_max), (252, 252));
    }

    #[test]
    fn reserves_follow_the_memory_above() {
        let r = lowmem_reserve(&[4096, 262_144], &[256, 32]);
        assert_eq!(r, vec![vec![0, 1024], vec![0, 0]]);
        let r = lowmem_reserve(&[3840, 520_000, 3_600_000, 0], &[256, 256, 32, 0]);
        assert_eq!(r[0], [0, 2031, 16_093, 16_093]);
        assert_eq!(r[1], [0, 0, 14_062, 14_062]);
        assert_eq!(r[2], [0, 0, 0, 0]);
        assert_eq!(lowmem_reserve(&[4096, 262_144], &[0, 32])[0][1], 0);
    }

    fn view(free: i64, reserve: u64) -> ZoneView {
        ZoneView { free, reserve, ..ZoneView::default() }
    }

    #[test]
    fn the_test_is_strict_at_the_boundary() {
        let ok = |free, reserve| watermark_ok(&view(free, reserve), 0, 23, AllocFlags::NONE);
        // A node of DMA 4096 and Normal 262144: high(DMA) is 23, reserve[DMA][Normal] is 1024.
        assert!(ok(1000, 0));
        assert!(!ok(1000, 1024));
        assert!(ok(1048, 1024));
        assert!(!ok(1047, 1024));
        assert!(!watermark_ok(&view(900, 0), 0, 1539, AllocFlags::NONE));
    }

    #[test]
    fn reserves_open_by_half_three_eighths_and_a_quarter() {
        let f = AllocFlags::NONE;
        let lowest = |flags: AllocFlags| {
            (0..3000).find(|&free| watermark_ok(&view(free, 0), 0, 1024, flags)).unwrap()
        };
        assert_eq!(lowest(f), 1025);
        assert_eq!(lowest(AllocFlags::NON_BLOCK), 1025, "alone it lowers nothing");
        assert_eq!(lowest(AllocFlags::MIN_RESERVE), 513);
        assert_eq!(lowest(AllocFlags::MIN_RESERVE.with(AllocFlags::NON_BLOCK)), 385);
        assert_eq!(lowest(AllocFlags::OOM), 513);
        assert_eq!(lowest(AllocFlags::OOM.with(AllocFlags::MIN_RESERVE)), 257);
        // An odd mark rounds each step down.
        let odd = AllocFlags::MIN_RESERVE.with(AllocFlags::NON_BLOCK);
        assert!(watermark_ok(&view(7, 0), 0, 15, odd) && !watermark_ok(&view(6, 0), 0, 15, odd));
    }

    #[test]
    fn cma_and_highatomic_pages_count_only_for_requests_that_may_use_them() {
        let zone =
            ZoneView { free: 2000, free_cma: 600, free_highatomic: 500, ..ZoneView::default() };
        let ok = |flags| watermark_ok(&zone, 0, 1024, flags);
        assert!(!ok(AllocFlags::NONE));
        assert!(ok(AllocFlags::CMA));
        assert!(ok(AllocFlags::NON_BLOCK), "drops the high-atomic subtraction");
        assert!(!watermark_ok(&ZoneView { free: 500, ..zone }, 0, 0, AllocFlags::NONE));
    }

    #[test]
    fn a_high_order_needs_a_block_of_a_list_it_may_use() {
        let with = |blocks| ZoneView { free: 9000, blocks, ..ZoneView::default() };
        let none = BlocksFree::default();
        let ok = |blocks, flags| watermark_ok(&with(blocks), 3, 1024, flags);
        assert!(!ok(none, AllocFlags::NONE));
        assert!(ok(BlocksFree { ordinary: true, ..none }, AllocFlags::NONE));
        let cma = BlocksFree { cma: true, ..none };
        assert!(!ok(cma, AllocFlags::NONE) && ok(cma, AllocFlags::CMA));
        let high = BlocksFree { highatomic: true, ..none };
        assert!(!ok(high, AllocFlags::CMA) && ok(high, AllocFlags::HIGHATOMIC));
        assert!(ok(high, AllocFlags::OOM));
        // The last 2^order - 1 pages of a request do not count as free for the watermark.
        let tight = ZoneView { free: 1031, ..with(BlocksFree { ordinary: true, ..none }) };
        assert!(!watermark_ok(&tight, 3, 1024, AllocFlags::NONE));
        assert!(watermark_ok(&ZoneView { free: 1032, ..tight }, 3, 1024, AllocFlags::NONE));
    }

    #[test]
    fn a_boost_grows_by_blocks_to_its_limit() {
        let step = |boost| boosted(boost, 1548, BOOST_FACTOR_DEFAULT, 262_144, 512);
        assert_eq!(step(0), 512);
        assert_eq!(step(512), 1024);
        assert_eq!(step(2048), 2322);
        assert_eq!(step(2322), 2322);
        assert_eq!(boosted(0, 1548, 0, 262_144, 512), 0);
        assert_eq!(boosted(0, 1548, 15_000, 2047, 512), 0);
        assert_eq!(boosted(0, 10, 15_000, 262_144, 512), 512);
    }

    #[test]
    fn the_fragmentation_index_distinguishes_shortage_from_fragmentation() {
        assert_eq!(fragmentation_index(3, 0, 0, false), 0);
        assert_eq!(fragmentation_index(3, 100, 10, true), -1000);
        assert_eq!(fragmentation_index(3, 8, 8, false), 1000 - 250);
    }
}
