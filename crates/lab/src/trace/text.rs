//! The plain text formats: valgrind lackey's memory trace, and one page number a line.

use ebb_mm::types::{PAGE_SHIFT, PAGE_SIZE};

use super::csv::number;
use super::reader::{Decode, Malformed, Position, excerpt};
use super::{Kind, Op, Record};

/// Calls `parse` with each whole line of `bytes` and returns the number of bytes used.
pub(super) fn each_line(
    bytes: &[u8],
    last: bool,
    line: &mut u64,
    mut parse: impl FnMut(&[u8]) -> Result<(), &'static str>,
) -> Result<usize, Malformed> {
    let mut taken = 0;
    while taken < bytes.len() {
        let rest = &bytes[taken..];
        let end = match rest.iter().position(|&byte| byte == b'\n') {
            Some(end) => end,
            None if last => rest.len(),
            None => break,
        };
        *line += 1;
        let text = rest[..end].trim_ascii_end();
        parse(text).map_err(|expected| Malformed {
            place: Position::Line(*line),
            expected,
            found: excerpt(text),
        })?;
        taken += (end + 1).min(rest.len());
    }
    Ok(taken)
}

/// Decoder of `valgrind --tool=lackey --trace-mem=yes`. Skips lines of other tools and of the
/// program (starting with `==` or `--`). An access that crosses a page counts for both pages.
#[derive(Default)]
pub struct LackeyDecoder {
    line: u64,
}

impl Decode for LackeyDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        each_line(bytes, last, &mut self.line, |line| {
            if line.is_empty() || line.starts_with(b"==") || line.starts_with(b"--") {
                return Ok(());
            }
            let (op, rest) = match line {
                [b'I', b' ', b' ', rest @ ..] => (Op::Exec, rest),
                [b' ', b'L', b' ', rest @ ..] => (Op::Read, rest),
                [b' ', b'S' | b'M', b' ', rest @ ..] => (Op::Write, rest),
                _ => return Err("I, L, S or M and address,size"),
            };
            let (address, bytes) = address_and_size(rest).ok_or("hexadecimal address,size")?;
            let end = address.saturating_add(bytes.clamp(1, PAGE_SIZE as u64) - 1);
            let (first, last) = (address >> PAGE_SHIFT, end >> PAGE_SHIFT);
            for page in first..=last {
                let dt = u64::from(page == first);
                out.push(Record { dt, page, op, kind: Kind::Anon });
            }
            Ok(())
        })
    }
}

fn address_and_size(field: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(field).ok()?;
    let (address, size) = text.split_once(',')?;
    Some((u64::from_str_radix(address.trim(), 16).ok()?, size.trim().parse().ok()?))
}

/// Decoder of one page number a line; skips empty lines and lines starting with `#`.
#[derive(Default)]
pub struct PagesDecoder {
    line: u64,
}

impl Decode for PagesDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        each_line(bytes, last, &mut self.line, |line| {
            let line = line.trim_ascii_start();
            if line.is_empty() || line.starts_with(b"#") {
                return Ok(());
            }
            let page = number(line).ok_or("a page number")?;
            out.push(Record { dt: 1, page, ..Record::default() });
            Ok(())
        })
    }
}
