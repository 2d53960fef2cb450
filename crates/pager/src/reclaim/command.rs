//! Carries out the commands of `ebb lru-gen`: ageing, and reclaim on command.
//!
//! Part of the kswapd thread. A command that evicts moves its pages to standby. Then kswapd stores
//! as many pages from the standby list, the oldest first.

use super::Reclaim;
use crate::seam::answer;
use crate::wait::patience::{Patience, Wait};
use ebb_agent::protocol::BATCH_MAX;
use ebb_control::Reclaim as Work;
use ebb_mm::observe::lru_gen::{Action, Command, CommandError, run_all};
use ebb_mm::types::PAGE_SIZE;
use std::time::Duration;

/// Why a request is not done.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    /// So many pages could leave memory, of so many.
    #[error("only {:.1} of {:.1} MiB could leave memory", mib(*.0), mib(*.1))]
    Partly(u64, u64),
    /// The memcg, the node or the generation does not exist.
    #[error(
        "memcg {memcg}, node {node}, generation {seq}: write the memcg and node that `ebb lru-gen \
         PID` shows, and a generation {rule}",
        memcg = .0.memcg, node = .0.node, seq = .0.seq, rule = rule(.0)
    )]
    NoGeneration(Command),
    /// The text is no command.
    #[error(
        "'{0}' is no command; write '+ MEMCG NODE GENERATION [SWAPPINESS [FORCE]]' or '- MEMCG NODE \
         GENERATION [SWAPPINESS [PAGES]]'"
    )]
    NoCommand(String),
    /// The LRU cannot carry the command out.
    #[error(transparent)]
    Command(CommandError),
}

fn mib(pages: u64) -> f64 {
    pages as f64 / 256.0
}

impl Reclaim {
    /// Carries out the requests since the last call.
    pub fn serve_requests(&mut self) {
        for (work, line) in self.pager.budget.requests.take() {
            let result = match work {
                Work::Bytes(bytes) => self.reclaim_bytes(bytes),
                Work::LruGen(text) => self.run_commands(&text),
            };
            answer::done(&*line, result.map_err(|error| error.to_string()));
        }
    }

    fn run_commands(&mut self, text: &str) -> Result<(), RequestError> {
        let mut last = None;
        let done = run_all(text, |command| {
            last = Some(command);
            self.carry_out(&command)
        });
        done.map_err(|error| explain(text, error, last))
    }

    /// Reclaims so many bytes at once. The error says how many could leave.
    fn reclaim_bytes(&mut self, bytes: u64) -> Result<(), RequestError> {
        self.have_managed();
        let (wanted, mut done) = (bytes.div_ceil(PAGE_SIZE as u64), 0);
        // If all pages are young the first pass only ages them.
        let mut wait = Wait::new(&self.pager.clock, Patience::Reclaim);
        while done < wanted && !wait.is_over(&self.pager.clock) {
            let most = (wanted - done).min(BATCH_MAX as u64) as usize;
            let moved = self.deactivate(most);
            let stored = self.evict(most) as u64;
            self.discard_pending(1);
            if moved == 0 && stored == 0 {
                self.pager.host.sleep(Duration::from_millis(1));
            } else {
                wait = Wait::new(&self.pager.clock, Patience::Reclaim);
            }
            done += stored;
        }
        if done >= wanted {
            return Ok(());
        }
        Err(RequestError::Partly(done, wanted))
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), CommandError> {
        self.have_managed();
        self.set_engine_time();
        let Action::Evict { pages } = command.action else {
            return self.pager.resident().command(command, &mut Vec::new());
        };
        let mut left = pages;
        while left > 0 {
            let mut victims = Vec::with_capacity(BATCH_MAX);
            let batch = Command { action: Action::Evict { pages: left }, ..*command };
            self.pager.resident().command(&batch, &mut victims)?;
            let taken = victims.len();
            let moved = self.deactivate_isolated(&victims);
            let evicted = self.evict(moved);
            self.discard_pending(1);
            if taken == 0 || evicted == 0 {
                break;
            }
            left = left.saturating_sub(evicted as u64);
        }
        Ok(())
    }

    /// Starts managing areas, and waits for the first managed page. Far below the limit no area is
    /// managed, so nothing can be aged or evicted.
    fn have_managed(&self) {
        if !self.pager.run.begin_managing() {
            return;
        }
        self.pager.run.monitor.raise();
        let wait = Wait::new(&self.pager.clock, Patience::Adoption);
        while self.pager.resident().evictable() == 0 && !wait.is_over(&self.pager.clock) {
            self.pager.host.sleep(Duration::from_millis(1));
        }
    }
}

/// Explains the error of the last command that ran.
fn explain(text: &str, error: CommandError, ran: Option<Command>) -> RequestError {
    match (error, ran) {
        (CommandError::Invalid, Some(command)) => RequestError::NoGeneration(command),
        (CommandError::Invalid, None) => RequestError::NoCommand(text.into()),
        (error, _) => RequestError::Command(error),
    }
}

/// Returns which generations a command takes.
fn rule(command: &Command) -> &'static str {
    match command.action {
        Action::Evict { .. } => "older than the two youngest",
        _ => "that exists",
    }
}
