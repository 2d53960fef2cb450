//! Caches beside the page lists on the simulated machine: inodes, names of files.
//!
//! Every pass over the lists of the node looks through a share of the caches
//! ([`ebb_linux::reclaim::slab`]), and takes longer for it. Freed objects are made again at once.
//! So the number of objects is constant, and their memory is not counted.

use ebb_linux::reclaim::{Shrinker, SlabPass};
use ebb_mm::observe::vmstat::Event;
use schemars::JsonSchema;
use serde::Deserialize;

use super::mem::Mem;
use super::task::PassState;
use crate::value::ValueError;

/// Size of the slab caches, and the cost of a scan.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SlabSpec {
    /// Number of objects in the caches.
    pub objects: u64,
    /// Time to scan one object, in nanoseconds.
    #[serde(default = "object_ns")]
    pub object_ns: u64,
}

fn object_ns() -> u64 {
    100
}

impl SlabSpec {
    /// Returns the share of each of so many nodes.
    #[must_use]
    pub fn of_nodes(self, nodes: u64) -> Self {
        Self { objects: self.objects.div_ceil(nodes), ..self }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// There is no object, or there are more than any machine has, or they are slower to look at.
    pub fn check(&self) -> Result<(), ValueError> {
        if self.objects == 0 || self.objects > 1_000_000_000 {
            return Err(ValueError::Count("objects", self.objects, "1 to 1000000000"));
        }
        if self.object_ns > 1_000_000 {
            return Err(ValueError::Count("object_ns", self.object_ns, "1000000 at most"));
        }
        Ok(())
    }
}

/// The caches of a node at work.
#[derive(Debug)]
pub struct Slab {
    spec: SlabSpec,
    shrinker: Shrinker,
}

impl Slab {
    /// Creates the caches of a node.
    #[must_use]
    pub fn new(spec: SlabSpec) -> Self {
        Self { spec, shrinker: Shrinker::default() }
    }
}

impl Mem {
    /// Looks through a share of the node's caches after a pass over its lists. Returns the time
    /// that takes.
    pub(super) fn shrink_slab(&mut self, pass_state: &PassState) -> u64 {
        let (sc, node) = (&pass_state.sc, pass_state.node.0);
        let left: u64 = self.lists(Some(node)).map(|l| l.lruvec.eligible(sc.zone)).sum();
        let Some(slab) = self.nodes[node].slab.as_mut() else { return 0 };
        let eligible = left + pass_state.freed;
        let pass = SlabPass { scanned: sc.scanned, eligible, priority: sc.priority };
        let looked = slab.shrinker.take(self.tun.reclaim.slab, slab.spec.objects, &pass);
        self.stat.add(Event::SlabsScanned, looked);
        looked * slab.spec.object_ns
    }
}
