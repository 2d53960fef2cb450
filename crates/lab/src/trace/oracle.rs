//! libCacheSim's oracleGeneral format: little-endian u32 time, u64 object, u32 size, i64 next
//! access, without padding. Objects count as pages, whatever their size.

use super::reader::{Decode, Malformed, Position};
use super::{Kind, Op, Record};

const RECORD_BYTES: usize = 24;

/// Decoder of the format.
#[derive(Default)]
pub struct OracleDecoder {
    time: u32,
    offset: u64,
}

impl Decode for OracleDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        let (records, rest) = bytes.as_chunks::<RECORD_BYTES>();
        for record in records {
            let time = u32::from_le_bytes([record[0], record[1], record[2], record[3]]);
            let mut page = [0; 8];
            page.copy_from_slice(&record[4..12]);
            out.push(Record {
                dt: u64::from(time.saturating_sub(self.time)),
                page: u64::from_le_bytes(page),
                op: Op::Read,
                kind: Kind::Object,
            });
            self.time = time;
        }
        let taken = bytes.len() - rest.len();
        self.offset += taken as u64;
        if last && !rest.is_empty() {
            return Err(Malformed {
                place: Position::Byte(self.offset),
                expected: "24 bytes a record",
                found: format!("{} bytes at the end", rest.len()),
            });
        }
        Ok(taken)
    }

    fn is_text(&self) -> bool {
        false
    }
}
