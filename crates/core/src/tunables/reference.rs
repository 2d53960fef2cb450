//! Writes the reference of the switches: `docs/switches.md`.

use super::{MEANINGS, PRESETS, Row, Tunables};

/// Groups of switches in the order of the page: first word of the key, title and description.
const GROUPS: [(&str, &str, &str); 7] = [
    ("", "Both kinds of lists", "Switches of both kinds of lists."),
    ("gen", "Generations", "The multi-gen LRU: `lru=gen`."),
    (
        "classic",
        "Active and inactive lists",
        "The classic LRU: `lru=classic`, and what older kernels did.",
    ),
    (
        "reclaim",
        "Reclaim",
        "How much is reclaimed at a time, which tasks wait, and when reclaim gives up.",
    ),
    ("kswapd", "kswapd", "When kswapd sleeps, and how it flags the state of a node."),
    ("swap", "Swap", "Where swapped pages are stored, and which pages are read with one."),
    ("file", "Files", "Pages of files, in the laboratory."),
];

fn group(key: &str) -> &str {
    // `lru` and `lru.add_batch` belong to both kinds of lists.
    key.split_once('.').map_or("", |(group, _)| group).trim_start_matches("lru")
}

fn line(row: &Row, presets: &[(&str, Vec<Row>)]) -> String {
    let mut text = format!("* **`{}={}`** {}", row.key, row.value, row.meaning);
    if row.meanings.is_empty() && row.expected != "a number" {
        text += &format!(" (`{}`)", row.expected.replace('|', "`, `"));
    }
    if Tunables::LAB_ONLY.contains(&row.key) {
        text += " (Only in `ebb lab`.)";
    }
    for (value, meaning) in row.meanings {
        text += &format!("\n  * `{value}`: {}", meaning.trim());
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
        let shown =
            others.iter().map(|(value, names)| format!("`{value}` in {}", names.join(", ")));
        text += &format!("\n  * Presets: {}.", shown.collect::<Vec<_>>().join("; "));
    }
    text + "\n"
}

/// Returns all switches in Markdown: groups, defaults, values with their help texts, and the
/// differences between the presets.
#[must_use]
pub fn reference() -> String {
    let preset =
        |name: &'static str| (name, Tunables::preset(name).map_or(Vec::new(), |tun| tun.rows()));
    let presets = PRESETS.map(preset);
    let mut text = String::from(
        "# Switches of the engine\n\n\
         `--set KEY=VALUE` of `ebb run` and `ebb lab` sets one switch, `--set preset=NAME` several.\n\
         So does a file (docs/ebb.toml). The values here are the defaults of `ebb lab` and of the\n\
         library. `ebb run` begins with the preset `standby`, and refuses switches that only `ebb lab`\n\
         reads. `ebb lab policies --reference` writes this page.\n\n\
         ## Presets\n\n",
    );
    for (name, meaning) in PRESETS.iter().zip(MEANINGS) {
        text += &format!("* `{name}`: {meaning}\n");
    }
    let rows = Tunables::default().rows();
    for (key, title, about) in GROUPS {
        text += &format!("\n## {title}\n\n{about}\n\n");
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
            assert_eq!(text.matches(&format!("* **`{key}=")).count(), 1, "{key}");
        }
        let looks = "* **`gen.loop=k618`** The eviction loop.\n  \
                     * `k618`: Computes a scan budget for each batch, returns after aging.\n  \
                     * `k72`: One scan budget a call, in batches of 64, goes on after aging.\n  \
                     * Presets: `k72` in k72.\n";
        assert!(text.contains(looks), "{text}");
    }
}
