//! Checks the page cache against a trivial model: an array of pages for each file.
//!
//! The test keeps the contents: a cell for each frame, a cell for each page of the disk. A write to
//! the disk carries the contents of the page at its start, and may fail. The test compares every
//! read, and every page in the end.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;

use super::ahead::{FileAhead, Window};
use super::cache::WriteFailed;
use super::*;
use ebb_mm::folio::{Folios, LruType, MemcgId, Word};
use ebb_mm::lru::{Ctx, Evicted, Lruvec, Pageout, Reclaimer, Scan, Shadow};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::space::{Area, Backing, Pte, Space, Spaces};
use ebb_mm::tunables::{Dirty, LruKind, Tunables};
use ebb_mm::types::{Pfn, Vpn};

type Cell = [u8; 4];

const FRAMES: u32 = 24;
const FILES: u32 = 3;
const PAGES: u64 = 40;
const AHEAD_MAX: u64 = 8;

/// Kind of an access that concerns readahead.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    Missed,
    FaultMissed,
    Marked,
}

#[derive(Clone, Debug)]
enum Op {
    Read(u32, u64),
    /// Reads the given number of consecutive pages in one go.
    ReadOn(u32, u64, u64),
    Write(u32, u64, u8),
    Load(u32, u64),
    Store(u32, u64, u8),
    Flush,
    Complete(usize),
    Sync(u32),
    Truncate(u32, u64),
    Extend(u32, u64),
    Reclaim(u64),
    Pass(u64),
    Disk(bool),
}

struct World {
    folios: Folios,
    spaces: Spaces,
    tun: Tunables,
    stat: VmStat,
    v: Lruvec,
    cache: PageCache,
    list: Vec<Arc<Space>>,
    memory: Vec<Cell>,
    disk: HashMap<(FileId, u64), Cell>,
    model: Vec<Vec<Cell>>,
    free: Vec<u32>,
    flying: VecDeque<(Run, Vec<Cell>)>,
    works: bool,
    now_ms: u64,
    seen: Vec<u64>,
    failures: Vec<u64>,
    ahead: Vec<FileAhead>,
    fetched_ahead: u64,
}

struct Out<'a> {
    cache: &'a mut PageCache,
    free: &'a mut Vec<u32>,
}

impl Pageout for Out<'_> {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, shadow: Shadow) -> Evicted {
        let done = self.cache.evict(cx, pfn, shadow);
        if done == Evicted::Freed {
            cx.folios.unpin(pfn);
            cx.folios.unpin(pfn);
            self.free.push(pfn.0);
        }
        done
    }

    fn wake_flusher(&mut self) {
        self.cache.ask_flusher();
    }
}

macro_rules! cx {
    ($w:expr) => {
        Ctx {
            folios: &$w.folios,
            spaces: &$w.spaces,
            tun: &$w.tun,
            stat: &$w.stat,
            now_ms: $w.now_ms,
        }
    };
}

impl World {
    fn new(kind: LruKind, dirty: Dirty) -> Self {
        let mut tun = Tunables::default();
        (tun.lru, tun.dirty) = (kind, dirty);
        let (folios, spaces) = (Folios::new(FRAMES), Spaces::new());
        let mut cache = PageCache::new();
        let v = Lruvec::new(MemcgId(1), kind, 0);
        let mut list = Vec::new();
        for _ in 0..FILES {
            let space = spaces.create(MemcgId(1));
            space.add_area(Area::new(Vpn(0), Vpn(2 * PAGES), Backing::File));
            v.generations().spaces().join(space.id());
            cache.add_file(Arc::clone(&space), PAGES);
            list.push(space);
        }
        Self {
            folios,
            spaces,
            tun,
            stat: VmStat::default(),
            v,
            cache,
            list,
            memory: vec![[0; 4]; FRAMES as usize],
            disk: HashMap::new(),
            model: vec![vec![[0; 4]; PAGES as usize]; FILES as usize],
            free: (0..FRAMES).collect(),
            flying: VecDeque::new(),
            works: true,
            now_ms: 0,
            seen: vec![0; FILES as usize],
            failures: vec![0; FILES as usize],
            ahead: vec![FileAhead::default(); FILES as usize],
            fetched_ahead: 0,
        }
    }

    fn submit(&mut self, runs: Vec<Run>) {
        for run in runs {
            let held = run.frames.iter().map(|p| self.memory[p.0 as usize]).collect();
            self.flying.push_back((run, held));
        }
    }

    fn complete(&mut self) {
        let Some((run, held)) = self.flying.pop_front() else { return };
        for (i, pfn) in run.frames.iter().enumerate() {
            if self.works {
                self.disk.insert((run.file, run.page + i as u64), held[i]);
            } else {
                self.failures[run.file.0 as usize] += 1;
            }
            let cx = cx!(self);
            self.cache.end_write(&cx, &self.v, *pfn, self.works);
        }
    }

    fn reclaim(&mut self, pages: u64) {
        let cx = cx!(self);
        let mut sc = Scan::new(Reclaimer::Direct, false, pages, 60);
        for priority in (0..=12).rev() {
            sc.priority = priority;
            let mut out = Out { cache: &mut self.cache, free: &mut self.free };
            self.v.shrink(&cx, &mut sc, &mut out);
            if sc.reclaimed >= pages {
                break;
            }
        }
        self.v.end_reclaim();
    }

    fn flush(&mut self) {
        let limits = Limits { expire_ms: 100, ..Limits::default() };
        let t = Thresholds { background: 6, dirty: 12 };
        let cx = cx!(self);
        let runs = self.cache.next_batch(&cx, &limits, &t);
        self.submit(runs);
    }

    /// Returns a free frame, reclaiming and flushing if need be. Returns `None` if everything is
    /// dirty and cannot be written.
    fn frame(&mut self) -> Option<Pfn> {
        for _ in 0..8 {
            if let Some(pfn) = self.free.pop() {
                return Some(Pfn(pfn));
            }
            self.reclaim(4);
            if self.free.is_empty() {
                self.cache.ask_flusher();
                self.flush();
                while !self.flying.is_empty() {
                    self.complete();
                }
            }
        }
        None
    }

    /// Asks readahead for the window of a page of a file that is missing or marked.
    fn window(&mut self, file: FileId, page: u64, asked: u64, how: Touch) -> Option<Window> {
        let ahead = &mut self.ahead[file.0 as usize];
        let window = self.cache.ask_ahead(file, 0..u64::MAX, AHEAD_MAX, |view| match how {
            Touch::Missed => Some(ahead.missed(page, asked, view)),
            Touch::FaultMissed => Some(ahead.fault_missed(page, view)),
            Touch::Marked => ahead.marked(page, asked, view),
        })?;
        assert!(window.range().end <= self.cache.pages(file), "{window:?}");
        assert!(window.pages <= AHEAD_MAX && window.pages > 0, "{window:?}");
        assert!(how == Touch::Marked || window.range().contains(&page), "{window:?}");
        Some(window)
    }

    /// Reads a page from the disk into a frame.
    fn fetch(&mut self, file: FileId, page: u64, flags: Word) -> Option<Pfn> {
        let pfn = self.frame()?;
        self.memory[pfn.0 as usize] = self.disk.get(&(file, page)).copied().unwrap_or_default();
        let cx = cx!(self);
        self.cache.insert(&cx, &self.v, file, page, pfn, flags);
        self.v.add(&cx, pfn);
        Some(pfn)
    }

    /// Returns the page's frame and brings the page in if need be. Also reads ahead as far as there
    /// are free frames.
    fn bring(&mut self, file: FileId, page: u64, asked: u64, mapped: bool) -> Option<Pfn> {
        let (pfn, window) = match self.cache.find(file, page) {
            Found::Here(pfn) => {
                let cx = cx!(self);
                let marked = cx.folios.clear(pfn, Word::AHEAD).has(Word::AHEAD);
                if mapped {
                    self.ahead[file.0 as usize].fault_found();
                }
                let next = marked.then(|| self.window(file, page, asked, Touch::Marked)).flatten();
                (pfn, next)
            }
            Found::Beyond => panic!("page {page} is within the file"),
            Found::Absent(_) => {
                let how = if mapped { Touch::FaultMissed } else { Touch::Missed };
                let window = self.window(file, page, asked, how);
                let flags = Word::new(LruType::File, 0, 0);
                let flags = if mapped { flags.with(Word::MAPPED) } else { flags };
                (self.fetch(file, page, flags)?, window)
            }
        };
        let Some(window) = window else { return Some(pfn) };
        let missing: Vec<u64> = self.cache.missing(file, window).collect();
        for at in missing {
            // The requested page stays in memory while the others are read.
            if self.free.is_empty() {
                break;
            }
            let mark = if window.mark == Some(at) { Word::AHEAD } else { Word::default() };
            self.fetch(file, at, Word::new(LruType::File, 0, 0).with(Word::PREFETCHED).with(mark))?;
            self.fetched_ahead += 1;
        }
        Some(pfn)
    }

    fn read(&mut self, f: u32, p: u64, asked: u64) {
        let file = FileId(f);
        if p >= self.model[f as usize].len() as u64 {
            assert_eq!(self.cache.find(file, p), Found::Beyond);
            return;
        }
        let Some(pfn) = self.bring(file, p, asked, false) else { return };
        let cx = cx!(self);
        self.v.mark_accessed(&cx, pfn);
        assert_eq!(self.memory[pfn.0 as usize], self.model[f as usize][p as usize]);
        self.ahead[f as usize].read(p);
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Read(f, p) => self.read(f, p, 1),
            Op::ReadOn(f, p, n) => (0..n).for_each(|i| self.read(f, p + i, n - i)),
            Op::Load(f, p) => {
                let file = FileId(f);
                if p >= self.model[f as usize].len() as u64 {
                    assert_eq!(self.cache.find(file, p), Found::Beyond);
                    return;
                }
                let Some(pfn) = self.bring(file, p, 1, true) else { return };
                let cx = cx!(self);
                self.cache.map(&cx, file, p, false);
                assert_eq!(self.memory[pfn.0 as usize], self.model[f as usize][p as usize]);
            }
            Op::Write(f, p, byte) if p < self.model[f as usize].len() as u64 => {
                let Some(pfn) = self.bring(FileId(f), p, 1, false) else { return };
                self.change(f, p, byte, pfn);
                let cx = cx!(self);
                self.cache.make_dirty(&cx, FileId(f), p, pfn);
                self.v.mark_accessed(&cx, pfn);
            }
            Op::Store(f, p, byte) if p < self.model[f as usize].len() as u64 => {
                let Some(pfn) = self.bring(FileId(f), p, 1, true) else { return };
                let pte = self.list[f as usize].tree().place(Vpn(p)).get();
                // Only the first store is reported.
                if !pte.all(Pte::MAPPED | Pte::DIRTY) {
                    let cx = cx!(self);
                    self.cache.map(&cx, FileId(f), p, true);
                }
                self.change(f, p, byte, pfn);
            }
            Op::Write(..) | Op::Store(..) => {}
            Op::Flush => self.flush(),
            Op::Complete(n) => (0..n).for_each(|_| self.complete()),
            Op::Sync(f) => self.sync(f),
            Op::Truncate(f, pages) => self.truncate(f, pages),
            Op::Extend(f, pages) => {
                self.cache.extend(FileId(f), pages);
                let model = &mut self.model[f as usize];
                model.resize(model.len().max(pages as usize), [0; 4]);
            }
            Op::Reclaim(n) => self.reclaim(n),
            Op::Pass(ms) => self.now_ms += ms,
            Op::Disk(works) => self.works = works,
        }
    }

    fn change(&mut self, f: u32, p: u64, byte: u8, pfn: Pfn) {
        let at = usize::from(byte) % 4;
        self.memory[pfn.0 as usize][at] = byte;
        self.model[f as usize][p as usize][at] = byte;
    }

    fn sync(&mut self, f: u32) {
        let file = FileId(f);
        // Each page is tried once beside the writes under way, because a dead disk must not block
        // the test for ever.
        for _ in 0..2 {
            while !self.flying.is_empty() {
                self.complete();
            }
            let cx = cx!(self);
            let runs = self.cache.take_batch(&cx, file, Why::Sync(file), u64::MAX);
            self.submit(runs);
        }
        while !self.flying.is_empty() {
            self.complete();
        }
        let failed = self.failures[f as usize] > self.seen[f as usize];
        let answer = self.cache.synced(file, &mut self.seen[f as usize]);
        assert_eq!(answer, if failed { Err(WriteFailed) } else { Ok(()) });
        assert_eq!(self.cache.synced(file, &mut self.seen[f as usize]), Ok(()), "told once");
        if !failed {
            assert!(self.cache.is_clean(file));
            for (p, cell) in self.model[f as usize].iter().enumerate() {
                let stored = self.disk.get(&(file, p as u64)).copied().unwrap_or_default();
                assert_eq!(stored, *cell, "synced, page {p}");
            }
        }
    }

    fn truncate(&mut self, f: u32, pages: u64) {
        loop {
            let cx = cx!(self);
            let free = &mut self.free;
            let cut = self.cache.truncate(&cx, &self.v, FileId(f), pages, |p| free.push(p.0));
            if matches!(cut, Truncated::Done(_)) {
                break;
            }
            self.complete();
        }
        self.disk.retain(|&(file, page), _| file.0 != f || page < pages);
        self.model[f as usize].truncate(pages as usize);
    }

    /// Compares every byte, in memory or on disk.
    fn compare(&mut self) {
        let cx = cx!(self);
        self.cache.check(&cx);
        self.v.check_invariants(&cx);
        let mut here = 0;
        for f in 0..FILES {
            for (p, cell) in self.model[f as usize].iter().enumerate() {
                let found = match self.cache.find(FileId(f), p as u64) {
                    Found::Here(pfn) => {
                        here += 1;
                        self.memory[pfn.0 as usize]
                    }
                    Found::Absent(_) => {
                        self.disk.get(&(FileId(f), p as u64)).copied().unwrap_or_default()
                    }
                    Found::Beyond => panic!("file {f} ends before page {p}"),
                };
                assert_eq!(found, *cell, "file {f} page {p}");
            }
        }
        assert_eq!(here + self.free.len(), FRAMES as usize, "no frame is lost");
    }
}

fn op() -> impl Strategy<Value = Op> {
    let (file, page) = (0..FILES, 0..PAGES);
    let at = (file.clone(), page.clone());
    let change = (file.clone(), page.clone(), any::<u8>());
    prop_oneof![
        4 => at.clone().prop_map(|(f, p)| Op::Read(f, p)),
        2 => (file.clone(), page, 1..16u64).prop_map(|(f, p, n)| Op::ReadOn(f, p, n)),
        6 => change.clone().prop_map(|(f, p, b)| Op::Write(f, p, b)),
        2 => at.clone().prop_map(|(f, p)| Op::Load(f, p)),
        4 => change.prop_map(|(f, p, b)| Op::Store(f, p, b)),
        3 => Just(Op::Flush),
        3 => (1..4usize).prop_map(Op::Complete),
        1 => file.prop_map(Op::Sync),
        1 => at.clone().prop_map(|(f, p)| Op::Truncate(f, p)),
        1 => at.prop_map(|(f, p)| Op::Extend(f, p)),
        3 => (1..8u64).prop_map(Op::Reclaim),
        1 => (1..200u64).prop_map(Op::Pass),
        1 => any::<bool>().prop_map(Op::Disk),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]
    #[test]
    fn no_byte_is_lost(
        kind in 0..4usize,
        ops in proptest::collection::vec(op(), 1..400),
    ) {
        let (kind, dirty) = [
            (LruKind::Gen, Dirty::K618),
            (LruKind::Gen, Dirty::K72),
            (LruKind::Classic, Dirty::Classic),
            (LruKind::Gen, Dirty::Classic),
        ][kind];
        let mut world = World::new(kind, dirty);
        for op in &ops {
            world.apply(op);
        }
        world.compare();
        // Once more, with a working disk, by the contents of the disk alone.
        world.works = true;
        for f in 0..FILES {
            world.sync(f);
            world.sync(f);
        }
        world.compare();
    }
}

/// Returns the pages begun in each round of the flusher, until nothing is left that cannot wait.
fn looks(w: &mut World) -> Vec<usize> {
    let t = Thresholds { background: 100, dirty: 200 };
    let limits = Limits { expire_ms: 100, ..Limits::default() };
    let mut begun = Vec::new();
    loop {
        let cx = cx!(w);
        let runs = w.cache.next_batch(&cx, &limits, &t);
        begun.push(runs.iter().map(|r| r.frames.len()).sum());
        w.submit(runs);
        if !w.cache.flush_now(&t) {
            return begun;
        }
    }
}

#[test]
fn a_file_that_is_old_enough_is_written_whole() {
    // Shows that an expired file is not limited to one batch in thirty seconds. With that limit
    // nearly the whole page cache of a database stayed dirty.
    let mut w = World::new(LruKind::Gen, Dirty::K618);
    (20..30).rev().for_each(|p| w.apply(&Op::Write(0, p, 1)));
    w.now_ms = 60;
    (20..26).rev().for_each(|p| w.apply(&Op::Write(1, p, 1)));
    assert_eq!(looks(&mut w), [0], "nothing is old enough");
    w.now_ms = 120;
    assert_eq!(looks(&mut w), [4, 4, 2], "the second file is younger");
    w.apply(&Op::Write(0, 23, 2));
    w.now_ms = 170;
    assert_eq!(looks(&mut w), [4, 2]);
    w.now_ms = 230;
    while !w.flying.is_empty() {
        w.complete();
    }
    assert_eq!(looks(&mut w), [1], "what was changed meanwhile has its own time");
    w.apply(&Op::Complete(9));
    w.compare();
}

#[test]
fn the_flusher_writes_all_pages_that_are_dirty_when_reclaim_asks() {
    let mut w = World::new(LruKind::Gen, Dirty::K72);
    (20..27).rev().for_each(|p| w.apply(&Op::Write(0, p, 1)));
    (20..23).rev().for_each(|p| w.apply(&Op::Write(1, p, 1)));
    w.cache.ask_flusher();
    assert_eq!(looks(&mut w).iter().sum::<usize>(), 10);
    w.apply(&Op::Write(2, 20, 1));
    assert_eq!(looks(&mut w), [0], "nobody asked for this one");
    w.apply(&Op::Complete(9));
    w.compare();
}

#[test]
fn a_file_read_in_order_is_fetched_in_windows() {
    let mut w = World::new(LruKind::Gen, Dirty::K72);
    for p in 0..PAGES {
        w.apply(&Op::Write(0, p, p as u8));
        w.apply(&Op::Sync(0));
    }
    w.reclaim(FRAMES.into());
    let before = w.fetched_ahead;
    (0..PAGES).for_each(|p| w.apply(&Op::Read(0, p)));
    // All pages but the first and those that found no free frame.
    assert!(w.fetched_ahead - before > PAGES / 2, "{}", w.fetched_ahead - before);
    w.compare();
}

#[test]
fn a_failed_write_leaves_the_page_dirty_and_is_reported_at_sync() {
    let mut w = World::new(LruKind::Gen, Dirty::K72);
    w.apply(&Op::Write(0, 3, 7));
    w.apply(&Op::Disk(false));
    w.sync(0);
    assert_eq!((w.cache.dirty(), w.seen[0]), (1, w.failures[0]));
    assert!(w.failures[0] > 0);
    w.reclaim(FRAMES.into());
    assert!(matches!(w.cache.find(FileId(0), 3), Found::Here(_)), "it cannot go");
    w.apply(&Op::Disk(true));
    w.sync(0);
    assert_eq!(w.disk[&(FileId(0), 3)], w.model[0][3]);
    w.compare();
}

#[test]
fn a_page_that_reclaim_met_dirty_is_reclaimed_first_after_its_write() {
    for dirty in [Dirty::Classic, Dirty::K618, Dirty::K72] {
        let mut w = World::new(LruKind::Gen, dirty);
        for p in 0..20 {
            w.apply(&Op::Write(0, p, 1));
        }
        w.reclaim(4);
        assert_eq!(w.free.len(), 4, "nothing clean was there to take");
        assert!(w.cache.flusher_asked() || dirty == Dirty::K618);
        w.cache.ask_flusher();
        w.flush();
        while !w.flying.is_empty() {
            w.complete();
        }
        assert!(w.stat.get(Event::PgRotated) > 0, "{dirty:?}");
        w.reclaim(8);
        assert!(w.free.len() >= 8, "{dirty:?}: {}", w.free.len());
        w.compare();
    }
}

#[test]
fn batches_take_turns_and_go_on_where_they_stopped() {
    let mut w = World::new(LruKind::Gen, Dirty::K72);
    for p in [0, 1, 2, 5] {
        w.apply(&Op::Write(0, p, 1));
    }
    w.now_ms = 50;
    w.apply(&Op::Write(1, 0, 1));
    let runs = |w: &mut World, why, most| -> Vec<(u64, usize)> {
        let cx = cx!(w);
        let runs = w.cache.take_batch(&cx, FileId(0), why, most);
        let seen = runs.iter().map(|r| (r.page, r.frames.len())).collect();
        w.submit(runs);
        seen
    };
    assert_eq!(runs(&mut w, Why::Amount, 2), [(0, 2)]);
    w.apply(&Op::Write(0, 0, 2));
    assert_eq!(runs(&mut w, Why::Amount, 9), [(2, 1), (5, 1)], "page 0 is being written still");
    w.apply(&Op::Complete(9));
    assert_eq!(runs(&mut w, Why::Amount, 9), [(0, 1)]);
    // The other file has not expired yet. It does when time has passed.
    w.now_ms = 120;
    w.flush();
    assert_eq!(w.flying.len(), 1);
    w.now_ms = 150;
    w.flush();
    assert_eq!(w.flying.len(), 2);
    w.apply(&Op::Complete(9));
    w.compare();
}
