//! Bytes of a trace file, zstd or plain, read through one buffer. The first bytes decide between
//! the two.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// First bytes of a zstd frame.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Number of bytes read at a time.
const BUFFER_BYTES: usize = 256 * 1024;
/// Base-2 logarithm of the largest accepted zstd window: traces are packed with long windows.
const WINDOW_LOG_MAX: u32 = 31;

/// A buffered stream of unpacked bytes.
pub struct Input {
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    at_end: bool,
}

impl Input {
    /// Opens a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::from_reader(File::open(path)?)
    }

    /// Wraps any source of packed or plain bytes.
    pub fn from_reader(source: impl Read + 'static) -> io::Result<Self> {
        let mut source = BufReader::with_capacity(BUFFER_BYTES / 4, source);
        let source: Box<dyn Read> = if source.fill_buf()?.starts_with(&ZSTD_MAGIC) {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(source)?;
            decoder.window_log_max(WINDOW_LOG_MAX)?;
            Box::new(decoder)
        } else {
            Box::new(source)
        };
        Ok(Self { source, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, at_end: false })
    }

    /// Returns the buffered bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Marks `count` bytes as used.
    pub fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end);
    }

    /// Buffers at least `count` bytes, fewer only at the end of the file.
    pub fn want(&mut self, count: usize) -> io::Result<()> {
        while self.end - self.start < count && !self.at_end {
            self.fill()?;
        }
        Ok(())
    }

    /// Returns whether all bytes of the file are buffered.
    pub fn is_last(&self) -> bool {
        self.at_end
    }

    /// Reads more bytes behind the buffered ones.
    pub fn fill(&mut self) -> io::Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.end == self.buffer.len() {
            self.buffer.resize(self.buffer.len() * 2, 0);
        }
        match self.source.read(&mut self.buffer[self.end..]) {
            Ok(0) => self.at_end = true,
            Ok(count) => self.end += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
