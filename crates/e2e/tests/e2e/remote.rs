//! Pages in Redis: a program reads what it wrote, or dies with a word; whatever happens to the server.

use ebb_e2e::launch::{Launch, Outcome, Running, send};
use ebb_e2e::redis::{Cluster, Redis};
use ebb_e2e::{MIB, build};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::Duration;

const SIGBUS_CODE: i32 = 128 + 7;
const OOM_CODE: i32 = 128 + 9;

/// As `inject.rs` has it: pages that compress.
const VERIFY: &str = "48 1 5 2 32";

fn verify(swap: &str) -> Launch {
    Launch::program("verify", VERIFY)
        .limit(24 * MIB)
        .options(&format!("--report json --swap {swap}"))
}

fn plainly(program: &str, arguments: &str) -> String {
    Launch::program(program, arguments).run().text()
}

/// A program that fills so many pages with noise, says so, waits for a file, and checks them all.
const WAITS: &str = "
import mmap, os, sys, time
pages, go = int(sys.argv[1]), sys.argv[2]
area = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sums = []
for n in range(pages):
    page = os.urandom(4096)
    area[n * 4096:(n + 1) * 4096] = page
    sums.append(hash(page))
os.write(1, b'filled\\n')
while not os.path.exists(go):
    time.sleep(0.01)
wrong = sum(hash(area[n * 4096:(n + 1) * 4096]) != sums[n] for n in range(pages))
os.write(1, b'wrong %d\\n' % wrong)
";

/// One of these under way: filled, and told to go on by `go`.
struct Waiting {
    run: Running,
    folder: tempfile::TempDir,
}

impl Waiting {
    fn start(swap: &str) -> Self {
        let folder = tempfile::TempDir::with_prefix("ebb-remote-").expect("a folder");
        let go = folder.path().join("go");
        let launch = Launch::new("/usr/bin/python3").args(["-c", WAITS, "10000"]).arg(go);
        let options = format!("--report json --swap {swap}");
        let mut run = launch.limit(30 * MIB).options(&options).start();
        run.wait_for("filled");
        Self { run, folder }
    }

    fn go(self) -> Outcome {
        std::fs::write(self.folder.path().join("go"), "").expect("go");
        self.run.finish()
    }
}

/// A tier's figure in the report.
fn of_redis(outcome: &Outcome, name: &str) -> u64 {
    let (_, tier) = outcome.stderr.split_once("\"name\":\"redis\"").expect("the tier is reported");
    let (_, rest) = tier.split_once(&format!("\"{name}\":")).expect("with the figure");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// What Ebb said beside its report.
fn words(outcome: &Outcome) -> Vec<&str> {
    outcome.said().into_iter().filter(|line| !line.starts_with('{')).collect()
}

#[test]
fn programs_get_their_pages_back_and_leave_no_keys() {
    let server = Redis::start(&[]);
    let right = plainly("verify", VERIFY);
    for swap in
        [server.url(), format!("ram:1M,{}", server.url()), format!("ram,{}:8M,file", server.url())]
    {
        for encrypt in ["remote", "none"] {
            let launch = verify(&swap).options(&format!("--encrypt {encrypt}"));
            let outcome = launch.run();
            assert_eq!(outcome.expect_code(0).text(), right, "{swap}");
            outcome.note_peak();
            assert_eq!(words(&outcome), [""; 0], "{swap}");
            let (_, tier) = outcome.stderr.split_once("\"name\":\"redis\"").expect("it");
            assert!(tier.contains(&format!("\"encrypted\":{}", encrypt == "remote")), "{tier}");
            if !swap.starts_with("ram,") {
                assert!(
                    of_redis(&outcome, "reads") > 1000 && of_redis(&outcome, "read_mean_ns") > 0
                );
                // Faults are told by what they found.
                let found = |kind: &str| outcome.stderr.contains(&format!("\"kind\":\"{kind}\""));
                assert!(found("remote") && !found("file"), "{}", outcome.stderr);
            }
            assert_eq!((of_redis(&outcome, "errors"), of_redis(&outcome, "pages")), (0, 0));
            assert_eq!(server.keys(), [""; 0], "{swap}");
        }
    }
}

#[test]
fn files_are_encrypted_where_that_is_asked_for() {
    let right = plainly("verify", VERIFY);
    for io_uring in [0, 1] {
        let options = format!("--encrypt all --set io_uring={io_uring}");
        let outcome = verify("file").options(&options).run();
        assert_eq!(outcome.expect_code(0).text(), right);
        assert!(outcome.stderr.contains("\"encrypted\":true"), "{}", outcome.stderr);
        let flips = verify("file").options(&options).options("--inject flip@n500").run();
        assert_eq!(flips.code(), SIGBUS_CODE, "{}", flips.stderr);
        assert!(flips.stderr.contains("authentication failed"), "{}", flips.stderr);
    }
}

#[test]
fn torture_over_a_server() {
    let server = Redis::start(&[]);
    for swap in [server.url(), format!("ram:4M,{}", server.url())] {
        let launch = Launch::program("torture", "8 3").limit(32 * MIB);
        let outcome = launch.options(&format!("--swap {swap}")).run();
        outcome.expect_line("torture: ok").note_peak();
        assert_eq!(server.keys(), [""; 0]);
    }
}

/// It reads all of it right when the server goes on.
#[test]
fn a_server_that_pauses_only_costs_time() {
    let server = Redis::start(&[]);
    let waiting = Waiting::start(&server.url());
    let stat = Command::new(build::ebb()).args(["stat", &waiting.run.pid().to_string()]).output();
    let stat = String::from_utf8(stat.expect("ebb stat").stdout).expect("text");
    let figure = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|figure| figure.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("no {name} in {stat}"))
    };
    assert!(figure("ebb_redis_pages") > 2000 && figure("ebb_redis_writes") > 2000, "{stat}");
    assert_eq!(
        (figure("ebb_redis_bytes"), figure("ebb_redis_errors")),
        (figure("ebb_redis_pages") * 4096, 0)
    );
    assert!(figure("ebb_redis_reads") < 10_000 && figure("ebb_redis_read_us") < 1_000_000);
    server.signal("STOP");
    let (pid, go) =
        (server.pid(), std::thread::spawn(|| std::thread::sleep(Duration::from_secs(2))));
    let waker = std::thread::spawn(move || {
        go.join().expect("slept");
        send(pid, Signal::CONT);
    });
    let outcome = waiting.go();
    waker.join().expect("woken");
    assert_eq!(outcome.expect_code(0).text(), "filled\nwrong 0\n");
    // While it fills, too.
    let run = verify(&server.url()).start();
    for _ in 0..2 {
        std::thread::sleep(Duration::from_millis(200));
        server.signal("STOP");
        std::thread::sleep(Duration::from_secs(2));
        server.signal("CONT");
    }
    let outcome = run.finish();
    assert_eq!(outcome.expect_code(0).text(), plainly("verify", VERIFY));
    assert_eq!(server.keys(), [""; 0]);
}

/// A receive with a time limit ends with EINTR when its thread is stopped and goes on, as job control and freezers do.
#[test]
fn who_is_stopped_while_it_waits_for_an_answer_waits_on() {
    let (server, cluster) = (Redis::start(&[]), Cluster::start());
    let right = plainly("verify", VERIFY);
    for swap in [server.url(), cluster.url()] {
        let mut run = verify(&swap).start();
        let front = run.pid();
        let pager = loop {
            if let Some(&pager) = run.root().find().ebb.iter().find(|&&pid| pid != front) {
                break Pid::from_raw(pager).expect("a number");
            }
        };
        let mut stops = 0;
        while !run.ended() {
            // Whoever has ended meanwhile is not there to be told.
            let _ = kill_process(pager, Signal::STOP);
            let _ = kill_process(pager, Signal::CONT);
            stops += 1;
            std::thread::sleep(Duration::from_micros(500));
        }
        let outcome = run.finish();
        assert_eq!(outcome.expect_code(0).text(), right, "{swap}");
        assert!(stops > 100, "{stops}");
        assert_eq!(of_redis(&outcome, "errors"), 0, "{}", outcome.stderr);
        assert_eq!(words(&outcome), [""; 0], "{swap}");
    }
    assert_eq!((server.keys(), cluster.keys()), (vec![], vec![]));
}

/// What it had is gone: who needs a page of it dies of that.
#[test]
fn a_server_that_comes_back_empty_kills_who_needs_its_pages() {
    for encrypt in ["remote", "none"] {
        let mut server = Redis::start(&[]);
        let waiting = Waiting::start(&format!("{} --encrypt {encrypt}", server.url()));
        server.kill();
        server.restart();
        let outcome = waiting.go();
        outcome.expect_code(SIGBUS_CODE);
        assert_eq!(outcome.text(), "filled\n", "it never read a wrong byte");
        let said = words(&outcome).join("\n");
        assert!(said.contains("is lost (tier redis: cannot read slot"), "{said}");
        assert!(said.contains("its key is gone: the server was restarted"), "{said}");
    }
}

/// One that stays away is waited for as long as was said.
#[test]
fn a_server_that_stays_away_is_given_up() {
    let mut server = Redis::start(&[]);
    let waiting = Waiting::start(&format!("{}?wait=3", server.url()));
    server.kill();
    let began = std::time::Instant::now();
    let outcome = waiting.go();
    outcome.expect_code(SIGBUS_CODE);
    assert_eq!(outcome.text(), "filled\n");
    let waited = began.elapsed();
    assert!((Duration::from_millis(2500)..Duration::from_secs(25)).contains(&waited), "{waited:?}");
    let said = words(&outcome);
    let away = format!("ebb: tier redis: {}: ", server.address());
    assert_eq!(said.iter().filter(|line| line.starts_with(&away)).count(), 1, "once: {said:?}");
    assert!(said[0].contains("wait, 3 s at most"), "{said:?}");
    assert!(said.iter().any(|line| line.contains("is lost (tier redis")), "{said:?}");
    assert!(said.iter().any(|line| line.contains("keys could not be removed")), "{said:?}");
}

#[test]
fn something_else_under_a_key_is_noticed() {
    for encrypt in ["remote", "none"] {
        let server = Redis::start(&[]);
        let waiting = Waiting::start(&format!("{} --encrypt {encrypt}", server.url()));
        let keys: Vec<String> = server.keys().into_iter().filter(|key| key.contains('{')).collect();
        assert!(keys.len() > 2000, "{} keys", keys.len());
        for key in keys.iter().step_by(20) {
            server.ask(&["setrange", key, "99", "##"]);
        }
        let outcome = waiting.go();
        outcome.expect_code(SIGBUS_CODE);
        assert_eq!(outcome.text(), "filled\n");
        let said = words(&outcome).join("\n");
        let cause = if encrypt == "none" { "is damaged: hash" } else { "authentication failed" };
        assert!(said.contains(cause), "{said}");
        assert_eq!(server.keys(), [""; 0]);
    }
}

#[test]
fn a_server_without_room_is_a_full_tier() {
    let server = Redis::start(&["--maxmemory", "8mb"]);
    let launch = Launch::program("verify", "96 1 5 2").limit(24 * MIB);
    let outcome = launch.clone().options(&format!("--swap {}", server.url())).run();
    outcome.expect_code(OOM_CODE);
    let said = words(&outcome).join("\n");
    assert!(said.contains("tier redis: full: 127.0.0.1:"), "{said}");
    assert!(said.contains("out of memory") && said.contains("takes no more"), "{said}");
    assert_eq!(server.keys(), [""; 0]);
    let outcome = launch.options(&format!("--report json --swap {},file", server.url())).run();
    assert_eq!(
        outcome.expect_code(0).text(),
        plainly("verify", "96 1 5 2"),
        "the file takes the rest"
    );
    assert!(of_redis(&outcome, "peak_pages") > 100);
    assert_eq!(server.keys(), [""; 0]);
}

#[test]
fn two_runs_share_a_server() {
    let server = Redis::start(&[]);
    let right = plainly("verify", VERIFY);
    let runs: Vec<Running> = (0..2).map(|_| verify(&server.url()).start()).collect();
    for run in runs {
        assert_eq!(run.finish().expect_code(0).text(), right);
    }
    let (first, second) = (Waiting::start(&server.url()), Waiting::start(&server.url()));
    assert_eq!(first.go().expect_code(0).text(), "filled\nwrong 0\n");
    assert!(server.keys().len() > 2000, "the other's are there");
    assert_eq!(second.go().expect_code(0).text(), "filled\nwrong 0\n");
    assert_eq!(server.keys(), [""; 0]);
}

/// Killed in the middle of everything, with what was written last not older than a moment.
#[test]
fn a_cluster_loses_nothing_when_a_master_dies() {
    let mut cluster = Cluster::start();
    let waiting = Waiting::start(&cluster.url());
    let masters = cluster.masters();
    assert!(masters.iter().all(|&at| cluster.nodes[at].keys().len() > 500), "all nodes have pages");
    let load = Launch::program("verify", "64 6 5 2").limit(24 * MIB);
    let load = load.options(&format!("--report json --swap {}", cluster.url())).start();
    std::thread::sleep(Duration::from_secs(1));
    cluster.nodes[masters[1]].kill();
    let outcome = waiting.go();
    assert_eq!(outcome.expect_code(0).text(), "filled\nwrong 0\n");
    let outcome = load.finish();
    assert_eq!(outcome.expect_code(0).text(), plainly("verify", "64 6 5 2"));
    assert!(of_redis(&outcome, "errors") > 0, "it noticed");
    assert_eq!(cluster.keys(), [""; 0]);
}

#[test]
fn what_will_not_do_starts_nothing() {
    let server = Redis::start(&["--requirepass", "sesame"]);
    let drops = Redis::start(&["--maxmemory-policy", "allkeys-random"]);
    let address = server.address();
    for (swap, cause) in [
        ("redis://127.0.0.1:1".to_owned(), "is the server running there?"),
        (format!("redis://{address}"), "redis://USER:PASSWORD@HOST:PORT"),
        (format!("redis://:wrong@{address}"), "redis://USER:PASSWORD@HOST:PORT"),
        (format!("redis://:sesame@{address}:1X"), "the unit 'X' is unknown"),
        (format!("redis://:sesame@{address}?nothing"), "\"nothing\" is no option"),
        (format!("redis://:sesame@{address},ram"), "put ram first"),
        (drops.url(), "set maxmemory-policy noeviction"),
        (format!("rediss://:sesame@{address}"), "tier redis: 127.0.0.1:"),
    ] {
        let folder = tempfile::TempDir::new().expect("a folder");
        let made = folder.path().join("made");
        let launch = Launch::new("touch").arg(&made).limit(24 * MIB);
        let outcome = launch.options(&format!("--swap {swap}")).run();
        outcome.expect_code(125);
        assert_eq!(outcome.stderr.lines().count(), 1, "{swap}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(cause), "{swap}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("sesame"), "{}", outcome.stderr);
        assert!(!made.exists(), "{swap}: it was started");
    }
}
