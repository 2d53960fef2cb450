//! One list of a per-CPU set: free blocks of one order and type, with a hot end and a cold end.
//!
//! ```text
//! cold ring (kernel rule only)   | hot stack
//! coldest ........ less cold     | [0] ........ [len - 1] popped and pushed here
//! ```
//! A hit is as short as possible. One word holds the stack's length and the count of pops, so a pop
//! changes both at once. The bounds check of the index also checks that the list is not empty (a
//! pop) or not full (a push). Only sets that grow large, by the kernel's rule, need the ring. There
//! drains take the coldest blocks without moving all others.
//!
//! A caller that uses a list holds the lock of its CPU. No frame's memory is accessed.

use super::sync::{AtomicU64, Owned32, Relaxed};

/// Bits of the word that hold the stack's length, from bit 0 on.
const LEN_BITS: u32 = 16;
/// Added to the word by a pop: one block less, one pop more.
const POP: u64 = (1 << LEN_BITS) - 1;
/// Most blocks in a stack. The last index of an empty stack, 65535, lies beyond.
pub(super) const HOT_MAX: u32 = 4096;

/// A list of free blocks of one order and type.
#[derive(Debug)]
pub(super) struct List {
    /// Low 16 bits: blocks in `hot`. High bits: blocks ever popped.
    word: AtomicU64,
    hot: Box<[Owned32]>,
    cold: Ring,
    moved_in: AtomicU64,
    moved_out: AtomicU64,
}

impl List {
    /// Creates a list of up to `hot + cold` blocks. The stack gets at most [`HOT_MAX`].
    pub(super) fn new(hot: u32, cold: u32) -> Self {
        Self {
            word: AtomicU64::new(0),
            hot: (0..hot.min(HOT_MAX)).map(|_| Owned32::new(0)).collect(),
            cold: Ring::new(cold),
            moved_in: AtomicU64::new(0),
            moved_out: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    fn hot_len(&self) -> u32 {
        self.word.load(Relaxed) as u16 as u32
    }

    pub(super) fn len(&self) -> u32 {
        self.hot_len() + self.cold.len()
    }

    /// Returns the number of blocks that the list can hold.
    pub(super) fn capacity(&self) -> u32 {
        self.hot.len() as u32 + self.cold.slots.len() as u32
    }

    pub(super) fn room(&self) -> u32 {
        self.capacity() - self.len()
    }

    /// Pops the hottest block, if the stack has one.
    #[inline(always)]
    pub(super) fn pop(&self) -> Option<u32> {
        let word = self.word.load(Relaxed);
        let pfn = self.hot.get((word as u16).wrapping_sub(1) as usize)?.get();
        self.word.store(word.wrapping_add(POP), Relaxed);
        Some(pfn)
    }

    /// Pops the hottest block. Fills an empty stack from the ring first.
    pub(super) fn pop_any(&self) -> Option<u32> {
        if self.hot_len() == 0 {
            let n = (self.cold.len() as usize).min(self.hot.len() / 2 + 1).min(self.hot.len());
            (0..n).rev().for_each(|i| self.hot[i].set(self.cold.pop_hot()));
            self.word.store(self.word.load(Relaxed) + n as u64, Relaxed);
        }
        self.pop()
    }

    /// Pushes a block on the hot end. Returns false if the stack is full.
    #[inline(always)]
    pub(super) fn push(&self, pfn: u32) -> bool {
        let word = self.word.load(Relaxed);
        let Some(slot) = self.hot.get(word as u16 as usize) else { return false };
        slot.set(pfn);
        self.word.store(word.wrapping_add(1), Relaxed);
        true
    }

    /// Pushes a block on the hot end. Moves the colder half of a full stack to the ring first.
    /// Returns false if the list is full.
    pub(super) fn push_any(&self, pfn: u32) -> bool {
        if self.push(pfn) {
            return true;
        }
        let n = self
            .hot
            .len()
            .div_ceil(2)
            .min((self.cold.slots.len() as u32 - self.cold.len()) as usize);
        self.hot[..n].iter().for_each(|slot| self.cold.push_hot(slot.get()));
        self.sink(n);
        self.push(pfn)
    }

    /// Removes the `n` coldest blocks from the stack, after they were copied elsewhere.
    fn sink(&self, n: usize) {
        let len = self.hot_len() as usize;
        for i in n..len {
            self.hot[i - n].set(self.hot[i].get());
        }
        self.word.store(self.word.load(Relaxed) - n as u64, Relaxed);
    }

    /// Puts blocks at the cold end, to be popped in this order. The caller has made sure that there
    /// is room and that the list is empty.
    pub(super) fn append(&self, frames: &[u32]) {
        debug_assert!(self.len() == 0 && frames.len() as u32 <= self.capacity());
        let (first, rest) = frames.split_at(frames.len().min(self.hot.len()));
        first.iter().rev().zip(&self.hot).for_each(|(&pfn, slot)| slot.set(pfn));
        rest.iter().for_each(|&pfn| self.cold.push_cold(pfn));
        self.word.store(self.word.load(Relaxed) + first.len() as u64, Relaxed);
        self.moved_in.fetch_add(frames.len() as u64, Relaxed);
    }

    /// Takes the coldest blocks, coldest first. Returns how many.
    pub(super) fn take_cold(&self, out: &mut [u32]) -> usize {
        let mut n = (self.cold.len() as usize).min(out.len());
        out[..n].iter_mut().for_each(|out| *out = self.cold.pop_cold());
        let more = (out.len() - n).min(self.hot_len() as usize);
        out[n..n + more].iter_mut().zip(&self.hot).for_each(|(out, slot)| *out = slot.get());
        self.sink(more);
        n += more;
        self.moved_out.fetch_add(n as u64, Relaxed);
        n
    }

    /// Returns the number of blocks ever popped.
    #[inline]
    pub(super) fn pops(&self) -> u64 {
        self.word.load(Relaxed) >> LEN_BITS
    }

    /// Returns the number of blocks ever pushed. Blocks that came by a refill do not count.
    pub(super) fn pushes(&self) -> u64 {
        let out = self.pops() + self.moved_out.load(Relaxed) + u64::from(self.len());
        out - self.moved_in.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.hot) + size_of_val(&*self.cold.slots)
    }
}

/// A ring of blocks between a hot end and a cold end. The indices wrap; their difference is the
/// length.
#[derive(Debug)]
struct Ring {
    hot: Owned32,
    cold: Owned32,
    slots: Box<[Owned32]>,
}

impl Ring {
    fn new(capacity: u32) -> Self {
        let slots = if capacity == 0 { 0 } else { capacity.next_power_of_two() };
        Self {
            hot: Owned32::new(0),
            cold: Owned32::new(0),
            slots: (0..slots).map(|_| Owned32::new(0)).collect(),
        }
    }

    fn len(&self) -> u32 {
        self.cold.get().wrapping_sub(self.hot.get())
    }

    fn at(&self, index: u32) -> &Owned32 {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }

    fn push_hot(&self, pfn: u32) {
        let index = self.hot.get().wrapping_sub(1);
        self.at(index).set(pfn);
        self.hot.set(index);
    }

    fn pop_hot(&self) -> u32 {
        let index = self.hot.get();
        self.hot.set(index.wrapping_add(1));
        self.at(index).get()
    }

    fn push_cold(&self, pfn: u32) {
        let index = self.cold.get();
        self.at(index).set(pfn);
        self.cold.set(index.wrapping_add(1));
    }

    fn pop_cold(&self) -> u32 {
        let index = self.cold.get().wrapping_sub(1);
        self.cold.set(index);
        self.at(index).get()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[derive(Clone, Debug)]
    enum Op {
        Pop,
        PopAny,
        Push,
        PushAny,
        Refill(usize),
        Drain(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => Just(Op::Pop),
            4 => Just(Op::PopAny),
            4 => Just(Op::Push),
            6 => Just(Op::PushAny),
            2 => (0..40usize).prop_map(Op::Refill),
            2 => (0..20usize).prop_map(Op::Drain),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

        /// Compares with a deque whose front is the hot end.
        #[test]
        fn a_list_is_a_stack_whose_bottom_can_be_taken(
            hot in 1..12u32,
            cold in 0..24u32,
            ops in prop::collection::vec(op(), 1..300),
        ) {
            let list = List::new(hot, cold);
            let mut model = VecDeque::new();
            let (mut next, mut pops, mut pushes) = (0u32, 0, 0);
            for op in ops {
                match op {
                    Op::Pop => {
                        let got = list.pop();
                        prop_assert!(got.is_some() || list.hot_len() == 0);
                        if got.is_some() {
                            prop_assert_eq!(got, model.pop_front());
                            pops += 1;
                        }
                    }
                    Op::PopAny => {
                        let got = list.pop_any();
                        prop_assert_eq!(got, model.pop_front());
                        pops += u64::from(got.is_some());
                    }
                    Op::Push | Op::PushAny => {
                        let full = model.len() as u32 == list.capacity();
                        let any = matches!(op, Op::PushAny);
                        let done = if any { list.push_any(next) } else { list.push(next) };
                        prop_assert!(!(done && full));
                        prop_assert!(done || full || !any);
                        if done {
                            model.push_front(next);
                            pushes += 1;
                        }
                        next += 1;
                    }
                    Op::Refill(n) => {
                        if model.is_empty() {
                            let n = n.min(list.room() as usize) as u32;
                            let frames: Vec<u32> = (next..next + n).collect();
                            list.append(&frames);
                            model.extend(frames);
                            next += n;
                        }
                    }
                    Op::Drain(n) => {
                        let mut out = vec![0; n];
                        let got = list.take_cold(&mut out);
                        let expect: Vec<u32> = (0..n).map_while(|_| model.pop_back()).collect();
                        prop_assert_eq!(&out[..got], &expect[..]);
                    }
                }
                prop_assert_eq!(list.len() as usize, model.len());
                prop_assert_eq!((list.pops(), list.pushes()), (pops, pushes));
            }
        }
    }
}
