//! Ebb's own binary format: one or a few bytes per record.
//!
//! After the magic, each record is a tag byte and up to two numbers. The tag has five fields, from
//! the low bits: op (2 bits), kind (2), and whether dt is other than 1 (1). Then come the two low
//! bits of the page's distance (2), and whether the distance has more bits (1). If so marked, dt
//! follows, and then the rest of the distance. The distance is from the previous page, zigzag;
//! numbers are LEB128.

use std::io::{self, Write};

use super::reader::{Decode, Lack, Malformed, Position, excerpt};
use super::{Kind, Op, Record};

/// First bytes of a compact file.
pub const MAGIC: &[u8] = b"EBBTRC1\n";
/// First bytes of a compact file that lacks information.
const MAGICS: [(&[u8], Lack); 2] = [(b"EBBTRF1\n", Lack::Touches), (b"EBBTRR1\n", Lack::Accesses)];

/// Returns whether a file with these first bytes is a compact one.
pub(super) fn is_one(start: &[u8]) -> bool {
    start.starts_with(MAGIC) || MAGICS.iter().any(|(magic, _)| start.starts_with(magic))
}
const HAS_DT: u8 = 1 << 4;
const DISTANCE_SHIFT: u32 = 5;
const HAS_MORE: u8 = 1 << 7;
/// Size of the longest record in bytes: the tag and two numbers.
const RECORD_BYTES_MAX: usize = 1 + 10 + 10;

/// Decoder that reads the magic once and then records.
#[derive(Default)]
pub struct CompactDecoder {
    started: bool,
    lacks: Option<Lack>,
    page: u64,
    offset: u64,
}

impl CompactDecoder {
    fn wrong(&self, at: usize, bytes: &[u8], expected: &'static str) -> Malformed {
        let found = excerpt(&bytes[at..]);
        Malformed { place: Position::Byte(self.offset + at as u64), expected, found }
    }

    /// Reads one record from `bytes`; `None` if it is cut off or has an impossible number.
    fn record(&mut self, bytes: &[u8]) -> Option<(Record, usize)> {
        let (&tag, rest) = bytes.split_first()?;
        let mut at = 1;
        let mut dt = 1;
        if tag & HAS_DT != 0 {
            let (value, length) = varint(rest)?;
            (dt, at) = (value, at + length);
        }
        let mut distance = u64::from(tag >> DISTANCE_SHIFT & 3);
        if tag & HAS_MORE != 0 {
            let (value, length) = varint(&bytes[at..])?;
            distance |= value.checked_mul(4)?;
            at += length;
        }
        self.page = self.page.wrapping_add((distance >> 1) ^ (distance & 1).wrapping_neg());
        let op = match tag & 3 {
            0 => Op::Read,
            1 => Op::Write,
            _ => Op::Exec,
        };
        let kind = match tag >> 2 & 3 {
            0 => Kind::Anon,
            1 => Kind::Mapped,
            2 => Kind::Buffered,
            _ => Kind::Object,
        };
        Some((Record { dt, page: self.page, op, kind }, at))
    }
}

impl Decode for CompactDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        let mut taken = 0;
        if !self.started {
            if bytes.len() < MAGIC.len() && !last {
                return Ok(0);
            }
            self.lacks = MAGICS.iter().find(|(m, _)| bytes.starts_with(m)).map(|(_, lack)| *lack);
            if !is_one(bytes) {
                return Err(self.wrong(0, bytes, "EBBTRC1 at the start of a compact trace"));
            }
            self.started = true;
            taken = MAGIC.len();
        }
        while taken < bytes.len() && (last || bytes.len() - taken >= RECORD_BYTES_MAX) {
            let Some((record, length)) = self.record(&bytes[taken..]) else {
                return Err(self.wrong(taken, bytes, "a whole record"));
            };
            out.push(record);
            taken += length;
        }
        self.offset += taken as u64;
        Ok(taken)
    }

    fn is_text(&self) -> bool {
        false
    }

    fn lacks(&self) -> Option<Lack> {
        self.lacks
    }
}

/// Reads a LEB128 number, and returns it with its length.
#[inline]
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        let part = u64::from(byte & 0x7f);
        if i == 9 && part > 1 {
            return None;
        }
        value |= part << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

/// Writer of compact traces.
pub struct CompactWriter<W> {
    sink: W,
    page: u64,
}

impl<W: Write> CompactWriter<W> {
    /// Starts a trace, which may lack information.
    pub fn new(mut sink: W, lacks: Option<Lack>) -> io::Result<Self> {
        let magic = MAGICS.iter().find(|(_, lack)| Some(*lack) == lacks);
        sink.write_all(magic.map_or(MAGIC, |(magic, _)| magic))?;
        Ok(Self { sink, page: 0 })
    }

    /// Appends a record.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        let signed = record.page.wrapping_sub(self.page) as i64;
        let distance = ((signed << 1) ^ (signed >> 63)) as u64;
        self.page = record.page;
        let mut bytes = [0; RECORD_BYTES_MAX];
        let mut at = 1;
        bytes[0] =
            record.op as u8 | (record.kind as u8) << 2 | ((distance & 3) as u8) << DISTANCE_SHIFT;
        if record.dt != 1 {
            bytes[0] |= HAS_DT;
            at += put_varint(&mut bytes[at..], record.dt);
        }
        if distance > 3 {
            bytes[0] |= HAS_MORE;
            at += put_varint(&mut bytes[at..], distance >> 2);
        }
        self.sink.write_all(&bytes[..at])
    }

    /// Flushes and returns the sink.
    pub fn finish(mut self) -> io::Result<W> {
        self.sink.flush()?;
        Ok(self.sink)
    }
}

fn put_varint(bytes: &mut [u8], mut value: u64) -> usize {
    let mut at = 0;
    while value >= 0x80 {
        bytes[at] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    bytes[at] = value as u8;
    at + 1
}
