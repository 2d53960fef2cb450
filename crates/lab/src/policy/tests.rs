//! Tests every policy against its invariants, and the simple policies against slow, obviously
//! correct models.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::trace::{Kind, Op};

fn accesses(pages: &[u32]) -> Vec<Access> {
    pages.iter().map(|&page| Access::new(page, Op::Read, Kind::Anon)).collect()
}

fn next_accesses(pages: &[u32]) -> Vec<u32> {
    let next = |i: usize| (i + 1..pages.len()).find(|&j| pages[j] == pages[i]);
    (0..pages.len()).map(|i| next(i).map_or(NEVER, |j| j as u32)).collect()
}

fn footprint(pages: &[u32]) -> u32 {
    pages.iter().max().map_or(0, |top| top + 1)
}

/// Returns a footprint of anonymous pages.
fn all(pages: u32) -> Footprint<'static> {
    Footprint { pages, kinds: &[], names: &[] }
}

/// Returns the policies that work with a few pages.
fn textbook() -> impl Iterator<Item = &'static PolicyInfo> {
    POLICIES.iter().filter(|info| info.capacity_min < 16)
}

fn misses(name: &str, set: &[&str], capacity: u32, pages: &[u32]) -> u64 {
    let info = PolicyInfo::find(name).unwrap();
    let settings = Settings::parse(set).unwrap();
    let mut replay = info.build(all(footprint(pages)), capacity, &settings).unwrap();
    replay.feed(&accesses(pages), &next_accesses(pages))
}

/// Counts misses of a cache modelled as a list of `(page, mark)`. The first entry is the next
/// victim.
fn model(
    pages: &[u32],
    mut evict: impl FnMut(&mut VecDeque<(u32, u32)>),
    hit: fn(&mut VecDeque<(u32, u32)>, usize),
    capacity: u32,
) -> u64 {
    let mut list: VecDeque<(u32, u32)> = VecDeque::new();
    let mut misses = 0;
    for &page in pages {
        if let Some(at) = list.iter().position(|entry| entry.0 == page) {
            hit(&mut list, at);
            continue;
        }
        misses += 1;
        if list.len() == capacity as usize {
            evict(&mut list);
        }
        list.push_back((page, 0));
    }
    misses
}

fn clock_model(pages: &[u32], capacity: u32, top: u32) -> u64 {
    let evict = |list: &mut VecDeque<(u32, u32)>| {
        while let Some((page, mark)) = list.pop_front() {
            if mark == 0 {
                break;
            }
            list.push_back((page, mark - 1));
        }
    };
    let hit = if top == 1 {
        |list: &mut VecDeque<(u32, u32)>, at: usize| list[at].1 = 1
    } else {
        |list: &mut VecDeque<(u32, u32)>, at: usize| list[at].1 = (list[at].1 + 1).min(3)
    };
    model(pages, evict, hit, capacity)
}

fn lru_model(pages: &[u32], capacity: u32) -> u64 {
    let evict = |list: &mut VecDeque<(u32, u32)>| {
        list.pop_front();
    };
    let hit = |list: &mut VecDeque<(u32, u32)>, at: usize| {
        let entry = list.remove(at).unwrap();
        list.push_back(entry);
    };
    model(pages, evict, hit, capacity)
}

fn fifo_model(pages: &[u32], capacity: u32) -> u64 {
    let evict = |list: &mut VecDeque<(u32, u32)>| {
        list.pop_front();
    };
    model(pages, evict, |_, _| {}, capacity)
}

/// Models SIEVE with the hand as a page.
fn sieve_model(pages: &[u32], capacity: u32) -> u64 {
    let mut hand: Option<u32> = None;
    let evict = move |list: &mut VecDeque<(u32, u32)>| {
        let resting = hand.and_then(|page| list.iter().position(|entry| entry.0 == page));
        let mut at = resting.unwrap_or(0);
        while list[at].1 != 0 {
            list[at].1 = 0;
            at = (at + 1) % list.len();
        }
        list.remove(at);
        hand = list.get(at).map(|entry| entry.0);
    };
    model(pages, evict, |list, at| list[at].1 = 1, capacity)
}

/// Models the optimum by a search for the farthest next access at each eviction.
fn belady_model(pages: &[u32], capacity: u32) -> u64 {
    let mut resident: Vec<u32> = Vec::new();
    let mut misses = 0;
    for (i, &page) in pages.iter().enumerate() {
        if resident.contains(&page) {
            continue;
        }
        misses += 1;
        if resident.len() == capacity as usize {
            let farthest = |&at: &usize| {
                let next = pages[i + 1..].iter().position(|&later| later == resident[at]);
                next.unwrap_or(usize::MAX)
            };
            let victim = (0..resident.len()).max_by_key(farthest).unwrap();
            resident.swap_remove(victim);
        }
        resident.push(page);
    }
    misses
}

/// Generates skewed random accesses, so that both hits and misses happen.
fn pages_strategy() -> impl Strategy<Value = Vec<u32>> {
    let page = prop_oneof![0u32..6, 0u32..40, 20u32..24];
    prop::collection::vec(page, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn simple_policies_equal_their_models(pages in pages_strategy(), capacity in 1u32..20) {
        prop_assert_eq!(misses("lru", &[], capacity, &pages), lru_model(&pages, capacity));
        prop_assert_eq!(misses("fifo", &[], capacity, &pages), fifo_model(&pages, capacity));
        let one_bit = misses("clock", &[], capacity, &pages);
        prop_assert_eq!(one_bit, clock_model(&pages, capacity, 1));
        let two_bits = misses("clock", &["clock.bits=2"], capacity, &pages);
        prop_assert_eq!(two_bits, clock_model(&pages, capacity, 3));
        prop_assert_eq!(misses("sieve", &[], capacity, &pages), sieve_model(&pages, capacity));
        prop_assert_eq!(misses("belady", &[], capacity, &pages), belady_model(&pages, capacity));
    }

    /// Shows that only resident pages hit, that they never exceed the memory, and that the last
    /// accessed page is resident.
    #[test]
    fn every_policy_keeps_its_invariants(pages in pages_strategy(), capacity in 4u32..30) {
        let next = next_accesses(&pages);
        let footprint = footprint(&pages);
        for info in textbook() {
            let mut replay = info.build(all(footprint), capacity, &Settings::default()).unwrap();
            let mut first_touch = vec![true; footprint as usize];
            for (i, access) in accesses(&pages).into_iter().enumerate() {
                let page = access.page();
                let was_resident = replay.is_resident(page) == Some(true);
                let missed = replay.feed(&[access], &next[i..=i]) == 1;
                prop_assert_eq!(missed, !was_resident, "{}", info.name);
                prop_assert!(replay.is_resident(page) == Some(true), "{} lost {}", info.name, page);
                let new = std::mem::take(&mut first_touch[page as usize]);
                prop_assert!(missed || !new, "{} hit a page never touched", info.name);
                let in_memory = |page: &u32| replay.is_resident(*page) == Some(true);
                let resident = (0..footprint).filter(in_memory).count();
                prop_assert!(resident <= capacity as usize, "{}: {resident} pages", info.name);
            }
        }
    }

    #[test]
    fn no_policy_beats_the_optimum(pages in pages_strategy(), capacity in 4u32..30) {
        let optimum = misses("belady", &[], capacity, &pages);
        for info in textbook() {
            prop_assert!(misses(info.name, &[], capacity, &pages) >= optimum, "{}", info.name);
        }
    }

    #[test]
    fn chunks_do_not_matter(pages in pages_strategy(), capacity in 4u32..30, cut in 0usize..400) {
        let (accesses, next) = (accesses(&pages), next_accesses(&pages));
        let cut = cut.min(pages.len());
        for info in textbook() {
            let footprint = all(footprint(&pages));
            let build = || info.build(footprint, capacity, &Settings::default()).unwrap();
            let mut whole = build();
            let mut parts = build();
            let in_parts = parts.feed(&accesses[..cut], &next[..cut])
                + parts.feed(&accesses[cut..], &next[cut..]);
            prop_assert_eq!(whole.feed(&accesses, &next), in_parts, "{}", info.name);
            prop_assert_eq!(whole.tally(), parts.tally(), "{}", info.name);
        }
    }
}

#[test]
fn a_cache_of_all_pages_misses_each_once() {
    let pages: Vec<u32> = (0..100).flat_map(|i| [i, i / 2, i / 3]).collect();
    for info in textbook().filter(|info| !["2q", "w-tinylfu"].contains(&info.name)) {
        assert_eq!(misses(info.name, &[], 100, &pages), 100, "{}", info.name);
    }
}

#[test]
fn settings_name_the_nearest_key_and_the_range() {
    let error = |text: &str| Settings::parse(&[text]).unwrap_err().to_string();
    assert_eq!(
        error("clock.bit=2"),
        "there is no setting \"clock.bit\"; the nearest is \"clock.bits\""
    );
    assert_eq!(
        error("clock.bits=9"),
        "setting clock.bits=9: expected a whole number from 1 to 7: bits of the hit counter"
    );
    assert_eq!(error("bits"), "setting \"bits\": expected KEY=VALUE, such as clock.bits=2");
    let unknown = PolicyInfo::find("s3fif").unwrap_err();
    assert!(unknown.to_string().contains("the nearest is \"s3-fifo\""), "{unknown}");
    assert_eq!(PolicyInfo::find("S3_FIFO").unwrap().name, "s3-fifo");
}

#[test]
fn lists_are_read_in_order_without_repeats() {
    let names = |text| parse_list(text).unwrap().iter().map(|i| i.name).collect::<Vec<_>>();
    assert_eq!(names("arc, lru,arc"), ["arc", "lru"]);
    assert_eq!(names("opt,all").len(), POLICIES.len());
    assert_eq!(names("opt,all")[0], "belady");
}

/// Shows that the page being hit stays resident. With one frame for HIR pages, libCacheSim's LIRS
/// evicts this very page and continues to count it as resident.
#[test]
fn lirs_hit_on_a_queue_page_that_left_the_stack_keeps_it() {
    let info = PolicyInfo::find("lirs").unwrap();
    let mut replay = info.build(all(64), 4, &Settings::default()).unwrap();
    let pages: Vec<u32> = (0..64).chain([63, 0, 1, 0, 1, 63, 63]).collect();
    for access in accesses(&pages) {
        let _ = replay.feed(&[access], &[]);
        assert_eq!(replay.is_resident(access.page()), Some(true));
    }
}

/// Shows that the engine obeys the laws of the textbook policies. Each page misses at least once,
/// memory for all pages misses each once, and the optimum is a lower bound.
#[test]
fn the_engine_replays_and_obeys_its_switches() {
    let synth = crate::trace::synth::Synth::parse("zipf,pages=4000,accesses=60000").unwrap();
    let spool = synth.spool().unwrap();
    let run = |name: &str, set: &[&str], capacity| {
        let info = PolicyInfo::find(name).unwrap();
        let settings = Settings::parse(set).unwrap();
        let mut replay = info.build(spool.footprint(), capacity, &settings).unwrap();
        let (mut cursor, mut misses) = (spool.cursor(), 0);
        loop {
            let chunk = cursor.next_chunk().unwrap();
            if chunk.is_empty() {
                return (misses, replay.tally());
            }
            misses += replay.feed(chunk, &[]);
        }
    };
    let pages = spool.pages();
    for name in ["gen", "classic"] {
        assert_eq!(run(name, &[], pages + 64).0, u64::from(pages), "{name}");
        let (misses, tally) = run(name, &[], 1000);
        assert!(misses > u64::from(pages) && tally.scanned > 0, "{name}: {misses} {tally:?}");
        assert_eq!((misses, tally), run(name, &[], 1000), "{name} is not deterministic");
    }
    let (kinds, names) = (spool.footprint().kinds, [30, 20, 10]);
    let places = |names| {
        let footprint = Footprint { pages: 3, kinds, names };
        let mut settings = EngineSettings::default();
        settings.layout = Layout::Address;
        engine::Engine::new(footprint, 64, &settings, ebb_mm::tunables::LruKind::Gen).places()
    };
    assert_eq!((places(&names), places(&[])), (vec![2, 1, 0], vec![0, 1, 2]));
    assert_ne!(run("gen", &["preset=k72"], 1000).0, run("gen", &[], 1000).0);
    assert_eq!(run("gen", &["preset=classic"], 1000).0, run("gen", &[], 1000).0);
    let error = Settings::parse(&["gen.blom=off"]).unwrap_err().to_string();
    assert_eq!(error, "there is no setting \"gen.blom\"; the nearest is \"gen.bloom\"");
    let error = Settings::parse(&["gen.bloom=maybe"]).unwrap_err().to_string();
    assert_eq!(error, "setting gen.bloom: 'maybe' is not one of on|off");
}

/// Shows that reclaim can evict written file pages. The replay machine has no flusher, so dirty
/// pages would pile up until reclaim finds nothing else.
#[test]
fn written_file_pages_can_be_reclaimed() {
    let pages = 2000;
    for kind in [Kind::Buffered, Kind::Mapped] {
        let kinds = vec![kind; pages as usize];
        let footprint = Footprint { pages, kinds: &kinds, names: &[] };
        let accesses: Vec<Access> =
            (0..6000).map(|i| Access::new(i % pages, Op::Write, kind)).collect();
        for name in ["gen", "classic"] {
            let info = PolicyInfo::find(name).unwrap();
            let mut replay = info.build(footprint, 400, &Settings::default()).unwrap();
            assert!(replay.feed(&accesses, &[]) > u64::from(pages), "{name}");
        }
    }
}
