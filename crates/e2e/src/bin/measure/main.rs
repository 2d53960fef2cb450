//! Measurements of real programs under `ebb run`: `./test measure` runs them.
//!
//! A measurement prints its figure and the bound that it is held to. It gates nothing: the figure depends on the host and on
//! which process ran when.

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
const ALL: &[(&str, fn())] = &[];

/// Prints a figure and its bound.
fn figure(what: &str, value: f64, unit: &str, bound: &str) {
    println!("    {what}: {value:.2} {unit} (bound: {bound})");
}
