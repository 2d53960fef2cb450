//! Tests the arena against a model, and measures its waste.

use super::*;
use ebb_mm::random::mix;
use std::collections::HashMap;

impl Arena {
    /// Walks every span and panics if an invariant does not hold.
    fn check_invariants(&self) {
        let mut free = vec![0; self.classes.len()];
        for (id, span) in self.spans.iter().enumerate() {
            let Some(span) = span else { continue };
            let class = &self.classes[span.class as usize];
            let taken: u32 = span.taken.iter().map(|word| word.count_ones()).sum();
            assert_eq!(taken, u32::from(span.used), "ARENA-2");
            assert!(span.used > 0, "ARENA-1: an empty span is in use");
            free[span.class as usize] += class.per_span - span.used as usize;
            match self.group_of(id as u32) {
                None => assert_eq!(span.group, NO_GROUP, "ARENA-1"),
                Some(group) => {
                    assert_eq!(span.group, group, "ARENA-1");
                    assert_eq!(class.groups[group as usize][span.position as usize], id as u32);
                }
            }
        }
        for (class, free) in self.classes.iter().zip(free) {
            assert_eq!(class.free, free, "ARENA-3");
        }
    }
}

fn allocate(arena: &mut Arena, length: usize, owner: u32) -> Object {
    match arena.allocate(length, owner) {
        Ok(object) => object,
        Err(NoObject::NeedSpan) => {
            arena.donate(AnonBuffer::new(SPAN_BYTES).expect("map"));
            arena.allocate(length, owner).expect("a spare span")
        }
        Err(NoObject::Full) => panic!("no limit was set"),
    }
}

fn content(owner: u32, length: usize) -> Vec<u8> {
    (0..length).map(|at| (owner as usize * 31 + at) as u8).collect()
}

#[test]
fn classes_divide_a_span_and_lie_close() {
    let sizes = class_sizes();
    assert_eq!((sizes[0], sizes[sizes.len() - 1]), (OBJECT_MAX, OBJECT_MIN));
    assert!(sizes.len() <= usize::from(u8::MAX));
    for pair in sizes.windows(2) {
        assert!(pair[1] < pair[0] && pair[1] % GRAIN == 0);
        assert!(pair[0] - pair[1] <= (pair[0] / 8).max(GRAIN), "{pair:?}");
    }
    let arena = Arena::new(u64::MAX);
    for length in 1..=OBJECT_MAX {
        let class = &arena.classes[arena.class_of[length.div_ceil(GRAIN)] as usize];
        assert!(class.size >= length, "length {length} in class {}", class.size);
        assert!(class.size * class.per_span > SPAN_BYTES * 96 / 100, "class {}", class.size);
    }
}

#[test]
fn objects_keep_their_content_through_frees_and_compaction() {
    let mut arena = Arena::new(u64::MAX);
    let mut model = HashMap::new();
    for step in 0..30_000u64 {
        let random = mix(step);
        let owner = (random % 2000) as u32;
        if let Some((object, length)) = model.remove(&owner) {
            assert_eq!(arena.bytes(object, length), content(owner, length));
            arena.free(object);
        } else {
            let length = 1 + (random >> 32) as usize % OBJECT_MAX;
            let object = allocate(&mut arena, length, owner);
            arena.bytes_mut(object, length).copy_from_slice(&content(owner, length));
            model.insert(owner, (object, length));
        }
        if step % 64 == 0 {
            let place = |owner: u32, object| model.get_mut(&owner).expect("an owner").0 = object;
            arena.compact(step % 128 == 0, 8, place);
        }
        if step % 1000 == 0 {
            arena.check_invariants();
        }
    }
    while arena.compact(false, 8, |owner, to| model.get_mut(&owner).expect("an owner").0 = to) {}
    arena.check_invariants();
    for (owner, (object, length)) in model.drain() {
        assert_eq!(arena.bytes(object, length), content(owner, length));
        arena.free(object);
    }
    arena.check_invariants();
    while arena.release(0).is_some() {}
    assert_eq!(arena.occupied(), 0);
}

/// Checks the memory overhead: the bytes of spans relative to the bytes stored.
#[test]
fn random_frees_waste_less_than_a_tenth() {
    let mut arena = Arena::new(u64::MAX);
    let mut live: Vec<(Object, usize)> = Vec::new();
    let mut stored = 0;
    for step in 0..200_000u64 {
        let random = mix(step);
        // Compressed pages: most between 1000 and 2600 bytes, few outside.
        let spread = |shift: u32| (random >> shift) as usize % 800;
        let length = 200 + spread(8) + spread(20) + spread(32);
        if live.len() < 16_000 {
            let object = allocate(&mut arena, length, live.len() as u32);
            live.push((object, length));
        } else {
            let at = (random >> 44) as usize % live.len();
            stored -= live[at].1;
            arena.free(live[at].0);
            live[at] = (allocate(&mut arena, length, at as u32), length);
        }
        stored += length;
        arena.compact(true, 8, |owner, to| live[owner as usize].0 = to);
        arena.release(4);
    }
    let ratio = arena.occupied() as f64 / stored as f64;
    assert!(ratio < 1.10, "occupied / stored = {ratio:.3}");
    // Half of the objects are freed. Their memory is freed too, except for a few spans.
    for at in (0..live.len()).rev().step_by(2) {
        let (object, length) = live.swap_remove(at);
        arena.free(object);
        stored -= length;
        if let Some((moved, _)) = live.get(at) {
            arena.span(moved.span).owners[moved.index as usize] = at as u32;
        }
    }
    while arena.compact(true, 8, |owner, to| live[owner as usize].0 = to) {}
    while arena.release(4).is_some() {}
    let ratio = arena.occupied() as f64 / stored as f64;
    assert!(ratio < 1.20, "after freeing half: occupied / stored = {ratio:.3}");
}

#[test]
fn the_limit_holds() {
    let mut arena = Arena::new(3 * SPAN_COST);
    let mut objects = Vec::new();
    loop {
        match arena.allocate(4096, 0) {
            Ok(object) => objects.push(object),
            Err(NoObject::NeedSpan) => arena.donate(AnonBuffer::new(SPAN_BYTES).expect("map")),
            Err(NoObject::Full) => break,
        }
    }
    assert_eq!(objects.len(), 3 * 8);
    assert_eq!(arena.occupied(), 3 * SPAN_COST);
    assert!(!arena.has_room());
    for object in objects.drain(..8) {
        arena.free(object);
    }
    assert!(arena.has_room());
    arena.limit = 2 * SPAN_COST;
    assert!(arena.release(8).is_some(), "above the limit nothing is kept");
    assert!(arena.release(8).is_none());
}
