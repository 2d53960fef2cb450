//! Provides the data of `ebb top`: each process, its faults and where its pages are, and the areas
//! of one process.
//!
//! Counting where pages are takes a walk of page tables. A thread of its own does that, and no
//! other thread waits for it.
//!
//! * VIEW-1: no lock is held for long. An address space is locked for one slice of its pages
//!   (`limits`), the store for fewer, and never both at once.
//! * VIEW-2: regardless of the number of clients, the thread takes at most a quarter of one CPU's
//!   time.
//! * VIEW-3: the thread does not wait for a client that does not read the answer. The size of an
//!   answer is limited.

use crate::budget::Budget;
use crate::mm::Mm;
use crate::pager::Pager;
use crate::report::stat;
use crate::seam::{Process, answer};
use crate::telemetry::Telemetry;
use crate::telemetry::unmanaged::Line;
use crate::wait::limits::SLICE_PAGES;
use ebb_control::{AreaView, Pages, ProcessView, Refaults, Response, Tier, View};
use ebb_mm::observe::lru_gen::Enabled;
use ebb_mm::observe::vmstat::Event;
use ebb_mm::resident::Entry;
use ebb_mm::types::{PAGE_SIZE, SlotId, Vpn};
use ebb_swap::Whereabouts;
use ebb_sys::proc::Area;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Maximum number of processes listed, those with most pages first; maximum number of areas listed.
const PROCESSES_MAX: usize = 96;
const AREAS_MAX: usize = 48;
/// Maximum length of a name in an answer.
const NAME_MAX: usize = 64;
/// Number of parts into which the map of an area is divided.
const CELLS: usize = 32;
/// Maximum number of areas whose parts are counted. Further areas are counted only by name.
const MAPPED_MAX: usize = 4096;

/// Location of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Visible,
    Standby,
    Ram,
    File,
    Same,
}

/// Counts a page at this location.
fn count(pages: &mut Pages, at: At) {
    *match at {
        At::Visible => &mut pages.visible,
        At::Standby => &mut pages.standby,
        At::Ram => &mut pages.ram,
        At::File => &mut pages.file,
        At::Same => &mut pages.same,
    } += 1;
}

/// Returns the letter of the most frequent location.
fn letter(pages: &Pages) -> char {
    let counts = [pages.visible, pages.standby, pages.ram, pages.file, pages.same];
    let most = counts.iter().copied().max().unwrap_or(0);
    let at = counts.iter().position(|&count| count == most && count > 0);
    at.map_or('.', |at| ['V', 'B', 'R', 'F', 'S'][at])
}

/// Runs the view thread.
pub fn run(pager: &Arc<Pager>) {
    loop {
        pager.host.wait(&pager.telemetry.looks.signal, Duration::from_secs(3600));
        for (areas_of, line) in pager.telemetry.looks.take() {
            let began = pager.clock.now();
            // VIEW-3.
            answer::say(&*line, &Ok(Response::View(Box::new(look(pager, areas_of)))));
            drop(line);
            // VIEW-2.
            pager.host.sleep(pager.clock.since(began) * 3);
        }
    }
}

/// Collects all data of a view.
fn look(pager: &Pager, areas_of: u32) -> View {
    let Pager { budget, telemetry, .. } = pager;
    let stats = budget.store.stats();
    let mut view = View {
        at_us: pager.clock.since(pager.started).as_micros() as u64,
        managing: pager.run.managing.load(Relaxed),
        pressure: stat::pressure(telemetry),
        waited_us: pager.waited().1 / 1000,
        faults: telemetry.account.counted(),
        same_filled_pages: stats.same_filled_pages,
        unmanaged: telemetry.unmanaged.list().iter().map(Line::text).collect(),
        ..View::default()
    };
    let tiers = stats.tiers.into_iter().map(|tier| Tier {
        name: tier.name.to_string(),
        pages: tier.pages,
        stored_bytes: tier.stored_bytes,
        occupied_bytes: tier.occupied_bytes,
        limit_bytes: tier.limit_bytes,
        reads: tier.reads,
        writes: tier.writes,
    });
    view.tiers = tiers.collect();
    {
        let resident = budget.resident();
        let bytes = |pages: u64| pages * PAGE_SIZE as u64;
        view.limit_bytes = bytes(resident.zone.limit());
        view.high_bytes = bytes(resident.zone.high());
        view.used_bytes = bytes(resident.zone.used());
        let counted = resident.stat();
        view.refaults = Refaults {
            refault: counted.get(Event::WorkingsetRefaultAnon),
            activate: counted.get(Event::WorkingsetActivateAnon),
            restore: counted.get(Event::WorkingsetRestoreAnon),
        };
        view.multi_gen = resident.enabled().0 & Enabled::CORE != 0;
        view.lru_gen = resident.lru_gen(true);
    }
    for mm in pager.mms() {
        if mm.owner.pid() == areas_of && areas_of != 0 {
            let mut map = Map::of(&mm);
            let pages = walk(budget, &mm, |vpn, at| map.add(vpn, at));
            view.processes.push(process(telemetry, &mm, pages));
            (view.areas_of, view.areas) = (areas_of, map.list());
        } else {
            let pages = walk(budget, &mm, |_, _| {});
            view.processes.push(process(telemetry, &mm, pages));
        }
    }
    view.processes.sort_by_key(|process| std::cmp::Reverse((process.pages.all(), process.pid)));
    view.processes_left_out = view.processes.len().saturating_sub(PROCESSES_MAX) as u64;
    view.processes.truncate(PROCESSES_MAX);
    view
}

fn process(telemetry: &Telemetry, mm: &Mm, pages: Pages) -> ProcessView {
    let resident = mm.resident_pages();
    let own = resident - mm.fork_group.share_of_others(resident);
    let (faults, ticks) = mm.served.read();
    let count: u64 = faults.iter().sum();
    let waited_ns = telemetry.account.ns(ticks) + telemetry.account.unanswered_ns(count);
    ProcessView {
        pid: mm.owner.pid(),
        name: short(&mm.process().map_or_else(|| "?".to_owned(), Process::name)),
        resident_bytes: own * PAGE_SIZE as u64,
        pages,
        faults,
        waited_us: waited_ns / 1000,
        managed: mm.agent.is_there(),
    }
}

/// Returns a name that fits, with one byte per character.
fn short(name: &str) -> String {
    let plain =
        |letter: char| if letter == ' ' || letter.is_ascii_graphic() { letter } else { '?' };
    name.chars().map(plain).take(NAME_MAX).collect()
}

/// Counts the pages of an address space by location, and calls `each` in the order of addresses.
fn walk(budget: &Budget, mm: &Mm, mut each: impl FnMut(Vpn, At)) -> Pages {
    let mut pages = Pages::default();
    let mut start = Some(Vpn(0));
    let (mut entries, mut slots) = (Vec::new(), Vec::<SlotId>::new());
    while let Some(first) = start {
        entries.clear();
        slots.clear();
        {
            let state = mm.lock().timed();
            start = state.space.visit(first, SLICE_PAGES, |vpn, entry| match entry {
                Entry::None => {}
                Entry::Resident(_) => entries.push((vpn, Some(At::Visible))),
                Entry::Standby(_) => entries.push((vpn, Some(At::Standby))),
                Entry::Stored { slot, .. } => {
                    entries.push((vpn, None));
                    slots.push(slot);
                }
            });
        }
        let mut places = Vec::with_capacity(slots.len());
        budget.store.places(&slots, &mut |place| places.push(place));
        let mut places = places.into_iter();
        for &(vpn, at) in &entries {
            let at = at.or_else(|| match places.next().flatten() {
                Some(Whereabouts::Ram) => Some(At::Ram),
                Some(Whereabouts::Far) => Some(At::File),
                Some(Whereabouts::Same) => Some(At::Same),
                // The page has come back, or was released, meanwhile.
                None => None,
            });
            if let Some(at) = at {
                count(&mut pages, at);
                each(vpn, at);
            }
        }
    }
    pages
}

/// An area while its pages are counted.
#[derive(Debug)]
struct Counted {
    start: u64,
    end: u64,
    name: String,
    pages: Pages,
    cells: Vec<Pages>,
}

/// Pageable areas of a process, while their pages are counted.
#[derive(Debug, Default)]
struct Map {
    areas: Vec<Counted>,
    /// Index of the area to which the last page belonged.
    at: usize,
}

impl Map {
    fn of(mm: &Mm) -> Self {
        let areas = mm.process().and_then(|process| process.areas().ok()).unwrap_or_default();
        let (pool_start, pool_end) = {
            let state = mm.lock();
            (state.pool.start(), state.pool.end())
        };
        let ours = |area: &Area| area.start < pool_end && area.end > pool_start;
        Self::new(areas.into_iter().filter(|area| area.is_pageable() && !ours(area)))
    }

    /// Takes areas in the order of addresses. Joins adjacent areas with one name, even if the
    /// kernel has several.
    fn new(areas: impl Iterator<Item = Area>) -> Self {
        let mut joined: Vec<Counted> = Vec::new();
        for Area { start, end, name, .. } in areas {
            let name = if name.is_empty() { "anonymous".to_owned() } else { short(&name) };
            match joined.last_mut().filter(|last| last.end == start && last.name == name) {
                Some(last) => last.end = end,
                None => {
                    let (pages, cells) = (Pages::default(), Vec::new());
                    joined.push(Counted { start, end, name, pages, cells });
                }
            }
        }
        Self { areas: joined, at: 0 }
    }

    /// Counts a page. Pages must come in the order of their addresses.
    fn add(&mut self, vpn: Vpn, at: At) {
        let address = vpn.address();
        while self.areas.get(self.at).is_some_and(|area| area.end <= address) {
            self.at += 1;
        }
        let index = self.at;
        let Some(area) = self.areas.get_mut(index).filter(|area| area.start <= address) else {
            // The area was unmapped meanwhile, or mapped later.
            return;
        };
        count(&mut area.pages, at);
        if index < MAPPED_MAX {
            if area.cells.is_empty() {
                area.cells = vec![Pages::default(); CELLS];
            }
            let part = u128::from(address - area.start) * CELLS as u128;
            let part = (part / u128::from(area.end - area.start)) as usize;
            count(&mut area.cells[part], at);
        }
    }

    /// Returns the areas with most pages one by one, in the order of addresses. The others are
    /// summed up by name.
    fn list(self) -> Vec<AreaView> {
        let mut most: Vec<u64> = self.areas.iter().map(|area| area.pages.all()).collect();
        most.sort_unstable_by(|a, b| b.cmp(a));
        // Areas of at least this many pages are listed, so that equal areas are treated alike.
        let least = most.get(AREAS_MAX / 2).map_or(0, |&pages| pages + 1).max(1);
        let (mut listed, mut others) = (Vec::new(), BTreeMap::<String, AreaView>::new());
        for area in self.areas {
            let bytes = area.end - area.start;
            if area.pages.all() >= least {
                listed.push(AreaView {
                    name: area.name,
                    areas: 1,
                    start: Some(area.start),
                    bytes,
                    pages: area.pages,
                    cells: area.cells.iter().map(letter).collect(),
                });
                continue;
            }
            let all = others.entry(area.name.clone()).or_default();
            all.name = area.name;
            all.areas += 1;
            all.bytes += bytes;
            all.pages.join(&area.pages);
        }
        let mut others: Vec<AreaView> = others.into_values().collect();
        others.sort_by_key(|all| std::cmp::Reverse((all.pages.all(), all.bytes)));
        others.truncate(AREAS_MAX / 2);
        listed.extend(others);
        listed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_control::{ANSWER_MAX, FaultKind, answer_to_bytes};

    fn area(start: u64, end: u64, name: &str) -> Area {
        let (readable, writable, executable, shared) = (true, true, false, false);
        let name = name.to_owned();
        Area { start, end, readable, writable, executable, shared, inode: 0, name }
    }

    #[test]
    fn pages_are_counted_by_area_and_by_part_of_it() {
        let mib = 1 << 20;
        let heap = [area(mib, mib + 4096, "[heap]"), area(mib + 4096, 2 * mib, "[heap]")];
        let areas = heap.into_iter().chain([area(4 * mib, 5 * mib, "")]);
        let mut map = Map::new(areas);
        let at = |address: u64| Vpn(address / 4096);
        // Pages before, in and between the areas.
        map.add(at(0), At::Ram);
        (0..8).for_each(|page| map.add(at(mib + page * 4096), At::Visible));
        map.add(at(2 * mib - 4096), At::File);
        map.add(at(3 * mib), At::Ram);
        map.add(at(4 * mib), At::Same);
        map.add(at(9 * mib), At::Ram);
        let list = map.list();
        assert_eq!(list.len(), 2);
        let heap = &list[0];
        assert_eq!((&*heap.name, heap.start, heap.bytes), ("[heap]", Some(mib), mib));
        assert_eq!(heap.pages, Pages { visible: 8, file: 1, ..Pages::default() });
        assert_eq!(heap.cells, format!("V{}F", ".".repeat(CELLS - 2)));
        assert_eq!((&*list[1].name, list[1].pages.same), ("anonymous", 1));
        assert_eq!(&list[1].cells[..2], "S.");
    }

    #[test]
    fn of_many_areas_the_small_ones_are_one_line_for_each_name() {
        let page = 4096;
        let areas = (0..3000).map(|n| area(n * 2 * page, (n * 2 + 1) * page, ""));
        let mut map = Map::new(areas.chain([area(1 << 40, 2 << 40, "[anon:arena]")]));
        (0..3000).for_each(|n| map.add(Vpn(n * 2), At::Standby));
        (0..500).for_each(|n| map.add(Vpn((1 << 28) + n), At::Ram));
        let list = map.list();
        let lines: Vec<(&str, u64, u64)> =
            list.iter().map(|area| (&*area.name, area.areas, area.pages.all())).collect();
        assert_eq!(lines, [("[anon:arena]", 1, 500), ("anonymous", 3000, 3000)]);
    }

    #[test]
    fn the_largest_answer_is_one_message() {
        // Each character takes two bytes there.
        let long = short(&"\\".repeat(2 * NAME_MAX));
        let process = |_| ProcessView {
            pid: u32::MAX,
            // The kernel's names are at most this long.
            name: "\\".repeat(15),
            resident_bytes: 1 << 40,
            pages: Pages {
                visible: 1 << 28,
                standby: 1 << 28,
                ram: 1 << 28,
                file: 1 << 28,
                same: 9,
            },
            faults: [1 << 32; FaultKind::COUNT],
            waited_us: 1 << 40,
            managed: true,
        };
        let area = |_| AreaView {
            name: long.clone(),
            areas: 1 << 20,
            start: Some(1 << 46),
            bytes: 1 << 46,
            pages: process(0).pages,
            cells: "V".repeat(CELLS),
        };
        let view = View {
            processes: (0..PROCESSES_MAX).map(process).collect(),
            areas: (0..AREAS_MAX).map(area).collect(),
            lru_gen: "x".repeat(4096),
            ..View::default()
        };
        let bytes = answer_to_bytes(&Ok(Response::View(Box::new(view))));
        assert!(bytes.len() < ANSWER_MAX - (4 << 10), "{}", bytes.len());
    }
}
