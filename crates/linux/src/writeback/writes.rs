//! The writes under way, of file and anonymous pages alike.
//!
//! A reclaim run gathers the pages that it begins to write. The driver submits them when the run
//! ends, in order, with neighbours in one request. A page is marked when its write begins
//! ([`Writes::begin`]) and stays in memory while it is written. [`Writes::end`] records the result.
//! After success the page is clean and, if reclaim wants it, at the old end of its list. After a
//! failure the page is dirty as before.
//!
//! A thread that waits for writes ([`Throttle`](crate::reclaim::Throttle)) compares
//! [`Writes::succeeded`].
//!
//! Invariants
//! * WRITES-1: a folio is `WRITEBACK` from its `begin` (or the flusher's batch) to its `end`.
//! * WRITES-2: `pending` is the number of pages begun and not ended, gathered ones included.

use super::cache::{FileId, PageCache};
use super::flush::Run;
use crate::swap::SwapCache;
use ebb_mm::folio::{LruType, Word};
use ebb_mm::lru::{Ctx, Lruvec};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::tunables::SwapOrder;
use ebb_mm::types::{MmId, Pfn, SlotId, Vpn};

/// Target of the first page of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum To {
    /// A page of a file.
    File(FileId, u64),
    /// A slot of the swap device.
    Swap(SlotId),
}

impl To {
    /// Returns the target `pages` pages further on.
    fn further(self, pages: usize) -> Self {
        match self {
            Self::File(file, page) => Self::File(file, page + pages as u64),
            Self::Swap(slot) => Self::Swap(SlotId(slot.0 + pages as u32)),
        }
    }
}

/// Pages to be written in a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Target of the first page.
    pub to: To,
    /// Frames of the pages, in order.
    pub frames: Vec<Pfn>,
}

/// The writes under way.
#[derive(Debug, Default)]
pub struct Writes {
    anon: Vec<(MmId, Vpn, Pfn)>,
    placed: Vec<(To, Pfn)>,
    pending: u64,
    succeeded: u64,
}

impl Writes {
    /// Returns the number of pages begun and not ended.
    #[must_use]
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns the number of pages whose write has succeeded.
    #[must_use]
    pub fn succeeded(&self) -> u64 {
        self.succeeded
    }

    /// Begins to write a page that reclaim has isolated. Returns false if the page is not dirty, is
    /// being written already, or finds no room.
    pub fn begin(
        &mut self,
        cx: &Ctx,
        cache: &mut PageCache,
        swap: &mut SwapCache,
        pfn: Pfn,
    ) -> bool {
        let w = cx.folios.word(pfn);
        if w.has(Word::WRITEBACK) {
            return false;
        }
        if w.ty() == LruType::File {
            let Some((file, page)) = cache.take_one(cx, pfn) else { return false };
            self.placed.push((To::File(file, page), pfn));
        } else {
            if !swap.begin_write(cx, pfn) {
                return false;
            }
            let (mm, vpn) = cx.folios.owner(pfn);
            self.anon.push((mm, vpn, pfn));
            cx.stat.add(Event::NrVmscanWrite, w.pages());
        }
        self.pending += 1;
        true
    }

    /// Turns the runs that the flusher has begun into requests.
    pub fn flushed(&mut self, runs: Vec<Run>) -> Vec<Request> {
        self.pending += runs.iter().map(|run| run.frames.len() as u64).sum::<u64>();
        let request = |run: Run| Request { to: To::File(run.file, run.page), frames: run.frames };
        runs.into_iter().map(request).collect()
    }

    /// Returns the gathered pages as requests. Anonymous pages get their slots here, in the order
    /// in which they were begun, or by address.
    pub fn submit(&mut self, cx: &Ctx, swap: &mut SwapCache) -> Vec<Request> {
        if cx.tun.swap.order == SwapOrder::Address {
            self.anon.sort_unstable();
        }
        for (_, _, pfn) in self.anon.drain(..) {
            self.placed.push((To::Swap(swap.place(cx, pfn)), pfn));
        }
        self.placed.sort_unstable();
        let mut requests: Vec<Request> = Vec::new();
        for (to, pfn) in self.placed.drain(..) {
            match requests.last_mut() {
                Some(last) if last.to.further(last.frames.len()) == to => last.frames.push(pfn),
                _ => requests.push(Request { to, frames: vec![pfn] }),
            }
        }
        requests
    }

    /// Records the end of one page's write.
    pub fn end(
        &mut self,
        cx: &Ctx,
        cache: &mut PageCache,
        swap: &mut SwapCache,
        v: &Lruvec,
        (pfn, ok): (Pfn, bool),
    ) {
        self.pending -= 1;
        self.succeeded += u64::from(ok);
        if cx.folios.word(pfn).ty() == LruType::File {
            cache.end_write(cx, v, pfn, ok);
        } else {
            swap.end_write(cx, v, pfn, ok);
        }
    }
}
