//! Measures kswapd against an allocator that takes frames at a fixed rate.
//!
//! Half of memory is clean and cold. Nearly all of the other half stays in use. The allocator runs
//! through the cold half. The result counts how often the allocator reclaims directly.
//!
//! [`run`] gives kswapd a thread of its own. The result then depends on how soon the system runs
//! that thread, and the delay is reported, too. [`super::turns`] runs both in turns on one
//! processor.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ebb_linux::frame::{Config, Frames, Gfp, Host, LayoutError, NoHost, Order, Request, ZoneItem};
use ebb_linux::reclaim::{Direct, DirectPassed, FramesNode};
use ebb_mm::folio::{Folios, LruType, MemcgId, Word};
use ebb_mm::lru::{Ctx, Evicted, Lruvec, Pageout, Shadow};
use ebb_mm::observe::vmstat::VmStat;
use ebb_mm::reclaim::{Kswapd, NAP_MS, Node, Passed, Policy, RequestResult, Step, WakeRequests};
use ebb_mm::space::Spaces;
use ebb_mm::tunables::Tunables;
use ebb_mm::types::{MmId, Pfn, Vpn};
use ebb_sys::percpu::thread_time_ns;

/// Greatest number of frames taken in a row.
const BURST: u64 = 64;

/// Why a run has no result.
#[derive(Debug, thiserror::Error)]
pub enum ReclaimError {
    /// The frames have no valid layout.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The thread of kswapd panicked.
    #[error("kswapd's thread died")]
    Died,
}

/// Result of a run.
pub struct Outcome {
    /// Number of frames taken.
    pub taken: u64,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// Number of direct reclaims of the allocator.
    pub direct: u64,
    /// Smallest number of free frames, sampled every 1024 frames.
    pub least_free: u64,
    /// Processor time per frame taken, in nanoseconds: of kswapd, and of the allocator if known.
    pub kswapd_ns: f64,
    pub allocator_ns: Option<f64>,
    /// Delays between a wake-up of kswapd and its run, in ascending order.
    pub late_ns: Vec<u64>,
    /// Time in which the allocator did not run though frames were due.
    pub lost_ns: u64,
    /// Number of direct reclaims, out of `direct`, between a wake-up of kswapd and its run.
    pub direct_before_it_ran: u64,
}

impl Outcome {
    /// Returns a quantile of the delays of kswapd.
    pub fn late_ns_at(&self, q: f64) -> u64 {
        let last = self.late_ns.len().saturating_sub(1);
        self.late_ns.get((last as f64 * q).round() as usize).copied().unwrap_or(0)
    }
}

pub(super) struct Machine {
    pub frames: Frames,
    folios: Folios,
    spaces: Spaces,
    pub tun: Tunables,
    pub stat: VmStat,
    pub v: Lruvec,
    pub wake_requests: WakeRequests,
    stop: AtomicBool,
    busy_ns: AtomicU64,
    begun: Instant,
    /// Time at which kswapd was woken; 0 if it has run since.
    woken_ns: AtomicU64,
    late_ns: Mutex<Vec<u64>>,
}

struct Asks<'a> {
    m: &'a Machine,
    kswapd: &'a Thread,
    direct: Cell<u64>,
    early: Cell<u64>,
}

impl Host for Asks<'_> {
    fn wake_kswapd(&self, node: usize, order: Order, highest: usize) {
        let node = FramesNode { frames: &self.m.frames, node };
        let asked = self.m.wake_requests.request(&node, Policy::of(&self.m.tun), order, highest);
        if asked == RequestResult::Wake {
            self.m.woken_ns.store(self.m.now_ns(), Relaxed);
            self.kswapd.unpark();
        }
    }

    fn reclaim(&self, _: &Request, _: usize, target: u64) -> u64 {
        self.direct.set(self.direct.get() + 1);
        let waits = self.m.woken_ns.load(Relaxed) > 0;
        self.early.set(self.early.get() + u64::from(waits));
        self.m.direct(target)
    }
}

struct Back<'a>(&'a Machine, usize);

impl Pageout for Back<'_> {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, _: Shadow) -> Evicted {
        self.0.gone(cx, pfn)
    }

    fn enough(&mut self) -> bool {
        FramesNode { frames: &self.0.frames, node: 0 }.balanced(Order::ZERO, self.1)
    }
}

impl Machine {
    pub fn new(frames: u32, scale_factor: u64) -> Result<Self, LayoutError> {
        let tun = Tunables::default();
        let mut config = Config::flat(frames, 2);
        config.watermark_scale_factor = scale_factor;
        Ok(Self {
            frames: config.build()?,
            folios: Folios::new(frames),
            spaces: Spaces::new(),
            v: Lruvec::new(MemcgId(1), tun.lru, 0),
            tun,
            stat: VmStat::default(),
            wake_requests: WakeRequests::new(),
            stop: AtomicBool::new(false),
            busy_ns: AtomicU64::new(0),
            begun: Instant::now(),
            woken_ns: AtomicU64::new(0),
            late_ns: Mutex::default(),
        })
    }

    pub fn cx(&self) -> Ctx<'_> {
        Ctx {
            folios: &self.folios,
            spaces: &self.spaces,
            tun: &self.tun,
            stat: &self.stat,
            now_ms: 0,
        }
    }

    pub fn free(&self) -> u64 {
        self.frames.zones()[0].state().counters().read(ZoneItem::FreePages)
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64 + 1
    }

    /// Evicts a folio and frees its frame.
    pub fn gone(&self, cx: &Ctx, pfn: Pfn) -> Evicted {
        cx.folios.unpin(pfn);
        cx.folios.unpin(pfn);
        match self.frames.free_on(1, pfn, Order::ZERO) {
            Ok(()) => Evicted::Freed,
            Err(_) => Evicted::Busy,
        }
    }

    /// Reclaims on behalf of the allocator.
    pub fn direct(&self, target: u64) -> u64 {
        let mut run = Direct::new(target, Order::ZERO);
        while let Some(pass) = run.next() {
            let mut sc = pass.scan(true, Order::ZERO, self.tun.swappiness.0);
            self.v.shrink(&self.cx(), &mut sc, &mut Back(self, 0));
            let (reclaimed, scanned) = (sc.reclaimed, sc.scanned);
            run.passed(&DirectPassed { reclaimed, scanned, ..DirectPassed::default() });
        }
        run.reclaimed()
    }

    /// Fills half of all frames with clean, cold folios. The rest is in use, except for a little
    /// more than the high watermark.
    pub fn fill(&self, frames: u32) {
        let request = Request::new(Gfp::HIGHUSER_MOVABLE.without(Gfp::DIRECT), Order::ZERO);
        let marks = self.frames.zones()[0].state().marks();
        let mut cold = frames / 2;
        while self.free() > marks.high + 1024 {
            let Some(pfn) = self.frames.alloc_on(0, &request, &NoHost) else { break };
            if cold > 0 {
                cold -= 1;
                let word = Word::new(LruType::File, 0, 0);
                self.folios.init(pfn, word, MemcgId(1), MmId(0), Vpn(pfn.0.into()));
                self.v.add(&self.cx(), pfn);
            }
        }
    }

    fn kswapd(&self) {
        let node = FramesNode { frames: &self.frames, node: 0 };
        let mut kswapd = Kswapd::new(Policy::of(&self.tun), node.classes());
        let start = thread_time_ns();
        while !self.stop.load(Relaxed) {
            let step = kswapd.step(&self.wake_requests, &node, &self.stat);
            match step {
                Step::Pass(pass) => {
                    let mut sc = pass.scan(self.tun.swappiness.0);
                    sc.zone = 0;
                    self.v.shrink(&self.cx(), &mut sc, &mut Back(self, pass.highest));
                    let (scanned, reclaimed) = (sc.scanned, sc.reclaimed);
                    let passed = Passed { scanned, reclaimed, writing: false, met: None };
                    kswapd.passed(&self.wake_requests, &passed);
                }
                Step::Again | Step::AwaitWrites | Step::Throttle => {}
                Step::Nap | Step::Sleep => {
                    if !self.wake_requests.woken() {
                        thread::park_timeout(Duration::from_millis(NAP_MS));
                    }
                    let woken = self.woken_ns.swap(0, Relaxed);
                    if woken > 0 {
                        let late = self.now_ns().saturating_sub(woken);
                        self.late_ns.lock().expect("nobody panics with it").push(late);
                    }
                }
            }
        }
        self.busy_ns.store(thread_time_ns() - start, Relaxed);
    }
}

/// Runs once over `frames` frames.
pub fn run(frames: u32, per_second: u64, scale_factor: u64) -> Result<Outcome, ReclaimError> {
    let m = Machine::new(frames, scale_factor)?;
    m.fill(frames);
    let take = u64::from(frames) / 2 - u64::from(frames) / 16;
    thread::scope(|scope| {
        let kswapd = scope.spawn(|| {
            // This thread gets short slices, so that it runs soon after a wake-up. If the kernel
            // refuses that, the scheduling stays as it is.
            let _ = ebb_sys::sched::run_soon(0);
            m.kswapd();
        });
        let host =
            Asks { m: &m, kswapd: kswapd.thread(), direct: Cell::new(0), early: Cell::new(0) };
        let request = Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO);
        let mut least_free = u64::MAX;
        let burst = Duration::from_nanos(BURST * 1_000_000_000 / per_second);
        let start = Instant::now();
        let (mut taken, mut lost) = (0, Duration::ZERO);
        while taken < take {
            if taken % BURST == 0 {
                let due = Duration::from_nanos(taken * 1_000_000_000 / per_second);
                // An allocator that was off the CPU for a while does not catch up at a higher rate.
                let late = start.elapsed().saturating_sub(lost + due);
                lost += late.saturating_sub(burst);
                while start.elapsed() < lost + due {
                    std::hint::spin_loop();
                }
            }
            if m.frames.alloc_on(0, &request, &host).is_none() {
                break;
            }
            taken += 1;
            if taken % 1024 == 0 {
                least_free = least_free.min(m.free());
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        m.stop.store(true, Relaxed);
        kswapd.thread().unpark();
        let (direct, direct_before_it_ran) = (host.direct.get(), host.early.get());
        if kswapd.join().is_err() {
            return Err(ReclaimError::Died);
        }
        let kswapd_ns = m.busy_ns.load(Relaxed) as f64 / taken.max(1) as f64;
        let mut late_ns = std::mem::take(&mut *m.late_ns.lock().expect("nobody panics with it"));
        late_ns.sort_unstable();
        let allocator_ns = None;
        Ok(Outcome {
            taken,
            seconds,
            direct,
            least_free,
            kswapd_ns,
            allocator_ns,
            late_ns,
            lost_ns: lost.as_nanos() as u64,
            direct_before_it_ran,
        })
    })
}
