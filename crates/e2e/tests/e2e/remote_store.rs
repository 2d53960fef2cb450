//! Pages in a Redis server: they come back as they were, or an error does.

#[path = "../../store/tests/common/mod.rs"]
mod common;

use common::{complete, get, page, put, try_put};
use ebb_e2e::redis::{self, Cluster, Redis};
use ebb_mm::types::SlotId;
use ebb_swap::{Encrypt, Notice, Options, Page, Store, StoreError, TierName, parse_tiers};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const WITH_AND_WITHOUT: [Encrypt; 2] = [Encrypt::Remote, Encrypt::None];

fn try_open(tiers: &str, encrypt: Encrypt) -> Result<Store, StoreError> {
    let notice = Notice::new(|text| println!("{text}"));
    let options = Options { encrypt, notice, ..Options::default() };
    Store::open(&parse_tiers(tiers).expect("tiers"), &options)
}

fn open(tiers: &str, encrypt: Encrypt) -> Store {
    try_open(tiers, encrypt).expect("open")
}

/// What a refusal says.
fn refused(tiers: &str) -> String {
    match try_open(tiers, Encrypt::Remote) {
        Ok(_) => panic!("{tiers} was taken"),
        Err(error) => error.to_string(),
    }
}

fn pages(range: std::ops::Range<u32>) -> Vec<(u32, Page)> {
    range.map(|n| (n, page(u64::from(n), 1 + u64::from(n % 15)))).collect()
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(20), "no {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn pages_come_back_and_their_keys_go() {
    let server = Redis::start(&[]);
    for encrypt in WITH_AND_WITHOUT {
        for tiers in [
            server.url(),
            format!("ram:200K,{}", server.url()),
            format!("ram:100K,{}:1M,file", server.url()),
        ] {
            let store = open(&tiers, encrypt);
            let all = pages(0..1200);
            all.chunks(64).for_each(|batch| put(&store, batch));
            for (slot, page) in &all {
                assert!(get(&store, *slot).expect("get") == *page, "{tiers}: slot {slot}");
            }
            let reads: Vec<_> = (0..1200).map(|n| (SlotId(n), u64::from(n))).collect();
            store.start_batch(&reads);
            for (token, page) in complete(&store, 1200) {
                assert!(page.expect("read") == all[token as usize].1, "{tiers}: token {token}");
            }
            let of = |store: &Store| {
                store
                    .stats()
                    .tiers
                    .into_iter()
                    .find(|of| of.name == TierName::Redis(0))
                    .expect("it")
            };
            let stats = of(&store);
            assert!(
                stats.pages > 200 && stats.writes >= stats.pages && stats.reads > 200,
                "{stats:?}"
            );
            assert_eq!((stats.encrypted, stats.errors), (encrypt == Encrypt::Remote, 0));
            assert!(stats.read_times.is_some_and(|times| times.mean_ns > 0), "{stats:?}");
            assert_eq!(
                server.keys().len() as u64,
                stats.pages + 1,
                "a key for each, and one for the run"
            );
            (0..1200).filter(|slot| slot % 3 > 0).for_each(|slot| store.remove(SlotId(slot)));
            wait_until("removal", || server.keys().len() as u64 == of(&store).pages + 1);
            assert!(of(&store).pages < stats.pages / 2);
            assert!(get(&store, 600).expect("get") == all[600].1);
            drop(store);
            assert_eq!(server.keys(), [""; 0], "{tiers}");
        }
    }
}

#[test]
fn what_is_there_is_not_what_was_written() {
    let server = Redis::start(&[]);
    let text = || {
        let keys = server.keys();
        let key = keys.iter().find(|key| key.ends_with("}:0")).expect("the first page");
        server.ask(&["get", key])
    };
    let plain = (7, [b'x'; 4096].map(|byte: u8| byte));
    let plain = {
        let (slot, mut content) = plain;
        content[9] = b'y';
        (slot, content)
    };
    let store = open(&server.url(), Encrypt::None);
    put(&store, &[plain]);
    assert!(text().contains("xxxxxxyxxxxxx"), "in the clear when asked for");
    drop(store);
    let store = open(&server.url(), Encrypt::Remote);
    put(&store, &[plain]);
    assert!(!text().contains("xxx"), "and not otherwise");
}

/// Something else under a page's key, for whatever reason, is noticed.
#[test]
fn planted_moved_and_missing_pages_are_noticed() {
    let server = Redis::start(&[]);
    for encrypt in WITH_AND_WITHOUT {
        let store = open(&server.url(), encrypt);
        let all = pages(0..64);
        put(&store, &all);
        let key = |page: u32| {
            server
                .keys()
                .into_iter()
                .find(|key| key.ends_with(&format!("}}:{page:x}")))
                .expect("a key")
        };
        server.ask(&["set", &key(1), "nonsense"]);
        server.ask(&["setrange", &key(2), "2000", "#"]);
        server.ask(&["copy", &key(4), &key(3), "replace"]);
        server.ask(&["unlink", &key(5)]);
        server.ask(&["append", &key(6), "more"]);
        let check = |slot: u32, result: Result<Page, StoreError>| match (slot, result) {
            (1..=3, Err(StoreError::Corrupt { tier, .. } | StoreError::Read { tier, .. })) => {
                assert_eq!(tier, TierName::Redis(0));
            }
            (5, Err(StoreError::Read { source, .. })) => {
                assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
            }
            // Without encryption only the page counts.
            (6, Ok(page)) if encrypt == Encrypt::None => assert!(page == all[6].1),
            (6, Err(StoreError::Read { .. })) if encrypt == Encrypt::Remote => {}
            (slot, Ok(page)) if !(1..=3).contains(&slot) && slot != 5 => {
                assert!(page == all[slot as usize].1, "slot {slot}");
            }
            (slot, other) => panic!("{encrypt:?}, slot {slot}: {:?}", other.map(|_| "a page")),
        };
        (0..64).for_each(|slot| check(slot, get(&store, slot)));
        // Read together, one bad page takes no other along.
        store.start_batch(&(0..64).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
        complete(&store, 64).into_iter().for_each(|(token, result)| check(token as u32, result));
        put(&store, &[all[1], all[5]]);
        assert!(get(&store, 1).expect("stored anew") == all[1].1 && get(&store, 5).is_ok());
    }
}

#[test]
fn a_replayed_page_is_noticed() {
    let server = Redis::start(&[]);
    for encrypt in WITH_AND_WITHOUT {
        let store = open(&format!("{}:4096", server.url()), encrypt);
        put(&store, &[(1, page(1, 9))]);
        let key = server.keys().into_iter().find(|key| key.ends_with("}:0")).expect("a key");
        server.ask(&["copy", &key, "kept"]);
        store.remove(SlotId(1));
        put(&store, &[(1, page(2, 9))]);
        assert!(get(&store, 1).expect("the second") == page(2, 9));
        server.ask(&["copy", "kept", &key, "replace"]);
        assert!(get(&store, 1).is_err(), "the first, sealed for this very place");
        server.ask(&["del", "kept"]);
    }
}

#[test]
fn a_full_tier_is_full_and_says_so() {
    let server = Redis::start(&["--maxmemory", "4mb"]);
    let said = Arc::new(Mutex::new(Vec::new()));
    let their = said.clone();
    let notice = Notice::new(move |text| their.lock().expect("said").push(text.to_owned()));
    let options = Options { notice, ..Options::default() };
    let store = Store::open(&parse_tiers(&server.url()).expect("tiers"), &options).expect("open");
    let all = pages(0..2048);
    let mut taken = Vec::new();
    for batch in all.chunks(64) {
        for ((slot, _), result) in batch.iter().zip(try_put(&store, batch)) {
            match result {
                Ok(()) => taken.push(*slot),
                Err(error) => assert!(matches!(error, StoreError::Full), "{error}"),
            }
        }
    }
    assert!((128..1024).contains(&taken.len()), "{} pages in 4 MB", taken.len());
    assert!(!store.has_room() && store.stats().tiers[0].disk_full);
    for slot in &taken {
        assert!(get(&store, *slot).expect("what it took it has") == all[*slot as usize].1);
    }
    let said = said.lock().expect("said").clone();
    assert!(
        matches!(&said[..], [line] if line.starts_with("tier redis: full: 127.0.0.1:")),
        "{said:?}"
    );
    // The next tier takes the rest.
    let store = open(&format!("{},file", server.url()), Encrypt::Remote);
    all.chunks(64).for_each(|batch| put(&store, batch));
    for (slot, page) in &all {
        assert!(get(&store, *slot).expect("get") == *page);
    }
    assert!(store.stats().tiers[1].pages > 500);
}

#[test]
fn a_limit_is_kept_and_what_is_let_go_makes_room() {
    let server = Redis::start(&[]);
    let store = open(&format!("{}:512K", server.url()), Encrypt::Remote);
    let results = try_put(&store, &pages(0..192));
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 128);
    for turn in 1..5 {
        (0..128).for_each(|slot| store.remove(SlotId(slot)));
        let again: Vec<_> = (0..128).map(|n| (n, page(u64::from(n + turn * 1000), 9))).collect();
        put(&store, &again[..64]);
        put(&store, &again[64..]);
        for (slot, page) in &again {
            assert!(get(&store, *slot).expect("get") == *page);
        }
        assert!(server.keys().len() <= 129);
    }
}

#[test]
fn servers_that_will_not_do_are_refused_with_advice() {
    let port = redis::free_port();
    let why = refused(&format!("redis://127.0.0.1:{port}"));
    assert!(why.contains("refused") && why.contains("is the server running"), "{why}");
    let why = refused("redis://no-such-host.invalid:1");
    assert!(why.starts_with("tier redis: no-such-host.invalid:1: "), "{why}");

    let drops = Redis::start(&["--maxmemory-policy", "allkeys-lru"]);
    let why = refused(&drops.url());
    assert!(why.contains("config set maxmemory-policy noeviction"), "{why}");
    assert_eq!(drops.keys(), [""; 0], "nothing was written");
    drops.ask(&["config", "set", "maxmemory-policy", "volatile-lru"]);
    drop(open(&drops.url(), Encrypt::Remote));

    let locked = Redis::start(&["--requirepass", "open sesame"]);
    for login in ["", ":wrong@", "me:open%20sesame@"] {
        let why = refused(&format!("redis://{login}{}", locked.address()));
        assert!(why.contains("redis://USER:PASSWORD@HOST:PORT"), "{login}: {why}");
        assert!(!why.contains("wrong@") && !why.contains("sesame"), "{why}");
    }
    let store = open(&format!("redis://:open%20sesame@{}", locked.address()), Encrypt::Remote);
    put(&store, &pages(0..3));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "open sesame\n").expect("written");
    let url = format!("redis://{}?password-file={}", locked.address(), file.path().display());
    drop(open(&url, Encrypt::Remote));
    let why = refused(&format!("redis://{}?password-file=/nowhere", locked.address()));
    assert!(why.contains("/nowhere: No such file"), "{why}");

    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
    let why = refused(&replica.url());
    assert!(why.contains(&format!("name 127.0.0.1:{}", master.port())), "{why}");
    let why = refused(&format!("redis://{},{}", master.address(), locked.address()));
    assert!(why.contains("is no node of a cluster"), "{why}");

    master.ask(&["acl", "setuser", "few", "on", ">pw", "~*", "+info"]);
    let why = refused(&format!("redis://few:pw@{}", master.address()));
    assert!(why.contains("NOPERM") && why.contains("docs/remote-tier.md"), "{why}");
    let rights = ["+info", "+mget", "+mset", "+unlink", "+wait", "+select"];
    let enough = [&["acl", "setuser", "some", "on", ">pw", "~ebb:*"][..], &rights[..]].concat();
    master.ask(&enough);
    let store =
        open(&format!("redis://some:pw@{}/3?replicas=1", master.address()), Encrypt::Remote);
    put(&store, &pages(0..64));
    assert!(get(&store, 63).is_ok());
    drop(store);
    assert_eq!(master.ask(&["-n", "3", "dbsize"]), "0");
}

#[test]
fn a_server_that_is_away_is_waited_for_and_then_given_up() {
    let mut server = Redis::start(&[]);
    let store = open(&format!("{}?wait=2", server.url()), Encrypt::Remote);
    let all = pages(0..64);
    put(&store, &all);
    server.signal("STOP");
    let began = Instant::now();
    store.start_batch(&[(SlotId(1), 1), (SlotId(40), 2)]);
    let (id, pid) = (std::time::Duration::from_millis(700), server.pid().to_string());
    let waker = std::thread::spawn(move || {
        std::thread::sleep(id);
        std::process::Command::new("kill").args(["-CONT", &pid]).status().expect("kill")
    });
    for (token, page) in complete(&store, 2) {
        assert!(page.expect("it came") == all[if token == 1 { 1 } else { 40 }].1);
    }
    assert!(began.elapsed() > Duration::from_millis(600));
    waker.join().expect("woken");

    server.kill();
    let began = Instant::now();
    store.start_batch(&[(SlotId(1), 1), (SlotId(40), 2)]);
    for (_, result) in complete(&store, 2) {
        let error = result.expect_err("nobody has it");
        assert!(matches!(error, StoreError::Read { tier: TierName::Redis(0), .. }), "{error}");
        assert!(error.to_string().contains(&server.address()), "{error}");
    }
    let waited = began.elapsed();
    assert!((Duration::from_millis(1500)..Duration::from_secs(8)).contains(&waited), "{waited:?}");
    let errors = try_put(&store, &pages(100..102));
    assert!(matches!(errors[..], [Err(StoreError::Write { .. }), Err(_)]), "{errors:?}");
    assert!(began.elapsed() < Duration::from_secs(12), "nobody waits again for the same");

    // Back and empty: what it had is lost, what is written from now on is not.
    server.restart();
    wait_until("answer", || try_put(&store, &pages(200..203)).iter().all(Result::is_ok));
    assert!(get(&store, 202).expect("get") == pages(202..203)[0].1);
    let error = get(&store, 1).expect_err("it was lost");
    assert!(error.to_string().contains("its key is gone"), "{error}");
}

/// A certificate of 127.0.0.1, and the authority that says so.
fn certificates(folder: &Path) {
    let openssl = |words: &str| {
        let mut openssl = Command::new("openssl");
        let output = openssl.args(words.split(' ')).current_dir(folder).output().expect("openssl");
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    openssl(
        "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=authority",
    );
    openssl("req -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=server");
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").expect("written");
    openssl(
        "x509 -req -in request.pem -CA ca.pem -CAkey ca.key -days 2 -extfile names -out cert.pem",
    );
}

#[test]
fn a_server_behind_tls_is_trusted_by_its_certificate_alone() {
    let folder = tempfile::TempDir::with_prefix("ebb-tls-").expect("a folder");
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name).display().to_string();
    let tls_port = redis::free_port();
    let server = Redis::start(&[
        "--tls-port",
        &tls_port.to_string(),
        "--tls-cert-file",
        &file("cert.pem"),
        "--tls-key-file",
        &file("key.pem"),
        "--tls-ca-cert-file",
        &file("ca.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://127.0.0.1:{tls_port}");
    let why = refused(&url);
    assert!(why.contains("UnknownIssuer") && why.contains("?ca=FILE"), "{why}");
    let store = open(&format!("{url}?ca={}", file("ca.pem")), Encrypt::None);
    let all = pages(0..256);
    all.chunks(64).for_each(|batch| put(&store, batch));
    store.start_batch(&(0..256).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
    for (token, page) in complete(&store, 256) {
        assert!(page.expect("read") == all[token as usize].1);
    }
    drop(store);
    assert_eq!(server.keys(), [""; 0]);
    // The name has to be right as well.
    let why = refused(&format!("rediss://localhost:{tls_port}?ca={}", file("ca.pem")));
    assert!(why.contains("certificate"), "{why}");
}

#[test]
fn two_runs_do_not_meet() {
    let server = Redis::start(&[]);
    let (one, other) = (open(&server.url(), Encrypt::None), open(&server.url(), Encrypt::None));
    put(&one, &pages(0..100));
    let others: Vec<_> = (0..100).map(|n| (n, page(u64::from(n + 7000), 9))).collect();
    put(&other, &others);
    drop(one);
    assert_eq!(server.keys().len(), 101);
    for (slot, page) in &others {
        assert!(get(&other, *slot).expect("get") == *page);
    }
}

/// A page leaves memory only when a replica has it too: one that does not answer is waited for.
#[test]
fn a_replica_that_does_not_keep_up_is_waited_for() {
    let master = Redis::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
    wait_until("replica", || master.ask(&["info", "replication"]).contains("state=online"));
    let store = open(&format!("{}?replicas=1&wait=2", master.url()), Encrypt::Remote);
    put(&store, &pages(0..64));
    assert_eq!(replica.keys().len(), 65, "it had them when the write ended");
    replica.signal("STOP");
    let results = try_put(&store, &pages(100..164));
    replica.signal("CONT");
    match results.first() {
        Some(Err(StoreError::Write { source, .. })) => {
            assert!(source.to_string().contains("replicas do not keep up"), "{source}");
        }
        other => panic!("{other:?}"),
    }
    put(&store, &pages(200..264));
    assert!(get(&store, 263).expect("get") == pages(263..264)[0].1);
    // One that has gone is missed by nobody, after that was said.
    drop(replica);
    wait_until("going on alone", || try_put(&store, &pages(300..301))[0].is_ok());
}

/// The server may yet carry out what it did not answer: over something else, if its key had been used again.
#[test]
fn a_key_whose_write_was_not_answered_is_not_used_again() {
    let server = Redis::start(&[]);
    let store = open(&server.url(), Encrypt::Remote);
    let groups = || {
        let keys = server.keys();
        let group = |key: &String| Some(key.split_once('{')?.1.split_once('}')?.0.to_owned());
        keys.iter().filter_map(group).collect::<std::collections::BTreeSet<_>>()
    };
    server.signal("STOP");
    let batch = pages(0..64);
    std::thread::scope(|scope| {
        // Longer than an answer may take.
        let waker = scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(3500));
            server.signal("CONT");
        });
        put(&store, &batch);
        waker.join().expect("woken");
    });
    assert!(get(&store, 63).expect("written in the end") == batch[63].1);
    assert_eq!(groups().len(), 1);
    let first = groups();
    (0..64).for_each(|slot| store.remove(SlotId(slot)));
    wait_until("removal", || groups().is_empty() && store.stats().tiers[0].pages == 0);
    put(&store, &pages(100..164));
    assert!(groups().is_disjoint(&first), "{first:?} again");
    // Those whose writes were answered are.
    let second = groups();
    (100..164).for_each(|slot| store.remove(SlotId(slot)));
    wait_until("removal", || groups().is_empty() && store.stats().tiers[0].pages == 0);
    put(&store, &pages(200..264));
    assert_eq!(groups(), second);
}

/// MOVED and ASK: a part of the slots goes from one node to another while pages are read and written.
#[test]
fn slots_that_move_are_followed() {
    let cluster = Cluster::start();
    let store = open(&cluster.url(), Encrypt::Remote);
    let mut all = pages(0..1024);
    all.chunks(64).for_each(|batch| put(&store, batch));
    let masters = cluster.masters();
    let ids: Vec<String> =
        masters.iter().map(|&at| cluster.nodes[at].ask(&["cluster", "myid"])).collect();
    let before = cluster.nodes[masters[0]].keys().len();
    let mut reshard = Command::new("redis-cli");
    reshard.args(["--cluster", "reshard", &cluster.nodes[masters[0]].address()]);
    reshard.args([
        "--cluster-from",
        &ids[0],
        "--cluster-to",
        &ids[1],
        "--cluster-slots",
        "3000",
        "--cluster-yes",
    ]);
    let mut reshard = reshard.stdout(std::process::Stdio::null()).spawn().expect("redis-cli");
    let mut turn = 0;
    loop {
        let ended = reshard.try_wait().expect("wait");
        store.start_batch(&(0..1024).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
        for (token, page) in complete(&store, 1024) {
            assert!(page.expect("read") == all[token as usize].1, "turn {turn}, token {token}");
        }
        turn += 1;
        let at = turn % 16 * 64;
        let some = &mut all[at..at + 64];
        for (slot, content) in some.iter_mut() {
            *content = page(u64::from(*slot) + turn as u64 * 5000, 9);
        }
        put(&store, some);
        if let Some(status) = ended {
            assert!(status.success());
            break;
        }
    }
    assert!(turn > 2, "{turn} turns");
    assert!(cluster.nodes[masters[0]].keys().len() < before, "some have moved");
    drop(store);
    assert_eq!(cluster.keys(), [""; 0]);
}

#[test]
fn a_cluster_has_pages_on_all_nodes_and_goes_on_when_a_master_dies() {
    let mut cluster = Cluster::start();
    let store = open(&cluster.url(), Encrypt::Remote);
    let all = pages(0..2048);
    all.chunks(64).for_each(|batch| put(&store, batch));
    let masters = cluster.masters();
    assert!(masters.iter().all(|&at| cluster.nodes[at].keys().len() > 64), "all have some");
    // What was acknowledged a moment ago has to be on its replica, too.
    let late = pages(3000..3064);
    put(&store, &late);
    cluster.nodes[masters[0]].kill();
    store.start_batch(&(0..2048).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
    for (token, page) in complete(&store, 2048) {
        assert!(page.expect("none is lost") == all[token as usize].1, "token {token}");
    }
    for (slot, page) in &late {
        assert!(get(&store, *slot).expect("nor one of these") == *page);
    }
    pages(4000..4512).chunks(64).for_each(|batch| put(&store, batch));
    for (slot, page) in pages(4000..4512) {
        assert!(get(&store, slot).expect("get") == page);
    }
    drop(store);
    assert_eq!(cluster.keys(), [""; 0]);
}
