//! What a run may have is changed while it lasts (`ebb set`).
//!
//! The monitor takes one wish after another and carries it out, a step at each look.
//!
//! * RESIZE-1: more takes effect at once.
//! * RESIZE-2: less comes in steps of a 128th, each begun when the tree is within the one before: what is over the limit for
//!   that is less than the brake holds anybody for.
//! * RESIZE-3: a step to which the tree comes no nearer for a while ([`Patience::Resize`]) is taken back, and who asked is told how far it went. That
//!   is less than a run is given before it is out of memory: none is ended for a wish.
//!   What is to be kept (`keep=1`: `ebb attach`, whose process holds now what it may let go of later) is tried again, after
//!   [`AGAIN`] and then less and less often, until somebody says another limit.
//! * RESIZE-4: a wish whose words are not all understood changes nothing.
//! * RESIZE-5: while a run is given back (`detach.rs`) nothing changes its limit, which is lifted; what is under way waits.

use crate::config::MEMORY_MIN_BYTES;
use crate::detach;
use crate::events::{By, Event};
use crate::lru_gen::{DONE, REFUSED};
use crate::patience::{Moment, Patience};
use crate::pressure_target::PressureTarget;
use crate::seam::Connection;
use crate::server::Pager;
use ebb_mm::types::PAGE_SIZE;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How soon what could not be had is tried again, and how seldom at last (RESIZE-3).
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_MAX: Duration = Duration::from_secs(60);
/// Asks for the end of a run that was attached to.
pub const DETACH: &str = "detach";
/// A step, as a share of the limit, and the least of it in pages (RESIZE-2).
const STEP_SHARE: u64 = 128;
const STEP_MIN: u64 = if cfg!(test) { 8 } else { 256 };

/// How often a limit that is found is told of while it changes little.
const FOUND_EVERY: Duration = Duration::from_secs(10);

/// What is wanted, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Wish {
    max: Option<u64>,
    /// `u64::MAX` is none.
    high: Option<u64>,
    ram: Option<u64>,
    /// If the limit cannot be had now, it is later.
    keep: bool,
}

impl Wish {
    fn parse(text: &str) -> Result<Self, String> {
        let mut wish = Self::default();
        for word in text.split_ascii_whitespace() {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("'{word}' has no ="))?;
            let bytes = match value {
                "max" => u64::MAX,
                _ => value.parse().map_err(|_| format!("'{value}' is no number of bytes"))?,
            };
            match key {
                "memory.max" => wish.max = Some(bytes),
                "memory.high" => wish.high = Some(bytes),
                "tier.ram" => wish.ram = Some(bytes),
                "keep" => wish.keep = bytes != 0,
                _ => return Err(format!("there is no '{key}' to set")),
            }
        }
        if wish.max == Some(u64::MAX) {
            return Err("memory.max=max: a run has a limit; write a size".into());
        }
        if let Some(max) = wish.max.filter(|&max| max < MEMORY_MIN_BYTES) {
            return Err(format!(
                "memory.max={max} is less than the {MEMORY_MIN_BYTES} bytes needed"
            ));
        }
        Ok(wish)
    }
}

/// Wishes for the monitor, each with the line its answer goes to.
#[derive(Debug, Default)]
pub struct Wishes(Mutex<VecDeque<(Wish, Box<dyn Connection>)>>);

impl Wishes {
    fn add(&self, wish: Wish, line: Box<dyn Connection>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((wish, line));
    }

    /// So many pages are to be the limit, simulated: of less memory than a wish may ask for.
    #[cfg(test)]
    pub fn add_pages(&self, max: u64, keep: bool, line: Box<dyn Connection>) {
        self.add(Wish { max: Some(max * PAGE_SIZE as u64), keep, ..Wish::default() }, line);
    }

    fn next(&self) -> Option<(Wish, Box<dyn Connection>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// Takes a wish. What is to be reclaimed at once is kswapd's work.
pub fn asked(pager: &Pager, request: &str, line: Box<dyn Connection>) -> std::io::Result<()> {
    if request == DETACH {
        return detach::asked(pager, line);
    }
    if request.starts_with("reclaim=") {
        pager.requests.add(request.to_owned(), line);
        pager.kswapd.raise();
        return Ok(());
    }
    match Wish::parse(request) {
        Ok(wish) => {
            pager.wishes.add(wish, line);
            pager.monitor.raise();
            Ok(())
        }
        // Who takes no answer gets none.
        Err(reason) => line.say(format!("{REFUSED}{reason}").as_bytes()),
    }
}

/// Less is wanted, and the way there is not over.
#[derive(Debug)]
struct UnderWay {
    /// Pages wanted.
    target: u64,
    /// The limit before the last step.
    reached: u64,
    /// The least that was used since.
    least: u64,
    /// When that was, or the step began.
    since: Moment,
    /// The limit when it began.
    from: u64,
    /// Who waits for the answer. Nobody where it is tried again.
    line: Option<Box<dyn Connection>>,
    /// After how long it is to be tried again, if it is.
    again: Option<Duration>,
}

/// A limit that could not be had, and is to be (RESIZE-3).
#[derive(Debug)]
struct Kept {
    /// Pages.
    target: u64,
    at: Instant,
    pause: Duration,
}

impl UnderWay {
    fn patience(&self) -> Patience {
        if self.line.is_some() { Patience::Resize } else { Patience::ResizeAgain }
    }
}

/// The monitor's part.
#[derive(Debug)]
pub struct Resize {
    under_way: Option<UnderWay>,
    kept: Option<Kept>,
    /// Where reclaim is to aim, in pages, if that was said.
    high: Option<u64>,
    /// The most that compressed memory may take, in bytes, if that was said.
    ram: Option<u64>,
    /// Who finds the limit, if nobody says it.
    target: Option<PressureTarget>,
    /// The limit found that was told of last, and when.
    told: (Duration, u64),
}

impl Resize {
    /// As the run began.
    pub fn new(pager: &Pager) -> Self {
        let high = pager.config.memory_high_bytes.map(|bytes| bytes / PAGE_SIZE as u64);
        let max = pager.config.memory_max_bytes / PAGE_SIZE as u64;
        let target = pager.config.pressure_target_permille;
        let target = target.map(|permille| PressureTarget::new(permille, max));
        Self {
            under_way: None,
            kept: None,
            high,
            ram: pager.config.ram_bytes_said(),
            target,
            told: (Duration::ZERO, max),
        }
    }

    /// One look. True while there is more to do, and looks are wanted often.
    pub fn look(&mut self, pager: &Pager) -> bool {
        if pager.detach.is_on() {
            return self.under_way.is_some();
        }
        if let Some(way) = self.under_way.take() {
            self.go_on(pager, way);
        } else if let Some((wish, line)) = pager.wishes.next() {
            // Who says a limit has it.
            self.target = self.target.take().filter(|_| wish.max.is_none());
            self.kept = self.kept.take().filter(|_| wish.max.is_none());
            self.begin(pager, wish, line);
        } else if let Some(kept) = self.kept.take_if(|kept| kept.at <= pager.clock.now()) {
            self.try_again(pager, &kept);
        } else if let Some(target) = &mut self.target {
            let at = pager.clock.since(pager.started);
            // From the touch to running again: the stalls of the pressure file are a part of it.
            let lost_us = pager.waited().1 / 1000;
            let (limit, used) = {
                let resident = pager.resident();
                (resident.zone.limit(), resident.zone.used())
            };
            if let Some(limit) = target.look(at, lost_us, limit, used) {
                self.apply(pager, limit);
                self.tell_found(pager, at, limit);
            }
        }
        self.under_way.is_some()
    }

    fn begin(&mut self, pager: &Pager, wish: Wish, line: Box<dyn Connection>) {
        if let Some(bytes) = wish.high {
            self.high = (bytes != u64::MAX).then_some(bytes / PAGE_SIZE as u64);
        }
        if let Some(bytes) = wish.ram {
            self.ram = (bytes != u64::MAX).then_some(bytes);
        }
        let now = pager.resident().zone.limit();
        let target = wish.max.map_or(now, |bytes| bytes / PAGE_SIZE as u64);
        if target >= now {
            self.apply(pager, target);
            tell(pager, By::Set, target);
            say(&*line, DONE);
        } else {
            self.apply(pager, now);
            let since = pager.clock.moment();
            let again = wish.keep.then_some(AGAIN);
            let line = Some(line);
            let way =
                UnderWay { target, reached: now, least: u64::MAX, since, from: now, line, again };
            self.go_on(pager, way);
        }
    }

    /// It may be that more can leave by now.
    fn try_again(&mut self, pager: &Pager, kept: &Kept) {
        let now = pager.resident().zone.limit();
        if now > kept.target {
            let (target, again) = (kept.target, Some(kept.pause));
            let (least, since) = (u64::MAX, pager.clock.moment());
            let way = UnderWay { target, reached: now, least, since, from: now, line: None, again };
            self.go_on(pager, way);
        }
    }

    fn go_on(&mut self, pager: &Pager, mut way: UnderWay) {
        let (limit, used) = {
            let resident = pager.resident();
            (resident.zone.limit(), resident.zone.used())
        };
        if used <= limit {
            if limit == way.target {
                tell(pager, By::Set, limit);
                return way.line.iter().for_each(|line| say(&**line, DONE));
            }
            if limit < way.from {
                // It was worth the while.
                way.again = way.again.map(|_| AGAIN);
            }
            way.reached = limit;
            let step = (limit / STEP_SHARE).max(STEP_MIN);
            self.apply(pager, limit.saturating_sub(step).max(way.target));
            (way.least, way.since) = (used, pager.clock.moment());
        } else if used < way.least {
            (way.least, way.since) = (used, pager.clock.moment());
        } else if way.patience().is_over(pager.clock.moment().since(way.since)) {
            self.apply(pager, way.reached);
            return self.give_up(pager, way);
        }
        self.under_way = Some(way);
    }

    fn give_up(&mut self, pager: &Pager, way: UnderWay) {
        if way.line.is_some() || way.reached < way.from {
            tell(pager, By::Set, way.target);
        }
        if let Some(line) = &way.line {
            let mib = |pages: u64| pages as f64 / 256.0;
            let tried = if way.again.is_some() { "; it is tried again" } else { "" };
            let (is, not) = (mib(way.reached), mib(way.target));
            let text = format!(
                "{REFUSED}memory.max is {is:.1} MiB now, not {not:.1}: of what is in memory no more can leave \
                 (areas that are locked, not writable or not managed; a tier that is full){tried}"
            );
            say(&**line, &text);
        }
        self.kept = way.again.map(|pause| Kept {
            target: way.target,
            at: pager.clock.now() + pause,
            pause: (pause * 2).min(AGAIN_MAX),
        });
    }

    /// The limit was found to be another one: told of when it is by an eighth, or once in ten seconds.
    fn tell_found(&mut self, pager: &Pager, at: Duration, limit: u64) {
        let (when, last) = self.told;
        if limit.abs_diff(last) >= last / 8 || (limit != last && at >= when + FOUND_EVERY) {
            self.told = (at, limit);
            tell(pager, By::PressureTarget, limit);
        }
    }

    fn apply(&self, pager: &Pager, limit: u64) {
        let bytes = limit * PAGE_SIZE as u64;
        let ram = self.ram.unwrap_or(bytes / 2).min(bytes);
        let mut engine = pager.engine();
        if pager.detach.is_on() {
            return;
        }
        engine.resize(limit, self.high.unwrap_or(limit), ram);
        drop(engine);
        pager.store.set_ram_limit(ram);
        pager.wake_kswapd();
        pager.wake_if_waiting();
    }
}

/// The limit is another one now; so many pages were wanted.
fn tell(pager: &Pager, by: By, wanted: u64) {
    let (memory_max_bytes, memory_high_bytes) = pager.limits();
    pager.note_run(&Event::LimitChanged {
        by,
        memory_max_bytes,
        memory_high_bytes,
        used_bytes: pager.resident().zone.used() * PAGE_SIZE as u64,
        wanted_bytes: wanted * PAGE_SIZE as u64,
    });
}

/// Who asked may have left.
fn say(line: &dyn Connection, text: &str) {
    let _ = line.say(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::Wish;

    #[test]
    fn a_wish_is_understood_whole_or_refused() {
        let wish = Wish::parse("memory.max=67108864 memory.high=max tier.ram=1024").unwrap();
        let all = Wish { max: Some(64 << 20), high: Some(u64::MAX), ram: Some(1024), keep: false };
        assert_eq!(wish, all);
        assert_eq!(Wish::parse("memory.max=67108864 keep=1").map(|wish| wish.keep), Ok(true));
        for (text, word) in [
            ("memory.max", "no ="),
            ("memory.max=64M", "'64M'"),
            ("memory.max=max", "limit"),
            ("memory.max=4096", "less than"),
            ("memory.high=1 pids.max=1", "'pids.max'"),
        ] {
            let error = Wish::parse(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
