//! Aging: opens new generations, and chooses the address spaces to walk.
//!
//! Owns the list of address spaces of a lruvec's memcg and the cursor that cooperating walkers
//! share. One iteration of the list belongs to one generation. The caller that exhausts the list
//! opens the next generation; exactly one caller does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::{Ctx, Lruvec, Scan};
use super::walk::{Walk, walk_space};
use super::window::inc_max_seq;
use crate::folio::MIN_NR_GENS;
use crate::space::{Space, TABLE_ENTRIES};
use crate::types::MmId;

/// The address spaces of a memcg, in order of arrival.
#[derive(Debug)]
pub struct MmList {
    state: Mutex<MmState>,
}

#[derive(Debug)]
struct MmState {
    list: Vec<MmId>,
    /// Sequence number of the last aging whose iteration is finished.
    seq: u64,
    /// Index of the next space to visit; none between iterations.
    cursor: Option<usize>,
    /// Index of the first space that came since the last iteration began.
    newcomers: usize,
    /// Totals of each iteration by history slot: entries, young entries, tables entered, tables
    /// added.
    stats: [[u64; 4]; 4],
}

impl Default for MmList {
    fn default() -> Self {
        let state = MmState {
            list: Vec::new(),
            seq: MIN_NR_GENS,
            cursor: None,
            newcomers: 0,
            stats: [[0; 4]; 4],
        };
        Self { state: Mutex::new(state) }
    }
}

impl MmList {
    fn lock(&self) -> MutexGuard<'_, MmState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a space.
    pub fn join(&self, id: MmId) {
        self.lock().list.push(id);
    }

    /// Removes a space that ended.
    pub fn leave(&self, id: MmId) {
        let mut s = self.lock();
        if let Some(at) = s.list.iter().position(|&m| m == id) {
            s.list.remove(at);
            if s.cursor.is_some_and(|c| c > at) {
                s.cursor = s.cursor.map(|c| c - 1);
            }
            if s.newcomers > at {
                s.newcomers -= 1;
            }
        }
    }

    /// Returns the sequence number of the last aging whose iteration is finished.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.lock().seq
    }

    /// Returns the entries, young entries, tables entered and tables added by the walks of a
    /// history slot.
    #[must_use]
    pub fn stats(&self, hist: usize) -> [u64; 4] {
        self.lock().stats[hist % 4]
    }
}

/// The next space of an iteration, or the fact that the caller finished it.
enum Next {
    Space(Arc<Space>),
    Last,
    Nothing,
}

fn next_space(v: &Lruvec, cx: &Ctx, walk: &mut Walk) -> Next {
    let g = &v.r#gen;
    let mut s = g.mm.lock();
    let hist = super::pid::hist(cx, walk.seq);
    for (total, n) in s.stats[hist].iter_mut().zip(std::mem::take(&mut walk.stats)) {
        *total += n;
    }
    if walk.seq <= s.seq {
        return Next::Nothing;
    }
    let at = match s.cursor {
        Some(at) => at,
        None => {
            // This is the first space of the iteration, so the filter that the iteration fills
            // starts empty.
            g.bloom[((walk.seq + 1) % 2) as usize].reset();
            s.stats[hist] = [0; 4];
            0
        }
    };
    let mut at = at;
    while at < s.list.len() {
        let id = s.list[at];
        // No information exists about a space that came since the last iteration, so walk all of
        // it.
        walk.force |= at >= s.newcomers;
        at += 1;
        let Some(space) = cx.spaces.get(id) else { continue };
        if space.is_dead() || (!space.take_scheduled(0) && !walk.force) {
            continue;
        }
        s.cursor = Some(at);
        return Next::Space(space);
    }
    s.seq += 1;
    s.cursor = None;
    s.newcomers = s.list.len();
    Next::Last
}

/// An aging that [`Pageout::pause`](super::super::Pageout::pause) interrupted between two spaces.
/// Other callers may walk the remaining spaces, and finish the iteration, before it continues.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aging {
    /// Youngest generation at the time the caller began.
    seq: u64,
    force: bool,
    /// Counts of its walks that are not yet in the totals.
    stats: [u64; 4],
}

impl Aging {
    pub(super) fn new(seq: u64, force: bool) -> Self {
        Self { seq, force, stats: [0; 4] }
    }
}

/// The result of an aging call.
pub(super) enum Aged {
    /// The aging ended; true if this caller opened the next generation.
    Done(bool),
    Paused(Aging),
}

/// Entries to look at before a pause is worthwhile: those of one table.
const PAUSE_ENTRIES: u64 = TABLE_ENTRIES as u64;

/// Ages once. Walks the remaining spaces of this generation's iteration. Opens the next generation
/// if this caller finished the iteration. `pause` may interrupt it between two spaces.
pub(super) fn age(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    aging: Aging,
    swappiness: u32,
    mut pause: impl FnMut() -> bool,
) -> Aged {
    sc.walk_ready = true;
    let mut walk = Walk::new(aging.seq, swappiness, aging.force);
    walk.stats = aging.stats;
    if walk.stats[0] == 0 && walk.seq <= v.r#gen.mm.seq() {
        return Aged::Done(false);
    }
    let mut looked = 0;
    let last = loop {
        match next_space(v, cx, &mut walk) {
            Next::Space(space) if cx.tun.mglru.walk => walk_space(v, cx, &mut walk, &space),
            Next::Space(_) => {}
            Next::Last => break true,
            Next::Nothing => break false,
        }
        looked += walk.stats[0];
        if looked >= PAUSE_ENTRIES && pause() {
            let (force, stats) = (walk.force, walk.stats);
            return Aged::Paused(Aging { seq: walk.seq, force, stats });
        }
    };
    Aged::Done(last && inc_max_seq(v, cx, walk.seq, swappiness))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::Rig;
    use super::*;
    use crate::folio::{LruType, MemcgId};
    use crate::lru::Reclaimer;
    use crate::tunables::Tunables;

    /// Returns two spaces, the first with more than a table of entries, and an aging that stopped
    /// between them.
    fn paused() -> (Rig, Scan, u64, Aging) {
        let mut rig = Rig::new(600, Tunables::preset("k618").unwrap());
        while rig.fill(LruType::Anon).is_some() {}
        let second = rig.spaces.create(MemcgId(1));
        rig.v.r#gen.mm.join(second.id());
        rig.spaces.get(rig.mm()).unwrap().note_scheduled();
        second.note_scheduled();
        let mut sc = Scan::new(Reclaimer::Direct, false, 32, 60);
        let seq = rig.v.r#gen.max_seq();
        let begun = age(&rig.v, &rig.cx(), &mut sc, Aging::new(seq, false), 60, || true);
        let Aged::Paused(aging) = begun else { panic!("600 entries are worth a pause") };
        assert_eq!(rig.v.r#gen.max_seq(), seq, "no generation before all are walked");
        (rig, sc, seq, aging)
    }

    #[test]
    fn an_aging_that_was_interrupted_goes_on_with_the_next_space() {
        let (rig, mut sc, seq, aging) = paused();
        let done = age(&rig.v, &rig.cx(), &mut sc, aging, 60, || true);
        assert!(matches!(done, Aged::Done(true)), "the second has nothing to pause after");
        assert_eq!(rig.v.r#gen.max_seq(), seq + 1);
        assert_eq!(entries(&rig, seq), 600, "each counted once");
    }

    /// Returns the number of entries that the walks of an aging looked at.
    fn entries(rig: &Rig, seq: u64) -> u64 {
        rig.v.r#gen.mm.stats(super::super::pid::hist(&rig.cx(), seq))[0]
    }

    #[test]
    fn only_the_first_walk_that_ends_opens_the_generation() {
        let (rig, mut sc, seq, aging) = paused();
        for (from, opens) in
            [(Aging::new(seq, false), true), (Aging::new(seq, false), false), (aging, false)]
        {
            let done = age(&rig.v, &rig.cx(), &mut sc, from, 60, || false);
            assert!(matches!(done, Aged::Done(opened) if opened == opens), "the first, and once");
        }
        assert_eq!((rig.v.r#gen.max_seq(), entries(&rig, seq)), (seq + 1, 600));
    }
}
