//! Builds a machine from a scenario and a seed, and runs it.

use std::collections::BTreeMap;

use ebb_linux::frame::{Config, MAX_BLOCK_PAGES, PcpRule, ZoneKind, ZoneSpec, watermark};
use ebb_linux::memcg::{Knobs, UNLIMITED};
use ebb_mm::engine::Evidence;
use ebb_mm::observe::vmstat::Event;
use ebb_mm::space::Backing;
use ebb_mm::tunables::Tunables;

use super::{FRAMES_OF_A_GB, MachineSpec, RunError, Scenario};
use crate::machine::allocation::{self, Allocation};
use crate::machine::flusher::Flusher;
use crate::machine::histogram::Histogram;
use crate::machine::outflow::Outflow;
use crate::machine::pressure::{MACHINE, Reading};
use crate::machine::proactive::Command;
use crate::machine::slab::Slab;
use crate::machine::{
    Device, DeviceSpec, Live, Machine, Mem, Outcome, Patience, Preset, Tracepoints,
};
use crate::workload::spec::Setting;
use crate::workload::{KINDS, Plan};

/// Names of the kinds of operations.
const KIND_NAMES: [&str; KINDS] = ["read", "write", "alloc", "other"];

/// Least free memory in KiB that the kernel keeps, whatever the size of the machine.
const MIN_FREE_KBYTES: u64 = 128;

/// Base-2 logarithm of the least number of frames that the scaling rule asks for. One pass scans as
/// large a part of a smaller machine as of one of this size. Otherwise the division would leave no
/// pages of its lists to scan.
const FRAMES_LOG_MIN: u32 = 18;

/// Values measured by one run, by metric.
pub type Metrics = BTreeMap<String, f64>;

/// Returns the names of all metrics that a run of the scenario may measure. Metrics of operations
/// that the workloads never do are among them.
#[must_use]
pub fn metric_names(s: &Scenario) -> Vec<String> {
    let all = if s.workload.iter().any(|w| w.allocation.is_some()) {
        allocation_metrics(&allocation::Measured::default())
    } else {
        let mut latency = <[Histogram; KINDS]>::default();
        latency.iter_mut().for_each(|h| h.add(1));
        let memcgs = s.with_copies().memcg.into_iter().map(|m| m.name);
        let whose = std::iter::once(MACHINE.to_owned()).chain(memcgs);
        metrics(&Outcome {
            latency,
            counters: Event::ALL.iter().map(|event| (event.name(), 0)).collect(),
            pressure: whose.map(Reading::nothing).collect(),
            ..Outcome::default()
        })
    };
    all.into_keys().collect()
}

/// Runs the scenario once.
///
/// # Errors
/// Fails if a switch or workload is invalid, or if a conservation law does not hold.
pub fn run_once(s: &Scenario, seed: u64, samples: u64) -> Result<(Metrics, Outcome), RunError> {
    run_with(s, seed, samples, Patience::default())
}

/// Runs the scenario once with the limits of `patience`.
///
/// # Errors
/// As [`run_once`].
pub fn run_with(
    s: &Scenario,
    seed: u64,
    samples: u64,
    patience: Patience,
) -> Result<(Metrics, Outcome), RunError> {
    run_traced(s, seed, samples, patience, None)
}

/// Returns the reason why a run of this scenario has no kernel tracepoints; none if it has them.
#[must_use]
pub fn no_tracepoints(s: &Scenario) -> Option<&'static str> {
    if s.machine.live.on {
        return Some("runs under Ebb, which has none of a kernel's tracepoints");
    }
    let allocation = s.workload.iter().any(|w| w.allocation.is_some());
    allocation.then_some("is the page allocator alone, without reclaim")
}

/// Runs the scenario once with the limits of `patience`, and reports reclaim to `tracepoints`.
///
/// # Errors
/// As [`run_once`]; also if a tracepoint cannot be written.
pub fn run_traced(
    s: &Scenario,
    seed: u64,
    samples: u64,
    patience: Patience,
    tracepoints: Option<Tracepoints>,
) -> Result<(Metrics, Outcome), RunError> {
    if let Some(a) = s.workload.iter().find_map(|w| w.allocation.as_ref()) {
        return allocation(a, s.machine.cpus, seed);
    }
    let s = &s.with_copies();
    let mut tun = Tunables::default();
    for pair in &s.switches {
        tun.set(pair)?;
    }
    let stands_for = s.machine.gb.map_or(1, |gb| {
        ((gb * FRAMES_OF_A_GB / f64::from(s.machine.frames)).round() as u64).max(1)
    });
    tun.classic.scale = stands_for;
    if stands_for > 1 && !s.switches.iter().any(|pair| pair.starts_with("classic.fold")) {
        // A large machine folds these counters in batches; at this scale they are exact.
        tun.classic.fold = 0;
    }
    let end = s.machine.dma + s.machine.frames;
    let frames = layout(&s.machine).build()?;
    let disk = s.machine.disk.clone().unwrap_or_else(|| DeviceSpec::preset(Preset::Nvme));
    let disk = Device::new(&disk);
    let swap = s.machine.swap.as_ref().map(|spec| {
        let mut swap = Device::new(spec);
        if spec.on_disk {
            swap.lie_on(&disk);
        }
        swap
    });
    let mut out = Outflow::new(frames, end, swap, &s.costs);
    if let Some(left) = s.machine.dma_free.filter(|_| s.machine.dma > 0) {
        out.pin_lowest(left);
    }
    let mut mem = Mem::new(out, disk, tun, s.costs.clone(), seed);
    mem.read_ahead = s.machine.read_ahead;
    let nodes = mem.nodes.len() as u64;
    for node in &mut mem.nodes {
        node.slab = s.machine.slab.map(|slab| Slab::new(slab.of_nodes(nodes)));
    }
    if s.machine.gb.is_some() {
        mem.lift = FRAMES_LOG_MIN.saturating_sub(s.machine.frames.ilog2()) as u8;
        // A memcg's limit scales only the size. At one rate of pages, a task frees as many pages at
        // a time as on the real machine, in equal batches.
        mem.memcg_lift = mem.lift.max((stands_for as f64).log2().round() as u8);
    }
    mem.time_scale = stands_for;
    mem.flusher = Flusher::new(&s.machine.dirty, stands_for);
    let pages = |limit: f64| (f64::from(s.machine.frames) * limit) as u64;
    for m in &s.memcg {
        let parent = m.parent.as_ref().and_then(|p| s.memcg.iter().position(|g| &g.name == p));
        let knobs = Knobs {
            min: pages(m.min),
            low: pages(m.low),
            high: m.high.map_or(UNLIMITED, pages),
            max: m.limit.map_or(UNLIMITED, pages),
        };
        mem.add_group(parent, knobs);
    }
    if s.memcg.is_empty() {
        mem.add_memcg(UNLIMITED);
    }
    let mut plan = Plan::default();
    let mut names = Vec::new();
    for (i, w) in s.workload.iter().enumerate() {
        let memcg = w.memcg.as_ref().and_then(|m| s.memcg.iter().position(|g| &g.name == m));
        let memcg = memcg.unwrap_or(0);
        let limit = s.memcg.get(memcg).and_then(|m| m.limit);
        let memory = limit.map_or(u64::from(s.machine.frames), pages);
        let seed = seed.wrapping_mul(0x9e37_79b9) + i as u64;
        w.plan(&mut plan, &Setting { memcg, memory, seed, measured: !w.background })?;
        names.resize(plan.threads.len(), w.name.clone());
    }
    if s.machine.live.on {
        let limit =
            s.memcg.first().and_then(|m| m.limit).map_or(u64::from(s.machine.frames), pages);
        mem.live = Some(live(s, &plan, limit)?);
    }
    for space in &plan.spaces {
        mem.add_space(space.memcg, &space.regions);
    }
    mem.out.tracepoints = tracepoints.map(|mut tracepoints| {
        let frames = &mem.out.frames;
        let first = |node| (0..s.machine.cpus).find(|&cpu| frames.cpu_node(cpu) == node);
        let first_cpus = (0..frames.node_count()).map(|node| first(node).unwrap_or(0)).collect();
        tracepoints.set_names(names, first_cpus);
        Box::new(tracepoints)
    });
    let mut machine = Machine::new(mem, s.machine.cpus);
    machine.set_names(s.memcg.iter().map(|m| m.name.clone()).collect());
    for (memcg, m) in s.memcg.iter().enumerate().filter(|(_, m)| m.reclaim > 0.0) {
        let every_ns = (m.reclaim_ms * 1e6) as u64;
        machine.command(Command { memcg, pages: pages(m.reclaim).max(1), every_ns });
    }
    machine.set_limit_ns((s.measure.seconds * 1e9) as u64);
    machine.set_sample_ns(samples);
    machine.set_patience(patience);
    plan.logs.into_iter().for_each(|log| machine.add_log(log));
    for thread in plan.threads {
        machine.add_thread(thread.program, thread.home, thread.measured);
    }
    let (outcome, mut mem, now) = machine.run()?;
    mem.check(now)?;
    if let Some(tracepoints) = mem.out.tracepoints.take() {
        tracepoints.finish().map_err(RunError::Events)?;
    }
    Ok((metrics(&outcome), outcome))
}

/// Returns the model of memory under Ebb, if `ebb run` can manage the workload.
fn live(s: &Scenario, plan: &Plan, limit: u64) -> Result<Box<Live>, RunError> {
    let mut regions = plan.spaces.iter().flat_map(|space| &space.regions);
    if regions.any(|region| region.pages > 0 && region.backing != Backing::Anon) {
        return Err(RunError::LiveFiles);
    }
    if s.memcg.len() > 1 {
        return Err(RunError::LiveMemcgs(s.memcg.len()));
    }
    if s.machine.live.file && s.machine.swap.is_none() {
        return Err(RunError::LiveFile);
    }
    // Settings with which standby measured best, under the switches of the arm.
    let mut tun = Evidence::Standby.tunables();
    for pair in s.switches.iter().filter(|pair| !pair.starts_with("preset=")) {
        tun.set(pair)?;
    }
    Ok(Box::new(Live::new(&s.machine.live, limit, tun)))
}

/// Returns the nodes and zones of the machine, and the node of each CPU.
fn layout(m: &MachineSpec) -> Config {
    let (dma, end) = (m.dma, m.dma + m.frames);
    let mut kinds = vec![ZoneKind::Normal];
    if dma > 0 || m.second_node {
        kinds.insert(0, ZoneKind::Dma);
    }
    let per_node = m.frames / m.nodes / MAX_BLOCK_PAGES * MAX_BLOCK_PAGES;
    let mut nodes: Vec<Vec<ZoneSpec>> = (0..m.nodes)
        .map(|n| {
            let until = if n + 1 == m.nodes { end } else { dma + (n + 1) * per_node };
            vec![ZoneSpec::new(ZoneKind::Normal, dma + n * per_node..until)]
        })
        .collect();
    if m.reserved > 0
        && let Some(last) = nodes.last_mut()
    {
        last[0].reserved.push(end - m.reserved..end);
    }
    let mut first = nodes.remove(0);
    if dma > 0 {
        first.insert(0, ZoneSpec::new(ZoneKind::Dma, 0..dma));
    }
    let mut config = Config::node(&kinds, first, m.cpus).faithful();
    config.nodes.extend(nodes);
    config.cpus = (0..m.cpus).map(|cpu| cpu * m.nodes as usize / m.cpus).collect();
    if let Some(gb) = m.gb {
        scale(&mut config, m, gb);
    }
    config
}

/// Gives the machine the reserves of one of `gb` gigabytes and as many CPUs, scaled down to its
/// frames. By the kernel's formulas a small machine with many CPUs would keep a tenth of its memory
/// in the per-CPU lists. A large machine keeps a thousandth.
fn scale(config: &mut Config, m: &MachineSpec, gb: f64) {
    let real = (gb * FRAMES_OF_A_GB) as u64;
    let ratio = f64::from(m.frames) / real as f64;
    let min_free = watermark::min_free_kbytes(real);
    let marks = watermark::marks(real, real, min_free, config.watermark_scale_factor, false);
    config.min_free_kbytes = Some(((min_free as f64 * ratio) as u64).max(MIN_FREE_KBYTES));
    // Unscaled, the counts that many CPUs have not reported to the zone yet would exceed its
    // watermarks.
    let slack = watermark::threshold_normal(m.cpus as u32, real);
    config.counter_slack = Some((f64::from(slack) * ratio) as u32);
    let size = watermark::pcp_size(real, &marks, m.cpus as u32, 0);
    let high = (f64::from(size.high_min) * ratio) as u32;
    let batch = ((f64::from(size.batch) * ratio) as u32).max(1);
    config.pcp = (high > 0).then_some(PcpRule::Fixed { high, batch, huge_high: 0, huge_batch: 1 });
}

/// Runs the allocation benchmark.
fn allocation(a: &Allocation, cpus: usize, seed: u64) -> Result<(Metrics, Outcome), RunError> {
    let measured = allocation::run(a, cpus, seed)?;
    Ok((allocation_metrics(&measured), Outcome::default()))
}

fn allocation_metrics(measured: &allocation::Measured) -> Metrics {
    let mut m = Metrics::new();
    m.insert("ns_per_block".into(), measured.take.mean());
    m.insert("p99_ns".into(), measured.take.each.quantile(0.99) as f64);
    m.insert("give_ns_per_block".into(), measured.give.mean());
    m.insert("blocks".into(), measured.take.each.count() as f64);
    m.insert("refills".into(), measured.refills as f64);
    m.insert("drains".into(), measured.drains as f64);
    m
}

/// Returns all measured values, by name.
fn metrics(o: &Outcome) -> Metrics {
    let mut m = Metrics::new();
    let seconds = o.elapsed_ns as f64 / 1e9;
    let mut put = |name: &str, value: f64| {
        m.insert(name.to_owned(), value);
    };
    put("elapsed_s", seconds);
    put("ops", o.ops as f64);
    put("ops_per_s", o.rate());
    put("fairness", o.fairness);
    for (kind, h) in KIND_NAMES.iter().zip(&o.latency).filter(|(_, h)| h.count() > 0) {
        // Rate while all threads worked, as for all operations together.
        let part = h.count() as f64 / (o.ops.max(1) as f64);
        put(&format!("{kind}_per_s"), o.rate() * part);
        put(&format!("{kind}_mean_us"), h.mean() / 1000.0);
        for (name, q) in [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)] {
            put(&format!("{kind}_{name}_us"), h.quantile(q) as f64 / 1000.0);
        }
    }
    let total: f64 = o.latency.iter().map(|h| h.mean() * h.count() as f64).sum();
    put("latency_us", total / (o.ops.max(1) as f64) / 1000.0);
    for (name, value) in &o.counters {
        put(name, *value as f64);
    }
    let count = |name: &str| {
        o.counters.iter().filter(|(n, _)| n.starts_with(name)).map(|c| c.1).sum::<u64>() as f64
    };
    let refault = count("workingset_refault_");
    let steal = |who: &str| count(&format!("pgsteal_{who}"));
    let scan = |who: &str| count(&format!("pgscan_{who}"));
    put("refaults", refault);
    put("touches", o.touches as f64);
    put("pgpgin", (o.moved[0][0] + o.moved[1][0]) as f64 * 4.0);
    put("pgpgout", (o.moved[0][1] + o.moved[1][1]) as f64 * 4.0);
    put("dirty_pages", o.standing[0]);
    put("writing_pages", o.standing[1]);
    for (ty, [inactive, active]) in ["anon", "file"].iter().zip(o.lists) {
        put(&format!("nr_inactive_{ty}"), inactive as f64);
        put(&format!("nr_active_{ty}"), active as f64);
    }
    put("swap_pages_out", o.moved[0][1] as f64);
    for (device, n) in ["swap", "disk"].iter().zip(o.requests) {
        put(&format!("{device}_reads"), n[0] as f64);
        put(&format!("{device}_writes"), n[1] as f64);
    }
    for who in ["kswapd", "direct"] {
        put(&format!("{who}_efficiency_pct"), 100.0 * steal(who) / scan(who).max(1.0));
        put(&format!("{who}_velocity"), scan(who) / seconds.max(1e-9));
    }
    put("direct_runs", o.spent.direct_runs as f64);
    put("progress_waits", o.spent.progress_waits as f64);
    put("room_wait_s", o.spent.room_ns as f64 / 1e9);
    put("direct_s", o.spent.direct_ns as f64 / 1e9);
    put("system_s", o.spent.system_ns as f64 / 1e9);
    put("kswapd_s", o.spent.kswapd_ns as f64 / 1e9);
    put("lock_wait_s", o.spent.lock_wait_ns as f64 / 1e9);
    put("lock_hold_s", o.spent.lock_hold_ns as f64 / 1e9);
    put("marks_met", o.spent.marks_met as f64);
    put("false_marks", o.spent.false_marks as f64);
    put("false_ahead", o.spent.false_ahead as f64);
    put("flush_s", o.spent.flush_ns as f64 / 1e9);
    put("mapped_around", o.spent.around as f64);
    put("log_s", o.spent.log_ns as f64 / 1e9);
    put("log_writes", o.spent.log_writes as f64);
    put("log_records", o.spent.log_records as f64);
    put("high_s", o.spent.high_ns as f64 / 1e9);
    for r in &o.pressure {
        for (kind, (averages, total)) in ["some", "full"].iter().zip(r.lines) {
            for (window, average) in [10, 60, 300].iter().zip(averages) {
                put(&format!("psi.{}.{kind}.avg{window}", r.name), average);
            }
            put(&format!("psi.{}.{kind}.total_us", r.name), total);
        }
    }
    let k = &o.kswapd.counts;
    put("kswapd_sleeps", k.sleeps as f64);
    put("kswapd_naps", k.naps as f64);
    put("kswapd_early_sleeps", k.early as f64);
    put("kswapd_wakes", k.wakes as f64);
    put("kswapd_passes", k.passes as f64);
    put("kswapd_useless_passes", k.unasked_passes as f64);
    put("kswapd_unasked_looks", k.unasked_looks as f64);
    put("kswapd_trim_passes", k.trim_passes as f64);
    put("kswapd_flag_clears", o.kswapd.flag_clears as f64);
    put("kswapd_awake_pct", 100.0 * o.kswapd.awake_ns as f64 / o.elapsed_ns.max(1) as f64);
    put("oom_kills", o.kills as f64);
    m
}
