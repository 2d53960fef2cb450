//! Tests `ebb top` in a terminal of 80x24: what it shows, what its keys do, and how it leaves.

use ebb_control::{Client, ControlError, Patience, Request, View};
use ebb_e2e::MIB;
use ebb_e2e::build::ebb;
use ebb_e2e::launch::{Launch, Running, send};
use ebb_e2e::same::need;
use ebb_e2e::tree::folders_of;
use ebb_testing::{Guard, eventually, eventually_is, eventually_some, give_time};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A terminal of tmux with a shell that has `$ebb`.
struct Terminal {
    name: String,
}

impl Terminal {
    fn new() -> Self {
        static TERMINALS: AtomicU32 = AtomicU32::new(0);
        need("/usr/bin/tmux");
        let number = TERMINALS.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { name: format!("ebb-e2e-{}-{number}", std::process::id()) };
        let shell = "PS1='$ ' exec sh";
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", shell]);
        terminal.wait_for("a prompt", |screen| screen.starts_with('$'));
        terminal
    }

    fn tmux(&self, words: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        tmux.args(["-L", &self.name]).args(words).env("LC_ALL", "C.UTF-8").env_remove("TMUX");
        // The sessions inherit the environment of the tmux server.
        tmux.env("ebb", ebb());
        let output = tmux.output().expect("tmux runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {error}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Types a command.
    fn run(&self, command: &str) {
        self.tmux(&["send-keys", "-l", command]);
        self.key("Enter");
    }

    /// Presses a key by its name.
    fn key(&self, name: &str) {
        self.tmux(&["send-keys", name]);
    }

    /// Returns the present screen. It may be half drawn, so a test waits until all expected text is
    /// there at once.
    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    #[track_caller]
    fn wait_for(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let guard = Guard::new();
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            guard.pause(&format!("{what} in\n{screen}"));
        }
    }

    #[track_caller]
    fn wait_for_text(&self, text: &str) -> String {
        self.wait_for(text, |screen| screen.contains(text))
    }

    /// Returns whether the condition holds within a hundred checks.
    fn soon(&self, is_there: impl Fn(&str) -> bool) -> bool {
        (0..100).any(|_| {
            give_time(Duration::from_millis(20));
            is_there(&self.screen())
        })
    }

    /// Returns the state of the terminal: its modes, and whether the alternate screen is shown.
    fn state(&self) -> (String, String) {
        let (end, modes) = (unique("stty"), "stty -g");
        self.run(&format!("{modes}; echo '{end}'"));
        let screen = self.wait_for("modes", |screen| screen.lines().any(|line| line == end));
        let lines: Vec<&str> = screen.lines().collect();
        let at = lines.iter().position(|line| *line == end).expect("they are there");
        let state = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag}"]);
        (lines[at - 1].to_owned(), state)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = Command::new("tmux").args(["-L", &self.name, "kill-server"]).output();
    }
}

/// Returns a word that occurs nowhere else.
fn unique(word: &str) -> String {
    static WORDS: AtomicU32 = AtomicU32::new(0);
    format!("{word}-{}", WORDS.fetch_add(1, Ordering::Relaxed))
}

/// Passes over 48 MiB in a limit of 32, with a child, until it is ended.
const PROGRAM: &str = r#"
import mmap, os, select, signal, sys
def fill(mib):
    area = mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for page in range(mib * 256):
        area[page * 4096 : page * 4096 + 2048] = os.urandom(2048)
    return area
area = fill(48)
if os.fork() == 0:
    own = fill(4)
    print("ready", flush=True)
    while True:
        signal.pause()
while True:
    for at in range(0, len(area), 4096):
        area[at] = 1
    select.select([], [], [], 0.01)
"#;

fn program() -> Running {
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", PROGRAM]).limit(32 * MIB);
    let mut running = launch.start();
    running.wait_for("ready");
    running
}

fn top(options: &str) -> String {
    format!("clear; NO_COLOR=1 LC_ALL=C.UTF-8 \"$ebb\" top {options}")
}

fn limit_of(run: &Running) -> u64 {
    let stat = Launch::new(ebb()).arg("stat").arg(run.pid().to_string()).run();
    let text = stat.expect_code(0).text();
    let line = text.lines().find_map(|line| line.strip_prefix("ebb_nr_limit "));
    line.expect("a limit").parse::<u64>().expect("a number") * 4096
}

#[test]
fn top_shows_the_runs_and_then_one_run_its_limit_and_its_map() {
    let (run, terminal) = (program(), Terminal::new());
    let pid = run.pid().to_string();
    let before = terminal.state();
    let end = unique("left");
    terminal.run(&format!("{}; echo {end} $?", top("--delay 0.3")));
    terminal.wait_for("the run and its limit", |screen| {
        ["COMMAND", &pid, "32.0M"].iter().all(|text| screen.contains(text))
    });
    // Other runs of this user may be in the list, too.
    let chosen = |screen: &str| {
        let line = screen.lines().find(|line| line.starts_with('>')).unwrap_or_default();
        line.trim_start_matches('>').split_ascii_whitespace().next().map(str::to_owned)
    };
    eventually("this run, chosen", || {
        let screen = terminal.screen();
        let line_of = |is_it: &dyn Fn(&str) -> bool| screen.lines().position(is_it);
        let own = line_of(&|line| {
            line.trim_start_matches('>').split_ascii_whitespace().next() == Some(&pid)
        });
        let (Some(own), Some(at)) = (own, line_of(&|line| line.starts_with('>'))) else {
            return false;
        };
        if own != at {
            terminal.key(if own > at { "Down" } else { "Up" });
            // Another run is chosen, unless the list has changed meanwhile.
            let before = chosen(&screen);
            terminal.soon(|screen| chosen(screen) != before);
        }
        own == at
    });
    terminal.key("Enter");
    let stored = |screen: &str, tier: &str| {
        let line = screen.lines().find(|line| line.starts_with(tier)).unwrap_or_default();
        let size = line.split_ascii_whitespace().nth(1).and_then(|size| size.strip_suffix('M'));
        size.and_then(|size| size.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let screen = terminal.wait_for("one run", |screen| {
        let figures = ["of 32.0M", "faults/s", "ages  ", "map of", "visible"];
        figures.iter().all(|figure| screen.contains(figure))
            && screen.matches("python3").count() > 2
            // Of 52 MiB and Python's own memory in 32, at least a third is stored.
            && stored(screen, "ram ") + stored(screen, "file ") > 15.0
    });
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    // Some faults of the program load pages from a tier.
    terminal.wait_for("loads", |screen| {
        let line = screen.lines().find(|line| line.starts_with("faults/s")).unwrap_or_default();
        !line.contains("ram 0  file 0")
    });

    // If too few pages leave in time, `ebb top` says so for a while. The test then presses the key
    // again.
    for (key, before, after, bytes) in
        [("+", "32.0M", "36.0M", 36 * MIB), ("-", "36.0M", "31.5M", 63 * MIB / 2)]
    {
        let is = |screen: &str, limit: &str| screen.contains(&format!("of {limit}"));
        let refused = format!("not {}", after.trim_end_matches('M'));
        let under_way = |screen: &str| screen.contains("memory.max=") || screen.contains(&refused);
        eventually(after, || {
            let screen = terminal.wait_for("nothing under way", |screen| !under_way(screen));
            if is(&screen, before) {
                terminal.key(key);
                let taken = |screen: &str| under_way(screen) || !is(screen, before);
                terminal.wait_for("the key to be taken", taken);
            } else if !is(&screen, after) {
                let setting = format!("memory.max={}", before.replace(".0", ""));
                Launch::new(ebb()).args(["set", &pid, &setting]).run();
            }
            // The pager may take a step back after it was shown.
            is(&screen, after) && limit_of(&run) == bytes
        });
    }
    eventually("a word of what was reclaimed", || {
        terminal.key("r");
        terminal.soon(|screen| screen.contains("were reclaimed"))
    });

    terminal.key("Enter");
    // The area of 48 MiB, with other mappings merged into it.
    let is_large = |line: &&str| {
        let size = line.split_ascii_whitespace().nth(2).and_then(|size| size.strip_suffix('M'));
        size.and_then(|size| size.parse::<f64>().ok()).is_some_and(|size| size >= 48.0)
    };
    terminal.wait_for("the map of the large area", |screen| {
        let line = screen.lines().find(is_large).unwrap_or_default();
        let cells = line.split_ascii_whitespace().last().unwrap_or_default();
        screen.contains("FROM ITS BEGINNING")
            && cells.chars().count() >= 28
            && cells.contains(['r', 'f'])
    });
    terminal.key("Escape");
    terminal
        .wait_for("the run", |screen| screen.contains("map of") && !screen.contains("FROM ITS"));
    terminal.key("?");
    terminal.wait_for_text("Ctrl-C");
    terminal.key("?");
    // The other process is chosen, so the map is another.
    let shown =
        |screen: &str| chosen(screen).filter(|of| screen.contains(&format!("map of {of}:")));
    let first = shown(&terminal.wait_for("one that is chosen", |screen| shown(screen).is_some()));
    terminal.key("Down");
    terminal
        .wait_for("the other process", |screen| shown(screen).is_some_and(|of| Some(of) != first));
    terminal.key("Escape");
    terminal.wait_for_text("COMMAND");
    terminal.key("q");
    // The shell command typed before prints this. `ebb top` may still read keys that are typed now.
    terminal.wait_for_text(&format!("{end} 0"));
    assert_eq!(terminal.state(), before);
}

#[test]
fn a_terminal_of_any_size_is_drawn_on() {
    let (run, terminal) = (program(), Terminal::new());
    terminal.run(&top(&format!("--delay 0.3 {}", run.pid())));
    terminal.wait_for_text("map of");
    for (width, height, text) in [
        ("20", "5", "too small"),
        ("40", "8", "memory"),
        ("200", "60", "map of"),
        ("80", "24", "map of"),
    ] {
        terminal.tmux(&["resize-window", "-x", width, "-y", height]);
        let screen = terminal.wait_for_text(text);
        assert!(screen.lines().count() <= height.parse().expect("a number"), "{screen}");
    }
    terminal.key("q");
}

#[test]
fn a_run_that_ends_while_it_is_looked_at_says_so() {
    // The message stays for a while. If the host stops for longer, the test cannot see it.
    eventually("the list, with a word", || {
        let (run, terminal) = (program(), Terminal::new());
        let pid = run.pid();
        terminal.run(&top(&format!("--delay 0.3 {pid}")));
        terminal.wait_for_text("map of");
        drop(run);
        // The list asks other runs, which may take longer.
        let word = format!("run {pid} has ended");
        let is_there = |screen: &str| screen.contains(&word) || screen.contains("COMMAND");
        let is_said = terminal.wait_for("the word, or the list", is_there).contains(&word);
        terminal.wait_for_text("COMMAND");
        is_said
    });
}

/// Returns whether the text has a colour: 30 to 38, 40 to 48 or 90 to 107. The list of runs has
/// none, so the test shows one run.
fn has_colour(text: &str) -> bool {
    text.split("\x1b[").skip(1).filter_map(|rest| rest.split_once('m')).any(|(codes, _)| {
        let numbers = codes.split(';').filter_map(|code| code.parse::<u32>().ok());
        numbers.into_iter().any(|code| matches!(code, 30..=38 | 40..=48 | 90..=107))
    })
}

#[test]
fn colours_are_left_out_where_they_are_not_wanted() {
    let (run, terminal) = (program(), Terminal::new());
    for (environment, coloured) in [("NO_COLOR=1", false), ("NO_COLOR=", true)] {
        let (end, pid) = (unique("ended"), run.pid());
        let top = format!("{environment} LC_ALL=C \"$ebb\" top {pid}");
        terminal.run(&format!("clear; {top}; echo {end} $?"));
        let screen = terminal.wait_for_text("map of");
        assert!(screen.is_ascii(), "in a locale of ASCII: {screen}");
        let drawn = terminal.tmux(&["capture-pane", "-p", "-e"]);
        assert_eq!(has_colour(&drawn), coloured, "{environment}: {drawn:?}");
        terminal.key("q");
        // `ebb top` may still read keys that are typed now.
        terminal.wait_for_text(&format!("{end} 0"));
    }
}

#[test]
fn the_terminal_is_as_it_was_however_top_ends() {
    let terminal = Terminal::new();
    let before = terminal.state();
    let started = |options: &str| {
        let end = unique("ended");
        terminal.run(&format!("{}; echo {end} $?", top(options)));
        end
    };
    // No other test or process has these options.
    let options = format!("--delay 7.{:07}", std::process::id());
    let process = || {
        let found = Command::new("pgrep").args(["-f", &format!("top {options}")]).output();
        let text = String::from_utf8_lossy(&found.expect("pgrep runs").stdout).into_owned();
        // The shell that starts it has these words in its command line, too.
        let pids = text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
        let is_top = |pid: &i32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "ebb\n")
        };
        pids.into_iter().find(is_top)
    };
    for (signal, status) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130)] {
        let end = started(&options);
        terminal.wait_for_text("COMMAND");
        send(process().expect("it runs"), signal);
        terminal.wait_for_text(&format!("{end} {status}"));
        assert_eq!(terminal.state(), before, "{signal:?}");
    }
    let end = started(&format!("{options} --panic"));
    terminal.wait_for("its status and why", |screen| {
        screen.contains(&format!("{end} 101")) && screen.contains("as it was asked to")
    });
    assert_eq!(terminal.state(), before);
    let end = started(&options);
    terminal.wait_for_text("COMMAND");
    terminal.key("C-c");
    terminal.wait_for_text(&format!("{end} 0"));
    assert_eq!(terminal.state(), before);
}

/// Shows that `ebb top` ends with its terminal, even if SIGHUP is ignored, as in a background job.
#[test]
fn top_ends_with_its_terminal() {
    for ignoring in ["", "trap '' HUP; "] {
        let terminal = Terminal::new();
        terminal.run(&format!("{ignoring}exec env LC_ALL=C \"$ebb\" top"));
        terminal.wait_for_text("COMMAND");
        let pid = terminal.tmux(&["display-message", "-p", "#{pane_pid}"]);
        let pid: i32 = pid.trim().parse().expect("a number");
        assert!(is_running(pid));
        drop(terminal);
        eventually("its end", || !is_running(pid));
    }
}

fn is_running(pid: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn top_without_a_terminal_is_refused_with_an_alternative() {
    let outcome = Launch::new(ebb()).arg("top").run();
    outcome.expect_code(1);
    assert!(outcome.stderr.contains("terminal") && outcome.stderr.contains("ebb ps"));
    let terminal = Terminal::new();
    let end = unique("ended");
    terminal.run(&format!("clear; TERM=dumb \"$ebb\" top; echo {end} $?"));
    let screen = terminal.wait_for_text(&format!("{end} 1"));
    assert!(screen.contains("TERM is dumb"), "{screen}");
    for (words, named) in [(["top", "1"], "no run of yours"), (["top", "--delay=0"], "0.1 to 3600")]
    {
        let end = unique("ended");
        terminal.run(&format!("clear; \"$ebb\" {}; echo {end} $?", words.join(" ")));
        let is_over = |screen: &str| screen.lines().any(|line| line.starts_with(&end));
        let screen = terminal.wait_for("its end", is_over);
        assert!(!screen.contains(&format!("{end} 0")), "{screen}");
        assert!(screen.replace('\n', " ").contains(named), "{screen}");
    }
}

/// Returns the socket of a run.
fn socket_of(run: &Running) -> PathBuf {
    folders_of(run.pid()).first().expect("a folder").join("socket")
}

/// Asks a run for its view, with the areas of a process.
fn ask(socket: &Path, areas_of: u32) -> Client {
    let client = Client::connect(socket, Patience::Endless).expect("a connection");
    client.send(&Request::View { areas_of }).expect("it is taken");
    client
}

/// Returns the answer; None if too many questions wait.
fn hear(client: &Client) -> Option<View> {
    match eventually_some("an answer", || match client.receive::<Box<View>>(Patience::Answer) {
        Err(ControlError::Late) => None,
        answer => Some(answer),
    }) {
        Err(ControlError::NotDone(why)) if why.starts_with("too many") => None,
        answer => Some(*answer.expect("a view")),
    }
}

/// Returns a run's view of itself, with the areas of a process. Asks again if too many questions
/// wait.
fn view_of(socket: &Path, areas_of: u32) -> View {
    eventually_some("a view", || hear(&ask(socket, areas_of)))
}

/// Shows that the view of an idle process adds up. Its pages by location, by area and by part equal
/// the counts of the kernel and the store.
#[test]
fn the_view_of_an_idle_process_adds_up() {
    let script = PROGRAM.replace("if os.fork() == 0:", "if True:");
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", &script]).limit(32 * MIB);
    let mut run = launch.start();
    run.wait_for("ready");
    let socket = socket_of(&run);
    let pid = view_of(&socket, 0).processes[0].pid;
    let view = view_of(&socket, pid);
    let process = &view.processes[0];
    assert_eq!((view.processes.len(), view.areas_of, process.pid), (1, pid, pid), "{view:?}");
    eventually_is("what does not add up", vec![], || wrong_in(&view_of(&socket, pid)));
}

/// Returns the wrong figures in the view of one process that has filled 52 MiB in 32.
fn wrong_in(view: &View) -> Vec<String> {
    let process = &view.processes[0];
    let pages = process.pages;
    let resident = pages.resident() * 4096;
    let by_area: u64 = view.areas.iter().map(|area| area.pages.all()).sum();
    let [ram, file] = [&view.tiers[0], &view.tiers[1]];
    let faults: u64 = process.faults.iter().sum();
    let area = view.areas.iter().max_by_key(|area| area.pages.all()).expect("areas");
    let all = [
        ("52 MiB were filled", pages.all() > 52 * 256),
        ("32 of them fit", pages.stored() > 20 * 256),
        // The difference is memory that is not managed, and the pool.
        (
            "what is resident",
            resident <= process.resident_bytes + MIB && resident + 8 * MIB > process.resident_bytes,
        ),
        ("its areas have all", by_area.abs_diff(pages.all()) < 64),
        (
            "copies of pages in memory are stored, too",
            pages.ram <= ram.pages && pages.file <= file.pages,
        ),
        ("one process has all faults", faults > 0 && view.faults.iter().sum::<u64>() == faults),
        (
            "the largest area",
            area.pages.all() > 47 * 256 && area.cells.len() == 32 && !area.cells.contains('.'),
        ),
    ];
    let wrong = all.iter().filter(|(_, holds)| !holds);
    wrong.map(|(what, _)| format!("{what}: {view:?}")).collect()
}

/// Shows that unread answers, more than may wait, do not block a run. It still answers other
/// clients and takes children in.
#[test]
fn a_client_that_reads_no_answers_does_not_block_a_run() {
    let script = "import os, subprocess, sys\nprint('ready', flush=True)\nblock = bytearray(60 << 20)\n\
                  while not os.path.exists(sys.argv[1]): assert subprocess.run(['/bin/true']).returncode == 0\n\
                  print('well')";
    let folder = tempfile::TempDir::with_prefix("ebb-e2e-").expect("a folder");
    let end = folder.path().join("end");
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", script]).arg(&end);
    let launch = launch.limit(48 * MIB);
    let mut run = launch.start();
    run.wait_for("ready");
    let socket = socket_of(&run);
    eventually("sixteen may wait", || {
        let deaf: Vec<Client> = (0..40).map(|_| ask(&socket, 0)).collect();
        let refused = deaf.iter().filter(|client| hear(client).is_none()).count();
        assert!(refused < 40, "the first may");
        refused > 0
    });
    let _deaf: Vec<Client> = (0..40).map(|_| ask(&socket, 0)).collect();
    let stat = Launch::new(ebb()).arg("stat").arg(run.pid().to_string()).run();
    stat.expect_code(0);
    // A client that reads gets its answer in turn, or a message that too many ask.
    assert_eq!(view_of(&socket, 0).limit_bytes, 48 * MIB);
    std::fs::write(&end, "").expect("a file");
    run.wait_for("well");
    run.finish().expect_code(0);
}
