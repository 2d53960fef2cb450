//! Writes a scenario as a file, in the usual order of keys.

use std::fmt::Write;

use toml::{Table, Value};

/// Returns the text. Keys that a scenario does not have come last.
#[must_use]
pub fn scenario(scenario: &Table) -> String {
    let mut text = String::new();
    for key in ["name", "title", "source", "topic", "set"] {
        if let Some(value) = scenario.get(key) {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    for key in ["machine", "costs"] {
        if let Some(table) = scenario.get(key).and_then(Value::as_table) {
            section(&mut text, &format!("[{key}]"), table);
        }
    }
    for of in tables(scenario, "memcg") {
        section(&mut text, "[[memcg]]", of);
    }
    for of in tables(scenario, "workload") {
        let (generators, own): (Vec<_>, Vec<_>) = of.iter().partition(|(_, v)| v.is_table());
        let own: Table = own.into_iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        section(&mut text, "[[workload]]", &own);
        for (kind, generator) in generators {
            let generator = generator.as_table().expect("so it was parted");
            section(&mut text, &format!("[workload.{kind}]"), generator);
        }
    }
    if let Some(table) = scenario.get("measure").and_then(Value::as_table) {
        section(&mut text, "[measure]", table);
    }
    for of in tables(scenario, "arm") {
        section(&mut text, "[[arm]]", of);
    }
    text
}

/// Returns the tables of a list; none if there is no such list.
pub(super) fn tables<'a>(scenario: &'a Table, key: &str) -> impl Iterator<Item = &'a Table> {
    let list = scenario.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_table)
}

fn section(text: &mut String, head: &str, table: &Table) {
    // A table that belongs to the table above stands directly below it.
    let gap = if head.starts_with("[workload.") { "" } else { "\n" };
    let _ = writeln!(text, "{gap}{head}");
    let mut keys: Vec<&String> = table.keys().collect();
    keys.sort_by_key(|key| (key.as_str() != "name", *key));
    for key in keys {
        let _ = writeln!(text, "{key} = {}", table[key]);
    }
}
