//! Switches: a text is refused with a reason, or what is set reads as it was written.
#![no_main]

use ebb_mm::tunables::Tunables;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let mut switches = Tunables::default();
    if let Err(error) = switches.set(text) {
        assert!(!error.to_string().is_empty());
        return;
    }
    let mut again = Tunables::default();
    for row in switches.rows() {
        again.set_pair(row.key, &row.value).expect("what is shown can be set");
    }
    assert_eq!(switches, again);
});
