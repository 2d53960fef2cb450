//! Writes `docs/reference.md`: options, switches, metrics and the keys of the report.
//!
//! Commands, switches and counters come from the code that reads them. The tables below describe
//! levels and keys, and `tests/documents.rs` compares them with the pager.

use clap::{Arg, Command};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::tunables;
use std::collections::BTreeMap;

/// Levels of a run: name, unit and meaning.
const LEVELS: &[(&[&str], &str, &str)] = &[
    (&["nr_free_pages"], "pages", "Pages that the limit leaves free."),
    (&["nr_anon_pages"], "pages", "Pages that count in the limit, compressed memory included."),
    (&["nr_isolated_anon"], "pages", "Pages that reclaim has taken off the lists."),
    (&["nr_unevictable"], "pages", "Pages that cannot leave memory for now."),
    (&["ebb_nr_managed"], "pages", "Pages on the lists of the LRU."),
    (&["ebb_nr_standby"], "pages", "Standby pages: resident, and unmapped from the program."),
    (&["ebb_nr_unstorable"], "pages", "Standby pages that no tier accepts."),
    (&["ebb_nr_limit"], "pages", "The limit, `memory.max`."),
    (&["ebb_nr_high"], "pages", "The level at which reclaim aims, `memory.high`."),
    (
        &["ebb_TIER_pages"],
        "pages",
        "Pages in the tier: `ram`, `file` or `redis`; `file_2` is the second file tier.",
    ),
    (&["ebb_TIER_bytes"], "bytes", "Bytes that the tier occupies."),
    (&["ebb_redis_read_us"], "us", "Mean time of a read from the remote tier."),
    (
        &["ebb_redis_reads", "ebb_redis_writes", "ebb_redis_errors"],
        "counter",
        "Reads, writes, and failed requests of the remote tier.",
    ),
];

/// Counters that a run counts. The others count in the laboratory alone.
const OF_A_RUN: [Event; 19] = [
    Event::PgFault,
    Event::PgMajFault,
    Event::PswpIn,
    Event::PswpOut,
    Event::PgActivate,
    Event::PgDeactivate,
    Event::PgStealKswapd,
    Event::PgStealAnon,
    Event::PageOutRun,
    Event::KswapdLowQuickly,
    Event::KswapdHighQuickly,
    Event::WorkingsetRefaultAnon,
    Event::WorkingsetActivateAnon,
    Event::WorkingsetRestoreAnon,
    Event::PgScanKswapd,
    Event::PgScanProactive,
    Event::PgScanAnon,
    Event::EbbScanned,
    Event::EbbProtected,
];

/// Version of the report's keys.
const SCHEMA: u32 = 2;

/// Keys of the report in JSON with their meaning. Keys with one meaning share a line.
const REPORT: &[(&[&str], &str)] = &[
    (&["schema"], "Version of the keys."),
    (&["command[]"], "The program and its arguments."),
    (&["exit_status"], "Exit status of the program, or null."),
    (&["wall_time_us"], "Duration of the run."),
    (&["memory_max_bytes"], "The limit at the end."),
    (&["memory_high_bytes"], "`--memory-high`, or null."),
    (&["peak_resident_bytes"], "Most resident memory, without compressed memory."),
    (&["peak_resident_and_compressed_bytes"], "Most memory that counted in the limit."),
    (&["recent_resident_bytes"], "Most resident memory of the last ten seconds."),
    (&["processes", "forks"], "Processes, and forks."),
    (&["faults.first_touch"], "Faults on pages without content."),
    (&["faults.reactivated"], "Faults on standby pages."),
    (&["faults.copied"], "Faults on pages shared after a fork."),
    (&["faults.loaded"], "Faults on stored pages."),
    (
        &["faults.loaded_ahead", "faults.first_touch_ahead", "faults.reactivated_ahead"],
        "Pages of these kinds placed without a fault of their own.",
    ),
    (&["faults.stale"], "Faults on pages that were there already."),
    (&["pages_to_standby"], "Pages moved to standby."),
    (&["pages_evicted"], "Pages that left memory."),
    (
        &["pages_written", "pages_not_written_because_clean"],
        "Of them those written to a tier, and those that a tier still had.",
    ),
    (&["pages_unmovable"], "Pages that the kernel did not let Ebb move."),
    (&["pages_lost"], "Pages whose content is lost."),
    (&["tiers[].name"], "`ram`, `file` or `redis`."),
    (
        &["tiers[].pages", "tiers[].stored_bytes", "tiers[].occupied_bytes"],
        "Pages at the end, their bytes as stored, and these with waste.",
    ),
    (&["tiers[].limit_bytes"], "Most bytes that the tier may occupy."),
    (&["tiers[].compression_ratio_permille"], "Bytes of the pages for each stored byte."),
    (
        &["tiers[].peak_pages", "tiers[].peak_occupied_bytes"],
        "Most pages at one time, and the bytes that the tier occupied for them.",
    ),
    (&["tiers[].peak_ratio_permille"], "Bytes of these pages for each occupied byte."),
    (
        &["tiers[].reads", "tiers[].writes", "tiers[].demoted"],
        "Pages read, written, and moved to the next tier.",
    ),
    (
        &["tiers[].address", "tiers[].errors"],
        "Address of a remote tier, or null; missing answers and refusals.",
    ),
    (&["tiers[].encrypted"], "Whether Ebb encrypts the pages."),
    (
        &["tiers[].read_mean_ns", "tiers[].read_max_ns"],
        "Mean and longest time of a remote read, or null.",
    ),
    (
        &["same_filled_pages", "same_filled_peak"],
        "Pages that repeat one word and are in no tier: at the end, and most.",
    ),
    (&["recorded", "recorded_lost"], "Faults in the trace of `--record`, and missing ones."),
    (&["waiting.threads_waited"], "Faults for which a thread waited."),
    (&["waiting.throttled_us"], "Time of throttling above `--memory-high`."),
    (
        &["waiting.total_us", "waiting.seen_us"],
        "Time from faults until threads ran again (an estimate); measured part, from the reading of messages to wake-ups.",
    ),
    (&["waiting.p50_ns", "waiting.p99_ns"], "Median and 99th percentile of the waits."),
    (
        &["pressure.some_us", "pressure.full_us"],
        "Time in which some, or all, threads waited for memory.",
    ),
    (
        &["longest_hold_us", "longest_hold_cpu_us"],
        "Longest hold of a lock that faults may have waited for, and longest CPU time in one.",
    ),
    (&["longest_freeze_us"], "Longest time for which the freezer froze a thread."),
    (
        &["charges_lost", "uncounted_pages"],
        "Accounting errors: lost charges, and pages that left at a count of zero.",
    ),
    (&["cpu.supervisor_us", "cpu.pager_us", "cpu.agents_us"], "CPU time of the parts of Ebb."),
    (
        &["cpu.faults_us", "cpu.kswapd_us", "cpu.monitor_us", "cpu.listener_us", "cpu.rest_us"],
        "Parts of the pager's time, by thread.",
    ),
    (
        &["lost.changes", "lost.changes_us"],
        "Mapping changes for which threads waited, and the time: an estimate.",
    ),
    (&["lost.calls", "lost.calls_us"], "Calls to the pager from hooks, and their time."),
    (&["lost.freezer_us"], "Time for which the freezer froze threads."),
    (&["stages.count"], "Faults. `ebb stat --faults --format json` prints `stages`, too."),
    (&["stages.waited_ns", "stages.served_ns"], "As `waiting.total_us` and `waiting.seen_us`."),
    (
        &["stages.fault_to_read_ns", "stages.wake_to_run_ns", "stages.in_thread_ns"],
        "Mean time before the reading, after the wake-up, and of the kernel in the thread.",
    ),
    (
        &["stages.driven_off_ns", "stages.kept_off_ns"],
        "Mean time for which woken threads, and time for which faulting threads, were kept off their CPU.",
    ),
    (&["stages.all"], "Durations from the fault until the thread runs."),
    (
        &["stages.faults_followed", "stages.windows_unclear"],
        "Faults on which the estimate rests, and samples without a result.",
    ),
    (&["stages.on_own_cpu_permille"], "Faults served on the CPU of the thread, or null."),
    (
        &["stages.kinds[].kind", "stages.kinds[].count", "stages.kinds[].stages.STAGE"],
        "Kind of fault, its faults, and durations of the stage.",
    ),
    (
        &[
            "unmanaged[].why",
            "unmanaged[].names[]",
            "unmanaged[].processes",
            "unmanaged[].peak_bytes",
        ],
        "Memory that Ebb cannot page: kind, programs, number of processes, most bytes.",
    ),
    (
        &[
            "thrashing.at_us",
            "thrashing.lost_percent",
            "thrashing.reads[]",
            "thrashing.enough_bytes",
        ],
        "Moment in the run, share of ten seconds lost, pages read from each tier, and a limit that is enough; `thrashing` may be null.",
    ),
    (&["reuse.one_in"], "One page in this many was sampled; `reuse` needs `--sample`."),
    (&["reuse.first_uses", "reuse.later_uses"], "First and later uses of pages."),
    (&["reuse.grain_bytes"], "Smaller sizes miss more often than the curve shows."),
    (
        &["reuse.curve[].bytes", "reuse.curve[].misses", "reuse.curve[].error"],
        "Size of a memory, its misses without first uses, and half of the 95 % interval.",
    ),
];

/// Returns the whole page.
pub fn text() -> String {
    let mut text = "\
# Reference

`ebb-lab reference > docs/reference.md` writes this page.

## Commands and options

`ebb lab COMMAND --help` and `ebb bench BENCHMARK --help` list their options.
"
    .to_owned();
    let mut all = crate::all_commands();
    all.build();
    let mut known = BTreeMap::new();
    let shown = all.get_subcommands().filter(is_shown);
    shown.for_each(|command| options(command, &mut known, &mut text));
    text += "\n## Switches\n\n";
    text += &tunables::reference();
    text += "\n### The pager\n\n`ebb run` and `ebb attach` alone have these.\n\n";
    for ebb_run::OwnSwitch { key, values, default, meaning } in ebb_run::own_switches() {
        text += &format!("* `{key}={default}`: {meaning} (`{values}`)\n");
    }
    metrics(&mut text);
    report(&mut text);
    text
}

/// Returns whether readers shall see a command.
fn is_shown(command: &&Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// Writes the options of a command, and names the commands below it. `known` has the lines of
/// earlier commands, each with the name of its command.
fn options(command: &Command, known: &mut BTreeMap<String, String>, text: &mut String) {
    let name = format!("ebb {}", command.get_name());
    let (mut own, mut shared) = (String::new(), BTreeMap::<String, Vec<String>>::new());
    let hidden = |argument: &&Arg| argument.is_hide_set() || argument.get_id() == "help";
    for argument in command.get_arguments().filter(|argument| !hidden(argument)) {
        let line = format!("{}: {}", form(argument), meaning(argument));
        if let Some(first) = known.get(&line) {
            shared.entry(first.clone()).or_default().push(short_form(argument));
        } else {
            own += &format!("* {line}\n");
            known.insert(line, name.clone());
        }
    }
    for (first, names) in shared {
        own += &format!("* As for `{first}`: {}\n", names.join(", "));
    }
    let below = command.get_subcommands().filter(is_shown);
    let below: Vec<&str> = below.map(Command::get_name).collect();
    if !below.is_empty() {
        own += &format!("Commands: {}\n", in_code(&below));
    }
    let about = command.get_about().map_or_else(String::new, ToString::to_string);
    let gap = if own.is_empty() { "" } else { "\n" };
    *text += &format!("\n### {name}\n\n{about}.\n{gap}{own}");
}

/// Returns an option without its value, or the name of a positional argument.
fn short_form(argument: &Arg) -> String {
    match argument.get_long() {
        Some(long) => format!("`--{long}`"),
        None => format!("`{}`", value(argument)),
    }
}

/// Returns the name or the choice of values of an argument.
fn value(argument: &Arg) -> String {
    let choice: Vec<String> =
        argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    match argument.get_value_names() {
        _ if !choice.is_empty() => choice.join("|"),
        Some(names) => names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" "),
        None => argument.get_id().as_str().to_uppercase(),
    }
}

/// Returns an option with its value, as the command line has them.
fn form(argument: &Arg) -> String {
    let Some(long) = argument.get_long() else { return short_form(argument) };
    let mut form = argument.get_short().map_or(String::new(), |letter| format!("-{letter}, "));
    form += &format!("--{long}");
    if argument.get_action().takes_values() {
        let value = value(argument);
        let is_optional = argument.get_num_args().is_some_and(|count| count.min_values() == 0);
        form += &match (is_optional, argument.is_require_equals_set()) {
            (true, true) => format!("[={value}]"),
            (true, false) => format!(" [{value}]"),
            (false, _) => format!(" {value}"),
        };
    }
    format!("`{form}`")
}

/// Returns the help of an argument in one line, with the default.
fn meaning(argument: &Arg) -> String {
    let help = argument.get_help().map_or_else(String::new, ToString::to_string);
    let defaults = argument.get_default_values();
    let has_default = !argument.is_hide_default_value_set() && argument.get_action().takes_values();
    match defaults.first().filter(|default| has_default && !default.is_empty()) {
        Some(default) => format!("{help} [default: {}]", default.display()),
        None => help,
    }
}

/// Returns names in Markdown.
fn in_code(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Writes the metrics of a run.
fn metrics(text: &mut String) {
    *text += "
## Metrics

`ebb stat` prints them. A metric is a gauge unless its line says counter. `--metrics` puts `ebb_`
before each name that lacks it, and `_total` behind the name of a counter.

";
    for (names, unit, meaning) in LEVELS {
        *text += &format!("* {} ({unit}): {meaning}\n", in_code(names));
    }
    *text += "\nCounters of `--metrics` alone:\n\n\
              * `pressure_some_seconds`, `pressure_full_seconds`: Time that threads waited for memory.\n\
              * `faults{kind}`, `waited_seconds`: Faults, and the time that threads waited for them.\n";
    *text += "\n### Counters of a run\n\nThe kind is counter, the unit events or pages.\n\n";
    for event in OF_A_RUN {
        *text += &format!("* `{}`: {}\n", event.name(), event.meaning());
    }
    *text += "\nThe other counters of `ebb stat` are those of the laboratory, and 0 in a run.\n";
}

/// Writes the keys of the report.
fn report(text: &mut String) {
    *text += &format!(
        "
## The report in JSON

`ebb run --report json` prints one object, schema {SCHEMA}. Numbers are whole. The end of a key is
the unit; without one the value is a number of pages or events. `.KEY` is a key of the object before
it. A STAGE and `stages.all` have the keys `mean_ns`, `p50_ns` and `p99_ns`.

"
    );
    for (keys, meaning) in REPORT {
        let prefix = keys[0].rfind('.').map_or("", |dot| &keys[0][..dot]);
        let short = |key: &&'static str| key.strip_prefix(prefix).filter(|_| !prefix.is_empty());
        let others = keys[1..].iter().map(|key| short(key).unwrap_or(key));
        let keys: Vec<&str> = std::iter::once(keys[0]).chain(others).collect();
        *text += &format!("* {}: {meaning}\n", in_code(&keys));
    }
    let kinds = ebb_control::FaultKind::ALL.map(ebb_control::FaultKind::key);
    *text += &format!("\nKinds of faults: {}.\n", in_code(&kinds));
    let stages = serde_json::to_value(ebb_control::Stages::default()).unwrap_or_default();
    let stages = stages.as_object().into_iter().flat_map(|all| all.keys());
    let stages: Vec<&str> = stages.map(String::as_str).collect();
    *text += &format!("Stages: {}.\n", in_code(&stages));
}
