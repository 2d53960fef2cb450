//! Commands of `ebb lru-gen`: whatever is typed is carried out or refused, and memory stays in order.
#![no_main]

use ebb_mm::lru::memory::{Access, Memory};
use ebb_mm::observe::lru_gen::{Command, Enabled};
use ebb_mm::tunables::Tunables;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = Enabled::parse(text);
    let mut memory = Memory::anon(Tunables::default(), 1000, 512);
    for page in 0..1000 {
        memory.touch(page, Access::AnonWrite);
    }
    // As debugfs has them: one a line, or parted by commas.
    for command in text.split([',', '\n']).take(8) {
        let _ = Command::parse(command);
        let _ = memory.command(command);
    }
    assert!(memory.resident() <= 512);
});
