//! The terminal while a whole screen of it is used, and as it was on every way out.
//!
//! * SCREEN-1: whoever leaves finds the terminal as it was: by the end of the value, by the hook of panics (after which the
//!   process ends, whichever thread it was), and before a signal ends or stops the process.
//! * SCREEN-2: signals are messages here: none ends the process by itself but SIGKILL.
//! * SCREEN-3: a terminal that is gone ends the process, whether SIGHUP is ignored or not, by a thread of its own: what reads
//!   keys for us reads on and on where there is nothing more to read.

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

/// Those that end or stop other programs.
const TAKEN: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGCONT];

/// What a terminal can show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shows {
    pub colour: bool,
    /// Letters beyond ASCII.
    pub unicode: bool,
}

impl Shows {
    /// By what the environment says: <https://no-color.org>, and the locale.
    pub fn of(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> Self {
        let said = |name: &str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|name| said(name));
        let locale = locale.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let unicode = locale.contains("utf-8") || locale.contains("utf8");
        Self { colour: said("NO_COLOR").is_none(), unicode }
    }
}

/// Why a whole screen cannot be used, if so.
pub fn why_not(term: Option<&OsStr>, is_terminal: bool) -> Option<String> {
    let instead = "for a list: ebb ps; for figures again and again: ebb stat --watch PID";
    if !is_terminal {
        return Some(format!(
            "ebb top needs a terminal to read keys from and to show a screen; {instead}"
        ));
    }
    match term.filter(|term| !term.is_empty()) {
        None => {
            Some(format!("TERM is not set, so the terminal's screen cannot be used; {instead}"))
        }
        Some(term) if term == "dumb" => {
            Some(format!("TERM is dumb: the terminal has no screen to move about in; {instead}"))
        }
        Some(_) => None,
    }
}

/// Whether keys come from a terminal and the screen is one.
pub fn is_terminal() -> bool {
    stdin().is_terminal() && stdout().is_terminal()
}

/// The screen.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    signals: Signals,
}

/// What a signal asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// To end, as the signal would have ended it.
    End(i32),
    /// To draw everything anew.
    Redraw,
}

impl Screen {
    /// Takes the terminal. Before any other thread is started: signals come to none of them.
    pub fn take() -> Result<Self> {
        static HOOK: Once = Once::new();
        let signals = Signals::take(&TAKEN)?;
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                before(panic);
                // SCREEN-1: of whichever thread it is.
                std::process::exit(101);
            }));
        });
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        std::thread::Builder::new().name("hangup".to_owned()).spawn(end_with_terminal)?;
        let screen = Self { terminal, signals };
        enter()?;
        Ok(screen)
    }

    /// Shows something.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        self.terminal.draw(draw).map(drop)
    }

    /// Stops, as Ctrl-Z has other programs do; returns when it is to go on.
    pub fn stop(&mut self) -> Result<()> {
        give_back();
        signals::stop_self();
        enter()?;
        self.terminal.clear()
    }

    /// What signals have asked for, one after another.
    pub fn asked(&mut self) -> Result<Option<Asked>> {
        match self.signals.next().map(|signal| signal.number) {
            None => Ok(None),
            Some(SIGTSTP) => {
                self.stop()?;
                Ok(Some(Asked::Redraw))
            }
            Some(SIGCONT) => {
                // Somebody has stopped it by SIGSTOP: what the terminal is set to now is the shell's.
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

/// The thread that ends the process when its terminal is gone (SCREEN-3).
fn end_with_terminal() {
    let input = stdin();
    loop {
        // Nothing but a hang-up, which needs not be asked for.
        let mut waiting = [PollFd::new(&input, PollFlags::empty())];
        // Interrupted: once more.
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

/// Of a terminal that is gone nothing is left to set.
fn give_back() {
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_screen_is_refused_with_what_to_do_instead() {
        let why = |term: &str, is| why_not(Some(OsStr::new(term)), is);
        assert_eq!(why("xterm-256color", true), None);
        assert_eq!(why("linux", true), None);
        let refused = [why("dumb", true), why("", true), why_not(None, true), why("xterm", false)];
        for (reason, word) in refused.into_iter().zip(["dumb", "TERM", "TERM", "terminal"]) {
            let reason = reason.expect("refused");
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
