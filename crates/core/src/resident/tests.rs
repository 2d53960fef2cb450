use super::*;
use crate::types::MmId;
use crate::types::PAGE_SHIFT;
use proptest::prelude::*;
use std::collections::HashMap;

fn touch_fresh(set: &mut Resident, space: &mut Space, pages: u64) {
    for page in 0..pages {
        set.map(space, Vpn(page), Arrival::Fresh, None);
    }
}

#[test]
fn the_oldest_pages_leave_first_and_a_reactivated_page_stays() {
    let mut set = Resident::new(1000, 1000);
    let mut space = Space::new(MmId(1));
    touch_fresh(&mut set, &mut space, 8);
    let mut victims = Vec::new();
    set.isolate_hard(4, &mut victims);
    let pages: Vec<u64> = victims.iter().map(|&pfn| set.frame(pfn).vpn.0).collect();
    assert_eq!(pages, [0, 1, 2, 3]);
    for (place, &pfn) in victims.iter().enumerate() {
        set.deactivate(&mut space, pfn, place as u32);
    }
    assert_eq!(set.reactivate(&mut space, victims[0]), 0);
    let mut next = Vec::new();
    set.isolate_hard(4, &mut next);
    let pages: Vec<u64> = next.iter().map(|&pfn| set.frame(pfn).vpn.0).collect();
    assert_eq!(pages, [4, 5, 6, 7], "the reactivated page is the youngest");
    set.check_invariants(&[&space], &[]);
}

/// Shows that a page stays without a reactivation if a walk by the driver found it accessed.
#[test]
fn a_page_found_accessed_where_it_lies_outlives_those_beside_it() {
    let mut set = Resident::new(1000, 1000);
    let mut space = Space::new(MmId(1));
    touch_fresh(&mut set, &mut space, 400);
    let frame = |page| match space.get(Vpn(page)) {
        Entry::Resident(pfn) => pfn,
        other => panic!("page {page} is {other:?}"),
    };
    let (used, beside) = (frame(0), frame(1));
    set.note_accessed(&[used]);
    let mut victims = Vec::new();
    set.isolate_hard(8, &mut victims);
    assert!(victims.contains(&beside) && !victims.contains(&used), "{victims:?}");
    // A walk's report leaves isolated pages alone.
    set.note_accessed(&victims);
    set.check_invariants(&[&space], &[]);
}

/// Shows that an isolation never returns more pages than requested. kswapd would get 65 for a batch
/// of 64.
#[test]
fn an_isolation_never_returns_more_pages_than_requested() {
    let mut set = Resident::new(1000, 1000);
    let mut space = Space::new(MmId(1));
    touch_fresh(&mut set, &mut space, 900);
    let mut victims = Vec::new();
    set.isolate_hard(63, &mut victims);
    victims.drain(..).for_each(|pfn| set.put_first(pfn));
    for wanted in [64, 1, 2, 3, 0, 64] {
        victims.clear();
        set.isolate_hard(wanted, &mut victims);
        assert_eq!(victims.len(), wanted);
        set.check_invariants(&[&space], &[]);
    }
}

#[test]
fn a_page_that_comes_back_soon_outlives_those_that_are_new() {
    let mut set = Resident::new(100, 1000);
    let mut space = Space::new(MmId(1));
    let evict = |set: &mut Resident, space: &mut Space, count: usize| {
        let mut victims = Vec::new();
        set.isolate_hard(count, &mut victims);
        for &pfn in &victims {
            set.deactivate(space, pfn, 0);
        }
        victims.clear();
        set.oldest_standby(count, &mut victims);
        for &pfn in &victims {
            let slot = set.frame(pfn).slot().unwrap_or_else(|| set.take_slot().unwrap());
            set.evict(space, pfn, slot);
        }
    };
    touch_fresh(&mut set, &mut space, 100);
    evict(&mut set, &mut space, 40);
    let back = (0..100).map(Vpn).find(|&vpn| matches!(space.get(vpn), Entry::Stored { .. }));
    let back = back.expect("some have left");
    let Entry::Stored { slot, .. } = space.get(back) else { unreachable!() };
    set.begin_load(&mut space, back, slot);
    set.map(&mut space, back, Arrival::Loaded, Some(slot));
    set.release_slot(slot, &mut Dropped::default());
    for page in 100..300 {
        set.map(&mut space, Vpn(page), Arrival::Fresh, None);
        evict(&mut set, &mut space, 1);
    }
    assert!(matches!(space.get(back), Entry::Resident(_)), "it went before {} others", 200);
    set.check_invariants(&[&space], &[]);
}

#[test]
fn commands_age_and_isolate_and_bad_ones_get_an_error() {
    let mut set = Resident::new(1000, 1000);
    let mut space = Space::new(MmId(1));
    touch_fresh(&mut set, &mut space, 500);
    set.set_now_ms(1500);
    let run = |set: &mut Resident, text: &str, victims: &mut Vec<Pfn>| {
        set.command(&Command::parse(text).unwrap(), victims)
    };
    let mut victims = Vec::new();
    for seq in 3..6 {
        run(&mut set, &format!("+ 1 0 {seq}"), &mut victims).unwrap();
    }
    assert!(
        set.lru_gen(false).starts_with("memcg     1 /\n node     0\n"),
        "{}",
        set.lru_gen(false)
    );
    assert_eq!(run(&mut set, "+ 1 0 99", &mut victims), Err(CommandError::Invalid));
    assert_eq!(run(&mut set, "- 1 0 6", &mut victims), Err(CommandError::Invalid), "too young");
    assert_eq!(run(&mut set, "- 2 0 3", &mut victims), Err(CommandError::Invalid), "no such memcg");
    assert!(victims.is_empty());
    run(&mut set, "- 1 0 4 201 1000", &mut victims).unwrap();
    assert!(!victims.is_empty() && victims.len() <= 64);
    assert_eq!(set.count(FrameState::Isolated), victims.len() as u64);
    set.check_invariants(&[&space], &[]);
}

#[test]
fn thrashing_is_when_the_oldest_generation_is_younger_than_asked_for() {
    let mut tunables = Tunables::standby();
    tunables.mglru.min_ttl_ms = 1000;
    let mut set = Resident::with(1000, 1000, 1000, tunables);
    touch_fresh(&mut set, &mut Space::new(MmId(1)), 500);
    set.set_now_ms(900);
    assert!(set.is_thrashing());
    set.set_now_ms(1001);
    assert!(!set.is_thrashing());
    let mut quiet = Resident::new(1000, 1000);
    touch_fresh(&mut quiet, &mut Space::new(MmId(1)), 500);
    assert!(!quiet.is_thrashing(), "nobody asked");
}

#[test]
fn the_lists_can_be_changed_while_they_are_in_use() {
    let mut set = Resident::new(10_000, 10_000);
    let mut space = Space::new(MmId(1));
    touch_fresh(&mut set, &mut space, 9000);
    let mut isolated = Vec::new();
    set.isolate_hard(64, &mut isolated);
    for enabled in [Enabled(0), Enabled(7), Enabled(0)] {
        set.enable(enabled);
        assert_eq!(set.enabled(), enabled);
        set.check_invariants(&[&space], &[]);
        let mut more = Vec::new();
        set.isolate_hard(64, &mut more);
        assert_eq!(more.len(), 64);
        set.deactivate(&mut space, more[0], 0);
        set.reactivate(&mut space, more[0]);
        more[1..].iter().for_each(|&pfn| set.put_back(pfn));
        set.check_invariants(&[&space], &[]);
    }
    isolated.iter().for_each(|&pfn| set.put_back(pfn));
    set.check_invariants(&[&space], &[]);
}

/// Forks `parent`, `max` pages at a time.
fn fork(set: &mut Resident, parent: &Space, mm: MmId, max: u64) -> Space {
    let mut child = Space::new(mm);
    let mut next = Some(Vpn(0));
    while let Some(start) = next {
        next = set.fork(parent, &mut child, (start, max), |_| true).0;
    }
    child
}

#[test]
fn a_child_gets_all_pages_that_are_passed_on_in_slices_of_any_size() {
    for max in [1, 2, 7, 600] {
        let mut set = Resident::new(1000, 1000);
        let mut parent = Space::new(MmId(1));
        let pages: Vec<Vpn> = (0..40).map(|page| Vpn(page * 100)).collect();
        for &vpn in &pages {
            set.map(&mut parent, vpn, Arrival::Fresh, None);
        }
        let mut child = Space::new(MmId(2));
        let (mut next, mut held, mut slices) = (Some(Vpn(0)), 0, 0);
        while let Some(start) = next {
            let passes = |vpn: Vpn| !vpn.0.is_multiple_of(300);
            let (then, count) = set.fork(&parent, &mut child, (start, max), passes);
            (next, held, slices) = (then, held + count, slices + 1);
        }
        assert_eq!(held, 26);
        assert_eq!(slices, 40_u64.div_ceil(max));
        let has = |&vpn: &Vpn| matches!(child.get(vpn), Entry::Resident(_));
        assert!(pages.iter().all(|vpn| has(vpn) == (vpn.0 % 300 != 0)));
        set.check_invariants(&[&parent, &child], &[]);
    }
}

#[test]
fn a_forked_child_shares_slots_until_both_are_gone() {
    let mut set = Resident::new(1000, 1000);
    let mut parent = Space::new(MmId(1));
    let pfn = set.map(&mut parent, Vpn(9), Arrival::Fresh, None);
    let mut victims = Vec::new();
    set.isolate_hard(1, &mut victims);
    set.deactivate(&mut parent, pfn, 3);
    let slot = set.take_slot().unwrap();
    assert_eq!(set.evict(&mut parent, pfn, slot), 3);
    let mut child = fork(&mut set, &parent, MmId(2), 1);
    set.check_invariants(&[&parent, &child], &[]);
    let mut dropped = Dropped::default();
    set.forget(&mut parent, Vpn(9), &mut dropped);
    assert!(dropped.slots.is_empty(), "the child still reads it");
    set.forget(&mut child, Vpn(9), &mut dropped);
    assert_eq!(dropped.slots, [slot]);
}

#[derive(Clone, Debug)]
enum Step {
    Touch { space: u8, page: u8 },
    Standby { count: u8 },
    Evict { count: u8 },
    Forget { space: u8, page: u8, len: u8 },
    Remap { space: u8, from: u8, to: u8, len: u8 },
    Fork { from: u8, to: u8 },
    Park,
    Unpark,
}

fn step() -> impl Strategy<Value = Step> {
    let space = 0u8..3;
    prop_oneof![
        8 => (space.clone(), any::<u8>()).prop_map(|(space, page)| Step::Touch { space, page }),
        4 => (0u8..20).prop_map(|count| Step::Standby { count }),
        4 => (0u8..20).prop_map(|count| Step::Evict { count }),
        2 => (space.clone(), any::<u8>(), 0u8..40)
            .prop_map(|(space, page, len)| Step::Forget { space, page, len }),
        1 => (space.clone(), any::<u8>(), any::<u8>(), 0u8..40)
            .prop_map(|(space, from, to, len)| Step::Remap { space, from, to, len }),
        1 => (space.clone(), space).prop_map(|(from, to)| Step::Fork { from, to }),
        1 => Just(Step::Park),
        1 => Just(Step::Unpark),
    ]
}

/// A model of the expected content: a map for each space, one for memory and one for the store.
#[derive(Default)]
struct Model {
    truth: [HashMap<u64, u64>; 3],
    memory: HashMap<u32, u64>,
    store: HashMap<u32, u64>,
    clock: u64,
}

/// Pages above 200 lie far from the others in each space, so that tables come and go.
fn vpn(page: u8) -> Vpn {
    Vpn(if page > 200 { (1 << (40 - PAGE_SHIFT)) + u64::from(page) } else { u64::from(page) * 7 })
}

struct World {
    set: Resident,
    spaces: [Space; 3],
    model: Model,
}

impl World {
    fn touch(&mut self, space: usize, vpn: Vpn) {
        let value = match self.spaces[space].get(vpn) {
            Entry::None => {
                let pfn = self.set.map(&mut self.spaces[space], vpn, Arrival::Fresh, None);
                self.model.memory.insert(pfn.0, 0);
                0
            }
            Entry::Resident(pfn) => self.model.memory[&pfn.0],
            Entry::Standby(pfn) => {
                self.set.reactivate(&mut self.spaces[space], pfn);
                self.model.memory[&pfn.0]
            }
            Entry::Stored { slot, .. } => {
                let value = self.model.store[&slot.0];
                self.set.begin_load(&mut self.spaces[space], vpn, slot);
                let pfn = self.set.map(&mut self.spaces[space], vpn, Arrival::Loaded, Some(slot));
                let mut dropped = Dropped::default();
                self.set.release_slot(slot, &mut dropped);
                assert!(dropped.slots.is_empty());
                self.model.memory.insert(pfn.0, value);
                value
            }
        };
        assert_eq!(value, *self.model.truth[space].get(&vpn.0).unwrap_or(&0));
        let Entry::Resident(pfn) = self.spaces[space].get(vpn) else { panic!("not resident") };
        self.model.clock += 1;
        let written = self.model.clock;
        self.model.memory.insert(pfn.0, written);
        self.model.truth[space].insert(vpn.0, written);
    }

    fn deactivate(&mut self, count: usize) {
        let mut victims = Vec::new();
        self.set.isolate_hard(count, &mut victims);
        for pfn in victims {
            let owner = self.set.frame(pfn).mm.0 as usize;
            self.set.deactivate(&mut self.spaces[owner], pfn, pfn.0);
        }
    }

    fn evict(&mut self, count: usize) {
        let mut oldest_standby = Vec::new();
        self.set.oldest_standby(count, &mut oldest_standby);
        for pfn in oldest_standby {
            let owner = self.set.frame(pfn).mm.0 as usize;
            let value = self.model.memory[&pfn.0];
            let slot = self.set.take_slot().unwrap();
            self.model.store.insert(slot.0, value);
            if let Some(old) = self.set.set_copy(pfn, None) {
                self.model.store.remove(&old.0);
                self.set.slots.recycle(old);
            }
            self.set.evict(&mut self.spaces[owner], pfn, slot);
        }
    }

    fn run(&mut self, step: Step) {
        let mut dropped = Dropped::default();
        match step {
            Step::Touch { space, page } => self.touch(space as usize, vpn(page)),
            Step::Standby { count } => self.deactivate(count as usize),
            Step::Evict { count } => self.evict(count as usize),
            Step::Forget { space, page, len } => {
                let (start, end) = (vpn(page), Vpn(vpn(page).0 + u64::from(len)));
                let space = space as usize;
                self.set.forget_range(&mut self.spaces[space], start, end, &mut dropped);
                self.model.truth[space].retain(|&at, _| at < start.0 || at >= end.0);
            }
            Step::Remap { space, from, to, len } => {
                let (space, len) = (space as usize, u64::from(len));
                let (from, to) = (vpn(from).0, vpn(to).0);
                if from.abs_diff(to) < len {
                    return;
                }
                let moving = &mut self.spaces[space];
                self.set.remap(moving, Vpn(from), Vpn(to), len, &mut dropped);
                let truth = &mut self.model.truth[space];
                for at in 0..len {
                    truth.remove(&(to + at));
                    if let Some(value) = truth.remove(&(from + at)) {
                        truth.insert(to + at, value);
                    }
                }
            }
            Step::Fork { from, to } if from != to => {
                let (from, to) = (from as usize, to as usize);
                self.set.forget_range(&mut self.spaces[to], Vpn(0), Vpn(1 << 40), &mut dropped);
                let child = fork(&mut self.set, &self.spaces[from], MmId(to as u32), 3);
                self.spaces[from].for_each(|vpn, entry| {
                    if let (
                        Entry::Resident(a) | Entry::Standby(a),
                        Entry::Resident(b) | Entry::Standby(b),
                    ) = (entry, child.get(vpn))
                    {
                        let value = self.model.memory[&a.0];
                        self.model.memory.insert(b.0, value);
                    }
                });
                self.spaces[to] = child;
                self.model.truth[to] = self.model.truth[from].clone();
            }
            Step::Fork { .. } => {}
            Step::Park => {
                let mut victims = Vec::new();
                self.set.isolate_hard(3, &mut victims);
                for pfn in victims {
                    self.set.make_unevictable(pfn);
                }
            }
            Step::Unpark => self.set.retry_unevictable(2),
        }
        for slot in dropped.slots {
            self.model.store.remove(&slot.0);
            self.set.slots.recycle(slot);
        }
        let spaces: Vec<&Space> = self.spaces.iter().collect();
        self.set.check_invariants(&spaces, &[]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]
    /// Shows that every page reads the last value written, and that every count adds up. Any order
    /// of accesses, standby, eviction, unmapping, remapping and forks must keep this.
    #[test]
    fn every_page_reads_what_was_written(steps in prop::collection::vec(step(), 1..200)) {
        let mut world = World {
            set: Resident::new(1000, 100_000),
            spaces: [Space::new(MmId(0)), Space::new(MmId(1)), Space::new(MmId(2))],
            model: Model::default(),
        };
        for step in steps {
            world.run(step);
        }
    }
}
