//! Results as one JSON document, or as CSV.

use serde_json::{Map, Value, json};

use super::rule::{Claim, Class, RULE_VERSION, Vote, claim};
use super::runner::{Case, Results};
use super::score::{COMMIT, Score, Source, Tally, judged};
use super::stats::Estimate;
use super::text::why;
use crate::report::field;
use crate::scenario::Topic;

/// Version of the JSON document.
pub const SCHEMA: u32 = 2;

/// Returns the JSON document.
#[must_use]
pub fn document(results: &[Results]) -> String {
    let mut scenarios = Vec::new();
    let mut missing = Vec::new();
    let judged = judged(results);
    let vote = |c: &Case| judged.iter().find(|(_, of, _)| std::ptr::eq(*of, c)).map(|v| &v.2);
    for r in results {
        scenarios.extend(r.cases.iter().map(|c| case(r, c, vote(c))));
        for m in &r.scenario.missing {
            missing.push(json!({ "scenario": r.scenario.name, "name": m.name, "why": m.why }));
        }
    }
    let document = json!({
        "schema": SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "commit": COMMIT.get(),
        "score": score(&Score::of(results)),
        "scenarios": scenarios,
        "missing": missing,
    });
    format!("{document:#}\n")
}

fn tally(t: &Tally) -> Value {
    let classes = Class::ALL.iter().map(|c| (c.name().replace(' ', "_"), json!(t.of(*c))));
    let mut all: Map<String, Value> = classes.collect();
    all.insert("votes".into(), json!(t.all()));
    all.into()
}

fn score(s: &Score) -> Value {
    let source = |s: &Source, name: &str| json!({ "source": name, "effects": tally(&s.effects), "nulls": tally(&s.nulls) });
    let sources: Vec<Value> = s.sources.iter().map(|of| source(of, of.name())).collect();
    let [reproduced, direction, not] = s.rule_1;
    json!({
        "rule": RULE_VERSION,
        "sources": sources,
        "all": source(&s.sum(None), "all"),
        "without_vote": {
            "calibration": tally(&s.calibration),
            "no_figure": tally(&s.no_figure),
            "shared": s.shared,
        },
        "other_sizes": { "same": s.sizes.0, "looked_at": s.sizes.1 },
        "rule_1": { "reproduced": reproduced, "direction": direction, "not": not },
    })
}

fn vote_text(vote: &Vote) -> Value {
    match vote {
        Vote::Counts => json!("counts"),
        Vote::With(other) => json!({ "with": other }),
        Vote::Calibration => json!("calibration"),
        Vote::NoFigure => json!("no_figure"),
    }
}

fn case(r: &Results, c: &Case, vote: Option<&Vote>) -> Value {
    let arms: Vec<Value> = c
        .arms
        .iter()
        .map(|arm| {
            let mut metrics = Map::new();
            for (name, values) in &arm.values {
                let e = Estimate::of(values);
                metrics.insert(
                    name.clone(),
                    json!({ "mean": e.mean, "ci95": e.ci95, "values": values }),
                );
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
            "significant": p.significant,
            "spread": p.spread,
            "calibration": p.calibration,
            "figure": p.figure,
            "claim": match claim(p) {
                Claim::Effect(size) => json!({ "effect": size }),
                Claim::Null(band) => json!({ "none_within": band }),
            },
            "again": p.again.map(|run| json!({
                "baseline": run.baseline,
                "patched": run.patched,
                "effect": run.change(),
            })),
            "source": r.scenario.source,
        })
    });
    let sizes: Vec<Value> = c
        .sizes
        .iter()
        .map(|at| {
            let effect = json!({ "mean": at.effect.mean, "ci95": at.effect.ci95 });
            json!({ "size": at.size, "effect": effect, "verdict": at.class.map(Class::name) })
        })
        .collect();
    let seeds: Vec<u64> = (1..=u64::from(r.seeds)).map(|n| r.first_seed + n).collect();
    json!({
        "name": c.name,
        "scenario": r.scenario.name,
        "topic": r.scenario.topic.map(Topic::name),
        "metric": c.metric,
        "quantity": c.quantity,
        "seeds": seeds,
        "arms": arms,
        "published": published,
        "effect": { "mean": c.effect.mean, "ci95": c.effect.ci95 },
        "exercised": c.exercised,
        "verdict": c.class.map(Class::name),
        "vote": vote.map(vote_text),
        "why": vote.map(|vote| why(c, vote)),
        "verdict_rule_1": c.verdict.map(super::Verdict::name),
        "sizes": sizes,
        "survives": c.survives(),
    })
}

/// Returns CSV with one line for each case, arm and metric.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::rule::classify;
    use super::super::runner::{Arm, AtSize};
    use super::super::verdict::judge;
    use super::*;
    use crate::scenario::{Published, Scenario, find};

    fn arm(name: &str, values: [f64; 3]) -> Arm {
        let values = BTreeMap::from([("ops_per_s".to_owned(), values.to_vec())]);
        Arm { name: name.into(), values, samples: vec![], pressure: vec![] }
    }

    fn invented(name: &str, published: Published, after: [f64; 3], size: Option<f64>) -> Case {
        let before = [100.0, 101.0, 99.0];
        let arms = vec![arm("classic", before), arm("mglru", after)];
        let effect = Estimate::of_change(&before, &after);
        let class = Some(classify(&effect, &published, true));
        let verdict = Some(judge(&effect, &published));
        let at = |size| AtSize { size, effect: Estimate { mean: 1.0, ci95: 0.5 }, class };
        Case {
            name: name.into(),
            metric: "ops_per_s".into(),
            higher_is_better: true,
            published: Some(published),
            arms,
            effect,
            curves: vec![],
            quantity: name.into(),
            exercised: true,
            ran_in_first: vec![true],
            class,
            verdict,
            sizes: size.map(at).into_iter().collect(),
        }
    }

    /// Shows that the whole document, of invented figures, is unchanged. It changes only with the
    /// schema's version.
    #[test]
    fn the_json_document_is_unchanged() {
        let text = find("redis").unwrap().text;
        let mut scenario = Scenario::parse("redis", text).unwrap();
        scenario.missing.truncate(1);
        let effect = |percent| Published { effect: Some(percent), ..Published::default() };
        let null = Published { significant: false, spread: Some(2.0), ..effect(-1.5) };
        let cases = vec![
            invented("redis/random", effect(12.0), [112.0, 113.0, 111.0], Some(0.5)),
            invented("redis/none", null, [100.0, 101.0, 99.5], None),
            invented(
                "redis/set",
                Published { calibration: true, ..effect(5.0) },
                [105.0, 106.0, 104.0],
                None,
            ),
        ];
        let results = [Results { scenario, seeds: 3, first_seed: 0, cases }];
        let mut made: Value = serde_json::from_str(&document(&results)).unwrap();
        assert_eq!(made["version"], env!("CARGO_PKG_VERSION"));
        assert!(made["commit"].is_null());
        for key in ["version", "commit"] {
            made[key] = json!("-");
        }
        let golden = include_str!("../../tests/golden/judged.json");
        let golden: Value = serde_json::from_str(golden).unwrap();
        assert_eq!(made, golden, "{made:#}");
    }
}
