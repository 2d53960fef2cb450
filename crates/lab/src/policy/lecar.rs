//! LeCaR (Vietri and others, HotStorage 2018): each eviction uses LRU or LFU, at random. A miss on
//! a ghost of either lowers the weight of that expert.

use super::chain::Chains;
use super::{Policy, Tally};

const LIVE: usize = 0;
const LRU_GHOST: usize = 1;
const LFU_GHOST: usize = 2;
/// Tag of a page on no list; otherwise the tag is the list's number.
const ABSENT: u8 = 3;
const NONE: u32 = u32::MAX;
const LEARNING_RATE: f64 = 0.45;

/// Pages of one frequency, oldest first, and the neighbouring frequencies in use.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    frequency: u32,
    first: u32,
    last: u32,
    lower: u32,
    higher: u32,
}

/// Links of a page in its bucket.
#[derive(Clone, Copy, Debug)]
struct BucketEntry {
    bucket: u32,
    prev: u32,
    next: u32,
}

/// Pages by frequency: a list of buckets, each a list of pages. All operations take constant time.
#[derive(Debug)]
struct Frequencies {
    places: Vec<BucketEntry>,
    buckets: Vec<Bucket>,
    unused: Vec<u32>,
    lowest: u32,
}

impl Frequencies {
    fn new(pages: u32) -> Self {
        let places = vec![BucketEntry { bucket: NONE, prev: NONE, next: NONE }; pages as usize];
        Self { places, buckets: Vec::new(), unused: Vec::new(), lowest: NONE }
    }

    /// Returns the oldest page of the lowest frequency.
    fn victim(&self) -> u32 {
        self.buckets[self.lowest as usize].first
    }

    fn insert(&mut self, page: u32) {
        let at = match self.buckets.get(self.lowest as usize) {
            Some(bucket) if bucket.frequency == 1 => self.lowest,
            _ => self.new_bucket(1, NONE, self.lowest),
        };
        self.append(page, at);
    }

    fn raise(&mut self, page: u32) {
        let old = self.places[page as usize].bucket;
        let Bucket { frequency, higher, first, last, .. } = self.buckets[old as usize];
        let next_has_it =
            higher != NONE && self.buckets[higher as usize].frequency == frequency + 1;
        if first == last && !next_has_it {
            self.buckets[old as usize].frequency += 1;
            return;
        }
        let to = if next_has_it { higher } else { self.new_bucket(frequency + 1, old, higher) };
        self.remove(page);
        self.append(page, to);
    }

    fn new_bucket(&mut self, frequency: u32, lower: u32, higher: u32) -> u32 {
        let bucket = Bucket { frequency, first: NONE, last: NONE, lower, higher };
        let at = match self.unused.pop() {
            Some(at) => {
                self.buckets[at as usize] = bucket;
                at
            }
            None => {
                self.buckets.push(bucket);
                self.buckets.len() as u32 - 1
            }
        };
        self.join(lower, at);
        self.join(at, higher);
        at
    }

    fn join(&mut self, lower: u32, higher: u32) {
        match self.buckets.get_mut(lower as usize) {
            Some(bucket) => bucket.higher = higher,
            None => self.lowest = higher,
        }
        if let Some(bucket) = self.buckets.get_mut(higher as usize) {
            bucket.lower = lower;
        }
    }

    fn append(&mut self, page: u32, at: u32) {
        let last = std::mem::replace(&mut self.buckets[at as usize].last, page);
        self.places[page as usize] = BucketEntry { bucket: at, prev: last, next: NONE };
        match self.places.get_mut(last as usize) {
            Some(place) => place.next = page,
            None => self.buckets[at as usize].first = page,
        }
    }

    fn remove(&mut self, page: u32) {
        let BucketEntry { bucket: at, prev, next } = self.places[page as usize];
        match self.places.get_mut(prev as usize) {
            Some(place) => place.next = next,
            None => self.buckets[at as usize].first = next,
        }
        match self.places.get_mut(next as usize) {
            Some(place) => place.prev = prev,
            None => self.buckets[at as usize].last = prev,
        }
        let Bucket { first, lower, higher, .. } = self.buckets[at as usize];
        if first == NONE {
            self.join(lower, higher);
            self.unused.push(at);
        }
    }

    fn heap_bytes(&self) -> usize {
        self.places.capacity() * size_of::<BucketEntry>()
            + self.buckets.capacity() * size_of::<Bucket>()
            + self.unused.capacity() * 4
    }
}

/// Resident pages by recency and by frequency, both experts' ghosts, and the weights.
#[derive(Debug)]
pub struct LeCar {
    lists: Chains<3>,
    tags: Vec<u8>,
    frequencies: Frequencies,
    evicted_at: Vec<u32>,
    now: u32,
    capacity: u32,
    weight_lru: f64,
    weight_lfu: f64,
    discount: f64,
    random: u128,
    tally: Tally,
}

impl LeCar {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32, seed: u64) -> Self {
        Self {
            lists: Chains::new(pages),
            tags: vec![ABSENT; pages as usize],
            frequencies: Frequencies::new(pages),
            evicted_at: vec![0; pages as usize],
            now: 0,
            capacity,
            weight_lru: 0.5,
            weight_lfu: 0.5,
            discount: 0.005f64.powf(1.0 / f64::from(capacity)),
            random: u128::from(seed.max(1)),
            tally: Tally::default(),
        }
    }

    /// Returns a random number in 0..1 in steps of 0.01.
    fn draw(&mut self) -> f64 {
        self.random = self.random.wrapping_mul(0xda94_2042_e4dd_58b5);
        f64::from(((self.random >> 64) as u64 % 100) as u32) / 100.0
    }

    /// Lowers the weight of the expert that evicted a page which misses again after `age`.
    fn learn(&mut self, blamed: usize, age: u32) {
        let regret = self.discount.powf(f64::from(age));
        let (blame, other) = if blamed == LRU_GHOST {
            (&mut self.weight_lru, &mut self.weight_lfu)
        } else {
            (&mut self.weight_lfu, &mut self.weight_lru)
        };
        *blame = *blame * (-LEARNING_RATE * regret).exp() + 1e-10;
        let sum = *blame + *other + 2e-10;
        *blame /= sum;
        *other = (*other + 1e-10) / sum;
    }

    fn evict(&mut self) {
        let by_recency = self.lists.tail(LIVE);
        let by_frequency = self.frequencies.victim();
        self.tally.scanned += 1;
        let (page, ghosts) = if by_recency == by_frequency {
            (by_recency, None)
        } else if self.draw() < self.weight_lru {
            (by_recency, Some(LRU_GHOST))
        } else {
            (by_frequency, Some(LFU_GHOST))
        };
        self.frequencies.remove(page);
        self.lists.remove(LIVE, page);
        self.tags[page as usize] = ABSENT;
        let Some(ghosts) = ghosts else { return };
        self.evicted_at[page as usize] = self.now;
        self.lists.push_head(ghosts, page);
        self.tags[page as usize] = ghosts as u8;
        if self.lists.len(ghosts) > self.capacity / 2 {
            let oldest = self.lists.pop_tail(ghosts);
            self.tags[oldest as usize] = ABSENT;
        }
    }

    fn miss(&mut self, page: u32, tag: u8) {
        if tag != ABSENT {
            let ghosts = usize::from(tag);
            self.learn(ghosts, self.now.wrapping_sub(self.evicted_at[page as usize]));
            self.lists.remove(ghosts, page);
        }
        if self.lists.len(LIVE) == self.capacity {
            self.evict();
        }
        self.lists.push_head(LIVE, page);
        self.tags[page as usize] = LIVE as u8;
        self.frequencies.insert(page);
    }
}

impl Policy for LeCar {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        self.now = self.now.wrapping_add(1);
        let tag = self.tags[page as usize];
        if usize::from(tag) == LIVE {
            self.lists.move_to_head(LIVE, page);
            self.frequencies.raise(page);
            return true;
        }
        self.miss(page, tag);
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        usize::from(self.tags[page as usize]) == LIVE
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes()
            + self.tags.capacity()
            + self.frequencies.heap_bytes()
            + self.evicted_at.capacity() * 4
    }
}
