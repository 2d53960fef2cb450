//! The split of the budget between plain memory and compressed memory.
//!
//! A page of a budget is plain in memory, compressed, or in a file. Compressed memory holds several
//! pages in the room of one. An access to a compressed page costs a fault, and an access to a page
//! in the file costs many times that. The split is right when one page of room saves as much time
//! on either side:
//!
//! * A page of room for plain memory saves the faults on the pages that were compressed last.
//! * A page of room for compressed memory holds several of the pages that left it last. For each it
//!   saves the difference in cost between the file and compressed memory.
//!
//! The loads at the two edges are counted ([`Edges`]). If both sides are worth about the same, the
//! split stays. A move is never large, because the counts say nothing about pages far from the
//! edges. Consecutive looks that agree move more and more. With small steps alone, a program whose
//! working set exceeds memory would end before the split is right.
//!
//! * SPLIT-1: compressed memory stays between a 32nd of the budget and the most that the settings
//!   allow.
//! * SPLIT-2: where memory is short and no other page can leave, compressed memory gives way, step
//!   by step. It regains that room slowly. Pages that cannot leave may stay, and each time too
//!   little is left threads wait.

/// Loads at the two edges since the last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Edges {
    /// Loads of the pages that were compressed last.
    pub compressed: u64,
    /// Loads of as many pages that left compressed memory last.
    pub far: u64,
    /// Pages that a page of compressed memory holds, in thousandths.
    pub ratio_permille: u64,
    /// Cost of a load from compressed memory, in any unit.
    pub compressed_cost: u64,
    /// Cost of a load from a file, in the unit of `compressed_cost`.
    pub far_cost: u64,
}

/// Fewest loads that allow a decision.
const LOADS_MIN: u64 = 64;
/// Percentage of the other side's saving that a side must save to gain room.
const CLEAR_PERCENT: u64 = 150;
/// One step, as a share of the budget (1/128). [`LEAST_SHARE`] is the least compressed memory.
const STEP_SHARE: u64 = 128;
/// Most steps moved by one look, after consecutive looks that agree.
const STEPS_MAX: u64 = 4;
const LEAST_SHARE: u64 = 32;
/// Looks after which compressed memory may regain one step of the room it gave (SPLIT-2).
const REGAINED_IN: u64 = 32;

/// The split of a budget, as a limit of compressed memory.
#[derive(Clone, Debug)]
pub struct Split {
    budget: u64,
    allowed: u64,
    /// Most bytes of compressed memory now: less than `allowed` after it gave way (SPLIT-2).
    most: u64,
    limit: u64,
    seen: Edges,
    /// Side that the last look moved room to; `steps` is by how many steps.
    towards: Option<Side>,
    steps: u64,
}

/// The side that gets room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Memory,
    Compressed,
}

impl Split {
    /// Creates a split of `budget` bytes. Compressed memory may have `most` bytes, and starts with
    /// that.
    #[must_use]
    pub fn new(budget: u64, most: u64) -> Self {
        let seen = Edges::default();
        Self { budget, allowed: most, most, limit: most, seen, towards: None, steps: 0 }
    }

    /// Adds the loads since the last call. Returns the new limit of compressed memory in bytes, if
    /// it changes.
    pub fn look(&mut self, edges: Edges) -> Option<u64> {
        self.seen = Edges {
            compressed: self.seen.compressed + edges.compressed,
            far: self.seen.far + edges.far,
            ..edges
        };
        let seen = self.seen;
        if seen.compressed + seen.far < LOADS_MIN {
            return None;
        }
        self.seen = Edges::default();
        let memory = seen.compressed * seen.compressed_cost;
        let dearer = seen.far_cost.saturating_sub(seen.compressed_cost);
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

    /// Takes room from compressed memory, which uses `used` bytes, because no other page can leave
    /// memory. Returns its new limit in bytes. None if it uses no more than its least (SPLIT-2).
    pub fn shrink_compressed(&mut self, used: u64) -> Option<u64> {
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

    /// Returns the least bytes of compressed memory (SPLIT-1).
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
        Edges { compressed: 0, far: 0, ratio_permille: 4000, compressed_cost: 20, far_cost: 120 };

    #[test]
    fn compressed_memory_shrinks_while_no_page_is_loaded_from_the_file() {
        let mut split = Split::new(1 << 20, 1 << 19);
        let all: Vec<u64> =
            std::iter::repeat_with(|| split.look(Edges { compressed: 100, ..EDGES }))
                .take(200)
                .flatten()
                .collect();
        assert_eq!(all.first(), Some(&((1 << 19) - (1 << 13))));
        assert_eq!(all.last(), Some(&(1 << 15)), "SPLIT-1");
        assert!(all.is_sorted_by(|one, next| one > next));
        let back =
            std::iter::repeat_with(|| split.look(Edges { compressed: 100, far: 50, ..EDGES }));
        assert_eq!(back.take(200).flatten().last(), Some(1 << 19), "SPLIT-1");
    }

    /// Shows that agreeing looks speed the move up. With single steps it takes three seconds of a
    /// program that runs for five.
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
        let (compressed, far) = (Edges { compressed: 100, ..EDGES }, Edges { far: 100, ..EDGES });
        assert_eq!([compressed; 5].map(&mut moved), [1, 2, 4, 4, 4]);
        assert_eq!([far, far, compressed, far].map(&mut moved), [1, 2, 1, 1]);
        assert_eq!(
            moved(Edges { compressed: 1000, far: 50, ..EDGES }),
            0,
            "both are worth the same"
        );
        assert_eq!([far, far].map(&mut moved), [1, 2]);
    }

    /// Shows that compressed memory makes room before a run is out of memory. Otherwise a run whose
    /// shared memory took half of its limit would be killed, although a file had room.
    #[test]
    fn compressed_memory_gives_way_and_regains_slowly() {
        let (step, least) = ((1 << 20) / 128, (1 << 20) / 32);
        let mut split = Split::new(1 << 20, 1 << 19);
        let mut used = 10 * step;
        let given: Vec<u64> = std::iter::from_fn(|| {
            used = split.shrink_compressed(used)?;
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
        // Both sides are worth 2000.
        assert_eq!(split.look(Edges { compressed: 1000, far: 50, ..EDGES }), None);
        assert_eq!(split.look(Edges { compressed: 30, ..EDGES }), None);
        assert_eq!(split.look(Edges { compressed: 30, ..EDGES }), None);
        assert!(split.look(Edges { compressed: 30, ..EDGES }).is_some(), "it adds up");
    }
}
