//! Measures Ebb's allocator, and the time for which it holds locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ebb_linux::frame::{
    Backend, Checks, CmaCount, Config, Cpu, Frames, Gfp, LayoutError, Meter, NoHost, Order,
    PcpRule, RemoteFence, Request, ZoneKind, ZoneSpec,
};
use ebb_mm::types::Pfn;
use ebb_sys::percpu::Membarrier;

use super::harness::{Contender, Worker};

/// The choices that a table compares.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mechanisms {
    /// The store of free frames.
    pub backend: Backend,
    /// Rule for the size of per-CPU sets; `None` for no such sets.
    pub pcp: Option<PcpRule>,
    /// When frames are checked.
    pub checks: Checks,
    /// How free CMA frames are counted.
    pub cma_count: CmaCount,
    /// Whether an eighth of the zone is CMA.
    pub cma: bool,
}

impl Mechanisms {
    /// Returns the defaults of Ebb.
    #[must_use]
    pub fn fast() -> Self {
        Self {
            backend: Backend::Bitmaps,
            pcp: Some(PcpRule::FAST),
            checks: Checks::Off,
            cma_count: CmaCount::InLock,
            cma: false,
        }
    }

    /// Returns the kernel's choices.
    #[must_use]
    pub fn faithful() -> Self {
        Self { backend: Backend::Lists, pcp: Some(PcpRule::Kernel), ..Self::fast() }
    }
}

/// Durations for which locks were held for refills.
#[derive(Debug, Default)]
pub struct HoldTimes {
    holds: AtomicU64,
    ns: AtomicU64,
}

thread_local! {
    static LOCKED_AT: std::cell::Cell<Option<std::time::Instant>> =
        const { std::cell::Cell::new(None) };
}

impl Meter for HoldTimes {
    fn locked(&self) {
        LOCKED_AT.set(Some(std::time::Instant::now()));
    }

    fn unlocked(&self) {
        if let Some(from) = LOCKED_AT.take() {
            self.holds.fetch_add(1, Relaxed);
            self.ns.fetch_add(from.elapsed().as_nanos() as u64, Relaxed);
        }
    }
}

impl HoldTimes {
    /// Returns the number of refills and their mean lock hold in nanoseconds.
    #[must_use]
    pub fn mean(&self) -> (u64, f64) {
        let holds = self.holds.load(Relaxed);
        (holds, self.ns.load(Relaxed) as f64 / holds.max(1) as f64)
    }
}

/// The allocator, used through claimed CPUs.
#[derive(Debug)]
pub struct Ebb {
    frames: Frames,
}

/// The allocator, used by callers that only name a CPU.
#[derive(Debug)]
pub struct Hinted(pub Ebb);

impl Ebb {
    /// Creates one zone of `frames` frames for `cpus` CPUs.
    pub fn new(
        frames: u32,
        cpus: usize,
        how: &Mechanisms,
        meter: Option<Arc<HoldTimes>>,
    ) -> Result<Self, LayoutError> {
        let mut zone = ZoneSpec::new(ZoneKind::Normal, 0..frames);
        if how.cma {
            let eighth = (frames / 8).next_multiple_of(1024);
            zone.cma.push(frames - eighth..frames);
        }
        let mut config = Config::node(&[ZoneKind::Normal], vec![zone], cpus);
        config.backend = how.backend;
        config.pcp = how.pcp;
        config.checks = how.checks;
        config.cma_count = how.cma_count;
        config.meter = meter.map(|m| m as Arc<dyn Meter>);
        config.fence = Fence::register();
        Ok(Self { frames: config.build()? })
    }

    /// Returns the allocator itself.
    #[must_use]
    pub fn frames(&self) -> &Frames {
        &self.frames
    }
}

/// The fence that each other thread of the process has to pass, by membarrier.
#[derive(Debug)]
struct Fence(Membarrier);

impl Fence {
    /// Returns `None` if the kernel or a filter refuses membarrier.
    fn register() -> Option<Arc<dyn RemoteFence>> {
        Membarrier::register().map(|membarrier| Arc::new(Self(membarrier)) as _)
    }
}

impl RemoteFence for Fence {
    fn heavy(&self) {
        self.0.fence_all();
    }
}

const GFP: Gfp = Gfp::HIGHUSER_MOVABLE;

#[cold]
fn refused(bad: &ebb_linux::frame::BadFree) -> ! {
    panic!("{bad}")
}

#[cold]
fn claimed(cpu: usize) -> ! {
    panic!("CPU {cpu} is claimed already")
}

impl Worker for Cpu<'_> {
    #[inline(always)]
    fn get(&mut self, order: u8) -> Option<u32> {
        self.alloc(&Request::new(GFP, Order::new(order)?), &NoHost).map(|pfn| pfn.0)
    }

    #[inline(always)]
    fn put(&mut self, pfn: u32, order: u8) {
        let Some(order) = Order::new(order) else { return };
        if let Err(bad) = self.free(Pfn(pfn), order) {
            refused(&bad);
        }
    }
}

impl Contender for Ebb {
    type Worker<'a> = Cpu<'a>;

    fn worker(&self, i: usize, _threads: usize) -> Cpu<'_> {
        self.frames.cpu(i).unwrap_or_else(|| claimed(i))
    }

    fn settle(&self) {
        self.frames.drain_all();
    }
}

/// A worker that names its CPU without a claim.
#[derive(Debug)]
pub struct Hint<'a>(&'a Frames, usize);

impl Worker for Hint<'_> {
    #[inline(always)]
    fn get(&mut self, order: u8) -> Option<u32> {
        let request = Request::new(GFP, Order::new(order)?);
        self.0.alloc_on(self.1, &request, &NoHost).map(|pfn| pfn.0)
    }

    #[inline(always)]
    fn put(&mut self, pfn: u32, order: u8) {
        let Some(order) = Order::new(order) else { return };
        if let Err(bad) = self.0.free_on(self.1, Pfn(pfn), order) {
            refused(&bad);
        }
    }
}

impl Contender for Hinted {
    type Worker<'a> = Hint<'a>;

    fn worker(&self, i: usize, _threads: usize) -> Hint<'_> {
        Hint(&self.0.frames, i)
    }

    fn settle(&self) {
        self.0.frames.drain_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn drains_with_membarrier_lose_and_double_nothing() {
        let Some(fence) = Fence::register() else {
            ebb_testing::skip("membarrier is refused here");
        };
        let mut config = Config::flat(32 * 1024, 2);
        config.fence = Some(fence);
        let frames = config.build().unwrap();
        let held: Vec<AtomicU32> = (0..32 * 1024).map(|_| 0.into()).collect();
        std::thread::scope(|scope| {
            for thread in 1..=2u32 {
                let (frames, held) = (&frames, &held);
                scope.spawn(move || owner(frames, held, thread));
            }
            (0..400).for_each(|_| frames.drain_all());
        });
        frames.drain_all();
        assert_eq!(frames.check(), Ok(()));
        assert_eq!(frames.buddyinfo(), Config::flat(32 * 1024, 2).build().unwrap().buddyinfo());
    }

    fn owner(frames: &Frames, held: &[AtomicU32], thread: u32) {
        let cpu = frames.cpu(thread as usize - 1).unwrap();
        let request = Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO);
        for round in 0..300 {
            let mine: Vec<_> =
                (0..round % 150).map_while(|_| cpu.alloc(&request, &NoHost)).collect();
            for pfn in &mine {
                assert_eq!(held[pfn.0 as usize].swap(thread, Relaxed), 0, "{pfn:?} doubled");
            }
            for pfn in mine {
                held[pfn.0 as usize].store(0, Relaxed);
                cpu.free(pfn, Order::ZERO).unwrap();
            }
        }
    }
}
