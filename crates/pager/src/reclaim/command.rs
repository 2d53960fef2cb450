//! The commands of `ebb lru-gen`: ageing, and reclaim on command.
//!
//! Part of the kswapd thread. A command that evicts has its pages moved out of sight, and then as many of
//! the coolest stored: those that were cool before go first.

use super::Reclaim;
use crate::lru_gen::{DONE, REFUSED};
use crate::patience::{Patience, Wait};
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::observe::lru_gen::{Action, Command, CommandError, run_all};
use ebb_mm::types::PAGE_SIZE;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

impl Reclaim {
    /// Carries out what was asked for since the last time.
    pub fn serve_requests(&mut self) {
        for (text, line) in self.pager.requests.take() {
            if let Some(bytes) = text.strip_prefix("reclaim=") {
                let answer = self.reclaim_bytes(bytes);
                let _ = line.say(answer.as_bytes());
                continue;
            }
            let mut last = None;
            let done = run_all(&text, |command| {
                last = Some(command);
                self.carry_out(&command)
            });
            let answer = match done {
                Ok(()) => DONE.to_owned(),
                Err(error) => format!("{REFUSED}{}", explain(&text, error, last)),
            };
            // Who asked may have left.
            let _ = line.say(answer.as_bytes());
        }
    }

    /// So many bytes leave at once, as many as can. What to answer.
    fn reclaim_bytes(&mut self, bytes: &str) -> String {
        let Ok(bytes) = bytes.parse::<u64>() else {
            return format!("{REFUSED}'{bytes}' is no number of bytes");
        };
        self.have_managed();
        let (wanted, mut done) = (bytes.div_ceil(PAGE_SIZE as u64), 0);
        // Where all is young the first pass only ages.
        let mut wait = Wait::new(&self.pager.clock, Patience::Reclaim);
        while done < wanted && !wait.is_over(&self.pager.clock) {
            let most = (wanted - done).min(BATCH_MAX as u64) as usize;
            let cooled = self.cool(most);
            let stored = self.evict(most) as u64;
            self.drop_retired(1);
            if cooled == 0 && stored == 0 {
                self.pager.host.sleep(Duration::from_millis(1));
            } else {
                wait = Wait::new(&self.pager.clock, Patience::Reclaim);
            }
            done += stored;
        }
        if done >= wanted {
            return DONE.to_owned();
        }
        let mib = |pages: u64| pages as f64 / 256.0;
        format!("{REFUSED}{:.1} MiB of {:.1} could be reclaimed", mib(done), mib(wanted))
    }

    fn carry_out(&mut self, command: &Command) -> Result<(), CommandError> {
        self.have_managed();
        self.tell_time();
        let Action::Evict { pages } = command.action else {
            return self.pager.resident().command(command, &mut Vec::new());
        };
        let mut left = pages;
        while left > 0 {
            let mut victims = Vec::with_capacity(BATCH_MAX);
            let batch = Command { action: Action::Evict { pages: left }, ..*command };
            self.pager.resident().command(&batch, &mut victims)?;
            let taken = victims.len();
            let cooled = self.cool_isolated(&victims);
            let evicted = self.evict(cooled);
            self.drop_retired(1);
            if taken == 0 || evicted == 0 {
                break;
            }
            left = left.saturating_sub(evicted as u64);
        }
        Ok(())
    }

    /// Far below the limit nothing is managed yet, and there is nothing to age or to evict.
    fn have_managed(&self) {
        if self.pager.managing.swap(true, SeqCst) {
            return;
        }
        self.pager.small.store(true, SeqCst);
        self.pager.monitor.raise();
        let wait = Wait::new(&self.pager.clock, Patience::Adoption);
        while self.pager.resident().evictable() == 0 && !wait.is_over(&self.pager.clock) {
            self.pager.host.sleep(Duration::from_millis(1));
        }
    }
}

/// What was wrong with the last command that was looked at.
fn explain(text: &str, error: CommandError, ran: Option<Command>) -> String {
    match (error, ran) {
        (CommandError::Invalid, Some(Command { memcg, node, seq, action, .. })) => {
            let old = matches!(action, Action::Evict { .. });
            let rule = if old { "not among the two youngest" } else { "one there is" };
            format!(
                "memcg {memcg}, node {node}, generation {seq}: memcg and node must be those that \
                 `ebb lru-gen PID` shows, and the generation {rule}"
            )
        }
        (CommandError::Invalid, None) => format!(
            "'{text}' is no command; write '+ MEMCG NODE GENERATION [SWAPPINESS [FORCE]]' or '- MEMCG \
             NODE GENERATION [SWAPPINESS [PAGES]]'"
        ),
        (error, _) => error.to_string(),
    }
}
