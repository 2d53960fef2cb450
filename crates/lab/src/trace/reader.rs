//! Reads any trace format as a stream of records, and says where and why a file is wrong.

use std::io;
use std::path::{Path, PathBuf};

use super::Record;
use super::bpftrace::BpftraceDecoder;
use super::compact::CompactDecoder;
use super::csv::CsvDecoder;
use super::damon::DamonDecoder;
use super::input::Input;
use super::oracle::OracleDecoder;
use super::perf::PerfDecoder;
use super::text::{LackeyDecoder, PagesDecoder};

/// Bytes without an end of line after which a text file is taken to be no text file.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The formats that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Format {
    /// Text with a header line naming the columns `dt,page,op,kind`; only `page` must be there. It is `fault`
    /// instead if the file has page faults only.
    Csv,
    /// Ebb's own binary form, a few bytes a record.
    Compact,
    /// libCacheSim's oracleGeneral: 24 bytes a record.
    Oracle,
    /// The output of `valgrind --tool=lackey --trace-mem=yes`.
    Lackey,
    /// One page number a line, decimal or with 0x.
    Pages,
    /// What `perf script` prints of page faults recorded with their addresses (`perf record -e page-faults -c 1 -d`).
    Perf,
    /// Page faults as a one-liner of bpftrace prints them, `NANOSECONDS PID COMMAND ADDRESS` (docs/traces.md).
    Bpftrace,
    /// What `damo report access --raw_form` (or `damo report raw`) prints: DAMON's regions, of which accesses are derived.
    Damon,
}

/// What a trace does not have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lack {
    /// It has page faults only, and not what touched pages that were there.
    Touches,
    /// It has regions of memory and whether they were accessed in an interval, and no accesses at all.
    Accesses,
}

/// Where in a file something is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A line, counted from 1.
    Line(u64),
    /// A byte of the unpacked file, counted from 0.
    Byte(u64),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// A record that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Malformed {
    /// Where it starts.
    pub place: Place,
    /// What the format wants there.
    pub expected: &'static str,
    /// What is there.
    pub found: String,
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file's content is wrong.
    #[error("{}: {}: expected {}, found {:?}", path.display(), malformed.place,
        malformed.expected, malformed.found)]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        malformed: Malformed,
    },
    /// The file is of no known format.
    #[error("{}: no trace format starts with {found:?}; expected a header such as \
        dt,page,op,kind, or --input-format to say what it is", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// How it starts.
        found: String,
    },
    /// There are no accesses in it.
    #[error("{}: the trace has no accesses", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// More pages or accesses than can be numbered.
    #[error("{}: more than {limit} {what}; replay a part of it or a sample", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
        /// Of what.
        what: &'static str,
    },
    /// The temporary file that holds the numbered accesses failed.
    #[error("temporary file in {}: {error}; TMPDIR names another folder", dir.display())]
    Spool {
        /// The folder.
        dir: PathBuf,
        /// What the system says.
        error: io::Error,
    },
}

/// Turns bytes into records.
pub(super) trait Decode {
    /// Reads whole records from the start of `bytes` into `out` and says how many bytes they
    /// took. `last` means that no bytes follow these.
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed>;

    /// Whether a record can be as long as a line.
    fn is_text(&self) -> bool {
        true
    }

    /// What the file does not have.
    fn lacks(&self) -> Option<Lack> {
        None
    }
}

/// Up to 40 characters of `bytes`, for a message.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let text = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
    if line.len() > 40 { text + "..." } else { text }
}

/// A trace file being read.
pub struct Reader {
    path: PathBuf,
    input: Input,
    decoder: Box<dyn Decode>,
}

impl Reader {
    /// Opens a file; its format is found out unless given.
    pub fn open(path: &Path, format: Option<Format>) -> Result<Self, TraceError> {
        let io_error = |error| TraceError::Io { path: path.to_owned(), error };
        Self::from_input(path, Input::open(path).map_err(io_error)?, format)
    }

    /// Reads from memory; `name` stands for the path in messages.
    pub fn from_bytes(
        name: &str,
        bytes: Vec<u8>,
        format: Option<Format>,
    ) -> Result<Self, TraceError> {
        let path = Path::new(name);
        let io_error = |error| TraceError::Io { path: path.to_owned(), error };
        let input = Input::from_reader(io::Cursor::new(bytes)).map_err(io_error)?;
        Self::from_input(path, input, format)
    }

    fn from_input(
        path: &Path,
        mut input: Input,
        format: Option<Format>,
    ) -> Result<Self, TraceError> {
        let path = path.to_owned();
        if let Err(error) = input.want(4096) {
            return Err(TraceError::Io { path, error });
        }
        let start = input.bytes();
        if start.is_empty() {
            return Err(TraceError::Empty { path });
        }
        let Some(format) = format.or_else(|| detect(&path, start)) else {
            return Err(TraceError::UnknownFormat { path, found: excerpt(start) });
        };
        let decoder: Box<dyn Decode> = match format {
            Format::Csv => Box::new(CsvDecoder::default()),
            Format::Compact => Box::new(CompactDecoder::default()),
            Format::Oracle => Box::new(OracleDecoder::default()),
            Format::Lackey => Box::new(LackeyDecoder::default()),
            Format::Pages => Box::new(PagesDecoder::default()),
            Format::Perf => Box::new(PerfDecoder::default()),
            Format::Bpftrace => Box::new(BpftraceDecoder::default()),
            Format::Damon => Box::new(DamonDecoder::default()),
        };
        Ok(Self { path, input, decoder })
    }

    /// What the file does not have, as far as it was read.
    #[must_use]
    pub fn lacks(&self) -> Option<Lack> {
        self.decoder.lacks()
    }

    /// Reads some records into `out`, replacing what is there. False at the end of the file.
    pub fn read(&mut self, out: &mut Vec<Record>) -> Result<bool, TraceError> {
        out.clear();
        loop {
            let last = self.input.is_last();
            let bytes = self.input.bytes();
            if last && bytes.is_empty() {
                return Ok(false);
            }
            let taken = self.decoder.decode(bytes, last, out).map_err(|malformed| {
                TraceError::Malformed { path: self.path.clone(), malformed }
            })?;
            self.input.consume(taken);
            if !out.is_empty() {
                return Ok(true);
            }
            if last {
                return Ok(false);
            }
            if taken == 0 {
                self.read_more()?;
            }
        }
    }

    fn read_more(&mut self) -> Result<(), TraceError> {
        let bytes = self.input.bytes();
        if bytes.len() > LINE_BYTES_MAX * 8 && self.decoder.is_text() {
            let malformed = Malformed {
                place: Place::Byte(0),
                expected: "lines of text",
                found: excerpt(bytes),
            };
            return Err(TraceError::Malformed { path: self.path.clone(), malformed });
        }
        let path = &self.path;
        self.input.fill().map_err(|error| TraceError::Io { path: path.clone(), error })
    }
}

/// The format that a file of this name and beginning has.
fn detect(path: &Path, start: &[u8]) -> Option<Format> {
    if super::compact::is_one(start) {
        return Some(Format::Compact);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let name = name.strip_suffix(".zst").unwrap_or(&name);
    if name.ends_with(".oraclegeneral") || name.ends_with(".oraclegeneral.bin") {
        return Some(Format::Oracle);
    }
    let line = start.split(|&byte| byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let number = line.trim().strip_prefix("0x").unwrap_or(line.trim());
    if line.split(',').any(|column| ["page", super::csv::FAULT].contains(&column.trim())) {
        Some(Format::Csv)
    } else if line.starts_with("==")
        || ["I  ", " L ", " S ", " M "].iter().any(|p| line.starts_with(p))
    {
        Some(Format::Lackey)
    } else if super::perf::is_one(line) {
        Some(Format::Perf)
    } else if super::damon::is_one(line) {
        Some(Format::Damon)
    } else if super::bpftrace::is_one(line) {
        Some(Format::Bpftrace)
    } else if line.starts_with('#')
        || !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_hexdigit())
    {
        Some(Format::Pages)
    } else {
        None
    }
}
