//! Formats the figures of a run for other programs: JSON, and OpenMetrics 1.0 as Prometheus reads
//! it.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::borrow::Cow;

/// Returns the figures of a run from lines of the form `NAME VALUE`.
fn figures(stat: &str) -> impl Iterator<Item = (&str, u64)> {
    let pairs = stat.lines().filter_map(|line| line.split_once(' '));
    pairs.filter_map(|(name, value)| Some((name, value.parse().ok()?)))
}

/// Returns whether a figure is a level. All other figures only grow.
fn is_level(name: &str) -> bool {
    let counted = ["nr_vmscan_write", "nr_vmscan_immediate_reclaim", "nr_dirtied", "nr_written"];
    let level = name.starts_with("nr_") || name.starts_with("ebb_nr_");
    let tier = ["_pages", "_bytes"].iter().any(|end| name.ends_with(end));
    (level || tier) && !counted.contains(&name)
}

/// Returns the figures as one JSON object.
pub fn json(stat: &str) -> String {
    let all: serde_json::Map<String, serde_json::Value> =
        figures(stat).map(|(name, value)| (name.to_owned(), value.into())).collect();
    serde_json::to_string(&all).expect("names and numbers") + "\n"
}

/// Registers the faults by kind and the time that threads waited for them, from `ebb stat
/// --faults`.
fn register_faults(run: &mut Registry, faults: &str) {
    let faults: serde_json::Value = serde_json::from_str(faults).unwrap_or_default();
    let by_kind = Family::<[(&str, String); 1], Counter>::default();
    for row in faults["kinds"].as_array().into_iter().flatten() {
        let (Some(kind), Some(count)) = (row["kind"].as_str(), row["count"].as_u64()) else {
            continue;
        };
        by_kind.get_or_create(&[("kind", kind.to_owned())]).inc_by(count);
    }
    run.register("faults", "Page faults that were served, by kind", by_kind);
    let waited_ns = faults["waited_ns"].as_u64().unwrap_or(0);
    let help = "Time that all threads together waited for pages, from the fault until they ran again (an estimate)";
    let waited = ConstCounter::new(waited_ns as f64 / 1e9);
    run.register_with_unit("waited", help, Unit::Seconds, waited);
}

/// Returns the OpenMetrics text. Each name begins with `ebb_`, and each figure has the run's number
/// as a label.
pub fn openmetrics(
    pid: u32,
    stat: &str,
    pressure: &str,
    faults: &str,
) -> Result<String, std::fmt::Error> {
    let mut all =
        Registry::with_labels(std::iter::once((Cow::Borrowed("pid"), Cow::Owned(pid.to_string()))));
    let run = all.sub_registry_with_prefix("ebb");
    for (name, value) in figures(stat) {
        let name = name.strip_prefix("ebb_").unwrap_or(name);
        if is_level(name) {
            let level = i64::try_from(value).unwrap_or(i64::MAX);
            run.register(name, "A level, as `ebb stat` shows it", ConstGauge::new(level));
        } else {
            run.register(name, "A count, as `ebb stat` shows it", ConstCounter::new(value));
        }
    }
    for line in pressure.lines() {
        let total = line.split_once(' ').zip(line.rsplit_once("total="));
        if let Some(((which, _), (_, us))) = total
            && let Ok(us) = us.parse::<f64>()
        {
            let help = "Time that threads waited for memory";
            let lost = ConstCounter::new(us / 1e6);
            run.register_with_unit(format!("pressure_{which}"), help, Unit::Seconds, lost);
        }
    }
    register_faults(run, faults);
    let mut text = String::new();
    encode(&mut text, &all)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{json, openmetrics};

    const STAT: &str = "nr_free_pages 64\nebb_file_bytes 4096\npgfault 7\nnr_written 3\n";

    #[test]
    fn figures_become_one_json_object() {
        let text = json(STAT);
        assert_eq!(
            text,
            "{\"ebb_file_bytes\":4096,\"nr_free_pages\":64,\"nr_written\":3,\"pgfault\":7}\n"
        );
    }

    #[test]
    fn levels_are_gauges_and_growing_figures_are_counters() {
        let pressure = "some avg10=0.00 total=1500000\nfull avg10=0.00 total=0\n";
        let faults = r#"{"waited_ns":2500000000,"kinds":[{"kind":"file","count":9,"stages":{}}]}"#;
        let text = openmetrics(7, STAT, pressure, faults).unwrap();
        for line in [
            "# TYPE ebb_nr_free_pages gauge\nebb_nr_free_pages{pid=\"7\"} 64\n",
            "# TYPE ebb_file_bytes gauge\nebb_file_bytes{pid=\"7\"} 4096\n",
            "# TYPE ebb_pgfault counter\nebb_pgfault_total{pid=\"7\"} 7\n",
            "# TYPE ebb_nr_written counter\nebb_nr_written_total{pid=\"7\"} 3\n",
            "# UNIT ebb_pressure_some_seconds seconds\nebb_pressure_some_seconds_total{pid=\"7\"} 1.5\n",
            "ebb_faults_total{pid=\"7\",kind=\"file\"} 9\n",
            "ebb_waited_seconds_total{pid=\"7\"} 2.5\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
