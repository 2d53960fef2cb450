//! One thread's connections to the nodes of a tier: sends what is asked to all of them, then receives.
//!
//! Invariants:
//! * CLIENT-1: what a request did is known only from its own answer. One that was sent and not answered may be carried out
//!   later, even after another that was sent after it: it is `unsure`, and its keys are never used for anything else.

use super::connection::Connection;
use super::server::{NotNow, Server, explain};
use super::url::Address;
use redis::{RedisError, Value};
use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The most that a server says in words, instead of or beside an answer.
const WORDS_MAX: usize = 64 << 10;
/// Between two tries of a thread that does nothing else.
const RETRY: Duration = Duration::from_millis(20);
/// How often a master is asked for its replicas.
const COUNT_REPLICAS_EVERY: Duration = Duration::from_secs(1);
/// A replica that has been silent for so long is none.
const REPLICA_LAG_MAX_SECONDS: u32 = 10;
/// How long a master is to wait for its replicas' acknowledgement at a time.
const WAIT_MS: u32 = 1000;

/// What came of a request.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Nothing yet, and why not.
    Pending(String),
    /// The server's answer.
    Done(Value),
    /// The server takes no more: its words.
    Full(String),
    /// It cannot be had.
    Lost(String),
}

/// Commands on keys of one slot, sent together.
pub(super) struct Request {
    slot: u16,
    packed: Vec<u8>,
    /// The most bytes that its answer has.
    bound: usize,
    /// Whether replicas must have it, too.
    replicated: bool,
    /// Where a node has sent us, for this once.
    asking: Option<Address>,
    pub unsure: bool,
    pub outcome: Outcome,
}

impl Request {
    /// One command, whose answer has no more than `bound` bytes but for a server's words.
    pub(super) fn new(slot: u16, packed: Vec<u8>, bound: usize, replicated: bool) -> Self {
        let (bound, outcome) = (bound + WORDS_MAX, Outcome::Pending(String::new()));
        Self { slot, packed, bound, replicated, asking: None, unsure: false, outcome }
    }

    fn is_pending(&self) -> bool {
        matches!(self.outcome, Outcome::Pending(_))
    }

    /// For the next use of its memory.
    pub(super) fn into_buffer(self) -> Vec<u8> {
        self.packed
    }
}

/// Begins a command of so many words.
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
    /// Live replicas, and when they were counted.
    replicas: Option<(Instant, u32)>,
}

/// The connections.
pub(super) struct Client {
    server: Arc<Server>,
    links: HashMap<Address, Link>,
    reported_alone: bool,
}

/// A request that was sent.
struct Sent {
    at: usize,
    address: Address,
    /// Answers to come before those that were asked for, and whether one comes after them: of so many replicas.
    before: usize,
    replicas: u32,
}

impl Client {
    pub(super) fn new(server: Arc<Server>) -> Self {
        Self { server, links: HashMap::new(), reported_alone: false }
    }

    /// Tries all that is pending, once.
    pub(super) fn attempt(&mut self, requests: &mut [Request]) {
        let mut sent = Vec::with_capacity(requests.len());
        for (at, request) in requests.iter_mut().enumerate() {
            if request.is_pending() {
                match self.send(at, request) {
                    Ok(this) => sent.push(this),
                    Err(outcome) => request.outcome = outcome,
                }
            }
        }
        for this in sent {
            let request = &mut requests[this.at];
            request.outcome = self.receive(&this, request);
        }
    }

    /// Tries until all is done, or cannot be had.
    pub(super) fn run(&mut self, requests: &mut [Request]) {
        self.run_within(requests, self.server.spec.wait, false);
    }

    /// The same within another time, perhaps also while the tier is being closed.
    pub(super) fn run_within(&mut self, requests: &mut [Request], limit: Duration, closing: bool) {
        let began = Instant::now();
        loop {
            self.attempt(requests);
            if !requests.iter().any(Request::is_pending) {
                return;
            }
            let ends = !closing && self.server.closing.load(Ordering::Relaxed);
            if ends || began.elapsed() > limit {
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
        let mut send = |bytes: &[u8]| link.connection.send(bytes);
        let asking = if before > 0 { send(b"*1\r\n$6\r\nASKING\r\n") } else { Ok(()) };
        let all = asking
            .and_then(|()| send(&request.packed))
            .and_then(|()| if replicas == 0 { Ok(()) } else { send(&wait_for(replicas)) });
        match all {
            Ok(()) => Ok(Sent { at, address, before, replicas }),
            Err(error) => {
                request.unsure = true;
                Err(self.broken(&address, &error))
            }
        }
    }

    /// A connection, and how many replicas are to have what is written.
    fn prepare(&mut self, address: &Address, replicated: bool) -> Result<u32, RedisError> {
        if !self.links.contains_key(address) {
            let connection = self.server.connect(address)?;
            self.links.insert(address.clone(), Link { connection, replicas: None });
        }
        let wanted = self.server.spec.replicas.unwrap_or(u32::from(self.server.cluster));
        if !replicated || wanted == 0 {
            return Ok(0);
        }
        let link = self.links.get_mut(address).expect("it is there");
        let live = match link.replicas {
            Some((counted, live)) if counted.elapsed() < COUNT_REPLICAS_EVERY => live,
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
                "{address} has {live} replicas and not {wanted}: pages that it alone has are lost if it is"
            ));
        }
        Ok(live.min(wanted))
    }

    fn receive(&mut self, sent: &Sent, request: &mut Request) -> Outcome {
        let Sent { address, before, replicas, .. } = sent;
        let Some(link) = self.links.get_mut(address) else {
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
        if let Some(error) = refusal {
            return self.refused(address, request, &error);
        }
        self.server.answered(address);
        if *replicas > 0 {
            match values.pop() {
                Some(Value::Int(have)) if have >= i64::from(*replicas) => {}
                _ => {
                    if let Some(link) = self.links.get_mut(address) {
                        link.replicas = None;
                    }
                    return Outcome::Pending(format!("{address}: its replicas do not keep up"));
                }
            }
        }
        Outcome::Done(values.swap_remove(*before))
    }

    /// A connection is of no use any more.
    fn broken(&mut self, address: &Address, error: &RedisError) -> Outcome {
        self.links.remove(address);
        self.set_back(address, &explain(error))
    }

    /// A server has answered that it will not.
    fn refused(&mut self, address: &Address, request: &mut Request, error: &RedisError) -> Outcome {
        let words = explain(error);
        match error.code() {
            Some("OOM") => {
                self.server.answered(address);
                Outcome::Full(format!("{address}: {words}"))
            }
            Some(code @ ("MOVED" | "ASK")) => {
                self.server.answered(address);
                let to = error.redirect_node().and_then(|(to, _)| parse_address(to, address));
                if code == "ASK" {
                    request.asking = to;
                } else {
                    self.server.refresh(to);
                }
                Outcome::Pending(format!("{address}: {words}"))
            }
            Some("TRYAGAIN") => {
                self.server.answered(address);
                Outcome::Pending(format!("{address}: {words}"))
            }
            _ => self.set_back(address, &words),
        }
    }

    fn set_back(&mut self, address: &Address, why: &str) -> Outcome {
        let lost = self.server.failed(address, why);
        self.server.refresh(None);
        let why = format!("{address}: {why}");
        if lost { Outcome::Lost(why) } else { Outcome::Pending(why) }
    }
}

fn wait_for(replicas: u32) -> Vec<u8> {
    let mut packed = Vec::with_capacity(48);
    words(&mut packed, 3);
    word(&mut packed, &[b"WAIT"]);
    word(&mut packed, &[replicas.to_string().as_bytes()]);
    word(&mut packed, &[WAIT_MS.to_string().as_bytes()]);
    packed
}

/// HOST:PORT as a node names another; it may leave out the host, which is its own then.
fn parse_address(text: &str, from: &Address) -> Option<Address> {
    let (host, port) = text.rsplit_once(':')?;
    let host = if host.is_empty() { &from.host } else { host.trim_matches(['[', ']']) };
    Some(Address { host: host.to_owned(), port: port.parse().ok()? })
}

/// Of what a master says of its replicas: those that are up to date but for what is on its way.
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

    #[test]
    fn commands_are_packed_as_the_protocol_has_them() {
        assert_eq!(wait_for(1), b"*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n1000\r\n");
        assert_eq!(wait_for(2), redis::cmd("WAIT").arg(2).arg(1000).get_packed_command());
    }

    #[test]
    fn a_node_names_another() {
        let from = Address { host: "here".into(), port: 1 };
        let parse = |text| parse_address(text, &from).map(|address| address.to_string());
        assert_eq!(parse("1.2.3.4:7").as_deref(), Some("1.2.3.4:7"));
        assert_eq!(parse("::1:7").as_deref(), Some("[::1]:7"));
        assert_eq!(parse(":7").as_deref(), Some("here:7"));
        assert_eq!(parse("x"), None);
    }
}
