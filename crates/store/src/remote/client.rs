//! Client of a remote tier: one thread's connections to the nodes. It sends requests to all nodes
//! first, then receives.
//!
//! Invariants:
//! * CLIENT-1: only the answer to a request shows whether the server has carried it out. A server
//!   may carry out an unanswered request later, even after a request that was sent later. Such a
//!   request is `unsure`, and its keys are never used again.
//! * CLIENT-2: an answer belongs to the oldest unanswered request of its connection. A request
//!   whose connection broke takes no answer from the next connection to the same node. While
//!   requests wait for answers, the client asks the node nothing else.
//! * CLIENT-3: a read is not given up for an outage that began before the read. Other requests may
//!   have met that outage, and the node may have come back since with all of its pages.
//! * CLIENT-4: an answer of another kind than the command's is none. The connection is broken then.
//!   A client that took it would declare pages lost that the server has.

use super::connection::Connection;
use super::server::{NotNow, Server, explain};
use super::url::Address;
use redis::{ErrorKind, RedisError, Value};
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Largest number of bytes of a server's text, instead of or beside an answer.
const WORDS_MAX: usize = 64 << 10;
/// Interval between two tries of a thread that does nothing else.
const RETRY: Duration = Duration::from_millis(20);
/// Interval at which a master is asked for its replicas.
const COUNT_REPLICAS_EVERY: Duration = Duration::from_secs(1);
/// A replica that has been silent for longer does not count as live.
const REPLICA_LAG_MAX_SECONDS: u32 = 10;
/// Longest time for which a master waits for its replicas' acknowledgement at a time.
const WAIT: Duration = Duration::from_secs(1);

/// Outcome of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Not done yet; the reason.
    Pending(String),
    /// The server's answer.
    Done(Value),
    /// The server has no room; its message.
    Full(String),
    /// The request has failed for good; the reason.
    Lost(String),
}

/// Kind of the answer to a command (CLIENT-4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Okay,
    Number,
    /// So many values, some of which may be missing.
    Values(usize),
}

impl Answer {
    fn fits(self, value: &Value) -> bool {
        let is_one = |value: &Value| matches!(value, Value::BulkString(_) | Value::Nil);
        match (self, value) {
            (Self::Okay, value) => *value == Value::Okay,
            (Self::Number, value) => matches!(value, Value::Int(_)),
            (Self::Values(count), Value::Array(all)) => {
                all.len() == count && all.iter().all(is_one)
            }
            (Self::Values(_), _) => false,
        }
    }
}

/// Commands on keys of one slot, sent together.
pub(super) struct Request {
    slot: u16,
    packed: Vec<u8>,
    answer: Answer,
    /// Largest number of bytes of the answer.
    bound: usize,
    /// Whether replicas must have the data, too.
    replicated: bool,
    /// Node to which an ASK redirection sends this request, once.
    asking: Option<Address>,
    /// Only this request's own time ends it (CLIENT-3).
    own_time: bool,
    pub unsure: bool,
    pub outcome: Outcome,
}

impl Request {
    /// Creates a request of one command. Its answer has at most `bound` bytes, a server's text not
    /// counted.
    pub(super) fn new(slot: u16, packed: Vec<u8>, answer: Answer, bound: usize) -> Self {
        let (bound, outcome) = (bound + WORDS_MAX, Outcome::Pending(String::new()));
        let (replicated, asking, own_time, unsure) = (false, None, false, false);
        Self { slot, packed, answer, bound, replicated, asking, own_time, unsure, outcome }
    }

    /// Has replicas take the data, too.
    pub(super) fn replicated(mut self) -> Self {
        self.replicated = true;
        self
    }

    /// Lets only this request's own time end it.
    pub(super) fn with_own_time(mut self) -> Self {
        self.own_time = true;
        self
    }

    /// Takes the outcome of an attempt.
    fn end(&mut self, outcome: Outcome) {
        self.outcome = match outcome {
            Outcome::Lost(why) if self.own_time => Outcome::Pending(why),
            outcome => outcome,
        };
    }

    fn is_pending(&self) -> bool {
        matches!(self.outcome, Outcome::Pending(_))
    }

    /// Returns the buffer for reuse.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.packed
    }
}

/// Begins a command of `count` words.
pub(super) fn words(packed: &mut Vec<u8>, count: usize) {
    // Writing to memory cannot fail.
    let _ = write!(packed, "*{count}\r\n");
}

/// Adds a word.
pub(super) fn word(packed: &mut Vec<u8>, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let _ = write!(packed, "${length}\r\n");
    parts.iter().for_each(|part| packed.extend_from_slice(part));
    packed.extend_from_slice(b"\r\n");
}

struct Link {
    connection: Connection,
    /// Number of this connection among all that the client has opened.
    number: u64,
    /// Requests that were sent and whose answers have not been read.
    unanswered: u32,
    /// Number of live replicas, and when they were counted.
    replicas: Option<(Instant, u32)>,
}

/// The connections.
pub(super) struct Client {
    server: Arc<Server>,
    links: HashMap<Address, Link>,
    /// Number of connections opened.
    opened: u64,
    reported_alone: bool,
}

/// A request that was sent.
struct Sent {
    at: usize,
    address: Address,
    /// Number of the connection by which the request went (CLIENT-2).
    link: u64,
    /// Number of answers that come before the request's own, and the number of replicas to wait
    /// for. If `replicas` is not 0, one more answer follows.
    before: usize,
    replicas: u32,
}

impl Client {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, links: HashMap::new(), opened: 0, reported_alone: false }
    }

    /// Tries all pending requests once.
    pub(super) fn attempt(&mut self, requests: &mut [Request]) {
        let mut sent = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter_mut().enumerate() {
            if request.is_pending() {
                match self.send(at, request) {
                    Ok(this) => sent.push(this),
                    Err(outcome) => request.end(outcome),
                }
            }
        }
        for this in sent {
            let request = &mut requests[this.at];
            let outcome = self.receive(&this, request);
            request.end(outcome);
        }
    }

    /// Tries until all requests are done or have failed.
    pub(super) fn run(&mut self, requests: &mut [Request]) {
        self.run_within(requests, self.server.spec.wait, false);
    }

    /// Tries until all requests are done or have failed, within `limit`. With `closing` it goes on
    /// while the tier is being closed.
    pub(super) fn run_within(&mut self, requests: &mut [Request], limit: Duration, closing: bool) {
        let began = Instant::now();
        loop {
            // The last attempt begins after the limit, because the first may have met a dead
            // connection.
            let over = began.elapsed() > limit;
            self.attempt(requests);
            if !requests.iter().any(Request::is_pending) {
                return;
            }
            let ends = !closing && self.server.closing.load(Ordering::Relaxed);
            if ends || over {
                for request in requests {
                    if let Outcome::Pending(why) = &mut request.outcome {
                        request.outcome = Outcome::Lost(std::mem::take(why));
                    }
                }
                return;
            }
            std::thread::sleep(RETRY);
        }
    }

    fn send(&mut self, at: usize, request: &mut Request) -> Result<Sent, Outcome> {
        let asking = request.asking.take();
        let before = usize::from(asking.is_some());
        let address = match asking {
            Some(address) => address,
            None => match self.server.topology().node_of(request.slot) {
                Some(address) => address.clone(),
                None => {
                    self.server.refresh(None);
                    return Err(Outcome::Pending(format!("no node has slot {}", request.slot)));
                }
            },
        };
        match self.server.begin(&address) {
            Ok(()) => {}
            Err(NotNow::Away(why)) => return Err(Outcome::Pending(format!("{address}: {why}"))),
            Err(NotNow::Lost(why)) => {
                self.server.refresh(None);
                return Err(Outcome::Lost(format!("{address}: {why}")));
            }
        }
        let replicas = match self.prepare(&address, request.replicated) {
            Ok(replicas) => replicas,
            Err(error) => return Err(self.broken(&address, &error)),
        };
        let link = self.links.get_mut(&address).expect("it was prepared");
        // An answer that takes longer than `answer` breaks the connection.
        let limit = WAIT.min(self.server.spec.answer / 2);
        let mut send = |bytes: &[u8]| link.connection.send(bytes);
        let asking = if before > 0 { send(b"*1\r\n$6\r\nASKING\r\n") } else { Ok(()) };
        let all = asking
            .and_then(|()| send(&request.packed))
            .and_then(|()| if replicas == 0 { Ok(()) } else { send(&wait_for(replicas, limit)) });
        match all {
            Ok(()) => {
                link.unanswered += 1;
                Ok(Sent { at, address, link: link.number, before, replicas })
            }
            Err(error) => {
                request.unsure = true;
                Err(self.broken(&address, &error))
            }
        }
    }

    /// Opens a connection, and returns how many replicas must acknowledge a write.
    fn prepare(&mut self, address: &Address, replicated: bool) -> Result<u32, RedisError> {
        // A server closes idle connections (`timeout`). A request on a closed connection would be
        // unsure.
        let idle = self.links.get_mut(address).filter(|link| link.unanswered == 0);
        if idle.is_some_and(|link| link.connection.is_stale()) {
            self.links.remove(address);
        }
        if !self.links.contains_key(address) {
            let connection = self.server.connect(address)?;
            self.opened += 1;
            let link = Link { connection, number: self.opened, unanswered: 0, replicas: None };
            self.links.insert(address.clone(), link);
        }
        let wanted = self.server.spec.replicas.unwrap_or(u32::from(self.server.cluster));
        if !replicated || wanted == 0 {
            return Ok(0);
        }
        let link = self.links.get_mut(address).expect("it is there");
        // The next answer is taken for that of the question, so no request may wait for one
        // (CLIENT-2).
        let asks = link.unanswered == 0;
        let live = match link.replicas {
            Some((counted, live)) if !asks || counted.elapsed() < COUNT_REPLICAS_EVERY => live,
            None if !asks => wanted,
            _ => {
                let text: String =
                    redis::cmd("INFO").arg("replication").query(&mut link.connection)?;
                let live = live_replicas(&text);
                link.replicas = Some((Instant::now(), live));
                live
            }
        };
        if live < wanted && !self.reported_alone {
            self.reported_alone = true;
            self.server.tell(&format!(
                "{address} has {live} replicas, not {wanted}; if it is lost, pages without a replica are lost"
            ));
        }
        Ok(live.min(wanted))
    }

    fn receive(&mut self, sent: &Sent, request: &mut Request) -> Outcome {
        let Sent { address, before, replicas, .. } = sent;
        // CLIENT-2.
        let link = self.links.get_mut(address).filter(|link| link.number == sent.link);
        let Some(link) = link else {
            request.unsure = true;
            return Outcome::Pending(format!("{address}: the connection broke"));
        };
        let count = before + 1 + usize::from(*replicas > 0);
        let mut values = Vec::with_capacity(count);
        let mut refusal = None;
        while values.len() < count {
            match link.connection.receive(request.bound) {
                Ok(Value::ServerError(error)) => {
                    refusal.get_or_insert(RedisError::from(error));
                    values.push(Value::Nil);
                }
                Ok(value) => values.push(value),
                Err(error) => {
                    request.unsure = true;
                    return self.broken(address, &error);
                }
            }
        }
        link.unanswered -= 1;
        if let Some(error) = refusal {
            return self.refused(address, request, &error);
        }
        let acknowledged = if *replicas > 0 { values.pop() } else { None };
        let answer = values.swap_remove(*before);
        if !request.answer.fits(&answer) {
            request.unsure = true;
            let odd = RedisError::from((ErrorKind::Parse, "an answer of another kind"));
            return self.broken(address, &odd);
        }
        self.server.note_answer(address);
        if *replicas > 0 {
            match acknowledged {
                Some(Value::Int(have)) if have >= i64::from(*replicas) => {}
                _ => {
                    if let Some(link) = self.links.get_mut(address) {
                        link.replicas = None;
                    }
                    return Outcome::Pending(format!("{address}: its replicas do not keep up"));
                }
            }
        }
        Outcome::Done(answer)
    }

    /// Drops a broken connection.
    fn broken(&mut self, address: &Address, error: &RedisError) -> Outcome {
        self.links.remove(address);
        self.set_back(address, &explain(error))
    }

    /// Handles an error answer of a server.
    fn refused(&mut self, address: &Address, request: &mut Request, error: &RedisError) -> Outcome {
        let words = explain(error);
        match error.code() {
            Some("OOM") => {
                self.server.note_answer(address);
                Outcome::Full(format!("{address}: {words}"))
            }
            Some(code @ ("MOVED" | "ASK")) => {
                self.server.note_answer(address);
                let to = error.redirect_node().and_then(|(to, _)| parse_address(to, address));
                if code == "ASK" {
                    request.asking = to;
                } else {
                    self.server.refresh(to);
                }
                Outcome::Pending(format!("{address}: {words}"))
            }
            Some("TRYAGAIN") => {
                self.server.note_answer(address);
                Outcome::Pending(format!("{address}: {words}"))
            }
            _ => self.set_back(address, &words),
        }
    }

    fn set_back(&mut self, address: &Address, why: &str) -> Outcome {
        let lost = self.server.note_failure(address, why);
        self.server.refresh(None);
        let why = format!("{address}: {why}");
        if lost { Outcome::Lost(why) } else { Outcome::Pending(why) }
    }
}

fn wait_for(replicas: u32, limit: Duration) -> Vec<u8> {
    let mut packed = Vec::with_capacity(48);
    words(&mut packed, 3);
    word(&mut packed, &[b"WAIT"]);
    word(&mut packed, &[replicas.to_string().as_bytes()]);
    word(&mut packed, &[limit.as_millis().to_string().as_bytes()]);
    packed
}

/// Parses HOST:PORT as a node names another. Without a host it is the node's own.
fn parse_address(text: &str, from: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() { &from.host } else { host.trim_matches(['[', ']']) };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

/// Counts the replicas in a master's `INFO` text that are live.
fn live_replicas(info: &str) -> u32 {
    let is_live = |line: &&str| {
        let Some((name, fields)) = line.split_once(':') else { return false };
        let number = name.strip_prefix("slave").unwrap_or_default();
        let field = |name: &str| {
            fields.split(',').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('='))
        };
        let lag = field("lag").and_then(|lag| lag.parse::<u32>().ok());
        number.parse::<u32>().is_ok()
            && field("state") == Some("online")
            && lag.is_some_and(|lag| lag <= REPLICA_LAG_MAX_SECONDS)
    };
    info.lines().filter(is_live).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Notice, RedisSpec, TierName};
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn replicas_count_while_they_are_there_and_keep_up() {
        let info = "# Replication\r\nrole:master\r\nconnected_slaves:4\r\n\
            slave0:ip=127.0.0.1,port=7004,state=online,offset=1,lag=0\r\n\
            slave1:ip=127.0.0.1,port=7005,state=online,offset=1,lag=11\r\n\
            slave2:ip=127.0.0.1,port=7006,state=wait_bgsave,offset=0,lag=0\r\n\
            slave3:ip=127.0.0.1,port=7007,state=online,offset=9,lag=10\r\n\
            slave_read_only:1\r\nmaster_failover_state:no-failover\r\n";
        assert_eq!(live_replicas(info), 2);
        assert_eq!(live_replicas("role:slave\r\n"), 0);
    }

    /// Starts a node that answers `=N` with N, and makes its client. Its master has one replica.
    fn client_of_a_node() -> (Client, Address) {
        client_of_a_node_with(|_| ())
    }

    fn client_of_a_node_with(set: impl Fn(&mut RedisSpec)) -> (Client, Address) {
        const INFO: &str = "slave0:ip=127.0.0.1,port=1,state=online,offset=1,lag=0\r\n";
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("it is bound").port();
        let answer = |line: &str| match line.strip_prefix('=') {
            Some(number) => format!(":{number}\r\n"),
            None if line == "WAIT" => ":1\r\n".to_owned(),
            None if line == "INFO" => format!("${}\r\n{INFO}\r\n", INFO.len()),
            None => String::new(),
        };
        let serve = move |caller: TcpStream| {
            let mut answers = caller.try_clone().expect("a descriptor");
            let lines = BufReader::new(caller).lines().map_while(Result::ok);
            for line in lines.take_while(|line| line != "QUIT") {
                let _ = answers.write_all(answer(&line).as_bytes());
            }
        };
        std::thread::spawn(move || {
            for caller in listener.incoming().flatten() {
                std::thread::spawn(move || serve(caller));
            }
        });
        let url = format!("redis://127.0.0.1:{port}?replicas=1");
        let crate::TierSpec::Redis(mut spec) = crate::parse_tiers(&url).expect("a tier").remove(0)
        else {
            unreachable!("a remote tier");
        };
        set(&mut spec);
        let server = Server::new(TierName::Redis(0), &spec, None, None, Notice::default());
        (Client::new(Arc::new(server)), spec.hosts[0].clone())
    }

    fn request(text: &str, replicated: bool) -> Request {
        let request = Request::new(0, format!("{text}\r\n").into_bytes(), Answer::Number, 64);
        if replicated { request.replicated() } else { request }
    }

    /// Shows that an answer of another kind is none. A reader took it for the answer that the keys
    /// are missing, and declared their pages lost.
    #[test]
    fn an_answer_of_another_kind_breaks_the_connection() {
        let (mut client, address) = client_of_a_node();
        let mut requests = [Request::new(0, b"=1\r\n".into(), Answer::Values(1), 64)];
        client.attempt(&mut requests);
        let [request] = &requests;
        let text = format!("{:?}", request.outcome);
        assert!(text.starts_with("Pending") && text.contains("no valid answer"), "{text}");
        assert!(request.unsure && !client.links.contains_key(&address));
        let values = |all: &[Value]| Value::Array(all.to_vec());
        let (page, none) = (|| Value::BulkString(b"page".into()), Value::Nil);
        for (answer, value, fits) in [
            (Answer::Values(2), values(&[page(), none.clone()]), true),
            (Answer::Values(2), values(&[page()]), false),
            (Answer::Values(1), values(&[Value::Int(1)]), false),
            (Answer::Values(1), none.clone(), false),
            (Answer::Okay, none, false),
            (Answer::Okay, Value::Okay, true),
            (Answer::Number, Value::Okay, false),
            (Answer::Number, Value::Int(0), true),
        ] {
            assert_eq!(answer.fits(&value), fits, "{answer:?} {value:?}");
        }
    }

    /// A server was restarted between two requests of one attempt. The first took the answer of the
    /// second, which waited for one until its time was over: ten minutes, in a test that failed.
    #[test]
    fn a_request_takes_no_answer_of_the_connection_after_its_own() {
        let (mut client, address) = client_of_a_node();
        let (mut first, mut second) = (request("=1", false), request("=2", false));
        let by_the_first = client.send(0, &mut first).expect("the node is there");
        client.links.remove(&address);
        let by_the_second = client.send(1, &mut second).expect("the node is there");
        let outcome = client.receive(&by_the_first, &mut first);
        assert!(matches!(outcome, Outcome::Pending(_)) && first.unsure, "{outcome:?}");
        let outcome = client.receive(&by_the_second, &mut second);
        assert!(matches!(outcome, Outcome::Done(Value::Int(2))) && !second.unsure, "{outcome:?}");
    }

    /// A server had closed a connection that was idle. The request sent there was unsure, and the
    /// numbers of its keys were lost to the tier for good.
    #[test]
    fn nothing_is_sent_by_a_connection_that_the_server_has_closed() {
        let (mut client, address) = client_of_a_node();
        let mut requests = [request("=1", false)];
        client.attempt(&mut requests);
        let link = client.links.get_mut(&address).expect("it is open");
        assert!(!link.connection.is_stale(), "it is idle");
        link.connection.send(b"QUIT\r\n").expect("the node is there");
        ebb_testing::eventually("the end", || link.connection.is_stale());
        let mut requests = [request("=2", false)];
        client.attempt(&mut requests);
        let [second] = &requests;
        assert!(matches!(second.outcome, Outcome::Done(Value::Int(2))), "{:?}", second.outcome);
        assert!(!second.unsure);
    }

    /// A write had met an outage, and nothing was asked since. The first of two reads tried the
    /// node, and the second was given up before the node had answered: its page was declared lost.
    #[test]
    fn a_read_is_not_given_up_for_an_outage_before_it() {
        let (mut client, address) = client_of_a_node_with(|spec| spec.wait = Duration::ZERO);
        client.server.note_failure(&address, "it was away");
        let mut requests = [request("=1", false), request("=2", false).with_own_time()];
        client.attempt(&mut requests);
        let [write, read] = &requests;
        assert!(matches!(write.outcome, Outcome::Lost(_)), "{:?}", write.outcome);
        assert!(matches!(read.outcome, Outcome::Pending(_)), "{:?}", read.outcome);
        ebb_testing::eventually("an answer", || {
            client.attempt(&mut requests);
            matches!(requests[1].outcome, Outcome::Done(Value::Int(2)))
        });
    }

    /// The question for replicas took the answer of a request before it.
    #[test]
    fn nothing_is_asked_beside_requests_that_wait_for_answers() {
        let (mut client, address) = client_of_a_node();
        let mut requests = [("=1", false), ("=2", true)].map(|(text, of)| request(text, of));
        let mut attempt = |client: &mut Client, from: usize| {
            client.attempt(&mut requests[from..]);
            for (request, answer) in requests.iter_mut().zip(1..).skip(from) {
                let outcome = std::mem::replace(&mut request.outcome, Outcome::Pending("".into()));
                let its = matches!(outcome, Outcome::Done(Value::Int(got)) if got == answer);
                assert!(its, "{answer}: {outcome:?}");
            }
        };
        attempt(&mut client, 0);
        attempt(&mut client, 1);
        let replicas = &mut client.links.get_mut(&address).expect("it is open").replicas;
        let (counted, live) = replicas.expect("nothing waited, and the node was asked");
        assert_eq!(live, 1);
        *replicas = Some((counted - 2 * COUNT_REPLICAS_EVERY, live));
        attempt(&mut client, 0);
    }

    #[test]
    fn commands_are_packed_as_the_protocol_has_them() {
        assert_eq!(wait_for(1, WAIT), b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n");
        assert_eq!(wait_for(2, WAIT), redis::cmd("WAIT").arg(2).arg(1000).get_packed_command());
    }

    #[test]
    fn the_address_of_another_node_is_parsed() {
        let from = Address { host: "here".into(), port: 1 };
        let parse = |text| parse_address(text, &from).map(|address| address.to_string());
        assert_eq!(parse("1.2.3.4:7").as_deref(), Some("1.2.3.4:7"));
        assert_eq!(parse("::1:7").as_deref(), Some("[::1]:7"));
        assert_eq!(parse(":7").as_deref(), Some("here:7"));
        assert_eq!(parse("x"), None);
    }
}
