//! Tests pages in Redis: whatever happens to the server, a program reads its own data or dies with
//! a message.

use ebb_e2e::launch::{Launch, Outcome, Running};
use ebb_e2e::redis::{Cluster, Redis};
use ebb_e2e::same::need;
use ebb_e2e::{MIB, build};
use ebb_testing::{eventually, eventually_some, give_time};
use rustix::process::{Pid, Signal, kill_process};
use std::process::Command;
use std::time::Duration;

const SIGBUS_CODE: i32 = 128 + 7;
const OOM_CODE: i32 = 128 + 9;
const REFUSED_CODE: i32 = 125;

/// Arguments for pages that compress, as in `inject.rs`.
const VERIFY: &str = "48 1 5 2 32";

/// Ebb's message about a server that takes longer than an answer may. A host that stops for seconds
/// causes this, too.
const SILENT: &str = "it does not answer";

fn verify(swap: &str) -> Launch {
    Launch::program("verify", VERIFY)
        .limit(24 * MIB)
        .options(&format!("--report json --swap {swap}"))
}

/// Runs the launch, again if the servers do not answer yet.
fn run(launch: &Launch) -> Outcome {
    eventually_some("a start", || Some(launch.run()).filter(|outcome| !is_too_early(outcome)))
}

fn is_too_early(outcome: &Outcome) -> bool {
    outcome.code() == REFUSED_CODE && outcome.stderr.contains(SILENT)
}

fn plainly(program: &str, arguments: &str) -> String {
    Launch::program(program, arguments).run().text()
}

/// Fills a number of pages with random bytes, reports that, waits for a file, and checks all pages.
const WAITS: &str = "
import mmap, os, select, sys
pages, go = int(sys.argv[1]), sys.argv[2]
area = mmap.mmap(-1, pages * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
sums = []
for n in range(pages):
    page = os.urandom(4096)
    area[n * 4096:(n + 1) * 4096] = page
    sums.append(hash(page))
os.write(1, b'filled\\n')
while not os.path.exists(go):
    select.select([], [], [], 0.01)
wrong = sum(hash(area[n * 4096:(n + 1) * 4096]) != sums[n] for n in range(pages))
os.write(1, b'wrong %d\\n' % wrong)
";

/// A running program that fills and checks pages; the file `go` makes it continue.
struct Waiting {
    run: Running,
    folder: tempfile::TempDir,
}

impl Waiting {
    /// Starts the program, which begins to fill.
    fn begin(swap: &str) -> Self {
        let folder = tempfile::TempDir::with_prefix("ebb-remote-").expect("a folder");
        let go = folder.path().join("go");
        let launch = Launch::new(need("/usr/bin/python3")).args(["-c", WAITS, "10000"]).arg(go);
        let options = format!("--report json --swap {swap}");
        Self { run: launch.limit(30 * MIB).options(&options).start(), folder }
    }

    /// Starts the program and waits until it has filled its pages.
    fn start(swap: &str) -> Self {
        eventually_some("a start", || {
            let mut this = Self::begin(swap);
            let filled = |run: &Running| run.stdout().contains("filled");
            eventually("all of it", || this.run.ended() || filled(&this.run));
            if filled(&this.run) {
                return Some(this);
            }
            let outcome = this.run.finish();
            assert!(is_too_early(&outcome), "{}", outcome.stderr);
            None
        })
    }

    fn go(self) -> Outcome {
        std::fs::write(self.folder.path().join("go"), "").expect("go");
        self.run.finish()
    }
}

/// Returns a figure of the tier from the report.
fn of_redis(outcome: &Outcome, name: &str) -> u64 {
    let (_, tier) = outcome.stderr.split_once("\"name\":\"redis\"").expect("the tier is reported");
    let (_, rest) = tier.split_once(&format!("\"{name}\":")).expect("with the figure");
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Returns Ebb's messages beside its report, except those about a server that was silent for a
/// while.
fn words(outcome: &Outcome) -> Vec<&str> {
    let silence = |line: &&str| {
        line.starts_with("ebb: tier redis: ")
            && (line.contains(&format!("{SILENT}; threads that need a page of it wait"))
                || line.contains(" answers again, after "))
    };
    let said = outcome.said().into_iter().filter(|line| !line.starts_with('{'));
    said.filter(|line| !silence(line)).collect()
}

/// Checks that the server had no errors except for silence.
#[track_caller]
fn expect_no_errors(outcome: &Outcome) {
    assert_eq!(words(outcome), [""; 0]);
    let silent = outcome.stderr.contains(SILENT);
    assert!(silent || of_redis(outcome, "errors") == 0, "{}", outcome.stderr);
}

#[test]
fn programs_get_their_pages_back_and_leave_no_keys() {
    let server = Redis::start(&[]);
    let right = plainly("verify", VERIFY);
    let url = server.patient_url();
    for swap in [url.clone(), format!("ram:1M,{url}"), format!("ram,{url}:8M,file")] {
        let encryptions = if swap == url { &["remote", "none"][..] } else { &["remote"] };
        for &encrypt in encryptions {
            let outcome = run(&verify(&swap).options(&format!("--encrypt {encrypt}")));
            assert_eq!(outcome.expect_code(0).text(), right, "{swap}");
            expect_no_errors(&outcome);
            let (_, tier) = outcome.stderr.split_once("\"name\":\"redis\"").expect("it");
            assert!(tier.contains(&format!("\"encrypted\":{}", encrypt == "remote")), "{tier}");
            if !swap.starts_with("ram,") {
                assert!(
                    of_redis(&outcome, "reads") > 1000 && of_redis(&outcome, "read_mean_ns") > 0
                );
                // Faults are reported by their kind.
                let found = |kind: &str| outcome.stderr.contains(&format!("\"kind\":\"{kind}\""));
                assert!(found("remote") && !found("file"), "{}", outcome.stderr);
            }
            assert_eq!(of_redis(&outcome, "pages"), 0);
            server.expect_no_keys();
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
    for swap in [server.patient_url(), format!("ram:4M,{}", server.patient_url())] {
        let launch = Launch::program("torture", "3 3").limit(32 * MIB);
        let outcome = run(&launch.options(&format!("--swap {swap}")));
        outcome.expect_line("torture: ok");
        server.expect_no_keys();
    }
}

/// Shows that a server that pauses costs only time. The program reads all pages right when the
/// server continues.
#[test]
fn a_server_that_pauses_only_costs_time() {
    let server = Redis::start(&[]);
    let url = format!("{}?wait=600", server.url());
    let waiting = Waiting::start(&url);
    let stat = Command::new(build::ebb()).args(["stat", &waiting.run.pid().to_string()]).output();
    let stat = String::from_utf8(stat.expect("ebb stat").stdout).expect("text");
    let figure = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|figure| figure.parse::<u64>().ok())
            .unwrap_or_else(|| panic!("no {name} in {stat}"))
    };
    assert!(figure("ebb_redis_pages") > 2000 && figure("ebb_redis_writes") > 2000, "{stat}");
    assert_eq!(figure("ebb_redis_bytes"), figure("ebb_redis_pages") * 4096, "{stat}");
    let silent = waiting.run.stderr().contains(SILENT);
    assert!(silent || figure("ebb_redis_errors") == 0, "{stat}");
    // All reads are counted, with their total time.
    let _ = (figure("ebb_redis_reads"), figure("ebb_redis_read_us"));
    let is_silent =
        |waiting: &Waiting, before: usize| waiting.run.stderr().matches(SILENT).count() > before;
    let before = waiting.run.stderr().matches(SILENT).count();
    server.signal("STOP");
    std::fs::write(waiting.folder.path().join("go"), "").expect("go");
    eventually("a word of it", || is_silent(&waiting, before));
    server.signal("CONT");
    let outcome = waiting.go();
    assert_eq!(outcome.expect_code(0).text(), "filled\nwrong 0\n");
    // A run ends after nine seconds of removing keys, and reports those that remain.
    let leaves_keys = |outcome: &Outcome| outcome.stderr.contains("keys remain on");
    let mut may_be_left = leaves_keys(&outcome);
    // The server also pauses while the program fills.
    let mut waiting = Waiting::begin(&url);
    eventually("some pages", || server.keys().len() > 64 || waiting.run.ended());
    server.signal("STOP");
    eventually("a word of it, or all pages", || {
        is_silent(&waiting, 0) || waiting.run.stdout().contains("filled") || waiting.run.ended()
    });
    server.signal("CONT");
    let outcome = waiting.go();
    if !is_too_early(&outcome) {
        assert_eq!(outcome.expect_code(0).text(), "filled\nwrong 0\n");
    }
    may_be_left |= leaves_keys(&outcome);
    if !may_be_left {
        server.expect_no_keys();
    }
}

/// Shows that a pager stopped during a wait for an answer waits on. A receive with a time limit
/// ends with EINTR when its thread is stopped and continued. Job control and freezers do that.
#[test]
fn a_pager_stopped_while_it_waits_for_an_answer_waits_on() {
    let (server, cluster) = (Redis::start(&[]), Cluster::start());
    let right = plainly("verify", VERIFY);
    for swap in [server.patient_url(), cluster.url()] {
        let outcome = eventually_some("a start", || {
            let mut run = verify(&swap).start();
            let supervisor = run.pid();
            let pager = eventually_some("the pager, or the end", || {
                let tree = run.root().find();
                let pager = tree.ebb.iter().find(|&&pid| pid != supervisor).copied();
                pager.map(Some).or_else(|| run.ended().then_some(None))
            });
            eventually("its end", || {
                // The signals are more frequent than the checks. A process that has ended meanwhile
                // gets none.
                for signal in [Signal::STOP, Signal::CONT].repeat(16) {
                    pager.and_then(Pid::from_raw).map(|pager| kill_process(pager, signal));
                    give_time(Duration::from_millis(1));
                }
                run.ended()
            });
            Some(run.finish()).filter(|outcome| !is_too_early(outcome))
        });
        assert_eq!(outcome.expect_code(0).text(), right, "{swap}");
        expect_no_errors(&outcome);
    }
    server.expect_no_keys();
    cluster.expect_no_keys();
}

/// Shows that a program dies when it needs a page of a server that has come back empty.
#[test]
fn a_server_that_comes_back_empty_kills_the_program_that_needs_its_pages() {
    for encrypt in ["remote", "none"] {
        let mut server = Redis::start(&[]);
        let waiting = Waiting::start(&format!("{} --encrypt {encrypt}", server.patient_url()));
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

/// Shows that a server that stays away is given up after the configured wait.
#[test]
fn a_server_that_stays_away_is_given_up() {
    let mut server = Redis::start(&[]);
    let waiting = Waiting::start(&format!("{}?wait=8", server.url()));
    server.kill();
    let outcome = waiting.go();
    outcome.expect_code(SIGBUS_CODE);
    assert_eq!(outcome.text(), "filled\n");
    let said = outcome.said();
    let away = format!("ebb: tier redis: {}: ", server.address());
    let waits: Vec<_> = said.iter().filter(|line| line.starts_with(&away)).collect();
    let back = said.iter().filter(|line| line.contains(" answers again, after ")).count();
    assert_eq!(waits.len(), back + 1, "once: {said:?}");
    assert!(waits[0].contains("wait, 8 s at most"), "{said:?}");
    assert!(said.iter().any(|line| line.contains("is lost (tier redis")), "{said:?}");
    assert!(said.iter().any(|line| line.contains("keys remain on redis://")), "{said:?}");
}

#[test]
fn a_damaged_value_under_a_key_is_noticed() {
    // Damages all pages but not the key of the run. Returns the number of pages.
    const DAMAGE: &str = "local keys = redis.call('keys', '*{*'); \
        for _, key in ipairs(keys) do redis.call('setrange', key, 99, '##') end; return #keys";
    for encrypt in ["remote", "none"] {
        let server = Redis::start(&[]);
        let waiting = Waiting::start(&format!("{} --encrypt {encrypt}", server.patient_url()));
        let count = server.ask(&["eval", DAMAGE, "0"]);
        assert!(count.parse::<u32>().is_ok_and(|count| count > 2000), "{count} keys");
        let outcome = waiting.go();
        outcome.expect_code(SIGBUS_CODE);
        assert_eq!(outcome.text(), "filled\n");
        let said = words(&outcome).join("\n");
        let cause = if encrypt == "none" { "is damaged: hash" } else { "authentication failed" };
        assert!(said.contains(cause), "{said}");
        server.expect_no_keys();
    }
}

#[test]
fn a_server_without_room_is_a_full_tier() {
    const NOISE: &str = "48 1 5 2";
    let server = Redis::start(&["--maxmemory", "8mb"]);
    let launch = Launch::program("verify", NOISE).limit(24 * MIB);
    let outcome = run(&launch.clone().options(&format!("--swap {}", server.patient_url())));
    outcome.expect_code(OOM_CODE);
    let said = words(&outcome).join("\n");
    assert!(said.contains("tier redis: full: 127.0.0.1:"), "{said}");
    assert!(said.contains("out of memory") && said.contains("takes no more"), "{said}");
    server.expect_no_keys();
    let options = format!("--report json --swap {},file", server.patient_url());
    let outcome = run(&launch.options(&options));
    assert_eq!(outcome.expect_code(0).text(), plainly("verify", NOISE), "the file takes the rest");
    assert!(of_redis(&outcome, "peak_pages") > 100);
    server.expect_no_keys();
}

#[test]
fn two_runs_share_a_server() {
    let server = Redis::start(&[]);
    let right = plainly("verify", VERIFY);
    std::thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| run(&verify(&server.patient_url()))));
        for outcome in both.map(|one| one.join().expect("it ran")) {
            assert_eq!(outcome.expect_code(0).text(), right);
        }
    });
    let [first, second] = [(); 2].map(|()| Waiting::start(&server.patient_url()));
    assert_eq!(first.go().expect_code(0).text(), "filled\nwrong 0\n");
    assert!(server.keys().len() > 2000, "the other's are there");
    assert_eq!(second.go().expect_code(0).text(), "filled\nwrong 0\n");
    server.expect_no_keys();
}

/// Shows that a cluster loses nothing when a master dies while a run writes. The latest writes are
/// only a moment old.
#[test]
fn a_cluster_loses_nothing_when_a_master_dies() {
    let mut cluster = Cluster::start();
    let waiting = Waiting::start(&cluster.url());
    let masters = cluster.masters();
    assert!(masters.iter().all(|&at| cluster.nodes[at].keys().len() > 1), "all nodes have pages");
    let before = cluster.keys().len();
    let mut load = Launch::program("verify", "48 3 5 2")
        .limit(24 * MIB)
        .options(&format!("--swap {}", cluster.url()))
        .start();
    eventually("pages of the other", || cluster.keys().len() > before + 200 || load.ended());
    cluster.lose(masters[1]);
    let outcome = waiting.go();
    assert_eq!(outcome.expect_code(0).text(), "filled\nwrong 0\n");
    assert!(of_redis(&outcome, "errors") > 0, "it noticed");
    let outcome = load.finish();
    if !is_too_early(&outcome) {
        assert_eq!(outcome.expect_code(0).text(), plainly("verify", "48 3 5 2"));
    }
    cluster.expect_no_keys();
}

#[test]
fn a_run_with_a_bad_remote_tier_starts_nothing() {
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
        // A server without TLS sends nothing to a client that begins with TLS.
        (format!("rediss://:sesame@{address}"), SILENT),
    ] {
        let folder = tempfile::TempDir::new().expect("a folder");
        let made = folder.path().join("made");
        let launch = Launch::new("touch").arg(&made).limit(24 * MIB);
        let launch = launch.options(&format!("--swap {swap}"));
        let outcome = if cause == SILENT { launch.run() } else { run(&launch) };
        outcome.expect_code(REFUSED_CODE);
        assert_eq!(outcome.stderr.lines().count(), 1, "{swap}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(cause), "{swap}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("sesame"), "{}", outcome.stderr);
        assert!(!made.exists(), "{swap}: it was started");
    }
}
