//! The rules at the head of the crate, and whether a test breaks one of them on purpose. The tests
//! show that a broken rule is noticed.

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    Ord1,
    Ord2,
    Ord3,
    Ord4,
    Ord5,
    Ord6,
    Ord7,
    Wake1,
    /// IDENTITY-1: an address space is taken for a process's only if that process has its identity
    /// page.
    Identity1,
    /// PATIENCE-1: a host that stops grants no time ([`crate::wait::patience`]).
    Patience1,
    /// PATIENCE-2: a thread that lacks a CPU has had no chance.
    Patience2,
}

/// Returns whether a rule is broken: never outside tests.
#[cfg(not(test))]
pub const fn is_broken(_: Rule) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Rule>> = const { std::cell::Cell::new(None) };
}

/// Returns whether this thread's test breaks a rule.
#[cfg(test)]
pub fn is_broken(rule: Rule) -> bool {
    BROKEN.get() == Some(rule)
}

/// Makes this thread's test break a rule, or none.
#[cfg(test)]
pub fn set_broken(rule: Option<Rule>) {
    BROKEN.set(rule);
}
