//! Takes the terminal for a whole screen and restores it on every way out.
//!
//! * SCREEN-1: the terminal is restored on every way out. `Drop` does it, and the panic hook, and
//!   the process itself before a signal ends or stops it. After a panic in any thread the process
//!   ends.
//! * SCREEN-2: signals arrive as messages. Only SIGKILL ends the process by itself.
//! * SCREEN-3: when the terminal is gone, a thread of its own ends the process, whether SIGHUP is
//!   ignored or not. The library that reads keys would read in an endless loop there.

use ebb_sys::signals::{self, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, Signals};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};
use rustix::event::{PollFd, PollFlags, poll};
use std::ffi::OsStr;
use std::io::{IsTerminal, Result, Stdout, stdin, stdout};
use std::sync::Once;

/// Signals that end or stop other programs.
const TAKEN: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT];

/// Abilities of a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shows {
    pub colour: bool,
    /// Whether the terminal shows characters beyond ASCII.
    pub unicode: bool,
}

impl Shows {
    /// Reads the abilities from the environment: <https://no-color.org>, and the locale.
    pub fn of(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Self {
        let said = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| said(name));
        let locale = locale.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let unicode = locale.contains("utf-8") || locale.contains("utf8");
        Self { colour: said("NO_COLOR").is_none(), unicode }
    }
}

const INSTEAD: &str = "for a list: ebb ps; for figures that repeat: ebb stat --watch PID";

/// Why a whole screen cannot be used.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoScreen {
    /// The input or the output is no terminal.
    #[error("ebb top needs a terminal to read keys from and to show a screen; {INSTEAD}")]
    NoTerminal,
    /// The type of the terminal is not known.
    #[error("TERM is not set, so the terminal's screen cannot be used; {INSTEAD}")]
    NoTerm,
    /// The terminal cannot move its cursor.
    #[error("TERM is dumb: the terminal cannot move its cursor; {INSTEAD}")]
    Dumb,
}

/// Returns why a whole screen cannot be used, or `None` if it can.
pub fn why_not(term: Option<&OsStr>, is_terminal: bool) -> Option<NoScreen> {
    if !is_terminal {
        return Some(NoScreen::NoTerminal);
    }
    match term.filter(|term| !term.is_empty()) {
        None => Some(NoScreen::NoTerm),
        Some(term) if term == "dumb" => Some(NoScreen::Dumb),
        Some(_) => None,
    }
}

/// Returns whether standard input and standard output are terminals.
pub fn is_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// The screen, which owns the terminal.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    signals: Signals,
}

/// Request of a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// End the process as the signal would have done.
    End(i32),
    /// Draw everything anew.
    Redraw,
}

impl Screen {
    /// Takes the terminal. Called before any other thread starts, so that no thread receives these
    /// signals.
    pub fn take() -> Result<Self> {
        static HOOK: Once = Once::new();
        let signals = Signals::take(&TAKEN)?;
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
                // SCREEN-1: a panic in any thread ends the process.
                std::process::exit(101);
            }));
        });
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        std::thread::Builder::new().name("hangup".to_owned()).spawn(end_with_terminal)?;
        let screen = Self { terminal, signals };
        enter()?;
        Ok(screen)
    }

    /// Draws the screen.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.terminal.draw(draw).map(drop)
    }

    /// Stops the process, as Ctrl-Z stops other programs. Returns when the process continues.
    pub fn stop(&mut self) -> Result<()> {
        give_back();
        signals::stop_self();
        enter()?;
        self.terminal.clear()
    }

    /// Returns the next request of a signal.
    pub fn asked(&mut self) -> Result<Option<Asked>> {
        match self.signals.next().map(|signal| signal.number) {
            None => Ok(None),
            Some(SIGTSTP) => {
                self.stop()?;
                Ok(Some(Asked::Redraw))
            }
            Some(SIGCONT) => {
                // Another process has stopped this one by SIGSTOP, so the terminal has the shell's
                // settings now.
                enter()?;
                self.terminal.clear()?;
                Ok(Some(Asked::Redraw))
            }
            Some(number) => Ok(Some(Asked::End(number))),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Runs the thread that ends the process when its terminal is gone (SCREEN-3).
fn end_with_terminal() {
    let input = stdin();
    loop {
        // Waits for a hang-up only. Poll reports it without a request.
        let mut waiting = [PollFd::new(&input, PollFlags::empty())];
        // After an interruption the loop polls again.
        let _ = poll(&mut waiting, None);
        if waiting[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            std::process::exit(128 + SIGHUP);
        }
    }
}

fn enter() -> Result<()> {
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)
}

/// Restores the terminal. Errors do not matter, because a terminal that is gone has nothing to
/// restore.
fn give_back() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_screen_is_refused_with_an_alternative() {
        let why = |term: &str, is| why_not(Some(OsStr::new(term)), is);
        assert_eq!(why("xterm-256color", true), None);
        assert_eq!(why("linux", true), None);
        let refused = [why("dumb", true), why("", true), why_not(None, true), why("xterm", false)];
        for (reason, word) in refused.into_iter().zip(["dumb", "TERM", "TERM", "terminal"]) {
            let reason = reason.expect("refused").to_string();
            assert!(reason.contains(word) && reason.contains("ebb ps"), "{reason}");
        }
    }

    #[test]
    fn colour_and_letters_follow_the_environment() {
        let of = |pairs: &[(&str, &str)]| {
            Shows::of(|name| {
                let pair = pairs.iter().find(|(key, _)| *key == name)?;
                Some(pair.1.into())
            })
        };
        assert_eq!(of(&[]), Shows { colour: true, unicode: false });
        assert_eq!(
            of(&[("NO_COLOR", "1"), ("LANG", "de_DE.UTF-8")]),
            Shows { colour: false, unicode: true }
        );
        assert!(of(&[("NO_COLOR", "")]).colour, "empty is as good as not set");
        assert!(!of(&[("LC_ALL", "C"), ("LANG", "C.UTF-8")]).unicode, "LC_ALL is what counts");
    }
}
