//! Results as one JSON document, or as CSV.

use serde_json::{Map, Value, json};

use super::runner::{Case, Results};
use super::stats::Estimate;
use super::verdict::published_counts;
use crate::report::field;

/// The version of the document.
pub const SCHEMA: u32 = 1;

/// The document.
#[must_use]
pub fn document(results: &[Results]) -> String {
    let mut scenarios = Vec::new();
    let mut missing = Vec::new();
    for r in results {
        scenarios.extend(r.cases.iter().map(|c| case(r, c)));
        for m in &r.scenario.missing {
            missing.push(json!({ "scenario": r.scenario.name, "name": m.name, "why": m.why }));
        }
    }
    let document = json!({ "schema": SCHEMA, "scenarios": scenarios, "missing": missing });
    format!("{document:#}\n")
}

fn case(r: &Results, c: &Case) -> Value {
    let arms: Vec<Value> = c
        .arms
        .iter()
        .map(|arm| {
            let mut metrics = Map::new();
            for (name, values) in &arm.values {
                let e = Estimate::of(values);
                metrics.insert(name.clone(), json!({ "mean": e.mean, "ci95": e.ci95 }));
            }
            let psi = arm.pressure.iter().map(|r| (r.name.clone(), json!(r.text)));
            let psi: Map<String, Value> = psi.collect();
            json!({ "name": arm.name, "metrics": metrics, "psi": psi })
        })
        .collect();
    let published = c.published.as_ref().map(|p| {
        json!({
            "baseline": p.baseline,
            "patched": p.patched,
            "effect": p.change(),
            "interval": p.interval,
            "significant": published_counts(p),
            "again": p.again.map(|run| json!({
                "baseline": run.baseline,
                "patched": run.patched,
                "effect": run.change(),
            })),
            "source": r.scenario.source,
        })
    });
    json!({
        "name": c.name,
        "scenario": r.scenario.name,
        "metric": c.metric,
        "seeds": r.seeds,
        "arms": arms,
        "published": published,
        "effect": { "mean": c.effect.mean, "ci95": c.effect.ci95 },
        "verdict": c.verdict.map(super::Verdict::name),
    })
}

/// One line for each case, arm and metric.
#[must_use]
pub fn csv(results: &[Results]) -> String {
    let mut text = String::from("scenario,arm,metric,seeds,mean,ci95\n");
    for r in results {
        for c in &r.cases {
            for arm in &c.arms {
                for (metric, values) in &arm.values {
                    let e = Estimate::of(values);
                    text += &format!(
                        "{},{},{metric},{},{},{}\n",
                        field(&c.name),
                        field(&arm.name),
                        values.len(),
                        e.mean,
                        e.ci95
                    );
                }
            }
        }
    }
    text
}
