//! For tests: a small machine, and a program that does what it is told.

use ebb_core::frame::{Config, ZoneKind, ZoneSpec};
use ebb_core::tunables::Tunables;

use super::mem::Mem;
use super::outflow::Outflow;
use super::sched::Machine;
use super::{Costs, Device, DeviceSpec, Preset};
use crate::workload::{Program, Step};

/// Does what it is told, then ends.
pub struct Told(pub Vec<Vec<Step>>);

impl Program for Told {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        steps.extend(self.0.pop().unwrap_or_default());
    }
}

/// Two processors, 4096 frames, one memcg and one space without pages.
pub fn machine() -> Machine {
    let zone = ZoneSpec::new(ZoneKind::Normal, 0..4096);
    let frames = Config::node(&[ZoneKind::Normal], vec![zone], 2).faithful().build().unwrap();
    let costs = Costs::default();
    let out = Outflow::new(frames, 4096, None, &costs);
    let disk = Device::new(&DeviceSpec::preset(Preset::Nvme));
    let mut mem = Mem::new(out, disk, Tunables::default(), costs, 1);
    mem.add_memcg(1 << 20);
    mem.add_space(0, &[]);
    Machine::new(mem, 2)
}
