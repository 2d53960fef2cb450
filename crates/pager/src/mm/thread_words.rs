//! Pins the words that the kernel writes when threads end or get a CPU, in programs without hooks
//! that report them.
//!
//! For glibc the kernel clears a word of the thread's descriptor when a thread ends, and wakes a
//! joining thread. The kernel does not fault the page in for that. If the page is out, the word is
//! not cleared, and the joining thread would wait for ever. A program that got the agent by
//! injection ([`crate::processes::inject`]) has no hook in front of `pthread_create`.
//!
//! * WORDS-1: the word lies in front of the head of the thread's list of robust mutexes, which is
//!   also in the descriptor. The kernel reports this head (`get_robust_list`). Each thread of glibc
//!   registers it as its first action. The pages of both stay in memory, as pages pinned by a hook
//!   do.
//! * WORDS-2: the pager looks for threads before each batch in which pages leave. No page leaves a
//!   process that cannot be inspected. A thread younger than that check uses its descriptor. If its
//!   page is in the batch, because it was cold before, the thread faults on it again before it
//!   ends.
//! * WORDS-3: threads without a list (Go's, the agent's) have no word cleared.
//! * WORDS-4: the restartable-sequence area of the thread (rseq) is in the descriptor, or a little
//!   before it ([`RSEQ_WITHIN`]). The kernel writes to it when the thread has got a CPU. A fault of
//!   that write repeats again and again while a signal or a stop is pending
//!   ([`ebb_sys::cgroup::may_be_used_up`]). So its page stays in memory, too.

use crate::mm::Mm;
use crate::mm::link::Link;
use ebb_mm::types::{MmId, Vpn};
use ebb_sys::percpu::RSEQ_WITHIN;
use std::collections::{BTreeMap, HashMap};

/// Known threads of each address space, with the heads of their lists.
#[derive(Default)]
pub struct ThreadWords(HashMap<MmId, BTreeMap<u32, u64>>);

impl ThreadWords {
    /// Pins the pages that the ends of threads write to. Returns false if they cannot be
    /// determined; no page may leave then.
    pub fn keep(&mut self, mm: &Mm) -> bool {
        if !mm.agent.lacks_hooks {
            return true;
        }
        let (Some(process), Some(link)) = (mm.process(), mm.agent.link()) else { return false };
        let known = self.0.entry(mm.id).or_default();
        let before: Vec<u32> = known.keys().copied().collect();
        if process.robust_lists(known).is_err() {
            return false;
        }
        let is_new = |thread: &u32| before.binary_search(thread).is_err();
        known.iter().filter(|(thread, _)| is_new(thread)).for_each(|(_, &head)| pin(link, head));
        true
    }

    /// Forgets all address spaces but those for which `is_there` holds.
    pub fn retain(&mut self, is_there: impl Fn(MmId) -> bool) {
        self.0.retain(|&id, _| is_there(id));
    }
}

fn pin(link: &Link, head: u64) {
    let first = Vpn::of_address(head.saturating_sub(RSEQ_WITHIN)).0;
    let last = Vpn::of_address(head.saturating_add(RSEQ_WITHIN)).0;
    (first..=last).for_each(|vpn| link.keep(vpn));
}

#[cfg(test)]
mod tests {
    use super::RSEQ_WITHIN;
    use std::sync::mpsc::channel;

    /// Distance of the cleared word before the head of the list, in bytes.
    const WORD_BEFORE: u64 = 16;

    /// Shows that the page of the cleared word is pinned in glibc: the word that joiners wait for
    /// lies before the list, and holds the thread's number.
    #[test]
    fn the_word_that_is_cleared_lies_before_the_list() {
        let (tell, told) = channel();
        let (end, ended) = channel::<()>();
        let thread = std::thread::spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            tell.send(own).expect("somebody listens");
            let _ = ended.recv();
        });
        let number = told.recv().expect("it says its number");
        let head = ebb_sys::process::robust_list(number).expect("of this process").expect("told");
        let memory = std::fs::File::open("/proc/self/mem").expect("own memory");
        let mut word = [0; 4];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut word, head - WORD_BEFORE)
            .expect("it is there");
        assert_eq!(u32::from_ne_bytes(word), number);
        const { assert!(WORD_BEFORE <= RSEQ_WITHIN) };
        drop(end);
        thread.join().expect("it ends");
    }
}
