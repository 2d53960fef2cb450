//! Redis servers for tests: each in a folder of its own, on a free port, without persistence.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use ebb_testing::{eventually, eventually_is, eventually_some, skip};
use tempfile::TempDir;

/// One `redis-server`, killed on drop.
pub struct Redis {
    child: Child,
    folder: TempDir,
    port: u16,
    options: Vec<String>,
}

/// Ports that the kernel never chooses by itself. The same holds for the bus port of a cluster
/// node, which lies 10 000 above.
const PORTS: std::ops::Range<u16> = 10_000..22_000;

/// Returns a port without a listener. The bus port of a cluster node beside it is free, too.
pub fn free_port() -> u16 {
    eventually_some("a free port", || {
        let random = RandomState::new().hash_one(0);
        let port = PORTS.start + (random % u64::from(PORTS.end - PORTS.start)) as u16;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        (is_free(port) && is_free(port + 10_000)).then_some(port)
    })
}

impl Redis {
    /// Starts a server with options as on its command line.
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

    /// Waits until this server answers at its port. Returns false if it has ended.
    fn answers(&mut self) -> bool {
        let own = format!("process_id:{}\r", self.pid());
        let mut ended = false;
        eventually("an answer of the server", || {
            ended = self.child.try_wait().expect("wait").is_some();
            ended || self.ask(&["info", "server"]).contains(&own)
        });
        !ended
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address as HOST:PORT.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns the address in the form for `--swap`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// Returns the address for `--swap` with waits for the server and its answers as long as a test
    /// may last.
    pub fn patient_url(&self) -> String {
        format!("{}{PATIENT}", self.url())
    }

    /// Returns the PID of the server.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Kills the server. Its data are lost.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill");
        self.child.wait().expect("wait");
    }

    /// Starts the server again, empty, at its port.
    pub fn restart(&mut self) {
        eventually("the server again", || {
            self.child = spawn(self.folder.path(), self.port, &self.options);
            self.answers()
        });
    }

    /// Returns the answer of `redis-cli` to a command.
    pub fn ask(&self, words: &[&str]) -> String {
        let mut cli = Command::new("redis-cli");
        if let Some(at) = self.options.iter().position(|option| option == "--requirepass") {
            cli.args(["--no-auth-warning", "-a", &self.options[at + 1]]);
        }
        let output =
            cli.args(["-p", &self.port.to_string()]).args(words).output().expect("redis-cli");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns the keys of the server.
    pub fn keys(&self) -> Vec<String> {
        self.ask(&["--scan"]).lines().map(str::to_owned).filter(|key| !key.is_empty()).collect()
    }

    /// Waits until the server has no key.
    #[track_caller]
    pub fn expect_no_keys(&self) {
        eventually_is("the server's keys", vec![], || self.keys());
    }

    /// Sends a signal to the server, to stop or continue it.
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("kill").success());
    }
}

/// Options with long waits. A server may go away during a test, or get no CPU on a busy host.
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
    // If an option occurs twice, the server uses the last one.
    let mut server = Command::new("redis-server");
    server.args(plain).arg("--dir").arg(folder).args(options);
    server.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    // The server has a process group of its own. So a stopped server does not continue together
    // with the test's other processes.
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
    /// Starts a cluster. Its timeout is so long that no node declares another one dead on a slow
    /// host: see [`Cluster::lose`].
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

    /// Waits until all nodes agree, each is connected with each, and each master has an up-to-date
    /// replica.
    ///
    /// `check` passes, and `cluster_state` is ok, even before all nodes know each replica. A node
    /// ignores messages of a replica that it does not know. Such a message says that the replica
    /// has taken over its master's slots.
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

    /// Kills a master. Its replica takes over the master's slots, without an election.
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

    /// Returns the indices of the nodes that are masters now.
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |&at: &usize| self.nodes[at].ask(&["role"]).starts_with("master");
        (0..self.nodes.len()).filter(is_master).collect()
    }

    /// Returns the addresses in the form for `--swap`.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().take(3).map(Redis::address).collect();
        format!("redis://{}{PATIENT}", hosts.join(","))
    }

    /// Returns the keys of all masters.
    pub fn keys(&self) -> Vec<String> {
        self.masters().into_iter().flat_map(|at| self.nodes[at].keys()).collect()
    }

    /// Waits until the masters have no keys.
    #[track_caller]
    pub fn expect_no_keys(&self) {
        eventually_is("the cluster's keys", vec![], || self.keys());
    }
}
