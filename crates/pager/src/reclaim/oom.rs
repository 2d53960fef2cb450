//! Out of memory: nothing can be reclaimed, and the run ends with a message that says why.

use super::Reclaim;
use crate::seam::Process;
use ebb_store::StoreError;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

/// How many processes are listed when memory runs out.
const LISTED_MAX: usize = 16;

impl Reclaim {
    /// Nothing can be reclaimed and threads wait: the run ends as by the OOM killer.
    pub fn give_up(&mut self) {
        let (limit, used) = {
            let resident = self.pager.resident();
            (resident.zone.limit(), resident.zone.used())
        };
        let mib = |pages: u64| pages as f64 / 256.0;
        let why = match self.store_error.take() {
            Some(error) => format!("the store takes no more: {}", self.explain_store(&error)),
            None => format!(
                "{:.1} MiB are in areas that are locked or not writable, {:.1} MiB are pinned or \
                 shared, the rest is not under management",
                mib(self.fixed),
                mib(self.busy)
            ),
        };
        self.pager.say(&format!(
            "out of memory: the limit is {:.1} MiB, the demand {:.1} MiB, and nothing more can be \
             stored ({why}). Raise --memory-max, or give --swap more room (for example --swap \
             ram,file:4G). The program is killed.",
            mib(limit),
            mib(used + u64::from(self.pager.starving.load(Relaxed))),
        ));
        for kind in self.pager.unmanaged.list() {
            self.pager.say(&format!("not managed: {}", kind.text()));
        }
        let processes = self.processes();
        if processes.len() > 1 {
            processes.iter().for_each(|line| self.pager.say(line));
        }
        self.pager.kill_tree();
    }

    /// What the store said, with the path of the tier that said it.
    fn explain_store(&self, error: &StoreError) -> String {
        let tiers = self.pager.store.stats().tiers;
        let of_path = |path: Option<PathBuf>| path.unwrap_or_default().display().to_string();
        let at = match error {
            StoreError::Write { tier, source, .. } => {
                let of = tiers.into_iter().find(|of| of.name == *tier && of.path.is_some());
                of.map(|of| {
                    format!("writing to tier {tier} in {} failed: {source}", of_path(of.path))
                })
            }
            StoreError::Full => {
                let of = tiers.into_iter().find(|of| of.disk_full);
                of.map(|of| {
                    let (name, path) = (of.name, of_path(of.path));
                    format!("tier {name}: no space left on the file system of {path}")
                })
            }
            _ => None,
        };
        at.unwrap_or_else(|| error.to_string())
    }

    /// Pages in use would have to go for others in use, and the user said (`gen.min_ttl_ms`) that the run
    /// is better ended than slowed down by that.
    pub fn prevent_thrashing(&self) {
        let (limit, ttl) = (self.pager.config.memory_max_bytes, self.pager.config.tunables());
        let ttl = ttl.map_or(0, |tunables| tunables.min_ttl_ms);
        self.pager.say(&format!(
            "thrashing: what the program used in the last {ttl} ms does not fit in {:.1} MiB. Raise \
             --memory-max, or leave gen.min_ttl_ms out to have it run slowly. The program is killed.",
            limit as f64 / 1048576.0
        ));
        self.pager.kill_tree();
    }

    /// Who holds the memory, a line each, as the kernel's OOM killer lists it.
    fn processes(&self) -> Vec<String> {
        let mib = |pages: u64| pages as f64 / 256.0;
        let mut lines: Vec<(u64, String)> = (self.pager.mms().iter())
            .map(|mm| {
                let pid = mm.pid();
                let resident = mm.process().and_then(|process| process.anonymous_pages().ok());
                let resident = resident.unwrap_or(0);
                let managed = u64::try_from(mm.known.load(Relaxed)).unwrap_or(0);
                let agent = match mm.link.get() {
                    None if mm.is_infant() => "has not joined yet",
                    None => "never joined",
                    Some(link) if !link.is_ready() => "does not run yet",
                    Some(_) if self.is_stalled(mm.id) => "is in the middle of a batch",
                    Some(_) if mm.is_silent() => "does not answer",
                    Some(_) => "answers",
                };
                let text = format!(
                    "process {pid} ({}): {:.1} MiB resident, {:.1} MiB of it managed, {:.1} MiB \
                     shared with relatives; its agent {agent}",
                    mm.process().map_or_else(|| "?".to_owned(), Process::name),
                    mib(resident),
                    mib(managed),
                    mib(mm.discount.load(Relaxed)),
                );
                (resident, text)
            })
            .collect();
        lines.sort_by(|a, b| b.cmp(a));
        lines.into_iter().map(|(_, text)| text).take(LISTED_MAX).collect()
    }
}
