//! The switches as a page to read: `docs/switches.md`.

use super::{MEANINGS, PRESETS, Row, Tunables};

/// What the first words of keys stand for, in the order of the page.
const GROUPS: [(&str, &str, &str); 7] = [
    ("", "All of it", "What both kinds of lists go by."),
    ("gen", "Generations", "The multi-gen LRU: `lru=gen`."),
    (
        "classic",
        "Active and inactive lists",
        "The classic LRU: `lru=classic`, and what older kernels did.",
    ),
    ("reclaim", "Reclaim", "How much is taken at a time, who waits, and when they give up."),
    ("kswapd", "kswapd", "When it sleeps, and what it says about a node."),
    ("swap", "Swap", "Where pages that leave lie, and what comes back with one."),
    ("file", "Files", "Pages of files, in the laboratory."),
];

fn group(key: &str) -> &str {
    // `lru` and `lru.add_batch` are of both.
    key.split_once('.').map_or("", |(group, _)| group).trim_start_matches("lru")
}

fn line(row: &Row, presets: &[(&str, Vec<Row>)]) -> String {
    let mut text = format!("* **`{}={}`** {}", row.key, row.value, row.meaning);
    if row.meanings.is_empty() && row.expected != "a number" {
        text += &format!(" (`{}`)", row.expected.replace('|', "`, `"));
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

/// All switches in Markdown: groups, defaults, values and what each stands for, and how the presets differ.
#[must_use]
pub fn reference() -> String {
    let preset =
        |name: &'static str| (name, Tunables::preset(name).map_or(Vec::new(), |tun| tun.rows()));
    let presets = PRESETS.map(preset);
    let mut text = String::from(
        "# Switches of the engine\n\n\
         Each is set by `--set KEY=VALUE`, in `ebb run` and in `ebb lab`, or in a file (docs/ebb.toml); several at once by \
         `--set preset=NAME`.\nWhat is told is the default, that of `ebb lab` and of the library; `ebb run` goes by the preset \
         `cooling`. This page is written by\n`ebb lab policies --reference`, and a test holds it against the code.\n\n\
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
    fn every_switch_is_in_it_once() {
        let text = reference();
        for key in Tunables::KEYS {
            assert_eq!(text.matches(&format!("* **`{key}=")).count(), 1, "{key}");
        }
        let looks = "* **`gen.loop=k618`** The eviction loop.\n  \
                     * `k618`: Recomputes its budget, stops to age.\n  \
                     * `k72`: One budget a call, batches of 64, goes on after aging.\n  \
                     * Presets: `k72` in k72.\n";
        assert!(text.contains(looks), "{text}");
    }
}
