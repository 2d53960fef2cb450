//! Serves the figures of a run for Prometheus over HTTP (`ebb run --metrics ADDR`).
//!
//! A thread of the supervisor serves the figures, and asks the pager as `ebb stat` does. A client
//! may be slow or hostile:
//!
//! * SERVE-1: the thread never waits for one client. It reads and writes every connection as far as
//!   that is possible without blocking.
//! * SERVE-2: there are at most [`CALLERS_MAX`] connections, and the oldest makes room for a new
//!   one. A request has at most [`REQUEST_MAX`] bytes. A connection lasts at most [`PATIENCE`], and
//!   the thread closes it after the answer.
//! * SERVE-3: the pager is asked at most once in [`FRESH`], however many clients ask.
//! * SERVE-4: an answer contains the figures of this run only. A client can change nothing.

use crate::metrics;
use ebb_control::{Client, Content, ControlError, Patience, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Write as _;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Greatest number of connections at a time.
const CALLERS_MAX: usize = 16;
/// Greatest size of a request: bytes, and number of headers.
const REQUEST_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 64;
/// Longest time that a connection may last.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for which figures are reused.
const FRESH: Duration = Duration::from_millis(200);
/// Interval at which connections are checked for their age.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// Why the figures cannot be served at an address. The first field is the text of the address.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The text is no address.
    #[error(
        "--metrics {0}: {1}; write a port, as 9464, or an address and a port, as 127.0.0.1:9464"
    )]
    Address(String, AddressError),
    /// Another program listens there.
    #[error(
        "--metrics {0}: {1} is taken, perhaps by another run; give another port, or 0 for any free one"
    )]
    Taken(String, SocketAddr),
    /// The system refuses the address.
    #[error("--metrics {0}: cannot listen at {1}: {2}")]
    Listen(String, SocketAddr, Error),
}

/// Why a text is no address.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The number is no port.
    #[error("not a port (0 to 65535)")]
    NoPort,
    /// The address cannot be resolved.
    #[error(transparent)]
    Unresolved(#[from] Error),
    /// The name has no address.
    #[error("there is no such address")]
    Nowhere,
}

/// Why the pager gives no figures.
#[derive(Debug, thiserror::Error)]
enum FiguresError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Format(#[from] std::fmt::Error),
}

/// Returns the address to listen at. A bare port means the loopback address.
pub fn address(text: &str) -> std::result::Result<SocketAddr, ServeError> {
    let why = |error| ServeError::Address(text.into(), error);
    let port = text.strip_prefix(':').unwrap_or(text);
    if !port.contains([':', '.']) {
        let port = port.parse::<u16>().map_err(|_| why(AddressError::NoPort))?;
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let found = text.to_socket_addrs().map_err(|error| why(error.into()))?.next();
    found.ok_or_else(|| why(AddressError::Nowhere))
}

/// Listens at an address. Called before anything starts.
pub fn listen(text: &str) -> std::result::Result<TcpListener, ServeError> {
    let address = address(text)?;
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ServeError::Taken(text.into(), address),
        _ => ServeError::Listen(text.into(), address, error),
    })
}

/// Starts the thread that serves the figures of the run whose pager listens at `socket`.
pub fn start(listener: TcpListener, socket: PathBuf) -> Result<()> {
    let serve = move || Server { listener, socket, callers: Vec::new(), figures: None }.run();
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .stack_size(256 * 1024)
        .spawn(serve)
        .map(drop)
}

/// A client's connection.
struct Caller {
    stream: TcpStream,
    since: Instant,
    request: Vec<u8>,
    /// Answer, and how many bytes of the answer are sent.
    answer: Option<(Vec<u8>, usize)>,
}

struct Server {
    listener: TcpListener,
    socket: PathBuf,
    callers: Vec<Caller>,
    /// Last answer of the pager, and the time at which it came.
    figures: Option<(Instant, std::result::Result<String, FiguresError>)>,
}

impl Server {
    /// Serves until the process ends.
    fn run(mut self) {
        loop {
            let ready = self.wait();
            let mut callers = std::mem::take(&mut self.callers);
            let mut ready = ready.into_iter();
            let is_new = ready.next().unwrap_or(false);
            let mut at = ready;
            callers.retain_mut(|caller| {
                let is_ready = at.next().unwrap_or(false);
                // A ready caller is served before its age is checked, because this thread itself
                // may be late.
                (!is_ready || self.serve(caller)) && caller.since.elapsed() < PATIENCE
            });
            self.callers = callers;
            if is_new {
                self.accept();
            }
        }
    }

    /// Waits until there is work. Returns whether a new client waits, followed by whether each
    /// caller is ready.
    fn wait(&self) -> Vec<bool> {
        let mut waiting = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waiting.extend(self.callers.iter().map(|caller| {
            let for_what = if caller.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
            PollFd::new(&caller.stream, for_what)
        }));
        let limit = (!self.callers.is_empty()).then_some(&LOOK);
        match poll(&mut waiting, limit) {
            Ok(_) => waiting.iter().map(|fd| !fd.revents().is_empty()).collect(),
            // The poll was interrupted.
            Err(_) => Vec::new(),
        }
    }

    fn accept(&mut self) {
        for _ in 0..CALLERS_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_err() {
                        continue;
                    }
                    // SERVE-2: the callers are in the order in which they came.
                    if self.callers.len() == CALLERS_MAX {
                        self.callers.remove(0);
                    }
                    let (since, request) = (Instant::now(), Vec::new());
                    self.callers.push(Caller { stream, since, request, answer: None });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // No descriptor is left, or the client has gone.
                    std::thread::sleep(Duration::from_millis(50));
                    return;
                }
            }
        }
    }

    /// Serves a caller as far as possible. Returns false when the caller is to be closed.
    fn serve(&mut self, caller: &mut Caller) -> bool {
        if caller.answer.is_none() {
            match caller.read() {
                Parsed::Incomplete => return true,
                Parsed::Gone => return false,
                Parsed::Wrong(status) => {
                    caller.answer = Some((answer(status, PLAIN, status, true), 0))
                }
                Parsed::Request { path, with_body } => {
                    caller.answer = Some((self.answer_to(&path, with_body), 0));
                }
            }
        }
        caller.write()
    }

    fn answer_to(&mut self, path: &str, with_body: bool) -> Vec<u8> {
        match path.split('?').next() {
            Some("/metrics") => match self.figures() {
                Ok(text) => answer("200 OK", OPENMETRICS, text, with_body),
                Err(reason) => {
                    answer("503 Service Unavailable", PLAIN, &reason.to_string(), with_body)
                }
            },
            Some("/") => {
                answer("200 OK", PLAIN, "ebb run; its figures are at /metrics\n", with_body)
            }
            _ => answer("404 Not Found", PLAIN, "the figures are at /metrics\n", with_body),
        }
    }

    /// Returns the figures, no older than [`FRESH`] (SERVE-3).
    fn figures(&mut self) -> &std::result::Result<String, FiguresError> {
        let old = self.figures.as_ref().is_none_or(|(at, _)| at.elapsed() > FRESH);
        if old {
            let figures = ask(&self.socket);
            self.figures = Some((Instant::now(), figures));
        }
        &self.figures.as_ref().expect("asked for").1
    }
}

/// Asks the pager at `socket` for the figures.
fn ask(socket: &Path) -> std::result::Result<String, FiguresError> {
    fn of<T: Content>(socket: &Path, request: &Request) -> std::result::Result<T, ControlError> {
        Client::connect(socket, Patience::Glance)?.ask(request, Patience::Glance)
    }
    let metrics = of(socket, &Request::Metrics)?;
    let (pressure, faults) = (of(socket, &Request::Pressure)?, of(socket, &Request::Faults)?);
    Ok(metrics::openmetrics(std::process::id(), &metrics, &pressure, &faults)?)
}

/// State of a caller's request.
#[derive(PartialEq, Eq, Debug)]
enum Parsed {
    /// The request is not complete yet.
    Incomplete,
    Gone,
    /// The request is wrong. This status is the answer.
    Wrong(&'static str),
    Request {
        path: String,
        with_body: bool,
    },
}

impl Caller {
    /// Reads the bytes that have arrived.
    fn read(&mut self) -> Parsed {
        let mut bytes = [0; 2048];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Parsed::Gone,
                Ok(got) => self.request.extend_from_slice(&bytes[..got]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Parsed::Incomplete,
                Err(_) => return Parsed::Gone,
            }
            match parse(&self.request) {
                Parsed::Incomplete => {}
                parsed => return parsed,
            }
        }
    }

    /// Sends as much of the answer as possible. Returns false when all is sent or the client has
    /// gone.
    fn write(&mut self) -> bool {
        let Some((answer, sent)) = &mut self.answer else { return true };
        while *sent < answer.len() {
            match self.stream.write(&answer[*sent..]) {
                Ok(0) => return false,
                Ok(count) => *sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        false
    }
}

/// Parses the bytes of a request that have arrived.
fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {
            let path = request.path.unwrap_or_default().to_owned();
            match request.method {
                Some("GET") => Parsed::Request { path, with_body: true },
                Some("HEAD") => Parsed::Request { path, with_body: false },
                _ => Parsed::Wrong("405 Method Not Allowed"),
            }
        }
        Ok(httparse::Status::Partial) if bytes.len() < REQUEST_MAX => Parsed::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            Parsed::Wrong("431 Request Header Fields Too Large")
        }
        Err(_) => Parsed::Wrong("400 Bad Request"),
    }
}

fn answer(status: &str, kind: &str, body: &str, with_body: bool) -> Vec<u8> {
    let mut text =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n", body.len());
    if status.starts_with("405") {
        text += "Allow: GET, HEAD\r\n";
    }
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n{}",
        if with_body { body } else { "" }
    );
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_without_an_address_is_on_the_loopback_interface() {
        for text in ["9464", ":9464", "127.0.0.1:9464"] {
            assert_eq!(address(text).expect(text), ([127, 0, 0, 1], 9464).into());
        }
        assert_eq!(address("0.0.0.0:80").unwrap(), ([0, 0, 0, 0], 80).into());
        assert_eq!(address("[::1]:80").unwrap().to_string(), "[::1]:80");
        assert!(address("localhost:80").unwrap().ip().is_loopback());
        for text in ["", "x", "70000", "-1", "127.0.0.1", "1.2.3.4:", "::"] {
            let error = address(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("--metrics {text}: ")) && error.contains("as 9464"),
                "{error}"
            );
        }
    }

    #[test]
    fn bad_requests_are_answered_with_an_http_status() {
        let get = |path: &str| Parsed::Request { path: path.into(), with_body: true };
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), get("/metrics"));
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\nHost"), Parsed::Incomplete);
        let head = Parsed::Request { path: "/".into(), with_body: false };
        assert_eq!(parse(b"HEAD / HTTP/1.0\r\n\r\n"), head);
        assert_eq!(parse(b"POST / HTTP/1.1\r\n\r\n"), Parsed::Wrong("405 Method Not Allowed"));
        assert_eq!(parse(b"\x16\x03\x01\x02\0"), Parsed::Wrong("400 Bad Request"));
        let large = [&b"GET / HTTP/1.1\r\nX: "[..], &[b'x'; REQUEST_MAX]].concat();
        let many = "GET / HTTP/1.1\r\n".to_owned() + &"X: y\r\n".repeat(HEADERS_MAX + 1);
        for bytes in [&large[..], many.as_bytes()] {
            assert_eq!(parse(bytes), Parsed::Wrong("431 Request Header Fields Too Large"));
        }
    }

    #[test]
    fn an_answer_to_head_has_no_body_and_its_length() {
        let text =
            |with_body| String::from_utf8(answer("200 OK", PLAIN, "four", with_body)).unwrap();
        assert!(text(true).ends_with("\r\n\r\nfour") && text(false).ends_with("\r\n\r\n"));
        assert!(text(false).contains("Content-Length: 4\r\n"));
    }
}
