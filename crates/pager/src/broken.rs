//! The rules of the crate's head, and whether a test breaks one of them on purpose: what would not be noticed
//! if it were broken is not tested.

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    P7,
    W1,
    /// An address space is taken for a process's only if that has its token (`Token`).
    D1,
    /// A host that stops grants no time ([`crate::patience`]).
    Patience1,
}

/// Whether it is broken: never, outside tests.
#[cfg(not(test))]
pub const fn is_broken(_: Rule) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Whether this thread's test breaks it.
#[cfg(test)]
pub fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}

/// Has this thread's test break a rule, or none.
#[cfg(test)]
pub fn set_broken(rule: Option<Rule>) {
    BROKEN.set(rule);
}
