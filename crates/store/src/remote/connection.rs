//! A connection to a node, with limits on the length and duration of answers.
//!
//! Invariants:
//! * CONNECTION-1: the largest length of an answer is known before it is read. A node that sends
//!   more is broken.
//! * CONNECTION-2: an answer comes within the setting `answer` from the start of the wait. Data
//!   that has arrived by then is taken, for no longer than that time again. A node that sends byte
//!   by byte does not count as answering. Sending has an equal time limit.
//! * CONNECTION-3: a wait that the kernel cuts short is continued. A receive with a time limit ends
//!   with EINTR if its thread is stopped and goes on (job control, a freezer, a debugger). It also
//!   does when a read of io_uring completes.

use super::tls::{self, Trust};
use super::url::Address;
use redis::{Cmd, ConnectionLike, Parser, RedisResult, Value};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Largest answer to a question, in bytes. The longest is the table of a cluster's slots.
pub(super) const ANSWER_MAX: usize = 1 << 20;
/// Time to wait for each part of a late answer.
const LATE: Duration = Duration::from_millis(1);

/// The connection.
pub(super) struct Connection {
    stream: Stream,
    parser: Parser,
}

enum Stream {
    Plain(Wire),
    #[cfg(feature = "tls")]
    Secure(Box<tls::Stream<Wire>>),
}

impl Connection {
    /// Connects to a node. `limit` is the time for this and for each answer.
    pub(super) fn open(
        address: &Address,
        trust: Option<&Trust>,
        limit: Duration,
    ) -> io::Result<Self> {
        let mut failure = io::Error::new(ErrorKind::NotFound, "its name has no address");
        for one in (address.host.as_str(), address.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&one, limit) {
                Ok(tcp) => return Self::over(Wire::new(tcp, limit)?, &address.host, trust),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn over(wire: Wire, host: &str, trust: Option<&Trust>) -> io::Result<Self> {
        let stream = match trust {
            None => Stream::Plain(wire),
            #[cfg(feature = "tls")]
            Some(trust) => Stream::Secure(Box::new(tls::secure(trust, host, wire)?)),
            #[cfg(not(feature = "tls"))]
            Some(trust) => tls::never(trust, host),
        };
        Ok(Self { stream, parser: Parser::new() })
    }

    /// Sets the time limit of each answer from now on.
    pub(super) fn set_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.wire().set_limit(limit)
    }

    /// Sends commands.
    pub(super) fn send(&mut self, packed: &[u8]) -> RedisResult<()> {
        // A TLS handshake may receive data.
        self.wire().begin(ANSWER_MAX)?;
        match &mut self.stream {
            Stream::Plain(wire) => wire.write_all(packed)?,
            #[cfg(feature = "tls")]
            Stream::Secure(stream) => {
                stream.write_all(packed)?;
                stream.flush()?;
            }
        }
        Ok(())
    }

    /// Receives the next answer, of at most `bound` bytes (CONNECTION-1).
    pub(super) fn receive(&mut self, bound: usize) -> RedisResult<Value> {
        self.wire().begin(bound)?;
        loop {
            let value = match &mut self.stream {
                Stream::Plain(wire) => self.parser.parse_value(wire),
                #[cfg(feature = "tls")]
                Stream::Secure(stream) => self.parser.parse_value(stream),
            }?;
            if !matches!(value, Value::Push { .. }) {
                return Ok(value);
            }
        }
    }

    /// Whether the node has closed this connection, on which no request waits for an answer. An
    /// answer that came all the same is no sign of health either.
    pub(super) fn is_stale(&mut self) -> bool {
        let plain = matches!(self.stream, Stream::Plain(_));
        match self.wire().peek() {
            Ok(0) => true,
            // A TLS session may bring tickets.
            Ok(_) => plain,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }

    fn wire(&mut self) -> &mut Wire {
        match &mut self.stream {
            Stream::Plain(wire) => wire,
            #[cfg(feature = "tls")]
            Stream::Secure(stream) => &mut stream.sock,
        }
    }
}

/// Sends questions, whose answers are short.
impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, packed: &[u8]) -> RedisResult<Value> {
        self.send(packed)?;
        self.receive(ANSWER_MAX)
    }

    fn req_packed_commands(
        &mut self,
        packed: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        self.send(packed)?;
        let answers: RedisResult<Vec<Value>> =
            (0..offset + count).map(|_| self.receive(ANSWER_MAX)).collect();
        answers.map(|mut answers| answers.split_off(offset))
    }

    fn req_command(&mut self, command: &Cmd) -> RedisResult<Value> {
        self.req_packed_command(&command.get_packed_command())
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

/// The socket, and the limits of its input.
struct Wire {
    tcp: TcpStream,
    limit: Duration,
    /// Number of bytes that may still arrive, and the end of the time to send or receive.
    left: usize,
    until: Instant,
    /// Whether that time is over. Then only data that is available at once is taken.
    late: bool,
}

impl Wire {
    fn new(tcp: TcpStream, limit: Duration) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        let until = Instant::now() + limit;
        let mut wire = Self { tcp, limit, left: ANSWER_MAX, until, late: false };
        wire.set_limit(limit)?;
        Ok(wire)
    }

    fn set_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.limit = limit;
        self.tcp.set_read_timeout(Some(limit))?;
        self.tcp.set_write_timeout(Some(limit))
    }

    /// Begins to send, or to receive at most `bound` bytes.
    fn begin(&mut self, bound: usize) -> io::Result<()> {
        (self.left, self.until) = (bound, Instant::now() + self.limit);
        if std::mem::take(&mut self.late) { self.set_limit(self.limit) } else { Ok(()) }
    }

    /// Returns how many bytes have come, 1 at most, without waiting; 0 at the end of the stream.
    fn peek(&self) -> io::Result<usize> {
        self.tcp.set_nonblocking(true)?;
        let came = self.tcp.peek(&mut [0]);
        self.tcp.set_nonblocking(false)?;
        came
    }

    fn look_at_the_time(&mut self) -> io::Result<()> {
        let beyond = Instant::now().checked_duration_since(self.until);
        if beyond.is_some_and(|beyond| beyond > self.limit) {
            return Err(ErrorKind::TimedOut.into());
        }
        if !self.late && beyond.is_some() {
            self.late = true;
            self.tcp.set_read_timeout(Some(LATE))?;
            self.tcp.set_write_timeout(Some(LATE))?;
        }
        Ok(())
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            let why = "it sends more than Ebb asked for";
            return Err(io::Error::new(ErrorKind::InvalidData, why));
        }
        let most = into.len().min(self.left);
        loop {
            self.look_at_the_time()?;
            match self.tcp.read(&mut into[..most]) {
                // CONNECTION-3.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                got => {
                    self.left -= got.as_ref().map_or(0, |&got| got);
                    return got;
                }
            }
        }
    }
}

impl Write for Wire {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        loop {
            self.look_at_the_time()?;
            match self.tcp.write(from) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                sent => return sent,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Connects to a server of this test. The limit holds only after the connection is made, so a
    /// slow start does no harm.
    fn to(limit: Duration, serve: impl FnOnce(TcpStream) + Send + 'static) -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("it is bound");
        std::thread::spawn(move || serve(listener.accept().expect("a caller").0));
        let address = Address { host: "127.0.0.1".into(), port: address.port() };
        let mut one = Connection::open(&address, None, LONG).expect("it listens");
        one.set_limit(limit).expect("a limit of time");
        one
    }

    /// Connects to a server that sends `text` and stays until the client has seen enough.
    fn sends(limit: Duration, text: &'static [u8]) -> Connection {
        to(limit, |mut caller| {
            let _ = caller.write_all(text);
            let _ = caller.read(&mut [0]);
        })
    }

    const LONG: Duration = ebb_testing::HANG;

    #[test]
    fn answers_come_one_by_one_without_unrequested_ones() {
        let mut one = sends(LONG, b":7\r\n>2\r\n$3\r\nnew\r\n:1\r\n$4\r\nfour\r\n+OK\r\n");
        assert_eq!(one.receive(64).expect("a number"), Value::Int(7));
        assert_eq!(one.receive(64).expect("a word"), Value::BulkString(b"four".into()));
        assert_eq!(one.receive(64).expect("a status"), Value::Okay);
    }

    /// Shows that an endless answer ends with an error. Without the limit it made the pager grow to
    /// 9.5 GiB.
    #[test]
    fn a_server_that_sends_more_than_it_was_asked_for_is_broken() {
        let word = ("$2000000000\r\n", "x");
        let list = ("*100000000\r\n", ":1\r\n");
        let news = ("", ">1\r\n+x\r\n");
        for (head, flood) in [word, list, news] {
            let mut one = to(LONG, move |mut caller| {
                let _ = caller.write_all(head.as_bytes());
                while caller.write_all(flood.as_bytes()).is_ok() {}
            });
            let error = one.receive(100_000).expect_err("no answer");
            assert!(error.to_string().contains("more than Ebb asked for"), "{error}");
        }
    }

    /// Shows that a server that sends one byte at a time cannot block a thread for ever.
    #[test]
    fn an_answer_byte_by_byte_is_a_timeout() {
        let mut one = to(Duration::from_millis(50), |mut caller| {
            // The start of an answer. Without it many bytes at once are no answer at all.
            caller.write_all(b"$1000000\r\n").expect("a reader");
            while caller.write_all(b"1").is_ok() {
                ebb_testing::give_time(Duration::from_millis(20));
            }
        });
        assert!(one.receive(1 << 20).expect_err("no answer").is_timeout());
    }

    /// Shows that a server that reads one byte at a time cannot block a sending thread for ever.
    #[test]
    fn a_server_that_reads_byte_by_byte_is_a_timeout() {
        let mut one = to(Duration::from_millis(50), |mut caller| {
            while caller.read_exact(&mut [0]).is_ok() {
                ebb_testing::give_time(Duration::from_millis(20));
            }
        });
        assert!(one.send(&vec![b'x'; 64 << 20]).expect_err("not all is read").is_timeout());
    }

    #[test]
    fn an_answer_that_has_arrived_is_read_though_its_time_is_over() {
        let mut one = sends(LONG, b"$4\r\nfour\r\n");
        let wire = one.wire();
        ebb_testing::eventually("all has arrived", || wire.tcp.peek(&mut [0; 16]).ok() == Some(10));
        wire.begin(16).expect("a limit of time");
        wire.until -= LONG;
        let mut got = [0; 16];
        assert_eq!(wire.read(&mut got).expect("it is there"), 10);
        assert!(wire.late);
        assert_eq!(wire.read(&mut got).expect_err("no more").kind(), ErrorKind::WouldBlock);
    }

    /// Shows that a server that sends without pause cannot keep a thread beyond twice the limit.
    #[test]
    fn an_answer_that_goes_on_long_after_its_time_is_a_timeout() {
        let mut one = to(LONG, |mut caller| while caller.write_all(b"1").is_ok() {});
        let wire = one.wire();
        wire.begin(1 << 20).expect("a limit of time");
        assert_eq!(wire.read(&mut [0]).expect("it sends"), 1);
        wire.until -= 2 * LONG;
        let error = wire.read(&mut [0]).expect_err("the time is over");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(redis::RedisError::from(error).is_timeout());
    }
}
