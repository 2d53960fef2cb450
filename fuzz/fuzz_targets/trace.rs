//! Traces in every format, and where the format is to be found out: records, or where the file is wrong.
#![no_main]

use ebb_lab::trace::{Format, Reader};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let formats = [Format::Csv, Format::Compact, Format::Oracle, Format::Lackey, Format::Pages, Format::Perf, Format::Bpftrace, Format::Damon];
    for format in formats.map(Some).into_iter().chain([None]) {
        let Ok(mut reader) = Reader::from_bytes("fuzz", bytes.to_vec(), format) else { continue };
        let mut records = Vec::new();
        // A region of DAMON's may be a TiB.
        let mut read = 0;
        while read < 1 << 20
            && let Ok(true) = reader.read(&mut records)
        {
            read += records.len();
            records.clear();
        }
    }
});
