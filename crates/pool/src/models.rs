//! Models for loom: latches of one page, in every schedule within a bound on preemptions.

use crate::word::{Found, Latch, Word};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// One page, and the bytes of the only frame. A thread that accesses them must have the latch, or
/// have evicted the page. Loom reports accesses that are not ordered.
#[derive(Default)]
struct Page {
    word: Word,
    bytes: UnsafeCell<[u32; 2]>,
}

impl Page {
    fn latch(&self, how: Latch) {
        if self.word.latch(how) == Found::Missing {
            // The page is loaded as it was evicted, because the model has no file.
            self.bytes.with_mut(|bytes| {
                // SAFETY: a missing page is latched exclusively by the thread that found it
                // missing.
                let _loaded = unsafe { &mut *bytes };
            });
            self.word.publish(0, Some(how));
        }
    }

    fn write(&self) {
        self.latch(Latch::Exclusive);
        self.bytes.with_mut(|bytes| {
            // SAFETY: the page is latched exclusively.
            let bytes = unsafe { &mut *bytes };
            *bytes = bytes.map(|n| n + 1);
        });
        self.word.unlatch_exclusive();
    }

    fn read(&self) -> u32 {
        self.latch(Latch::Shared);
        let bytes = self.bytes.with(|bytes| {
            // SAFETY: the page is latched.
            unsafe { *bytes }
        });
        self.word.unlatch_shared();
        assert_eq!(bytes[0], bytes[1]);
        bytes[0]
    }

    fn look(&self) {
        self.read();
    }

    /// Evicts the page, if no thread has it latched, and writes to the frame as its next owner
    /// would.
    fn evict(&self) {
        if self.word.evict(self.word.state()) && self.word.claim() {
            self.bytes.with_mut(|bytes| {
                // SAFETY: the page was in no frame, and only this thread can bring it in.
                let _mine = unsafe { &mut *bytes };
            });
            self.word.publish(0, None);
        }
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

fn threads(page: &Arc<Page>, does: &[fn(&Page)]) {
    let start = |&does: &fn(&Page)| {
        let page = page.clone();
        thread::spawn(move || does(&page))
    };
    let started: Vec<_> = does.iter().map(start).collect();
    started.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn two_writers_exclude_each_other_and_both_proceed() {
    check(3, || {
        let page = Arc::new(Page::default());
        threads(&page, &[Page::write, Page::write]);
        assert_eq!(page.read(), 2);
    });
}

#[test]
fn a_reader_sees_no_half_of_a_change() {
    check(2, || {
        let page = Arc::new(Page::default());
        threads(&page, &[Page::write, Page::look, Page::look]);
        assert_eq!(page.read(), 1);
    });
}

#[test]
fn a_latched_page_is_not_evicted() {
    check(3, || {
        let page = Arc::new(Page::default());
        page.write();
        threads(&page, &[Page::write, Page::look, Page::evict]);
        assert_eq!(page.read(), 2);
    });
}
