//! Models for loom: a task that takes pages and asks, and kswapd, in every schedule within a bound
//! on preemptions. A nap may end at any moment, so it ends at once: what happens in between is up
//! to loom.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use loom::thread;

use super::{Asked, Desk, FlagClear, IdleIndex, Kswapd, Node, Passed, Policy, SleepCheck, Step};
use crate::frame::Order;
use crate::observe::vmstat::VmStat;

/// Two zones; a request of class 1 leaves the lowest alone, one of class 0 finds enough there.
struct Tiny {
    free: AtomicI64,
}

const HIGH: i64 = 2;

impl Node for Tiny {
    fn classes(&self) -> usize {
        2
    }
    fn balanced(&self, _: Order, highest: usize) -> bool {
        highest == 0 || self.free.load(Ordering::SeqCst) >= HIGH
    }
    fn all_balanced(&self, order: Order, highest: usize) -> bool {
        self.balanced(order, highest)
    }
    fn target(&self, _: usize) -> u64 {
        1
    }
    fn reserve_left(&self) -> bool {
        true
    }
}

/// When a task asks for more: after it took a page, as it has to be, or before.
#[derive(Clone, Copy, PartialEq)]
enum AsksWhen {
    Before,
    After,
}

const PREVIOUS: Policy = Policy {
    idle: IdleIndex::Previous,
    sleep: SleepCheck::Any,
    clear: FlagClear::Sleep,
    trim_again: true,
};

/// Takes `takes` pages one by one, asking after each, while kswapd keeps up. When kswapd sleeps for
/// good and nobody takes any more, memory is in balance.
fn nobody_is_forgotten(order: AsksWhen, takes: u32, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let policy = PREVIOUS;
        let node = Arc::new(Tiny { free: AtomicI64::new(HIGH) });
        let desk = Arc::new(Desk::new());
        let done = Arc::new(AtomicBool::new(false));
        let kswapd = {
            let (node, desk, done) = (node.clone(), desk.clone(), done.clone());
            thread::spawn(move || work(policy, &node, &desk, &done))
        };
        for _ in 0..takes {
            if order == AsksWhen::After {
                node.free.fetch_sub(1, Ordering::SeqCst);
            }
            if desk.ask(&*node, policy, Order::ZERO, 1) == Asked::Wake {
                kswapd.thread().unpark();
            }
            if order == AsksWhen::Before {
                node.free.fetch_sub(1, Ordering::SeqCst);
            }
        }
        done.store(true, Ordering::SeqCst);
        kswapd.thread().unpark();
        kswapd.join().unwrap();
        assert!(node.balanced(Order::ZERO, 1), "kswapd sleeps while memory is short");
        // What was asked and not yet taken is served, or would be refused now.
        assert_eq!(desk.ask(&*node, policy, Order::ZERO, 1), Asked::LetSleep);
    });
}

fn work(policy: Policy, node: &Tiny, desk: &Desk, done: &AtomicBool) {
    let stat = VmStat::default();
    let mut kswapd = Kswapd::new(policy, node.classes());
    for _ in 0..40 {
        match kswapd.step(desk, node, &stat) {
            Step::Pass(_) => {
                node.free.fetch_add(1, Ordering::SeqCst);
                let passed = Passed { scanned: 1, reclaimed: 1, writing: false, met: None };
                kswapd.passed(desk, &passed);
                assert!(desk.look().0.is_none_or(|asked| asked == 1), "nobody asks for class 0");
            }
            Step::Sleep => {
                // The last look: whoever asks after saying that it is done does not exist.
                if done.load(Ordering::SeqCst) && !desk.woken() {
                    return;
                }
                if !desk.woken() {
                    thread::park();
                }
            }
            Step::Nap | Step::Again | Step::AwaitWrites | Step::Throttle => {}
        }
    }
    panic!("kswapd finds no rest");
}

#[test]
fn no_request_is_lost_between_asking_and_lying_down() {
    nobody_is_forgotten(AsksWhen::After, 2, 2);
}

#[test]
fn one_request_is_served_whatever_the_schedule() {
    nobody_is_forgotten(AsksWhen::After, 1, 3);
}

/// The model finds what it is for.
#[test]
#[should_panic(expected = "kswapd sleeps while memory is short")]
fn a_task_that_asks_too_early_is_forgotten() {
    nobody_is_forgotten(AsksWhen::Before, 1, 2);
}

#[test]
fn taking_a_request_leaves_nobody_asking() {
    loom::model(|| {
        let node = Tiny { free: AtomicI64::new(0) };
        let policy = PREVIOUS;
        let desk = Arc::new(Desk::new());
        let other = {
            let desk = desk.clone();
            thread::spawn(move || {
                let node = Tiny { free: AtomicI64::new(0) };
                desk.ask(&node, policy, Order::ZERO, 1)
            })
        };
        desk.ask(&node, policy, Order::HUGE, 0);
        let first = desk.take();
        other.join().unwrap();
        let second = desk.take();
        assert_eq!(desk.take(), (None, Order::ZERO));
        // Each request was read once: the order with the first, the other's class with one of the
        // two.
        assert_eq!(first.1, Order::HUGE);
        assert_eq!(first.0.max(second.0), Some(1));
    });
}
