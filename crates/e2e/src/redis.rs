//! Servers of Redis for tests: each in a folder of its own, on a free port, without persistence.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// One `redis-server`, killed at the end.
pub struct Redis {
    child: Child,
    folder: TempDir,
    port: u16,
    options: Vec<String>,
}

/// A port that nobody listens on, nor on the one that a cluster's node has beside it.
pub fn free_port() -> u16 {
    loop {
        let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { continue };
        let port = listener.local_addr().expect("an address").port();
        if port < 50_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}

impl Redis {
    /// With options as on its command line.
    pub fn start(options: &[&str]) -> Self {
        let folder = TempDir::with_prefix("ebb-redis-").expect("a folder");
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        let port = free_port();
        let child = spawn(folder.path(), port, &options);
        let this = Self { child, folder, port, options };
        this.wait();
        this
    }

    fn wait(&self) {
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(began.elapsed() < Duration::from_secs(20), "no server on port {}", self.port);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// HOST:PORT of it.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// As `--swap` takes it.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The server's process.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Kills it; what it had is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Starts it again, empty, at the same port.
    pub fn restart(&mut self) {
        self.child = spawn(self.folder.path(), self.port, &self.options);
        self.wait();
    }

    /// What `redis-cli` says to a command.
    pub fn ask(&self, words: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        if let Some(at) = self.options.iter().position(|option| option == "--requirepass") {
            cli.args(["--no-auth-warning", "-a", &self.options[at + 1]]);
        }
        let output =
            cli.args(["-p", &self.port.to_string()]).args(words).output().expect("redis-cli");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The keys it has.
    pub fn keys(&self) -> Vec<String> {
        self.ask(&["--scan"]).lines().map(str::to_owned).filter(|key| !key.is_empty()).collect()
    }

    /// Stops and continues it.
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("kill").success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, port: u16, options: &[String]) -> Child {
    let port = port.to_string();
    let plain = [
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
    ];
    // What is given twice counts as it was given last.
    let mut server = Command::new("redis-server");
    server.args(plain).arg("--dir").arg(folder).args(options);
    server.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    server.spawn().expect("redis-server")
}

/// A cluster of three masters, each with a replica.
pub struct Cluster {
    /// Masters and replicas.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Whose nodes miss each other after a second and a half.
    pub fn start() -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500"];
        let mut options = options.to_vec();
        options.extend(["--repl-diskless-sync-delay", "0", "--cluster-config-file", "nodes.conf"]);
        let nodes: Vec<Redis> = (0..6).map(|_| Redis::start(&options)).collect();
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(nodes.iter().map(Redis::address));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let output = create.output().expect("redis-cli");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let this = Self { nodes };
        this.settle();
        this
    }

    /// Waits until all masters have a replica that is up to date.
    fn settle(&self) {
        let began = Instant::now();
        let all = |name: &str, text: &str| {
            self.nodes.iter().all(|node| node.ask(&["info", name]).contains(text))
        };
        loop {
            let ok = self
                .nodes
                .iter()
                .all(|node| node.ask(&["cluster", "info"]).contains("cluster_state:ok"));
            let linked = self
                .masters()
                .iter()
                .all(|&at| self.nodes[at].ask(&["info", "replication"]).contains("state=online"));
            if ok && linked && self.masters().len() == 3 && all("server", "redis_version") {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "the cluster does not settle");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Which of the nodes are masters now.
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |&at: &usize| self.nodes[at].ask(&["role"]).starts_with("master");
        (0..self.nodes.len()).filter(is_master).collect()
    }

    /// As `--swap` takes it.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().take(3).map(Redis::address).collect();
        format!("redis://{}", hosts.join(","))
    }

    /// The keys that its masters have.
    pub fn keys(&self) -> Vec<String> {
        self.masters().into_iter().flat_map(|at| self.nodes[at].keys()).collect()
    }
}
