//! What a process says when it connects: any bytes are a hello, a request or neither, and never a crash of the pager.
#![no_main]

use ebb_agent::protocol::{Hello, State};
use ebb_control::Request;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(hello) = Hello::from_bytes(bytes) {
        assert_eq!(hello.to_bytes()[..], *bytes);
    }
    if let Some(Ok(request)) = Request::from_bytes(bytes) {
        assert_eq!(Request::from_bytes(&request.to_bytes()), Some(Ok(request)));
    }
    // The word of a call is the program's to write.
    if let Some(word) = bytes.first_chunk() {
        let state = State(u32::from_le_bytes(*word));
        assert_eq!(state.answered(state.answer()).answer(), state.answer());
        assert_eq!(state.at(state.stage()).stage(), state.stage());
    }
});
