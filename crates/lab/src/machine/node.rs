//! A memory node of the simulated machine: requests to its kswapd, the throttle of its reclaimers,
//! and the order in which its memcgs are visited.
//!
//! The pages of a memcg lie on as many lists as there are nodes. A task takes frames from its own
//! node first, and from the others when that one is below its mark. If all nodes are, the task
//! wakes the kswapd of every node. kswapd reclaims from its own node, a task from its own first and
//! then from all others.
//! Invariants
//! * NODE-1: a page is on the lists of the node of its frame.

use std::cell::Cell;
use std::sync::Arc;

use ebb_linux::frame::{Host, Order, Zone, ZoneItem};
use ebb_linux::reclaim::{FramesNode, Throttle};
use ebb_linux::writeback::limits::dirtyable;
use ebb_mm::folio::LruType;
use ebb_mm::lru::r#gen::memcg_lru::MemcgLru;
use ebb_mm::lru::{Lruvec, Pagevec};
use ebb_mm::reclaim::WakeRequests;

use super::charge::LruLock;
use super::mem::{Mem, Memcg};
use super::slab::Slab;

/// The lists of a memcg on a node.
#[derive(Debug)]
pub struct Lists {
    /// Pages of the memcg on the node.
    pub lruvec: Arc<Lruvec>,
    /// Folios on their way to the lists.
    pub(super) pagevec: Pagevec,
    pub(super) lock: LruLock,
    /// Number of folios that wait in the batch.
    pub(super) added: u64,
}

impl Lists {
    pub(super) fn new(lruvec: Arc<Lruvec>) -> Self {
        Self { lruvec, pagevec: Pagevec::default(), lock: LruLock::default(), added: 0 }
    }
}

impl Memcg {
    /// Returns the memcg's pages of one type, on all nodes.
    pub(super) fn total(&self, ty: LruType) -> u64 {
        self.on.iter().map(|l| l.lruvec.total(ty)).sum()
    }
}

/// A memory node.
#[derive(Debug)]
pub struct MemNode {
    /// Requests to the node's kswapd.
    pub wake_requests: WakeRequests,
    /// Waits of the tasks that reclaim from the node.
    pub throttle: Throttle,
    /// Memcgs of the node, in the order in which reclaim visits them.
    pub(super) lru: MemcgLru,
    /// Caches beside the page lists, if there are any.
    pub slab: Option<Slab>,
    /// Highest zone for which the allocator asks kswapd; none if it does not ask.
    pub(super) wanted: Cell<Option<usize>>,
    /// Whether a task that waits for the node's kswapd has woken it from sleep.
    pub(super) woken: bool,
    /// Number of times that kswapd has let the waiting tasks go.
    pub(super) releases: u64,
    /// Pages off the node's lists, as pairs of end time and number (only if `reclaim.isolated`).
    pub(super) isolated: Vec<(u64, u64)>,
    /// Runs of kswapd since the classic LRU last noted the end of one.
    pub(super) runs: u64,
}

impl MemNode {
    /// Creates a node without memcgs. `seed` decides the order of the memcgs added to it.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            wake_requests: WakeRequests::new(),
            throttle: Throttle::default(),
            lru: MemcgLru::new(seed),
            slab: None,
            wanted: Cell::new(None),
            woken: false,
            releases: 0,
            isolated: Vec::new(),
            runs: 0,
        }
    }
}

/// Leaves the allocator's requests for kswapd with the nodes.
pub(super) struct Wake<'a> {
    pub nodes: &'a [MemNode],
    /// Nodes with more dirty pages than their share, a bit each.
    pub dirty: u64,
}

impl Host for Wake<'_> {
    fn wake_kswapd(&self, node: usize, _: Order, highest: usize) {
        let wanted = &self.nodes[node].wanted;
        wanted.set(wanted.get().max(Some(highest)));
    }

    fn over_dirty_limit(&self, node: usize) -> bool {
        self.dirty >> node & 1 != 0
    }
}

impl Mem {
    /// Returns the node of the running processor.
    pub(super) fn here(&self) -> usize {
        self.out.frames.cpu_node(self.out.cpu)
    }

    /// Returns a node as reclaim control sees it.
    pub(super) fn frames_of(&self, node: usize) -> FramesNode<'_> {
        FramesNode { frames: &self.out.frames, node }
    }

    /// Returns the nodes with more dirty pages than their share, a bit each, or 0 if the caller
    /// does not ask. Frames for pages that are about to be written come from other nodes
    /// (`node_dirty_ok`).
    pub(super) fn dirty_nodes(&self, asks: bool) -> u64 {
        let over = |&node: &usize| {
            let zones = self.out.frames.zones().iter().map(|z| z.state());
            let reserves = zones.filter(|z| z.node() == node).map(|z| z.marks().high).sum();
            let file = self.lists(Some(node)).map(|l| l.lruvec.total(LruType::File)).sum();
            let all = dirtyable(self.free_on(Some(node)), file, reserves);
            self.out.cache.unclean_on(node) > self.flusher.limits.thresholds(all, false).dirty
        };
        let nodes = if asks { self.nodes.len() } else { 0 };
        (0..nodes).filter(over).fold(0, |bits, node| bits | 1 << node)
    }

    /// Returns the lists of all memcgs on a node, or on all nodes.
    pub(super) fn lists(&self, node: Option<usize>) -> impl Iterator<Item = &Lists> {
        let on = move |l: &&Lists| node.is_none_or(|n| usize::from(l.lruvec.node()) == n);
        self.memcgs.iter().flat_map(|m| &m.on).filter(on)
    }

    /// Returns the number of frames on the free lists of a node, or of all nodes.
    pub(super) fn free_on(&self, node: Option<usize>) -> u64 {
        let free = |z: &Zone| z.state().counters().snapshot(ZoneItem::FreePages);
        let zones = self.out.frames.zones().iter();
        zones.filter(|z| node.is_none_or(|n| z.state().node() == n)).map(free).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use ebb_mm::lru::scan::DEF_PRIORITY;
    use ebb_mm::lru::{Reclaimer, Scan};
    use ebb_mm::space::Backing;
    use ebb_mm::types::Vpn;

    use super::super::ahead::Descriptors;
    use super::super::mem::{Access, Fault, Region};
    use super::super::task::PassState;
    use super::super::testing::two_nodes;
    use super::*;

    const FILE: Region =
        Region { pages: 0, backing: Backing::File, recency: true, exec: false, processes: 1 };

    /// Creates two nodes, and a space of so many pages of a kind. The first node's processor has
    /// touched all of them.
    fn touched(backing: Backing, pages: u64, access: Access) -> (Mem, usize) {
        let mut mem = two_nodes().mem;
        let space = mem.add_space(0, &[Region { pages, backing, ..FILE }]);
        let now = touch(&mut mem, space, 0..pages, access);
        mem.begin_reclaim(now);
        (mem, space)
    }

    /// Touches pages one after the other. Returns the time after that.
    fn touch(mem: &mut Mem, space: usize, pages: Range<u64>, access: Access) -> u64 {
        let mut now = 0;
        for page in pages {
            while !mem.touch(space, page, access, now) {
                now += match mem.fault(now, space, page, access, &mut Descriptors::default()) {
                    Fault::Wait { until_ns, .. } => until_ns - now,
                    other => other.cost_ns(),
                };
            }
        }
        now
    }

    fn on_lists(mem: &Mem) -> [u64; 2] {
        [0, 1].map(|n| mem.lists(Some(n)).map(|l| l.lruvec.eligible(0)).sum())
    }

    #[test]
    fn a_task_takes_from_its_own_node_first_and_pages_are_on_the_lists_of_theirs() {
        let (mut mem, space) = touched(Backing::Anon, 3000, Access::Write);
        let nodes = [0, 1].map(|n| {
            let on = |&vpn: &u64| {
                let pte = mem.list[space].tree().find(Vpn(vpn)).unwrap().get();
                usize::from(mem.folios.node(pte.pfn())) == n
            };
            (0..3000).filter(on).count() as u64
        });
        assert!(nodes[0] > 1900 && nodes[1] > 900, "{nodes:?}");
        assert_eq!(on_lists(&mem), nodes);
        assert!(mem.free_on(Some(0)) < mem.free_on(Some(1)));
        mem.check(0).unwrap();
    }

    #[test]
    fn kswapd_reclaims_from_its_own_node_and_a_task_from_all() {
        let (mut mem, _) = touched(Backing::File, 3000, Access::FdRead);
        let before = on_lists(&mem);
        let taken = |mem: &Mem| {
            let now = on_lists(mem);
            [0, 1].map(|n| before[n] - now[n])
        };
        let pass = |mem: &mut Mem, reclaimer, nodes| {
            let mut sc = Scan::new(reclaimer, true, 64, 60);
            sc.priority = DEF_PRIORITY - 8;
            let mut pass_state = PassState::new(sc, nodes, false);
            loop {
                mem.pass_on(1_000_000_000_000, None, &mut pass_state, false);
                if pass_state.is_over() {
                    break;
                }
            }
        };
        pass(&mut mem, Reclaimer::Kswapd, (1, 1));
        let [first, second] = taken(&mem);
        assert!(first == 0 && second > 0, "{first} {second}");
        pass(&mut mem, Reclaimer::Direct, (0, 2));
        let [of_first, of_second] = taken(&mem);
        assert!(of_first > 0 && of_second > second, "{of_first} {of_second}");
        mem.check(0).unwrap();
    }

    #[test]
    fn written_pages_go_to_another_node_when_one_has_its_share_of_dirty_pages() {
        // A fifth of 2048 frames may be dirty.
        let (mut mem, _) = touched(Backing::File, 700, Access::FdWrite);
        let on = |n: usize| mem.out.cache.unclean_on(n);
        assert!((380..=410).contains(&on(0)) && on(0) + on(1) == 700, "{} {}", on(0), on(1));
        assert_eq!(mem.dirty_nodes(false), 0, "nobody asks");
        // Pages that are read stay on the first node.
        let (before, region) = (on_lists(&mem)[0], Region { pages: 100, ..FILE });
        let other = mem.add_space(0, &[region]);
        let now = touch(&mut mem, other, 0..100, Access::FdRead);
        mem.begin_reclaim(now);
        assert_eq!(on_lists(&mem)[0], before + 100);
    }
}
