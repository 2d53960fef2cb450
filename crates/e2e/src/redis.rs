//! Servers of Redis for tests: each in a folder of its own, on a free port, without persistence.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ebb_testing::{eventually, eventually_is, eventually_some, skip};
use tempfile::TempDir;

/// One `redis-server`, killed at the end.
pub struct Redis {
    child: Child,
    folder: TempDir,
    port: u16,
    options: Vec<String>,
}

/// Ports that nobody is given who asks for any, nor the bus of a node, which lies 10 000 above.
const PORTS: std::ops::Range<u16> = 10_000..22_000;

/// A port that nobody listens on, nor on the one that a cluster's node has beside it.
pub fn free_port() -> u16 {
    eventually_some("a free port", || {
        let random = RandomState::new().hash_one(0);
        let port = PORTS.start + (random % u64::from(PORTS.end - PORTS.start)) as u16;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        (is_free(port) && is_free(port + 10_000)).then_some(port)
    })
}

impl Redis {
    /// With options as on its command line.
    pub fn start(options: &[&str]) -> Self {
        let options: Vec<String> = options.iter().map(|&option| option.to_owned()).collect();
        // Another test may take the port before the server does.
        eventually_some("a server", || {
            let folder = TempDir::with_prefix("ebb-redis-").expect("a folder");
            let port = free_port();
            let child = spawn(folder.path(), port, &options);
            let mut this = Self { child, folder, port, options: options.clone() };
            this.answers().then_some(this)
        })
    }

    /// Waits until this very server answers at its port. False if it has ended.
    fn answers(&mut self) -> bool {
        let own = format!("process_id:{}\r", self.pid());
        let mut ended = false;
        eventually("an answer of the server", || {
            ended = self.child.try_wait().expect("wait").is_some();
            ended || self.ask(&["info", "server"]).contains(&own)
        });
        !ended
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

    /// The same, of a server that is waited for as long as a test may last, and each answer of it, too.
    pub fn patient_url(&self) -> String {
        format!("{}{PATIENT}", self.url())
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
        eventually("the server again", || {
            self.child = spawn(self.folder.path(), self.port, &self.options);
            self.answers()
        });
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

    /// Waits until it has no key.
    #[track_caller]
    pub fn expect_no_keys(&self) {
        eventually_is("the server's keys", vec![], || self.keys());
    }

    /// Stops and continues it.
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("kill").success());
    }
}

/// How long a server is waited for that goes away while a test wants it, and one that a busy host does not run.
const PATIENT: &str = "?wait=600&answer=600";

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
    // In a process group of its own: one that a test has stopped does not go on with the others of the test.
    server.process_group(0);
    match server.spawn() {
        Err(error) if error.kind() == ErrorKind::NotFound => skip("redis-server is missing"),
        child => child.expect("redis-server"),
    }
}

/// A cluster of three masters, each with a replica.
pub struct Cluster {
    /// Masters and replicas.
    pub nodes: Vec<Redis>,
}

impl Cluster {
    /// Its nodes never miss each other by themselves, however slow the host is: see
    /// [`Cluster::lose`].
    pub fn start() -> Self {
        let options = ["--cluster-enabled", "yes", "--cluster-node-timeout", "600000"];
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

    /// Waits until all nodes agree, each is connected with each, and all masters have a replica that is up to date.
    ///
    /// `check` passes, and `cluster_state` is ok, while nodes do not know a replica yet. They
    /// ignore what it says then: also that it has taken its master's slots over.
    fn settle(&self) {
        eventually("the nodes to agree", || {
            let mut check = Command::new("redis-cli");
            let check = check.args(["--cluster", "check", &self.nodes[0].address()]).output();
            let is_ok = |node: &Redis| node.ask(&["cluster", "info"]).contains("cluster_state:ok");
            let nodes = self.nodes.len();
            let knows_all = |node: &Redis| {
                let known = node.ask(&["cluster", "nodes"]);
                known.matches(" connected").count() == nodes && !known.contains("handshake")
            };
            let has_replica =
                |&at: &usize| self.nodes[at].ask(&["info", "replication"]).contains("state=online");
            let masters = self.masters();
            masters.len() == 3
                && self.nodes.iter().all(is_ok)
                && self.nodes.iter().all(knows_all)
                && masters.iter().all(has_replica)
                && check.expect("redis-cli").status.success()
        });
    }

    /// Kills a master, and its replica takes its slots over, as after an election.
    pub fn lose(&mut self, master: usize) {
        self.nodes[master].kill();
        let port = format!("\n{}\n", self.nodes[master].port());
        let is_its = |node: &&Redis| {
            let role = node.ask(&["role"]);
            role.starts_with("slave") && format!("{role}\n").contains(&port)
        };
        let replica = self.nodes.iter().find(is_its).expect("a replica");
        eventually("a master again", || {
            replica.ask(&["cluster", "failover", "takeover"]);
            replica.ask(&["role"]).starts_with("master")
        });
    }

    /// Which of the nodes are masters now.
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |&at: &usize| self.nodes[at].ask(&["role"]).starts_with("master");
        (0..self.nodes.len()).filter(is_master).collect()
    }

    /// As `--swap` takes it.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().take(3).map(Redis::address).collect();
        format!("redis://{}{PATIENT}", hosts.join(","))
    }

    /// The keys that its masters have.
    pub fn keys(&self) -> Vec<String> {
        self.masters().into_iter().flat_map(|at| self.nodes[at].keys()).collect()
    }

    /// Waits until they have none.
    #[track_caller]
    pub fn expect_no_keys(&self) {
        eventually_is("the cluster's keys", vec![], || self.keys());
    }
}
