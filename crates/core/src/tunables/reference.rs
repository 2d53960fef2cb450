//! Writes the part of `docs/reference.md` about switches.

use super::{MEANINGS, PRESETS, Row, Tunables};

/// Groups of switches in the order of the page: first word of the key, and title.
const GROUPS: [(&str, &str); 7] = [
    ("", "Both kinds of lists"),
    ("gen", "Generations (`lru=gen`)"),
    ("classic", "Active and inactive lists (`lru=classic`)"),
    ("reclaim", "Reclaim"),
    ("kswapd", "kswapd"),
    ("swap", "Swap"),
    ("file", "Files"),
];

/// Presets that stand for kernels.
const KERNELS: [&str; 4] = ["k612", "k618", "k72", "classic"];

fn group(key: &str) -> &str {
    // `lru` and `lru.add_batch` belong to both kinds of lists.
    key.split_once('.').map_or("", |(group, _)| group).trim_start_matches("lru")
}

fn line(row: &Row, presets: &[(&str, Vec<Row>)]) -> String {
    let mut text = format!("* `{}={}`: {}", row.key, row.value, row.meaning);
    if row.meanings.is_empty() && !["a number", "on|off"].contains(&row.expected.as_str()) {
        text += &format!(" (`{}`)", row.expected);
    }
    let mut others: Vec<(&str, Vec<&str>)> = Vec::new();
    for (preset, rows) in presets {
        let value = rows.iter().find(|other| other.key == row.key).map_or("", |other| &other.value);
        if value != row.value {
            match others.iter_mut().find(|(other, _)| *other == value) {
                Some((_, names)) => names.push(preset),
                None => others.push((value, vec![preset])),
            }
        }
    }
    if !others.is_empty() {
        let shown = others.iter().map(|(value, names)| format!("`{value}` in {}", in_words(names)));
        text += &format!(" [{}]", shown.collect::<Vec<_>>().join("; "));
    }
    if Tunables::LAB_ONLY.contains(&row.key) {
        text += " (lab)";
    }
    for (value, meaning) in row.meanings {
        text += &format!("\n  * `{value}`: {}", meaning.trim());
    }
    text + "\n"
}

/// Returns the names of presets, with one word for those of all kernels.
fn in_words(names: &[&str]) -> String {
    let others: Vec<&str> = names.iter().filter(|name| !KERNELS.contains(name)).copied().collect();
    if names.len() < others.len() + KERNELS.len() {
        return names.join(", ");
    }
    [others, vec!["kernels"]].concat().join(", ")
}

/// Returns all switches in Markdown: groups, defaults, values with their help texts, and the
/// differences between the presets.
#[must_use]
pub fn reference() -> String {
    let preset =
        |name: &'static str| (name, Tunables::preset(name).map_or(Vec::new(), |tun| tun.rows()));
    let presets = PRESETS.map(preset);
    let mut text = String::from(
        "`--set KEY=VALUE` of `ebb run` and `ebb lab` sets one switch, `--set preset=NAME` several. So does\n\
         a file (docs/ebb.toml). The values here are the defaults of `ebb lab` and of the library.\n\
         `ebb run` begins with the preset `standby`, and refuses switches marked (lab). Brackets have the\n\
         values of presets; *kernels* are the last four. A switch with `on` or `off` takes both.\n\n",
    );
    for (name, meaning) in PRESETS.iter().zip(MEANINGS) {
        text += &format!("* `{name}`: {meaning}\n");
    }
    let rows = Tunables::default().rows();
    for (key, title) in GROUPS {
        text += &format!("\n### {title}\n\n");
        rows.iter()
            .filter(|row| group(row.key) == key)
            .for_each(|row| text += &line(row, &presets));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_has_every_switch_once() {
        let text = reference();
        for key in Tunables::KEYS {
            assert_eq!(text.matches(&format!("* `{key}=")).count(), 1, "{key}");
        }
        let looks = "* `gen.loop=k618`: The eviction loop. [`k72` in k72]\n  \
                     * `k618`: Computes a scan budget for each batch, returns after aging.\n  \
                     * `k72`: One scan budget a call, in batches of 64, goes on after aging.\n";
        assert!(text.contains(looks), "{text}");
    }
}
