//! A program's own cache of database pages: slots in its memory, second chance for what was used.
//!
//! It lives in the generator, not in the machine: how fast memory is decides no more than whose turn is
//! next where several threads share one.

/// A page that is in no slot.
const NONE: u32 = u32::MAX;

/// The cache of a database, or of one thread's share of it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// By database page: its slot.
    slot_of: Vec<u32>,
    /// By slot: its page, whether it was used, whether it was changed.
    slots: Vec<(u32, bool, bool)>,
    hand: usize,
    filled: usize,
}

/// What a look-up did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The slot.
    pub slot: u32,
    /// The page was not there and has to be read.
    pub miss: bool,
    /// A changed page had to be written to make room.
    pub wrote: Option<u32>,
}

impl Pool {
    /// Room for `slots` of `pages` pages.
    #[must_use]
    pub fn new(pages: u64, slots: u64) -> Self {
        Self {
            slot_of: vec![NONE; pages as usize],
            slots: vec![(NONE, false, false); slots.max(1) as usize],
            hand: 0,
            filled: 0,
        }
    }

    /// Finds a page, or makes room for it.
    pub fn get(&mut self, page: u32, change: bool) -> Found {
        let slot = self.slot_of[page as usize];
        if slot != NONE {
            let s = &mut self.slots[slot as usize];
            s.1 = true;
            s.2 |= change;
            return Found { slot, miss: false, wrote: None };
        }
        let mut wrote = None;
        let slot = if self.filled < self.slots.len() {
            self.filled += 1;
            self.filled - 1
        } else {
            while self.slots[self.hand].1 {
                self.slots[self.hand].1 = false;
                self.hand = (self.hand + 1) % self.slots.len();
            }
            let (old, _, changed) = self.slots[self.hand];
            self.slot_of[old as usize] = NONE;
            wrote = changed.then_some(old);
            let slot = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            slot
        };
        self.slots[slot] = (page, false, change);
        self.slot_of[page as usize] = slot as u32;
        Found { slot: slot as u32, miss: true, wrote }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_pages_get_a_second_chance_and_changed_ones_are_written() {
        let mut p = Pool::new(10, 2);
        assert!(p.get(0, true).miss && p.get(1, false).miss);
        assert!(!p.get(0, false).miss, "used");
        assert_eq!(p.get(2, false), Found { slot: 1, miss: true, wrote: None });
        // The hand took the second chance of page 0 on its way.
        assert_eq!(p.get(3, false), Found { slot: 0, miss: true, wrote: Some(0) });
        assert!(p.get(0, false).miss);
    }
}
