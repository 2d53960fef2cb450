//! Maintenance outside the hot paths: drains, the tick of each second, kswapd's flags, consistency
//! checks.

use super::contradiction::Contradiction;
use super::counter::ZoneItem;
use super::frames::{CpuSets, Frames, SCRATCH};
use super::kinds::{Migratetype, ORDERS};
use super::pcp::Pcp;
use super::state::RECLAIM_ACTIVE;
use super::sync::Relaxed;

/// Most pages drained per hold of a CPU's lock when all sets are emptied.
const DRAIN_CHUNK: u32 = 2016;

impl Frames {
    /// Empties the sets of one CPU completely, even while another thread uses them.
    pub fn drain_cpu(&self, cpu: usize) {
        let sets = &self.cpus[cpu % self.cpus.len()];
        for zone in 0..self.zones.len() {
            loop {
                sets.gate.lock.enter_remote(self.fence.as_deref());
                self.drain_pages(sets, zone, 0, DRAIN_CHUNK);
                let left = sets.sets[zone].count();
                sets.gate.lock.leave_stopped();
                if left == 0 {
                    break;
                }
            }
        }
    }

    /// Empties the sets of all CPUs that hold pages.
    pub fn drain_all(&self) {
        for (cpu, sets) in self.cpus.iter().enumerate() {
            if sets.sets.iter().any(|set| set.count() > 0) {
                self.drain_cpu(cpu);
            }
        }
    }

    /// Does the work of each second: folds counters, shrinks sets, drains idle sets of remote
    /// nodes.
    pub fn tick(&self) {
        for (cpu, sets) in self.cpus.iter().enumerate() {
            for (index, zone) in self.zones.iter().enumerate() {
                zone.state.counters.fold(cpu);
                zone.state.judge();
                let set = &sets.sets[index];
                sets.gate.lock.enter_remote(self.fence.as_deref());
                let mut pages = set.decay();
                if zone.state.node != sets.node && set.expire_tick() {
                    pages = set.count();
                }
                if pages > 0 {
                    self.drain_pages(sets, index, 0, pages);
                }
                sets.gate.lock.leave_stopped();
            }
        }
    }

    /// Returns the pages of one zone in the sets of all CPUs.
    #[must_use]
    pub fn pages_in_sets(&self, zone: usize) -> u64 {
        (0..self.cpus.len()).map(|cpu| self.pages_in_set(cpu, zone)).sum()
    }

    /// Returns the pages of one zone in the set of one CPU.
    #[must_use]
    pub fn pages_in_set(&self, cpu: usize, zone: usize) -> u64 {
        u64::from(self.cpus[cpu].sets[zone].count())
    }

    /// Records whether kswapd is balancing the zones of `node` up to class `highest`.
    pub fn set_reclaim_active(&self, node: usize, highest: usize, active: bool) {
        for zone in self.zones.iter().filter(|z| z.state.node == node && z.state.class <= highest) {
            if active {
                zone.state.set_flag(RECLAIM_ACTIVE);
            } else {
                zone.state.clear_flag(RECLAIM_ACTIVE);
            }
        }
    }

    /// Makes the counters of `node` more exact while kswapd is awake, and cheaper while it sleeps.
    pub fn set_counter_pressure(&self, node: usize, awake: bool) {
        for zone in self.zones.iter().filter(|z| z.state.node == node) {
            let state = &zone.state;
            if state.drift_mark.is_some() {
                let threshold =
                    if awake { state.threshold_pressure } else { state.threshold_normal };
                state.counters.set_threshold(threshold);
            }
        }
    }

    /// Returns the bytes of all metadata.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        let stores: usize = self.zones.iter().map(|z| z.store.bytes()).sum();
        let set = |cpu: &CpuSets| cpu.sets.iter().map(Pcp::bytes).sum::<usize>() + SCRATCH * 4;
        let sets: usize = self.cpus.iter().map(set).sum();
        let table = self.table.as_ref().map_or(0, |t| t.bytes());
        stores + sets + table + self.blocks.bytes()
    }

    /// Compares every store with itself and with the counters. Call this only at quiescence.
    pub fn check(&self) -> Result<(), Contradiction> {
        for zone in &self.zones {
            zone.store.check(&zone.state)?;
            let counts = zone.store.counts();
            let sum = |keep: fn(Migratetype) -> bool, least: usize| -> u64 {
                let kept = |t: &&Migratetype| keep(**t);
                let of = |t: &Migratetype| -> u64 {
                    (least..ORDERS).map(|o| counts[o][t.index()] << o).sum()
                };
                Migratetype::ALL.iter().filter(kept).map(of).sum()
            };
            let expect = [
                (ZoneItem::FreePages, sum(|t| t != Migratetype::Isolate, 0)),
                (ZoneItem::FreePagesBlocks, sum(|t| t != Migratetype::Isolate, 9)),
                (ZoneItem::FreeCma, sum(|t| t == Migratetype::Cma, 0)),
            ];
            for (item, pages) in expect {
                let counted = zone.state.counters.snapshot(item);
                if counted != pages {
                    return Err(Contradiction::Counter(item, counted, pages));
                }
            }
            let reserve = zone.state.free_highatomic.load(Relaxed);
            if reserve != sum(|t| t == Migratetype::HighAtomic, 0) as i64 {
                return Err(Contradiction::HighAtomic(reserve));
            }
        }
        Ok(())
    }
}
