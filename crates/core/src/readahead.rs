//! Readahead: detects streams of misses and decides how many pages to fetch ahead.
//!
//! A stream is a sequence of misses through consecutive memory. A miss continues a stream if it
//! lies at, or shortly after, the end of the window that the previous miss fetched. Each
//! continuation doubles the window, because the program has used the whole window before (after the
//! kernel's `page_cache_ra_order` and `swap_vma_readahead`). A miss that continues no stream
//! fetches nothing. So scattered accesses cost no more than without readahead.
//!
//! Invariants:
//! * READAHEAD-1: a window is 0 or between [`WINDOW_MIN`] and the limit given at creation.
//! * READAHEAD-2: a miss that is next to none of the last `RECENT` misses never starts a stream.
//! * READAHEAD-3: a stream that was not continued for `IDLE_MAX` misses is over. Otherwise
//!   scattered misses that happen to lie near the end of any old stream would continue it. Each of
//!   them would fetch a whole window for nothing.

use crate::types::Vpn;

/// Number of streams followed at once.
const STREAMS: usize = 8;
/// Number of single misses remembered. A miss next to one of them starts a stream.
const RECENT: usize = 32;
/// Number of misses after which a stream that was not continued is over.
const IDLE_MAX: u64 = 256;
/// Fewest pages fetched ahead.
pub const WINDOW_MIN: u32 = 4;
/// Pages past its expected position at which a miss still continues a stream. The pages between are
/// in memory.
const SLACK: u64 = 4;

/// The pages to fetch beside a miss: `count` pages, upwards or downwards from the page next to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Number of pages; 0 fetches nothing.
    pub count: u32,
    /// Whether the window extends towards lower addresses.
    pub down: bool,
}

impl Window {
    /// A window that fetches nothing.
    pub const NONE: Self = Self { count: 0, down: false };

    /// Returns the pages beside `miss`, nearest first.
    pub fn pages(self, miss: Vpn) -> impl Iterator<Item = Vpn> {
        (1..=u64::from(self.count)).map_while(move |step| {
            let vpn = if self.down { miss.0.checked_sub(step) } else { miss.0.checked_add(step) };
            vpn.map(Vpn)
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Page on which the next miss of the stream is expected.
    next: u64,
    down: bool,
    window: u32,
    /// Number of the miss that last continued the stream.
    used: u64,
}

impl Stream {
    /// Returns how many pages `vpn` lies beyond the expected page. None if it does not continue the
    /// stream.
    fn distance(&self, vpn: u64) -> Option<u64> {
        let beyond =
            if self.down { self.next.checked_sub(vpn) } else { vpn.checked_sub(self.next) };
        beyond.filter(|&beyond| self.window > 0 && beyond <= SLACK.max(u64::from(self.window)))
    }
}

/// The streams of one address space.
#[derive(Clone, Debug)]
pub struct Streams {
    streams: [Stream; STREAMS],
    recent: [u64; RECENT],
    misses: u64,
    window_max: u32,
}

impl Streams {
    /// Creates a table without streams. No stream will fetch more than `window_max` pages at once.
    #[must_use]
    pub fn new(window_max: u32) -> Self {
        Self {
            streams: [Stream::default(); STREAMS],
            recent: [u64::MAX; RECENT],
            misses: 0,
            window_max: window_max.max(WINDOW_MIN),
        }
    }

    /// Records a miss on the page at `vpn`. Returns the pages to fetch beside it.
    pub fn miss(&mut self, vpn: Vpn) -> Window {
        self.misses += 1;
        let (vpn, now, most) = (vpn.0, self.misses, self.window_max);
        let goes_on =
            |stream: &&mut Stream| now - stream.used <= IDLE_MAX && stream.distance(vpn).is_some();
        if let Some(stream) = self.streams.iter_mut().find(goes_on) {
            stream.window = (stream.window * 2).min(most);
            return stream.advance(vpn, now);
        }
        let neighbour = |down: bool| {
            let before = if down { vpn.checked_add(1) } else { vpn.checked_sub(1) };
            before.is_some_and(|before| self.recent.contains(&before))
        };
        let down = match (neighbour(false), neighbour(true)) {
            (true, _) => false,
            (false, true) => true,
            (false, false) => {
                self.recent[(now % RECENT as u64) as usize] = vpn;
                return Window::NONE;
            }
        };
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used);
        let stream = oldest.expect("there are streams");
        *stream = Stream { next: 0, down, window: WINDOW_MIN, used: 0 };
        stream.advance(vpn, now)
    }

    /// Records that the window beside `miss` was fetched only up to `left`, for want of memory. The
    /// next miss of the stream is then expected at `left`.
    pub fn cut(&mut self, miss: Vpn, window: Window, left: Vpn) {
        let next =
            Stream { window: window.count, down: window.down, ..Stream::default() }.beyond(miss.0);
        let is_its = |stream: &&mut Stream| stream.next == next && stream.down == window.down;
        if let Some(stream) = self.streams.iter_mut().find(is_its) {
            stream.next = left.0;
        }
    }
}

impl Stream {
    /// Returns the page after the window of a miss at `vpn`.
    fn beyond(&self, vpn: u64) -> u64 {
        let reach = u64::from(self.window) + 1;
        if self.down { vpn.saturating_sub(reach) } else { vpn.saturating_add(reach) }
    }

    fn advance(&mut self, vpn: u64, now: u64) -> Window {
        self.next = self.beyond(vpn);
        self.used = now;
        Window { count: self.window, down: self.down }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn counts(streams: &mut Streams, misses: &[u64]) -> Vec<u32> {
        misses.iter().map(|&vpn| streams.miss(Vpn(vpn)).count).collect()
    }

    #[test]
    fn a_pass_over_memory_doubles_its_window_up_to_the_limit() {
        let mut streams = Streams::new(32);
        let (mut vpn, mut windows) = (1000, Vec::new());
        for _ in 0..7 {
            let window = streams.miss(Vpn(vpn));
            assert!(!window.down);
            windows.push(window.count);
            vpn += u64::from(window.count) + 1;
        }
        assert_eq!(windows, [0, 4, 8, 16, 32, 32, 32]);
    }

    #[test]
    fn a_pass_downwards_is_a_stream_too() {
        let mut streams = Streams::new(8);
        assert_eq!(streams.miss(Vpn(500)), Window::NONE);
        let window = streams.miss(Vpn(499));
        assert_eq!(window, Window { count: 4, down: true });
        let pages: Vec<u64> = window.pages(Vpn(499)).map(|vpn| vpn.0).collect();
        assert_eq!(pages, [498, 497, 496, 495]);
        assert_eq!(streams.miss(Vpn(494)), Window { count: 8, down: true });
    }

    /// Shows that a stream whose window came three pages short for want of memory goes on.
    /// Otherwise it would start anew, without a window.
    #[test]
    fn a_pass_goes_on_where_its_window_came_short() {
        let mut streams = Streams::new(32);
        assert_eq!(counts(&mut streams, &[10, 11, 16, 25]), [0, 4, 8, 16]);
        let window = streams.miss(Vpn(42));
        streams.cut(Vpn(42), window, Vpn(72));
        assert_eq!(streams.miss(Vpn(72)), Window { count: 32, down: false });
        assert_eq!(
            counts(&mut streams, &[105, 110]),
            [32, 0],
            "within what was fetched nothing goes on"
        );
        let mut down = Streams::new(32);
        assert_eq!(counts(&mut down, &[500, 499]), [0, 4]);
        down.cut(Vpn(499), Window { count: 4, down: true }, Vpn(496));
        assert_eq!(down.miss(Vpn(496)), Window { count: 8, down: true });
    }

    #[test]
    fn scattered_misses_fetch_nothing() {
        let mut streams = Streams::new(32);
        let misses: Vec<u64> = (0..200).map(|n| n * 7919 % 100_000).collect();
        assert!(counts(&mut streams, &misses).iter().all(|&count| count == 0));
    }

    #[test]
    fn a_stream_survives_scattered_misses_between_its_own() {
        let mut streams = Streams::new(16);
        counts(&mut streams, &[10, 11]);
        let mut vpn = 16;
        for round in 0..4u64 {
            let scattered: Vec<u64> =
                (0..100).map(|n| 1_000_000 + (round * 100 + n) * 17).collect();
            counts(&mut streams, &scattered);
            let window = streams.miss(Vpn(vpn));
            assert!(window.count >= 8, "round {round}: {window:?}");
            vpn += u64::from(window.count) + 1;
        }
    }

    /// Shows that scattered misses do not continue a finished stream. A program that had filled its
    /// memory in order would otherwise be read 44,000 pages ahead in 90,000 scattered misses.
    #[test]
    fn a_pass_that_is_over_is_not_continued_by_scattered_misses() {
        let mut streams = Streams::new(64);
        let mut vpn = 0;
        while vpn < 40_000 {
            vpn += u64::from(streams.miss(Vpn(vpn)).count) + 1;
        }
        let scattered: Vec<u64> = (0..10_000).map(|n| 1 + n * 7919 % 39_989).collect();
        let ahead: u32 = counts(&mut streams, &scattered).iter().sum();
        assert!(ahead < 1_000, "{ahead} pages ahead of 10,000 scattered misses");
    }

    #[test]
    fn a_window_ends_at_the_ends_of_the_address_space() {
        let mut streams = Streams::new(32);
        counts(&mut streams, &[1]);
        let window = streams.miss(Vpn(0));
        assert_eq!(window.pages(Vpn(0)).count(), 0);
        streams.miss(Vpn(u64::MAX));
    }

    proptest! {
        #[test]
        fn windows_keep_to_their_bounds(
            misses in prop::collection::vec(0u64..64, 1..300),
            most in 1u32..100,
        ) {
            let mut streams = Streams::new(most);
            for vpn in misses {
                let count = streams.miss(Vpn(vpn)).count;
                prop_assert!(count == 0 || (WINDOW_MIN..=most.max(WINDOW_MIN)).contains(&count));
            }
        }
    }
}
