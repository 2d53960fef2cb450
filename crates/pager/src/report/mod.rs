//! Writes the report at the end of a run. The figures of a run that goes on are in `stat.rs` and
//! `view.rs`.

pub mod costs;
pub mod stat;
pub mod view;

use crate::config::{ReportFormat, ReportTo};
use crate::mm::StateLock;
use crate::pager::Pager;
use crate::processes::Processes;
use crate::telemetry::finding::Finding;
use crate::telemetry::{sampling, unmanaged};
use costs::{Cpu, Lost};
use ebb_mm::resident::lost_pages;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// The report in its JSON form. Values are plain integers, with the unit in the key.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    command: Vec<String>,
    /// Exit status of the program; None if it could not be learnt.
    exit_status: Option<i32>,
    wall_time_us: u64,
    memory_max_bytes: u64,
    memory_high_bytes: Option<u64>,
    peak_resident_bytes: u64,
    peak_resident_and_compressed_bytes: u64,
    recent_resident_bytes: u64,
    processes: u64,
    forks: u64,
    faults: Faults,
    pages_to_standby: u64,
    pages_evicted: u64,
    pages_written: u64,
    pages_not_written_because_clean: u64,
    pages_unmovable: u64,
    pages_lost: u64,
    tiers: Vec<Tier>,
    /// Pages that repeat one word and are in no tier: number at the end, and maximum.
    same_filled_pages: u64,
    same_filled_peak: u64,
    recorded: u64,
    recorded_lost: u64,
    waiting: Waiting,
    pressure: Pressure,
    /// Longest time for which faults may have waited for the lock of their address space
    /// (`limits`).
    longest_hold_us: u64,
    longest_hold_cpu_us: u64,
    /// Longest single time for which the freezer froze a thread of the program.
    longest_freeze_us: u64,
    /// Accounting errors of Ebb: pages whose charge was lost, and pages that left while the count
    /// was zero. The latter happens if a measurement sees pages leave first.
    charges_lost: u64,
    uncounted_pages: u64,
    cpu: Cpu,
    lost: Lost,
    stages: ebb_control::Faults,
    unmanaged: Vec<unmanaged::Line>,
    thrashing: Option<Finding>,
    /// How soon pages were used again, if the run was sampled.
    reuse: Option<sampling::Found>,
}

/// Time in which at least one thread waited for memory, and in which no other thread ran.
#[derive(Debug, Serialize)]
struct Pressure {
    some_us: u64,
    full_us: u64,
}

#[derive(Debug, Serialize)]
struct Faults {
    first_touch: u64,
    reactivated: u64,
    copied: u64,
    loaded: u64,
    loaded_ahead: u64,
    first_touch_ahead: u64,
    reactivated_ahead: u64,
    stale: u64,
}

#[derive(Debug, Serialize)]
struct Tier {
    name: String,
    pages: u64,
    stored_bytes: u64,
    occupied_bytes: u64,
    limit_bytes: u64,
    compression_ratio_permille: u64,
    peak_pages: u64,
    peak_occupied_bytes: u64,
    peak_ratio_permille: u64,
    reads: u64,
    writes: u64,
    demoted: u64,
    /// Address, errors and read times of a remote tier.
    address: Option<String>,
    encrypted: bool,
    errors: u64,
    read_mean_ns: Option<u64>,
    read_max_ns: Option<u64>,
}

#[derive(Debug, Serialize)]
struct Waiting {
    threads_waited: u64,
    throttled_us: u64,
    /// Estimated time from the fault until the thread runs again. `seen_us` is the measured part,
    /// from the reading of its message until its wakeup.
    total_us: u64,
    seen_us: u64,
    p50_ns: u64,
    p99_ns: u64,
}

fn collect(pager: &Pager, exit_status: Option<i32>) -> Report {
    let Pager { budget, processes, telemetry, .. } = pager;
    let counters = &telemetry.counters;
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Relaxed);
    let stages = telemetry.account.faults();
    let stats = budget.store.stats();
    let psi = telemetry.pressure.now();
    let tiers = stats
        .tiers
        .iter()
        .map(|tier| Tier {
            name: tier.name.to_string(),
            pages: tier.pages,
            stored_bytes: tier.stored_bytes,
            occupied_bytes: tier.occupied_bytes,
            limit_bytes: tier.limit_bytes,
            compression_ratio_permille: (tier.pages * 4096 * 1000)
                .checked_div(tier.stored_bytes)
                .unwrap_or(0),
            peak_pages: tier.peak_pages,
            peak_occupied_bytes: tier.peak_occupied_bytes,
            peak_ratio_permille: (tier.peak_pages * 4096 * 1000)
                .checked_div(tier.peak_occupied_bytes)
                .unwrap_or(0),
            reads: tier.reads,
            writes: tier.writes,
            demoted: tier.demoted,
            address: tier.address.clone(),
            encrypted: tier.encrypted,
            errors: tier.errors,
            read_mean_ns: tier.read_times.map(|times| times.mean_ns),
            read_max_ns: tier.read_times.map(|times| times.max_ns),
        })
        .collect();
    Report {
        schema: 2,
        command: pager.config.command.clone(),
        exit_status,
        wall_time_us: pager.clock.since(pager.started).as_micros() as u64,
        memory_max_bytes: budget.memory_max_bytes(),
        memory_high_bytes: pager.config.memory_high_bytes,
        peak_resident_bytes: get(&counters.peak_resident),
        peak_resident_and_compressed_bytes: get(&counters.peak_managed),
        recent_resident_bytes: telemetry
            .resident_history
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .peak(),
        processes: get(&counters.processes),
        forks: get(&counters.forks),
        faults: Faults {
            first_touch: get(&counters.faults_fresh),
            reactivated: get(&counters.faults_reactivated),
            copied: get(&counters.faults_copied),
            loaded: get(&counters.faults_loaded),
            loaded_ahead: get(&counters.pages_ahead),
            first_touch_ahead: get(&counters.zeros_ahead),
            reactivated_ahead: get(&counters.reactivated_ahead),
            stale: get(&counters.faults_stale),
        },
        pages_to_standby: get(&counters.to_standby),
        pages_evicted: get(&counters.evicted),
        pages_written: get(&counters.written),
        pages_not_written_because_clean: get(&counters.clean),
        pages_unmovable: get(&counters.unmovable),
        pages_lost: get(&counters.poisoned),
        tiers,
        same_filled_pages: stats.same_filled_pages,
        same_filled_peak: stats.same_filled_peak,
        recorded: telemetry.recorder.as_ref().map_or(0, |recorder| get(&recorder.written)),
        recorded_lost: telemetry.recorder.as_ref().map_or(0, |recorder| get(&recorder.lost)),
        waiting: Waiting {
            threads_waited: stages.count,
            throttled_us: get(&counters.throttled_us),
            total_us: stages.waited_ns / 1000,
            seen_us: stages.served_ns / 1000,
            p50_ns: stages.all.p50_ns,
            p99_ns: stages.all.p99_ns,
        },
        longest_hold_us: longest_us(processes, StateLock::longest_hold_ns, &counters.longest_hold),
        longest_hold_cpu_us: longest_us(
            processes,
            StateLock::longest_run_ns,
            &counters.longest_run,
        ),
        longest_freeze_us: get(&counters.longest_freeze_us),
        cpu: Cpu::of(pager),
        lost: Lost::of(pager),
        stages,
        pressure: Pressure { some_us: psi.some().total_us, full_us: psi.full().total_us },
        charges_lost: lost_pages(),
        uncounted_pages: budget.resident().zone.uncounted(),
        unmanaged: telemetry.unmanaged.list(),
        thrashing: telemetry.thrashing.get().cloned(),
        reuse: telemetry.sampling.as_ref().map(sampling::Sampling::found),
    }
}

/// Returns the largest value of all address spaces, existing and ended, in microseconds.
fn longest_us(processes: &Processes, of: impl Fn(&StateLock) -> u64, ended: &AtomicU64) -> u64 {
    let there = processes.mms().iter().map(|mm| of(&mm.state)).max().unwrap_or(0);
    there.max(ended.load(Relaxed)) / 1000
}

/// Writes the report to the place that the run's settings name.
pub fn write(pager: &Pager, exit_status: Option<i32>) -> std::io::Result<()> {
    let report = collect(pager, exit_status);
    let text = match pager.config.report {
        ReportFormat::Json => serde_json::to_string(&report)? + "\n",
        ReportFormat::Text => text(&report),
    };
    // A stream that cannot be written has no reader, so the error does not matter.
    match &pager.config.report_to {
        ReportTo::File(path) => std::fs::write(path, text)?,
        ReportTo::Stdout => drop(std::io::stdout().write_all(text.as_bytes())),
        ReportTo::Stderr => drop(std::io::stderr().write_all(text.as_bytes())),
        ReportTo::Nowhere => {}
    }
    Ok(())
}

fn bytes(bytes: u64) -> String {
    let kib = bytes as f64 / 1024.0;
    if kib < 1024.0 {
        format!("{kib:.1} KiB")
    } else if kib < 1024.0 * 1024.0 {
        format!("{:.1} MiB", kib / 1024.0)
    } else {
        format!("{:.1} GiB", kib / 1024.0 / 1024.0)
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "ebb: {name:<22} {value}");
    };
    line("wall time", time(report.wall_time_us * 1000));
    line(
        "memory",
        format!(
            "{} resident at most, {} with the compressed tier; limit {}",
            bytes(report.peak_resident_bytes),
            bytes(report.peak_resident_and_compressed_bytes),
            bytes(report.memory_max_bytes)
        ),
    );
    let copied = match report.faults.copied {
        0 => String::new(),
        pages => format!(", {pages} copied after a fork"),
    };
    // A run that never came near its limit has no faults to show.
    if report.stages.count > 0 {
        line(
            "faults",
            format!(
                "{} first touches, {} reactivated from standby, {} loaded{copied}",
                report.faults.first_touch, report.faults.reactivated, report.faults.loaded
            ),
        );
    }
    if report.pages_evicted > 0 {
        line(
            "pages evicted",
            format!(
                "{}: {} written, {} not written because clean",
                report.pages_evicted, report.pages_written, report.pages_not_written_because_clean
            ),
        );
    }
    if report.same_filled_peak > 0 {
        line("same-filled pages", format!("{} at most, in no tier", report.same_filled_peak));
    }
    for tier in report.tiers.iter().filter(|tier| tier.writes + tier.reads > 0) {
        let ratio = tier.peak_ratio_permille as f64 / 1000.0;
        line(
            &format!("tier {}", tier.name),
            format!(
                "{} pages at most, in {} ({:.2}:1), {} writes, {} reads{}",
                tier.peak_pages,
                bytes(tier.peak_occupied_bytes),
                ratio,
                tier.writes,
                tier.reads,
                elsewhere(tier)
            ),
        );
    }
    if report.stages.count > 0 {
        line(
            "waiting for pages",
            format!(
                "{} in all, estimated; p50 {}, p99 {}",
                time(report.waiting.total_us * 1000),
                time(report.waiting.p50_ns),
                time(report.waiting.p99_ns)
            ),
        );
        line("average fault", of_a_fault(&report.stages));
        line("other delays", lost(&report.lost, report.stages.kept_off_ns));
    }
    line("CPU time of Ebb", cpu(&report.cpu));
    if let Some(finding) = &report.thrashing {
        line(
            "thrashing",
            format!(
                "{} % of ten seconds spent waiting for pages, {} into the run; a limit of {} would be enough",
                finding.lost_percent,
                time(finding.at_us * 1000),
                bytes(finding.enough_bytes)
            ),
        );
    }
    for kind in &report.unmanaged {
        line("not managed", kind.text());
    }
    if report.pages_lost > 0 {
        line("pages lost", format!("{}", report.pages_lost));
    }
    let share = report.waiting.total_us as f64 * 100.0 / report.wall_time_us.max(1) as f64;
    line(
        "in short",
        format!(
            "threads spent {share:.1} % of the run's time waiting for pages; at most {} were resident in \
             the last 10 s",
            bytes(report.recent_resident_bytes)
        ),
    );
    out
}

/// Returns further facts about a tier: its address and read times if it is remote, and whether it
/// is encrypted.
fn elsewhere(tier: &Tier) -> String {
    let Some(address) = &tier.address else {
        return if tier.encrypted { ", encrypted".to_owned() } else { String::new() };
    };
    let times = match (tier.read_mean_ns, tier.read_max_ns) {
        (Some(mean), Some(most)) => format!(" of {} ({} at most)", time(mean), time(most)),
        _ => String::new(),
    };
    let encrypted = if tier.encrypted { "encrypted" } else { "not encrypted (--encrypt=none)" };
    format!("{times}, {} errors; {encrypted}, at {address}", tier.errors)
}

/// Returns the average times of a fault.
fn of_a_fault(stages: &ebb_control::Faults) -> String {
    let served = stages.served_ns / stages.count;
    let [before, served, after, within] =
        [stages.fault_to_read_ns, served, stages.wake_to_run_ns, stages.in_thread_ns].map(time);
    format!(
        "{before} until the pager reads it, {served} in the pager, {after} until its thread runs, {within} in the \
         thread; {}",
        stages.own_cpu()
    )
}

fn lost(lost: &Lost, kept_off_ns: u64) -> String {
    let [changes, calls, freezer] =
        [lost.changes_us, lost.calls_us, lost.freezer_us].map(|us| time(us * 1000));
    format!(
        "{changes} for {} mapping changes, {calls} in {} calls to the pager, {freezer} in the freezer, {} without a \
         CPU between faults",
        lost.changes,
        lost.calls,
        time(kept_off_ns)
    )
}

fn cpu(cpu: &Cpu) -> String {
    let us = |us: u64| time(us * 1000);
    format!(
        "{} pager ({} faults, {} kswapd, {} monitor, {} rest), {} agents, {} supervisor",
        us(cpu.pager_us),
        us(cpu.faults_us),
        us(cpu.kswapd_us),
        us(cpu.monitor_us),
        us(cpu.listener_us + cpu.rest_us),
        us(cpu.agents_us),
        us(cpu.supervisor_us)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_binary_units_and_short_times() {
        assert_eq!(bytes(512 * 1024 * 1024), "512.0 MiB");
        assert_eq!(bytes(3 << 30), "3.0 GiB");
        assert_eq!(time(1_500), "1.5 us");
        assert_eq!(time(2_500_000_000), "2.50 s");
    }
}
