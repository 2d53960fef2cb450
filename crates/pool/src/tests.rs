//! Tests the pool on real files.

use crate::{Options, PageId, Pool, PoolError};
use std::path::Path;

fn open(folder: &Path, options: Options) -> Pool {
    Pool::open(folder.join("pages"), options).unwrap()
}

/// Adds and commits pages that begin with their numbers.
fn fill(pool: &Pool, pages: u64) {
    let change = pool.change();
    for _ in 0..pages {
        let mut page = change.allocate().unwrap();
        let number = page.page().0;
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
    change.commit().unwrap();
}

fn read(pool: &Pool, page: u64) {
    assert_eq!(pool.shared(PageId(page)).unwrap()[..8], page.to_le_bytes());
}

#[test]
fn committed_pages_are_there_when_the_pool_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    for direct in [true, false] {
        let options = Options { direct, ..Options::frames(32) };
        let pool = open(folder.path(), options);
        let before = pool.pages();
        fill(&pool, 500);
        let change = pool.change();
        change.allocate().unwrap()[0] = 1;
        drop(change);
        drop(pool);
        let pool = open(folder.path(), options);
        assert_eq!(pool.pages(), before + 500, "what was not committed never was");
        (0..pool.pages()).for_each(|page| read(&pool, page));
    }
}

#[test]
fn every_frame_is_free_or_known_to_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let pool = open(folder.path(), Options::frames(64));
    fill(&pool, 1_000);
    for turn in 0..20_000u64 {
        read(&pool, (turn * turn) % 1_000);
        if turn % 500 == 0 {
            let (free, known) = pool.inner().accounted();
            assert_eq!(free + known, 64, "in turn {turn}");
        }
    }
    let stats = pool.stats();
    assert!(stats.reads > 10_000 && stats.evictions >= stats.reads, "{stats:?}");
}

#[test]
fn pages_that_are_read_once_push_nothing_out() {
    let folder = tempfile::tempdir().unwrap();
    let pool = open(folder.path(), Options::frames(256));
    fill(&pool, 4_000);
    let scans = |once: bool| {
        // Two hundred pages in constant use, and a scan of others.
        for _ in 0..20 {
            (0..200).for_each(|page| read(&pool, page));
        }
        let before = pool.stats().reads;
        for page in 1_000..4_000 {
            let id = PageId(page);
            let page = if once { pool.shared_once(id) } else { pool.shared(id) };
            drop(page.unwrap());
        }
        let scanned = pool.stats().reads - before;
        (0..200).for_each(|page| read(&pool, page));
        (scanned, pool.stats().reads - before - scanned)
    };
    let (scanned, lost) = scans(true);
    assert!(scanned > 2_900 && lost < 20, "{lost} of 200 were pushed out by {scanned}");
}

#[test]
fn prefetched_pages_are_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let pool = open(folder.path(), Options::frames(512));
    fill(&pool, 2_000);
    // The first pages added are no longer in memory, the last are.
    let pages: Vec<PageId> = (1_000..1_100).map(PageId).collect();
    let asked = pool.prefetch(&pages) as u64;
    assert!(asked > 50, "{asked}");
    ebb_testing::eventually_is("the reads ahead", asked, || pool.stats().reads_ahead);
    let before = pool.stats().reads;
    (1_000..1_100).for_each(|page| read(&pool, page));
    assert_eq!(pool.stats().reads, before);
    assert_eq!(pool.prefetch(&pages), 0, "they are in memory");
    assert_eq!(pool.prefetch(&[PageId(2_000)]), 0, "there is no such page");
}

#[test]
fn a_journal_that_is_full_is_moved_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { journal_pages: 100, ..Options::frames(64) };
    let pool = open(folder.path(), options);
    fill(&pool, 50);
    assert_eq!(pool.stats().file_writes, 0);
    for _ in 0..10 {
        fill(&pool, 50);
    }
    assert!(pool.stats().file_writes > 400, "{:?}", pool.stats());
    let length = |name: &str| folder.path().join(name).metadata().unwrap().len() / 4096;
    assert!(length("pages-journal") <= 300, "{} pages", length("pages-journal"));
    pool.checkpoint().unwrap();
    assert_eq!(length("pages"), 550);
    (0..550).for_each(|page| read(&pool, page));
}

#[test]
fn wrong_options_and_pages_beyond_the_end_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = |options| Pool::open(folder.path().join("pages"), options).unwrap_err().to_string();
    assert_eq!(error(Options::frames(3)), "frames is 3, and must be 16 or more");
    assert!(error(Options { pages_max: 0, ..Options::frames(16) }).starts_with("pages_max is 0"));
    assert!(!folder.path().join("pages").exists(), "nothing was begun");

    let pool = open(folder.path(), Options { pages_max: 20, ..Options::frames(16) });
    assert!(error(Options::frames(16)).ends_with("pages is in use by another pool"));
    fill(&pool, 20);
    let full = pool.change().allocate().map(|_| ()).unwrap_err();
    assert!(full.to_string().contains("the most it was opened for"), "{full}");
    let beyond = pool.shared(PageId(20)).map(|_| ()).unwrap_err();
    assert_eq!(beyond.to_string(), "page 20 is beyond the end: there are 20 pages");
    drop(pool);
    let error = error(Options { pages_max: 10, ..Options::frames(16) });
    assert_eq!(error, "pages_max is 10, and must be as many as the pool has, or more");
}

#[test]
fn a_file_that_is_no_journal_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("pages-journal");
    std::fs::write(&journal, "my diary").unwrap();
    let error = Pool::open(folder.path().join("pages"), Options::frames(16)).unwrap_err();
    assert!(matches!(error, PoolError::NotAJournal { .. }), "{error}");
    assert_eq!(std::fs::read(&journal).unwrap(), b"my diary");
}

#[test]
fn a_request_gets_an_error_while_all_frames_are_latched() {
    let folder = tempfile::tempdir().unwrap();
    let pool = open(folder.path(), Options::frames(16));
    fill(&pool, 40);
    let mut latched = Vec::new();
    let error = loop {
        match pool.shared(PageId(latched.len() as u64)) {
            Ok(page) => latched.push(page),
            Err(error) => break error,
        }
    };
    assert!(latched.len() >= 14, "{}", latched.len());
    assert!(error.to_string().starts_with("all 16 frames were latched"), "{error}");
    latched.pop();
    read(&pool, 39);
}

#[test]
fn a_commit_within_a_change_does_not_wait_for_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (pool, other) = (open(folder.path(), Options::frames(16)), tempfile::tempdir().unwrap());
    let other = open(other.path(), Options::frames(16));
    let change = pool.change();
    assert!(matches!(pool.commit(), Err(PoolError::CommitInChange)));
    other.commit().unwrap();
    drop(change);
    pool.commit().unwrap();
}

#[test]
#[should_panic(expected = "a change within a change")]
fn a_change_within_a_change_is_a_fault_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let pool = open(folder.path(), Options::frames(16));
    let _one = pool.change();
    let _two = pool.change();
}

/// Shows that commits of many threads make each thread's own change durable, and that one commit
/// can serve several threads.
#[test]
fn commits_are_shared() {
    let folder = tempfile::tempdir().unwrap();
    let pool = open(folder.path(), Options { journal_pages: 1 << 20, ..Options::frames(256) });
    std::thread::scope(|threads| {
        for _ in 0..8 {
            threads.spawn(|| (0..20).for_each(|_| fill(&pool, 1)));
        }
    });
    drop(pool);
    let pool = open(folder.path(), Options::frames(256));
    assert_eq!(pool.pages(), 160);
    (0..160).for_each(|page| read(&pool, page));
}

/// Shows that after a flipped bit anywhere in the journal the pool is as a whole commit left it, or
/// the journal is refused.
#[test]
fn a_journal_that_rots_ends_at_a_commit() {
    let folder = tempfile::tempdir().unwrap();
    let pool = open(folder.path(), Options { direct: false, ..Options::frames(32) });
    for _ in 0..5 {
        fill(&pool, 3);
    }
    drop(pool);
    let names = ["pages", "pages-journal"].map(|name| folder.path().join(name));
    let [file, journal] = names.each_ref().map(|name| std::fs::read(name).unwrap());
    assert!(file.is_empty(), "all of it is in the journal");
    for flipped in (0..journal.len()).step_by(97) {
        let mut rotten = journal.clone();
        rotten[flipped] ^= 1 << (flipped % 8);
        std::fs::write(&names[0], &file).unwrap();
        std::fs::write(&names[1], rotten).unwrap();
        match Pool::open(&names[0], Options { direct: false, ..Options::frames(32) }) {
            Ok(pool) => {
                assert!(pool.pages() % 3 == 0 && pool.pages() <= 15, "{} pages", pool.pages());
                (0..pool.pages()).for_each(|page| read(&pool, page));
            }
            Err(error) => assert!(matches!(error, PoolError::NotAJournal { .. }), "{error}"),
        }
    }
}
