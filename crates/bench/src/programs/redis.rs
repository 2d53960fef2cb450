//! The client of redis: fills the server with values of 4 KiB, then gets them one by one, some far
//! more often.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::UseError;
use super::runs::{Digest, Driven};
use crate::draw::{Alias, Random};

const KEYS: usize = 40_000;
const GETS: usize = 150_000;
const VALUE_BYTES: usize = 4096;

/// Fills the server behind `socket`, gets values, and shuts the server down. Time and checksum
/// cover the gets.
pub fn drive(socket: &Path) -> Result<Driven, UseError> {
    let stream = connect(socket).map_err(UseError::Connect)?;
    let mut client = Client { stream: BufReader::new(stream) };
    client.work().map_err(UseError::Redis)
}

fn connect(socket: &Path) -> std::io::Result<UnixStream> {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Err(_) if start.elapsed() < Duration::from_secs(20) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    fn work(&mut self) -> std::io::Result<Driven> {
        let mut random = Random(1);
        for key in 0..KEYS {
            self.send(&[b"SET", name(key).as_bytes(), &value(&mut random)])?;
            self.line()?;
        }
        let popularity = Alias::zipf(KEYS, 2);
        let mut digest = Digest::default();
        let start = Instant::now();
        for _ in 0..GETS {
            let key = popularity.draw(random.word());
            self.send(&[b"GET", name(key).as_bytes()])?;
            digest.add(&self.bulk()?);
        }
        let wall = Some(start.elapsed());
        self.send(&[b"SHUTDOWN", b"NOSAVE"])?;
        Ok(Driven { checksum: digest.value(), wall })
    }

    fn send(&mut self, words: &[&[u8]]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(&request(words))
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_owned();
        if line.starts_with('-') { Err(std::io::Error::other(line)) } else { Ok(line) }
    }

    fn bulk(&mut self) -> std::io::Result<Vec<u8>> {
        let line = self.line()?;
        let length = line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok());
        let length = length.ok_or_else(|| std::io::Error::other(format!("answers {line}")))?;
        let mut value = vec![0; length + 2];
        self.stream.read_exact(&mut value)?;
        value.truncate(length);
        Ok(value)
    }
}

fn name(key: usize) -> String {
    format!("key:{key:08}")
}

/// Returns a value: the first half is random, the second zero.
fn value(random: &mut Random) -> Vec<u8> {
    let mut value = Vec::with_capacity(VALUE_BYTES);
    while value.len() < VALUE_BYTES / 2 {
        value.extend(random.word().to_le_bytes());
    }
    value.resize(VALUE_BYTES, 0);
    value
}

/// Returns a command in the server's protocol.
fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_redis_client_writes_requests_and_reads_answers() {
        assert_eq!(request(&[b"GET", b"a"]), b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n");
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut client = Client { stream: BufReader::new(ours) };
        theirs.write_all(b"+OK\r\n$5\r\na\r\nbc\r\n-ERR full\r\n").unwrap();
        drop(theirs);
        assert_eq!(client.line().unwrap(), "+OK");
        assert_eq!(client.bulk().unwrap(), b"a\r\nbc");
        assert_eq!(client.line().unwrap_err().to_string(), "-ERR full");
        assert!(client.line().is_err());
    }
}
