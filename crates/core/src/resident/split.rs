//! Where memory ends and compressed memory begins.
//!
//! The pages of a budget are in memory as they are, compressed, or in a file. Compressed memory holds several pages in
//! the room of one, each of which costs a fault that one in memory does not; the page in a file costs many times that.
//! Room is where it should be when one page of it saves as much time on either side:
//!
//! * given to memory, it saves the faults on the pages that were compressed last;
//! * given to compressed memory, it saves the difference between file and memory for the pages that left it last, several
//!   for each page of room.
//!
//! How often both kinds are asked for is counted at the edges ([`Edges`]). Close to even nothing is moved, and never much at
//! once: what is counted says nothing of what lies far from the edges. Looks that agree with the ones before move more
//! and more: a program whose working set is larger than memory had ended before the split was where it should be.
//!
//! * SPLIT-1: compressed memory stays between a 32nd of the budget and the most that was allowed.
//! * SPLIT-2: where memory is short and nothing else can leave, compressed memory gives way, step by step. What it gave it has
//!   back slowly: what cannot leave may stay, and each time that too little is left threads wait.

/// What was asked for at the edges since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edges {
    /// Loads of the pages that were compressed last.
    pub near: u64,
    /// Loads of as many pages that left compressed memory last.
    pub far: u64,
    /// Pages in a page of compressed memory, in thousandths.
    pub ratio_permille: u64,
    /// What a load from compressed memory costs, and one from a file, in any unit.
    pub near_cost: u64,
    /// See `near_cost`.
    pub far_cost: u64,
}

/// Fewer loads than that say nothing.
const LOADS_MIN: u64 = 64;
/// One side must save more by this factor, in percent.
const CLEAR_PERCENT: u64 = 150;
/// What is moved at once, and the least compressed memory, as shares of the budget.
const STEP_SHARE: u64 = 128;
/// Looks in a row that agree move up to so many times as much.
const STEPS_MAX: u64 = 4;
const LEAST_SHARE: u64 = 32;
/// SPLIT-2: so many looks until one step of what was given may be had again.
const REGAINED_IN: u64 = 32;

/// The share of compressed memory in a budget.
#[derive(Clone, Debug)]
pub struct Split {
    budget: u64,
    allowed: u64,
    /// SPLIT-2: less than was allowed where some was given.
    most: u64,
    limit: u64,
    seen: Edges,
    /// Which way the last look moved it, and by how many steps.
    towards: Option<Side>,
    steps: u64,
}

/// Whose room it is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Memory,
    Compressed,
}

impl Split {
    /// Of `budget` bytes compressed memory may have `most`, and has it for a start.
    #[must_use]
    pub fn new(budget: u64, most: u64) -> Self {
        let seen = Edges::default();
        Self { budget, allowed: most, most, limit: most, seen, towards: None, steps: 0 }
    }

    /// What was seen since the last call. The new limit of compressed memory in bytes, if it changes.
    pub fn look(&mut self, edges: Edges) -> Option<u64> {
        self.seen =
            Edges { near: self.seen.near + edges.near, far: self.seen.far + edges.far, ..edges };
        let seen = self.seen;
        if seen.near + seen.far < LOADS_MIN {
            return None;
        }
        self.seen = Edges::default();
        let memory = seen.near * seen.near_cost;
        let dearer = seen.far_cost.saturating_sub(seen.near_cost);
        let compressed = seen.far * dearer * seen.ratio_permille / 1000;
        let towards = if memory * 100 > compressed * CLEAR_PERCENT {
            Some(Side::Memory)
        } else if compressed * 100 > memory * CLEAR_PERCENT {
            Some(Side::Compressed)
        } else {
            None
        };
        self.steps = if towards == self.towards { (self.steps * 2).min(STEPS_MAX) } else { 1 };
        self.towards = towards;
        let step = self.budget / STEP_SHARE;
        self.most = (self.most + step / REGAINED_IN).min(self.allowed);
        let limit = match towards {
            Some(Side::Memory) => self.less_by(step * self.steps),
            Some(Side::Compressed) => (self.limit + step * self.steps).min(self.most),
            None => self.limit,
        };
        self.set(limit)
    }

    /// Nothing else can leave memory, and compressed memory takes `used` bytes. Its new limit in bytes, unless it takes no
    /// more than its least (SPLIT-2).
    pub fn give_way(&mut self, used: u64) -> Option<u64> {
        if used <= self.least() {
            return None;
        }
        self.limit = self.limit.min(used);
        self.most = self.less_by(self.budget / STEP_SHARE * STEPS_MAX);
        self.set(self.most)
    }

    fn less_by(&self, bytes: u64) -> u64 {
        self.limit.saturating_sub(bytes).max(self.least())
    }

    /// SPLIT-1.
    fn least(&self) -> u64 {
        (self.budget / LEAST_SHARE).min(self.allowed)
    }

    fn set(&mut self, limit: u64) -> Option<u64> {
        (std::mem::replace(&mut self.limit, limit) != limit).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGES: Edges =
        Edges { near: 0, far: 0, ratio_permille: 4000, near_cost: 20, far_cost: 120 };

    #[test]
    fn pages_that_nobody_asks_a_file_for_leave_their_room_to_memory() {
        let mut split = Split::new(1 << 20, 1 << 19);
        let all: Vec<u64> = std::iter::repeat_with(|| split.look(Edges { near: 100, ..EDGES }))
            .take(200)
            .flatten()
            .collect();
        assert_eq!(all.first(), Some(&((1 << 19) - (1 << 13))));
        assert_eq!(all.last(), Some(&(1 << 15)), "SPLIT-1");
        assert!(all.is_sorted_by(|one, next| one > next));
        let back = std::iter::repeat_with(|| split.look(Edges { near: 100, far: 50, ..EDGES }));
        assert_eq!(back.take(200).flatten().last(), Some(1 << 19), "SPLIT-1");
    }

    /// It took three seconds of a program of five.
    #[test]
    fn looks_that_agree_move_more_and_others_begin_anew() {
        let step = (1 << 20) / 128;
        let mut split = Split::new(1 << 20, 1 << 19);
        let mut at = 1 << 19;
        let mut moved = |edges: Edges| {
            let before = at;
            at = split.look(edges).unwrap_or(before);
            before.abs_diff(at) / step
        };
        let (near, far) = (Edges { near: 100, ..EDGES }, Edges { far: 100, ..EDGES });
        assert_eq!([near; 5].map(&mut moved), [1, 2, 4, 4, 4]);
        assert_eq!([far, far, near, far].map(&mut moved), [1, 2, 1, 1]);
        assert_eq!(moved(Edges { near: 1000, far: 50, ..EDGES }), 0, "both are worth the same");
        assert_eq!([far, far].map(&mut moved), [1, 2]);
    }

    /// A run whose shared memory took half of its limit was killed, beside a file with room.
    #[test]
    fn compressed_memory_gives_way_and_regains_slowly() {
        let (step, least) = ((1 << 20) / 128, (1 << 20) / 32);
        let mut split = Split::new(1 << 20, 1 << 19);
        let mut used = 10 * step;
        let given: Vec<u64> = std::iter::from_fn(|| {
            used = split.give_way(used)?;
            Some(used)
        })
        .collect();
        assert_eq!(given, [6 * step, least], "it begins with what is used");
        let mut looks = std::iter::repeat_with(|| split.look(Edges { far: 100, ..EDGES }));
        assert!(looks.by_ref().take(32).flatten().all(|limit| limit <= least + step), "SPLIT-2");
        assert_eq!(looks.take(32 * 64).flatten().last(), Some(1 << 19), "as much as was allowed");
    }

    #[test]
    fn nothing_moves_where_both_are_worth_the_same_or_little_is_known() {
        let mut split = Split::new(1 << 20, 1 << 19);
        // 2000 each.
        assert_eq!(split.look(Edges { near: 1000, far: 50, ..EDGES }), None);
        assert_eq!(split.look(Edges { near: 30, ..EDGES }), None);
        assert_eq!(split.look(Edges { near: 30, ..EDGES }), None);
        assert!(split.look(Edges { near: 30, ..EDGES }).is_some(), "it adds up");
    }
}
