//! The figures of a run while it lasts, for `ebb stat`: lines as in `/proc/vmstat`.
//!
//! Only reads. What the engine counts has the kernel's names; what only Ebb has begins with `ebb_`.

use crate::lineage;
use crate::server::Pager;
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::resident::Place;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The request for where the time of faults goes, as lines for people.
pub const FAULTS: &str = "faults";
/// The same for programs.
pub const FAULTS_JSON: &str = "faults json";
/// The request for the run's pressure.
pub const PRESSURE: &str = "pressure";

/// The request for the command line.
pub const COMMAND: &str = "command";
/// The request for the number that a run has with `--exec`.
pub const PROGRAM: &str = "program";
/// The request whether a process is of the run; its number follows.
pub const MEMBER: &str = "member ";

/// What kswapd's protocol counts itself.
const OF_KSWAPD: [Event; 3] =
    [Event::PageOutRun, Event::KswapdLowQuickly, Event::KswapdHighQuickly];

/// What the LRU counts itself.
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

/// What a request asks for: levels and counters if it asks for nothing else.
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

/// Levels and counters, a line each.
fn text(pager: &Pager) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: u64| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{name} {value}");
    };
    {
        let resident = pager.resident();
        let cool = resident.count(Place::Cool);
        line("nr_free_pages", resident.zone.free());
        line("nr_anon_pages", resident.zone.used());
        line("nr_isolated_anon", resident.count(Place::Isolated));
        line("nr_unevictable", resident.count(Place::Parked));
        line("ebb_nr_managed", resident.evictable() - cool);
        line("ebb_nr_cool", cool);
        line("ebb_nr_barren", resident.count(Place::Barren));
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

/// What has been counted, under the kernel's names.
fn counted(pager: &Pager) -> VmStat {
    let counters = &pager.counters;
    let get = |counter: &AtomicU64| counter.load(Relaxed);
    let stat = VmStat::default();
    let minor = [&counters.faults_fresh, &counters.faults_rescued, &counters.faults_copied];
    let loaded = get(&counters.faults_loaded);
    stat.add(Event::PgFault, minor.into_iter().map(get).sum::<u64>() + loaded);
    stat.add(Event::PgMajFault, loaded);
    stat.add(Event::PswpIn, loaded);
    stat.add(Event::PswpOut, get(&counters.written));
    stat.add(Event::PgActivate, get(&counters.faults_rescued));
    stat.add(Event::PgDeactivate, get(&counters.cooled));
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
