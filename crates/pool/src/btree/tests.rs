use super::*;
use crate::Options;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn pool(frames: u32) -> (tempfile::TempDir, Pool) {
    let folder = tempfile::tempdir().unwrap();
    let pool = Pool::open(folder.path().join("tree"), Options::frames(frames)).unwrap();
    (folder, pool)
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, u16),
    Remove(u16),
    Scan(u16, usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0..600u16, 0..900u16).prop_map(|(key, length)| Op::Insert(key, length)),
        2 => (0..600u16).prop_map(Op::Remove),
        1 => (0..600u16, 0..40usize).prop_map(|(key, count)| Op::Scan(key, count)),
    ];
    prop::collection::vec(op, 1..1_500)
}

/// Creates a key; lengths vary and do not follow the order of the keys.
fn key(n: u16) -> Vec<u8> {
    let mut key = n.wrapping_mul(40_503).to_be_bytes().to_vec();
    key.resize(2 + usize::from(n % 90), b'k');
    key
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Runs with sixteen frames, so that nearly every step evicts and reads pages.
    #[test]
    fn a_tree_is_an_ordered_map(ops in ops()) {
        let (_folder, pool) = pool(16);
        let tree = BTree::create(&pool.change()).unwrap();
        let mut model = BTreeMap::<Vec<u8>, Vec<u8>>::new();
        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert(of, length) => {
                    let value = vec![n as u8; usize::from(length)];
                    let had = tree.insert(&pool.change(), &key(of), &value).unwrap();
                    prop_assert_eq!(had, model.insert(key(of), value).is_some());
                }
                Op::Remove(of) => {
                    let had = tree.remove(&pool.change(), &key(of)).unwrap();
                    prop_assert_eq!(had, model.remove(&key(of)).is_some());
                }
                Op::Scan(from, count) => {
                    let mut seen = Vec::new();
                    tree.scan(&pool, &key(from), |key, value| {
                        if seen.len() == count {
                            return ControlFlow::Break(());
                        }
                        seen.push((key.to_vec(), value.to_vec()));
                        ControlFlow::Continue(())
                    }).unwrap();
                    let expected: Vec<_> =
                        model.range(key(from)..).take(count).map(|(k, v)| (k.clone(), v.clone())).collect();
                    prop_assert_eq!(seen, expected);
                }
            }
        }
        prop_assert_eq!(tree.check(&pool).unwrap(), model.len() as u64);
        for (key, value) in &model {
            let kept = tree.get(&pool, key, <[u8]>::to_vec).unwrap();
            prop_assert_eq!(kept.as_ref(), Some(value));
        }
    }
}

#[test]
fn keys_in_order_leave_full_pages() {
    let (_folder, pool) = pool(64);
    let tree = BTree::create(&pool.change()).unwrap();
    for n in 0..30_000u64 {
        tree.insert(&pool.change(), &n.to_be_bytes(), &[7; 120]).unwrap();
    }
    assert_eq!(tree.check(&pool).unwrap(), 30_000);
    // 134 bytes an entry, 4,080 a page: 30 in each.
    assert!(pool.pages() < 30_000 / 30 + 10, "{} pages", pool.pages());
}

#[test]
fn an_entry_that_is_too_long_is_refused() {
    let (_folder, pool) = pool(16);
    let tree = BTree::create(&pool.change()).unwrap();
    for (key, value) in [(KEY_MAX + 1, 0), (KEY_MAX, ENTRY_MAX - KEY_MAX + 1)] {
        let error = tree.insert(&pool.change(), &vec![1; key], &vec![1; value]).unwrap_err();
        assert!(error.to_string().contains("at most 512, and 1000 together"), "{error}");
    }
    assert!(!tree.insert(&pool.change(), &[1; KEY_MAX], &[1; ENTRY_MAX - KEY_MAX]).unwrap());
}

/// Shows that inserted entries stay while four threads insert, two read and scan, and one commits,
/// in few frames.
#[test]
fn threads_share_a_tree() {
    let (_folder, pool) = pool(64);
    let tree = BTree::create(&pool.change()).unwrap();
    let each = 3_000u64;
    std::thread::scope(|threads| {
        let writers: Vec<_> = (0..4u64)
            .map(|thread| {
                let (pool, tree) = (&pool, &tree);
                threads.spawn(move || {
                    for n in 0..each {
                        let key =
                            (n * 4 + thread).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
                        let value = [thread as u8; 100];
                        assert!(!tree.insert(&pool.change(), &key, &value).unwrap());
                        let kept = tree.get(pool, &key, |value| value[0]).unwrap();
                        assert_eq!(kept, Some(thread as u8));
                    }
                })
            })
            .collect();
        let (pool, tree) = (&pool, &tree);
        threads.spawn(move || {
            while writers.iter().any(|writer| !writer.is_finished()) {
                pool.commit().unwrap();
                let mut last = Vec::new();
                let in_order = |key: &[u8], _: &[u8]| {
                    assert!(last.is_empty() || &last[..] < key);
                    last = key.to_vec();
                    ControlFlow::Continue(())
                };
                tree.scan(pool, &[], in_order).unwrap();
            }
        });
    });
    assert_eq!(tree.check(&pool).unwrap(), 4 * each);
    assert!(pool.stats().evictions > 1_000, "{:?}", pool.stats());
}
