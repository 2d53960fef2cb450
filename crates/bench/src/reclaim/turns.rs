//! Runs kswapd and the allocator in turns on one processor.
//!
//! Both run in one thread. The clock is the processor time that both have used plus the time in
//! which neither had work. The allocator takes a frame when one is due. kswapd starts a fixed time
//! after its wake-up and runs until it sleeps. While it works, the allocator has its turn after
//! each [`TURN`] folios. So the result does not depend on the number of processors or on other
//! load.

use std::cell::{Cell, RefCell};

use ebb_linux::frame::{Gfp, Host, Order, Request};
use ebb_linux::reclaim::FramesNode;
use ebb_mm::folio::LruType;
use ebb_mm::lru::{Ctx, Evicted, Pageout, Shadow};
use ebb_mm::reclaim::{Kswapd, NAP_MS, Node, Passed, Policy, RequestResult, Step};
use ebb_mm::types::Pfn;
use ebb_sys::percpu::thread_time_ns;

use super::keepup::{Machine, Outcome, ReclaimError};

/// Folios that kswapd evicts before the allocator has its turn.
const TURN: u32 = 64;
/// Frames that the allocator takes between two readings of the clock while kswapd sleeps.
const STRETCH: u64 = 64;

struct Turns<'a> {
    m: &'a Machine,
    request: Request,
    frame_ns: u64,
    take: u64,
    wake_ns: u64,
    clock_ns: Cell<u64>,
    /// Processor time of this thread at the start of the present turn.
    turn_ns: Cell<u64>,
    /// Processor time that kswapd and the allocator have used.
    used_ns: [Cell<u64>; 2],
    taken: Cell<u64>,
    direct: Cell<u64>,
    least_free: Cell<u64>,
    /// Time at which kswapd was woken; `None` if it has run since.
    woken: Cell<Option<u64>>,
    late_ns: RefCell<Vec<u64>>,
}

const KSWAPD: usize = 0;
const ALLOCATOR: usize = 1;

impl Host for Turns<'_> {
    fn wake_kswapd(&self, node: usize, order: Order, highest: usize) {
        let node = FramesNode { frames: &self.m.frames, node };
        let asked = self.m.wake_requests.request(&node, Policy::of(&self.m.tun), order, highest);
        if asked == RequestResult::Wake {
            let due = self.taken.get() * self.frame_ns;
            self.woken.set(Some(due.max(self.clock_ns.get())));
        }
    }

    fn reclaim(&self, _: &Request, _: usize, target: u64) -> u64 {
        self.direct.set(self.direct.get() + 1);
        self.m.direct(target)
    }
}

impl Turns<'_> {
    /// Ends a turn and adds its processor time to the clock.
    fn used(&self, who: usize) {
        let now = thread_time_ns();
        let took = now - self.turn_ns.replace(now);
        self.used_ns[who].set(self.used_ns[who].get() + took);
        self.clock_ns.set(self.clock_ns.get() + took);
    }

    /// Takes frames until `until` are taken. Returns false if no frame is left.
    fn take(&self, until: u64) -> bool {
        while self.taken.get() < until {
            if self.m.frames.alloc_on(0, &self.request, self).is_none() {
                return false;
            }
            let taken = self.taken.get() + 1;
            self.taken.set(taken);
            if taken.is_multiple_of(64) {
                self.least_free.set(self.least_free.get().min(self.m.free()));
            }
        }
        true
    }

    /// Ends a turn of kswapd and takes the frames that are due. Returns false if all frames are
    /// taken or none is left.
    fn allocate(&self) -> bool {
        self.used(KSWAPD);
        let due = (self.clock_ns.get() / self.frame_ns).min(self.take);
        let there = self.take(due);
        self.used(ALLOCATOR);
        there && self.taken.get() < self.take
    }

    /// Takes frames while kswapd sleeps, until kswapd begins to run after a wake-up or the nap is
    /// over. Returns false if all frames are taken or none is left.
    fn while_it_sleeps(&self, nap_ns: u64) -> bool {
        let end = self.clock_ns.get().saturating_add(nap_ns);
        loop {
            if !self.allocate() {
                return false;
            }
            let begins = self.woken.get().map(|at| at + self.wake_ns);
            let until = begins.unwrap_or(u64::MAX).min(end);
            if self.clock_ns.get() >= until {
                if let Some(woken) = self.woken.take() {
                    self.late_ns.borrow_mut().push(self.clock_ns.get() - woken);
                }
                return true;
            }
            // No work is due before the next frames, so the clock jumps there.
            let next = (self.taken.get() + STRETCH.min(self.take)) * self.frame_ns;
            self.clock_ns.set(self.clock_ns.get().max(next.min(until)));
        }
    }
}

struct Back<'a> {
    turns: &'a Turns<'a>,
    highest: usize,
    gone: u32,
}

impl Pageout for Back<'_> {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, _: Shadow) -> Evicted {
        self.gone += 1;
        if self.gone.is_multiple_of(TURN) {
            self.turns.allocate();
        }
        self.turns.m.gone(cx, pfn)
    }

    fn enough(&mut self) -> bool {
        FramesNode { frames: &self.turns.m.frames, node: 0 }.balanced(Order::ZERO, self.highest)
    }
}

/// Runs once over `frames` frames. kswapd starts `wake_ns` after each wake-up.
pub fn run(
    frames: u32,
    per_second: u64,
    scale_factor: u64,
    wake_ns: u64,
) -> Result<Outcome, ReclaimError> {
    let m = Machine::new(frames, scale_factor)?;
    m.fill(frames);
    let turns = Turns {
        m: &m,
        request: Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO),
        frame_ns: (1_000_000_000 / per_second.max(1)).max(1),
        take: u64::from(frames) / 2 - u64::from(frames) / 16,
        wake_ns,
        clock_ns: Cell::new(0),
        turn_ns: Cell::new(thread_time_ns()),
        used_ns: [const { Cell::new(0) }; 2],
        taken: Cell::new(0),
        direct: Cell::new(0),
        least_free: Cell::new(u64::MAX),
        woken: Cell::new(None),
        late_ns: RefCell::default(),
    };
    let node = FramesNode { frames: &m.frames, node: 0 };
    let mut kswapd = Kswapd::new(Policy::of(&m.tun), node.classes());
    loop {
        let goes_on = match kswapd.step(&m.wake_requests, &node, &m.stat) {
            Step::Pass(pass) => {
                let mut sc = pass.scan(m.tun.swappiness.0);
                sc.zone = 0;
                let mut back = Back { turns: &turns, highest: pass.highest, gone: 0 };
                m.v.shrink(&m.cx(), &mut sc, &mut back);
                let (scanned, reclaimed) = (sc.scanned, sc.reclaimed);
                let passed = Passed { scanned, reclaimed, writing: false, met: None };
                kswapd.passed(&m.wake_requests, &passed);
                turns.allocate()
            }
            Step::Again | Step::AwaitWrites | Step::Throttle => turns.allocate(),
            Step::Nap => turns.while_it_sleeps(NAP_MS * 1_000_000),
            Step::Sleep => turns.while_it_sleeps(u64::MAX),
        };
        if !goes_on {
            break;
        }
    }
    let taken = turns.taken.get();
    let each = |who: usize| turns.used_ns[who].get() as f64 / taken.max(1) as f64;
    let mut late_ns = turns.late_ns.take();
    late_ns.sort_unstable();
    Ok(Outcome {
        taken,
        seconds: turns.clock_ns.get() as f64 / 1e9,
        direct: turns.direct.get(),
        least_free: turns.least_free.get(),
        kswapd_ns: each(KSWAPD),
        allocator_ns: Some(each(ALLOCATOR)),
        late_ns,
        lost_ns: 0,
        direct_before_it_ran: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kswapd_that_begins_too_late_is_seen_and_one_in_time_is_not() {
        // Between the low and the min watermark of 4 GiB lie a thousand frames, which is 1 ms.
        let entries = |wake_ns| run(1 << 20, 1_000_000, 10, wake_ns).unwrap();
        let late = entries(20_000_000);
        assert!(late.direct > 0 && late.late_ns[0] >= 20_000_000, "{}", late.direct);
        let soon = entries(50_000);
        assert_eq!(soon.taken, (1 << 19) - (1 << 16));
        assert!(soon.late_ns_at(0.5) >= 50_000 && soon.late_ns.len() > 10);
    }
}
