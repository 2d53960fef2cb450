//! Opens a remote tier: checks that the server or cluster can be reached, can be written to, and
//! evicts no keys.

use super::connection::Connection;
use super::server::{Server, Topology, explain, slot_of};
use super::tls::{self, TrustError};
use super::url::{Address, Password, RedisSpec};
use crate::Notice;
use crate::error::{StoreError, TierName};
use redis::{ErrorKind, RedisError, Value};
use std::io;
use std::path::{Path, PathBuf};

/// Why a server cannot be used. The text of an error has advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// A file of the password or of certificates cannot be read.
    #[error("{}: {}", .0.display(), .1)]
    File(PathBuf, io::Error),
    /// The first line of the password's file is empty.
    #[error("{}: the first line is empty; write the password there", .0.display())]
    NoPassword(PathBuf),
    /// The certificates of this file, or else those of the system, cannot be used.
    #[error("{}{}", .0.as_ref().map_or(String::new(), |path| format!("{}: ", path.display())), .1)]
    Trust(Option<PathBuf>, TrustError),
    /// No server can be reached.
    #[error("{}", .0.iter().map(|(at, why)| unreachable(at, why)).collect::<Vec<_>>().join("; "))]
    Unreachable(Vec<(Address, RedisError)>),
    /// The server refuses a command.
    #[error("{}: {}", .0, refusal(.1))]
    Refused(Address, RedisError),
    /// The server belongs to a cluster, and the tier names a database.
    #[error("{0} belongs to a cluster, which has only database 0; leave /{1} out")]
    ClusterDatabase(Address, u32),
    /// The server belongs to a cluster that was not created yet.
    #[error(
        "{0} belongs to a cluster in which no node has a slot; create the cluster first \
         (redis-cli --cluster create)"
    )]
    NoSlots(Address),
    /// The tier names several servers, and this one belongs to no cluster.
    #[error("{0} is no node of a cluster; name one server alone, or enable cluster mode")]
    NoCluster(Address),
    /// The server is a replica of this master.
    #[error("{0} is a replica, which takes no writes; name {1}")]
    Replica(Address, String),
    /// The server's policy for full memory drops keys.
    #[error(
        "{} drops keys when it is full (maxmemory-policy {}), and pages would be lost; set it to \
         noeviction: redis-cli -h {} -p {} config set maxmemory-policy noeviction",
        .0, .1, .0.host, .0.port
    )]
    DropsKeys(Address, String),
    /// No node of the cluster has a slot.
    #[error(
        "no node of the cluster has slot {0}; to see the gaps: redis-cli --cluster check HOST:PORT"
    )]
    SlotGap(u16),
    /// The server returns another value than the stored one.
    #[error("{0} does not return the value that Ebb stored")]
    OtherValue(Address),
}

impl RemoteError {
    fn unreachable(address: &Address, error: RedisError) -> Self {
        Self::Unreachable(vec![(address.clone(), error)])
    }
}

/// Returns the server, and the prefix of the keys of this run.
pub(super) fn open(
    name: TierName,
    spec: &RedisSpec,
    notice: Notice,
) -> Result<(Server, String), StoreError> {
    let fail = |why| StoreError::OpenRemote { name, why };
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| fail(RemoteError::File(path.into(), error)))
    };
    let password = match &spec.password_file {
        None => spec.password.clone(),
        Some(path) => {
            let text = String::from_utf8_lossy(&read(path)?).into_owned();
            let line = text.lines().next().unwrap_or_default().to_owned();
            if line.is_empty() {
                return Err(fail(RemoteError::NoPassword(path.clone())));
            }
            Some(Password::new(line))
        }
    };
    let ca = spec.ca.as_deref();
    let trust = || {
        let certificates = ca.map(read).transpose()?;
        tls::trust(certificates.as_deref())
            .map_err(|why| fail(RemoteError::Trust(spec.ca.clone(), why)))
    };
    let trust = spec.tls.then(trust).transpose()?;
    let mut server = Server::new(name, spec, password, trust, notice);
    let (address, mut connection) = first_connection(&server).map_err(fail)?;
    let info = info(&address, &mut connection).map_err(fail)?;
    if field(&info, "cluster_enabled") == Some("1") {
        if spec.db != 0 {
            return Err(fail(RemoteError::ClusterDatabase(address, spec.db)));
        }
        server.cluster = true;
        let slots: Value = (redis::cmd("CLUSTER").arg("SLOTS").query(&mut connection))
            .map_err(|error| fail(RemoteError::Refused(address.clone(), error)))?;
        let topology =
            Topology::parse(&slots, &address).filter(|topology| !topology.masters().is_empty());
        let Some(topology) = topology else {
            return Err(fail(RemoteError::NoSlots(address)));
        };
        server.set_topology(topology);
    } else {
        if spec.hosts.len() > 1 {
            return Err(fail(RemoteError::NoCluster(address)));
        }
        server.set_topology(Topology::single(&address));
    }
    for master in server.topology().masters() {
        let mut connection = server
            .connect(&master)
            .map_err(|error| fail(RemoteError::unreachable(&master, error)))?;
        let info = self::info(&master, &mut connection).map_err(fail)?;
        judge(&master, &info).map_err(fail)?;
    }
    let prefix = prefix()?;
    introduce(&server, &prefix).map_err(fail)?;
    Ok((server, prefix))
}

/// Connects to the first of the addresses that answers.
fn first_connection(server: &Server) -> Result<(Address, Connection), RemoteError> {
    let mut whys = Vec::new();
    for address in &server.spec.hosts {
        match server.connect(address) {
            Ok(connection) => return Ok((address.clone(), connection)),
            Err(error) => whys.push((address.clone(), error)),
        }
    }
    Err(RemoteError::Unreachable(whys))
}

fn unreachable(address: &Address, error: &RedisError) -> String {
    let why = refusal(error);
    let words = error.to_string();
    let advice = if words.contains("certificate") {
        "; name the certificates to trust with ?ca=FILE"
    } else if error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("WRONGPASS" | "NOAUTH"))
        || words.contains("uthenticat")
    {
        "; give user and password as redis://USER:PASSWORD@HOST:PORT, or ?password-file=FILE"
    } else if error.is_connection_refusal() {
        "; is the server running there?"
    } else {
        ""
    };
    format!("{address}: {why}{advice}")
}

/// Returns a server's refusal as text, with advice about permissions.
fn refusal(error: &RedisError) -> String {
    match explain(error) {
        why if why.contains("permission") => {
            format!("{}; docs/guide.md lists the commands and keys that its user needs", why)
        }
        why => why,
    }
}

fn info(address: &Address, connection: &mut Connection) -> Result<String, RemoteError> {
    redis::cmd("INFO").query(connection).map_err(|error| RemoteError::unreachable(address, error))
}

/// Returns a field of a server's `INFO` text.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
}

/// Decides whether pages may be stored on a server with this `INFO` text.
fn judge(address: &Address, info: &str) -> Result<(), RemoteError> {
    if field(info, "role") == Some("slave") {
        let master = field(info, "master_host").zip(field(info, "master_port"));
        let master = master.map_or("its master".into(), |(host, port)| format!("{host}:{port}"));
        return Err(RemoteError::Replica(address.clone(), master));
    }
    match field(info, "maxmemory_policy") {
        // These policies never evict Ebb's keys, because Ebb's keys do not expire.
        None => Ok(()),
        Some(policy) if policy == "noeviction" || policy.starts_with("volatile-") => Ok(()),
        Some(policy) => Err(RemoteError::DropsKeys(address.clone(), policy.into())),
    }
}

/// Returns a random prefix, so that no two runs have the same.
fn prefix() -> Result<String, StoreError> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| StoreError::Setup { what: "a random number", source: errno.into() })?;
    Ok(format!("ebb:{:016x}:", u64::from_ne_bytes(bytes)))
}

/// Stores an identification of the run, which shows that keys can be written and read.
fn introduce(server: &Server, prefix: &str) -> Result<(), RemoteError> {
    let key = format!("{prefix}run");
    let topology = server.topology();
    let slot = slot_of(key.as_bytes());
    let Some(address) = topology.node_of(slot) else {
        return Err(RemoteError::SlotGap(slot));
    };
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let who = format!("host {host} pager {}", std::process::id());
    let why = |error| RemoteError::Refused(address.clone(), error);
    let mut connection =
        server.connect(address).map_err(|error| RemoteError::unreachable(address, error))?;
    redis::cmd("MSET").arg(&key).arg(&who).exec(&mut connection).map_err(why)?;
    let back: Vec<Option<String>> =
        redis::cmd("MGET").arg(&key).query(&mut connection).map_err(why)?;
    if back != [Some(who)] {
        return Err(RemoteError::OtherValue(address.clone()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_drops_keys_or_takes_no_writes_is_refused() {
        let address = Address { host: "h".into(), port: 7 };
        let judge = |policy: &str, role: &str| {
            judge(
                &address,
                &format!(
                    "role:{role}\r\nmaster_host:m\r\nmaster_port:9\r\nmaxmemory_policy:{policy}\r\n"
                ),
            )
        };
        for policy in ["noeviction", "volatile-lru", "volatile-ttl"] {
            judge(policy, "master").expect(policy);
        }
        for policy in ["allkeys-lru", "allkeys-lfu", "allkeys-random", "of-the-future"] {
            let why = judge(policy, "master").expect_err(policy).to_string();
            assert!(
                why.contains(policy) && why.contains("config set maxmemory-policy noeviction"),
                "{why}"
            );
        }
        let why = judge("noeviction", "slave").expect_err("a replica").to_string();
        assert!(why.contains("name m:9"), "{why}");
    }
}
