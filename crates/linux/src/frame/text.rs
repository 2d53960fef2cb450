//! The kernel's text formats: zoneinfo, buddyinfo, pagetypeinfo, and the allocator's part of
//! vmstat.

use std::fmt::Write;

use super::counter::ZoneItem;
use super::frames::{CpuSets, Frames, Zone};
use super::kinds::{Migratetype, ORDERS, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use super::sync::Relaxed;
use ebb_mm::types::Pfn;

/// Most blocks that pagetypeinfo shows for one order and type.
const COUNT_MAX: u64 = 100_000;

/// The data about a node that the rest of the memory manager contributes.
#[derive(Clone, Debug, Default)]
pub struct NodeText {
    /// Counters of the node by name, in the order of output.
    pub counters: Vec<(&'static str, u64)>,
    /// Whether kswapd has given up on the node.
    pub unreclaimable: bool,
}

impl Frames {
    /// Returns the text of /proc/zoneinfo. `nodes` is indexed by node; missing ones show no
    /// counters.
    #[must_use]
    pub fn zoneinfo(&self, nodes: &[NodeText]) -> String {
        let mut text = String::new();
        let nothing = NodeText::default();
        for node in 0..self.zonelists.len() {
            let extra = nodes.get(node).unwrap_or(&nothing);
            let mut first = true;
            for zone in self.zones.iter().filter(|z| z.state.node == node) {
                head(&mut text, zone);
                text.push('\n');
                if first && zone.state.present > 0 {
                    first = false;
                    text.push_str("  per-node stats");
                    for (name, value) in &extra.counters {
                        put(&mut text, format_args!("\n      {name:<12} {value}"));
                    }
                    text.push('\n');
                }
                self.zone_text(&mut text, zone, extra);
            }
        }
        text
    }

    fn zone_text(&self, text: &mut String, zone: &Zone, node: &NodeText) {
        let s = &zone.state;
        let read = |item| s.counters.snapshot(item);
        put(text, format_args!("  pages free     {}\n", read(ZoneItem::FreePages)));
        let rows = [
            ("boost", s.boost.load(Relaxed)),
            ("min", s.marks.min),
            ("low", s.marks.low),
            ("high", s.marks.high),
            ("promo", s.marks.promo),
            ("spanned", s.span.len() as u64),
            ("present", s.present),
            ("managed", s.managed),
            ("cma", s.cma),
        ];
        for (name, value) in rows {
            put(text, format_args!("        {name:<8} {value}\n"));
        }
        let reserve: Vec<String> = s.reserve.iter().map(u64::to_string).collect();
        put(text, format_args!("        protection: ({})", reserve.join(", ")));
        if s.present == 0 {
            text.push('\n');
            return;
        }
        for item in ZoneItem::ALL {
            put(text, format_args!("\n      {:<12} {}", item.name(), read(item)));
        }
        for (name, value) in self.numa(zone) {
            put(text, format_args!("\n      {name:<12} {value}"));
        }
        text.push_str("\n  pagesets");
        for (cpu, sets) in self.cpus.iter().enumerate() {
            set_text(text, cpu, sets, s.index, s.counters.threshold());
        }
        let stuck = u32::from(node.unreclaimable);
        put(text, format_args!("\n  node_unreclaimable:  {stuck}"));
        put(text, format_args!("\n  start_pfn:           {}\n", s.span.start));
    }

    /// Returns the blocks allocated, by whether the CPU is on the zone's node.
    fn numa(&self, zone: &Zone) -> [(&'static str, u64); 6] {
        let (mut here, mut there) = (0, 0);
        for sets in &self.cpus {
            let blocks = sets.sets[zone.state.index].traffic().0
                + sets.direct[zone.state.index].blocks.load(Relaxed);
            if sets.node == zone.state.node {
                here += blocks;
            } else {
                there += blocks;
            }
        }
        // Every request names its own node, so a block that is no hit there is a miss here.
        [
            ("numa_hit", here),
            ("numa_miss", there),
            ("numa_foreign", 0),
            ("numa_interleave", 0),
            ("numa_local", here),
            ("numa_other", there),
        ]
    }

    /// Returns the pages allocated from a zone and freed to it.
    #[must_use]
    pub fn traffic(&self, zone: usize) -> (u64, u64) {
        self.cpus.iter().fold((0, 0), |(out, back), sets| {
            let (_, popped, pushed) = sets.sets[zone].traffic();
            let direct = &sets.direct[zone];
            let out_direct = direct.pages.load(Relaxed);
            (out + popped + out_direct, back + pushed + direct.freed.load(Relaxed))
        })
    }

    /// Returns the allocator's part of /proc/vmstat: zone counters summed, then events.
    #[must_use]
    pub fn vmstat(&self) -> String {
        let mut text = String::new();
        for item in ZoneItem::ALL {
            let sum: u64 = self.zones.iter().map(|z| z.state.counters.snapshot(item)).sum();
            put(&mut text, format_args!("{} {sum}\n", item.name()));
        }
        for i in 0..6 {
            let of = |z: &Zone| self.numa(z)[i].1;
            let sum: u64 = self.zones.iter().map(of).sum();
            let name = self.zones.first().map_or("", |z| self.numa(z)[i].0);
            put(&mut text, format_args!("{name} {sum}\n"));
        }
        for (class, kind) in self.kinds.iter().enumerate() {
            let of_class = self.zones.iter().filter(|z| z.state.class == class);
            let sum: u64 = of_class.map(|z| self.traffic(z.state.index).0).sum();
            put(&mut text, format_args!("pgalloc_{} {sum}\n", kind.name().to_lowercase()));
        }
        let freed: u64 = self.zones.iter().map(|z| self.traffic(z.state.index).1).sum();
        put(&mut text, format_args!("pgfree {freed}\n"));
        text
    }

    /// Returns the text of /proc/buddyinfo.
    #[must_use]
    pub fn buddyinfo(&self) -> String {
        let mut text = String::new();
        for zone in self.populated() {
            head(&mut text, zone);
            text.push(' ');
            for types in zone.store.counts() {
                put(&mut text, format_args!("{:>6} ", types.iter().sum::<u64>()));
            }
            text.push('\n');
        }
        text
    }

    /// Returns the text of /proc/pagetypeinfo.
    #[must_use]
    pub fn pagetypeinfo(&self) -> String {
        let mut text =
            format!("Page block order: {PAGEBLOCK_ORDER}\nPages per block:  {PAGEBLOCK_PAGES}\n\n");
        put(&mut text, format_args!("{:<43} ", "Free pages count per migrate type at order"));
        (0..ORDERS).for_each(|order| put(&mut text, format_args!("{order:>6} ")));
        text.push('\n');
        for zone in self.populated() {
            let counts = zone.store.counts();
            for t in Migratetype::ALL {
                let (node, kind) = (zone.state.node, zone.state.kind.name());
                put(
                    &mut text,
                    format_args!("Node {node:>4}, zone {kind:>8}, type {:>12} ", t.name()),
                );
                for types in &counts {
                    count_text(&mut text, types[t.index()]);
                }
                text.push('\n');
            }
        }
        put(&mut text, format_args!("\n{:<23}", "Number of blocks type "));
        for t in Migratetype::ALL {
            put(&mut text, format_args!("{:>12} ", t.name()));
        }
        text.push('\n');
        for zone in self.populated() {
            head(&mut text, zone);
            text.push(' ');
            for n in self.block_types(zone) {
                put(&mut text, format_args!("{n:>12} "));
            }
            text.push('\n');
        }
        text
    }

    /// Returns the number of pageblocks of type `migratetype`.
    #[must_use]
    pub fn blocks_of_type(&self, migratetype: Migratetype) -> u64 {
        self.zones.iter().map(|z| self.block_types(z)[migratetype.index()]).sum()
    }

    fn populated(&self) -> impl Iterator<Item = &Zone> {
        self.zones.iter().filter(|z| z.state.present > 0)
    }

    fn block_types(&self, zone: &Zone) -> [u64; 6] {
        let mut counts = [0; 6];
        for block in zone.state.span.clone().step_by(PAGEBLOCK_PAGES as usize) {
            counts[self.blocks.get(Pfn(block)).migratetype().index()] += 1;
        }
        counts
    }
}

fn put(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(args);
}

fn head(text: &mut String, zone: &Zone) {
    put(text, format_args!("Node {}, zone {:>8}", zone.state.node, zone.state.kind.name()));
}

fn set_text(text: &mut String, cpu: usize, sets: &CpuSets, zone: usize, threshold: u32) {
    let set = &sets.sets[zone];
    let size = set.size();
    put(text, format_args!("\n    cpu: {cpu}"));
    put(text, format_args!("\n              count:    {}", set.count()));
    put(text, format_args!("\n              high:     {}", set.high()));
    put(text, format_args!("\n              batch:    {}", size.batch));
    put(text, format_args!("\n              high_min: {}", size.high_min));
    put(text, format_args!("\n              high_max: {}", size.high_max));
    put(text, format_args!("\n  vm stats threshold: {threshold}"));
}

fn count_text(text: &mut String, n: u64) {
    if n > COUNT_MAX {
        put(text, format_args!(">{COUNT_MAX} "));
    } else {
        put(text, format_args!("{n:>6} "));
    }
}
