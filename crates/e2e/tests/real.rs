//! Runs real programs in about half of the memory they take, or less: same output, same end.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::Command;

use ebb_e2e::MIB;
use ebb_e2e::build::script;
use ebb_e2e::client::{Answer, Connection, Random, value_of};
use ebb_e2e::launch::{Launch, Outcome, Running};
use ebb_e2e::same::{need, same};
use ebb_testing::eventually;
use rustix::process::Signal;
use tempfile::TempDir;

const PYTHON: &str = "/usr/bin/python3";

/// Runs the program plainly and with each limit in MiB, and compares output and status. Returns the
/// plain run.
#[track_caller]
fn same_in(limits: &[u64], launch: &Launch) -> Outcome {
    let plain = launch.run();
    plain.expect_code(0);
    for mib in limits {
        same(&plain, &launch.clone().limit(mib * MIB).run());
    }
    plain
}

#[test]
fn python_with_large_dicts() {
    need(PYTHON);
    let launch = Launch::new(PYTHON).arg(script("dicts.py")).arg("20000");
    same_in(&[10, 8], &launch.env("PYTHONHASHSEED", "1"));
}

/// Four processes that share and copy their pages.
#[test]
fn python_with_forked_workers() {
    need(PYTHON);
    let workers = Launch::new(PYTHON).arg(script("workers.py")).arg("200000");
    same_in(&[40, 24], &workers);
}

#[test]
fn sqlite_in_memory() {
    let sqlite = need("/usr/bin/sqlite3");
    let launch = Launch::new(sqlite).arg(":memory:").input(&script("tables.sql"));
    let plain = same_in(&[12, 8], &launch);
    assert!(plain.text().ends_with("ok\n"), "integrity_check: {}", plain.text());
}

#[test]
fn sort_with_a_large_buffer() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let path = folder.path().join("lines");
    let mut file = BufWriter::new(File::create(&path).expect("file"));
    let mut random = Random::new(3);
    for _ in 0..200_000 {
        writeln!(file, "{:016x}{:016x} line", random.next(), random.next()).expect("written");
    }
    file.flush().expect("written");
    let launch = Launch::new("sort").args(["-S", "300M", "--parallel=2"]).arg(&path);
    same_in(&[12], &launch.env("LC_ALL", "C"));
}

#[test]
fn java_with_a_heap_larger_than_the_limit() {
    let java = need("/usr/bin/java");
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let mut javac = Command::new(need("/usr/bin/javac"));
    javac.arg("-d").arg(folder.path()).arg(script("Churn.java"));
    assert!(javac.status().expect("javac runs").success(), "Churn.java compiles");
    let launch = Launch::new(java).args(["-XX:+UseSerialGC", "-Xms96m", "-Xmx96m", "-cp"]);
    same_in(&[48], &launch.arg(folder.path()).args(["Churn", "32"]));
}

// ---- servers ---------------------------------------------------------------------------------

fn start_server(launch: Launch, limit: Option<u64>, socket: &Path) -> (Running, Connection) {
    let mut server = limit.map_or(launch.clone(), |bytes| launch.limit(bytes)).start();
    let mut connection = None;
    server.wait_until("it listens", |_| {
        connection = Connection::open(socket).ok();
        connection.is_some()
    });
    (server, connection.expect("connected"))
}

const REDIS_VALUES: u64 = 2560;
const REDIS_VALUE_BYTES: usize = 4096;

fn redis(folder: &Path, limit: Option<u64>) -> (Running, Connection) {
    let socket = folder.join("redis.sock");
    let _ = fs::remove_file(&socket);
    let launch = Launch::new(need("/usr/bin/redis-server"))
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(&socket)
        .arg("--dir")
        .arg(folder);
    start_server(launch, limit, &socket)
}

/// Writes values of one version, several requests under way at a time.
fn redis_write(connection: &mut Connection, keys: &[u64], version: u64) {
    for keys in keys.chunks(32) {
        for key in keys {
            let value = value_of(*key, version, REDIS_VALUE_BYTES);
            connection.redis_send(&[b"SET", format!("key:{key}").as_bytes(), &value]);
        }
        for _ in keys {
            assert_eq!(connection.redis_answer(), Answer::Text("OK".into()));
        }
    }
}

/// Reads every value in random order. `version` returns the version that each key must have.
fn redis_check(connection: &mut Connection, seed: u64, version: impl Fn(u64) -> u64) {
    for key in Random::new(seed).order(REDIS_VALUES) {
        let answer = connection.redis(&[b"GET", format!("key:{key}").as_bytes()]);
        let want = Answer::Bytes(value_of(key, version(key), REDIS_VALUE_BYTES));
        assert!(answer == want, "key {key} has a wrong value");
    }
}

fn redis_info(connection: &mut Connection, field: &str) -> String {
    let Answer::Bytes(bytes) = connection.redis(&[b"INFO", b"persistence"]) else {
        panic!("INFO has no text")
    };
    let text = String::from_utf8(bytes).expect("text");
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("INFO has no {field}")).to_owned()
}

/// Writes 10 MiB of values, reads each, and takes a snapshot by fork while values change. If read
/// again, the snapshot has each value as at the fork.
fn redis_session(limit: Option<u64>, read_again: bool) {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let (server, mut connection) = redis(folder.path(), limit);
    redis_write(&mut connection, &(0..REDIS_VALUES).collect::<Vec<_>>(), 1);
    redis_check(&mut connection, 1, |_| 1);
    let begun = connection.redis(&[b"BGSAVE"]);
    assert_eq!(begun, Answer::Text("Background saving started".into()));
    let changed: Vec<u64> = (0..REDIS_VALUES).filter(|key| key % 5 == 0).collect();
    redis_write(&mut connection, &changed, 2);
    eventually("the snapshot", || redis_info(&mut connection, "rdb_bgsave_in_progress") == "0");
    assert_eq!(redis_info(&mut connection, "rdb_last_bgsave_status"), "ok");
    redis_check(&mut connection, 2, |key| if key % 5 == 0 { 2 } else { 1 });
    connection.redis_send(&[b"SHUTDOWN", b"NOSAVE"]);
    server.finish().expect_code(0);

    let dump = folder.path().join("dump.rdb");
    let checked = Command::new("redis-check-rdb").arg(&dump).output().expect("redis-check-rdb");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    if !read_again {
        return;
    }
    let (server, mut connection) = redis(folder.path(), None);
    eventually("what was saved", || redis_info(&mut connection, "loading") == "0");
    redis_check(&mut connection, 3, |_| 1);
    connection.redis_send(&[b"SHUTDOWN", b"NOSAVE"]);
    server.finish().expect_code(0);
}

#[test]
fn redis_loads_saves_and_reads_back() {
    need("/usr/bin/redis-check-rdb");
    need("/usr/bin/redis-server");
    redis_session(None, false);
    redis_session(Some(10 * MIB), false);
    redis_session(Some(8 * MIB), true);
}

const CACHE_VALUES: u64 = 1500;

fn cache_bytes(key: u64) -> usize {
    4000 + usize::try_from(key % 9000).expect("small")
}

fn memcached_session(limit: Option<u64>) {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let socket = folder.path().join("cache.sock");
    let user = if rustix::process::getuid().is_root() { vec!["-u", "root"] } else { Vec::new() };
    let launch = Launch::new(need("/usr/bin/memcached"))
        .args(["-m", "1024", "-t", "4", "-s"])
        .arg(&socket)
        .args(user);
    let (server, mut connection) = start_server(launch, limit, &socket);
    let name = |key: u64| format!("key-{key}");
    for key in 0..CACHE_VALUES {
        connection.cache_set(&name(key), &value_of(key, 1, cache_bytes(key)));
    }
    let changed = |key: u64| key.is_multiple_of(3);
    for key in Random::new(5).order(CACHE_VALUES) {
        let value = connection.cache_get(&name(key));
        assert!(value == Some(value_of(key, 1, cache_bytes(key))), "key {key} has a wrong value");
        if changed(key) {
            connection.cache_set(&name(key), &value_of(key, 2, cache_bytes(key)));
        }
    }
    for key in Random::new(6).order(CACHE_VALUES) {
        let version = if changed(key) { 2 } else { 1 };
        let want = Some(value_of(key, version, cache_bytes(key)));
        assert!(connection.cache_get(&name(key)) == want, "key {key} has a wrong value");
    }
    assert_eq!(connection.cache_get("no-such-key"), None);
    server.signal(Signal::TERM);
    server.finish().expect_code(0);
}

#[test]
fn memcached_keeps_every_value() {
    need("/usr/bin/memcached");
    [None, Some(8 * MIB), Some(6 * MIB)].into_iter().for_each(memcached_session);
}
