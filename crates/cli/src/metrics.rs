//! Formats the figures of a run for other programs: JSON, and OpenMetrics 1.0 as Prometheus reads
//! it.

use ebb_control::{Faults, MemoryPressure, Metric, MetricKind, Metrics};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::borrow::Cow;

/// Returns the figures as one JSON object.
pub fn json(metrics: &Metrics) -> String {
    let all: serde_json::Map<String, serde_json::Value> =
        metrics.0.iter().map(|metric| (metric.name.clone(), metric.value.into())).collect();
    serde_json::to_string(&all).expect("names and numbers") + "\n"
}

/// Registers the faults by kind, and the time that threads waited for them.
fn register_faults(run: &mut Registry, faults: &Faults) {
    let by_kind = Family::<[(&str, &str); 1], Counter>::default();
    for row in &faults.kinds {
        by_kind.get_or_create(&[("kind", row.kind.key())]).inc_by(row.count);
    }
    run.register("faults", "Page faults that were served, by kind", by_kind);
    let help = "Time that all threads together waited for pages, from the fault until they ran again (an estimate)";
    let waited = ConstCounter::new(faults.waited_ns as f64 / 1e9);
    run.register_with_unit("waited", help, Unit::Seconds, waited);
}

/// Returns the OpenMetrics text. Each name begins with `ebb_`, and each figure has the run's number
/// as a label.
pub fn openmetrics(
    pid: u32,
    metrics: &Metrics,
    pressure: &MemoryPressure,
    faults: &Faults,
) -> Result<String, std::fmt::Error> {
    let mut all =
        Registry::with_labels(std::iter::once((Cow::Borrowed("pid"), Cow::Owned(pid.to_string()))));
    let run = all.sub_registry_with_prefix("ebb");
    for Metric { name, value, kind, .. } in &metrics.0 {
        let name = name.strip_prefix("ebb_").unwrap_or(name);
        match kind {
            MetricKind::Gauge => {
                let level = i64::try_from(*value).unwrap_or(i64::MAX);
                run.register(name, "A level, as `ebb stat` shows it", ConstGauge::new(level));
            }
            MetricKind::Counter => {
                run.register(name, "A count, as `ebb stat` shows it", ConstCounter::new(*value));
            }
        }
    }
    for (which, pressure) in [("some", pressure.some), ("full", pressure.full)] {
        let help = "Time that threads waited for memory";
        let lost = ConstCounter::new(pressure.total_us as f64 / 1e6);
        run.register_with_unit(format!("pressure_{which}"), help, Unit::Seconds, lost);
    }
    register_faults(run, faults);
    let mut text = String::new();
    encode(&mut text, &all)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_control::{FaultKind, Pressure, Row, Stages, Unit};

    fn metrics() -> Metrics {
        Metrics(vec![
            Metric::gauge("nr_free_pages", 64, Unit::Pages),
            Metric::gauge("ebb_file_bytes", 4096, Unit::Bytes),
            Metric::counter("pgfault", 7),
            Metric::counter("nr_written", 3),
        ])
    }

    #[test]
    fn figures_become_one_json_object() {
        let text = json(&metrics());
        assert_eq!(
            text,
            "{\"ebb_file_bytes\":4096,\"nr_free_pages\":64,\"nr_written\":3,\"pgfault\":7}\n"
        );
    }

    #[test]
    fn levels_are_gauges_and_growing_figures_are_counters() {
        let some = Pressure { total_us: 1_500_000, ..Pressure::default() };
        let pressure = MemoryPressure { some, ..MemoryPressure::default() };
        let kinds = vec![Row { kind: FaultKind::File, count: 9, stages: Stages::default() }];
        let faults = Faults { waited_ns: 2_500_000_000, kinds, ..Faults::default() };
        let text = openmetrics(7, &metrics(), &pressure, &faults).unwrap();
        assert_eq!(text, GOLDEN);
    }

    /// Text of [`openmetrics`], in which names and kinds stay as they are.
    const GOLDEN: &str = r#"# HELP ebb_nr_free_pages A level, as `ebb stat` shows it.
# TYPE ebb_nr_free_pages gauge
ebb_nr_free_pages{pid="7"} 64
# HELP ebb_file_bytes A level, as `ebb stat` shows it.
# TYPE ebb_file_bytes gauge
ebb_file_bytes{pid="7"} 4096
# HELP ebb_pgfault A count, as `ebb stat` shows it.
# TYPE ebb_pgfault counter
ebb_pgfault_total{pid="7"} 7
# HELP ebb_nr_written A count, as `ebb stat` shows it.
# TYPE ebb_nr_written counter
ebb_nr_written_total{pid="7"} 3
# HELP ebb_pressure_some_seconds Time that threads waited for memory.
# TYPE ebb_pressure_some_seconds counter
# UNIT ebb_pressure_some_seconds seconds
ebb_pressure_some_seconds_total{pid="7"} 1.5
# HELP ebb_pressure_full_seconds Time that threads waited for memory.
# TYPE ebb_pressure_full_seconds counter
# UNIT ebb_pressure_full_seconds seconds
ebb_pressure_full_seconds_total{pid="7"} 0.0
# HELP ebb_faults Page faults that were served, by kind.
# TYPE ebb_faults counter
ebb_faults_total{pid="7",kind="file"} 9
# HELP ebb_waited_seconds Time that all threads together waited for pages, from the fault until they ran again (an estimate).
# TYPE ebb_waited_seconds counter
# UNIT ebb_waited_seconds seconds
ebb_waited_seconds_total{pid="7"} 2.5
# EOF
"#;
}
