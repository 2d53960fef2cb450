//! Plans of faults to inject.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = ebb_swap::inject::Plan::parse(text);
});
