//! Measures real programs under `ebb run`: `./test measure` runs the measurements.
//!
//! A measurement prints its figure and the bound for it. It fails no test, because the figure
//! depends on the host and on the scheduling of processes.

mod account;
mod budget;
mod ends;
mod exec;
mod fit;
mod full;
mod go;
mod lab;
mod limits;
mod program;
mod remote;
mod stress;
mod watch;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for (name, measure) in ALL {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())) {
            println!("{name}:");
            measure();
        }
    }
}

/// Every measurement by its name.
const ALL: &[(&str, fn())] = &[
    ("account-parts", account::parts),
    ("budget-peaks", budget::peaks),
    ("budget-holds", budget::holds),
    ("budget-high", budget::high),
    ("budget-far-limit", budget::far_limit),
    ("exec-outliving", exec::outliving),
    ("fit-curve", fit::curve),
    ("fit-found", fit::found),
    ("full-in-vain", full::in_vain),
    ("full-at-once", full::ends_at_once),
    ("full-in-time", full::ends_in_time),
    ("full-cools", full::only_standby),
    ("go-forty", go::forty_at_once),
    ("limits-pressure", limits::pressure),
    ("limits-idle-class", limits::idle),
    ("limits-enough", limits::enough),
    ("limits-harassed", limits::harassed),
    ("remote-reads", remote::reads),
    ("remote-given-up", remote::given_up),
    ("stress-taken-on", stress::adopted_while_filling),
    ("stress-locked", stress::locked),
    ("stress-shared", stress::shared),
    ("ends-with-ebb", ends::with_ebb),
    ("ends-by-itself", ends::by_itself),
    ("lab-loads", lab::loads),
    ("program-holds", program::holds),
    ("program-resident", program::resident),
    ("program-writes", program::writes),
    ("program-waits", program::waits),
    ("program-metrics", program::metrics),
    ("program-huge-pages", program::huge_pages),
];

/// Prints a figure and its bound.
fn figure(what: &str, value: f64, unit: &str, bound: &str) {
    println!("    {what}: {value:.2} {unit} (bound: {bound})");
}

/// Returns the first number with this name in a JSON text.
fn number(json: &str, name: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{name}\":"))?;
    let is_of_one = |c: char| c.is_ascii_digit() || matches!(c, '.' | '-' | 'e' | '+');
    let end = rest.find(|c| !is_of_one(c)).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
