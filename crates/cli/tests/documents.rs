//! Checks the tables, paths, names and links in the documents against the repository.

use ebb_mm::observe::vmstat::Event;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const DOCUMENTS: [&str; 12] = [
    "README.md",
    "ARCHITECTURE.md",
    "HAZARDS.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/guide.md",
    "docs/lab.md",
    "docs/lab-rows.md",
    "docs/limits.md",
    "docs/release.md",
    "docs/results.md",
    "docs/traces.md",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Collects all files below a folder with one of these endings.
fn files(folder: &Path, endings: &[&str], into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() {
            files(&path, endings, into);
        } else if endings.contains(&ending) {
            into.push(path);
        }
    }
}

fn sources(folder: &str, endings: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    files(&root().join(folder), endings, &mut found);
    let text = |path: &PathBuf| fs::read_to_string(path).expect("text");
    found.iter().map(text).collect()
}

/// Returns the texts between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    // Blocks of code contain no names.
    let outside = text.split("```").step_by(2);
    outside.flat_map(|text| text.lines()).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns the cells of each row of the table whose first line begins with `head`.
fn table<'a>(text: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let rows = text.lines().skip_while(|line| !line.starts_with(head)).skip(2);
    let rows: Vec<_> = rows.take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "no table {head:?}");
    rows
}

fn cells(row: &str) -> Vec<&str> {
    let row = row.trim().trim_start_matches('|').trim_end_matches('|');
    let mut cells: Vec<&str> = Vec::new();
    let mut start = 0;
    for (at, _) in row.match_indices('|').filter(|&(at, _)| !row[..at].ends_with('\\')) {
        cells.push(row[start..at].trim());
        start = at + 1;
    }
    cells.push(row[start..].trim());
    cells
}

/// Returns the crates of the workspace, each with the workspace crates that it depends on.
fn crates() -> BTreeMap<String, BTreeSet<String>> {
    // `ebb-NAME = { path = "crates/FOLDER", … }`
    let workspace = read("Cargo.toml");
    let folder = |package: &str| {
        let line = workspace.lines().find_map(|line| line.strip_prefix(&format!("{package} = ")));
        let path = line.and_then(|line| line.split("crates/").nth(1)?.split('"').next());
        path.unwrap_or_else(|| panic!("where {package} is")).to_owned()
    };
    let mut crates = BTreeMap::new();
    for entry in fs::read_dir(root().join("crates")).expect("crates").flatten() {
        let name = entry.file_name().into_string().expect("a name");
        let manifest = read(&format!("crates/{name}/Cargo.toml"));
        let needs = manifest.lines().filter(|line| line.starts_with("ebb-"));
        let needs = needs.filter_map(|line| line.split(['.', ' ']).next());
        crates.insert(name, needs.map(folder).collect());
    }
    crates
}

#[test]
fn crates_stand_in_the_order_of_their_dependencies() {
    let text = read("ARCHITECTURE.md");
    let mut above = BTreeSet::new();
    let crates = crates();
    for row in table(&text, "| crate ") {
        let here: BTreeSet<String> = quoted(row[0]).map(str::to_owned).collect();
        for name in &here {
            let needs = crates.get(name).unwrap_or_else(|| panic!("there is no crate {name}"));
            let below: Vec<_> = needs.difference(&above).collect();
            assert!(below.is_empty(), "{name} needs {below:?}, which do not stand above it");
        }
        above.extend(here);
    }
    assert!(crates.keys().eq(above.iter()), "crates {:?}, in the table {above:?}", crates.keys());
}

/// Returns the code of a source file without comments and without items that only tests have. The
/// format of the code shows where an item ends: at a bracket in the column of its first line.
fn production(source: &str) -> String {
    let mut code = String::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if line.trim() != "#[cfg(test)]" {
            code += line.split("//").next().unwrap_or_default();
            code.push('\n');
            continue;
        }
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_end = |line: &str| {
            let rest = line.strip_prefix(indent).unwrap_or_default();
            rest.starts_with('}') || (!rest.starts_with(' ') && rest.ends_with([';', ',']))
        };
        assert!(lines.any(is_end), "the end of an item for tests");
    }
    code
}

/// Returns the modules of the pager's root that are not for tests alone: a folder or a file each.
fn pager_folders() -> BTreeSet<String> {
    let root = production(&read("crates/pager/src/lib.rs"));
    let modules = root
        .lines()
        .filter_map(|line| line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';'));
    modules.map(str::to_owned).collect()
}

/// Returns the first names of a path, or of the paths in a list `{…}`, at the start of `text`.
fn first_names(text: &str) -> Vec<&str> {
    let name =
        |text: &str| text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let Some(list) = text.strip_prefix('{') else { return vec![&text[..name(text)]] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in list.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let part = list[start..at].trim_start();
                names.extend(Some(&part[..name(part)]).filter(|name| !name.is_empty()));
                start = at + 1;
                if letter == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names
}

/// Returns the pager's modules that the code of a file uses by paths from the root: `crate::NAME`,
/// or `super::NAME` if that leads to the root. `depth` is the number of modules from the root to
/// the file.
fn used_from_root(code: &str, depth: usize) -> BTreeSet<&str> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut used = BTreeSet::new();
    let ups = "super::".repeat(depth);
    for start in ["crate::", &ups] {
        for (at, _) in code.match_indices(start) {
            if !code[..at].ends_with(is_word) {
                used.extend(first_names(&code[at + start.len()..]));
            }
        }
    }
    used.remove("super");
    used.remove("self");
    used
}

/// Returns each folder of the pager with the folders that it uses in production code. A file in the
/// root counts as a folder. The root itself is left out, because it names all.
fn folder_uses() -> BTreeMap<String, BTreeSet<String>> {
    let src = root().join("crates/pager/src");
    let folders = pager_folders();
    let mut found = Vec::new();
    files(&src, &["rs"], &mut found);
    let mut uses: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in &found {
        let path = path.strip_prefix(&src).expect("below the folder").with_extension("");
        let modules: Vec<&str> = path.iter().filter_map(|part| part.to_str()).collect();
        let depth = modules.iter().filter(|module| **module != "mod").count();
        let here = modules[0].to_owned();
        if !folders.contains(&here) {
            continue;
        }
        let code =
            production(&fs::read_to_string(src.join(&path).with_extension("rs")).expect("text"));
        let used = used_from_root(&code, depth);
        let strange: Vec<_> = used.iter().filter(|name| !folders.contains(**name)).collect();
        assert!(strange.is_empty(), "{}: {strange:?} are no folders of the pager", path.display());
        let others = used.into_iter().filter(|name| *name != here).map(str::to_owned);
        uses.entry(here.clone()).or_default().extend(others);
    }
    uses
}

/// Returns each name with all names that it leads to.
fn closure(direct: &BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    let mut all = direct.clone();
    for _ in 0..direct.len() {
        for name in direct.keys() {
            let next = all[name].iter().filter_map(|next| all.get(next));
            let more: BTreeSet<String> = next.flatten().cloned().collect();
            all.entry(name.clone()).or_default().extend(more);
        }
    }
    all
}

#[test]
fn no_circle_runs_across_the_folders_of_the_pager() {
    let uses = folder_uses();
    assert!(uses.len() > 10 && uses["server"].len() > 5, "the imports are read: {uses:?}");
    let all = closure(&uses);
    let on_circle: BTreeMap<_, BTreeSet<_>> = uses
        .iter()
        .filter(|(name, _)| all[*name].contains(*name))
        .map(|(name, used)| (name, used.iter().filter(|next| all[*next].contains(name)).collect()))
        .collect();
    assert!(on_circle.is_empty(), "on a circle, with the next on it: {on_circle:#?}");
}

/// Shows that each folder uses only folders that its row names, and those that these may use.
#[test]
fn folders_of_the_pager_use_what_their_table_allows() {
    let text = read("ARCHITECTURE.md");
    let names = |cell| quoted(cell).map(str::to_owned).collect::<BTreeSet<_>>();
    let mut allowed = BTreeMap::new();
    for row in table(&text, "| folder ") {
        let below = names(row[2]);
        for name in names(row[0]) {
            let missing: Vec<_> =
                below.iter().filter(|next| !allowed.contains_key(*next)).collect();
            assert!(missing.is_empty(), "{name} may use {missing:?}, which do not stand above it");
            allowed.insert(name, below.clone());
        }
    }
    let uses = folder_uses();
    assert!(uses.keys().eq(allowed.keys()), "{:?}, in the table {:?}", uses.keys(), allowed.keys());
    let allowed = closure(&allowed);
    for (name, used) in &uses {
        let more: Vec<_> = used.difference(&allowed[name]).collect();
        assert!(more.is_empty(), "{name} uses {more:?}, which its row does not allow");
    }
}

/// Shows that the page is as `ebb-lab reference` writes it, and that each line has a meaning.
#[cfg(all(feature = "lab", feature = "top"))]
#[test]
fn the_reference_is_that_of_the_code() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ebb-lab"));
    let output = command.arg("reference").output().expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let has_meaning = |line: &str| line.split_once(": ").is_some_and(|(_, text)| !text.is_empty());
    let lines = text.lines().filter(|line| line.starts_with("* `"));
    let bare: Vec<_> = lines.filter(|line| !has_meaning(line)).collect();
    assert!(bare.is_empty(), "without a meaning: {bare:#?}");
    assert!(
        read("docs/reference.md") == text,
        "docs/reference.md is not of today: ebb-lab reference > docs/reference.md"
    );
}

/// Returns the names in the lines of a section of the reference.
fn referred<'a>(text: &'a str, heading: &str) -> BTreeSet<&'a str> {
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('#'));
    let heads =
        lines.filter(|line| line.starts_with("* `")).filter_map(|line| line.split(": ").next());
    heads.flat_map(quoted).filter(|name| !name.starts_with("--")).collect()
}

/// Returns the fields of a struct, each with its type.
fn fields<'a>(source: &'a str, name: &str) -> Vec<(&'a str, &'a str)> {
    let start = format!("struct {name} {{\n");
    let (_, body) = source.split_once(&start).unwrap_or_else(|| panic!("no struct {name}"));
    let (body, _) = body.split_once("\n}").expect("the end of a struct");
    let lines = body.lines().map(|line| line.trim().trim_start_matches("pub "));
    let lines = lines.filter(|line| !line.starts_with("//") && !line.starts_with('#'));
    lines.filter_map(|line| line.trim_end_matches(',').split_once(": ")).collect()
}

/// Adds the keys of a struct in JSON to `keys`, each behind `path`.
fn keys_of(source: &str, name: &str, path: &str, keys: &mut BTreeSet<String>) {
    for (field, kind) in fields(source, name) {
        let kind = kind.trim_start_matches("Option<").trim_end_matches('>');
        let list = if kind.starts_with("Vec<") { "[]" } else { "" };
        let kind = kind.trim_start_matches("Vec<");
        let key = format!("{path}{field}{list}");
        match kind {
            "Stages" => {
                keys.insert(format!("{key}.STAGE"));
            }
            "u64" | "u32" | "i32" | "bool" | "String" | "Kind" | "FaultKind" | "Took" => {
                keys.insert(key);
            }
            _ => {
                // Other files have these structs. Their names differ there.
                let (file, name) = match kind {
                    "ebb_control::Faults" => ("control/src/faults.rs", "Faults"),
                    "Row" => ("control/src/faults.rs", "Row"),
                    "Cpu" | "Lost" => ("pager/src/report/costs.rs", kind),
                    "unmanaged::Line" => ("pager/src/telemetry/unmanaged.rs", "Line"),
                    "Finding" => ("pager/src/telemetry/finding.rs", "Finding"),
                    "sampling::Found" => ("pager/src/telemetry/sampling.rs", "Found"),
                    "Point" => ("pager/src/telemetry/sampling.rs", "Point"),
                    _ => ("pager/src/report/mod.rs", kind),
                };
                keys_of(&read(&format!("crates/{file}")), name, &format!("{key}."), keys);
            }
        }
    }
}

#[test]
fn the_keys_of_the_report_are_those_of_the_reference() {
    let report = read("crates/pager/src/report/mod.rs");
    let text = read("docs/reference.md");
    let mut keys = BTreeSet::new();
    keys_of(&report, "Report", "", &mut keys);
    let (_, section) = text.split_once("## The report in JSON").expect("the section");
    let mut told = BTreeSet::new();
    for line in section.lines().filter(|line| line.starts_with("* `")) {
        let mut object = "";
        for key in quoted(line.split(": ").next().unwrap_or_default()) {
            let is_short = key.starts_with('.');
            told.insert(if is_short { format!("{object}{key}") } else { key.to_owned() });
            object = if is_short { object } else { key.rsplit_once('.').map_or("", |(o, _)| o) };
        }
    }
    assert_eq!(told, keys);
    let (_, version) = report.split_once("        schema: ").expect("the version of the keys");
    let (version, _) = version.split_once(',').expect("the end of the version");
    assert!(text.contains(&format!("schema {version}.")), "schema {version}");
}

#[test]
fn the_metrics_of_a_run_are_those_of_the_reference() {
    let stat = read("crates/pager/src/report/stat.rs");
    let (code, _) = stat.split_once("#[cfg(test)]").expect("the tests");
    let text = read("docs/reference.md");
    let mut levels = referred(&text, "## Metrics");
    // `stat.rs` does not have these: `metrics.rs` makes them.
    for made in ["pressure_some_seconds", "pressure_full_seconds", "faults{kind}", "waited_seconds"]
    {
        assert!(levels.remove(made), "{made}");
    }
    let (_, list) = code.split_once("let levels = [").expect("the levels");
    let (list, _) = list.split_once("];").expect("the end of the levels");
    let plain = list.split("(\"").skip(1).filter_map(|rest| rest.split('"').next());
    let mut known: BTreeSet<String> = plain.map(str::to_owned).collect();
    for what in code.split("name(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        let tier = if ["pages", "bytes"].contains(&what) { "TIER" } else { "redis" };
        known.insert(format!("ebb_{tier}_{what}"));
    }
    assert_eq!(levels.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), known);
    let named = code.split("Event::").skip(1);
    let named: BTreeSet<&str> = named
        .filter_map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next())
        .filter(|name| *name != "ALL")
        .collect();
    let counted = Event::ALL.iter().filter(|event| named.contains(format!("{event:?}").as_str()));
    let counted: BTreeSet<&str> = counted.map(|event| event.name()).collect();
    assert_eq!(referred(&text, "### Counters of a run"), counted);
}

#[test]
fn the_threads_of_the_pager_are_those_of_the_table() {
    let text = read("ARCHITECTURE.md");
    let told: BTreeSet<_> = table(&text, "| thread ")
        .iter()
        .flat_map(|row| quoted(row[0]))
        .map(str::to_owned)
        .collect();
    let mut named = BTreeSet::new();
    // The threads of the store are threads of the pager, too.
    let all = ["crates/pager/src", "crates/store/src"].map(|folder| sources(folder, &["rs"]));
    for source in all.into_iter().flatten() {
        // `run(NAME, body)` in `server.rs` starts a thread of that name, as `Writer` does.
        for call in ["    run(\"", ".name(\"", "Writer::start(\""] {
            let names = source.split(call).skip(1).filter_map(|rest| rest.split('"').next());
            named.extend(names.map(str::to_owned));
        }
    }
    assert_eq!(told, named);
}

#[test]
fn rows_of_tables_have_all_their_cells() {
    for document in DOCUMENTS {
        let text = read(document);
        let mut columns = None;
        for (at, line) in text.lines().enumerate() {
            if !line.starts_with('|') {
                columns = None;
                continue;
            }
            let count = cells(line).len();
            assert!(
                line.ends_with('|'),
                "{document}:{}: a row that goes on in the next line",
                at + 1
            );
            assert_eq!(*columns.get_or_insert(count), count, "{document}:{}", at + 1);
        }
    }
}

/// Shows that no line is too wide. Rows of tables and blocks of code may be wider.
#[test]
fn lines_are_no_wider_than_a_hundred_columns() {
    for document in DOCUMENTS {
        let text = read(document);
        let mut is_code = false;
        for (at, line) in text.lines().enumerate() {
            is_code ^= line.starts_with("```");
            let is_wide = line.chars().count() > 100 && line.trim().contains(' ');
            assert!(is_code || line.starts_with('|') || !is_wide, "{document}:{}", at + 1);
        }
    }
}

#[test]
fn files_that_are_named_are_there() {
    let folders = [
        "",
        "crates",
        "crates/pager/src",
        "crates/e2e",
        "crates/agent/src",
        "crates/cli/src",
        "crates/store/src",
    ];
    let below =
        ["crates/lab/src", "crates/lab/src/experiment", "crates/core/src", "crates/store/tests"];
    let mut missing = Vec::new();
    let is_path = |word: &&str| {
        let name = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let ending = word.rsplit_once('.').map_or("", |(_, ending)| ending);
        word.chars().all(name) && ["rs", "c", "h", "py", "md"].contains(&ending)
    };
    for document in DOCUMENTS {
        // Names in examples stand for no file.
        for word in quoted(&read(document)).filter(is_path).filter(|word| !word.contains("NAME")) {
            let mut places =
                folders.iter().chain(&below).map(|folder| root().join(folder).join(word));
            if !places.any(|path| path.exists()) {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "not there: {missing:#?}");
}

#[test]
fn tests_and_functions_that_are_named_are_there() {
    let code = sources("crates", &["rs", "c", "h", "py"]).concat();
    let names: BTreeSet<&str> =
        code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    // Names of the kernel.
    let foreign = [
        "oom_score_adj",
        "bpf_probe_read_user",
        "unprivileged_userfaultfd",
        "kswapd_highest_zoneidx",
        "kswapd_order",
        "pidfd_getfd",
    ];
    let mut missing = Vec::new();
    let is_name = |word: &&str| {
        let parts = word.split('_').count();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        parts >= 2 && word.chars().all(plain) && !word.starts_with('_')
    };
    for document in DOCUMENTS {
        for word in quoted(&read(document)).filter(is_name).filter(|word| !foreign.contains(word)) {
            if !names.contains(word) {
                missing.push(format!("{document}: {word}"));
            }
        }
    }
    assert!(missing.is_empty(), "not there: {missing:#?}");
}

#[test]
fn links_lead_somewhere() {
    for document in DOCUMENTS {
        let text = read(document);
        let folder = root().join(document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let (path, place) = link.split_once('#').unwrap_or((link, ""));
            if path.starts_with("http") {
                continue;
            }
            let target = if path.is_empty() { folder.clone() } else { folder.with_file_name(path) };
            assert!(target.exists(), "{document}: {link}");
            if !place.is_empty() {
                let anchor = |head: &str| {
                    let head = head.trim_start_matches('#').trim().to_lowercase();
                    let kept = |c: &char| c.is_alphanumeric() || *c == ' ' || *c == '-';
                    head.chars().filter(kept).collect::<String>().replace(' ', "-")
                };
                let there = fs::read_to_string(&target).expect("text");
                let found =
                    there.lines().filter(|l| l.starts_with('#')).any(|l| anchor(l) == place);
                assert!(found, "{document}: no {place} in {path}");
            }
        }
    }
}

/// Returns the names of rules in a text, as `FORK-2`: capitals for their subject, and a number.
fn rules(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
    words.filter_map(|word| word.split_once('-')).filter(|(part, number)| {
        part.len() > 1
            && part.bytes().all(|byte| byte.is_ascii_uppercase())
            && number.parse::<u8>().is_ok()
    })
}

/// Shows that each rule stands at the head of the file that keeps it, and that no two rules share a
/// name.
#[test]
fn each_rule_has_a_name_of_its_own_and_is_somewhere() {
    let crates = sources("crates", &["rs"]);
    let heads = crates.iter().flat_map(|text| text.lines()).filter_map(|line| {
        let (name, _) = line.trim_start().strip_prefix("//! * ")?.split_once(": ")?;
        let short = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        assert!(!short || !name.ends_with(char::is_numeric), "{line}: name it by its file");
        rules(name).next()
    });
    let mut known = BTreeSet::new();
    for rule in heads {
        assert!(known.insert(rule), "{}-{} is two rules", rule.0, rule.1);
    }
    let parts: BTreeSet<&str> = known.iter().map(|rule| rule.0).collect();
    let documents = DOCUMENTS.map(read);
    for rule in crates.iter().chain(&documents).flat_map(|text| rules(text)) {
        let there = !parts.contains(rule.0) || known.contains(&rule);
        assert!(there, "{}-{} is no rule", rule.0, rule.1);
    }
}

/// Shows that no comment begins a line without a noun, or is wider than a hundred columns. Fenced
/// examples are left out.
#[test]
fn comments_begin_with_a_noun_and_are_no_wider_than_a_hundred_columns() {
    const HEADLESS: [&str; 9] =
        ["Who", "Whoever", "Whom", "Whose", "What", "Whatever", "Those", "Its", "The same"];
    let mut found = Vec::new();
    files(&root().join("crates"), &["rs"], &mut found);
    let mut faults = Vec::new();
    for path in &found {
        let text = fs::read_to_string(path).expect("text");
        let mut fenced = false;
        for (number, line) in (1..).zip(text.lines()) {
            let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
            let words = comment.trim_start_matches(['/', '!']).trim_start();
            let fence = words.starts_with("```");
            fenced ^= fence;
            if fence || fenced {
                continue;
            }
            let headless = HEADLESS.iter().any(|head| {
                words.strip_prefix(head).is_some_and(|rest| !rest.starts_with(char::is_alphabetic))
            });
            if headless || line.chars().count() > 100 {
                faults.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_glossary_is_in_order_and_says_something() {
    let text = read("ARCHITECTURE.md");
    let rows = table(&text, "| word ");
    let words: Vec<_> = rows.iter().map(|row| row[0]).collect();
    let mut sorted = words.clone();
    sorted.sort_unstable();
    assert_eq!(words, sorted);
    assert!(
        rows.iter().all(|row| row.len() == 3 && !row[1].is_empty()),
        "a word without a meaning"
    );
}
