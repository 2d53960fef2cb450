//! Reads page faults as `perf script` prints them: `[COMMAND] [PID[/TID]] [[CPU]] SECONDS: [COUNT]
//! [EVENT:] ADDRESS`. Other requested fields may follow. Times are in microseconds here.

use super::Record;
use super::faults::{Fault, Faults};
use super::reader::{Decode, Lack, Malformed};
use super::text::each_line;

/// Decoder of the format.
#[derive(Default)]
pub struct PerfDecoder {
    line: u64,
    faults: Faults,
}

impl Decode for PerfDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        let faults = &mut self.faults;
        each_line(bytes, last, &mut self.line, |line| {
            let text = std::str::from_utf8(line).unwrap_or_default().trim_start();
            if text.is_empty() || text.starts_with('#') {
                return Ok(());
            }
            let fault = parse(text)
                .ok_or("SECONDS: [EVENT:] ADDRESS, as `perf script -F pid,time,addr` prints it")?;
            out.push(faults.record(fault));
            Ok(())
        })
    }

    fn lacks(&self) -> Option<Lack> {
        Some(Lack::Touches)
    }
}

/// Parses one line.
fn parse(text: &str) -> Option<Fault> {
    let mut before = Vec::new();
    let mut words = text.split_ascii_whitespace();
    // Commands may have several words.
    let us = loop {
        let word = words.next()?;
        match word.strip_suffix(':').and_then(microseconds) {
            Some(us) => break us,
            None => before.push(word),
        }
    };
    let number = |word: &&str| word.split('/').next()?.parse().ok();
    let pid = before.iter().rev().find(|word| !word.starts_with('[')).and_then(number);
    let mut address = words.next()?;
    // Skip the event's count and name, if they are printed.
    for next in words {
        let is_name = address.ends_with(':');
        if !is_name && !next.ends_with(':') {
            break;
        }
        address = next;
    }
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).ok()?;
    Some(Fault { pid: pid.unwrap_or(0), us, address })
}

/// Parses a time such as `38178.065276`.
fn microseconds(text: &str) -> Option<u64> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.len() < 6 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(fraction[..6].parse().ok()?)
}

/// Returns whether a file with this first line has this format.
pub(super) fn is_one(line: &str) -> bool {
    parse(line).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::faults::PAGE_BITS;
    use super::*;

    #[test]
    fn lines_of_perf_script_are_read_with_whatever_is_in_them() {
        let fault = |pid| Some(Fault { pid, us: 38_178_065_276, address: 0x7fcb_7d24_3110 });
        for line in [
            "38178.065276:     7fcb7d243110",
            "38178.065276789:     7fcb7d243110",
            "38178.065276: page-faults:     7fcb7d243110",
            "38178.065276:          1 page-faults:     7fcb7d243110",
            "38178.065276: page-faults:     7fcb7d243110 7fcb7d22a7ad _dl_start+0x3d (/usr/lib/ld.so)",
        ] {
            assert_eq!(parse(line), fault(0), "{line}");
        }
        for line in [
            "ls 20798 38178.065276:     7fcb7d243110",
            "two words 20798/20799 [001] 38178.065276: page-faults:     7fcb7d243110 7fcb7d22a7ad _dl_start",
            "20798 38178.065276:     7fcb7d243110",
        ] {
            assert_eq!(parse(line), fault(20798), "{line}");
        }
        for line in ["38178.06:  1", "ls 20798", "38178.065276:", "38178.065276: page-faults: xyz"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn pages_of_processes_are_apart_and_times_follow_each_other() {
        let text =
            b"# captured\n1 5.000000: 1000\n2 5.000030: 1fff\n1 5.000010: 1000\n1 5.000040: 2000\n";
        let mut out = Vec::new();
        let taken = PerfDecoder::default().decode(text, true, &mut out).unwrap();
        assert_eq!(taken, text.len());
        let told: Vec<(u64, u64)> = out.iter().map(|r| (r.dt, r.page)).collect();
        assert_eq!(told, [(0, 1), (30, 1 << PAGE_BITS | 1), (0, 1), (10, 2)]);
        let wrong = PerfDecoder::default().decode(b"1 5.000000: 1000\nfoo\n", true, &mut out);
        assert_eq!(wrong.unwrap_err().found, "foo");
    }
}
