//! Checks that tests wait for events and compare no times: the words of a clock do not occur in
//! test code.
//!
//! Test code is:
//! * CLOCKS-1: every file below `crates/*/tests`, every file that is named `tests.rs`, and
//!   `crates/e2e/src` but for its measurements;
//! * CLOCKS-2: the file of a `mod` after `#[cfg(test)]`, and the text of a file from such a `mod`
//!   with a body on.
//!
//! Comments and strings do not count, so a program that a test starts may sleep.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Forbidden words, each with the replacement in a test.
const WORDS: [(&str, &str); 3] = [
    ("sleep", "wait for the event: `ebb_testing::eventually`; what must not happen: `give_time`"),
    ("Instant", "bound a wait by `ebb_testing::Guard`; take a time from a simulated clock"),
    ("elapsed", "compare no time: wait for the event, or measure in `ebb-e2e`'s `measure`"),
];

/// Exceptions from CLOCKS-1 and CLOCKS-2: the only clock of the tests, and the measurements.
const MAY: [&str; 2] = ["testing/src/lib.rs", "e2e/src/bin/measure/"];

/// Returns the text with comments, strings and characters replaced by blanks. Lines stay where they
/// are.
fn code_of(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (len, keep) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with("/*") {
            (comment(rest), false)
        } else if first.is_alphanumeric() || first == '_' {
            let word = word(rest);
            // `r"…"`, `b"…"`, `br#"…"#`, `b'…'`; `r#name` is a name.
            let raw = word.ends_with('r') && ["r", "br", "cr"].contains(&word);
            match raw_string(&rest[word.len()..]) {
                Some(quoted) if raw => (word.len() + quoted, false),
                _ => (word.len(), true),
            }
        } else if first == '"' {
            (string(rest), false)
        } else if first == '\'' {
            character(rest).map_or((1, true), |len| (len, false))
        } else {
            (first.len_utf8(), true)
        };
        let (piece, after) = rest.split_at(len);
        if keep {
            out.push_str(piece);
        } else {
            out.extend(piece.chars().map(|c| if c == '\n' { c } else { ' ' }));
        }
        rest = after;
    }
    out
}

/// Returns the name or number at the beginning of the text.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// Returns the length of the comment at the beginning of the text. Comments nest.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        let here = &text.as_bytes()[at..];
        if here.starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if here.starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

/// Returns the length of the string at the beginning of the text.
fn string(text: &str) -> usize {
    let mut escaped = false;
    let end = text[1..].find(|c| {
        let closes = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    });
    end.map_or(text.len(), |end| end + 2)
}

/// Returns the length of the raw string at the beginning of the text, after its `r`.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let inside = text[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(inside.find(&close).map_or(text.len(), |end| hashes + 1 + end + close.len()))
}

/// Returns the length of the character literal at the beginning of the text; `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut inside = text.char_indices().skip(1);
    let (_, first) = inside.next()?;
    if first == '\\' {
        inside.next()?;
        return inside.find(|&(_, c)| c == '\'').map(|(at, _)| at + 1);
    }
    inside.next().filter(|&(_, c)| c == '\'').map(|(at, _)| at + 1)
}

/// Finds the test modules of a file. Returns where the first one with a body begins, and the names
/// of test modules in files of their own.
fn test_modules(code: &str) -> (Option<usize>, Vec<&str>) {
    let (mut own, mut others) = (None, Vec::new());
    for (at, _) in code.match_indices("#[cfg(") {
        let Some((condition, mut item)) = code[at + "#[cfg(".len()..].split_once(")]") else {
            continue;
        };
        if condition != "test" && !condition.starts_with("all(test,") {
            continue;
        }
        // `#[path = …] pub(crate) mod`
        loop {
            item = item.trim_start();
            if let Some(attribute) = item.strip_prefix("#[") {
                item = attribute.split_once(']').map_or("", |(_, after)| after);
            } else if let Some(public) = item.strip_prefix("pub(") {
                item = public.split_once(')').map_or("", |(_, after)| after);
            } else if let Some(public) = item.strip_prefix("pub ") {
                item = public;
            } else {
                break;
            }
        }
        let Some(item) = item.strip_prefix("mod ") else { continue };
        let name = word(item.trim_start());
        if item.trim_start()[name.len()..].trim_start().starts_with(';') {
            others.push(name);
        } else {
            own = own.or(Some(at));
        }
    }
    (own, others)
}

/// Returns the two possible paths of the module `name` of `parent`.
fn files_of(parent: &Path, name: &str) -> [PathBuf; 2] {
    let root = ["mod", "lib", "main"].map(Some);
    let stem = parent.file_stem().and_then(|stem| stem.to_str());
    let folder =
        if root.contains(&stem) { parent.with_file_name("") } else { parent.with_extension("") };
    [folder.join(name).with_extension("rs"), folder.join(name)]
}

/// Returns every word of a clock from `from` on, with its line.
fn words(code: &str, from: usize) -> Vec<(usize, &'static str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (word, _) in WORDS {
        for (at, _) in code.match_indices(word).filter(|&(at, _)| at >= from) {
            let (before, after) = (&code[..at], &code[at + word.len()..]);
            let whole = !before.ends_with(is_part) && !after.starts_with(is_part);
            // The simulated kswapd has a field named `sleep`, and a fake host has a method of that
            // name. A real sleep is a call or a path.
            let called = after.starts_with('(') && !before.ends_with("fn ");
            let named = word != "sleep" || before.ends_with("::") || called;
            if whole && named {
                found.push((before.matches('\n').count() + 1, word));
            }
        }
    }
    found
}

/// Collects all sources below a folder.
fn sources(folder: &Path, into: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.insert(path);
        }
    }
}

#[test]
fn tests_have_no_clock() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("crates");
    let mut paths = BTreeSet::new();
    sources(&crates, &mut paths);
    let read = |path: &PathBuf| code_of(&fs::read_to_string(path).expect("text"));
    let files: Vec<_> = paths.iter().map(|path| (path, read(path))).collect();
    // CLOCKS-2: modules in files of their own.
    let of_tests: Vec<PathBuf> = files
        .iter()
        .flat_map(|(path, code)| {
            test_modules(code).1.into_iter().flat_map(|name| files_of(path, name))
        })
        .collect();
    let mut found = Vec::new();
    for (path, code) in &files {
        let below = path.strip_prefix(&crates).expect("below crates");
        let name = below.to_str().expect("a name");
        if MAY.iter().any(|may| name.starts_with(may)) {
            continue;
        }
        let all = below.iter().nth(1).is_some_and(|folder| folder == "tests")
            || below.ends_with("tests.rs")
            || below.starts_with("e2e/src")
            || of_tests.iter().any(|module| path.starts_with(module));
        let from = if all { Some(0) } else { test_modules(code).0 };
        let Some(from) = from else { continue };
        for (line, word) in words(code, from) {
            found.push(format!("crates/{name}:{line}: `{word}`"));
        }
    }
    let instead = WORDS.map(|(word, instead)| format!("instead of `{word}` {instead}")).join("\n");
    assert!(found.is_empty(), "clocks in tests:\n{}\n{instead}", found.join("\n"));
}

#[test]
fn comments_and_texts_are_no_code() {
    let text = r####"a /* x /* y */ z */ b "c\"d" 'e' '\'' 'f: r"g" br##"h"#"## // i
        j r#k"####;
    let left = code_of(text);
    assert_eq!(left.split_whitespace().collect::<Vec<_>>(), ["a", "b", "'f:", "j", "r#k"]);
    assert_eq!(left.len(), text.len());
}

#[test]
fn a_clock_is_found_by_its_words() {
    let lines = |text: &str| {
        let code = code_of(text);
        let own = test_modules(&code).0;
        words(&code, own.unwrap_or(code.len()))
    };
    let module = "thread::sleep(x);\n#[cfg(test)]\n#[allow(x)]\nmod tests {\n";
    let with = |text| lines(&format!("{module}{text}"));
    assert_eq!(with("use std::thread::sleep;"), [(5, "sleep")]);
    assert_eq!(with("sleep(Duration::ZERO)"), [(5, "sleep")]);
    assert_eq!(with("let a = Instant::now();\n\na.elapsed()"), [(5, "Instant"), (7, "elapsed")]);
    assert_eq!(with("Command::new(\"sleep\"); policy.sleep; fn sleep(); Instantly"), []);
    assert_eq!(lines("#[cfg(test)]\nfn one() {}\nfn two() { sleep(x) }"), []);
    assert_eq!(test_modules("#[cfg(all(test, not(loom)))]\npub(crate) mod model;").1, ["model"]);
    let folder = Path::new("core/src");
    let models = [folder.join("swap/model.rs"), folder.join("swap/model")];
    assert_eq!(files_of(&folder.join("swap/mod.rs"), "model"), models);
    assert_eq!(files_of(&folder.join("swap.rs"), "model"), models);
}
