//! State shared by the threads of one remote tier: how to connect, which node has which slots, and
//! which nodes do not answer.
//!
//! Invariants:
//! * SERVER-1: an address is in `away` from the first failure to the first answer. While it is
//!   there, only one thread at a time tries it, so that the others go on with other nodes.
//! * SERVER-2: no message and no error contains a password.
//!
//! Locks: `topology`, `refreshed` and `away` are leaves. None is held across I/O except
//! `refreshed`, which is only tried.

use super::connection::Connection;
use super::tls::Trust;
use super::url::{Address, Password, RedisSpec};
use crate::error::TierName;
use crate::{Notice, lock};
use ebb_sys::words::brief;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number of hash slots of a cluster, which divide the keys among the nodes.
pub(super) const SLOTS: u16 = 16384;
/// Time that a node of a cluster has to report the other nodes. The question is repeated regularly.
const ASK_AROUND: Duration = Duration::from_millis(700);
/// Interval at which an address that does not answer is tried.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// Interval at which the nodes are asked for the slot ranges.
const REFRESH_EVERY: Duration = Duration::from_millis(100);
/// Largest number of messages of one tier.
const REPORTED_MAX: u32 = 20;

/// Which node has which slots.
pub(super) struct Topology {
    /// First and last slot, and the master.
    ranges: Vec<(u16, u16, Address)>,
    /// All nodes, to ask for changes.
    known: Vec<Address>,
}

impl Topology {
    /// Creates the topology of one server that has all slots.
    pub(super) fn single(address: &Address) -> Self {
        Self { ranges: vec![(0, SLOTS - 1, address.clone())], known: vec![address.clone()] }
    }

    /// Parses a node's answer to CLUSTER SLOTS. The node may leave its own name out.
    pub(super) fn parse(value: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(lines) = value else { return None };
        let mut this = Self { ranges: Vec::new(), known: Vec::new() };
        for line in lines {
            let Value::Array(fields) = line else { return None };
            let [Value::Int(first), Value::Int(last), nodes @ ..] = &fields[..] else {
                return None;
            };
            let nodes: Vec<Address> =
                nodes.iter().map(|node| node_address(node, asked)).collect::<Option<_>>()?;
            let slot = |number: i64| u16::try_from(number).ok().filter(|&slot| slot < SLOTS);
            this.ranges.push((slot(*first)?, slot(*last)?, nodes.first()?.clone()));
            this.known.extend(nodes);
        }
        this.known.sort();
        this.known.dedup();
        Some(this)
    }

    pub(super) fn node_of(&self, slot: u16) -> Option<&Address> {
        let has = |&&(first, last, _): &&(u16, u16, Address)| (first..=last).contains(&slot);
        self.ranges.iter().find(has).map(|(_, _, address)| address)
    }

    /// Returns the masters, each once.
    pub(super) fn masters(&self) -> Vec<Address> {
        let mut all: Vec<Address> =
            self.ranges.iter().map(|(_, _, address)| address.clone()).collect();
        all.sort();
        all.dedup();
        all
    }
}

fn node_address(node: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(fields) = node else { return None };
    let host = match fields.first()? {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8(host.clone()).ok()?
        }
        _ => asked.host.clone(),
    };
    let Value::Int(port) = fields.get(1)? else { return None };
    Some(Address { host, port: u16::try_from(*port).ok()? })
}

/// An address that does not answer.
struct Away {
    since: Instant,
    next_try: Instant,
    trying: bool,
    why: String,
}

/// Why a request was not tried.
pub(super) enum NotNow {
    /// Another thread tries the address.
    Away(String),
    /// The address has been tried for the whole time limit.
    Lost(String),
}

/// One server or cluster.
pub(super) struct Server {
    pub name: TierName,
    pub spec: RedisSpec,
    password: Option<Password>,
    /// With TLS, the certificates that the connections trust.
    trust: Option<Trust>,
    pub cluster: bool,
    topology: Mutex<Arc<Topology>>,
    refreshed: Mutex<Option<Instant>>,
    away: Mutex<HashMap<Address, Away>>,
    away_count: AtomicUsize,
    pub closing: AtomicBool,
    notice: Notice,
    reported: AtomicU32,
    /// Number of failures: missing answers, and refusals.
    pub errors: AtomicU64,
}

impl Server {
    pub(super) fn new(
        name: TierName,
        spec: &RedisSpec,
        password: Option<Password>,
        trust: Option<Trust>,
        notice: Notice,
    ) -> Self {
        Self {
            name,
            password,
            trust,
            cluster: false,
            topology: Mutex::new(Arc::new(Topology::single(&spec.hosts[0]))),
            refreshed: Mutex::default(),
            away: Mutex::default(),
            away_count: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            notice,
            reported: AtomicU32::new(0),
            errors: AtomicU64::new(0),
            spec: spec.clone(),
        }
    }

    /// Connects to a node. A connection on which an answer takes longer than the setting `answer`
    /// counts as broken, and a new one repeats the request. So the setting also decides when an
    /// outage begins.
    pub(super) fn connect(&self, address: &Address) -> RedisResult<Connection> {
        self.connect_within(address, self.spec.answer)
    }

    fn connect_within(&self, address: &Address, limit: Duration) -> RedisResult<Connection> {
        let mut connection = Connection::open(address, self.trust.as_ref(), limit)?;
        if let Some(password) = &self.password {
            let mut login = redis::cmd("AUTH");
            if let Some(user) = &self.spec.user {
                login.arg(user);
            }
            login.arg(password.expose()).exec(&mut connection).map_err(|error| {
                // SERVER-2: the server's text may contain the password.
                let refused = (ErrorKind::AuthenticationFailed, "it refuses user or password");
                if error.code().is_some() { refused.into() } else { error }
            })?;
        }
        if self.spec.db != 0 {
            redis::cmd("SELECT").arg(self.spec.db).exec(&mut connection)?;
        }
        connection.set_limit(self.spec.answer)?;
        Ok(connection)
    }

    pub(super) fn topology(&self) -> Arc<Topology> {
        lock(&self.topology).clone()
    }

    pub(super) fn set_topology(&self, topology: Topology) {
        *lock(&self.topology) = Arc::new(topology);
    }

    /// Asks the nodes for the slot ranges, unless that was done just now. `first` is a node that a
    /// redirection has named, which is likely to know.
    pub(super) fn refresh(&self, first: Option<Address>) {
        if !self.cluster {
            return;
        }
        let Ok(mut refreshed) = self.refreshed.try_lock() else { return };
        if refreshed.is_some_and(|at| at.elapsed() < REFRESH_EVERY) {
            return;
        }
        let topology = self.topology();
        let (away, there): (Vec<_>, Vec<_>) = {
            let away = lock(&self.away);
            let all = first.iter().chain(&topology.known).chain(&self.spec.hosts).cloned();
            all.partition(|address| away.contains_key(address))
        };
        for address in there.into_iter().chain(away) {
            let asked = self.connect_within(&address, ASK_AROUND).and_then(|mut connection| {
                connection.set_limit(ASK_AROUND)?;
                redis::cmd("CLUSTER").arg("SLOTS").query::<Value>(&mut connection)
            });
            if let Ok(value) = asked
                && let Some(topology) = Topology::parse(&value, &address)
                && !topology.ranges.is_empty()
            {
                self.set_topology(topology);
                break;
            }
            if self.closing.load(Ordering::Relaxed) {
                break;
            }
        }
        *refreshed = Some(Instant::now());
    }

    /// Returns whether this thread may try an address now (SERVER-1). If so, it reports the result
    /// afterwards.
    pub(super) fn begin(&self, address: &Address) -> Result<(), NotNow> {
        // Relaxed, because a thread that just misses a change finds out itself.
        if self.away_count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        let mut all = lock(&self.away);
        let Some(away) = all.get_mut(address) else { return Ok(()) };
        if !away.trying && away.next_try <= Instant::now() {
            away.trying = true;
            return Ok(());
        }
        if away.since.elapsed() > self.spec.wait {
            return Err(NotNow::Lost(away.why.clone()));
        }
        Err(NotNow::Away(away.why.clone()))
    }

    /// Returns how long a wait that has lasted for `waited` may still last. While some address is
    /// away, that is no longer than for this address. So several waits together last no longer than
    /// one.
    pub(super) fn time_left(&self, waited: Duration) -> Duration {
        let away = lock(&self.away).values().map(|away| away.since.elapsed()).max();
        self.spec.wait.saturating_sub(waited.max(away.unwrap_or_default()))
    }

    /// Records that an address has answered.
    pub(super) fn note_answer(&self, address: &Address) {
        if self.away_count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let back = {
            let mut all = lock(&self.away);
            let back = all.remove(address);
            self.away_count.store(all.len(), Ordering::Relaxed);
            back
        };
        if let Some(away) = back {
            let seconds = away.since.elapsed().as_secs_f64();
            self.tell(&format!("{address} answers again, after {seconds:.1} s"));
        }
    }

    /// Records that an address has not answered, or has refused. Returns true if that has lasted
    /// for the whole time limit.
    pub(super) fn note_failure(&self, address: &Address, why: &str) -> bool {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        let (first, lost) = {
            let mut all = lock(&self.away);
            let first = !all.contains_key(address);
            let away = all.entry(address.clone()).or_insert_with(|| Away {
                since: now,
                next_try: now,
                trying: false,
                why: String::new(),
            });
            (away.trying, away.next_try) = (false, now + PROBE_EVERY);
            why.clone_into(&mut away.why);
            let lost = away.since.elapsed() > self.spec.wait;
            self.away_count.store(all.len(), Ordering::Relaxed);
            (first, lost)
        };
        if first && !self.closing.load(Ordering::Relaxed) {
            self.tell(&format!(
                "{address}: {why}; threads that need a page of it wait, {} s at most",
                self.spec.wait.as_secs()
            ));
        }
        lost
    }

    /// Reports something about this tier to the user.
    pub(super) fn tell(&self, text: &str) {
        // Relaxed, because it is only a count.
        match self.reported.fetch_add(1, Ordering::Relaxed) {
            0..REPORTED_MAX => self.notice.say(&format!("tier {}: {text}", self.name)),
            REPORTED_MAX => {
                self.notice.say(&format!("tier {}: more messages are left out", self.name));
            }
            _ => {}
        }
    }

    /// Returns all addresses given by the user.
    pub(super) fn place(&self) -> String {
        let scheme = if self.spec.tls { "rediss" } else { "redis" };
        let hosts: Vec<String> = self.spec.hosts.iter().map(ToString::to_string).collect();
        format!("{scheme}://{}", hosts.join(","))
    }
}

/// Number of bytes of a server's text that are shown.
const WORDS_MAX: usize = 200;

/// Describes an error in words that fit after an address.
pub(super) fn explain(error: &RedisError) -> String {
    if error.is_timeout() {
        return "it does not answer".into();
    }
    if error.kind() == ErrorKind::Parse {
        return "it sends no valid answer".into();
    }
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("it says: {code} {detail}"),
        (Some(code), None) => format!("it says: {code}"),
        _ => error.to_string(),
    };
    brief(&words, WORDS_MAX).into_owned()
}

/// Returns the cluster slot of a key, by the part in its braces.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let open = key.iter().position(|&byte| byte == b'{');
    let tagged = open.and_then(|open| {
        let tag = &key[open + 1..];
        let close = tag.iter().position(|&byte| byte == b'}')?;
        (close > 0).then(|| &tag[..close])
    });
    crc16(tagged.unwrap_or(key)) % SLOTS
}

/// Computes CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    let step = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    bytes.iter().fold(0, |crc, &byte| (0..8).fold(crc ^ u16::from(byte) << 8, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo{}{bar}"), slot_of(b"foo{}{bar}"), "an empty tag is none");
        assert_eq!(slot_of(b"{user1000}.following"), slot_of(b"{user1000}.followers"));
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(b"{bar") % SLOTS);
        assert_eq!(slot_of(b"foo"), 12182);
    }

    /// Shows that a long text of a server is cut, and its control characters do not reach the
    /// terminal.
    #[test]
    fn the_message_of_a_server_is_cut_and_has_no_control_characters() {
        let long = format!("\x1b[2J{}", "x".repeat(WORDS_MAX * 2));
        let words = explain(&RedisError::from((redis::ErrorKind::Extension, "said", long)));
        assert!(words.len() <= WORDS_MAX + 3 && words.ends_with("xx..."), "{words}");
        assert!(!words.contains(char::is_control), "{words}");
        let error = redis::parse_redis_value(b"HTTP/1.1 400 Bad Request\r\n").expect_err("none");
        assert_eq!(explain(&error), "it sends no valid answer");
    }

    #[test]
    fn a_clusters_nodes_are_understood() {
        let asked = Address { host: "seen".into(), port: 1 };
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let node = |host, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let slots = Value::Array(vec![
            range(0, 8000, vec![node(text("a"), 7), node(text("b"), 8)]),
            range(8001, 16383, vec![node(Value::Nil, 9)]),
        ]);
        let topology = Topology::parse(&slots, &asked).expect("understood");
        let node_of = |slot| topology.node_of(slot).map(ToString::to_string);
        assert_eq!(node_of(8000).as_deref(), Some("a:7"));
        assert_eq!(node_of(8001).as_deref(), Some("seen:9"));
        assert_eq!(topology.known.len(), 3);
        assert_eq!(topology.masters().len(), 2);
        for odd in [
            Value::Nil,
            Value::Array(vec![Value::Okay]),
            Value::Array(vec![range(0, 20000, vec![])]),
        ] {
            assert!(Topology::parse(&odd, &asked).is_none());
        }
    }

    #[test]
    fn one_thread_at_a_time_tries_a_server_that_does_not_answer() {
        let mut spec = match crate::parse_tiers("redis://h:1").expect("a tier").remove(0) {
            crate::TierSpec::Redis(spec) => *spec,
            other => panic!("{other:?}"),
        };
        // The test moves the times of the address that is away by more than any run of the test
        // takes.
        let ages = 2 * ebb_testing::HANG;
        spec.wait = ages;
        let (said, heard) = std::sync::mpsc::channel();
        let said = Mutex::new(said);
        let notice = Notice::new(move |text| lock(&said).send(text.to_owned()).expect("heard"));
        let server = Server::new(TierName::Redis(0), &spec, None, None, notice);
        let address = spec.hosts[0].clone();
        assert!(server.begin(&address).is_ok() && server.begin(&address).is_ok());
        assert!(!server.time_left(Duration::ZERO).is_zero());
        let times = |change: fn(&mut Away, Duration)| {
            change(lock(&server.away).get_mut(&address).expect("it is away"), ages);
        };
        assert!(!server.note_failure(&address, "gone"));
        times(|away, ages| {
            let waits = away.next_try.duration_since(away.since);
            assert_eq!(waits, PROBE_EVERY);
            away.next_try += ages;
        });
        assert!(
            matches!(server.begin(&address), Err(NotNow::Away(why)) if why == "gone"),
            "not at once"
        );
        times(|away, ages| away.next_try = away.since - ages);
        assert!(server.begin(&address).is_ok());
        assert!(matches!(server.begin(&address), Err(NotNow::Away(_))), "one is trying");
        assert!(!server.note_failure(&address, "gone still"));
        times(|away, ages| {
            assert!(away.next_try >= away.since + PROBE_EVERY);
            away.since -= 2 * ages;
            away.next_try = away.since;
        });
        assert!(server.time_left(Duration::ZERO).is_zero(), "another wait has lasted as long");
        assert!(server.begin(&address).is_ok());
        assert!(matches!(server.begin(&address), Err(NotNow::Lost(_))), "for too long");
        server.note_answer(&address);
        assert!(server.begin(&address).is_ok() && server.begin(&address).is_ok());
        let said: Vec<String> = heard.try_iter().collect();
        assert_eq!(said.len(), 2, "once each: {said:?}");
        assert!(said[0].contains("h:1: gone; threads") && said[1].contains("again"), "{said:?}");
    }
}
