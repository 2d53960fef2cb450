//! Compares the loads that the laboratory's `live` machine predicts with the loads of a real run.

use std::fs;

use ebb_e2e::MIB;
use ebb_e2e::launch::Launch;
use ebb_lab::machine::outflow::Outflow;
use ebb_lab::machine::{
    Access, Costs, Device, DeviceSpec, Live, LiveSpec, Machine, Mem, Preset, Region,
};
use ebb_lab::workload::{Program, Step};
use ebb_linux::frame::{Config, ZoneKind, ZoneSpec};
use ebb_mm::engine::Evidence;
use ebb_mm::space::Backing;
use ebb_mm::types::PAGE_SIZE;
use tempfile::TempDir;

use super::figure;

const PAGES: u64 = 40_000;
const LIMIT: u64 = 96 * MIB;
const ACCESSES: usize = 250_000;
const STEP_NS: u64 = 4_000;
const WRITE: u32 = 1 << 31;

/// Returns the accesses of a load: each is a page number, with a mark if the page is written.
fn accesses(load: &str) -> Vec<u32> {
    let mut state = 7u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state >> 11
    };
    let mut order: Vec<u32> = (0..PAGES as u32).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, (random() % (at as u64 + 1)) as usize);
    }
    (0..ACCESSES)
        .map(|at| {
            let unit = random() as f64 / (1u64 << 53) as f64;
            let page = match load {
                // The page's rank is a power of the random number, so the first tenth has 46 % of
                // all accesses.
                "popular" => order[(PAGES as f64 * unit.powi(3)) as usize],
                "uniform" => (PAGES as f64 * unit) as u32,
                "passes" if at / 20_000 % 2 == 1 => (at % PAGES as usize) as u32,
                "passes" => order[(PAGES as f64 * unit.powi(4)) as usize],
                _ => unreachable!("no such load"),
            };
            page | if random() % 10 < 3 { WRITE } else { 0 }
        })
        .collect()
}

/// Results of a run.
struct Run {
    loads: f64,
    /// Loaded pages, with the readahead beside faults.
    brought: f64,
    reactivations: f64,
    ratio: f64,
    other: u64,
}

fn run(list: &[u32], swap: &str) -> Run {
    let folder = TempDir::new().expect("temporary folder");
    let file = folder.path().join("list");
    let bytes: Vec<u8> = list.iter().flat_map(|page| page.to_ne_bytes()).collect();
    fs::write(&file, bytes).expect("the list");
    let arguments = format!("{} {PAGES} {STEP_NS}", file.display());
    let options = format!("--swap {swap} --report json");
    let finished =
        Launch::program("follow", &arguments).limit(LIMIT).options(&options).start().finish();
    finished.expect_code(0);
    let said = String::from_utf8_lossy(&finished.stdout);
    let other = said.lines().find_map(|line| line.strip_prefix("other: "));
    let other = other.and_then(|pages| pages.parse().ok()).expect("it says what else it has");
    let ratio = finished.figure("peak_ratio_permille") as f64 / 1000.0;
    Run {
        loads: finished.figure("loaded") as f64,
        brought: (finished.figure("loaded") + finished.figure("loaded_ahead")) as f64,
        reactivations: finished.figure("reactivated") as f64,
        ratio,
        other,
    }
}

/// Fills memory and follows the list, as the program does.
struct Follow {
    list: Vec<u32>,
    at: usize,
}

impl Program for Follow {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        let touch = |page: u32, access| Step::Touch { page, space: 0, access };
        if self.at == 0 {
            steps.push(Step::Start);
            for page in 0..PAGES as u32 {
                steps.push(Step::Cpu(3_000));
                steps.push(touch(page, Access::Write));
            }
        }
        for &page in self.list.iter().skip(self.at).take(4096) {
            let access = if page & WRITE != 0 { Access::Write } else { Access::Read };
            steps.push(Step::Cpu(STEP_NS as u32));
            steps.push(touch(page & !WRITE, access));
        }
        self.at += 4096;
        if self.at >= self.list.len() + 4096 {
            steps.clear();
        }
    }
}

/// Runs the list on the simulated machine.
fn simulate(list: &[u32], swap: &str, of: &Run) -> Run {
    let limit = LIMIT / PAGE_SIZE as u64 - of.other;
    let spec = LiveSpec {
        on: true,
        compressed: if swap.contains("ram") { 0.5 } else { 0.0 },
        ratio: of.ratio,
        file: swap.contains("file"),
        ..LiveSpec::default()
    };
    let frames = 1 << 16;
    let zone = ZoneSpec::new(ZoneKind::Normal, 0..frames);
    let config = Config::node(&[ZoneKind::Normal], vec![zone], 2);
    let costs = Costs::default();
    let device = || Device::new(&DeviceSpec::preset(Preset::Nvme));
    let out = Outflow::new(config.build().expect("a machine"), frames, Some(device()), &costs);
    let tun = Evidence::Standby.tunables();
    let mut mem = Mem::new(out, device(), tun.clone(), costs, 1);
    mem.add_memcg(u64::MAX);
    mem.live = Some(Box::new(Live::new(&spec, limit, tun)));
    let region =
        Region { pages: PAGES, backing: Backing::Anon, recency: true, exec: false, processes: 1 };
    mem.add_space(0, &[region]);
    let mut machine = Machine::new(mem, 2);
    machine.add_thread(Box::new(Follow { list: list.to_vec(), at: 0 }), 0, true);
    let (outcome, mut mem, now) = machine.run().expect("it runs");
    mem.check(now).expect("its books agree");
    let count = |name| outcome.counters.iter().find(|(of, _)| *of == name).expect("counted").1;
    let loads = mem.live.as_ref().expect("it is live").loads();
    Run {
        loads: count("pswpin") as f64,
        brought: (loads.compressed + loads.far) as f64,
        reactivations: count("pgactivate") as f64,
        ..*of
    }
}

/// Measures the loads with the default tiers and with a file alone. The accesses are popular pages,
/// uniform pages, and passes over memory among popular pages.
pub fn loads() {
    for (load, swap) in [("popular", "ram,file"), ("uniform", "file"), ("passes", "ram,file")] {
        let list = accesses(load);
        let run = run(&list, swap);
        let lab = simulate(&list, swap, &run);
        let off = |lab: f64, run: f64| 100.0 * (lab / run - 1.0);
        // The loads and the readahead of a pass depend on when kswapd makes room.
        let bound = if load == "passes" { "none" } else { "5 either way" };
        figure(
            &format!("{load}, {swap}: {:.0} loads, off by", run.loads),
            off(lab.loads, run.loads),
            "%",
            bound,
        );
        let what = format!("{load}, {swap}: {:.0} with those ahead, off by", run.brought);
        figure(&what, off(lab.brought, run.brought), "%", "5 either way");
        let what = format!("{load}, {swap}: {:.0} reactivations, off by", run.reactivations);
        figure(&what, off(lab.reactivations, run.reactivations), "%", "none");
        figure(&format!("{load}, {swap}: packed"), run.ratio, ": 1", "none");
    }
}
