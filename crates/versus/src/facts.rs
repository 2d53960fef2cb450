//! Measures facts beside the tables: the cost of checks, lock holds, drains, start-up and metadata.

use std::sync::Arc;
use std::time::Instant;

use ebb_bench::alloc::{
    Cell, Contender as _, Ebb, HoldTimes, Load, Mechanisms, Pattern, measure, median,
};
use ebb_linux::frame::{Checks, Config, Gfp, NoHost, Order, PcpRule, Request};

const GIB: u32 = 1 << 18;

/// Returns all facts, a line each.
pub fn all(rounds: usize) -> Result<Vec<String>, String> {
    let mut lines = checks(rounds)?;
    lines.extend(holds()?);
    lines.extend(drains()?);
    lines.extend(start_up()?);
    Ok(lines)
}

fn verdict(ok: bool) -> &'static str {
    if ok { "holds" } else { "FAILS" }
}

/// Measures order 9 with the faithful store: checks under the lock, after it, off.
fn checks(rounds: usize) -> Result<Vec<String>, String> {
    let modes = [Checks::UnderLock, Checks::AfterLock, Checks::OnPop, Checks::Off];
    let build = |&checks: &Checks| {
        let how = Mechanisms { checks, ..Mechanisms::faithful() };
        Ebb::new(8 * GIB, 2, &how, None).map_err(|error| error.to_string())
    };
    let machines: Vec<Ebb> = modes.iter().map(build).collect::<Result<_, _>>()?;
    let mut medians = [[Cell::default(); 4]; 2];
    for threads in [1, 2] {
        // For two threads the phase is short, so that threads that start together also work
        // together. `settle` empties their per-CPU sets first, so that all blocks come from
        // refills. A long phase needs no empty sets.
        let (blocks, passes) = if threads == 1 { (2048, 2) } else { (512, 1) };
        let load = Load { threads, order: 9, blocks, pattern: Pattern::Bulk, passes };
        let mut samples = [const { Vec::new() }; 4];
        for _ in 0..=5 * rounds {
            for (machine, samples) in machines.iter().zip(&mut samples) {
                if threads > 1 {
                    machine.settle();
                }
                samples.push(measure(machine, &load));
            }
        }
        medians[threads - 1] = samples.map(|s: Vec<Cell>| {
            // Other load on a shared machine only adds to the wall-clock time.
            let least = s[1..].iter().map(|c| c.get_wall).fold(f64::INFINITY, f64::min);
            Cell { get_wall: least, ..median(&s[1..]) }
        });
    }
    let [one, two] = medians;
    let mut lines: Vec<String> = [(1, one), (2, two)]
        .iter()
        .map(|(n, cells)| {
            let shown: Vec<String> = modes
                .iter()
                .zip(cells)
                .map(|(m, c)| {
                    format!("{} {:.0} / {:.0} (wall {:.0})", m.name(), c.get, c.put, c.get_wall)
                })
                .collect();
            format!(
                "lists, order 9, {n} thread(s), get / put ns of CPU (get by the wall): {}",
                shown.join(", ")
            )
        })
        .collect();
    let gain = one[0].get / one[3].get;
    lines.push(format!(
        "{}: lists, order 9, one thread: checks off {gain:.1}x cheaper get than under the lock, \
         goal 15x",
        verdict(gain >= 15.0)
    ));
    let moved = two[0].get_wall / two[1].get_wall;
    lines.push(format!(
        "{}: lists, order 9, two threads: checks after the lock {moved:.2}x cheaper get than under \
         it, goal 2x (on the wall, from the first start to the last end, least of the rounds)",
        verdict(moved >= 2.0)
    ));
    Ok(lines)
}

/// Measures how long a refill holds the lock, by when checks run. Also measures the CPU time and
/// the wall time of two threads for each block.
fn holds() -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    for (name, base) in [("lists", Mechanisms::faithful()), ("fast", Mechanisms::fast())] {
        for order in [0u8, 9] {
            let mut means = Vec::new();
            for checks in Checks::ALL {
                let times = Arc::new(HoldTimes::default());
                let how = Mechanisms { checks, ..base };
                let ebb = Ebb::new(2 * GIB, 2, &how, Some(times.clone()));
                let ebb = ebb.map_err(|error| error.to_string())?;
                let blocks = if order == 0 { 32_768 } else { 128 };
                let load = Load { threads: 2, order, blocks, pattern: Pattern::Bulk, passes: 8 };
                let from = Instant::now();
                let cell = measure(&ebb, &load);
                let wall = from.elapsed().as_nanos() as f64 / (blocks * 16) as f64;
                let (n, ns) = times.mean();
                means.push(format!(
                    "{} {ns:.0} ns x {n} (get {:.0} ns CPU, round {wall:.0} ns wall)",
                    checks.name(),
                    cell.get
                ));
            }
            lines.push(format!(
                "{name}, order {order}, two threads: lock held per refill: {}",
                means.join("; ")
            ));
        }
    }
    Ok(lines)
}

/// Measures the drain of a full set of single frames. The drain takes the path for the set of
/// another thread.
fn drains() -> Result<Vec<String>, String> {
    let ebb = Ebb::new(8 * GIB, 2, &Mechanisms::fast(), None).map_err(|error| error.to_string())?;
    let frames = ebb.frames();
    let request = Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO);
    let mut held = Vec::new();
    let cpu = frames.cpu(0).ok_or("CPU 0 is claimed")?;
    while held.len() < 1 << 20 {
        held.push(cpu.alloc(&request, &NoHost).ok_or("out of frames")?);
    }
    let mut seed = 1u64;
    let mut times = Vec::new();
    for _ in 0..200 {
        for _ in 0..2048 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (seed >> 33) as usize % held.len();
            cpu.free(held.swap_remove(at), Order::ZERO).map_err(|bad| bad.to_string())?;
        }
        while frames.pages_in_sets(0) < 512 {
            cpu.free(held.pop().ok_or("nothing held")?, Order::ZERO).map_err(|b| b.to_string())?;
        }
        let pages = frames.pages_in_sets(0);
        let from = Instant::now();
        frames.drain_cpu(0);
        times.push((from.elapsed().as_nanos() as f64 / 1000.0, pages));
    }
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (us, pages) = times[times.len() / 2];
    Ok(vec![format!(
        "{}: draining a full set of {pages} frames in random places: {us:.1} us, goal 15 us",
        verdict(us <= 15.0)
    )])
}

/// Measures a machine of 64 GiB: time to build, bytes per frame.
fn start_up() -> Result<Vec<String>, String> {
    let mut lines = Vec::new();
    let machines = [
        ("fast", Config::flat(64 * GIB, 2)),
        ("lists", Config::flat(64 * GIB, 2).faithful()),
        ("lists with checks", {
            let mut config = Config::flat(64 * GIB, 2).faithful();
            config.checks = Checks::OnPop;
            config
        }),
        ("fast, kernel's sets", {
            let mut config = Config::flat(64 * GIB, 2);
            config.pcp = Some(PcpRule::Kernel);
            config
        }),
    ];
    for (name, config) in machines {
        let from = Instant::now();
        let frames = config.build().map_err(|error| error.to_string())?;
        let seconds = from.elapsed().as_secs_f64();
        let per_frame = frames.metadata_bytes() as f64 / f64::from(64 * GIB);
        lines.push(format!(
            "{}: 64 GiB, {name}: built in {:.0} ms (goal 1000), {per_frame:.2} bytes a frame \
             (goal 64)",
            verdict(seconds < 1.0 && per_frame <= 64.0),
            seconds * 1000.0
        ));
    }
    Ok(lines)
}
