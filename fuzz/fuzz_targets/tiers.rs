//! `--swap`: a list of tiers, or where it is wrong.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| match ebb_swap::parse_tiers(text) {
    Ok(tiers) => assert!(!tiers.is_empty()),
    Err(error) => assert!(error.at <= text.len() && text.is_char_boundary(error.at), "{error}"),
});
