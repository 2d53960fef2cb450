//! Tests of the readers: the meaning of each format, the error messages, and that no bytes make a
//! reader panic.

use std::io::Write;
use std::path::Path;

use proptest::prelude::*;

use super::synth::{Pattern, Synth, SynthError};
use super::*;
use crate::policy::NEVER;

const FORMATS: [Format; 8] = [
    Format::Csv,
    Format::Compact,
    Format::Oracle,
    Format::Lackey,
    Format::Pages,
    Format::Perf,
    Format::Bpftrace,
    Format::Damon,
];

/// Largest number of records that a test reads. A damaged region of DAMON may be a TiB.
const RECORDS_MAX: usize = 1 << 20;

fn records(bytes: &[u8], format: Option<Format>) -> Result<Vec<Record>, TraceError> {
    let mut reader = Reader::from_bytes("t", bytes.to_vec(), format)?;
    let (mut all, mut some) = (Vec::new(), Vec::new());
    while all.len() < RECORDS_MAX && reader.read(&mut some)? {
        all.extend_from_slice(&some);
    }
    Ok(all)
}

fn message(bytes: &[u8], format: Option<Format>) -> String {
    records(bytes, format).unwrap_err().to_string()
}

fn record(dt: u64, page: u64, op: Op, kind: Kind) -> Record {
    Record { dt, page, op, kind }
}

fn compact(records: &[Record]) -> Vec<u8> {
    let mut writer = CompactWriter::new(Vec::new(), None).unwrap();
    for record in records {
        writer.write(record).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn csv_is_read_packed_and_plain() {
    let text =
        b"dt,page,op,kind\n1,1099511627802,x,f\n12,0,w,a\n0,7,r,b\n3,18446744073709551615,r,k";
    let expected = [
        record(1, 1_099_511_627_802, Op::Exec, Kind::Mapped),
        record(12, 0, Op::Write, Kind::Anon),
        record(0, 7, Op::Read, Kind::Buffered),
        record(3, u64::MAX, Op::Read, Kind::Object),
    ];
    assert_eq!(records(text, None).unwrap(), expected);
    let packed = zstd::encode_all(&text[..], 3).unwrap();
    assert_eq!(records(&packed, None).unwrap(), expected);
}

#[test]
fn csv_columns_may_be_missing_and_in_any_order() {
    let text = b"op,page,comment\r\nw, 0x10 ,hello\r\n\r\nr,5,\r\n";
    let expected = [record(1, 16, Op::Write, Kind::Anon), record(1, 5, Op::Read, Kind::Anon)];
    assert_eq!(records(text, None).unwrap(), expected);
    let seconds = records(b"dt,page\n12.75,9\n", None).unwrap();
    assert_eq!(seconds, [record(12, 9, Op::Read, Kind::Anon)]);
}

#[test]
fn errors_name_the_line_and_what_was_expected() {
    let csv = |line: &str| message(format!("dt,page,op,kind\n1,2,r,a\n{line}\n").as_bytes(), None);
    assert_eq!(csv("1,x,r,a"), "t: line 3: expected a page number below 2^64, found \"1,x,r,a\"");
    assert_eq!(csv("1,2,z,a"), "t: line 3: expected r, w or x as op, found \"1,2,z,a\"");
    assert_eq!(csv("1,2,r,q"), "t: line 3: expected a, f, b or k as kind, found \"1,2,r,q\"");
    assert!(csv("1,2").contains("expected as many fields as the header has"));
    assert!(csv("1,2,r,a,9").contains("expected no more fields than the header has"));
    assert!(csv("1,18446744073709551616,r,a").contains("a page number below 2^64"));
    assert_eq!(message(b"", None), "t: the trace has no accesses");
    assert!(message(b"hello world\n", None).contains("no trace format starts with"));
    assert!(message(b"a,b\n1,2\n", Some(Format::Csv)).contains("line 1: expected a header"));
    assert!(
        message(&[0; 30], Some(Format::Oracle)).contains("byte 24: expected 24 bytes a record")
    );
    assert!(message(b"EBBTRC1\n\x90", None).contains("byte 8: expected a whole record"));
    assert!(message(b"I  zz,3\n", None).contains("line 1: expected hexadecimal address,size"));
    assert!(message(b"1\n2\nx\n", None).contains("line 3: expected a page number"));
}

#[test]
fn a_missing_file_is_named() {
    let error = Reader::open(Path::new("/nowhere/t.csv"), None).err().unwrap();
    assert!(error.to_string().starts_with("/nowhere/t.csv: No such file"), "{error}");
}

/// Shows that a file without line ends is refused before all of it is in memory.
#[test]
fn a_line_without_end_is_refused_early() {
    let mut bytes = b"dt,page,op,kind\n".to_vec();
    bytes.resize(8 << 20, b'1');
    assert!(message(&bytes, None).contains("expected lines of text"));
}

#[test]
fn lackey_accesses_touch_every_page_they_cross() {
    let text = b"==12== Lackey\nI  04001000,3\n L 1ffeffe7f8,8\n S 04001ffe,4\n M 0,1\n";
    let expected = [
        record(1, 0x4001, Op::Exec, Kind::Anon),
        record(1, 0x1ff_effe, Op::Read, Kind::Anon),
        record(1, 0x4001, Op::Write, Kind::Anon),
        record(0, 0x4002, Op::Write, Kind::Anon),
        record(1, 0, Op::Write, Kind::Anon),
    ];
    assert_eq!(records(text, None).unwrap(), expected);
}

#[test]
fn page_lists_are_decimal_or_hexadecimal() {
    let pages =
        |bytes: &[u8]| records(bytes, None).unwrap().iter().map(|r| r.page).collect::<Vec<_>>();
    assert_eq!(pages(b"# pages\n1\n0x1f\n\n  7\n"), [1, 31, 7]);
}

#[test]
fn oracle_records_are_24_bytes() {
    let mut bytes = Vec::new();
    for (time, page) in [(5u32, 1u64 << 40), (9, 3)] {
        bytes.extend(time.to_le_bytes());
        bytes.extend(page.to_le_bytes());
        bytes.extend(4096u32.to_le_bytes());
        bytes.extend((-2i64).to_le_bytes());
    }
    let expected =
        [record(5, 1 << 40, Op::Read, Kind::Object), record(4, 3, Op::Read, Kind::Object)];
    assert_eq!(records(&bytes, Some(Format::Oracle)).unwrap(), expected);
}

#[test]
fn numbering_follows_appearance_and_the_future_is_right() {
    let text = b"50\n7\n50\n9\n7\n7\n";
    let mut reader = Reader::from_bytes("t", text.to_vec(), None).unwrap();
    let (spool, seen) = load(Path::new("t"), &mut reader, 5, |page| page != 9).unwrap();
    assert_eq!((seen, spool.len(), spool.pages(), spool.names()), (5, 4, 2, &[50, 7][..]));
    let numbers: Vec<u32> =
        spool.cursor().next_chunk().unwrap().iter().map(|access| access.page()).collect();
    assert_eq!(numbers, [0, 1, 0, 1]);
    let mut next = Vec::new();
    spool.future().unwrap().read(0, 4, &mut next).unwrap();
    assert_eq!(next, [2, 3, NEVER, NEVER]);
}

/// Shows that a trace returns equal accesses whether it stays in memory or moves to a file.
#[test]
fn a_long_trace_moves_to_a_file_and_keeps_its_accesses() {
    let synth = Synth {
        pattern: Pattern::Uniform,
        pages: 5000,
        accesses: (1 << 20) + 100_000,
        seed: 3,
        theta: 0.0,
    };
    let spool = synth.spool().unwrap();
    assert_eq!((spool.len(), spool.pages()), (synth.accesses, 5000));
    let future = spool.future().unwrap();
    let (mut cursor, mut next, mut start) = (spool.cursor(), Vec::new(), 0);
    let mut promised = vec![0; 5000];
    loop {
        let chunk = cursor.next_chunk().unwrap();
        if chunk.is_empty() {
            break;
        }
        future.read(start, chunk.len(), &mut next).unwrap();
        for (i, access) in chunk.iter().enumerate() {
            let number = (start + i as u64) as u32;
            let promise = &mut promised[access.page() as usize];
            assert!(*promise == 0 || *promise == number, "access {number} was not foreseen");
            *promise = next[i];
        }
        start += chunk.len() as u64;
    }
    assert_eq!(start, synth.accesses);
    assert!(promised.iter().all(|&next| next == NEVER));
}

#[test]
fn synthetic_traces_are_reproducible_and_have_their_shape() {
    let counts = |text: &str| {
        let synth = Synth::parse(text).unwrap();
        let mut counts = vec![0u64; synth.pages as usize];
        synth.generate(|page| counts[page as usize] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    };
    let zipf = counts("zipf,pages=1000,accesses=100000");
    assert_eq!(zipf, counts("zipf,pages=1000,accesses=100_000,seed=1"));
    assert_ne!(zipf, counts("zipf,pages=1000,accesses=100000,seed=2"));
    let ratio = zipf[0] as f64 / zipf[9] as f64;
    assert!((8.0..12.0).contains(&ratio), "rank 1 to rank 10: {ratio}");
    let uniform = counts("uniform,pages=1000,accesses=100000");
    assert!(uniform[0] < 150 && uniform[999] > 60, "{} {}", uniform[0], uniform[999]);
    assert_eq!(counts("loop,pages=1000,accesses=2500")[..], [[3; 500], [2; 500]].concat());
    let scan = counts("scanzipf,pages=1000,accesses=100000");
    assert_eq!(scan.iter().sum::<u64>(), 100_000);
}

#[test]
fn synthetic_names_have_errors_too() {
    assert_eq!(Synth::parse("zip").unwrap_err(), SynthError::Pattern("zip".into()));
    assert_eq!(Synth::parse("zipf,page=3").unwrap_err(), SynthError::Parameter("page".into()));
    let error = Synth::parse("loop,pages=1").unwrap_err().to_string();
    assert_eq!(error, "pages=1: expected 2 to 2^28");
}

fn any_record() -> impl Strategy<Value = Record> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::Exec)];
    let kind =
        prop_oneof![Just(Kind::Anon), Just(Kind::Mapped), Just(Kind::Buffered), Just(Kind::Object)];
    let page = prop_oneof![0u64..100, any::<u64>(), (1u64 << 40)..(1 << 40) + 50];
    let dt = prop_oneof![Just(1u64), 0u64..300, any::<u64>()];
    (dt, page, op, kind).prop_map(|(dt, page, op, kind)| Record { dt, page, op, kind })
}

const BPFTRACE: &str = "Attaching 1 probe...\n5000000999 7 ls 7f0000001234\n5000031000 9 Web Content 1000\n\
    5000032000 7 ls 7f0000002000\n";
const DAMON: &str = "base_time_absolute: 8 m 59.809 s\n\nmonitoring_start:                0 ns\n\
    monitoring_end:            104.599 ms\ntarget_id: 1\nnr_regions: 2\n\
    # start_addr     end_addr        length  nr_accesses   age\n\
    563ebaa00000-563ebaa02000 (   8.000 KiB)           1     0\n\
    7fff66b0a000-7fff66b0b000 (   4.000 KiB)           0     3\n\n\
    monitoring_start:          104.599 ms\ntarget_id: 1\n\
    563ebaa01000-563ebaa02000 (   4.000 KiB)           5     0\n";

#[test]
fn the_output_of_a_tracer_is_recognized_and_names_its_missing_data() {
    let of = |text: &str| {
        let mut reader = Reader::from_bytes("t", text.as_bytes().to_vec(), None).unwrap();
        let mut some = Vec::new();
        assert!(reader.read(&mut some).unwrap());
        (some.len(), reader.lacks())
    };
    assert_eq!(of(BPFTRACE), (3, Some(Lack::Touches)));
    assert_eq!(of(BPFTRACE.split_once('\n').unwrap().1), (3, Some(Lack::Touches)));
    assert_eq!(of(DAMON), (3, Some(Lack::Accesses)));
    // A converted trace still lacks its information.
    for lack in [None, Some(Lack::Touches), Some(Lack::Accesses)] {
        let mut writer = CompactWriter::new(Vec::new(), lack).unwrap();
        writer.write(&record(1, 2, Op::Read, Kind::Anon)).unwrap();
        let bytes = writer.finish().unwrap();
        let mut reader = Reader::from_bytes("t", bytes, None).unwrap();
        let mut some = Vec::new();
        assert!(reader.read(&mut some).unwrap());
        assert_eq!((some.len(), reader.lacks()), (1, lack));
    }
}

proptest! {
    #[test]
    fn compact_traces_keep_every_record(list in prop::collection::vec(any_record(), 1..300)) {
        prop_assert_eq!(&records(&compact(&list), None).unwrap(), &list);
        let packed = zstd::encode_all(&compact(&list)[..], 1).unwrap();
        prop_assert_eq!(&records(&packed, None).unwrap(), &list);
    }

    #[test]
    fn csv_keeps_every_record(list in prop::collection::vec(any_record(), 1..300)) {
        let mut text = b"dt,page,op,kind\n".to_vec();
        for Record { dt, page, op, kind } in &list {
            let op = match op { Op::Read => 'r', Op::Write => 'w', Op::Exec => 'x' };
            let kind = match kind {
                Kind::Anon => 'a',
                Kind::Mapped => 'f',
                Kind::Buffered => 'b',
                Kind::Object => 'k',
            };
            writeln!(text, "{dt},{page},{op},{kind}").unwrap();
        }
        prop_assert_eq!(&records(&text, None).unwrap(), &list);
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = records(&bytes, None);
        for format in FORMATS {
            let _ = records(&bytes, Some(format));
        }
    }

    #[test]
    fn the_output_of_a_tracer_may_be_damaged_and_cut_anywhere(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        for (text, format) in [(BPFTRACE, Format::Bpftrace), (DAMON, Format::Damon)] {
            let whole = records(text.as_bytes(), None).unwrap();
            let mut bytes = text.as_bytes().to_vec();
            bytes.truncate(cut.index(bytes.len()) + 1);
            // The whole lines of a truncated file are unchanged. The last line may have another
            // number.
            let cut = match records(&bytes, Some(format)) {
                Ok(cut) => cut,
                Err(error) => {
                    let lines = bytes.iter().filter(|&&byte| byte == b'\n').count();
                    let at = format!("line {}:", lines + 1);
                    prop_assert!(error.to_string().contains(&at), "{error}: not in {at}");
                    Vec::new()
                }
            };
            let sure = cut.len().saturating_sub(2);
            prop_assert_eq!(&cut[..sure], &whole[..sure]);
            for (at, value) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            let _ = records(&bytes, None);
            let _ = records(&bytes, Some(format));
        }
    }

    #[test]
    fn no_damage_makes_a_reader_panic(
        list in prop::collection::vec(any_record(), 1..50),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let text: String = "dt,page,op,kind\n1,2,r,a\n0,99999,x,f\n I  04001000,3\n".repeat(9);
        let packed = zstd::encode_all(&compact(&list)[..], 1).unwrap();
        for mut bytes in [compact(&list), text.into_bytes(), packed] {
            for (at, value) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            let _ = records(&bytes, None);
            for format in FORMATS {
                let _ = records(&bytes, Some(format));
            }
        }
    }
}
