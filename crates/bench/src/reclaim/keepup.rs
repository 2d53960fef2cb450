//! kswapd in a thread of its own against an allocator that takes frames at a fixed rate.
//!
//! Half of memory is clean and cold, nearly all of the other half is in use for good. The allocator
//! runs through the cold half; each time it would have to reclaim by itself is counted.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ebb_core::folio::{Folios, LruType, MemcgId, Word};
use ebb_core::frame::{Config, Frames, Gfp, Host, NoHost, Order, Request, ZoneItem};
use ebb_core::lru::{Ctx, Evicted, Lruvec, Pageout, Shadow};
use ebb_core::observe::vmstat::VmStat;
use ebb_core::reclaim::{
    Asked, Desk, Direct, DirectPassed, FramesNode, Kswapd, NAP_MS, Node, Passed, Policy, Step,
};
use ebb_core::space::Spaces;
use ebb_core::tunables::Tunables;
use ebb_core::types::{MmId, Pfn, Vpn};
use ebb_sys::percpu::thread_time_ns;

/// What a run came to.
pub struct Outcome {
    /// Frames taken.
    pub taken: u64,
    /// In this time.
    pub seconds: f64,
    /// Times the allocator would have had to reclaim.
    pub direct: u64,
    /// The fewest frames that were free, as seen every 1024 frames.
    pub least_free: u64,
    /// Processor time of kswapd for each frame taken.
    pub kswapd_ns: f64,
}

struct Machine {
    frames: Frames,
    folios: Folios,
    spaces: Spaces,
    tun: Tunables,
    stat: VmStat,
    v: Lruvec,
    desk: Desk,
    stop: AtomicBool,
    busy_ns: AtomicU64,
}

struct Asks<'a> {
    m: &'a Machine,
    kswapd: &'a Thread,
    direct: Cell<u64>,
}

impl Host for Asks<'_> {
    fn wake_kswapd(&self, node: usize, order: Order, highest: usize) {
        let node = FramesNode { frames: &self.m.frames, node };
        let asked = self.m.desk.ask(&node, Policy::of(&self.m.tun), order, highest);
        if asked == Asked::Wake {
            self.kswapd.unpark();
        }
    }

    fn reclaim(&self, _: &Request, _: usize, target: u64) -> u64 {
        self.direct.set(self.direct.get() + 1);
        let mut run = Direct::new(target, Order::ZERO);
        while let Some(pass) = run.next() {
            let mut sc = pass.scan(true, Order::ZERO, self.m.tun.swappiness.0);
            self.m.v.shrink(&self.m.cx(), &mut sc, &mut Back(self.m, 0));
            let (reclaimed, scanned) = (sc.reclaimed, sc.scanned);
            run.passed(&DirectPassed { reclaimed, scanned, ..DirectPassed::default() });
        }
        run.reclaimed()
    }
}

struct Back<'a>(&'a Machine, usize);

impl Pageout for Back<'_> {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, _: Shadow) -> Evicted {
        cx.folios.unpin(pfn);
        cx.folios.unpin(pfn);
        match self.0.frames.free_on(1, pfn, Order::ZERO) {
            Ok(()) => Evicted::Freed,
            Err(_) => Evicted::Busy,
        }
    }

    fn enough(&mut self) -> bool {
        FramesNode { frames: &self.0.frames, node: 0 }.balanced(Order::ZERO, self.1)
    }
}

impl Machine {
    fn new(frames: u32, scale_factor: u64) -> Result<Self, String> {
        let tun = Tunables::default();
        let mut config = Config::flat(frames, 2);
        config.watermark_scale_factor = scale_factor;
        Ok(Self {
            frames: config.build().map_err(|e| e.to_string())?,
            folios: Folios::new(frames),
            spaces: Spaces::new(),
            v: Lruvec::new(MemcgId(1), tun.lru, 0),
            tun,
            stat: VmStat::default(),
            desk: Desk::new(),
            stop: AtomicBool::new(false),
            busy_ns: AtomicU64::new(0),
        })
    }

    fn cx(&self) -> Ctx<'_> {
        Ctx {
            folios: &self.folios,
            spaces: &self.spaces,
            tun: &self.tun,
            stat: &self.stat,
            now_ms: 0,
        }
    }

    fn free(&self) -> u64 {
        self.frames.zones()[0].state().counters().read(ZoneItem::FreePages)
    }

    /// Half of all frames clean and cold, the rest in use but for a little more than the high mark.
    fn fill(&self, frames: u32) {
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
            let step = kswapd.step(&self.desk, &node, &self.stat);
            match step {
                Step::Pass(pass) => {
                    let mut sc = pass.scan(self.tun.swappiness.0);
                    sc.zone = 0;
                    self.v.shrink(&self.cx(), &mut sc, &mut Back(self, pass.highest));
                    let (scanned, reclaimed) = (sc.scanned, sc.reclaimed);
                    let passed = Passed { scanned, reclaimed, writing: false, met: None };
                    kswapd.passed(&self.desk, &passed);
                }
                Step::Again | Step::AwaitWrites => {}
                Step::Nap | Step::Sleep => {
                    if !self.desk.woken() {
                        thread::park_timeout(Duration::from_millis(NAP_MS));
                    }
                }
            }
        }
        self.busy_ns.store(thread_time_ns() - start, Relaxed);
    }
}

/// One run over `frames` frames.
pub fn run(frames: u32, per_second: u64, scale_factor: u64) -> Result<Outcome, String> {
    let m = Machine::new(frames, scale_factor)?;
    m.fill(frames);
    let take = u64::from(frames) / 2 - u64::from(frames) / 16;
    thread::scope(|scope| {
        let kswapd = scope.spawn(|| m.kswapd());
        let host = Asks { m: &m, kswapd: kswapd.thread(), direct: Cell::new(0) };
        let request = Request::new(Gfp::HIGHUSER_MOVABLE, Order::ZERO);
        let mut least_free = u64::MAX;
        let start = Instant::now();
        let mut taken = 0;
        while taken < take {
            if taken % 64 == 0 {
                let due = Duration::from_nanos(taken * 1_000_000_000 / per_second);
                while start.elapsed() < due {
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
        let direct = host.direct.get();
        if kswapd.join().is_err() {
            return Err("kswapd's thread died".into());
        }
        let kswapd_ns = m.busy_ns.load(Relaxed) as f64 / taken.max(1) as f64;
        Ok(Outcome { taken, seconds, direct, least_free, kswapd_ns })
    })
}
