//! Shows the figures of a run while it lasts, for `ebb stat`: lines as in `/proc/vmstat`.
//!
//! Only reads. Counters of the engine have the kernel's names. Names of figures that only Ebb has
//! begin with `ebb_`.

use crate::lineage;
use crate::server::Pager;
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::resident::FrameState;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Request for the times of faults, as lines for people.
pub const FAULTS: &str = "faults";
/// Request for the times of faults, as JSON.
pub const FAULTS_JSON: &str = "faults json";
/// Request for the run's memory pressure.
pub const PRESSURE: &str = "pressure";

/// Request for the command line.
pub const COMMAND: &str = "command";
/// Request for the process number that identifies a run with `--exec`.
pub const PROGRAM: &str = "program";
/// Request whether a process belongs to the run. The process number follows.
pub const MEMBER: &str = "member ";

/// Counters that kswapd's protocol keeps itself.
const OF_KSWAPD: [Event; 3] =
    [Event::PageOutRun, Event::KswapdLowQuickly, Event::KswapdHighQuickly];

/// Counters that the LRU keeps itself.
const OF_THE_LRU: [Event; 8] = [
    Event::WorkingsetRefaultAnon,
    Event::WorkingsetActivateAnon,
    Event::WorkingsetRestoreAnon,
    Event::PgScanKswapd,
    Event::PgScanProactive,
    Event::PgScanAnon,
    Event::EbbScanned,
    Event::EbbProtected,
];

/// Answers a request: levels and counters, unless it asks for something else.
pub fn answer(pager: &Pager, request: &[u8]) -> String {
    match std::str::from_utf8(request) {
        Ok(PRESSURE) => pager.pressure.text(),
        Ok(FAULTS) => pager.account.faults().text(),
        Ok(FAULTS_JSON) => pager.account.faults().json(),
        Ok(COMMAND) => pager.config.command.join(" "),
        Ok(PROGRAM) => lineage::number(pager),
        Ok(request) if request.starts_with(MEMBER) => {
            lineage::has_member(pager, &request[MEMBER.len()..])
        }
        _ => text(pager),
    }
}

/// Returns levels and counters, a line each.
fn text(pager: &Pager) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name} {value}");
    };
    {
        let resident = pager.resident();
        let standby = resident.count(FrameState::Standby);
        line("nr_free_pages", resident.zone.free());
        line("nr_anon_pages", resident.zone.used());
        line("nr_isolated_anon", resident.count(FrameState::Isolated));
        line("nr_unevictable", resident.count(FrameState::Unevictable));
        line("ebb_nr_managed", resident.evictable() - standby);
        line("ebb_nr_standby", standby);
        line("ebb_nr_unstorable", resident.count(FrameState::Unstorable));
        line("ebb_nr_limit", resident.zone.limit());
        line("ebb_nr_high", resident.zone.high());
    }
    for tier in pager.store.stats().tiers {
        line(&format!("ebb_{}_pages", tier.name), tier.pages);
        line(&format!("ebb_{}_bytes", tier.name), tier.occupied_bytes);
        if tier.address.is_some() {
            line(&format!("ebb_{}_writes", tier.name), tier.writes);
            line(&format!("ebb_{}_reads", tier.name), tier.reads);
            line(&format!("ebb_{}_errors", tier.name), tier.errors);
            let mean_ns = tier.read_times.map_or(0, |times| times.mean_ns);
            line(&format!("ebb_{}_read_us", tier.name), mean_ns / 1000);
        }
    }
    out + &counted(pager).text()
}

/// Returns the counters under the kernel's names.
fn counted(pager: &Pager) -> VmStat {
    let counters = &pager.counters;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    let stat = VmStat::default();
    let minor = [&counters.faults_fresh, &counters.faults_reactivated, &counters.faults_copied];
    let loaded = get(&counters.faults_loaded);
    stat.add(Event::PgFault, minor.into_iter().map(get).sum::<u64>() + loaded);
    stat.add(Event::PgMajFault, loaded);
    stat.add(Event::PswpIn, loaded);
    stat.add(Event::PswpOut, get(&counters.written));
    stat.add(Event::PgActivate, get(&counters.faults_reactivated));
    stat.add(Event::PgDeactivate, get(&counters.to_standby));
    stat.add(Event::PgStealKswapd, get(&counters.evicted));
    stat.add(Event::PgStealAnon, get(&counters.evicted));
    let engine = pager.engine();
    for event in OF_KSWAPD {
        stat.add(event, engine.stat().get(event));
    }
    for event in OF_THE_LRU {
        stat.add(event, engine.set.stat().get(event));
    }
    stat
}
