//! Words that the kernel writes as threads end, in programs in which no hook tells of them.
//!
//! glibc has the kernel clear a word of the thread's descriptor when a thread has ended, for whoever joins it. The kernel
//! brings no page back for that, and where the page is out it is not cleared: who joins would wait for ever. In a program
//! that the agent was put into ([`crate::inject`]) nobody stands before `pthread_create`.
//!
//! * WORDS-1: the word lies in front of the head of the thread's list of robust mutexes, which is in the descriptor as well. The
//!   kernel says where that is (`get_robust_list`): each thread of glibc's tells it as the first thing it does. The pages
//!   of both stay, as those that a hook pins.
//! * WORDS-2: threads are looked for before each batch in which pages leave, and none leaves of a process that does not let
//!   itself be looked at. A thread that is younger than that look uses its descriptor: should the page be of the batch,
//!   cold from before, it is touched once more before the thread ends.
//! * WORDS-3: threads that tell of no list (Go's, the agent's) have nothing cleared.

use crate::link::Link;
use crate::mm::Mm;
use ebb_mm::types::{MmId, Vpn};
use std::collections::{BTreeMap, HashMap};

/// Where the word lies that is cleared, before the head of the list.
const WORD_BEFORE: u64 = 16;
/// Bytes of the head: the next, an offset, and what is being locked.
const HEAD_BYTES: u64 = 24;

/// The threads known of each address space, with the heads of their lists.
#[derive(Default)]
pub struct ThreadWords(HashMap<MmId, BTreeMap<u32, u64>>);

impl ThreadWords {
    /// Has what the threads of an address space need stay in memory. False if that cannot be known: nothing of it may leave.
    pub fn keep(&mut self, mm: &Mm) -> bool {
        if !mm.is_bare() {
            return true;
        }
        let (Some(process), Some(link)) = (mm.process(), mm.link.get()) else { return false };
        let known = self.0.entry(mm.id).or_default();
        let before: Vec<u32> = known.keys().copied().collect();
        if process.robust_lists(known).is_err() {
            return false;
        }
        let is_new = |thread: &u32| before.binary_search(thread).is_err();
        known.iter().filter(|(thread, _)| is_new(thread)).for_each(|(_, &head)| pin(link, head));
        true
    }

    /// Forgets all address spaces but these.
    pub fn retain(&mut self, is_there: impl Fn(MmId) -> bool) {
        self.0.retain(|&id, _| is_there(id));
    }
}

fn pin(link: &Link, head: u64) {
    let first = Vpn::of_address(head.saturating_sub(WORD_BEFORE)).0;
    let last = Vpn::of_address(head.saturating_add(HEAD_BYTES - 1)).0;
    (first..=last).for_each(|vpn| link.keep(vpn));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// What [`WORD_BEFORE`] says of glibc: the word that joiners wait for has the thread's number.
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
        drop(end);
        thread.join().expect("it ends");
    }
}
