//! For tests: a small machine, and a program with given steps.

use ebb_linux::frame::{Config, ZoneKind, ZoneSpec};
use ebb_mm::tunables::Tunables;

use super::mem::Mem;
use super::outflow::Outflow;
use super::sched::Machine;
use super::{Costs, Device, DeviceSpec, Preset};
use crate::workload::{Program, Step};

/// A program that does the given steps, the last list first, then ends.
pub struct Scripted(pub Vec<Vec<Step>>);

impl Program for Scripted {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        steps.extend(self.0.pop().unwrap_or_default());
    }
}

/// Creates a machine of two processors, 4096 frames, one memcg and one space without pages.
pub fn machine() -> Machine {
    machine_of(1, Tunables::default())
}

/// Creates a [`machine`] with half of frames and processors on each of two nodes, and classic
/// lists.
pub fn two_nodes() -> Machine {
    machine_of(2, Tunables::preset("classic").unwrap())
}

fn machine_of(nodes: u32, tun: Tunables) -> Machine {
    let each = 4096 / nodes;
    let zone = |n| ZoneSpec::new(ZoneKind::Normal, n * each..(n + 1) * each);
    let mut config = Config::node(&[ZoneKind::Normal], vec![zone(0)], 2).faithful();
    config.nodes.extend((1..nodes).map(|n| vec![zone(n)]));
    config.cpus = vec![0, nodes as usize - 1];
    let costs = Costs::default();
    let out = Outflow::new(config.build().unwrap(), 4096, None, &costs);
    let disk = Device::new(&DeviceSpec::preset(Preset::Nvme));
    let mut mem = Mem::new(out, disk, tun, costs, 1);
    mem.add_memcg(1 << 20);
    mem.add_space(0, &[]);
    Machine::new(mem, 2)
}
