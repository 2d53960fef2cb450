//! Reads that nobody waits for yet: a few threads bring in what was asked for ahead.
//!
//! Who asks claims the page's word, so that who needs the page meanwhile waits for this read instead of beginning one. The
//! threads are started by the first such call.
//!
//! * AHEAD-1: a page that was claimed is in the queue or at a thread, which publishes or gives up on it; when the pool
//! goes, nobody is left who could wait.

use crate::error::PageId;
use crate::pool::Inner;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Reads in flight at once.
const THREADS: usize = 8;
/// Pages that wait to be read, at most, and at most a quarter of the frames.
const QUEUE_MAX: usize = 256;

#[derive(Default)]
struct Queue {
    pages: VecDeque<PageId>,
    closed: bool,
}

struct Desk {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// See the head of the file.
pub struct Ahead {
    pool: Arc<Inner>,
    desk: Arc<Desk>,
    threads: OnceLock<Vec<JoinHandle<()>>>,
    most: usize,
}

impl Ahead {
    pub fn new(pool: Arc<Inner>) -> Self {
        let most = QUEUE_MAX.min(pool.frames.count() as usize / 4);
        let desk = Arc::new(Desk { queue: Mutex::default(), filled: Condvar::new() });
        Self { pool, desk, threads: OnceLock::new(), most }
    }

    /// How many of the pages are on their way by this call.
    pub fn ask(&self, pages: &[PageId]) -> usize {
        let threads =
            self.threads.get_or_init(|| (0..THREADS).filter_map(|_| self.thread()).collect());
        if threads.is_empty() {
            return 0;
        }
        let mut asked = 0;
        for &page in pages {
            let mut queue = self.desk.queue.lock();
            if queue.pages.len() >= self.most {
                break;
            }
            if self.pool.has(page) && self.pool.table.word(page).claim() {
                queue.pages.push_back(page);
                asked += 1;
                self.desk.filled.notify_one();
            }
        }
        asked
    }

    /// None if the system has no thread to give: then there are fewer, or nothing comes ahead.
    fn thread(&self) -> Option<JoinHandle<()>> {
        let (pool, desk) = (self.pool.clone(), self.desk.clone());
        let work = move || {
            while let Some(page) = desk.next() {
                pool.load_ahead(page);
            }
        };
        std::thread::Builder::new().name("ebb-pool-ahead".into()).spawn(work).ok()
    }
}

impl Desk {
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
        self.desk.queue.lock().closed = true;
        self.desk.filled.notify_all();
        for thread in self.threads.take().into_iter().flatten() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}
