//! Shrinks a finding: removes parts and makes numbers smaller, as long as the machine breaks the
//! rule.
//!
//! Invariants
//! * SHRINK-1: the result breaks the rule that the input breaks.
//! * SHRINK-2: each step leaves less: fewer tables, fewer keys, or a smaller number.

use toml::{Table, Value};

use super::text;

/// Largest number of tries, each of which runs a machine.
pub const TRIES_MAX: u32 = 600;

/// Returns a smaller scenario that still `fails`, and the number of steps that led to it.
pub fn shrink(scenario: &str, fails: &mut dyn FnMut(&str) -> bool) -> (String, u32) {
    let Ok(mut best) = scenario.parse::<Table>() else { return (scenario.to_owned(), 0) };
    let (mut at, mut taken, mut tries, mut since) = (0, 0, 0, 0);
    while tries < TRIES_MAX {
        let all = steps(&best);
        if all.is_empty() || since >= all.len() {
            break;
        }
        // After a success the search continues with the next step, and wraps round at the end.
        at %= all.len();
        tries += 1;
        if fails(&text::scenario(&all[at])) {
            best = all.into_iter().nth(at).expect("it was tried");
            (taken, since) = (taken + 1, 0);
        } else {
            (at, since) = (at + 1, since + 1);
        }
    }
    (text::scenario(&best), taken)
}

/// Optional keys of a machine, those with the largest effect first.
const OPTIONAL: [&str; 12] = [
    "live",
    "swap",
    "disk",
    "slab",
    "dirty",
    "gb",
    "nodes",
    "dma",
    "dma_free",
    "second_node",
    "reserved",
    "read_ahead",
];

/// Returns all scenarios that are one step smaller; some of them are invalid.
fn steps(from: &Table) -> Vec<Table> {
    let mut all = Vec::new();
    for key in ["workload", "memcg"] {
        for i in 0..length(from, key) {
            let mut less = from.clone();
            let Some(gone) = list(&mut less, key).map(|list| list.remove(i)) else { continue };
            if key == "memcg" {
                forget(&mut less, &gone);
            }
            all.push(less);
        }
    }
    for key in OPTIONAL {
        all.extend(without(from, &[Key::Name("machine"), Key::Name(key)]));
    }
    for device in ["swap", "disk"] {
        for key in ["read_us", "write_us", "write_mb_s", "pages"] {
            all.extend(without(from, &[Key::Name("machine"), Key::Name(device), Key::Name(key)]));
        }
    }
    for i in 0..length(from, "memcg") {
        for key in ["parent", "copies", "high", "low", "min", "reclaim", "reclaim_ms", "limit"] {
            all.extend(without(from, &[Key::Name("memcg"), Key::At(i), Key::Name(key)]));
        }
    }
    for i in 0..length(from, "workload") {
        all.extend(without(from, &[Key::Name("workload"), Key::At(i), Key::Name("background")]));
    }
    for arm in 0..length(from, "arm") {
        let place = [Key::Name("arm"), Key::At(arm), Key::Name("set")];
        let switches = get(from, &place).and_then(Value::as_array).map_or(0, Vec::len);
        for i in 0..switches {
            let mut less = from.clone();
            let set = get_mut(&mut less, &place).and_then(Value::as_array_mut);
            set.expect("it was counted").remove(i);
            all.push(less);
        }
    }
    numbers(from, &mut all);
    all
}

/// Moves the workloads and memcgs of a removed memcg to the top.
fn forget(scenario: &mut Table, memcg: &Value) {
    let name = memcg.get("name");
    for (list_of, key) in [("workload", "memcg"), ("memcg", "parent")] {
        for of in list(scenario, list_of).into_iter().flatten().filter_map(Value::as_table_mut) {
            if of.get(key) == name {
                of.remove(key);
            }
        }
    }
}

/// Adds a scenario for each number of the machine, the memcgs and the generators, with this number
/// halved.
fn numbers(from: &Table, all: &mut Vec<Table>) {
    let mut places = Vec::new();
    for section in ["machine", "memcg", "workload", "measure"] {
        if let Some(value) = from.get(section) {
            find_numbers(value, &mut vec![Step::Name(section.to_owned())], &mut places);
        }
    }
    for place in places {
        let mut less = from.clone();
        let mut at = less.get_mut(place[0].name());
        for step in &place[1..] {
            at = at.and_then(|value| match step {
                Step::Name(name) => value.get_mut(name),
                Step::At(i) => value.get_mut(*i),
            });
        }
        if at.is_some_and(halve) {
            all.push(less);
        }
    }
}

#[derive(Clone)]
enum Step {
    Name(String),
    At(usize),
}

impl Step {
    fn name(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::At(_) => "",
        }
    }
}

/// Finds the paths of all numbers.
fn find_numbers(value: &Value, path: &mut Vec<Step>, into: &mut Vec<Vec<Step>>) {
    match value {
        // A comparison needs at least two seeds.
        Value::Integer(_) if path.last().is_some_and(|step| step.name() == "seeds") => {}
        Value::Integer(_) | Value::Float(_) => into.push(path.clone()),
        Value::Table(table) => {
            for (key, value) in table {
                path.push(Step::Name(key.clone()));
                find_numbers(value, path, into);
                path.pop();
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                path.push(Step::At(i));
                find_numbers(value, path, into);
                path.pop();
            }
        }
        _ => {}
    }
}

/// Halves a number. Returns false if the number cannot be smaller.
fn halve(value: &mut Value) -> bool {
    match value {
        Value::Integer(n) if *n > 4096 => *n = (*n / 2).max(4096),
        Value::Integer(n) if *n > 1 => *n /= 2,
        Value::Float(x) if *x > 0.01 => *x = (*x * 50.0).floor().max(1.0) / 100.0,
        _ => return false,
    }
    true
}

#[derive(Clone, Copy)]
enum Key<'a> {
    Name(&'a str),
    At(usize),
}

fn get<'a>(scenario: &'a Table, path: &[Key<'_>]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    let Key::Name(first) = first else { return None };
    rest.iter().try_fold(scenario.get(*first)?, |value, key| match key {
        Key::Name(name) => value.get(name),
        Key::At(i) => value.get(i),
    })
}

fn get_mut<'a>(scenario: &'a mut Table, path: &[Key<'_>]) -> Option<&'a mut Value> {
    let (first, rest) = path.split_first()?;
    let Key::Name(first) = first else { return None };
    rest.iter().try_fold(scenario.get_mut(*first)?, |value, key| match key {
        Key::Name(name) => value.get_mut(name),
        Key::At(i) => value.get_mut(i),
    })
}

/// Returns the scenario without a key, if it has this key.
fn without(from: &Table, path: &[Key<'_>]) -> Option<Table> {
    get(from, path)?;
    let (last, above) = path.split_last()?;
    let Key::Name(last) = last else { return None };
    let mut less = from.clone();
    get_mut(&mut less, above)?.as_table_mut()?.remove(*last);
    Some(less)
}

fn length(scenario: &Table, key: &str) -> usize {
    scenario.get(key).and_then(Value::as_array).map_or(0, Vec::len)
}

fn list<'a>(scenario: &'a mut Table, key: &str) -> Option<&'a mut Vec<Value>> {
    scenario.get_mut(key).and_then(Value::as_array_mut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::{draw, machine};

    /// Stands for a broken rule: at least two workloads, and swap.
    fn broken(text: &str) -> bool {
        machine(text).is_ok_and(|s| s.workload.len() > 1 && s.machine.swap.is_some())
    }

    #[test]
    fn a_shrunk_scenario_breaks_the_rule_and_cannot_be_shrunk_further() {
        let text = (0..).map(draw::draw).find(|text| broken(text)).unwrap();
        let (small, steps) = shrink(&text, &mut |text| broken(text));
        let scenario = machine(&small).unwrap();
        assert!(broken(&small) && steps > 5, "{steps}: {small}");
        assert_eq!((scenario.workload.len(), scenario.memcg.len()), (2, 0), "{small}");
        assert_eq!((scenario.machine.frames, scenario.machine.cpus), (4096, 1), "{small}");
        assert!(scenario.machine.disk.is_none() && scenario.switches.is_empty(), "{small}");
        // A second shrink finds nothing more to do.
        assert_eq!(shrink(&small, &mut |text| broken(text)), (small.clone(), 0));
    }

    #[test]
    fn no_part_of_a_scenario_names_a_removed_memcg() {
        let text = "[[memcg]]\nname = \"a\"\n[[memcg]]\nname = \"b\"\nparent = \"a\"\n\
                    [[workload]]\nname = \"w\"\nmemcg = \"a\"\n";
        let less = &steps(&text.parse().unwrap())[1];
        let names: Vec<_> = text::tables(less, "memcg").map(|m| m["name"].as_str()).collect();
        assert_eq!(names, [Some("b")]);
        assert!(!text::scenario(less).contains("\"a\""), "{}", text::scenario(less));
    }
}
