//! A mapped file that many processes keep hot, and a process that fills anonymous memory and frees
//! it in rounds. This is the reproducer of the out-of-memory kills of "mm/mglru: improve reclaim
//! loop and dirty folio handling" (K. Song, March 2026).
//!
//! Each reader maps all of the file and goes through it in strides. Each begins at another page, so
//! that all together touch every page. Then the reader rests. The fillers are threads of one
//! process. Each touches its part of the memory. When all have done so, the first one frees all of
//! it.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::keys::about;
use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::value::ValueError;
use ebb_mm::random::Random;

/// Parameters of the readers and the fillers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Processes that read the file.
    pub readers: u32,
    /// Size of the file, as a multiple of memory.
    pub file: f64,
    /// Distance between two pages that a reader accesses in turn, in pages.
    #[serde(default = "stride")]
    pub stride: u32,
    /// Pause of a reader after it went through the file, in microseconds.
    pub rest_us: u32,
    /// Threads that fill anonymous memory.
    pub fillers: u32,
    /// Memory that the fillers fill together, as a multiple of memory.
    pub anon: f64,
    /// Time at the start in which only the readers run, in microseconds.
    pub warm_us: u32,
    /// Rounds of filling and freeing.
    pub rounds: u32,
    /// Pause of the fillers after a round, in microseconds.
    pub pause_us: u32,
}

fn stride() -> u32 {
    64
}

impl Mix {
    /// Checks the values.
    ///
    /// # Errors
    /// There are no readers, fillers or rounds, or the stride is 0. There are more fillers than can
    /// wait for each other.
    pub(crate) fn check(&self) -> Result<(), ValueError> {
        ValueError::of_zero(&[
            ("readers", self.readers),
            ("stride", self.stride),
            ("fillers", self.fillers),
            ("rounds", self.rounds),
        ])?;
        if self.fillers > u32::from(u16::MAX) {
            return Err(ValueError::Count("fillers", self.fillers.into(), "65535 at most"));
        }
        Ok(())
    }

    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let region = |pages, backing, processes| Region {
            pages,
            backing,
            recency: true,
            exec: false,
            processes,
        };
        let file = place.pages(self.file);
        let files = plan.space(place.memcg, vec![region(file, Backing::File, self.readers)]);
        for reader in 0..u64::from(self.readers) {
            let first = reader % u64::from(self.stride);
            let random = Random(place.seed_of(0, reader));
            let reader =
                Reader { spec: self.clone(), space: files, pages: file, first, at: first, random };
            plan.thread(Box::new(reader), files, false);
        }
        let part = (place.pages(self.anon) / u64::from(self.fillers)).max(1);
        let all = part * u64::from(self.fillers);
        let space = plan.space(place.memcg, vec![region(all, Backing::Anon, 1)]);
        let group = plan.group();
        for filler in 0..u64::from(self.fillers) {
            let (from, to) = (filler * part, (filler + 1) * part);
            let spec = self.clone();
            let filler = Filler {
                spec,
                space,
                group,
                all,
                part: (from, to),
                at: from,
                round: 0,
                warm: true,
            };
            plan.thread(Box::new(filler), space, place.measured);
        }
    }
}

/// Number of pages touched in one call of `fill`.
const BATCH: u64 = 256;

struct Reader {
    spec: Mix,
    space: u16,
    pages: u64,
    first: u64,
    at: u64,
    random: Random,
}

impl Program for Reader {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        for _ in 0..BATCH {
            if self.at >= self.pages {
                self.at = self.first;
                // The time varies by half, as the times of other workloads do.
                steps.push(Step::Sleep(
                    1000 * u64::from(about(&mut self.random, self.spec.rest_us)),
                ));
                return;
            }
            let (page, space) = (self.at as u32, self.space);
            steps.push(Step::Touch { page, space, access: Access::Read });
            self.at += u64::from(self.spec.stride);
        }
    }
}

struct Filler {
    spec: Mix,
    space: u16,
    group: u16,
    /// Pages of all fillers together.
    all: u64,
    /// First page and end of the filler's own part.
    part: (u64, u64),
    at: u64,
    round: u32,
    /// Whether the filler has still to wait for the readers.
    warm: bool,
}

impl Program for Filler {
    fn group(&self) -> Option<u16> {
        Some(self.group)
    }

    fn fill(&mut self, steps: &mut Vec<Step>) {
        let space = self.space;
        if std::mem::take(&mut self.warm) {
            steps.extend([Step::Sleep(1000 * u64::from(self.spec.warm_us)), Step::Start]);
        } else if self.round == self.spec.rounds {
            return;
        }
        let until = self.part.1.min(self.at + BATCH);
        let touch = |page: u64| Step::Touch { page: page as u32, space, access: Access::Write };
        steps.extend((self.at..until).map(touch));
        self.at = until;
        if until < self.part.1 {
            return;
        }
        let barrier = Step::Barrier { group: self.group, parties: self.spec.fillers as u16 };
        steps.extend([Step::Done(0), barrier]);
        if self.part.0 == 0 {
            steps.push(Step::Free { space, page: 0, pages: self.all as u32 });
            steps.push(Step::Sleep(1000 * u64::from(self.spec.pause_us)));
        }
        steps.push(barrier);
        self.at = self.part.0;
        self.round += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Mix {
        let text = "readers = 4\nfile = 0.3\nstride = 4\nrest_us = 5\nfillers = 3\nanon = 0.9\n\
                    warm_us = 7\nrounds = 2\npause_us = 9";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn readers_touch_every_page_together_and_fillers_give_back_what_they_filled() {
        let mut plan = Plan::default();
        spec().plan(&mut plan, &Setting { memcg: 0, memory: 3000, seed: 1, measured: true });
        let [readers, fillers] = [0..4, 4..7].map(|of| of.collect::<Vec<usize>>());
        let mut touched = vec![0; 900];
        for i in readers {
            let mut steps = Vec::new();
            plan.threads[i].program.fill(&mut steps);
            assert!(matches!(steps.pop(), Some(Step::Sleep(2000..=6000))));
            for step in steps {
                let Step::Touch { page, access: Access::Read, .. } = step else {
                    panic!("{step:?}")
                };
                touched[page as usize] += 1;
            }
            assert!(!plan.threads[i].measured);
        }
        assert!(touched.iter().all(|&n| n == 1));
        for i in fillers {
            let mut steps = Vec::new();
            loop {
                let before = steps.len();
                plan.threads[i].program.fill(&mut steps);
                if steps.len() == before {
                    break;
                }
            }
            let count = |what: &dyn Fn(&Step) -> bool| steps.iter().filter(|s| what(s)).count();
            assert_eq!(&steps[..2], &[Step::Sleep(7000), Step::Start]);
            assert_eq!(count(&|s| matches!(s, Step::Touch { .. })), 2 * 900);
            assert_eq!(count(&|s| matches!(s, Step::Barrier { parties: 3, .. })), 4);
            let freed = count(&|s| matches!(s, Step::Free { page: 0, pages: 2700, .. }));
            assert_eq!(freed, if i == 4 { 2 } else { 0 });
        }
    }

    #[test]
    fn counts_of_zero_and_too_large_ones_are_refused() {
        assert_eq!(spec().check(), Ok(()));
        for (wrong, what) in [
            (Mix { readers: 0, ..spec() }, "readers = 0: expected 1 or more"),
            (Mix { stride: 0, ..spec() }, "stride = 0: expected 1 or more"),
            (Mix { fillers: 0, ..spec() }, "fillers = 0: expected 1 or more"),
            (Mix { rounds: 0, ..spec() }, "rounds = 0: expected 1 or more"),
            (Mix { fillers: 65536, ..spec() }, "fillers = 65536: expected 65535 at most"),
        ] {
            assert_eq!(wrong.check().unwrap_err().to_string(), what);
        }
    }
}
