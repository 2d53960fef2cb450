//! Clients of the servers under test: the parts of the Redis and memcached protocols that write and
//! read values.

use ebb_mm::random as numbers;
use ebb_testing::HANG;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use crate::build;

/// Returns a figure of a running run from `ebb stat`. `supervisor` is the supervisor's PID. `None`
/// if the run does not answer or has no such figure.
pub fn stat(supervisor: i32, name: &str) -> Option<u64> {
    let output = Command::new(build::ebb()).args(["stat", &supervisor.to_string()]).output();
    let text = String::from_utf8_lossy(&output.expect("ebb runs").stdout).into_owned();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line?.parse().ok()
}

/// A connection over a Unix socket.
pub struct Connection {
    reader: BufReader<UnixStream>,
}

impl Connection {
    /// Connects, if the server listens already.
    pub fn open(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(HANG))?;
        stream.set_write_timeout(Some(HANG))?;
        Ok(Self { reader: BufReader::with_capacity(1 << 16, stream) })
    }

    fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("server takes a request");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).expect("server answers in time");
        assert!(line.ends_with("\r\n"), "server closed the connection after {line:?}");
        line.truncate(line.len() - 2);
        line
    }

    fn block(&mut self, bytes: usize) -> Vec<u8> {
        let mut block = vec![0; bytes + 2];
        self.reader.read_exact(&mut block).expect("server answers in time");
        block.truncate(bytes);
        block
    }
}

/// An answer of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A status (`+`).
    Text(String),
    /// An integer (`:`).
    Number(i64),
    /// A string (`$`).
    Bytes(Vec<u8>),
    /// No such key (`$-1`).
    Nothing,
}

/// The part of the Redis protocol that the tests need.
impl Connection {
    /// Sends a command and its arguments. [`Connection::redis_answer`] then reads the answer.
    pub fn redis_send(&mut self, words: &[&[u8]]) {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.send(&request);
    }

    /// Reads one answer. Panics at an error (`-`), because no command of the tests may fail.
    pub fn redis_answer(&mut self) -> Answer {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        match kind {
            "+" => Answer::Text(rest.to_owned()),
            ":" => Answer::Number(rest.parse().expect("a number")),
            "$" if rest == "-1" => Answer::Nothing,
            "$" => Answer::Bytes(self.block(rest.parse().expect("a length"))),
            _ => panic!("redis answers {line:?}"),
        }
    }

    /// Sends a command and reads its answer.
    pub fn redis(&mut self, words: &[&[u8]]) -> Answer {
        self.redis_send(words);
        self.redis_answer()
    }
}

/// The part of the memcached protocol that the tests need.
impl Connection {
    /// Stores a value. Panics if the server does not confirm it.
    pub fn cache_set(&mut self, key: &str, value: &[u8]) {
        self.send(format!("set {key} 0 0 {}\r\n", value.len()).as_bytes());
        self.send(value);
        self.send(b"\r\n");
        assert_eq!(self.line(), "STORED", "{key}");
    }

    /// Reads a value; `None` if the server has none.
    pub fn cache_get(&mut self, key: &str) -> Option<Vec<u8>> {
        self.send(format!("get {key}\r\n").as_bytes());
        let line = self.line();
        if line == "END" {
            return None;
        }
        let length = line.rsplit(' ').next().and_then(|word| word.parse().ok());
        let value = self.block(length.unwrap_or_else(|| panic!("memcached answers {line:?}")));
        assert_eq!(self.line(), "END");
        Some(value)
    }
}

/// Returns the bytes that belong to a key. They differ for every key and version, so that a wrong
/// value is recognised. Half of them are repeated, so that they compress as real data does.
pub fn value_of(key: u64, version: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random::new(key << 8 ^ version);
    let mut value = Vec::with_capacity(bytes + 16);
    while value.len() < bytes {
        let word = random.next().to_le_bytes();
        value.extend_from_slice(&word);
        value.extend_from_slice(&word);
    }
    value.truncate(bytes);
    value
}

/// Random numbers from a seed.
pub struct Random(numbers::Random);

impl Random {
    /// Creates the sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(numbers::Random(seed))
    }

    /// Returns the next number of 64 bits.
    #[expect(clippy::should_implement_trait, reason = "an endless source, not an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0.word()
    }

    /// Returns a number in `0..limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Returns the numbers `0..count` in random order.
    pub fn order(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for i in (1..order.len()).rev() {
            let other = usize::try_from(self.below(i as u64 + 1)).expect("an index");
            order.swap(i, other);
        }
        order
    }
}
