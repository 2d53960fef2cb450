//! Doubly linked lists of pages, several in one array of links.
//!
//! A page is on at most one list of a `Chains` at a time. Each list has a sentinel node after the
//! pages' nodes, so that linking and unlinking have no branches.
//!
//! Invariants:
//! * CHAIN-1: following `next` from a list's sentinel visits each of its pages once and returns to
//!   the sentinel; `prev` visits them in the opposite order.
//! * CHAIN-2: a page on no list has `next == ABSENT`.
//! * CHAIN-3: `len[list]` is the number of pages on the list.

/// Value of `next` for a page that is on no list.
const ABSENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    prev: u32,
    next: u32,
}

/// Links of every page, and the sentinels of `LISTS` lists.
#[derive(Debug)]
pub struct Chains<const LISTS: usize> {
    nodes: Vec<Node>,
    len: [u32; LISTS],
    pages: u32,
}

impl<const LISTS: usize> Chains<LISTS> {
    /// Creates `LISTS` empty lists over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        let mut nodes = Vec::with_capacity(pages as usize + LISTS);
        nodes.resize(pages as usize, Node { prev: ABSENT, next: ABSENT });
        for list in 0..LISTS as u32 {
            nodes.push(Node { prev: pages + list, next: pages + list });
        }
        Self { nodes, len: [0; LISTS], pages }
    }

    /// Returns the number of pages on `list`.
    #[must_use]
    #[inline]
    pub fn len(&self, list: usize) -> u32 {
        self.len[list]
    }

    /// Returns whether `page` is on any list.
    #[must_use]
    #[inline]
    pub fn is_linked(&self, page: u32) -> bool {
        self.nodes[page as usize].next != ABSENT
    }

    /// Returns the sentinel of `list`, which lies beyond both ends.
    #[must_use]
    #[inline]
    pub fn end(&self, list: usize) -> u32 {
        self.pages + list as u32
    }

    /// Returns the first page of `list`, or its sentinel.
    #[must_use]
    #[inline]
    pub fn head(&self, list: usize) -> u32 {
        self.nodes[self.end(list) as usize].next
    }

    /// Returns the last page of `list`, or its sentinel.
    #[must_use]
    #[inline]
    pub fn tail(&self, list: usize) -> u32 {
        self.nodes[self.end(list) as usize].prev
    }

    /// Returns the neighbour of `page` nearer to the head.
    #[must_use]
    #[inline]
    pub fn toward_head(&self, page: u32) -> u32 {
        self.nodes[page as usize].prev
    }

    /// Puts an unlinked `page` at the head of `list`.
    #[inline]
    pub fn push_head(&mut self, list: usize, page: u32) {
        let end = self.end(list);
        let first = std::mem::replace(&mut self.nodes[end as usize].next, page);
        self.nodes[page as usize] = Node { prev: end, next: first };
        self.nodes[first as usize].prev = page;
        self.len[list] += 1;
    }

    /// Removes `page` from `list`. The page must be on it.
    #[inline]
    pub fn remove(&mut self, list: usize, page: u32) {
        self.unlink(page);
        self.nodes[page as usize].next = ABSENT;
        self.len[list] -= 1;
    }

    /// Removes the last page of `list` and returns it. The list must not be empty.
    #[inline]
    pub fn pop_tail(&mut self, list: usize) -> u32 {
        let page = self.tail(list);
        self.remove(list, page);
        page
    }

    /// Moves `page`, which is on `list`, to the head of the list.
    #[inline]
    pub fn move_to_head(&mut self, list: usize, page: u32) {
        let end = self.end(list);
        if self.nodes[end as usize].next == page {
            return;
        }
        self.unlink(page);
        let first = std::mem::replace(&mut self.nodes[end as usize].next, page);
        self.nodes[page as usize] = Node { prev: end, next: first };
        self.nodes[first as usize].prev = page;
    }

    /// Moves `page` from `from` to the head of `to`.
    #[inline]
    pub fn transfer(&mut self, from: usize, to: usize, page: u32) {
        self.unlink(page);
        self.len[from] -= 1;
        self.push_head(to, page);
    }

    /// Returns the number of bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
    }

    #[inline]
    fn unlink(&mut self, page: u32) {
        let Node { prev, next } = self.nodes[page as usize];
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages<const N: usize>(chains: &Chains<N>, list: usize) -> Vec<u32> {
        let mut found = Vec::new();
        let mut page = chains.tail(list);
        while page != chains.end(list) {
            found.push(page);
            page = chains.toward_head(page);
        }
        found.reverse();
        assert_eq!(found.len() as u32, chains.len(list));
        found
    }

    #[test]
    fn pages_move_between_lists_and_within_one() {
        let mut chains = Chains::<2>::new(5);
        for page in 0..4 {
            chains.push_head(0, page);
        }
        assert_eq!(pages(&chains, 0), [3, 2, 1, 0]);
        chains.move_to_head(0, 1);
        chains.move_to_head(0, 1);
        assert_eq!(pages(&chains, 0), [1, 3, 2, 0]);
        chains.transfer(0, 1, 3);
        assert_eq!((pages(&chains, 0), pages(&chains, 1)), (vec![1, 2, 0], vec![3]));
        assert_eq!(chains.pop_tail(0), 0);
        assert!(!chains.is_linked(0) && chains.is_linked(3));
        chains.remove(1, 3);
        assert_eq!(pages(&chains, 1), Vec::<u32>::new());
        assert_eq!(chains.head(1), chains.end(1));
    }
}
