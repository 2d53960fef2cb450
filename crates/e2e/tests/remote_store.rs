//! Tests a store in a Redis server: a page comes back as it was, or an error does.

#[path = "../../store/tests/common/mod.rs"]
mod common;

use common::{complete, get, page, put, try_put};
use ebb_e2e::redis::{self, Cluster, Redis};
use ebb_e2e::same::need;
use ebb_mm::types::SlotId;
use ebb_swap::{Encrypt, Notice, Options, Page, Store, StoreError, TierName, parse_tiers};
use ebb_testing::{eventually, eventually_is, eventually_some, give_time};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const WITH_AND_WITHOUT: [Encrypt; 2] = [Encrypt::Remote, Encrypt::None];

/// The store's message about a server that takes longer than an answer may. A host that stops for
/// seconds causes this, too.
const SILENT: &str = "it does not answer";

/// Messages of a store.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    fn lines(&self, word: &str) -> Vec<String> {
        let all = self.0.lock().expect("said");
        all.iter().filter(|line| line.contains(word)).cloned().collect()
    }

    fn has(&self, word: &str) -> bool {
        !self.lines(word).is_empty()
    }
}

fn try_open(tiers: &str, encrypt: Encrypt) -> Result<(Store, Said), StoreError> {
    let said = Said::default();
    let their = said.clone();
    let notice = Notice::new(move |text| their.0.lock().expect("said").push(text.to_owned()));
    let options = Options { encrypt, notice, ..Options::default() };
    Store::open(&parse_tiers(tiers).expect("tiers"), &options).map(|store| (store, said))
}

/// Opens a store when the servers answer. Returns it with its messages.
fn open_and_hear(tiers: &str, encrypt: Encrypt) -> (Store, Said) {
    eventually_some("an open store", || match try_open(tiers, encrypt) {
        Err(error) if error.to_string().contains(SILENT) => None,
        opened => Some(opened.expect("open")),
    })
}

fn open(tiers: &str, encrypt: Encrypt) -> Store {
    open_and_hear(tiers, encrypt).0
}

/// Returns the reason why a store is refused.
fn refused(tiers: &str) -> String {
    eventually_some("a refusal", || match try_open(tiers, Encrypt::Remote) {
        Ok(_) => panic!("{tiers} was taken"),
        Err(error) => Some(error.to_string()).filter(|why| !why.contains(SILENT)),
    })
}

fn pages(range: std::ops::Range<u32>) -> Vec<(u32, Page)> {
    range.map(|n| (n, page(u64::from(n), 1 + u64::from(n % 15)))).collect()
}

/// Puts pages as soon as there is room. A slot becomes free only when its key is removed.
fn put_in_the_end(store: &Store, pages: &[(u32, Page)]) {
    eventually("room", || try_put(store, pages).iter().all(Result::is_ok));
}

#[test]
fn pages_come_back_and_their_keys_go() {
    let server = Redis::start(&[]);
    for encrypt in WITH_AND_WITHOUT {
        for tiers in [
            server.patient_url(),
            format!("ram:200K,{}", server.patient_url()),
            format!("ram:100K,{}:1M,file", server.patient_url()),
        ] {
            let (store, said) = open_and_hear(&tiers, encrypt);
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
            assert_eq!(stats.encrypted, encrypt == Encrypt::Remote);
            assert_eq!(stats.errors > 0, said.has(SILENT), "{stats:?}: {:?}", said.lines(""));
            assert!(stats.read_times.is_some_and(|times| times.mean_ns > 0), "{stats:?}");
            // Each page has a key, and the run has one.
            let one_each = || {
                eventually("a key for each", || {
                    let before = of(&store).pages;
                    server.keys().len() as u64 == before + 1 && of(&store).pages == before
                });
            };
            one_each();
            (0..1200).filter(|slot| slot % 3 > 0).for_each(|slot| store.remove(SlotId(slot)));
            one_each();
            assert!(of(&store).pages < stats.pages / 2);
            assert!(get(&store, 600).expect("get") == all[600].1);
            drop(store);
            server.expect_no_keys();
        }
    }
}

/// Shows that the store reads adjacent pages at once, and each page by itself if that read fails.
/// So a node that is away does not fail the pages of another node.
#[test]
fn a_failed_read_of_several_pages_is_made_page_by_page() {
    let server = Redis::start(&[]);
    let store = common::open(&server.patient_url(), "read-error@once1", false);
    let all = pages(0..16);
    put(&store, &all);
    store.start_batch(&(0..16).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
    for (token, page) in complete(&store, 16) {
        assert!(page.expect("read") == all[token as usize].1, "token {token}");
    }
}

#[test]
fn pages_on_a_server_are_encrypted_unless_that_is_switched_off() {
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
    let store = open(&server.patient_url(), Encrypt::None);
    put(&store, &[plain]);
    assert!(text().contains("xxxxxxyxxxxxx"), "in the clear when asked for");
    drop(store);
    let store = open(&server.patient_url(), Encrypt::Remote);
    put(&store, &[plain]);
    assert!(!text().contains("xxxxxxyxxxxxx"), "and not otherwise");
}

/// Shows that wrong contents of a page's key are noticed, whatever their cause.
#[test]
fn planted_moved_and_missing_pages_are_noticed() {
    let server = Redis::start(&[]);
    for encrypt in WITH_AND_WITHOUT {
        let store = open(&server.patient_url(), encrypt);
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
        // One byte of an encrypted page may be the same by chance.
        server.ask(&["setrange", &key(2), "2000", "########"]);
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
            // Without encryption only the contents of the page count.
            (6, Ok(page)) if encrypt == Encrypt::None => assert!(page == all[6].1),
            (6, Err(StoreError::Read { .. })) if encrypt == Encrypt::Remote => {}
            (slot, Ok(page)) if !(1..=3).contains(&slot) && slot != 5 => {
                assert!(page == all[slot as usize].1, "slot {slot}");
            }
            (slot, other) => panic!("{encrypt:?}, slot {slot}: {:?}", other.map(|_| "a page")),
        };
        (0..64).for_each(|slot| check(slot, get(&store, slot)));
        // In a batch of reads one bad page does not affect the others.
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
        let (key, store) = eventually_some("a key that is used again", || {
            let store = open(&format!("{}:4096", server.patient_url()), encrypt);
            put(&store, &[(1, page(1, 9))]);
            let key = server.keys().into_iter().find(|key| key.ends_with("}:0")).expect("a key");
            server.ask(&["copy", &key, "kept", "replace"]);
            store.remove(SlotId(1));
            // No page is stored if the server did not answer in time.
            eventually("the other page", || {
                try_put(&store, &[(1, page(2, 9))])[0].is_ok() || store.stats().tiers[0].errors > 0
            });
            (store.stats().tiers[0].errors == 0).then_some((key, store))
        });
        assert!(get(&store, 1).expect("the second") == page(2, 9));
        server.ask(&["copy", "kept", &key, "replace"]);
        assert!(get(&store, 1).is_err(), "the first, sealed for this very place");
        server.ask(&["del", "kept"]);
    }
}

#[test]
fn a_full_tier_is_full_and_says_so() {
    let server = Redis::start(&["--maxmemory", "4mb"]);
    let (store, said) = open_and_hear(&server.patient_url(), Encrypt::default());
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
    assert!(store.stats().tiers[0].disk_full);
    for slot in &taken {
        assert!(get(&store, *slot).expect("what it took it has") == all[*slot as usize].1);
    }
    let full = said.lines("tier redis: full: 127.0.0.1:");
    assert!(full.len() == 1, "{:?}", said.lines(""));
    // The tier takes writes again after it has removed the keys of refused writes. So the test
    // writes until these keys are gone.
    eventually("no room", || {
        try_put(&store, &pages(3000..3064));
        !store.has_room()
    });
    drop(store);
    server.expect_no_keys();
    // The next tier takes the rest.
    let store = open(&format!("{},file", server.patient_url()), Encrypt::Remote);
    all.chunks(64).for_each(|batch| put(&store, batch));
    for (slot, page) in &all {
        assert!(get(&store, *slot).expect("get") == *page);
    }
    assert!(store.stats().tiers[1].pages > 500);
}

#[test]
fn a_tier_keeps_its_limit_and_removed_pages_make_room() {
    let server = Redis::start(&[]);
    let store = open(&format!("{}:512K", server.patient_url()), Encrypt::Remote);
    let results = try_put(&store, &pages(0..192));
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 128);
    for turn in 1..5 {
        (0..128).for_each(|slot| store.remove(SlotId(slot)));
        let again: Vec<_> = (0..128).map(|n| (n, page(u64::from(n + turn * 1000), 9))).collect();
        put_in_the_end(&store, &again[..64]);
        put_in_the_end(&store, &again[64..]);
        for (slot, page) in &again {
            assert!(get(&store, *slot).expect("get") == *page);
        }
        assert!(server.keys().len() <= 129);
    }
}

#[test]
fn unsuitable_servers_are_refused_with_advice() {
    let port = redis::free_port();
    let why = refused(&format!("redis://127.0.0.1:{port}"));
    assert!(why.contains("refused") && why.contains("is the server running"), "{why}");
    let why = refused("redis://no-such-host.invalid:1");
    assert!(why.starts_with("tier redis: no-such-host.invalid:1: "), "{why}");

    let drops = Redis::start(&["--maxmemory-policy", "allkeys-lru"]);
    let why = refused(&drops.url());
    assert!(why.contains("config set maxmemory-policy noeviction"), "{why}");
    assert_eq!(drops.keys(), [""; 0], "nothing is written");
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
    assert!(why.contains("NOPERM") && why.contains("docs/guide.md"), "{why}");
    let rights = ["+info", "+mget", "+mset", "+unlink", "+wait", "+select"];
    let enough = [&["acl", "setuser", "some", "on", ">pw", "~ebb:*"][..], &rights[..]].concat();
    master.ask(&enough);
    let store = open(
        &format!("redis://some:pw@{}/3?replicas=1&wait=600", master.address()),
        Encrypt::Remote,
    );
    put(&store, &pages(0..64));
    assert!(get(&store, 63).is_ok());
    drop(store);
    eventually_is("its keys", "0".to_owned(), || master.ask(&["-n", "3", "dbsize"]));
}

#[test]
fn a_server_that_is_away_is_waited_for() {
    let server = Redis::start(&[]);
    let (store, said) = open_and_hear(&format!("{}?wait=600", server.url()), Encrypt::Remote);
    let all = pages(0..64);
    put(&store, &all);
    server.signal("STOP");
    store.start_batch(&[(SlotId(1), 1), (SlotId(40), 2)]);
    eventually("a word of it", || said.has(SILENT));
    server.signal("CONT");
    for (token, page) in complete(&store, 2) {
        assert!(page.expect("it came") == all[if token == 1 { 1 } else { 40 }].1);
    }
    assert!(said.has("answers again"), "{:?}", said.lines(""));
}

#[test]
fn a_server_that_stays_away_is_given_up() {
    let mut server = Redis::start(&[]);
    let store = open(&format!("{}?wait=1", server.url()), Encrypt::Remote);
    put_in_the_end(&store, &pages(0..64));
    server.kill();
    store.start_batch(&[(SlotId(1), 1), (SlotId(40), 2)]);
    for (_, result) in complete(&store, 2) {
        let error = result.expect_err("nobody has it");
        assert!(matches!(error, StoreError::Read { tier: TierName::Redis(0), .. }), "{error}");
        assert!(error.to_string().contains(&server.address()), "{error}");
    }
    let errors = try_put(&store, &pages(100..102));
    assert!(matches!(errors[..], [Err(StoreError::Write { .. }), Err(_)]), "{errors:?}");

    // The server is back and empty. Its old pages are lost, but new pages are not.
    server.restart();
    put_in_the_end(&store, &pages(200..203));
    let read = |slot| {
        eventually_some("an answer", || match get(&store, slot) {
            Err(error) if error.to_string().contains(SILENT) => None,
            result => Some(result),
        })
    };
    assert!(read(202).expect("get") == pages(202..203)[0].1);
    let error = read(1).expect_err("it was lost");
    assert!(error.to_string().contains("its key is gone"), "{error}");
}

/// Creates a certificate of 127.0.0.1 and the authority that signs it.
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
    need("/usr/bin/openssl");
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
    let store = open(&format!("{url}?ca={}&wait=600", file("ca.pem")), Encrypt::None);
    let all = pages(0..256);
    all.chunks(64).for_each(|batch| put(&store, batch));
    store.start_batch(&(0..256).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
    for (token, page) in complete(&store, 256) {
        assert!(page.expect("read") == all[token as usize].1);
    }
    drop(store);
    server.expect_no_keys();
    // The host name has to be right, too.
    let why = refused(&format!("rediss://localhost:{tls_port}?ca={}", file("ca.pem")));
    assert!(why.contains("certificate"), "{why}");
}

#[test]
fn two_runs_on_a_server_have_separate_keys() {
    let server = Redis::start(&[]);
    let open = || open(&server.patient_url(), Encrypt::None);
    let (one, other) = (open(), open());
    put(&one, &pages(0..100));
    let others: Vec<_> = (0..100).map(|n| (n, page(u64::from(n + 7000), 9))).collect();
    put(&other, &others);
    drop(one);
    eventually_is("keys of the other run", 101, || server.keys().len());
    for (slot, page) in &others {
        assert!(get(&other, *slot).expect("get") == *page);
    }
}

/// Shows that a page leaves memory only when a replica has it, too. The store waits for a replica
/// that does not answer.
#[test]
fn a_replica_that_does_not_keep_up_is_waited_for() {
    let master = Redis::start(&["--repl-diskless-sync-delay", "0"]);
    let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", master.port())]);
    eventually("a replica", || master.ask(&["info", "replication"]).contains("state=online"));
    let url = format!("{}?replicas=1&wait=2", master.url());
    let (store, said) = open_and_hear(&url, Encrypt::Remote);
    // A replica that is silent for ten seconds counts as lost, and the store reports that.
    let is_alone = || said.has("has 0 replicas");
    put_in_the_end(&store, &pages(0..64));
    assert!(replica.keys().len() >= 65 || is_alone(), "it has them when the write ends");
    replica.signal("STOP");
    let results = try_put(&store, &pages(100..164));
    replica.signal("CONT");
    match results.first() {
        Some(Err(StoreError::Write { source, .. })) => {
            let why = source.to_string();
            assert!(why.contains("replicas do not keep up") || why.contains(SILENT), "{why}");
        }
        Some(Ok(())) if is_alone() => {}
        other => panic!("{other:?}"),
    }
    put_in_the_end(&store, &pages(200..264));
    assert!(get(&store, 263).expect("get") == pages(263..264)[0].1);
    // The store does not wait for a lost replica after the report.
    drop(replica);
    put_in_the_end(&store, &pages(300..301));
    assert!(is_alone(), "{:?}", said.lines(""));
}

/// Shows that a key without an answer to its write is not used again. The server may still carry
/// out that write, over other contents.
#[test]
fn a_key_whose_write_was_not_answered_is_not_used_again() {
    let server = Redis::start(&[]);
    let (store, said) = open_and_hear(&format!("{}?wait=600", server.url()), Encrypt::Remote);
    let groups = || {
        let keys = server.keys();
        let group = |key: &String| Some(key.split_once('{')?.1.split_once('}')?.0.to_owned());
        keys.iter().filter_map(group).collect::<std::collections::BTreeSet<_>>()
    };
    let remove = |slots: std::ops::Range<u32>| {
        slots.for_each(|slot| store.remove(SlotId(slot)));
        eventually("removal", || groups().is_empty() && store.stats().tiers[0].pages == 0);
    };
    server.signal("STOP");
    let batch = pages(0..64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            eventually("a write that is not answered", || said.has(SILENT));
            server.signal("CONT");
        });
        put(&store, &batch);
    });
    assert!(get(&store, 63).expect("written in the end") == batch[63].1);
    assert_eq!(groups().len(), 1);
    let first = groups();
    remove(0..64);
    put(&store, &pages(100..164));
    assert!(groups().is_disjoint(&first), "{first:?} again");
    // Keys whose writes were answered are used again. These are all keys, unless the host stops.
    eventually("a group again", || {
        let second = groups();
        remove(100..164);
        put(&store, &pages(100..164));
        groups() == second
    });
}

/// Shows that MOVED and ASK are followed. Some of the cluster's slots move to another node while
/// pages are read and written.
#[test]
fn slots_that_move_are_followed() {
    let cluster = Cluster::start();
    let store = open(&cluster.url(), Encrypt::Remote);
    let mut all = pages(0..512);
    all.chunks(64).for_each(|batch| put(&store, batch));
    let masters = cluster.masters();
    let ids: Vec<String> =
        masters.iter().map(|&at| cluster.nodes[at].ask(&["cluster", "myid"])).collect();
    let mut reshard = Command::new("redis-cli");
    reshard.args(["--cluster", "reshard", &cluster.nodes[masters[0]].address()]);
    reshard.args([
        "--cluster-from",
        &ids[0],
        "--cluster-to",
        &ids[1],
        "--cluster-slots",
        "1000",
        "--cluster-yes",
    ]);
    let mut reshard = reshard.stdout(std::process::Stdio::null()).spawn().expect("redis-cli");
    let mut turn = 0;
    loop {
        let ended = reshard.try_wait().expect("wait");
        store.start_batch(&(0..512).map(|n| (SlotId(n), u64::from(n))).collect::<Vec<_>>());
        for (token, page) in complete(&store, 512) {
            assert!(page.expect("read") == all[token as usize].1, "turn {turn}, token {token}");
        }
        turn += 1;
        let at = turn % 8 * 64;
        let some = &mut all[at..at + 64];
        for (slot, content) in some.iter_mut() {
            *content = page(u64::from(*slot) + turn as u64 * 5000, 9);
        }
        put(&store, some);
        if let Some(status) = ended {
            assert!(status.success());
            break;
        }
        give_time(Duration::from_millis(50));
    }
    drop(store);
    cluster.expect_no_keys();
}

#[test]
fn a_cluster_has_pages_on_all_nodes_and_goes_on_when_a_master_dies() {
    let mut cluster = Cluster::start();
    let store = open(&cluster.url(), Encrypt::Remote);
    let all = pages(0..2048);
    all.chunks(64).for_each(|batch| put(&store, batch));
    let masters = cluster.masters();
    assert!(masters.iter().all(|&at| cluster.nodes[at].keys().len() > 1), "all have some");
    // Even the latest acknowledged page must be on its replica.
    let late = pages(3000..3064);
    put(&store, &late);
    cluster.lose(masters[0]);
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
    cluster.expect_no_keys();
}
