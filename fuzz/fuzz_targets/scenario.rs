//! Scenario files: a scenario, or the line that is wrong.
#![no_main]

use ebb_lab::scenario::Scenario;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Scenario::parse("fuzz.toml", text);
});
