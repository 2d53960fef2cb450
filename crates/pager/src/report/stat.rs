//! Makes the figures of a run while it lasts, for `ebb stat`.
//!
//! Only reads. Counters of the engine have the kernel's names. Names of figures that only Ebb has
//! begin with `ebb_`.

use crate::pager::Pager;
use crate::telemetry::Telemetry;
use ebb_control::{MemoryPressure, Metric, Metrics, Pressure, Unit};
use ebb_mm::observe::psi;
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::resident::FrameState;
use ebb_swap::TierName;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of the longest command line in an answer. As JSON a byte takes six at most.
const COMMAND_MAX: usize = 10 << 10;

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

/// Returns all levels and counters.
pub fn metrics(pager: &Pager) -> Metrics {
    let mut all = Vec::new();
    {
        let resident = pager.resident();
        let standby = resident.count(FrameState::Standby);
        let levels = [
            ("nr_free_pages", resident.zone.free()),
            ("nr_anon_pages", resident.zone.used()),
            ("nr_isolated_anon", resident.count(FrameState::Isolated)),
            ("nr_unevictable", resident.count(FrameState::Unevictable)),
            ("ebb_nr_managed", resident.evictable() - standby),
            ("ebb_nr_standby", standby),
            ("ebb_nr_unstorable", resident.count(FrameState::Unstorable)),
            ("ebb_nr_limit", resident.zone.limit()),
            ("ebb_nr_high", resident.zone.high()),
        ];
        all.extend(levels.map(|(name, pages)| Metric::gauge(name, pages, Unit::Pages)));
    }
    for tier in pager.budget.store.stats().tiers {
        let name = |what| name_of(tier.name, what);
        all.push(Metric::gauge(name("pages"), tier.pages, Unit::Pages));
        all.push(Metric::gauge(name("bytes"), tier.occupied_bytes, Unit::Bytes));
        if tier.address.is_some() {
            all.push(Metric::counter(name("writes"), tier.writes));
            all.push(Metric::counter(name("reads"), tier.reads));
            all.push(Metric::counter(name("errors"), tier.errors));
            let mean_us = tier.read_times.map_or(0, |times| times.mean_ns) / 1000;
            all.push(Metric::gauge(name("read_us"), mean_us, Unit::Microseconds));
        }
    }
    let counted = counted(pager);
    all.extend(Event::ALL.iter().map(|&event| Metric::counter(event.name(), counted.get(event))));
    Metrics(all)
}

/// Returns the name of a figure of a tier, without the blank in the name of a second tier.
fn name_of(tier: TierName, figure: &str) -> String {
    format!("ebb_{tier}_{figure}").replace(" #", "_")
}

/// Returns the memory pressure of the run.
pub fn pressure(telemetry: &Telemetry) -> MemoryPressure {
    let psi = telemetry.pressure.now();
    let of = |psi::Line { average, total_us }| Pressure { average, total_us };
    MemoryPressure { some: of(psi.some()), full: of(psi.full()) }
}

/// Returns the program and its arguments in one line, cut if the line is too long for an answer.
pub fn command(words: &[String]) -> String {
    let mut line = words.join(" ");
    line.truncate(line.floor_char_boundary(COMMAND_MAX));
    line
}

/// Returns the counters under the kernel's names.
fn counted(pager: &Pager) -> VmStat {
    let counters = &pager.telemetry.counters;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quiet;
    use ebb_control::{ANSWER_MAX, MetricKind, Response, answer_to_bytes};

    #[test]
    fn the_figures_are_levels_by_name_and_then_the_kernel_s_counters() {
        let Metrics(all) = metrics(&quiet::pager());
        let (levels, counters) = all.split_at(all.len() - Event::ALL.len());
        let text = Metrics(levels.to_vec()).to_string();
        assert_eq!(
            text,
            "nr_free_pages 4096\nnr_anon_pages 0\nnr_isolated_anon 0\nnr_unevictable 0\n\
             ebb_nr_managed 0\nebb_nr_standby 0\nebb_nr_unstorable 0\nebb_nr_limit 4096\n\
             ebb_nr_high 4096\nebb_ram_pages 0\nebb_ram_bytes 0\n"
        );
        assert!(levels.iter().all(|level| level.kind == MetricKind::Gauge));
        assert!(counters.iter().all(|counter| counter.kind == MetricKind::Counter));
        assert_eq!(Metrics(counters.to_vec()).to_string(), VmStat::default().text());
    }

    /// Shows the form that Prometheus asks of a name. It refuses all figures of a run otherwise.
    #[test]
    fn the_figures_of_a_second_tier_have_names_without_blanks() {
        assert_eq!(name_of(TierName::File(0), "pages"), "ebb_file_pages");
        assert_eq!(name_of(TierName::File(1), "pages"), "ebb_file_2_pages");
        assert_eq!(name_of(TierName::Redis(2), "read_us"), "ebb_redis_3_read_us");
    }

    #[test]
    fn the_longest_command_line_is_one_message() {
        let line = command(&["\u{1}".repeat(COMMAND_MAX - 1), "é".into()]);
        assert_eq!(line.len(), COMMAND_MAX);
        assert!(command(&["é".repeat(COMMAND_MAX)]).len() <= COMMAND_MAX);
        assert!(answer_to_bytes(&Ok(Response::Text(line))).len() < ANSWER_MAX);
    }
}
