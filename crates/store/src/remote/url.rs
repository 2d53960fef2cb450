//! Parses the text form of a remote tier:
//! `redis://[USER:PASSWORD@]HOST[:PORT][,HOST:PORT...][/DB][?OPTION&...][:SIZE]`.
//!
//! `rediss://` uses TLS. Special characters in a user or password (`@ / : , ? %`) are written as
//! `%XX`.

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

type Fault = (usize, String);

/// Parses one tier. An error is its offset in the text and its message, which contains no part of a
/// password.
pub(crate) fn parse(
    text: &str,
    parse_size: impl Fn(&str) -> Result<u64, String>,
) -> Result<RedisSpec, Fault> {
    let at = |part: &str| part.as_ptr() as usize - text.as_ptr() as usize;
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err((0, format!("write a remote tier as redis://HOST:PORT, {EXAMPLE}")));
    };
    let (login, rest) = match rest.rsplit_once('@') {
        Some((login, rest)) => (Some(login), rest),
        None => (None, rest),
    };
    let (user, password) = match login {
        None => (None, None),
        Some(login) => {
            if let Some(odd) = login.find(['/', '?', '@']) {
                let message =
                    "write special characters of a user or password (/ ? @ : , %) as %XX; / is %2F";
                return Err((at(login) + odd, message.into()));
            }
            let (user, password) = login.split_once(':').unwrap_or((login, ""));
            let decode = |part: &str| {
                percent_decode(part).ok_or_else(|| {
                    (at(part), "two hexadecimal digits follow a %; write % itself as %25".into())
                })
            };
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
            parse_host(host).map_err(|(offset, message)| (at(host) + offset, message))?;
        if let Some(after) = after {
            if !last {
                return Err((
                    at(after),
                    format!("\"{after}\" after the port; a SIZE comes last, {EXAMPLE}"),
                ));
            }
            size = Some(after);
        }
        if addresses.contains(&address) {
            return Err((at(host), format!("{address} is named twice")));
        }
        addresses.push(address);
    }
    let (tail, after) = match tail.split_once(':') {
        Some((tail, after)) => (tail, Some(after)),
        None => (tail, None),
    };
    let size = size.or(after);
    let limit =
        size.map(|size| parse_size(size).map_err(|message| (at(size), message))).transpose()?;
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
        spec.db = db.parse().map_err(|_| {
            (at(db), format!("\"{db}\" is no number of a database; write /0, or leave it out"))
        })?;
    }
    if spec.db != 0 && spec.hosts.len() > 1 {
        return Err((at(path), "a cluster has only database 0; leave the number out".into()));
    }
    for option in query.split('&').filter(|option| !option.is_empty()) {
        set(&mut spec, option).map_err(|message| (at(option), message))?;
    }
    Ok(spec)
}

fn set(spec: &mut RedisSpec, option: &str) -> Result<(), String> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    match (name, value.parse::<u64>()) {
        ("wait", Ok(seconds @ 1..=WAIT_MAX_SECONDS)) => spec.wait = Duration::from_secs(seconds),
        ("answer", Ok(seconds @ 1..=WAIT_MAX_SECONDS)) => {
            spec.answer = Duration::from_secs(seconds);
        }
        ("wait" | "answer", _) => {
            return Err(format!(
                "\"{value}\" is no time to wait; write seconds, 1 to {WAIT_MAX_SECONDS}, as {name}=30"
            ));
        }
        ("replicas", Ok(count @ 0..=100)) => spec.replicas = Some(count as u32),
        ("replicas", _) => {
            return Err(format!(
                "\"{value}\" is no number of replicas; write 0 to 100, as replicas=1"
            ));
        }
        ("ca" | "password-file", _) if value.is_empty() => {
            return Err(format!("the file of {name} is missing; write {name}=/etc/ebb/{name}"));
        }
        ("ca", _) if !spec.tls => {
            return Err("ca needs TLS; write rediss://, or leave ca out".into());
        }
        ("ca", _) => spec.ca = Some(value.into()),
        ("password-file", _) if spec.password.is_some() => {
            return Err("there is a password already; leave out one of the two".into());
        }
        ("password-file", _) => spec.password_file = Some(value.into()),
        _ => {
            return Err(format!(
                "\"{name}\" is no option; there are wait, answer, replicas, ca and password-file"
            ));
        }
    }
    Ok(())
}

/// Parses HOST, HOST:PORT or HOST:PORT:SIZE; the host may be in brackets.
fn parse_host(text: &str) -> Result<(Address, Option<&str>), Fault> {
    let (host, rest) = if let Some(inside) = text.strip_prefix('[') {
        let Some((host, rest)) = inside.split_once(']') else {
            return Err((0, "a ] is missing; write [::1]:6379".into()));
        };
        (host, rest.strip_prefix(':'))
    } else {
        match text.split_once(':') {
            Some((host, rest)) => (host, Some(rest)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err((0, format!("a HOST is missing; write redis://HOST:PORT, {EXAMPLE}")));
    }
    let Some(rest) = rest else { return Ok((Address { host: host.into(), port: PORT }, None)) };
    let (port, after) = match rest.split_once(':') {
        Some((port, after)) => (port, Some(after)),
        None => (rest, None),
    };
    let offset = port.as_ptr() as usize - text.as_ptr() as usize;
    match port.parse() {
        Ok(port @ 1..) => Ok((Address { host: host.into(), port }, after)),
        _ => Err((
            offset,
            format!(
                "\"{port}\" is no port; write redis://HOST:PORT, a SIZE after the port, {EXAMPLE}"
            ),
        )),
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
