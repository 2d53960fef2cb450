//! Reads any trace format as a stream of records, and reports where and why a file is wrong.

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

/// Number of bytes without an end of line after which a file does not count as text.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The formats that can be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Format {
    /// Text with a header line that names the columns `dt,page,op,kind`; only `page` is required. A
    /// file of page faults alone has the column `fault` instead of `page`.
    Csv,
    /// Ebb's own binary format, with a few bytes a record.
    Compact,
    /// libCacheSim's oracleGeneral, with 24 bytes a record.
    Oracle,
    /// The output of `valgrind --tool=lackey --trace-mem=yes`.
    Lackey,
    /// One page number a line, decimal or hexadecimal with 0x.
    Pages,
    /// Output of `perf script` for page faults recorded with their addresses (`perf record -e
    /// page-faults -c 1 -d`).
    Perf,
    /// Page faults as a one-liner of bpftrace prints them: `NANOSECONDS PID COMMAND ADDRESS`
    /// (docs/traces.md).
    Bpftrace,
    /// Output of `damo report access --raw_form` (or `damo report raw`): DAMON's regions, from
    /// which accesses are derived.
    Damon,
}

/// Information that a trace lacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lack {
    /// The trace has only page faults, and no accesses to resident pages.
    Touches,
    /// The trace has memory regions and whether they were accessed in an interval, and no accesses
    /// at all.
    Accesses,
}

/// Position of an error in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// Number of a line, counted from 1.
    Line(u64),
    /// Number of a byte in the unpacked file, counted from 0.
    Byte(u64),
}

impl std::fmt::Display for Position {
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
    /// Position of the record's start.
    pub place: Position,
    /// Description of the valid contents there.
    pub expected: &'static str,
    /// Contents found there.
    pub found: String,
}

/// Error of a trace that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The content of the file is wrong.
    #[error("{}: {}: expected {}, found {:?}", path.display(), malformed.place,
        malformed.expected, malformed.found)]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Description of the error.
        malformed: Malformed,
    },
    /// The file has no known format.
    #[error("{}: no trace format starts with {found:?}; expected a header such as \
        dt,page,op,kind, or --input-format FORMAT", path.display())]
    UnknownFormat {
        /// Path of the file.
        path: PathBuf,
        /// First bytes of the file.
        found: String,
    },
    /// The file has no accesses.
    #[error("{}: the trace has no accesses", path.display())]
    Empty {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file has more pages or accesses than can be numbered.
    #[error("{}: more than {limit} {what}; replay a part of it or a sample", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// Largest number.
        limit: u64,
        /// Name of the counted things.
        what: &'static str,
    },
    /// The temporary file with the numbered accesses failed.
    #[error("temporary file in {}: {error}; set TMPDIR to another folder", dir.display())]
    Spool {
        /// Folder of the temporary file.
        dir: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
}

/// Decoder of one format: turns bytes into records.
pub(super) trait Decode {
    /// Reads whole records from the start of `bytes` into `out` and returns the number of bytes
    /// used. `last` means that no bytes follow.
    fn decode(
        &mut self,
        bytes: &[u8],
        last: bool,
        out: &mut Vec<Record>,
    ) -> Result<usize, Malformed>;

    /// Returns whether the format is text, so that a record ends with its line.
    fn is_text(&self) -> bool {
        true
    }

    /// Returns the information that the file lacks.
    fn lacks(&self) -> Option<Lack> {
        None
    }
}

/// Returns up to 40 characters of `bytes`, for a message.
pub(super) fn excerpt(bytes: &[u8]) -> String {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let text = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
    if line.len() > 40 { text + "..." } else { text }
}

/// An open trace file.
pub struct Reader {
    path: PathBuf,
    input: Input,
    decoder: Box<dyn Decode>,
}

impl Reader {
    /// Opens a file; detects the format unless given.
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

    /// Returns the information that the file lacks, from the part read up to now.
    #[must_use]
    pub fn lacks(&self) -> Option<Lack> {
        self.decoder.lacks()
    }

    /// Replaces the contents of `out` by the next records. Returns false at the end of the file.
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
                place: Position::Byte(0),
                expected: "lines of text",
                found: excerpt(bytes),
            };
            return Err(TraceError::Malformed { path: self.path.clone(), malformed });
        }
        let path = &self.path;
        self.input.fill().map_err(|error| TraceError::Io { path: path.clone(), error })
    }
}

/// Detects the format of a file from its name and first bytes.
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
