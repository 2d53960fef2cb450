//! Reads page faults as bpftrace prints them, `NANOSECONDS PID COMMAND ADDRESS`, with this
//! one-liner:
//!
//! ```text
//! bpftrace -e 'tracepoint:exceptions:page_fault_user { printf("%llu %d %s %llx\n", nsecs, pid, comm, args->address); }'
//! ```
//!
//! Commands may have several words. The decoder skips bpftrace's own messages before the first
//! fault, but refuses a message about lost events.

use super::Record;
use super::faults::{Fault, Faults};
use super::reader::{Decode, Lack, Malformed};
use super::text::each_line;

const EXPECTED: &str =
    "NANOSECONDS PID COMMAND ADDRESS, as the one-liner in docs/traces.md prints it";
const LOST: &str = "no lost events: a file without some of its faults is no trace; make \
                    BPFTRACE_PERF_RB_PAGES larger, or filter by pid";

/// Decoder of the format.
#[derive(Default)]
pub struct BpftraceDecoder {
    line: u64,
    faults: Faults,
}

impl Decode for BpftraceDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        let faults = &mut self.faults;
        each_line(bytes, last, &mut self.line, |line| {
            let text = std::str::from_utf8(line).unwrap_or_default();
            if line.is_empty() || text.starts_with('#') || is_greeting(text) {
                return Ok(());
            }
            if text.starts_with("Lost ") {
                return Err(LOST);
            }
            out.push(faults.record(fault(line).ok_or(EXPECTED)?));
            Ok(())
        })
    }

    fn lacks(&self) -> Option<Lack> {
        Some(Lack::Touches)
    }
}

fn is_greeting(line: &str) -> bool {
    line.starts_with("Attaching ") || line.starts_with("Attached ")
}

/// Parses a line. The command may be any bytes, UTF-8 or not, because a process sets its own name.
fn fault(line: &[u8]) -> Option<Fault> {
    let line = line.trim_ascii();
    let word = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    let mut words = line.splitn(3, |&byte| byte == b' ');
    let nanoseconds = decimal(&word(words.next()?)?)?;
    let pid = decimal(&word(words.next()?)?)?;
    let rest = words.next()?;
    let space = rest.iter().rposition(|&byte| byte == b' ')?;
    let address = word(&rest[space + 1..])?;
    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16).ok()?;
    Some(Fault { pid, us: nanoseconds / 1000, address })
}

fn decimal(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

/// Returns whether a file with this first line has this format.
pub(super) fn is_one(line: &str) -> bool {
    is_greeting(line) || fault(line.as_bytes()).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::faults::PAGE_BITS;
    use super::*;

    fn decoded(text: &[u8]) -> Result<Vec<(u64, u64)>, Malformed> {
        let mut out = Vec::new();
        BpftraceDecoder::default().decode(text, true, &mut out)?;
        Ok(out.iter().map(|r| (r.dt, r.page)).collect())
    }

    #[test]
    fn faults_are_read_whatever_their_commands_are_called() {
        let text = b"Attaching 1 probe...\n5000000999 7 ls 7f0000001234\n5000031000 9 Web Content 0x1000\n\
                     5000032000 7 \xff\xfe z 7f0000002000\n\n5000034000 9 a 1fff\n";
        let second = 1 << PAGE_BITS;
        let expected = [(0, 0x7_f000_0001), (31, second | 1), (1, 0x7_f000_0002), (2, second | 1)];
        assert_eq!(decoded(text).unwrap(), expected);
    }

    #[test]
    fn a_line_that_is_no_fault_is_reported_with_its_number() {
        for line in ["1 2 ls", "1 2 7f00", "x 2 ls 7f00", "1 -2 ls 7f00", "1 2 ls 7g00", "1 2 ls "]
        {
            let wrong = decoded(format!("1 2 ls 7f00\n{line}\n").as_bytes()).unwrap_err();
            assert_eq!((wrong.place.to_string(), wrong.expected), ("line 2".into(), EXPECTED));
            assert_eq!(wrong.found, line.trim_end());
        }
        let lost = decoded(b"1 2 ls 7f00\nLost 311 events\n").unwrap_err();
        assert_eq!(lost.expected, LOST);
    }
}
