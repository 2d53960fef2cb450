//! Measuring: its beginning, samples of the machine on the way, and the outcome of a run.

use ebb_mm::folio::LruType;

use super::outcome::{Outcome, Sample};
use super::sched::{Event, Machine, SAMPLES_MAX};

/// Numbers of pages dirty and being written, each summed over time.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Standing {
    since_ns: u64,
    sums: [f64; 2],
    last: [u64; 2],
}

impl Standing {
    /// Sets the numbers of pages from now on.
    #[inline]
    pub(super) fn note(&mut self, now: u64, pages: [u64; 2]) {
        if pages != self.last {
            self.settle(now);
            self.last = pages;
        }
    }

    fn settle(&mut self, now: u64) {
        let ns = now.saturating_sub(self.since_ns) as f64;
        self.since_ns = self.since_ns.max(now);
        for (sum, pages) in self.sums.iter_mut().zip(self.last) {
            *sum += pages as f64 * ns;
        }
    }

    fn begin(&mut self, now: u64) {
        self.settle(now);
        self.sums = [0.0; 2];
    }

    /// Returns the mean of each number over `elapsed_ns`.
    fn mean(mut self, now: u64, elapsed_ns: u64) -> [f64; 2] {
        self.settle(now);
        self.sums.map(|sum| sum / elapsed_ns.max(1) as f64)
    }
}

/// Returns Jain's index of fairness: the square of the sum, divided by the number and by the sum of
/// the squares. It is 1 if all are equal, and one by the number of them if one has everything.
fn fairness(of: impl Iterator<Item = u64>) -> f64 {
    let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
    for x in of.map(|x| x as f64) {
        n += 1.0;
        sum += x;
        squares += x * x;
    }
    if squares > 0.0 { sum * sum / (n * squares) } else { 1.0 }
}

impl Machine {
    /// Begins measuring when the last measured thread that lives has come to the start.
    pub(super) fn begin_if_all_here(&mut self, t: u64) {
        let here = self.starting.iter().filter(|&&id| self.threads[id].measured).count();
        if self.begun_ns.is_some() || here + self.ended < self.measured {
            return;
        }
        self.begun_ns = Some(t);
        self.before = self.snapshot();
        self.mark(t, "measuring begins");
        self.standing.begin(t);
        self.outcome.ops = 0;
        self.outcome.touches = 0;
        for thread in std::mem::take(&mut self.starting) {
            self.threads[thread].op_start_ns = t;
            self.schedule(t, Event::Wake(thread));
        }
        if self.sample_ns > 0 {
            let lengths = (0..self.mem.list.len()).map(|space| self.mem.pages_of(space));
            self.outcome.trace.begin();
            self.mem.out.heat = Some(Box::new(super::heat::Heat::new(lengths)));
            self.schedule(t, Event::Sample);
        }
        self.begin_commands(t);
        if self.limit_ns > 0 {
            self.schedule(t + self.limit_ns, Event::Stop);
        }
    }

    pub(super) fn snapshot(&self) -> Outcome {
        let counters = ebb_mm::observe::vmstat::Event::ALL;
        let (moved, requests) =
            self.mem.out.swap.as_ref().map_or(([0; 2], [0; 2]), |d| (d.moved, d.requests));
        Outcome {
            counters: counters.iter().map(|&e| (e.name(), self.mem.stat.get(e))).collect(),
            spent: self.mem.spent,
            kswapd: self.kswapd_stats(),
            moved: [moved, self.mem.disk.moved],
            requests: [requests, self.mem.disk.requests],
            ..Outcome::default()
        }
    }

    pub(super) fn sample(&mut self) {
        use ebb_mm::folio::LruType;
        let Some(begun) = self.begun_ns else { return };
        let spent = self.mem.spent;
        let count = |e| self.mem.stat.get(e);
        let refault = [
            ebb_mm::observe::vmstat::Event::WorkingsetRefaultAnon,
            ebb_mm::observe::vmstat::Event::WorkingsetRefaultFile,
        ];
        let g = self.mem.memcgs[0].on[0].lruvec.generations();
        let first = g.min_seq(LruType::Anon).min(g.min_seq(LruType::File));
        let generations = (first..=g.max_seq()).map(|seq| {
            let age = (self.now / 1_000_000).saturating_sub(g.born_ms(seq));
            (seq, age, g.pages(seq, LruType::Anon), g.pages(seq, LruType::File))
        });
        let sample = Sample {
            time_ns: self.now - begun,
            ops: self.outcome.ops,
            refaults: refault.map(count),
            reclaim_ns: [spent.direct_ns, spent.kswapd_ns],
            free: self.mem.free_pages(),
            tiers: std::array::from_fn(|tier| g.tiers().refaults(LruType::File, tier)),
            generations: generations.collect(),
            heat: self.mem.out.heat.as_mut().map(|h| h.take()).unwrap_or_default(),
        };
        self.outcome.samples.push(sample);
        if self.outcome.samples.len() >= SAMPLES_MAX {
            self.thin_out();
        }
        self.schedule(self.now + self.sample_ns, Event::Sample);
    }

    /// Merges the samples in pairs, and doubles the interval between samples.
    pub(super) fn thin_out(&mut self) {
        let samples = std::mem::take(&mut self.outcome.samples);
        let mut pairs = samples.into_iter();
        while let Some(first) = pairs.next() {
            let Some(mut second) = pairs.next() else {
                self.outcome.samples.push(first);
                break;
            };
            for (sum, row) in second.heat.iter_mut().zip(&first.heat) {
                sum.iter_mut().zip(row).for_each(|(s, n)| *s += n);
            }
            self.outcome.samples.push(second);
        }
        self.sample_ns *= 2;
    }

    pub(super) fn close(&mut self, now: u64) -> Outcome {
        let after = self.snapshot();
        let before = std::mem::take(&mut self.before);
        let mut out = std::mem::take(&mut self.outcome);
        out.elapsed_ns = now - self.begun_ns.unwrap_or(0);
        out.standing = self.standing.mean(now, out.elapsed_ns);
        for v in self.mem.lists(None).map(|l| &l.lruvec) {
            for (lists, ty) in out.lists.iter_mut().zip(LruType::ALL) {
                lists[0] += v.size(ty, false);
                lists[1] += v.size(ty, true);
            }
        }
        out.signs = self.signs(now);
        out.pressure = self.pressure.read(now, &self.names);
        out.fairness = fairness(self.threads.iter().filter(|t| t.measured).map(|t| t.ops));
        if out.full.0 == 0 {
            out.full = (out.touches, out.elapsed_ns);
        }
        let was = |name| before.counters.iter().find(|(n, _)| *n == name).map_or(0, |c| c.1);
        out.counters = after.counters.iter().map(|&(n, v)| (n, v - was(n))).collect();
        out.spent = after.spent.since(&before.spent);
        out.kswapd = after.kswapd.since(&before.kswapd);
        for (i, row) in after.moved.iter().enumerate() {
            out.moved[i] = [row[0] - before.moved[i][0], row[1] - before.moved[i][1]];
        }
        for (i, row) in after.requests.iter().enumerate() {
            let was = before.requests[i];
            out.requests[i] = [row[0] - was[0], row[1] - was[1]];
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_one_for_equals_and_a_share_for_one_who_has_all() {
        for (of, is) in [
            (vec![5, 5, 5, 5], 1.0),
            (vec![8, 0, 0, 0], 0.25),
            (vec![1, 3], 16.0 / 20.0),
            (vec![0, 0], 1.0),
        ] {
            assert!((fairness(of.iter().copied()) - is).abs() < 1e-12, "{of:?}");
        }
    }
}
