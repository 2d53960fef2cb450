//! A page cache on the engine: reads of a file through the engine, compared with the same reads
//! through a plain LRU.
//!
//! ```text
//! cargo run --release -p ebb-mm --example file_cache [SEED]
//! ```
//! The reads are like those of a database: most go to few pages, and sometimes there is a scan. A
//! plain LRU gives the room of pages in use to those of the scan. The engine keeps pages that were
//! read once on probation. One seed always gives the same figures.

mod common;

use common::Random;
use ebb_mm::{Engine, Evidence, Fault, PAGE_SIZE, Pfn, Space, Vpn, WakeRequests, Work};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Number of pages of the file, and of the cache.
const FILE_PAGES: u64 = 10_000;
const CACHE_PAGES: u64 = 1_000;
const READS: u64 = 200_000;

/// A cache whose `pages` hold the contents, by the engine's frame number of each page.
struct Cache {
    file: File,
    engine: Engine,
    space: Space,
    wake_requests: WakeRequests,
    pages: HashMap<Pfn, Box<[u8; PAGE_SIZE]>>,
    hits: u64,
}

impl Cache {
    fn new(file: File) -> Self {
        let evidence = Evidence::AccessedBits;
        let mut engine = Engine::new(CACHE_PAGES, CACHE_PAGES, evidence.tunables(), evidence);
        let space = engine.create_space(Vpn(FILE_PAGES));
        Self {
            file,
            engine,
            space,
            wake_requests: WakeRequests::new(),
            pages: HashMap::new(),
            hits: 0,
        }
    }

    /// Returns the bytes of a page of the file.
    fn read(&mut self, vpn: Vpn) -> io::Result<&[u8; PAGE_SIZE]> {
        let pfn = match self.engine.fault(&mut self.space, vpn) {
            Fault::Present(pfn) | Fault::Reactivated { pfn, .. } => {
                self.hits += 1;
                pfn
            }
            Fault::Load(_, charge) | Fault::Fresh(charge) => {
                let mut page = Box::new([0; PAGE_SIZE]);
                if let Err(error) = self.file.read_exact_at(&mut page[..], vpn.address()) {
                    self.engine.cancel(charge);
                    return Err(error);
                }
                // Make room first, so that the page that is brought in does not leave at once.
                self.reclaim();
                let pfn = self.engine.complete(&mut self.space, vpn, charge);
                self.pages.insert(pfn, page);
                pfn
            }
        };
        Ok(&self.pages[&pfn])
    }

    /// Does all work of kswapd. A page that leaves is in the file already, so its slot stands for
    /// that.
    fn reclaim(&mut self) {
        let mut pages = Vec::new();
        while let Some(work) = self.engine.work(&self.wake_requests, &mut pages) {
            assert_eq!(work, Work::Store, "with accessed bits nothing is on standby");
            for pfn in &pages {
                let slot = self.engine.slot_for(*pfn).expect("there are four billion");
                self.engine.leave(&mut self.space, *pfn, slot);
                self.pages.remove(pfn);
            }
        }
    }
}

/// A cache that drops the least recently used page.
#[derive(Default)]
struct PlainLru {
    last: HashMap<Vpn, u64>,
    by_age: BTreeMap<u64, Vpn>,
    hits: u64,
}

impl PlainLru {
    fn read(&mut self, vpn: Vpn, now: u64) {
        if let Some(before) = self.last.insert(vpn, now) {
            self.hits += 1;
            self.by_age.remove(&before);
        }
        self.by_age.insert(now, vpn);
        if self.last.len() as u64 > CACHE_PAGES
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.last.remove(&oldest);
        }
    }
}

/// Nine reads of ten go to a tenth of the pages, the lower ones more often. Now and then 500 pages
/// are read in a row.
struct Reads {
    random: Random,
    scan: std::ops::Range<u64>,
}

impl Reads {
    fn next(&mut self) -> Vpn {
        if let Some(page) = self.scan.next() {
            return Vpn(page);
        }
        if self.random.below(1_000) == 0 {
            let start = self.random.below(FILE_PAGES - 500);
            self.scan = start..start + 500;
        }
        let few = if self.random.below(10) < 9 { FILE_PAGES / 10 } else { FILE_PAGES };
        Vpn(self.random.below(few).min(self.random.below(few)))
    }
}

/// Returns the hits of the engine's cache and of the plain LRU.
fn run(seed: u64) -> io::Result<(u64, u64)> {
    // A file without a name, whose pages begin with their numbers.
    let path = std::env::temp_dir().join(format!("ebb-file-cache-{}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(FILE_PAGES * PAGE_SIZE as u64)?;
    for page in 0..FILE_PAGES {
        file.write_all_at(&page.to_le_bytes(), Vpn(page).address())?;
    }
    let (mut cache, mut plain) = (Cache::new(file), PlainLru::default());
    let mut reads = Reads { random: Random(seed.max(1)), scan: 0..0 };
    for now in 0..READS {
        let vpn = reads.next();
        assert_eq!(cache.read(vpn)?[..8], vpn.0.to_le_bytes());
        plain.read(vpn, now);
        assert!(cache.pages.len() as u64 <= CACHE_PAGES);
    }
    Ok((cache.hits, plain.hits))
}

fn main() -> io::Result<()> {
    let seed = std::env::args().nth(1).map_or(Ok(1), |seed| seed.parse()).expect("a number");
    let (engine, plain) = run(seed)?;
    let rate = |hits: u64| 100.0 * hits as f64 / READS as f64;
    println!("{READS} reads of {FILE_PAGES} pages through {CACHE_PAGES}, seed {seed}");
    println!("engine     {:.2} % hits", rate(engine));
    println!("plain LRU  {:.2} % hits", rate(plain));
    Ok(())
}

#[test]
fn scans_push_less_out_than_with_a_plain_lru() -> io::Result<()> {
    let (engine, plain) = run(1)?;
    assert!(engine > plain, "{engine} hits, {plain} with a plain LRU");
    assert_eq!((engine, plain), run(1)?, "the same seed gives the same figures");
    Ok(())
}
