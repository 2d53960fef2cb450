//! Scales a scenario to a machine of another size.
//!
//! Memory, the part of it that is taken, and swap grow together. The memory of a workload is a
//! share of the machine and grows too. All times grow by the same factor, because more memory takes
//! longer to go through. CPUs, tasks, latencies, processor time of an operation and the size of one
//! read or write stay. They stay on a larger real machine too, and where a scenario scales a
//! machine down.

use super::{Scenario, ScenarioError, ScenarioFault};

/// Number of frames by which a DMA zone grows: its size is a multiple of this.
const BLOCK: u32 = 1024;

impl Scenario {
    /// Returns the scenario on a machine `factor` times as large.
    ///
    /// # Errors
    /// Fails if no such machine is possible, or if a workload replays a trace.
    pub fn at_size(&self, factor: f64) -> Result<Self, ScenarioError> {
        let mut s = self.clone();
        let more = |n: u32| (f64::from(n) * factor).round() as u32;
        let many = |n: u64| ((n as f64 * factor).round() as u64).max(1);
        let m = &mut s.machine;
        m.frames = more(m.frames);
        m.reserved = more(m.reserved);
        if m.dma > 0 {
            m.dma = (more(m.dma) / BLOCK).max(1) * BLOCK;
            m.dma_free = m.dma_free.map(many);
        }
        for device in [&mut m.swap, &mut m.disk].into_iter().flatten() {
            device.pages = device.pages.map(|n| if n == 0 { 0 } else { many(n) });
        }
        if let Some(slab) = &mut m.slab {
            slab.objects = many(slab.objects);
        }
        s.measure.seconds *= factor;
        for w in &mut s.workload {
            if let Some(w) = &mut w.sysbench {
                (w.warm, w.ops) = (more(w.warm), more(w.ops));
            }
            if let Some(w) = &mut w.simoop {
                (w.hold_us, w.rest_us) = (more(w.hold_us), more(w.rest_us));
            }
            if let Some(w) = &mut w.mix {
                (w.rest_us, w.warm_us) = (more(w.rest_us), more(w.warm_us));
                w.pause_us = more(w.pause_us);
            }
            if let Some(w) = &mut w.launch {
                (w.service_us, w.rest_us) = (more(w.service_us), more(w.rest_us));
            }
            if let Some(w) = &mut w.allocation {
                w.batch = many(w.batch as u64) as usize;
            }
        }
        let wrong = |what| ScenarioError::Wrong { file: format!("{factor} times its size"), what };
        if let Some(w) = s.workload.iter().find(|w| w.trace.is_some()) {
            return Err(wrong(ScenarioFault::TraceSize(w.name.clone())));
        }
        s.check().map_err(wrong)?;
        Ok(s)
    }
}

#[cfg(test)]
mod tests {
    use crate::scenario::{BUILTIN, Scenario, find};

    #[test]
    fn every_case_of_every_file_is_there_at_half_and_at_twice_its_size() {
        for b in BUILTIN {
            let file = Scenario::parse(b.name, b.text).unwrap();
            for case in &file.case {
                let s = Scenario::with(b.text, &case.set).unwrap();
                for factor in [0.5, 2.0] {
                    let sized = s.at_size(factor).unwrap_or_else(|e| panic!("{}: {e}", b.name));
                    let wanted = f64::from(s.machine.frames) * factor;
                    assert!((f64::from(sized.machine.frames) - wanted).abs() <= 1.0);
                }
            }
        }
    }

    #[test]
    fn times_and_amounts_in_pages_grow_with_memory() {
        let s = |name: &str| Scenario::parse(name, find(name).unwrap().text).unwrap();
        let (one, two) = (s("kswapd-butt-2019"), s("kswapd-butt-2019").at_size(2.0).unwrap());
        assert_eq!((one.machine.dma, two.machine.dma), (4096, 8192));
        assert_eq!((one.machine.dma_free, two.machine.dma_free), (Some(15), Some(30)));
        assert_eq!((one.measure.seconds, two.measure.seconds), (40.0, 80.0));
        let rest = |s: &Scenario| s.workload[0].simoop.as_ref().unwrap().rest_us;
        assert_eq!((rest(&one), rest(&two)), (200_000, 400_000));
        let swap = |s: &Scenario| s.machine.swap.as_ref().unwrap().pages;
        let half = s("memcached").at_size(0.5).unwrap();
        assert_eq!((swap(&s("memcached")), swap(&half)), (Some(33466), Some(16733)));
    }
}
