//! Reads DAMON's results as `damo report raw` (up to damo 1) and `damo report access --raw_form`
//! (later) print them. A file has, for each interval, the regions of one address space. For each
//! region it has the number of samples in which a page was found accessed.
//!
//! DAMON checks one page of a region and assumes that the others behave alike. So the accesses are
//! derived. In each interval, each page of an accessed region has one access, by address, at the
//! interval's beginning. The number and order of accesses, and the pages really accessed, are not
//! in the file. Times are in microseconds here.
//!
//! Invariant
//! * DAMON-1: the decoder consumes a region's line after its last page. Until then `done` counts
//!   the pages already emitted.

use ebb_mm::types::PAGE_SHIFT;

use super::reader::{Decode, Lack, Malformed, Position, excerpt};
use super::{Access, Kind, Op, Record};

/// Largest number of records emitted at a time.
const RECORDS_MAX: usize = 1 << 16;

const EXPECTED: &str =
    "START-END (SIZE) NR_ACCESSES [AGE], as `damo report access --raw_form` prints a region";
const TIME: &str = "a time such as 104.599 ms, 1 m 2.5 s or, with --raw_number, nanoseconds";
const ONE: &str =
    "one address space (damo prints several one after the other); report one target at a time";
const LARGE: &str = "a region of 1 TiB at most";
const NO_START: &str = "monitoring_start: before the first region";
const BACK: &str = "intervals in the order of their times";

/// Decoder of the format.
#[derive(Default)]
pub struct DamonDecoder {
    line: u64,
    begun: bool,
    target: Option<String>,
    /// Beginning of the interval; none before the first `monitoring_start`.
    start_us: Option<u64>,
    /// Time up to which the records account, in microseconds.
    told_us: u64,
    /// Number of pages of the current region already emitted.
    done: u64,
}

/// A line that is no region.
enum Said<'a> {
    Base,
    Start(&'a str),
    Target(&'a str),
    /// Line that is not needed.
    Other,
}

impl<'a> Said<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        if text.is_empty() || text.starts_with('#') {
            return Some(Self::Other);
        }
        let (key, value) = text.split_once(':')?;
        match key {
            "base_time_absolute" => Some(Self::Base),
            "monitoring_start" => Some(Self::Start(value.trim())),
            "target_id" => Some(Self::Target(value.trim())),
            "monitoring_end" | "monitoring_duration" | "nr_regions" => Some(Self::Other),
            _ => None,
        }
    }
}

/// A region.
#[derive(PartialEq, Eq, Debug)]
struct Region {
    first: u64,
    pages: u64,
    accesses: u64,
}

impl Region {
    fn parse(text: &str) -> Option<Self> {
        let (range, rest) = text.split_once('(')?;
        let (start, end) = range.trim_end().split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        let (_, counts) = rest.split_once(')')?;
        let mut counts = counts.trim_start_matches(':').split_ascii_whitespace();
        let accesses = counts.next()?.parse().ok()?;
        let first = start >> PAGE_SHIFT;
        // A page that the region covers in part counts as a page of it; DAMON's regions end with
        // pages.
        let after = (end >> PAGE_SHIFT) + u64::from(end % (1 << PAGE_SHIFT) > 0);
        Some(Self { first, pages: after.checked_sub(first)?, accesses })
    }
}

impl DamonDecoder {
    fn said(&mut self, said: &Said) -> Result<(), &'static str> {
        match said {
            Said::Base if std::mem::replace(&mut self.begun, true) => return Err(ONE),
            Said::Start(time) => {
                let start = microseconds(time).ok_or(TIME)?;
                if self.start_us.is_some_and(|before| start < before) {
                    return Err(BACK);
                }
                self.start_us = Some(start);
            }
            Said::Target(target) => match &self.target {
                Some(one) if one != target => return Err(ONE),
                Some(_) => {}
                None => self.target = Some((*target).to_owned()),
            },
            Said::Base | Said::Other => {}
        }
        Ok(())
    }

    /// Emits pages of a region. Returns whether the last page of the region is out.
    fn touch(&mut self, region: &Region, out: &mut Vec<Record>) -> Result<bool, &'static str> {
        let start = self.start_us.ok_or(NO_START)?;
        if region.pages > u64::from(Access::PAGES_MAX) {
            return Err(LARGE);
        }
        let pages = if region.accesses > 0 { region.pages } else { 0 };
        while self.done < pages {
            if out.len() >= RECORDS_MAX {
                return Ok(false);
            }
            let dt = start.saturating_sub(self.told_us);
            self.told_us = self.told_us.max(start);
            let page = region.first + self.done;
            out.push(Record { dt, page, op: Op::Read, kind: Kind::Anon });
            self.done += 1;
        }
        self.done = 0;
        Ok(true)
    }

    /// Handles a line. Returns whether the line is finished.
    fn one(&mut self, text: &str, out: &mut Vec<Record>) -> Result<bool, &'static str> {
        if let Some(said) = Said::parse(text) {
            return self.said(&said).map(|()| true);
        }
        self.touch(&Region::parse(text).ok_or(EXPECTED)?, out)
    }
}

impl Decode for DamonDecoder {
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed> {
        let mut taken = 0;
        while taken < bytes.len() {
            let rest = &bytes[taken..];
            let end = match rest.iter().position(|&byte| byte == b'\n') {
                Some(end) => end,
                None if last => rest.len(),
                None => break,
            };
            let line = rest[..end].trim_ascii();
            let text = std::str::from_utf8(line).unwrap_or("?");
            let done = self.one(text, out).map_err(|expected| Malformed {
                place: Position::Line(self.line + 1),
                expected,
                found: excerpt(line),
            })?;
            if !done {
                break;
            }
            self.line += 1;
            taken += (end + 1).min(rest.len());
        }
        Ok(taken)
    }

    fn lacks(&self) -> Option<Lack> {
        Some(Lack::Accesses)
    }
}

/// Parses a time such as `8 m 59.809 s` or `104.599 ms`; without a unit, nanoseconds.
fn microseconds(text: &str) -> Option<u64> {
    let mut words = text.split_ascii_whitespace();
    let mut us = 0.0;
    let mut any = false;
    while let Some(number) = words.next() {
        let number: f64 = number.parse().ok()?;
        let unit_us = match words.next() {
            Some("ns") => 1e-3,
            None if !any => 1e-3,
            Some("us") => 1.0,
            Some("ms") => 1e3,
            Some("s") => 1e6,
            Some("m") => 60e6,
            Some("h") => 3_600e6,
            Some("d") => 86_400e6,
            _ => return None,
        };
        us += number * unit_us;
        any = true;
    }
    // 1.6e19 us are half a million years.
    (any && (0.0..1.6e19).contains(&us)).then_some(us as u64)
}

/// Returns whether a file with this first line has this format.
pub(super) fn is_one(line: &str) -> bool {
    line.starts_with("base_time_absolute:") || line.starts_with("monitoring_start:")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "base_time_absolute: 8 m 59.809 s\n\nmonitoring_start:                0 ns\n\
        monitoring_end:            104.599 ms\nmonitoring_duration:       104.599 ms\n\
        target_id: 18446623438842320000\nnr_regions: 3\n\
        563ebaa00000-563ebaa02000(   8.000 KiB):        1\n\
        7f938d7e1000-7f938ddfc000(   6.105 MiB):        0\n\
        7fff66b0a000-7fff66b0b000(   4.000 KiB):        20\n\n\
        monitoring_start:          104.599 ms\nmonitoring_end:            208.590 ms\n\
        monitoring_duration:       103.991 ms\ntarget_id: 18446623438842320000\nnr_regions: 1\n\
        563ebaa01000-563ebaa02000(   4.000 KiB):        1\n";

    fn decoded(text: &str) -> Result<Vec<(u64, u64)>, Malformed> {
        let (mut decoder, mut out, mut taken) = (DamonDecoder::default(), Vec::new(), 0);
        while taken < text.len() {
            let mut some = Vec::new();
            let more = decoder.decode(&text.as_bytes()[taken..], true, &mut some)?;
            assert!(more > 0 || !some.is_empty());
            assert!(some.len() <= RECORDS_MAX);
            taken += more;
            out.extend(some.iter().map(|r| (r.dt, r.page)));
        }
        Ok(out)
    }

    #[test]
    fn of_regions_that_were_accessed_each_page_is_touched_once_an_interval() {
        let (a, b) = (0x5_63eb_aa00, 0x7_fff6_6b0a);
        let expected = [(0, a), (0, a + 1), (0, b), (104_599, a + 1)];
        assert_eq!(decoded(OLD).unwrap(), expected);
        // Output since version 2: with ages, and numbers for programs.
        let new = "base_time_absolute: 539809000000\n\nmonitoring_start:                   0\ntarget_id: None\n\
            nr_regions: 2\n# start_addr     end_addr        length  nr_accesses   age\n\
            563ebaa00000-563ebaa02000 (        8192)           1     3\n\
            7fff66b0a000-7fff66b0b000 (        4096)          20    -1\n\n\
            monitoring_start:           104599000\ntarget_id: None\n\
            563ebaa01000-563ebaa02000 (        4096)           1     0\n\n";
        assert_eq!(decoded(new).unwrap(), expected);
    }

    #[test]
    fn large_regions_come_in_parts() {
        let text = "monitoring_start: 0 ns\n000000000000-000040000000 (1.000 GiB) 1 0\nmonitoring_start: 1 us\n\
                    000000000000-000000001000 (4.000 KiB) 1 0\n";
        let all = decoded(text).unwrap();
        assert_eq!(all.len(), (1 << 18) + 1);
        assert!(all[..1 << 18].iter().enumerate().all(|(i, &r)| r == (0, i as u64)));
        assert_eq!(all[1 << 18], (1, 0));
    }

    #[test]
    fn a_bad_damon_record_is_refused_with_its_line() {
        let told = |text: &str| {
            let wrong = decoded(text).unwrap_err();
            (wrong.place.to_string(), wrong.expected)
        };
        let lines = OLD.lines().count() as u64;
        let line = |n: u64| format!("line {n}");
        assert_eq!(told(&format!("{OLD}\nbase_time_absolute: 9 m\n")), (line(lines + 2), ONE));
        assert_eq!(told(&format!("{OLD}target_id: 7\n")), (line(lines + 1), ONE));
        assert_eq!(told(&format!("{OLD}monitoring_start: 5 ms\n")), (line(lines + 1), BACK));
        assert_eq!(told("monitoring_start: 5 parsecs\n"), (line(1), TIME));
        assert_eq!(told("1000-2000 (4 KiB) 1 0\n"), (line(1), NO_START));
        let start = "monitoring_start: 0\n";
        assert_eq!(told(&format!("{start}0-ffffffffffff (256 TiB) 1 0\n")), (line(2), LARGE));
        for region in [
            "0 addr [4.000 GiB, 16.245 GiB ) access 0 %",
            "2000-1000 (4 KiB) 1",
            "0-1000 (4 KiB)",
            "x",
        ] {
            assert_eq!(told(&format!("{start}{region}\n")), (line(2), EXPECTED), "{region}");
        }
    }

    #[test]
    fn times_are_read_as_damo_prints_them() {
        for (text, us) in [
            ("0 ns", Some(0)),
            ("104.599 ms", Some(104_599)),
            ("8 m 59.809 s", Some(539_809_000)),
            ("1 h 2 m 3 s", Some(3_723_000_000)),
            ("539809000000", Some(539_809_000)),
            ("", None),
            ("-1 s", None),
            ("1 s 2", None),
            ("inf s", None),
        ] {
            assert_eq!(microseconds(text), us, "{text}");
        }
    }
}
