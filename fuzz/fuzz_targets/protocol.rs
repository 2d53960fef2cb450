//! What a process says when it connects: any bytes are a greeting or none, and never a crash of the pager.
#![no_main]

use ebb_agent::protocol::{Greeting, State};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(greeting) = Greeting::from_bytes(bytes) {
        assert_eq!(greeting.to_bytes()[..], *bytes);
    }
    // The word of a call is the program's to write.
    if let Some(word) = bytes.first_chunk() {
        let state = State(u32::from_le_bytes(*word));
        assert_eq!(state.answered(state.answer()).answer(), state.answer());
        assert_eq!(state.at(state.stage()).stage(), state.stage());
    }
});
