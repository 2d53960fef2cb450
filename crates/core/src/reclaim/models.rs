//! Models for loom: a task that takes pages and asks, and kswapd. Loom tries every schedule within
//! a bound on preemptions. A nap may end at any moment, so it ends at once, and loom chooses the
//! events in between.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use loom::thread;

use super::{
    FlagClear, IdleIndex, Kswapd, Node, Passed, Policy, RequestResult, SleepCheck, Step,
    WakeRequests,
};
use crate::observe::vmstat::VmStat;
use crate::order::Order;

/// Two zones. A request of class 1 leaves the lowest zone alone, one of class 0 finds enough there.
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

/// When a task asks for more: after it took a page, which is right, or before.
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

/// Shows that no request is lost. A task takes `takes` pages one by one and asks after each, while
/// kswapd works. When kswapd sleeps deeply and the task is done, memory must be in balance.
fn nobody_is_forgotten(order: AsksWhen, takes: u32, preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let policy = PREVIOUS;
        let node = Arc::new(Tiny { free: AtomicI64::new(HIGH) });
        let wake_requests = Arc::new(WakeRequests::new());
        let done = Arc::new(AtomicBool::new(false));
        let kswapd = {
            let (node, wake_requests, done) = (node.clone(), wake_requests.clone(), done.clone());
            thread::spawn(move || work(policy, &node, &wake_requests, &done))
        };
        for _ in 0..takes {
            if order == AsksWhen::After {
                node.free.fetch_sub(1, Ordering::SeqCst);
            }
            if wake_requests.request(&*node, policy, Order::ZERO, 1) == RequestResult::Wake {
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
        // A request still recorded has been served, or kswapd would have to be woken now.
        assert_eq!(wake_requests.request(&*node, policy, Order::ZERO, 1), RequestResult::LetSleep);
    });
}

fn work(policy: Policy, node: &Tiny, wake_requests: &WakeRequests, done: &AtomicBool) {
    let stat = VmStat::default();
    let mut kswapd = Kswapd::new(policy, node.classes());
    for _ in 0..40 {
        match kswapd.step(wake_requests, node, &stat) {
            Step::Pass(_) => {
                node.free.fetch_add(1, Ordering::SeqCst);
                let passed = Passed { scanned: 1, reclaimed: 1, writing: false, met: None };
                kswapd.passed(wake_requests, &passed);
                assert!(
                    wake_requests.look().0.is_none_or(|asked| asked == 1),
                    "nobody asks for class 0"
                );
            }
            Step::Sleep => {
                // The last check: no task asks after `done` is set.
                if done.load(Ordering::SeqCst) && !wake_requests.woken() {
                    return;
                }
                if !wake_requests.woken() {
                    thread::park();
                }
            }
            Step::Nap | Step::Again | Step::AwaitWrites | Step::Throttle => {}
        }
    }
    panic!("kswapd finds no rest");
}

#[test]
fn no_wake_request_is_lost_while_kswapd_goes_to_sleep() {
    nobody_is_forgotten(AsksWhen::After, 2, 2);
}

#[test]
fn one_request_is_served_whatever_the_schedule() {
    nobody_is_forgotten(AsksWhen::After, 1, 3);
}

/// Shows that the model finds the error it is made for.
#[test]
#[should_panic(expected = "kswapd sleeps while memory is short")]
fn a_task_that_asks_too_early_is_forgotten() {
    nobody_is_forgotten(AsksWhen::Before, 1, 2);
}

#[test]
fn kswapd_takes_each_wake_request_once() {
    loom::model(|| {
        let node = Tiny { free: AtomicI64::new(0) };
        let policy = PREVIOUS;
        let wake_requests = Arc::new(WakeRequests::new());
        let other = {
            let wake_requests = wake_requests.clone();
            thread::spawn(move || {
                let node = Tiny { free: AtomicI64::new(0) };
                wake_requests.request(&node, policy, Order::ZERO, 1)
            })
        };
        wake_requests.request(&node, policy, Order::HUGE, 0);
        let first = wake_requests.take();
        other.join().unwrap();
        let second = wake_requests.take();
        assert_eq!(wake_requests.take(), (None, Order::ZERO));
        // Each request was read once: the order with the first, the other's class with one of the
        // two.
        assert_eq!(first.1, Order::HUGE);
        assert_eq!(first.0.max(second.0), Some(1));
    });
}
