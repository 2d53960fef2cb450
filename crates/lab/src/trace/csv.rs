//! The CSV format: a header line that names columns, then one record a line. In a column `fault`,
//! each page was missing when it was accessed. Such a file has no accesses to resident pages.
//!
//! The parser makes one pass over the buffer, without a library. A trace of 50 million records is a
//! gigabyte of text, and parsing must not be slower than unpacking.

use super::reader::{Decode, Lack, Malformed, Position, excerpt};
use super::{Kind, Op, Record};

/// Known columns; others are skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Column {
    Dt,
    Page,
    Op,
    Kind,
    Other,
}

/// Decoder that reads the header once and then records.
#[derive(Default)]
pub struct CsvDecoder {
    columns: Vec<Column>,
    faults: bool,
    line: u64,
}

/// Name of the page column in a trace of page faults only.
pub(super) const FAULT: &str = "fault";

/// Order of columns with a fast parser.
const USUAL: [Column; 4] = [Column::Dt, Column::Page, Column::Op, Column::Kind];

impl CsvDecoder {
    fn header(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let text = String::from_utf8_lossy(line);
        self.faults = text.split(',').any(|name| name.trim() == FAULT);
        self.columns = text
            .trim()
            .split(',')
            .map(|name| match name.trim() {
                "dt" => Column::Dt,
                "page" | FAULT => Column::Page,
                "op" => Column::Op,
                "kind" => Column::Kind,
                _ => Column::Other,
            })
            .collect();
        if self.columns.contains(&Column::Page) {
            return Ok(());
        }
        let expected = "a header with a column named page, such as dt,page,op,kind";
        Err(Malformed { place: Position::Line(1), expected, found: excerpt(line) })
    }

    fn wrong(&self, line: &[u8], expected: &'static str) -> Malformed {
        Malformed { place: Position::Line(self.line), expected, found: excerpt(line) }
    }

    /// Parses one line, without its end.
    fn record(&self, line: &[u8]) -> Result<Record, &'static str> {
        let mut record = Record { dt: 1, ..Record::default() };
        let mut fields = line.split(|&byte| byte == b',');
        for column in &self.columns {
            let field = fields.next().ok_or("as many fields as the header has")?.trim_ascii();
            match column {
                Column::Dt => record.dt = duration(field).ok_or("a number as dt")?,
                Column::Page => {
                    record.page = number(field).ok_or("a page number below 2^64")?;
                }
                Column::Op => record.op = op(field).ok_or("r, w or x as op")?,
                Column::Kind => record.kind = kind(field).ok_or("a, f, b or k as kind")?,
                Column::Other => {}
            }
        }
        match fields.next() {
            None => Ok(record),
            Some(_) => Err("no more fields than the header has"),
        }
    }
}

impl Decode for CsvDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        let mut taken = 0;
        let is_usual = self.columns == USUAL;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            if is_usual && let Some((record, after)) = usual(rest) {
                out.push(record);
                taken = bytes.len() - after.len();
                self.line += 1;
                continue;
            }
            let end = match rest.iter().position(|&byte| byte == b'\n') {
                Some(end) => end,
                None if last => rest.len(),
                None => break,
            };
            let line = &rest[..end];
            taken += (end + 1).min(rest.len());
            self.line += 1;
            if self.columns.is_empty() {
                self.header(line)?;
            } else if !line.trim_ascii().is_empty() {
                let record = self.record(line).map_err(|expected| self.wrong(line, expected))?;
                out.push(record);
            }
        }
        Ok(taken)
    }

    fn lacks(&self) -> Option<Lack> {
        self.faults.then_some(Lack::Touches)
    }
}

/// Parses a line of exactly `dt,page,op,kind` without spaces, and returns the rest. `None` means
/// that the slow parser must read the line.
#[inline]
fn usual(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (dt, rest) = leading(bytes)?;
    let (page, rest) = leading(rest.strip_prefix(b",")?)?;
    match rest {
        [b',', code, b',', kind_code, b'\n', after @ ..] => {
            let (op, kind) = (op(&[*code])?, kind(&[*kind_code])?);
            Some((Record { dt, page, op, kind }, after))
        }
        _ => None,
    }
}

/// Parses the decimal number at the start of `bytes`, of at most 19 digits, and returns the rest.
#[inline]
pub(super) fn leading(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0u64;
    let mut digits = 0;
    for &byte in bytes {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        value = value.wrapping_mul(10).wrapping_add(u64::from(digit));
        digits += 1;
    }
    if digits == 0 || digits > 19 { None } else { Some((value, &bytes[digits..])) }
}

/// Parses a decimal number, or with 0x a hexadecimal one.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    if let Some((value, [])) = leading(field) {
        return Some(value);
    }
    let text = std::str::from_utf8(field).ok()?;
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Parses a time: a number, without its decimals.
fn duration(field: &[u8]) -> Option<u64> {
    let whole = field.split(|&byte| byte == b'.').next()?;
    let decimals = field.get(whole.len() + 1..).unwrap_or_default();
    decimals.iter().all(u8::is_ascii_digit).then(|| number(whole))?
}

fn op(field: &[u8]) -> Option<Op> {
    match field {
        b"r" => Some(Op::Read),
        b"w" => Some(Op::Write),
        b"x" => Some(Op::Exec),
        _ => None,
    }
}

fn kind(field: &[u8]) -> Option<Kind> {
    match field {
        b"a" => Some(Kind::Anon),
        b"f" => Some(Kind::Mapped),
        b"b" => Some(Kind::Buffered),
        b"k" => Some(Kind::Object),
        _ => None,
    }
}
