//! Prefetch: a few threads read pages before a thread needs them.
//!
//! [`Ahead::ask`] claims the word of each page. A thread that needs such a page waits for this read
//! instead of starting another. The first call starts the threads.
//!
//! * AHEAD-1: a claimed page is in the queue or at a prefetch thread. That thread publishes the
//!   page or gives up on it. The end of the pool may leave claimed pages, because no thread is left
//!   that could wait for them.

use crate::error::PageId;
use crate::pool::Inner;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Number of threads, and so of reads in flight at once.
const THREADS: usize = 8;
/// Largest number of queued pages; it is also limited to a quarter of the frames.
const QUEUE_MAX: usize = 256;

#[derive(Default)]
struct Queue {
    pages: VecDeque<PageId>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// The prefetch threads and their queue. See the head of the file.
pub struct Ahead {
    pool: Arc<Inner>,
    shared: Arc<Shared>,
    threads: OnceLock<Vec<JoinHandle<()>>>,
    most: usize,
}

impl Ahead {
    pub fn new(pool: Arc<Inner>) -> Self {
        let most = QUEUE_MAX.min(pool.frames.count() as usize / 4);
        let shared = Arc::new(Shared { queue: Mutex::default(), filled: Condvar::new() });
        Self { pool, shared, threads: OnceLock::new(), most }
    }

    /// Returns how many of the pages this call has queued.
    pub fn ask(&self, pages: &[PageId]) -> usize {
        let threads =
            self.threads.get_or_init(|| (0..THREADS).filter_map(|_| self.thread()).collect());
        if threads.is_empty() {
            return 0;
        }
        let mut asked = 0;
        for &page in pages {
            let mut queue = self.shared.queue.lock();
            if queue.pages.len() >= self.most {
                break;
            }
            if self.pool.has(page) && self.pool.table.word(page).claim() {
                queue.pages.push_back(page);
                asked += 1;
                self.shared.filled.notify_one();
            }
        }
        asked
    }

    /// Starts a thread. Returns `None` if the system cannot start one; then fewer threads, or none,
    /// prefetch.
    fn thread(&self) -> Option<JoinHandle<()>> {
        let (pool, shared) = (self.pool.clone(), self.shared.clone());
        let work = move || {
            while let Some(page) = shared.next() {
                pool.load_ahead(page);
            }
        };
        std::thread::Builder::new().name("ebb-pool-ahead".into()).spawn(work).ok()
    }
}

impl Shared {
    fn next(&self) -> Option<PageId> {
        let mut queue = self.queue.lock();
        loop {
            if queue.closed {
                return None;
            }
            if let Some(page) = queue.pages.pop_front() {
                return Some(page);
            }
            self.filled.wait(&mut queue);
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.queue.lock().closed = true;
        self.shared.filled.notify_all();
        for thread in self.threads.take().into_iter().flatten() {
            // A thread that panicked has printed its message already.
            let _ = thread.join();
        }
    }
}
