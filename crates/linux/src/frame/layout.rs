//! The description of a machine's memory: nodes, zones, and the choices of mechanism; built into
//! [`Frames`].

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::bitmap::Bitmaps;
use super::blocks::{BlockMap, ZONES_MAX};
use super::checks::FrameTable;
use super::counter::Counters;
use super::cpulock::RemoteFence;
use super::frames::{CpuSets, Frames, Zone};
use super::gate::Gate;
use super::kinds::{Checks, CmaCount, MAX_BLOCK_PAGES, Migratetype, PAGEBLOCK_PAGES, ZoneKind};
use super::lists::Lists;
use super::pcp::{Pcp, PcpRule};
use super::state::{Census, FreeStore, Meter, NoCensus, ZoneState};
use super::switches::Switches;
use super::sync::{AtomicI64, AtomicU32, AtomicU64};
use super::watermark::{self, BOOST_FACTOR_DEFAULT, SCALE_FACTOR_DEFAULT};

/// The description of one zone. All ranges are frame numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZoneSpec {
    /// The kind of memory.
    pub kind: ZoneKind,
    /// All frames of the zone, holes included; starts at a multiple of 1024 frames.
    pub span: Range<u32>,
    /// Ranges without memory.
    pub holes: Vec<Range<u32>>,
    /// Memory that is taken before the allocator starts.
    pub reserved: Vec<Range<u32>>,
    /// CMA ranges, which serve movable requests only; whole pageblocks.
    pub cma: Vec<Range<u32>>,
}

impl ZoneSpec {
    /// Creates a zone without holes, with all memory free.
    #[must_use]
    pub fn new(kind: ZoneKind, span: Range<u32>) -> Self {
        Self { kind, span, holes: Vec::new(), reserved: Vec::new(), cma: Vec::new() }
    }

    /// Returns the ranges of memory that the allocator owns.
    fn memory(&self) -> Vec<Range<u32>> {
        let mut cuts: Vec<_> = self.holes.iter().chain(&self.reserved).cloned().collect();
        cuts.sort_by_key(|cut| cut.start);
        let mut memory = Vec::new();
        let mut at = self.span.start;
        for cut in cuts {
            if cut.start > at {
                memory.push(at..cut.start);
            }
            at = at.max(cut.end);
        }
        if at < self.span.end {
            memory.push(at..self.span.end);
        }
        memory
    }

    fn present(&self) -> u64 {
        self.span.len() as u64 - self.holes.iter().map(|h| h.len() as u64).sum::<u64>()
    }
}

/// The store that keeps the free frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Backend {
    /// Free lists with the kernel's placement.
    Lists,
    /// Bitmaps in shards.
    #[default]
    Bitmaps,
}

/// The reason why a layout cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LayoutError {
    /// No zone, no CPU, or too many zones.
    Count,
    /// A zone starts off a multiple of 1024 frames, or a part lies outside its zone.
    Bounds,
    /// Zones overlap or share a pageblock.
    Overlap,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "no zones, no CPUs, or too many zones",
            Self::Bounds => "a zone is misaligned, or a part lies outside its zone",
            Self::Overlap => "zones overlap",
        })
    }
}

impl std::error::Error for LayoutError {}

/// A machine and its mechanisms. Every field is a switch; [`Config::flat`] gives the defaults.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The kinds of zone this machine has, lowest first. The class of a request is a position in
    /// this list.
    pub kinds: Vec<ZoneKind>,
    /// Zones by node.
    pub nodes: Vec<Vec<ZoneSpec>>,
    /// The node of each CPU.
    pub cpus: Vec<usize>,
    /// Distances between nodes. If empty, the difference of the node numbers is used.
    pub distances: Vec<Vec<u32>>,
    /// KiB kept free; `None` computes it from the size of memory.
    pub min_free_kbytes: Option<u64>,
    /// Distance between watermarks in ten-thousandths of a zone.
    pub watermark_scale_factor: u64,
    /// Frames by which one CPU's count may differ from its zone's count at most. `None` computes it
    /// from the number of CPUs and the size of the zone.
    pub counter_slack: Option<u32>,
    /// Limit of a boost in ten-thousandths of the high mark; 0: no boost.
    pub watermark_boost_factor: u64,
    /// Divisors of the memory kept from higher classes, by kind; `None` uses the kernel's.
    pub reserve_ratio: Option<Vec<u64>>,
    /// A value of at least 8 fixes the kernel rule's `high` at that fraction of a zone.
    pub pcp_high_fraction: u64,
    /// The store of free frames.
    pub backend: Backend,
    /// The rule that sizes per-CPU sets; `None` means no sets.
    pub pcp: Option<PcpRule>,
    /// When frames are checked at the start.
    pub checks: Checks,
    /// Whether checks can be switched on later: a frame table exists even while they are off.
    pub checkable: bool,
    /// How free CMA frames are counted at the start.
    pub cma_count: CmaCount,
    /// The source that knows which frames can be moved.
    pub census: Arc<dyn Census>,
    /// The observer of lock holds.
    pub meter: Option<Arc<dyn Meter>>,
    /// A fence on behalf of other threads, where the system has one.
    pub fence: Option<Arc<dyn RemoteFence>>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("nodes", &self.nodes)
            .field("cpus", &self.cpus)
            .field("backend", &self.backend)
            .field("pcp", &self.pcp)
            .field("checks", &self.checks)
            .field("cma_count", &self.cma_count)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Creates one node with these zones, `cpus` CPUs, and the mechanisms that measured best.
    #[must_use]
    pub fn node(kinds: &[ZoneKind], zones: Vec<ZoneSpec>, cpus: usize) -> Self {
        Self {
            kinds: kinds.to_vec(),
            nodes: vec![zones],
            cpus: vec![0; cpus],
            distances: Vec::new(),
            min_free_kbytes: None,
            watermark_scale_factor: SCALE_FACTOR_DEFAULT,
            counter_slack: None,
            watermark_boost_factor: BOOST_FACTOR_DEFAULT,
            reserve_ratio: None,
            pcp_high_fraction: 0,
            backend: Backend::default(),
            pcp: Some(PcpRule::FAST),
            checks: Checks::default(),
            checkable: false,
            cma_count: CmaCount::default(),
            census: Arc::new(NoCensus),
            meter: None,
            fence: None,
        }
    }

    /// Creates one node with one `Normal` zone of `frames` frames.
    #[must_use]
    pub fn flat(frames: u32, cpus: usize) -> Self {
        let zone = ZoneSpec::new(ZoneKind::Normal, 0..frames);
        Self::node(&[ZoneKind::Normal], vec![zone], cpus)
    }

    /// Changes to the kernel's mechanisms: free lists, and sets that tune themselves.
    #[must_use]
    pub fn faithful(mut self) -> Self {
        self.backend = Backend::Lists;
        self.pcp = Some(PcpRule::Kernel);
        self
    }

    fn zones(&self) -> impl Iterator<Item = (usize, &ZoneSpec)> {
        self.nodes.iter().enumerate().flat_map(|(node, zones)| zones.iter().map(move |z| (node, z)))
    }

    fn validate(&self) -> Result<u32, LayoutError> {
        let mut spans = Vec::new();
        for (_, zone) in self.zones() {
            let inside = |r: &Range<u32>| {
                r.start <= r.end && r.start >= zone.span.start && r.end <= zone.span.end
            };
            let blocks = |r: &Range<u32>| (r.start | r.end).is_multiple_of(PAGEBLOCK_PAGES);
            let parts = zone.holes.iter().chain(&zone.reserved);
            let aligned = zone.span.start.is_multiple_of(MAX_BLOCK_PAGES);
            let known = self.kinds.contains(&zone.kind);
            let cma = zone.cma.iter().all(|r| inside(r) && blocks(r));
            if !aligned || !known || !cma || !parts.clone().all(inside) || zone.span.is_empty() {
                return Err(LayoutError::Bounds);
            }
            spans.push(zone.span.clone());
        }
        let cpus_fit = !self.cpus.is_empty() && self.cpus.iter().all(|&n| n < self.nodes.len());
        if spans.is_empty() || spans.len() > ZONES_MAX || !cpus_fit {
            return Err(LayoutError::Count);
        }
        spans.sort_by_key(|s| s.start);
        let apart = |w: &[Range<u32>]| w[0].end.next_multiple_of(PAGEBLOCK_PAGES) <= w[1].start;
        if !spans.windows(2).all(apart) {
            return Err(LayoutError::Overlap);
        }
        Ok(spans.last().map_or(0, |s| s.end))
    }

    /// Builds the allocator.
    pub fn build(self) -> Result<Frames, LayoutError> {
        let end = self.validate()?;
        let mut map = BlockMap::new(end);
        assign_blocks(&self, &mut map);
        let map = Arc::new(map);
        let table =
            (self.checkable || self.checks != Checks::Off).then(|| Arc::new(FrameTable::new(end)));
        let low = |(_, z): &(usize, &ZoneSpec)| !z.kind.is_high();
        let lowmem = self.zones().filter(low).map(|(_, z)| managed(z)).sum();
        let min_free = self.min_free_kbytes.unwrap_or_else(|| watermark::min_free_kbytes(lowmem));
        let total: u64 = self.zones().map(|(_, z)| managed(z)).sum();
        let gates = self.cpus.iter().map(|_| Arc::new(Gate::new())).collect();
        let switches = Arc::new(Switches::new(self.checks, self.cma_count));
        let shared = Shared { map, table, lowmem, min_free, total, gates, switches };
        let mut zones = Vec::new();
        for (index, (node, spec)) in self.zones().enumerate() {
            zones.push(build_zone(&self, &shared, index, node, spec));
        }
        let cpus = self.cpus.iter().zip(&*shared.gates);
        let cpus = cpus.map(|(&node, gate)| build_cpu(&self, &zones, node, gate)).collect();
        Ok(Frames::assemble(&self, zones, cpus, shared.map, shared.table, shared.switches))
    }
}

struct Shared {
    map: Arc<BlockMap>,
    table: Option<Arc<FrameTable>>,
    lowmem: u64,
    min_free: u64,
    total: u64,
    gates: Arc<[Arc<Gate>]>,
    switches: Arc<Switches>,
}

fn managed(zone: &ZoneSpec) -> u64 {
    zone.memory().iter().map(|r| r.len() as u64).sum()
}

fn assign_blocks(config: &Config, map: &mut BlockMap) {
    for (index, (_, zone)) in config.zones().enumerate() {
        for block in zone.span.clone().step_by(PAGEBLOCK_PAGES as usize) {
            let cma = zone.cma.iter().any(|r| r.contains(&block));
            let kind = if cma { Migratetype::Cma } else { Migratetype::Movable };
            map.assign(block, index, kind);
        }
    }
}

/// Returns the reserve of `zone` against each class, on its own node.
fn reserves(config: &Config, node: usize, class: usize) -> Vec<u64> {
    let of_kind = |kind: &ZoneKind| {
        config.nodes[node].iter().filter(|z| z.kind == *kind).map(managed).sum::<u64>()
    };
    let by_kind: Vec<u64> = config.kinds.iter().map(of_kind).collect();
    let ratio = config
        .reserve_ratio
        .clone()
        .unwrap_or_else(|| config.kinds.iter().map(|k| k.reserve_ratio()).collect());
    watermark::lowmem_reserve(&by_kind, &ratio).swap_remove(class)
}

fn build_zone(
    config: &Config,
    shared: &Shared,
    index: usize,
    node: usize,
    spec: &ZoneSpec,
) -> Zone {
    let memory = spec.memory();
    if let Some(table) = &shared.table {
        memory.iter().flat_map(Clone::clone).for_each(|pfn| table.add_memory(pfn));
    }
    let managed = managed(spec);
    let marks = watermark::marks(
        managed,
        shared.lowmem,
        shared.min_free,
        config.watermark_scale_factor,
        spec.kind.is_high(),
    );
    let cpus = config.cpus.len() as u32;
    let slack = config.counter_slack.unwrap_or(u32::MAX);
    let normal = watermark::threshold_normal(cpus, managed).min(slack);
    let class = config.kinds.iter().position(|&k| k == spec.kind).unwrap_or(0);
    let reserve = reserves(config, node, class);
    let state = ZoneState {
        index,
        node,
        kind: spec.kind,
        class,
        span: spec.span.clone(),
        present: spec.present(),
        managed,
        cma: spec.cma.iter().map(|r| r.len() as u64).sum(),
        tight_mark: AtomicI64::new(0),
        marks,
        reserve,
        boost: AtomicU64::new(0),
        boost_factor: config.watermark_boost_factor,
        flags: AtomicU32::new(0),
        drift_mark: watermark::drift_mark(cpus, normal, &marks),
        threshold_normal: normal,
        threshold_pressure: watermark::threshold_pressure(cpus, &marks).min(slack),
        counters: Counters::new(config.cpus.len(), normal),
        free_highatomic: AtomicI64::new(0),
        reserved_highatomic: AtomicU64::new(0),
        bad_frames: AtomicU64::new(0),
        blocks: shared.map.clone(),
        table: shared.table.clone(),
        switches: shared.switches.clone(),
        grouping: shared.total >= u64::from(PAGEBLOCK_PAGES) * Migratetype::ALL.len() as u64,
        census: config.census.clone(),
        meter: config.meter.clone(),
        gates: shared.gates.clone(),
    };
    state.set_boost(0);
    let store: Box<dyn FreeStore> = match config.backend {
        Backend::Lists => Box::new(Lists::new(&state, &memory)),
        Backend::Bitmaps => Box::new(Bitmaps::new(&state, &memory, config.cpus.len())),
    };
    state.judge();
    Zone { state, store }
}

fn build_cpu(config: &Config, zones: &[Zone], node: usize, gate: &Arc<Gate>) -> CpuSets {
    let set = |zone: &Zone| {
        let local = config.cpus.iter().filter(|&&n| n == zone.state.node).count().max(1);
        let size = watermark::pcp_size(
            zone.state.managed,
            &zone.state.marks,
            local as u32,
            config.pcp_high_fraction,
        );
        let share = zone.state.managed / 8 / local as u64;
        Pcp::new(config.pcp.unwrap_or(PcpRule::FAST), size, share.min(1 << 24) as u32)
    };
    CpuSets::new(node, zones.iter().map(set).collect(), gate.clone())
}
