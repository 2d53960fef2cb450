//! The arena of the RAM tier: objects of 1 to 4096 bytes in size classes, compactable.
//!
//! Memory comes in spans of 32 KiB. Each is a mapping of its own, so that a freed span goes back to
//! the system. A span holds objects of one size class. The classes are the sizes that divide a span
//! well, a few percent apart. Random frees leave holes. The arena records the owner of each object,
//! so that compaction can move objects together.
//!
//! The arena takes and gives spans but never maps or unmaps one. The user of the arena does that,
//! outside the lock that guards the arena. Life of a span:
//!
//! ```text
//! mapped by the user -> donate -> spare -> in use by a class -> empty -> spare -> release ->
//! unmapped
//! ```
//!
//! Invariants:
//! * ARENA-1: a span in use with a free object is in exactly one fullness group of its class, at
//!   the position it records. A full span is in none. A span without objects is not in use.
//! * ARENA-2: bit `i` of `taken` is set if and only if object `i` is allocated, and then
//!   `owners[i]` is its owner.
//! * ARENA-3: `class.free` is the number of free objects in the class's spans in use.

use ebb_sys::anon::AnonBuffer;

/// Number of bytes in a span.
pub(crate) const SPAN_BYTES: usize = 32 << 10;
/// Length of the longest object.
pub(crate) const OBJECT_MAX: usize = 4096;
/// Size of the shortest class: 512 objects in a span.
const OBJECT_MIN: usize = 64;
/// Class sizes are multiples of this.
const GRAIN: usize = 16;
const TAKEN_WORDS: usize = SPAN_BYTES / OBJECT_MIN / 64;
/// Number of fullness groups of the spans in use. Allocation takes from the fullest group, so that
/// the emptiest spans drain.
const GROUPS: usize = 8;
/// An object may fill a hole that is larger than itself by up to one part in `STRETCH`.
const STRETCH: usize = 6;
/// Bytes a span costs beside its 32 KiB: the descriptor and 4 bytes an object, roughly.
const SPAN_META_BYTES: usize = size_of::<Span>() + 32 * 4;
/// Bytes that one span counts against the limit.
pub(crate) const SPAN_COST: u64 = (SPAN_BYTES + SPAN_META_BYTES) as u64;

/// Location of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Object {
    pub span: u32,
    pub index: u16,
}

/// Why an object cannot be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoObject {
    /// There is room: donate a span and try again.
    NeedSpan,
    /// The limit is reached.
    Full,
}

struct Span {
    memory: AnonBuffer,
    class: u8,
    group: u8,
    position: u32,
    used: u16,
    taken: [u64; TAKEN_WORDS],
    owners: Box<[u32]>,
}

struct Class {
    size: usize,
    per_span: usize,
    free: usize,
    spans: usize,
    groups: [Vec<u32>; GROUPS],
}

impl Class {
    /// Returns the fullest span that has room.
    fn partial(&self) -> Option<u32> {
        self.groups.iter().rev().find_map(|group| group.last().copied())
    }

    /// Returns whether compaction can empty a span and leave `keep` objects free.
    fn can_give(&self, keep: usize) -> bool {
        self.spans > 1 && self.free >= self.per_span + keep
    }
}

/// The arena.
pub(crate) struct Arena {
    classes: Vec<Class>,
    /// Class of a length, by `length.div_ceil(GRAIN)`.
    class_of: [u8; OBJECT_MAX / GRAIN + 1],
    spans: Vec<Option<Span>>,
    free_ids: Vec<u32>,
    spare: Vec<AnonBuffer>,
    /// Largest number of bytes in spans, their cost included.
    pub limit: u64,
}

/// Returns the size classes, largest first. Each is the largest multiple of the grain of which a
/// given number fits into a span.
fn class_sizes() -> Vec<usize> {
    let mut sizes = Vec::new();
    let mut count = SPAN_BYTES / OBJECT_MAX;
    while count <= SPAN_BYTES / OBJECT_MIN {
        let size = SPAN_BYTES / count / GRAIN * GRAIN;
        if sizes.last() != Some(&size) {
            sizes.push(size);
        }
        count += (count / 16).max(1);
    }
    if sizes.last() != Some(&OBJECT_MIN) {
        sizes.push(OBJECT_MIN);
    }
    sizes
}

impl Arena {
    pub(crate) fn new(limit: u64) -> Self {
        let sizes = class_sizes();
        let mut class_of = [0; OBJECT_MAX / GRAIN + 1];
        for (grains, class) in class_of.iter_mut().enumerate() {
            let fit = sizes.iter().rposition(|size| *size >= grains * GRAIN);
            *class = fit.expect("the first class holds the longest object") as u8;
        }
        let class = |size: usize| Class {
            size,
            per_span: SPAN_BYTES / size,
            free: 0,
            spans: 0,
            groups: Default::default(),
        };
        Self {
            classes: sizes.into_iter().map(class).collect(),
            class_of,
            spans: Vec::new(),
            free_ids: Vec::new(),
            spare: Vec::new(),
            limit,
        }
    }

    /// Returns the bytes of RAM that the arena occupies: whole spans, in use or spare, and their
    /// descriptors.
    pub(crate) fn occupied(&self) -> u64 {
        (self.span_count() + self.spare.len()) as u64 * SPAN_COST
    }

    fn span_count(&self) -> usize {
        self.spans.len() - self.free_ids.len()
    }

    /// Returns whether another span may be donated without exceeding the limit.
    fn may_grow(&self) -> bool {
        self.occupied() + SPAN_COST <= self.limit
    }

    /// Returns whether a span is available for any class, if need be by compaction.
    pub(crate) fn has_room(&self) -> bool {
        self.has_spare() || self.may_grow() || self.classes.iter().any(|class| class.can_give(0))
    }

    /// Returns whether a spare span is available.
    pub(crate) fn has_spare(&self) -> bool {
        !self.spare.is_empty()
    }

    /// Returns the offset of an object for messages, as if the spans were consecutive.
    pub(crate) fn offset(&self, object: Object) -> u64 {
        let span = self.spans[object.span as usize].as_ref().expect("a span in use");
        let start = usize::from(object.index) * self.classes[span.class as usize].size;
        u64::from(object.span) * SPAN_BYTES as u64 + start as u64
    }

    /// Adds a new span.
    pub(crate) fn donate(&mut self, memory: AnonBuffer) {
        assert_eq!(memory.len(), SPAN_BYTES, "a span has a fixed size");
        self.spare.push(memory);
    }

    /// Removes a spare span beyond `keep` or above the limit. The caller drops it outside the lock
    /// and calls again.
    pub(crate) fn release(&mut self, keep: usize) -> Option<AnonBuffer> {
        let over = self.occupied() > self.limit;
        if self.spare.len() > keep || over { self.spare.pop() } else { None }
    }

    /// Allocates an object of `length` bytes for `owner`.
    pub(crate) fn allocate(&mut self, length: usize, owner: u32) -> Result<Object, NoObject> {
        let class = self.class_of[length.div_ceil(GRAIN)] as usize;
        // A hole in a slightly larger class is better than a new span for a single object.
        let size_max = length + length / STRETCH;
        let near = self.classes[..=class].iter().rev().take_while(|near| near.size <= size_max);
        let own = self.classes[class].partial();
        let partial = own.or_else(|| near.clone().find_map(Class::partial));
        let span = match partial {
            Some(span) => span,
            None => self.start_span(class)?,
        };
        Ok(self.take_object(span, owner))
    }

    /// Starts the use of a spare span in a class.
    fn start_span(&mut self, class: usize) -> Result<u32, NoObject> {
        let Some(memory) = self.spare.pop() else {
            return Err(if self.may_grow() { NoObject::NeedSpan } else { NoObject::Full });
        };
        let per_span = self.classes[class].per_span;
        let span = Span {
            memory,
            class: class as u8,
            group: 0,
            position: 0,
            used: 0,
            taken: [0; TAKEN_WORDS],
            owners: vec![0; per_span].into(),
        };
        let id = match self.free_ids.pop() {
            Some(id) => {
                self.spans[id as usize] = Some(span);
                id
            }
            None => {
                self.spans.push(Some(span));
                (self.spans.len() - 1) as u32
            }
        };
        self.classes[class].free += per_span;
        self.classes[class].spans += 1;
        self.enter_group(id, 0);
        Ok(id)
    }

    fn span(&mut self, id: u32) -> &mut Span {
        self.spans[id as usize].as_mut().expect("a span in use")
    }

    /// Allocates in a span that has room.
    fn take_object(&mut self, id: u32, owner: u32) -> Object {
        let span = self.spans[id as usize].as_mut().expect("a span in use");
        let free = |word: &u64| *word != u64::MAX;
        let word = span.taken.iter().position(free).expect("ARENA-1: the span has room");
        let bit = span.taken[word].trailing_ones() as usize;
        let index = word * 64 + bit;
        span.taken[word] |= 1 << bit;
        span.owners[index] = owner;
        span.used += 1;
        let class = span.class as usize;
        self.classes[class].free -= 1;
        self.regroup(id);
        Object { span: id, index: index as u16 }
    }

    /// Frees an object. A span without objects becomes spare.
    pub(crate) fn free(&mut self, object: Object) {
        let span = self.span(object.span);
        let (word, bit) = (object.index as usize / 64, object.index % 64);
        assert!(span.taken[word] & (1 << bit) != 0, "freed twice");
        span.taken[word] &= !(1 << bit);
        span.used -= 1;
        let (class, used) = (span.class as usize, span.used);
        self.classes[class].free += 1;
        if used > 0 {
            self.regroup(object.span);
            return;
        }
        self.leave_group(object.span);
        let span = self.spans[object.span as usize].take().expect("a span in use");
        self.free_ids.push(object.span);
        self.spare.push(span.memory);
        self.classes[class].free -= self.classes[class].per_span;
        self.classes[class].spans -= 1;
    }

    /// Returns the first `length` bytes of an object.
    pub(crate) fn bytes(&self, object: Object, length: usize) -> &[u8] {
        let span = self.spans[object.span as usize].as_ref().expect("a span in use");
        let start = object.index as usize * self.classes[span.class as usize].size;
        &span.memory[start..start + length]
    }

    /// Returns the first `length` bytes of an object for writing.
    pub(crate) fn bytes_mut(&mut self, object: Object, length: usize) -> &mut [u8] {
        let span = self.spans[object.span as usize].as_mut().expect("a span in use");
        let start = object.index as usize * self.classes[span.class as usize].size;
        &mut span.memory[start..start + length]
    }

    /// Moves up to `moves_max` objects out of the emptiest span of a class that can give up a span.
    /// Calls `moved(owner, new location)` for each. Returns false when no class can.
    ///
    /// With `slack`, a class may keep a twentieth of its objects free.
    pub(crate) fn compact(
        &mut self,
        slack: bool,
        moves_max: usize,
        mut moved: impl FnMut(u32, Object),
    ) -> bool {
        let keep = |class: &Class| if slack { class.spans * class.per_span / 20 } else { 0 };
        let can_give = |class: &Class| class.can_give(keep(class));
        let Some(class) = self.classes.iter().position(can_give) else { return false };
        let groups = &self.classes[class].groups;
        let source = *groups.iter().find_map(|group| group.last()).expect("ARENA-3: free objects");
        // The source leaves its group, so that no object moves into it.
        self.leave_group(source);
        for _ in 0..moves_max {
            let groups = &self.classes[class].groups;
            let Some(target) = groups.iter().rev().find_map(|group| group.last().copied()) else {
                break; // ARENA-3 makes this impossible while the class had a span to give.
            };
            let span = self.span(source);
            let first = |word: &u64| *word != 0;
            let word = span.taken.iter().position(first).expect("a span in use has objects");
            let index = word * 64 + span.taken[word].trailing_zeros() as usize;
            let owner = span.owners[index];
            let from = Object { span: source, index: index as u16 };
            let to = self.take_object(target, owner);
            self.copy(from, to);
            moved(owner, to);
            if self.span(source).used == 1 {
                self.enter_group(source, 0);
                self.free(from);
                return true;
            }
            let span = self.span(source);
            span.taken[word] &= !(1 << (index % 64));
            span.used -= 1;
            self.classes[class].free += 1;
        }
        let group = self.group_of(source).expect("objects have left the span");
        self.enter_group(source, group);
        true
    }

    /// Copies a whole object between spans of one class.
    fn copy(&mut self, from: Object, to: Object) {
        let class = self.span(from.span).class as usize;
        let size = self.classes[class].size;
        let [source, target] = self
            .spans
            .get_disjoint_mut([from.span as usize, to.span as usize])
            .expect("two different spans");
        let source = &source.as_ref().expect("a span in use").memory;
        let target = &mut target.as_mut().expect("a span in use").memory;
        let (at, to) = (from.index as usize * size, to.index as usize * size);
        target[to..to + size].copy_from_slice(&source[at..at + size]);
    }

    /// Returns the group of a span; `None` when it is full.
    fn group_of(&self, id: u32) -> Option<u8> {
        let span = self.spans[id as usize].as_ref().expect("a span in use");
        let per_span = self.classes[span.class as usize].per_span;
        let used = span.used as usize;
        (used < per_span).then(|| (used * GROUPS / per_span) as u8)
    }

    fn enter_group(&mut self, id: u32, group: u8) {
        let span = self.spans[id as usize].as_mut().expect("a span in use");
        let list = &mut self.classes[span.class as usize].groups[group as usize];
        span.group = group;
        span.position = list.len() as u32;
        list.push(id);
    }

    fn leave_group(&mut self, id: u32) {
        let span = self.span(id);
        let (class, group, position) = (span.class, span.group, span.position);
        if group == NO_GROUP {
            return;
        }
        span.group = NO_GROUP;
        let list = &mut self.classes[class as usize].groups[group as usize];
        assert_eq!(list.swap_remove(position as usize), id, "ARENA-1: the span is where it says");
        if let Some(&moved) = list.get(position as usize) {
            self.span(moved).position = position;
        }
    }

    /// Moves a span to the group that fits its fullness.
    fn regroup(&mut self, id: u32) {
        let now = self.group_of(id).unwrap_or(NO_GROUP);
        if self.span(id).group != now {
            self.leave_group(id);
            if now != NO_GROUP {
                self.enter_group(id, now);
            }
        }
    }
}

/// Group number of a span that is in no group.
const NO_GROUP: u8 = u8::MAX;

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
