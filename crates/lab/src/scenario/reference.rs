//! Documents the keys of scenario files from the code that reads them: a page for readers, and a
//! JSON schema for editors.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::Scenario;

/// Returns the JSON schema of scenario files.
#[must_use]
pub fn schema() -> String {
    let schema = schemars::schema_for!(Scenario);
    serde_json::to_string_pretty(&schema).expect("strings and numbers") + "\n"
}

/// Returns a page of all keys in Markdown.
#[must_use]
pub fn reference() -> String {
    let root = schemars::schema_for!(Scenario).to_value();
    let mut text = "\
# Keys of a scenario

`ebb lab new FILE` writes a scenario to begin with. `ebb lab new --schema` prints a JSON schema, by which editors complete and
check (`#:schema FILE` in the first line, for taplo). A scenario needs each key without a default, unless the default is *none*.
`--set` changes any key for a run: `machine.frames=65536`, `memcg.NAME.limit=0.5`, `workload.KEY=VALUE` for all workloads or
`workload.NAME.KEY=VALUE` for one. docs/reference.md lists the switches that `set` takes.
"
    .to_owned();
    let page = Page { root: &root };
    page.table(&mut text, ("", ""), &root, false);
    text
}

/// Writer of the page.
struct Page<'a> {
    root: &'a Value,
}

/// Kind of value that a key takes.
struct Kind<'a> {
    /// Description for readers.
    text: String,
    /// Schema of the table if the value is a table with keys of its own; `true` for an array of
    /// such tables.
    table: Option<(&'a Value, bool)>,
}

impl<'a> Page<'a> {
    /// Returns the schema that `schema` refers to.
    fn resolved(&self, schema: &'a Value) -> &'a Value {
        let name = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        name.map_or(schema, |name| &self.root["$defs"][name])
    }

    /// Writes a table of keys, and then the tables below it.
    fn table(&self, text: &mut String, place: (&str, &str), schema: &'a Value, array: bool) {
        let (path, about) = place;
        let none = Map::new();
        let keys = schema["properties"].as_object().unwrap_or(&none);
        let title = match (path, array) {
            ("", _) => "At the top".to_owned(),
            (_, true) => format!("`[[{path}]]`"),
            (_, false) => format!("`[{path}]`"),
        };
        let about = if about.is_empty() { String::new() } else { format!("{about}\n\n") };
        let head = "| key | takes | default | |\n|---|---|---|---|\n";
        let _ = write!(text, "\n## {title}\n\n{about}{head}");
        let required = |key: &str| {
            schema["required"].as_array().is_some_and(|all| all.iter().any(|name| name == key))
        };
        let mut tables = Vec::new();
        for (key, value) in keys {
            let kind = self.kind(value);
            let default = match &value["default"] {
                _ if required(key) => String::new(),
                Value::Null | Value::Object(_) => "*none*".into(),
                Value::Array(all) if all.is_empty() => "*none*".into(),
                default => format!("`{default}`"),
            };
            let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let mut meaning = said(value);
            if let Some((table, array)) = kind.table {
                if meaning.is_empty() {
                    meaning = said(table);
                }
                tables.push((below, meaning.clone(), table, array));
            }
            let row = [format!("`{key}`"), kind.text, default, meaning];
            let row = row.map(|cell| cell.replace('\n', " ").replace('|', "\\|"));
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        for (path, about, table, array) in tables {
            self.table(text, (&path, &about), table, array);
        }
    }

    fn kind(&self, schema: &'a Value) -> Kind<'a> {
        if let Some(some) = schema["anyOf"].as_array() {
            // An `Option`.
            if let Some(value) = some.iter().find(|value| value["type"] != "null") {
                return self.kind(value);
            }
        }
        let schema = self.resolved(schema);
        let plain = |text: &str| Kind { text: text.to_owned(), table: None };
        if let Some(names) = schema["oneOf"].as_array() {
            let names: Vec<String> = names
                .iter()
                .map(|one| {
                    let name = one["const"].as_str().unwrap_or_default();
                    format!("`{name}` ({})", said(one).trim_end_matches('.'))
                })
                .collect();
            return plain(&names.join(", "));
        }
        if let Some(names) = schema["enum"].as_array() {
            let names: Vec<String> =
                names.iter().filter_map(|n| Some(format!("`{}`", n.as_str()?))).collect();
            return plain(&names.join(", "));
        }
        let is = |name: &str| match &schema["type"] {
            Value::Array(types) => types.iter().any(|one| one == name),
            one => one == name,
        };
        if is("object") {
            return Kind { text: "a table".into(), table: Some((schema, false)) };
        }
        if is("array") {
            let of = self.kind(&schema["items"]);
            return match (of.table, schema["prefixItems"].as_array()) {
                (Some((table, _)), _) => Kind { text: "tables".into(), table: Some((table, true)) },
                _ if schema["maxItems"] == 2 => plain("two numbers"),
                _ => plain(&format!("a list of {}", of.text)),
            };
        }
        let names = [
            ("boolean", "true or false"),
            ("integer", "a whole number"),
            ("number", "a number"),
            ("string", "text"),
        ];
        plain(names.iter().find(|(name, _)| is(name)).map_or("", |(_, text)| text))
    }
}

/// Returns the description of a schema, without links to code.
fn said(schema: &Value) -> String {
    let mut text = schema["description"].as_str().unwrap_or_default().to_owned();
    while let Some((before, rest)) = text.split_once("[`") {
        let Some((name, after)) = rest.split_once("`]") else { break };
        let after = after.strip_prefix('(').and_then(|a| a.split_once(')')).map_or(after, |a| a.1);
        text = format!("{before}`{name}`{after}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::BUILTIN;

    #[test]
    fn links_to_code_are_names() {
        let told = |text: &str| said(&serde_json::json!({ "description": text }));
        assert_eq!(told("as ([`rule`](crate::x::rule)) and [`A::b`]"), "as (`rule`) and `A::b`");
        assert_eq!(told("a list, [`odd"), "a list, [`odd");
    }

    /// Shows that the page has each key of every built-in scenario, and a meaning for each key.
    #[test]
    fn the_page_has_every_key() {
        let page = reference();
        for b in BUILTIN {
            let table: toml::Table = b.text.parse().unwrap();
            fn keys(table: &toml::Table, into: &mut Vec<String>) {
                for (key, value) in table {
                    into.push(key.clone());
                    match value {
                        toml::Value::Table(t) => keys(t, into),
                        toml::Value::Array(all) => {
                            all.iter().filter_map(|v| v.as_table()).for_each(|t| keys(t, into));
                        }
                        _ => {}
                    }
                }
            }
            let mut all = Vec::new();
            keys(&table, &mut all);
            for key in all {
                assert!(page.contains(&format!("| `{key}` |")), "{}: {key}", b.name);
            }
        }
        let rows = page.lines().filter(|line| line.starts_with("| `"));
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
            assert_eq!(cells.len(), 4, "{row}");
            assert!(
                cells.iter().enumerate().all(|(i, cell)| i == 2 || !cell.trim().is_empty()),
                "{row}"
            );
        }
    }
}
