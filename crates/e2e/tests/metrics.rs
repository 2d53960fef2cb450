//! Tests `ebb run --metrics`: the figures of a run over HTTP, for Prometheus and for hostile
//! clients.

use ebb_e2e::MIB;
use ebb_e2e::build::{ebb, root};
use ebb_e2e::launch::{Launch, Running, need_sight_of_ebb};
use ebb_e2e::same::need;
use ebb_testing::{HANG, eventually, eventually_some};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Passes over 40 MiB repeatedly, under a limit of 32 MiB, until a file exists.
const PROGRAM: &str = r#"
import os, sys
area = bytearray(os.urandom(40 << 20))
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    for at in range(0, len(area), 4096):
        area[at] = (area[at] + 1) % 256
print("well")
"#;

struct Program {
    run: Running,
    /// Address of the figures.
    at: String,
    folder: TempDir,
}

impl Program {
    fn start() -> Self {
        let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
        let launch = Launch::new(need("/usr/bin/python3")).args(["-c", PROGRAM]);
        let launch = launch.arg(folder.path().join("end"));
        let mut run = launch.limit(32 * MIB).options("--metrics 0").start();
        run.wait_for("ready");
        let at = address(&run.stderr());
        Self { run, at, folder }
    }

    fn end(self) {
        std::fs::write(self.folder.path().join("end"), "").expect("a word");
        let outcome = self.run.finish();
        assert!(outcome.expect_code(0).text().ends_with("well\n"));
    }
}

/// Returns the address of the figures from the output of the run.
fn address(said: &str) -> String {
    let at =
        said.split_once("metrics at http://").and_then(|(_, rest)| rest.split_once("/metrics"));
    let (at, _) = at.unwrap_or_else(|| panic!("no address in {said}"));
    assert!(at.starts_with("127.0.0.1:"), "{at}");
    at.to_owned()
}

fn connect(at: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(HANG))?;
    Ok(stream)
}

fn try_ask(at: &str, request: &str) -> io::Result<String> {
    let mut stream = connect(at)?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns whether the answer is complete. A pager without CPU causes the status 503, which counts
/// as incomplete.
fn is_whole(request: &str, answer: &str) -> bool {
    if answer.starts_with("HTTP/1.1 503") {
        return false;
    }
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    request.starts_with("HEAD") || length.is_none_or(|length| length.parse() == Ok(body.len()))
}

/// Asks for a page. A client slower than the supervisor permits gets no answer, so this asks again.
fn ask(at: &str, request: &str) -> String {
    eventually_some("a whole answer", || {
        try_ask(at, request).ok().filter(|answer| is_whole(request, answer))
    })
}

fn get(at: &str, path: &str) -> String {
    ask(at, &format!("GET {path} HTTP/1.1\r\nHost: {at}\r\n\r\n"))
}

#[test]
fn the_figures_are_served_while_the_run_lasts_and_nothing_else_is() {
    let program = Program::start();
    let at = program.at.clone();
    let answer = get(&at, "/metrics");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert!(body.ends_with("# EOF\n"));
    let pid = program.run.pid();
    for line in [
        format!("ebb_nr_limit{{pid=\"{pid}\"}} {}\n", 32 * 256),
        format!("ebb_pgfault_total{{pid=\"{pid}\"}} "),
        format!("ebb_pressure_some_seconds_total{{pid=\"{pid}\"}} "),
        format!("ebb_waited_seconds_total{{pid=\"{pid}\"}} "),
    ] {
        assert!(body.contains(&line), "no {line} in {body}");
    }
    assert!(
        body.contains(&format!("ebb_faults_total{{pid=\"{pid}\",kind=\"zero_page\"}} ")),
        "{body}"
    );
    for (request, status) in [
        ("GET /metrics?x=y HTTP/1.0\r\n\r\n", "200"),
        ("GET / HTTP/1.1\r\n\r\n", "200"),
        ("GET /../../etc/passwd HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405"),
        ("\x16\x03\x01 hello\r\n\r\n", "400"),
    ] {
        let answer = ask(&at, request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    let head = ask(&at, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    program.end();
    // Another program may have the port soon, for a while.
    eventually("the end of it with the run", || TcpStream::connect(&at).is_err());
}

/// Shows that hostile connections do no harm: silent ones, half requests, long requests and clients
/// that do not read. The next client gets its answer, the run goes on, and the number of
/// connections is bounded.
#[test]
fn hostile_connections_do_no_harm() {
    need_sight_of_ebb();
    let program = Program::start();
    let at = &program.at;
    let mut held = Vec::new();
    for number in 0..120 {
        let mut stream = connect(at).expect("somebody listens");
        // The connection may have been closed for the next one.
        let _ = match number % 4 {
            0 => Ok(()),
            1 => stream.write_all(b"GET /metr"),
            2 => stream.write_all(&[b'x'; 20_000]),
            _ => stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n"),
        };
        held.push(stream);
    }
    let sockets = || {
        let folder =
            std::fs::read_dir(format!("/proc/{}/fd", program.run.pid())).expect("the front");
        let links = folder.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
    };
    for _ in 0..20 {
        assert!(get(at, "/metrics").ends_with("# EOF\n"));
        // Sixteen connections, the listener and the line to the pager; one more while the pager is
        // asked.
        assert!(sockets() <= 19, "{}", sockets());
    }
    // Every connection ends in time.
    eventually("the end of all connections", || sockets() <= 2);
    drop(held);
    program.end();
}

/// Shows that the program inherits no socket of the server. The supervisor keeps none of the
/// program's streams, so a reader of its output sees the end.
#[test]
fn the_program_has_no_socket_and_its_output_ends_with_it() {
    let script =
        "\"$0\" run --memory-max 64M --quiet --metrics 0 -- ls -l /proc/self/fd | cat; echo over";
    let outcome = Launch::new("sh").args(["-c", script]).arg(ebb()).run();
    let text = outcome.expect_code(0).text();
    assert!(text.contains("pipe:") && text.ends_with("over\n"), "{text}");
    let plain = Launch::new("ls").args(["-l", "/proc/self/fd"]).run().text();
    let sockets = |text: &str| text.matches("socket:").count();
    assert_eq!(sockets(&text), sockets(&plain), "{text}");
}

#[test]
fn a_run_with_a_bad_metrics_address_starts_nothing() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("its address").to_string();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let marker = folder.path().join("started");
    for (address, word) in [
        (&*taken, "is taken"),
        ("x", "as 9464"),
        ("99999", "as 9464"),
        ("127.0.0.1", "as 9464"),
        ("192.0.2.1:9464", "cannot listen"),
    ] {
        let words = ["run", "--metrics", address, "--", "touch"];
        let outcome = Launch::new(ebb()).args(words).arg(&marker).run();
        outcome.expect_code(125);
        let line = &outcome.stderr;
        assert!(line.starts_with(&format!("ebb: --metrics {address}: ")), "{line}");
        assert!(line.contains(word) && line.lines().count() == 1, "{line}");
        assert!(!marker.exists());
    }
}

/// A child process that is killed on drop.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the names of metrics in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter| !is_part(letter)).filter(|word| word.starts_with("ebb_"));
    words.map(str::to_owned).collect()
}

/// Collects all values under a key, at any depth.
fn values_of<'a>(value: &'a serde_json::Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(map) => {
            found.extend(map.get(key).and_then(|value| value.as_str()));
            map.values().for_each(|value| values_of(value, key, found));
        }
        serde_json::Value::Array(all) => all.iter().for_each(|value| values_of(value, key, found)),
        _ => {}
    }
}

/// Shows that Prometheus reads the figures, accepts the rules, and answers the dashboard's queries.
#[test]
fn prometheus_reads_the_figures_and_knows_all_that_dashboard_and_rules_name() {
    let [promtool, prometheus] = ["/usr/bin/promtool", "/usr/bin/prometheus"].map(need);
    let program = Program::start();
    let at = &program.at;
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let rules = root().join("docs/metrics/alerts.yml");
    let checked = Command::new(promtool).args(["check", "rules"]).arg(&rules).output();
    let checked = checked.expect("promtool runs");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let config = format!(
        "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}}\n\
         rule_files: [\"{}\"]\n\
         scrape_configs: [{{job_name: ebb, static_configs: [{{targets: [\"{at}\"]}}]}}]\n",
        rules.display()
    );
    let file = folder.path().join("prometheus.yml");
    std::fs::write(&file, config).expect("written");
    let start = || {
        let api = format!("127.0.0.1:{}", ebb_e2e::redis::free_port());
        let mut prometheus = Command::new(prometheus);
        prometheus.arg(format!("--config.file={}", file.display()));
        prometheus.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        prometheus.arg(format!("--web.listen-address={api}"));
        prometheus.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Ending(prometheus.spawn().expect("prometheus runs"));
        let mut ended = false;
        eventually("Prometheus", || {
            ended = child.0.try_wait().expect("wait").is_some();
            let ready = try_ask(&api, &format!("GET /-/ready HTTP/1.0\r\nHost: {api}\r\n\r\n"));
            ended || ready.is_ok_and(|answer| answer.contains(" 200 OK"))
        });
        // Another program may have taken the port.
        (!ended).then_some((child, api))
    };
    let (_prometheus, api) = eventually_some("Prometheus at a port of its own", start);

    let query = |expression: &str| -> serde_json::Value {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        // With HTTP 1.0 the answer has no chunks.
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\nHost: {api}\r\n\r\n");
        let answer = try_ask(&api, &request).unwrap_or_default();
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_default()
    };
    let wait_for = |expression: &str| {
        eventually_some(expression, || {
            let answer = query(expression);
            let found = answer["data"]["result"].as_array()?;
            (!found.is_empty()).then_some(answer)
        })
    };
    let limit = wait_for("ebb_nr_limit");
    let sample = &limit["data"]["result"][0];
    assert_eq!(sample["metric"]["pid"], program.run.pid().to_string());
    assert_eq!(sample["value"][1], (32 * 256).to_string());
    wait_for("rate(ebb_pgmajfault_total[5m]) > 0");

    let known = metrics(&get(at, "/metrics"));
    let rules = std::fs::read_to_string(rules).expect("rules");
    let expressions = |text: &str| -> Vec<String> {
        text.lines()
            .filter_map(|line| Some(line.trim().strip_prefix("expr: ")?.to_owned()))
            .collect()
    };
    let dashboard = std::fs::read(root().join("docs/metrics/grafana.json")).expect("a dashboard");
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).expect("JSON");
    let mut asked = Vec::new();
    values_of(&dashboard, "expr", &mut asked);
    values_of(&dashboard, "definition", &mut asked);
    let all: Vec<String> =
        asked.into_iter().map(str::to_owned).chain(expressions(&rules)).collect();
    assert!(all.len() > 20, "{all:?}");
    let unknown: Vec<String> =
        all.iter().flat_map(|text| metrics(text)).filter(|name| !known.contains(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} are named in docs/metrics and not served");
    for expression in all.iter().filter(|text| !text.starts_with("label_values")) {
        let expression = expression.replace("$__rate_interval", "5s").replace("$run", ".*");
        let answer = eventually_some(&expression, || {
            Some(query(&expression)).filter(|answer| !answer.is_null())
        });
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
    }
    wait_for("ebb_nr_anon_pages{pid=~\".*\"} * 4096");
    let said = program.run.stderr();
    let is_known = |line: &str| line.contains("metrics at") || line.starts_with("ebb: thrashing: ");
    assert!(said.lines().all(is_known), "{said}");
    program.end();
}
