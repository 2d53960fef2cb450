//! The page table of one address space: 512-entry tables of packed entries, found by page number.

use super::entry::Entry;
use crate::types::{MmId, Vpn};
use std::collections::BTreeMap;

const ENTRIES: u64 = 512;

/// One 512-entry table and how many of its entries say something.
#[derive(Clone, Debug)]
struct Table {
    entries: [u64; ENTRIES as usize],
    used: u16,
}

/// The pages of one address space.
#[derive(Debug)]
pub struct Space {
    mm: MmId,
    tables: BTreeMap<u64, Box<Table>>,
}

impl Space {
    /// An empty address space.
    #[must_use]
    pub fn new(mm: MmId) -> Self {
        Self { mm, tables: BTreeMap::new() }
    }

    /// Whose it is.
    #[must_use]
    pub fn mm(&self) -> MmId {
        self.mm
    }

    /// What is known of `vpn`.
    #[must_use]
    pub fn get(&self, vpn: Vpn) -> Entry {
        match self.tables.get(&(vpn.0 / ENTRIES)) {
            Some(table) => Entry::unpack(table.entries[(vpn.0 % ENTRIES) as usize]),
            None => Entry::None,
        }
    }

    /// Replaces what is known of `vpn`.
    pub fn set(&mut self, vpn: Vpn, entry: Entry) {
        let key = vpn.0 / ENTRIES;
        let at = (vpn.0 % ENTRIES) as usize;
        let word = entry.pack();
        let Some(table) = self.tables.get_mut(&key) else {
            if word != 0 {
                let mut table = Box::new(Table { entries: [0; ENTRIES as usize], used: 1 });
                table.entries[at] = word;
                self.tables.insert(key, table);
            }
            return;
        };
        let place = &mut table.entries[at];
        table.used = table.used + u16::from(word != 0) - u16::from(*place != 0);
        *place = word;
        if table.used == 0 {
            self.tables.remove(&key);
        }
    }

    /// The range of the first entries that say something: some `pages`, and no more than that and a table.
    #[must_use]
    pub fn front(&self, pages: u64) -> Option<(Vpn, Vpn)> {
        let (&first, _) = self.tables.first_key_value()?;
        let (mut last, mut count) = (first, 0);
        for (&key, table) in &self.tables {
            last = key;
            count += u64::from(table.used);
            if count >= pages {
                break;
            }
        }
        Some((Vpn(first * ENTRIES), Vpn((last + 1) * ENTRIES)))
    }

    /// Takes every entry of `[start, end)` out, in address order.
    pub fn take_range(&mut self, start: Vpn, end: Vpn, mut taken: impl FnMut(Vpn, Entry)) {
        if start >= end {
            return;
        }
        let mut empty = Vec::new();
        for (&key, table) in self.tables.range_mut(start.0 / ENTRIES..=(end.0 - 1) / ENTRIES) {
            let base = key * ENTRIES;
            let first = start.0.saturating_sub(base) as usize;
            let last = (end.0 - base).min(ENTRIES) as usize;
            for (at, word) in table.entries[first..last].iter_mut().enumerate() {
                if *word != 0 {
                    taken(Vpn(base + (first + at) as u64), Entry::unpack(*word));
                    *word = 0;
                    table.used -= 1;
                }
            }
            if table.used == 0 {
                empty.push(key);
            }
        }
        for key in empty {
            self.tables.remove(&key);
        }
    }

    /// Visits up to `max` entries that say something, from `start` on, in address order. Returns where the next is to
    /// be looked for; None if there is none.
    pub fn visit(&self, start: Vpn, max: u64, mut visit: impl FnMut(Vpn, Entry)) -> Option<Vpn> {
        let mut left = max;
        for (&key, table) in self.tables.range(start.0 / ENTRIES..) {
            let base = key * ENTRIES;
            let first = start.0.saturating_sub(base) as usize;
            for (at, &word) in table.entries.iter().enumerate().skip(first) {
                if word == 0 {
                    continue;
                }
                if left == 0 {
                    return Some(Vpn(base + at as u64));
                }
                left -= 1;
                visit(Vpn(base + at as u64), Entry::unpack(word));
            }
        }
        None
    }

    /// Visits every entry that says something, in address order.
    pub fn for_each(&self, mut visit: impl FnMut(Vpn, Entry)) {
        for (&key, table) in &self.tables {
            for (at, &word) in table.entries.iter().enumerate() {
                if word != 0 {
                    visit(Vpn(key * ENTRIES + at as u64), Entry::unpack(word));
                }
            }
        }
    }
}
