//! Parses the text form of a remote tier:
//! `redis://[USER:PASSWORD@]HOST[:PORT][,HOST:PORT...][/DB][?OPTION&...][:SIZE]`.
//!
//! `rediss://` uses TLS. Special characters in a user or password (`@ / : , ? %`) are written as
//! `%XX`.

use crate::spec::{TierFault, parse_size};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;
use zeroize::Zeroizing;

const PORT: u16 = 6379;
/// Time for which a thread that needs a page waits for a server that does not answer. It is longer
/// than a server needs to restart, or a cluster to replace a master by a replica (15 s with its
/// defaults). It is short enough for an outage to be reported soon.
const WAIT: Duration = Duration::from_secs(30);
const WAIT_MAX_SECONDS: u64 = 3600;
/// Time that one answer of a server may take.
const ANSWER: Duration = Duration::from_secs(3);
const EXAMPLE: &str = "for example redis://127.0.0.1:6379:8G";

/// A password. `Debug` does not print it, and the memory is erased.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Zeroizing<String>);

impl Password {
    pub(crate) fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One address of a server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// Name or IP address of the host.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A Redis or Valkey server or cluster, as the user named it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisSpec {
    /// Whether to use TLS.
    pub tls: bool,
    /// User name for AUTH.
    pub user: Option<String>,
    /// Password for AUTH.
    pub password: Option<Password>,
    /// A file whose first line is the password.
    pub password_file: Option<PathBuf>,
    /// The server, or some nodes of the cluster.
    pub hosts: Vec<Address>,
    /// The database of a single server.
    pub db: u32,
    /// A file of certificates to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// How long a server may be away.
    pub wait: Duration,
    /// How long connecting or an answer may take before the connection counts as broken.
    pub answer: Duration,
    /// How many replicas must have a page before it leaves memory, as far as there are so many. The
    /// default is one in a cluster and none elsewhere.
    pub replicas: Option<u32>,
    /// Largest number of bytes of pages to keep on the server.
    pub limit: Option<u64>,
}

/// Returns whether a tier of a list is a remote one.
pub(crate) fn is_url(part: &str) -> bool {
    part.starts_with("redis:") || part.starts_with("rediss:")
}

/// Returns whether a part of a list that follows a remote tier is another host of that tier, not a
/// tier of its own.
pub(crate) fn is_host(part: &str) -> bool {
    let kind = part.split(':').next().unwrap_or_default();
    let after = match part.rfind("]:") {
        Some(at) if part.starts_with('[') => &part[at + 2..],
        _ => part.get(kind.len() + 1..).unwrap_or_default(),
    };
    !is_url(part)
        && !matches!(kind, "ram" | "file" | "")
        && after.starts_with(|c: char| c.is_ascii_digit())
}

/// Returns the text with passwords hidden; the length stays.
pub(crate) fn redact(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out += before;
        let end = after.find("://").map_or(after.len(), |at| after[..at].rfind(',').unwrap_or(at));
        let secret = after[..end].rfind('@').unwrap_or(0);
        let user = after[..secret].find(':').map_or(secret, |at| at + 1);
        out += &after[..user];
        out.extend(std::iter::repeat_n('*', secret - user));
        rest = &after[secret..];
    }
    out + rest
}

/// Mistake in a remote tier. No error contains a part of a password.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The text has no `://`.
    #[error("write a remote tier as redis://HOST:PORT, {EXAMPLE}")]
    NoScheme,
    /// A character of the user or password is not encoded.
    #[error("write special characters of a user or password (/ ? @ : , %) as %XX; / is %2F")]
    NotEncoded,
    /// A `%` of the user or password does not begin a byte.
    #[error("two hexadecimal digits follow a %; write % itself as %25")]
    Percent,
    /// A field follows a port that is not the last.
    #[error("\"{0}\" after the port; a SIZE comes last, {EXAMPLE}")]
    EarlySize(String),
    /// Two hosts are the same.
    #[error("{0} is named twice")]
    Twice(Address),
    /// The database is no number.
    #[error("\"{0}\" is no number of a database; write /0, or leave it out")]
    NoDatabase(String),
    /// A cluster has another database than 0.
    #[error("a cluster has only database 0; leave the number out")]
    ClusterDatabase,
    /// A time to wait is no such number of seconds. The name of the option follows.
    #[error("\"{0}\" is no time to wait; write seconds, 1 to {WAIT_MAX_SECONDS}, as {1}=30")]
    NoTime(String, String),
    /// The count of replicas is no such number.
    #[error("\"{0}\" is no number of replicas; write 0 to 100, as replicas=1")]
    NoReplicas(String),
    /// An option has no file.
    #[error("the file of {0} is missing; write {0}=/etc/ebb/{0}")]
    NoFile(String),
    /// Certificates are named for a server without TLS.
    #[error("ca needs TLS; write rediss://, or leave ca out")]
    CaWithoutTls,
    /// A password and a file of a password are named.
    #[error("there is a password already; leave out one of the two")]
    TwoPasswords,
    /// No option has this name.
    #[error("\"{0}\" is no option; there are wait, answer, replicas, ca and password-file")]
    UnknownOption(String),
    /// A host begins with a bracket that is not closed.
    #[error("a ] is missing; write [::1]:6379")]
    Bracket,
    /// The host is empty.
    #[error("a HOST is missing; write redis://HOST:PORT, {EXAMPLE}")]
    NoHost,
    /// The port is no such number.
    #[error("\"{0}\" is no port; write redis://HOST:PORT, a SIZE after the port, {EXAMPLE}")]
    NoPort(String),
}

/// Parses one tier. An error comes with its offset in the text.
pub(crate) fn parse(text: &str) -> Result<RedisSpec, (usize, TierFault)> {
    let at = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
    let fail = |part: &str, error: UrlError| (at(part), TierFault::Remote(error));
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(fail(text, UrlError::NoScheme));
    };
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (Some(login), rest),
        None => (None, rest),
    };
    let (user, password) = match login {
        None => (None, None),
        Some(login) => {
            if let Some(odd) = login.find(['/', '?', '@']) {
                return Err(fail(&login[odd..], UrlError::NotEncoded));
            }
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            let decode =
                |part: &str| percent_decode(part).ok_or_else(|| fail(part, UrlError::Percent));
            let (user, password) = (decode(user)?, decode(password)?);
            let some = |text: String| (!text.is_empty()).then_some(text);
            (some(user), some(password).map(Password::new))
        }
    };
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (hosts, tail) = rest.split_at(end);
    let mut size = None;
    let mut addresses = Vec::new();
    let count = hosts.split(',').count();
    for (number, host) in hosts.split(',').enumerate() {
        let last = number + 1 == count && tail.is_empty();
        let (address, after) =
            parse_host(host).map_err(|(offset, error)| fail(&host[offset..], error))?;
        if let Some(after) = after {
            if !last {
                return Err(fail(after, UrlError::EarlySize(after.into())));
            }
            size = Some(after);
        }
        if addresses.contains(&address) {
            return Err(fail(host, UrlError::Twice(address)));
        }
        addresses.push(address);
    }
    let (tail, after) = match tail.split_once(':') {
        Some((tail, after)) => (tail, Some(after)),
        None => (tail, None),
    };
    let size = size.or(after);
    let limit =
        size.map(|size| parse_size(size).map_err(|error| (at(size), error.into()))).transpose()?;
    let mut spec = RedisSpec {
        tls: scheme == "rediss",
        user,
        password,
        password_file: None,
        hosts: addresses,
        db: 0,
        ca: None,
        wait: WAIT,
        answer: ANSWER,
        replicas: None,
        limit,
    };
    let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
    if let Some(db) = path.strip_prefix('/').filter(|db| !db.is_empty()) {
        spec.db = db.parse().map_err(|_| fail(db, UrlError::NoDatabase(db.into())))?;
    }
    if spec.db != 0 && spec.hosts.len() > 1 {
        return Err(fail(path, UrlError::ClusterDatabase));
    }
    for option in query.split('&').filter(|option| !option.is_empty()) {
        set(&mut spec, option).map_err(|error| fail(option, error))?;
    }
    Ok(spec)
}

fn set(spec: &mut RedisSpec, option: &str) -> Result<(), UrlError> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    match (name, value.parse::<u64>()) {
        ("wait", Ok(seconds @ 1..=WAIT_MAX_SECONDS)) => spec.wait = Duration::from_secs(seconds),
        ("answer", Ok(seconds @ 1..=WAIT_MAX_SECONDS)) => {
            spec.answer = Duration::from_secs(seconds);
        }
        ("wait" | "answer", _) => {
            return Err(UrlError::NoTime(value.into(), name.into()));
        }
        ("replicas", Ok(count @ 0..=100)) => spec.replicas = Some(count as u32),
        ("replicas", _) => return Err(UrlError::NoReplicas(value.into())),
        ("ca" | "password-file", _) if value.is_empty() => {
            return Err(UrlError::NoFile(name.into()));
        }
        ("ca", _) if !spec.tls => return Err(UrlError::CaWithoutTls),
        ("ca", _) => spec.ca = Some(value.into()),
        ("password-file", _) if spec.password.is_some() => {
            return Err(UrlError::TwoPasswords);
        }
        ("password-file", _) => spec.password_file = Some(value.into()),
        _ => return Err(UrlError::UnknownOption(name.into())),
    }
    Ok(())
}

/// Parses HOST, HOST:PORT or HOST:PORT:SIZE; the host may be in brackets. An error comes with its
/// offset in the text.
fn parse_host(text: &str) -> Result<(Address, Option<&str>), (usize, UrlError)> {
    let (host, rest) = if let Some(inside) = text.strip_prefix('[') {
        let Some((host, rest)) = inside.split_once(']') else {
            return Err((0, UrlError::Bracket));
        };
        (host, rest.strip_prefix(':'))
    } else {
        match text.split_once(':') {
            Some((host, rest)) => (host, Some(rest)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err((0, UrlError::NoHost));
    }
    let Some(rest) = rest else { return Ok((Address { host: host.into(), port: PORT }, None)) };
    let (port, after) = match rest.split_once(':') {
        Some((port, after)) => (port, Some(after)),
        None => (rest, None),
    };
    let offset = port.as_ptr() as usize - text.as_ptr() as usize;
    match port.parse() {
        Ok(port @ 1..) => Ok((Address { host: host.into(), port }, after)),
        _ => Err((offset, UrlError::NoPort(port.into()))),
    }
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || (rest.next()? as char).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}
