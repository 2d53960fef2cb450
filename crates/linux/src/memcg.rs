//! Memory control groups: their limits, protections and usage.
//!
//! The groups form a tree. A page is charged to one group and to all groups above it. No charge
//! raises a group's usage above `max`. Above `high` reclaim shrinks the group, and its tasks pause.
//! Reclaim from outside never takes memory below `min`. It takes memory below `low` only if no
//! other memory is left. A group's protection counts only as far as the protection of its parent
//! covers it. Protection that no sibling claims is shared among the siblings in proportion to their
//! use.
//!
//! Invariants
//! * MEMCG-1: a group's usage is that of its own pages and of all groups below it.
//! * MEMCG-2: no group's usage is above its `max` after a charge that succeeded.
//! * MEMCG-3: the effective protections of siblings together are at most that of their parent. The
//!   root, and the group that is reclaimed, do not limit their children so.

use ebb_mm::folio::MemcgId;
use ebb_mm::lru::Protection;
use ebb_mm::resident::high_penalty_us;

/// Value of a knob that sets no limit.
pub const UNLIMITED: u64 = u64::MAX;
/// Longest delay of a task whose group is above `high`, in milliseconds.
pub const HIGH_DELAY_MS_MAX: u64 = 2000;

/// The knobs of a group, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knobs {
    /// Usage up to which the group is never reclaimed from outside.
    pub min: u64,
    /// Usage up to which the group is reclaimed only if no other memory is left.
    pub low: u64,
    /// Usage above which reclaim shrinks the group and its tasks pause.
    pub high: u64,
    /// Usage above which no charge succeeds.
    pub max: u64,
}

impl Default for Knobs {
    fn default() -> Self {
        Self { min: 0, low: 0, high: UNLIMITED, max: UNLIMITED }
    }
}

/// Numbers of events of a group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Events {
    /// Times the group was reclaimed although it was below `low`.
    pub low: u64,
    /// Charges that ended above `high`.
    pub high: u64,
    /// Charges that were refused because they would have exceeded `max`.
    pub max: u64,
    /// Times that a charge failed because reclaim could free no more.
    pub oom: u64,
}

#[derive(Clone, Debug)]
struct Group {
    parent: Option<usize>,
    knobs: Knobs,
    usage: u64,
    events: Events,
    /// Effective protections in pages, as last computed by `protect`.
    emin: u64,
    elow: u64,
}

/// The result of a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Charged {
    /// The pages are charged.
    Fine,
    /// The pages are charged, and this group is the lowest one above its `high`. Reclaim from it,
    /// then wait for [`Memcgs::high_delay_ms`].
    High(MemcgId),
    /// The pages are not charged because this group is full. Reclaim from it and try again.
    Full(MemcgId),
}

/// All groups. The first one is the root.
#[derive(Clone, Debug)]
pub struct Memcgs {
    groups: Vec<Group>,
}

impl Default for Memcgs {
    fn default() -> Self {
        Self::new()
    }
}

impl Memcgs {
    /// Creates a tree that consists of a root without limits.
    #[must_use]
    pub fn new() -> Self {
        let mut all = Self { groups: Vec::new() };
        all.push(None, Knobs::default());
        all
    }

    /// The root group.
    pub const ROOT: MemcgId = MemcgId(0);

    fn push(&mut self, parent: Option<usize>, knobs: Knobs) -> MemcgId {
        let group = Group { parent, knobs, usage: 0, events: Events::default(), emin: 0, elow: 0 };
        self.groups.push(group);
        MemcgId(self.groups.len() as u16 - 1)
    }

    /// Adds a group below `parent`.
    pub fn add(&mut self, parent: MemcgId, knobs: Knobs) -> MemcgId {
        self.push(Some(usize::from(parent.0)), knobs)
    }

    /// Changes the knobs of a group. Its usage may be above the new `max` until reclaim has run.
    pub fn set(&mut self, id: MemcgId, knobs: Knobs) {
        self.groups[usize::from(id.0)].knobs = knobs;
    }

    /// Returns the knobs of a group.
    #[must_use]
    pub fn knobs(&self, id: MemcgId) -> Knobs {
        self.groups[usize::from(id.0)].knobs
    }

    /// Returns the pages used by a group and all groups below it.
    #[must_use]
    pub fn usage(&self, id: MemcgId) -> u64 {
        self.groups[usize::from(id.0)].usage
    }

    /// Returns the event counts of a group.
    #[must_use]
    pub fn events(&self, id: MemcgId) -> Events {
        self.groups[usize::from(id.0)].events
    }

    /// Whether `id` is `top` or below it.
    #[must_use]
    pub fn is_within(&self, id: MemcgId, top: MemcgId) -> bool {
        self.up(id).any(|i| i == usize::from(top.0))
    }

    /// Returns a group and all groups above it except the root, lowest first.
    pub fn path(&self, id: MemcgId) -> impl Iterator<Item = MemcgId> + '_ {
        self.up(id).filter(|&i| i > 0).map(|i| MemcgId(i as u16))
    }

    /// Returns the lowest group that `pages` more pages would push above its `max`. Counts no
    /// event.
    #[must_use]
    pub fn full(&self, id: MemcgId, pages: u64) -> Option<MemcgId> {
        let over = |&i: &usize| {
            let g = &self.groups[i];
            g.usage.saturating_add(pages) > g.knobs.max
        };
        self.up(id).find(over).map(|i| MemcgId(i as u16))
    }

    /// Returns the highest group above its `high` among `id` and the groups above it. Reclaim there
    /// helps the groups below it too.
    #[must_use]
    pub fn above_high(&self, id: MemcgId) -> Option<MemcgId> {
        let over = |&i: &usize| self.groups[i].usage > self.groups[i].knobs.high;
        self.up(id).filter(over).last().map(|i| MemcgId(i as u16))
    }

    /// Whether any group has a protection.
    #[must_use]
    pub fn any_protected(&self) -> bool {
        self.groups.iter().any(|g| g.knobs.min > 0 || g.knobs.low > 0)
    }

    /// Returns the indices of a group and of all groups above it, lowest first.
    fn up(&self, id: MemcgId) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(usize::from(id.0)), |&i| self.groups[i].parent)
    }

    /// Charges `pages` to a group.
    pub fn charge(&mut self, id: MemcgId, pages: u64) -> Charged {
        if let Some(full) = self.full(id, pages) {
            self.groups[usize::from(full.0)].events.max += 1;
            return Charged::Full(full);
        }
        let path: Vec<usize> = self.up(id).collect();
        let mut high = None;
        for i in path {
            let g = &mut self.groups[i];
            g.usage += pages;
            if g.usage > g.knobs.high {
                g.events.high += 1;
                high = high.or(Some(MemcgId(i as u16)));
            }
        }
        high.map_or(Charged::Fine, Charged::High)
    }

    /// Takes back a charge of `pages`.
    pub fn uncharge(&mut self, id: MemcgId, pages: u64) {
        let path: Vec<usize> = self.up(id).collect();
        for i in path {
            debug_assert!(self.groups[i].usage >= pages, "MEMCG-1");
            self.groups[i].usage = self.groups[i].usage.saturating_sub(pages);
        }
    }

    /// Counts that reclaim could free nothing more for a charge to the group.
    pub fn note_oom(&mut self, id: MemcgId) {
        self.groups[usize::from(id.0)].events.oom += 1;
    }

    /// Returns the pages by which a group is above its `high`.
    #[must_use]
    pub fn over_high(&self, id: MemcgId) -> u64 {
        let g = &self.groups[usize::from(id.0)];
        g.usage.saturating_sub(g.knobs.high)
    }

    /// Returns how long a task that charged `pages` has to wait, in milliseconds. The group that is
    /// furthest above its `high` decides. The delay grows with the square of the overage. A delay
    /// of up to 10 ms counts as 0.
    #[must_use]
    pub fn high_delay_ms(&self, id: MemcgId, pages: u64) -> u64 {
        let of = |i: usize| high_penalty_us(self.groups[i].usage, self.groups[i].knobs.high, pages);
        let worst = self.up(id).map(of).max().unwrap_or(0);
        let ms = (worst / 1000).min(HIGH_DELAY_MS_MAX);
        if ms <= 10 { 0 } else { ms }
    }

    /// Computes the effective protection of every group for reclaim from `top`. The protection of
    /// `top` itself does not count, because `top` is reclaimed. A parent precedes its children in
    /// the table.
    pub fn protect(&mut self, top: MemcgId) {
        let top = usize::from(top.0);
        for i in 0..self.groups.len() {
            let Some(parent) = self.groups[i].parent else { continue };
            if i == top {
                (self.groups[i].emin, self.groups[i].elow) = (0, 0);
                continue;
            }
            if parent == top || self.groups[parent].parent.is_none() {
                // No group above limits this protection.
                let g = &mut self.groups[i];
                (g.emin, g.elow) = (g.knobs.min.min(g.usage), g.knobs.low.min(g.usage));
                continue;
            }
            let siblings = |f: fn(&Knobs) -> u64| -> u64 {
                let of = |g: &&Group| g.parent == Some(parent);
                self.groups.iter().filter(of).map(|g| f(&g.knobs).min(g.usage)).sum()
            };
            let (mins, lows) = (siblings(|k| k.min), siblings(|k| k.low));
            let (p, g) = (&self.groups[parent], &self.groups[i]);
            let emin = effective(g.usage, p.usage, g.knobs.min, p.emin, mins);
            let elow = effective(g.usage, p.usage, g.knobs.low, p.elow, lows);
            (self.groups[i].emin, self.groups[i].elow) = (emin, elow);
        }
    }

    /// Returns the part of a group that reclaim spares, as [`protect`](Self::protect) computed it.
    /// `in_need` means that no other memory is left, so soft protection does not count.
    #[must_use]
    pub fn protection(&self, id: MemcgId, in_need: bool) -> Protection {
        let g = &self.groups[usize::from(id.0)];
        let low = if in_need { 0 } else { g.elow };
        Protection {
            below_min: g.emin > 0 && g.usage <= g.emin,
            below_low: low > 0 && g.usage <= low,
            pages: g.emin.max(low),
        }
    }

    /// Counts that a group below its `low` was reclaimed.
    pub fn note_low(&mut self, id: MemcgId) {
        self.groups[usize::from(id.0)].events.low += 1;
    }
}

/// Returns the effective protection of a group. It is the group's claim, scaled down if the
/// siblings' claims exceed the parent's protection. Protection that no sibling claims is added in
/// proportion to the group's use beyond its claim.
fn effective(usage: u64, parent_usage: u64, knob: u64, parent: u64, siblings: u64) -> u64 {
    let claim = usage.min(knob);
    if siblings > parent {
        return (u128::from(claim) * u128::from(parent) / u128::from(siblings)) as u64;
    }
    if parent_usage <= siblings || usage <= claim {
        return claim;
    }
    let unclaimed = u128::from(parent - siblings) * u128::from(usage - claim)
        / u128::from(parent_usage - siblings);
    claim + unclaimed as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn knobs(min: u64, low: u64) -> Knobs {
        Knobs { min, low, ..Knobs::default() }
    }

    fn max(max: u64) -> Knobs {
        Knobs { max, ..Knobs::default() }
    }

    #[test]
    fn a_charge_counts_for_all_above_and_the_lowest_full_one_is_named() {
        let mut m = Memcgs::new();
        let a = m.add(Memcgs::ROOT, max(100));
        let b = m.add(a, max(60));
        let c = m.add(a, Knobs { high: 30, ..max(80) });
        assert_eq!(m.charge(b, 60), Charged::Fine);
        assert_eq!(m.charge(b, 1), Charged::Full(b));
        assert_eq!(m.charge(c, 30), Charged::Fine);
        assert_eq!((m.charge(c, 5), m.over_high(c)), (Charged::High(c), 5));
        assert_eq!(m.charge(c, 6), Charged::Full(a), "c has room, a has none");
        assert_eq!([m.usage(a), m.usage(b), m.usage(c), m.usage(Memcgs::ROOT)], [95, 60, 35, 95]);
        m.uncharge(b, 20);
        assert_eq!(m.charge(c, 6), Charged::High(c));
        assert_eq!((m.events(b).max, m.events(a).max, m.events(c).high), (1, 1, 2));
        assert!(m.is_within(c, a) && !m.is_within(c, b));
    }

    #[test]
    fn a_memcg_that_is_full_or_above_high_is_found_without_a_charge() {
        let mut m = Memcgs::new();
        let a = m.add(Memcgs::ROOT, Knobs { high: 50, ..max(100) });
        let b = m.add(a, Knobs { high: 20, ..max(60) });
        assert_eq!(m.path(b).collect::<Vec<_>>(), [b, a]);
        assert_eq!((m.full(b, 60), m.full(b, 61), m.full(a, 101)), (None, Some(b), Some(a)));
        assert_eq!((m.events(b).max, m.any_protected()), (0, false));
        m.charge(b, 30);
        assert_eq!((m.above_high(b), m.above_high(a)), (Some(b), None));
        m.charge(b, 30);
        assert_eq!(m.above_high(b), Some(a), "what is reclaimed there helps both");
        m.set(a, knobs(0, 1));
        assert!(m.any_protected());
    }

    #[test]
    fn protection_is_cut_to_what_the_parent_has() {
        // As in the kernel's documentation: the parent's protection is 100, the children claim 150
        // together.
        let mut m = Memcgs::new();
        let outer = m.add(Memcgs::ROOT, Knobs::default());
        let a = m.add(outer, knobs(0, 100));
        let b = m.add(a, knobs(0, 100));
        let c = m.add(a, knobs(0, 50));
        let d = m.add(a, knobs(0, 0));
        for (id, pages) in [(b, 200), (c, 100), (d, 100)] {
            assert_eq!(m.charge(id, pages), Charged::Fine);
        }
        m.protect(Memcgs::ROOT);
        let pages = |m: &Memcgs, id| m.protection(id, false).pages;
        // `outer` claims nothing itself, but no group above it limits it either.
        assert_eq!([pages(&m, outer), pages(&m, a)], [0, 0]);
        m.set(outer, knobs(0, 400));
        m.protect(Memcgs::ROOT);
        // Protection of `outer` that no child claims goes to the child that uses it: all of it to
        // `a`.
        assert_eq!(pages(&m, a), 400);
        m.set(outer, knobs(0, 100));
        m.protect(Memcgs::ROOT);
        assert_eq!([pages(&m, a), pages(&m, b), pages(&m, c), pages(&m, d)], [100, 66, 33, 0]);
        // Reclaim from `a` itself: only the protections below it count.
        m.protect(a);
        assert_eq!([pages(&m, a), pages(&m, b), pages(&m, c)], [0, 100, 50]);
    }

    #[test]
    fn unclaimed_protection_is_shared_in_proportion_to_usage() {
        let mut m = Memcgs::new();
        let a = m.add(Memcgs::ROOT, knobs(0, 300));
        let b = m.add(a, knobs(0, 100));
        let c = m.add(a, Knobs::default());
        m.charge(b, 200);
        m.charge(c, 200);
        m.protect(Memcgs::ROOT);
        // 200 pages of protection are unclaimed, for 100 pages of b and 200 of c beyond their
        // claims.
        assert_eq!(m.protection(b, false).pages, 100 + 200 * 100 / 300);
        assert_eq!(m.protection(c, false).pages, 200 * 200 / 300);
    }

    #[test]
    fn memory_below_min_is_never_reclaimed_and_memory_below_low_only_in_need() {
        let mut m = Memcgs::new();
        let a = m.add(Memcgs::ROOT, knobs(50, 0));
        let b = m.add(Memcgs::ROOT, knobs(0, 50));
        m.charge(a, 40);
        m.charge(b, 40);
        m.protect(Memcgs::ROOT);
        assert!(m.protection(a, true).below_min && m.protection(b, false).below_low);
        assert_eq!(m.protection(b, true), Protection::default());
        m.charge(a, 20);
        m.protect(Memcgs::ROOT);
        assert_eq!(m.protection(a, true), Protection { pages: 50, ..Protection::default() });
    }

    #[test]
    fn the_delay_grows_with_the_square_of_the_excess_above_high() {
        let mut m = Memcgs::new();
        let a = m.add(Memcgs::ROOT, Knobs { high: 10_000, ..Knobs::default() });
        let b = m.add(a, Knobs::default());
        let mut at = |usage: u64, pages: u64| {
            let now = m.usage(b);
            if usage > now {
                m.charge(b, usage - now);
            }
            m.high_delay_ms(b, pages)
        };
        assert_eq!(at(10_000, 64), 0);
        assert_eq!(at(10_100, 64), 0, "one percent is not worth a sleep");
        let (five, ten) = (at(10_500, 64), at(11_000, 64));
        assert!((150..170).contains(&five) && (620..650).contains(&ten), "{five} {ten}");
        assert_eq!(at(11_000, 32), ten / 2);
        assert_eq!(at(20_000, 64), HIGH_DELAY_MS_MAX);
    }

    /// Shows that scanning by the protected share takes proportionally from two groups, one of them
    /// half protected.
    #[test]
    fn reclaim_scans_in_proportion_to_the_unprotected_share() {
        let mut m = Memcgs::new();
        let a = m.add(Memcgs::ROOT, knobs(0, 5_000));
        let b = m.add(Memcgs::ROOT, Knobs::default());
        m.charge(a, 10_000);
        m.charge(b, 10_000);
        m.protect(Memcgs::ROOT);
        let scan =
            |id| m.protection(id, false).apply(10_000, &ebb_mm::tunables::Tunables::default());
        assert_eq!((scan(a), scan(b)), (5_001, 10_000));
    }
}
