//! The rules of the crate's head, and whether a test breaks one of them on purpose: what would not be noticed
//! if it were broken is not tested.

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
    /// An address space is taken for a process's only if that process has its identity page.
    Identity1,
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
