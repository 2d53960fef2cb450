//! Settings: `KEY=VALUE` for a scenario's own keys by path, and for the engine's switches.
//!
//! `machine.`, `costs.`, `measure.`, `memcg.NAME.` and `workload.` name keys of the file;
//! `workload.KEY` is a parameter of every workload's generator, `workload.NAME.KEY` of one. All
//! other keys are switches of the engine, or `preset`.

use ebb_mm::tunables::Tunables;
use toml::{Table, Value};

use super::error::explain;
use super::{Scenario, ScenarioError, SettingFault};

/// Returns the scenario of `text` with `pairs` applied.
pub(super) fn apply(text: &str, pairs: &[String]) -> Result<Scenario, ScenarioError> {
    let table = table(text)?;
    let (scenario, switches) = set(&table, pairs)?;
    let mut scenario = match scenario {
        Some(scenario) => scenario,
        None => read(&table).map_err(|e| fail("", toml_fault(&e)))?,
    };
    scenario.switches = switches;
    Ok(scenario)
}

/// Parses a file as a TOML table.
pub(super) fn table(text: &str) -> Result<Table, ScenarioError> {
    text.parse().map_err(|e: toml::de::Error| fail("", SettingFault::Toml(e.to_string())))
}

/// Checks that `pairs` can be applied to a file.
pub(super) fn try_out(table: &Table, pairs: &[String]) -> Result<(), ScenarioError> {
    set(table, pairs).map(drop)
}

fn fail(pair: &str, what: SettingFault) -> ScenarioError {
    ScenarioError::Setting { pair: pair.into(), what }
}

/// Returns the scenario, if `pairs` contains keys of the file, and the switches of the engine.
fn set(table: &Table, pairs: &[String]) -> Result<(Option<Scenario>, Vec<String>), ScenarioError> {
    let (mut own, mut last, mut switches) = (None, "", Vec::new());
    // All keys are read at once. Of several wrong settings, the first is reported.
    let wrong = |count: usize, pair: &str, what: SettingFault| {
        let before = (1..count).find_map(|count| set(table, &pairs[..count]).err());
        before.unwrap_or_else(|| fail(pair, what))
    };
    for (before, pair) in pairs.iter().enumerate() {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(wrong(before + 1, pair, SettingFault::NoValue));
        };
        let (key, value) = (key.trim(), value.trim());
        let root = key.split('.').next().unwrap_or_default();
        if ["machine", "costs", "measure", "memcg", "workload"].contains(&root) {
            let own = own.get_or_insert_with(|| table.clone());
            put(own, key, parse(value)).map_err(|what| wrong(before + 1, pair, what))?;
            last = pair;
        } else {
            // Tries the switch on scratch settings, to get the error message.
            let tried = Tunables::default().set(pair);
            tried.map_err(|e| wrong(before + 1, pair, e.into()))?;
            switches.push(pair.clone());
        }
    }
    let read = |table: Table| read(&table).map_err(|e| wrong(pairs.len(), last, toml_fault(&e)));
    Ok((own.map(read).transpose()?, switches))
}

fn toml_fault(error: &toml::de::Error) -> SettingFault {
    SettingFault::Toml(explain(error.message()))
}

/// Reads a scenario from a table by way of text. A second reader for tables would be a sixth of the
/// code of this crate.
fn read(table: &Table) -> Result<Scenario, toml::de::Error> {
    toml::from_str(&table.to_string())
}

/// Parses a value as TOML does; otherwise returns the text itself.
fn parse(text: &str) -> Value {
    let whole: Result<Table, _> = format!("x = {text}").parse();
    match whole.ok().and_then(|mut t| t.remove("x")) {
        Some(value) => value,
        None => Value::String(text.to_owned()),
    }
}

fn put(table: &mut Table, key: &str, value: Value) -> Result<(), SettingFault> {
    let path: Vec<&str> = key.split('.').collect();
    match path.as_slice() {
        ["workload", name] => each_workload(table, None, name, &value),
        ["workload", workload, name] => each_workload(table, Some(workload), name, &value),
        ["memcg", memcg, name] => {
            let list = table.get_mut("memcg").and_then(Value::as_array_mut);
            let found = list.into_iter().flatten().filter_map(Value::as_table_mut);
            let mut found = found.filter(|t| t.get("name").and_then(Value::as_str) == Some(memcg));
            let t = found.next().ok_or_else(|| SettingFault::NoMemcg((*memcg).into()))?;
            t.insert((*name).to_owned(), value);
            Ok(())
        }
        [root, middle @ .., last] if !middle.is_empty() || *root != "memcg" => {
            let mut at = table;
            for part in std::iter::once(root).chain(middle) {
                let next = at.entry((*part).to_owned()).or_insert_with(|| Table::new().into());
                at = next.as_table_mut().ok_or_else(|| SettingFault::NoTable((*part).into()))?;
            }
            at.insert((*last).to_owned(), value);
            Ok(())
        }
        _ => Err(SettingFault::MemcgKey),
    }
}

/// Sets a parameter of the generator of one workload, or of all workloads.
fn each_workload(
    table: &mut Table,
    only: Option<&str>,
    name: &str,
    value: &Value,
) -> Result<(), SettingFault> {
    let list = table.get_mut("workload").and_then(Value::as_array_mut);
    let mut hit = false;
    for workload in list.into_iter().flatten().filter_map(Value::as_table_mut) {
        let its_name = workload.get("name").and_then(Value::as_str);
        if only.is_some() && its_name != only {
            continue;
        }
        for (_, generator) in workload.iter_mut() {
            if let Some(generator) = generator.as_table_mut() {
                generator.insert(name.to_owned(), value.clone());
                hit = true;
            }
        }
    }
    match only {
        _ if hit => Ok(()),
        Some(name) => Err(SettingFault::NoWorkload(name.into())),
        None => Err(SettingFault::NoWorkloads),
    }
}
