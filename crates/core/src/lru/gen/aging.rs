//! Who ages, and which address spaces are walked.
//!
//! Owns the list of address spaces of a lruvec's memcg and the cursor that cooperating walkers
//! share.
//! One iteration of the list belongs to one generation: whoever exhausts it opens the next one, and
//! exactly one caller does.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::{Ctx, Lruvec, Scan};
use super::walk::{Walk, walk_space};
use super::window::inc_max_seq;
use crate::folio::MIN_NR_GENS;
use crate::space::Space;
use crate::types::MmId;

/// The address spaces of a memcg, first come first.
#[derive(Debug)]
pub struct MmList {
    state: Mutex<MmState>,
}

#[derive(Debug)]
struct MmState {
    list: Vec<MmId>,
    /// The last aging whose iteration is finished.
    seq: u64,
    /// The next to visit; none between iterations.
    cursor: Option<usize>,
    /// Spaces from here on came since the last iteration began.
    newcomers: usize,
    /// Totals of the running iteration: entries, young, tables entered, tables added.
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

    /// The last aging whose iteration is finished.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.lock().seq
    }

    /// Entries, young entries, tables entered and tables added by the walks of a history slot.
    #[must_use]
    pub fn stats(&self, hist: usize) -> [u64; 4] {
        self.lock().stats[hist % 4]
    }
}

/// The next space of this iteration, or that the caller is the one who finished it.
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
            // First of the iteration: the filter that it fills starts empty.
            g.bloom[((walk.seq + 1) % 2) as usize].reset();
            s.stats[hist] = [0; 4];
            0
        }
    };
    let mut at = at;
    while at < s.list.len() {
        let id = s.list[at];
        // A space that came since the last iteration has told nothing yet: look at all of it.
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

/// Ages once: walks what is left of this generation's iteration and opens the next generation if
/// this caller finished it. `seq` is the youngest generation the caller saw.
pub(super) fn try_inc_max_seq(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    seq: u64,
    swappiness: u32,
    force: bool,
) -> bool {
    sc.walk_ready = true;
    let mut walk = Walk::new(seq, swappiness, force);
    if seq <= v.r#gen.mm.seq() {
        return false;
    }
    let last = loop {
        match next_space(v, cx, &mut walk) {
            Next::Space(space) if cx.tun.walk => walk_space(v, cx, &mut walk, &space),
            Next::Space(_) => {}
            Next::Last => break true,
            Next::Nothing => break false,
        }
    };
    last && inc_max_seq(v, cx, seq, swappiness)
}
