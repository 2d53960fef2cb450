//! `ebb top` shows this user's runs, or one of them, on a whole screen and keeps it up to date.
//!
//! `ebb top` asks for figures as `ebb stat` does, one question at a time, and makes changes as `ebb
//! set` does. A run never waits for `ebb top`.

mod picture;
mod screen;
mod source;

use crate::stat::AskError;
use crate::{ps, stat};
use ebb_sys::words::plain;
use picture::{Pen, Seen};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use screen::{Asked, NoScreen, Screen, Shows};
use source::{Source, Update, Want};
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Time for which a message stays.
const WORD_STAYS: Duration = Duration::from_secs(6);
/// Interval at which signals are checked.
const LOOK: Duration = Duration::from_millis(100);
/// Least size of the screen.
const WIDTH_MIN: u16 = 40;
const HEIGHT_MIN: u16 = 8;

#[derive(clap::Args)]
#[command(after_help = "\
The screen lists your runs, as `ebb ps` does. Enter shows one run: its memory, its tiers, its faults per second
by kind, the time that its threads wait, and its generations with their ages. For each process it shows the
same, and a map of where the pages of its areas are.

Keys: arrows, Enter and Esc to move about; + and - to change the limit by an eighth, as `ebb set` does;
r to reclaim a sixteenth of the run's memory now; ? for help; q to quit.

The screen has no colours where NO_COLOR is set, and only ASCII where the locale is not UTF-8. A run never
waits for ebb top.

Exit status: 0; 1 if PID belongs to no run of yours, or there is no terminal; 128+n if signal n ended it.

Examples:
  ebb top
  ebb top 4711
  ebb top --delay 0.5
  NO_COLOR=1 ebb top $(pgrep -o -x redis-server)")]
pub struct Arguments {
    /// Any process of the run to begin with, or the `ebb run` itself
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Seconds between updates
    #[arg(short, long, value_name = "SECONDS", default_value = "1", value_parser = stat::delay)]
    delay: Duration,
    /// Panic as soon as the screen is used (for tests)
    #[arg(long, hide = true)]
    panic: bool,
}

/// Shows the screen until the user quits.
pub fn top(arguments: &Arguments) -> ExitCode {
    match follow(arguments) {
        Ok(status) => ExitCode::from(status),
        Err(reason) => {
            crate::tell(reason);
            ExitCode::FAILURE
        }
    }
}

/// Why there is nothing to watch.
#[derive(Debug, thiserror::Error)]
enum TopError {
    #[error(transparent)]
    NoScreen(#[from] NoScreen),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error("cannot use the terminal: {0}")]
    Terminal(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

fn follow(arguments: &Arguments) -> Result<u8, TopError> {
    let term = std::env::var_os("TERM");
    if let Some(reason) = screen::why_not(term.as_deref(), screen::is_terminal()) {
        return Err(reason.into());
    }
    let supervisor = arguments.pid.map(stat::supervisor_of).transpose()?;
    let page =
        supervisor.map_or(Page::List, |supervisor| Page::Run(Box::new(Followed::of(supervisor))));
    let cannot = TopError::Terminal;
    let mut screen = Screen::take().map_err(cannot)?;
    let mut app = App::new(page, arguments.delay).map_err(TopError::Thread)?;
    if arguments.panic {
        // The panic happens in a thread that does not own the screen.
        let _ = std::thread::spawn(|| panic!("as it was asked to")).join();
    }
    loop {
        app.take_news();
        screen.draw(|frame| app.draw(frame)).map_err(cannot)?;
        if let Some(Asked::End(number)) = screen.asked().map_err(cannot)? {
            return Ok(128 + number as u8);
        }
        if !event::poll(LOOK).map_err(cannot)? {
            continue;
        }
        match event::read().map_err(cannot)? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match app.typed(key) {
                Typed::Quit => return Ok(0),
                Typed::Stop => screen.stop().map_err(cannot)?,
                Typed::Taken => {}
            },
            _ => {}
        }
    }
}

/// A run that is shown.
#[derive(Debug, Default)]
struct Followed {
    supervisor: u32,
    command: String,
    seen: Seen,
    /// PID of the chosen process; 0 until there is one.
    chosen: u32,
    /// Time of the last answer.
    heard: Option<Instant>,
    /// Reason why no answer has come since then.
    silent: Option<AskError>,
    /// First line of the whole map that is shown, if the whole map is shown.
    map: Option<usize>,
}

impl Followed {
    fn of(supervisor: u32) -> Self {
        let command = plain(&ps::command_of(supervisor).unwrap_or_default()).into_owned();
        Self { supervisor, command, ..Self::default() }
    }

    fn want(&self) -> Want {
        Want::Run { supervisor: self.supervisor, areas_of: self.chosen }
    }

    /// Chooses the process that is `by` lines further down.
    fn choose(&mut self, by: isize) {
        let processes = &self.seen.now.processes;
        let at = processes.iter().position(|process| process.pid == self.chosen).unwrap_or(0);
        let at = at.saturating_add_signed(by).min(processes.len().saturating_sub(1));
        self.chosen = processes.get(at).map_or(0, |process| process.pid);
    }
}

#[derive(Debug)]
enum Page {
    List,
    Run(Box<Followed>),
}

/// Effect of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Typed {
    Taken,
    Stop,
    Quit,
}

/// A message at the foot of the screen.
#[derive(Debug)]
struct Word {
    text: String,
    until: Option<Instant>,
}

struct App {
    source: Source,
    every: Duration,
    shows: Shows,
    page: Page,
    runs: Vec<ps::Run>,
    /// Whether the list of runs has been received once.
    known: bool,
    chosen: usize,
    help: bool,
    /// Whether a change is under way.
    changing: bool,
    word: Option<Word>,
}

impl App {
    fn new(page: Page, every: Duration) -> std::io::Result<Self> {
        let want = match &page {
            Page::List => Want::Runs,
            Page::Run(run) => run.want(),
        };
        Ok(Self {
            source: Source::start(want, every)?,
            every,
            shows: Shows::of(|name| std::env::var_os(name)),
            page,
            runs: Vec::new(),
            known: false,
            chosen: 0,
            help: false,
            changing: false,
            word: None,
        })
    }

    /// Shows a message for a while.
    fn say(&mut self, text: String) {
        self.word = Some(Word { text, until: Some(Instant::now() + WORD_STAYS) });
    }

    fn take_news(&mut self) {
        while let Ok(update) = self.source.updates.try_recv() {
            self.take(update);
        }
        let over = |word: &Word| word.until.is_some_and(|until| until < Instant::now());
        self.word = self.word.take().filter(|word| !over(word));
    }

    fn take(&mut self, update: Update) {
        match update {
            Update::Runs(runs) => {
                // The chosen run stays chosen.
                let chosen = self.runs.get(self.chosen).map(|run| run.pid);
                let at = runs.iter().position(|run| Some(run.pid) == chosen);
                self.chosen = at.unwrap_or(self.chosen.min(runs.len().saturating_sub(1)));
                (self.runs, self.known) = (runs, true);
            }
            Update::View { supervisor, at, view } => {
                let Some(run) = self.followed(supervisor) else { return };
                let there = view.processes.iter().any(|process| process.pid == run.chosen);
                run.seen = std::mem::take(&mut run.seen).next(*view);
                (run.heard, run.silent) = (Some(at), None);
                if !there {
                    // No process is chosen yet, or the chosen process has ended.
                    run.chosen = 0;
                    run.choose(0);
                    let want = run.want();
                    self.source.want(want);
                }
            }
            Update::Ended(supervisor) => {
                if self.followed(supervisor).is_some() {
                    self.back();
                    self.say(format!("run {supervisor} has ended"));
                }
            }
            Update::Silent(supervisor, reason) => {
                if let Some(run) = self.followed(supervisor) {
                    run.silent = Some(reason);
                }
            }
            Update::Done(result) => {
                self.changing = false;
                self.say(result.unwrap_or_else(|reason| reason.to_string()));
            }
        }
    }

    /// Returns the run that is shown, if its supervisor is `supervisor`.
    fn followed(&mut self, supervisor: u32) -> Option<&mut Followed> {
        match &mut self.page {
            Page::Run(run) if run.supervisor == supervisor => Some(run),
            _ => None,
        }
    }

    /// Returns to the list.
    fn back(&mut self) {
        if let Page::Run(run) = &self.page
            && let Some(at) = self.runs.iter().position(|listed| listed.pid == run.supervisor)
        {
            self.chosen = at;
        }
        self.page = Page::List;
        self.source.want(Want::Runs);
    }

    fn typed(&mut self, key: KeyEvent) -> Typed {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Typed::Quit,
                KeyCode::Char('z') => Typed::Stop,
                _ => Typed::Taken,
            };
        }
        // Esc and the next key arrive as one key with Alt if both are read at once. `ebb top` has
        // no key with Alt.
        if key.modifiers.contains(KeyModifiers::ALT) {
            self.typed(KeyEvent::from(KeyCode::Esc));
        }
        match key.code {
            KeyCode::Char('q') => return Typed::Quit,
            // Any key leaves the help.
            _ if self.help => self.help = false,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Up | KeyCode::Char('k') => self.go(-1),
            KeyCode::Down | KeyCode::Char('j') => self.go(1),
            KeyCode::PageUp => self.go(-10),
            KeyCode::PageDown => self.go(10),
            KeyCode::Home => self.go(isize::MIN),
            KeyCode::End => self.go(isize::MAX),
            KeyCode::Enter | KeyCode::Right => self.enter(),
            KeyCode::Esc | KeyCode::Backspace | KeyCode::Left => match &mut self.page {
                Page::Run(run) if run.map.is_some() => run.map = None,
                Page::Run(_) => self.back(),
                Page::List => {}
            },
            KeyCode::Char('+' | '=') => self.resize(|limit| limit + limit / 8),
            KeyCode::Char('-' | '_') => self.resize(|limit| limit - limit / 8),
            KeyCode::Char('r') => self.reclaim(),
            _ => {}
        }
        Typed::Taken
    }

    fn go(&mut self, by: isize) {
        match &mut self.page {
            Page::List => {
                let last = self.runs.len().saturating_sub(1);
                self.chosen = self.chosen.saturating_add_signed(by).min(last);
            }
            Page::Run(run) => match &mut run.map {
                Some(line) => {
                    let last = run.seen.now.areas.len().saturating_sub(1);
                    *line = line.saturating_add_signed(by).min(last);
                }
                None => {
                    let before = run.chosen;
                    run.choose(by);
                    if run.chosen != before {
                        let want = run.want();
                        self.source.want(want);
                    }
                }
            },
        }
    }

    fn enter(&mut self) {
        match &mut self.page {
            Page::List => {
                let Some(run) = self.runs.get(self.chosen) else { return };
                let run = Followed::of(run.pid);
                self.source.want(run.want());
                self.page = Page::Run(Box::new(run));
            }
            Page::Run(run) => run.map = Some(0),
        }
    }

    /// Returns the run that is shown or chosen: its number, its limit and its resident memory.
    fn subject(&self) -> Option<(u32, u64, u64)> {
        match &self.page {
            Page::Run(run) => run.heard.map(|_| {
                let view = &run.seen.now;
                (run.supervisor, view.limit_bytes, view.used_bytes)
            }),
            Page::List => {
                let run = self.runs.get(self.chosen)?;
                Some((run.pid, run.memory_max_bytes, run.used_bytes))
            }
        }
    }

    fn resize(&mut self, to: impl Fn(u64) -> u64) {
        let Some((supervisor, limit, _)) = self.subject() else { return };
        let wanted = to(limit).next_multiple_of(4096);
        let text = picture::size(wanted);
        self.change(
            supervisor,
            format!("memory.max={wanted}"),
            format!("the limit of run {supervisor} is {text} now"),
        );
    }

    fn reclaim(&mut self) {
        let Some((supervisor, _, used)) = self.subject() else { return };
        let wanted = (used / 16).next_multiple_of(4096).max(4096);
        let text = picture::size(wanted);
        self.change(
            supervisor,
            format!("memory.reclaim={wanted}"),
            format!("{text} of run {supervisor} were reclaimed"),
        );
    }

    fn change(&mut self, supervisor: u32, setting: String, done: String) {
        if self.changing {
            return self.say("the last change is still under way".into());
        }
        self.changing = true;
        self.word = Some(Word { text: format!("{setting} for run {supervisor} ..."), until: None });
        self.source.change(supervisor, setting, done);
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        if area.width < WIDTH_MIN || area.height < HEIGHT_MIN {
            let text = format!("too small: {WIDTH_MIN}x{HEIGHT_MIN} at least");
            return frame.render_widget(Paragraph::new(text), area);
        }
        let pen = Pen { shows: self.shows, width: area.width.into() };
        let height = usize::from(area.height) - 2;
        let mut lines = vec![Line::styled(self.title(), Style::new().add_modifier(Modifier::BOLD))];
        let mut body = self.body(pen, height);
        body.truncate(height);
        body.resize(height, Line::raw(""));
        lines.extend(body);
        lines.push(Line::raw(self.foot()));
        frame.render_widget(Paragraph::new(lines), area);
    }

    fn title(&self) -> String {
        match &self.page {
            Page::List => format!("ebb top: {} runs", self.runs.len()),
            Page::Run(run) => {
                let view = &run.seen.now;
                let up = picture::age(view.at_us / 1000);
                let count = view.processes.len() as u64 + view.processes_left_out;
                let processes = if count == 1 { "process" } else { "processes" };
                format!("run {} for {up}, {count} {processes}: {}", run.supervisor, run.command)
            }
        }
    }

    fn body(&self, pen: Pen, height: usize) -> Vec<Line<'static>> {
        match &self.page {
            _ if self.help => picture::help(pen, self.every),
            Page::List if !self.known => vec![Line::raw("asking ...")],
            Page::List => picture::runs(pen, &self.runs, self.chosen, height),
            Page::Run(run) if run.heard.is_none() => vec![Line::raw("asking ...")],
            Page::Run(run) => match run.map {
                Some(skip) => picture::whole_map(pen, &run.seen.now, run.chosen, skip, height),
                None => picture::run(pen, &run.seen, run.chosen, height),
            },
        }
    }

    /// Returns the last line: a message, an error, or the keys.
    fn foot(&self) -> String {
        if let Some(word) = &self.word {
            return word.text.clone();
        }
        if let Page::Run(run) = &self.page
            && let Some(reason) = &run.silent
        {
            let since = run.heard.map_or(0, |at| at.elapsed().as_secs());
            return format!("{reason}; the figures are {since} s old");
        }
        match &self.page {
            Page::List => "q quit  Enter look at it  + - limit  r reclaim  ? help".into(),
            Page::Run(_) => {
                "q quit  Esc back  arrows process  Enter map  + - limit  r reclaim  ? help".into()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that Esc is not lost when it is read together with the next key, as on a busy machine.
    #[test]
    fn esc_is_not_lost_when_it_is_read_with_the_next_key() {
        let run = Followed { supervisor: 1, map: Some(0), ..Followed::default() };
        let page = Page::Run(Box::new(run));
        let mut app = App::new(page, Duration::from_secs(3600)).expect("a thread");
        app.typed(KeyEvent::new(KeyCode::Char('?'), KeyModifiers::ALT));
        assert!(app.help && matches!(&app.page, Page::Run(run) if run.map.is_none()));
    }
}
