//! Whether something may be put in a page's place.
//!
//! Our tables say what the program's memory holds, and not all that can lie in its place: a guard
//! (`MADV_GUARD_INSTALL`) is a marker in the kernel's page table of which the kernel tells nobody, and
//! UFFDIO_COPY replaces it without a word. So the page map is looked at
//!
//! * UNMAPPED-1: before anything is put where nobody has asked for it (readahead, look-around), and
//! * UNMAPPED-2: before a touch is answered that was not answered as soon as it was read. Who touches a guard gets
//!   a signal from the kernel and never comes here; but the guard may have been put there since.
//! * UNMAPPED-3: where the page map cannot be read (a child that nobody has told yet, or can) nothing is put ahead. A touch of what
//!   was never touched, if it has waited, is not answered: its thread is woken and touches again (`Server::recall`), and meets
//!   the guard, or is answered as soon as that is read. A touch of a page that is cool or stored is answered: no guard is put
//!   over those without our being told.
//!
//! What is left is the time between a thread's touching and the answer to it, where that comes as soon as the touch is read.
//! Nobody can look and place at once: UFFDIO_COPY replaces a guard, and of the calls that leave one there the first
//! (UFFDIO_ZEROPAGE) places no page of the program's own, and the other (UFFDIO_MOVE) only the process itself can make.

use crate::mm::Mm;
use ebb_mm::types::Vpn;

/// Leaves those of `pages` in whose place there is nothing (UNMAPPED-1).
pub fn keep<T>(mm: &Mm, pages: &mut Vec<(Vpn, T)>) {
    let numbers = || pages.iter().map(|&(page, _)| page.0);
    let (Some(low), Some(high)) = (numbers().min(), numbers().max()) else { return };
    let vacant = all(mm, Vpn(low), (high - low) as usize + 1).unwrap_or_default();
    pages.retain(|&(page, _)| vacant.get((page.0 - low) as usize) == Some(&true));
}

/// In how many places in a row from `first` on there is nothing, `most` at most (UNMAPPED-1).
pub fn run(mm: &Mm, first: Vpn, most: usize) -> usize {
    if most == 0 {
        return 0;
    }
    let vacant = all(mm, first, most).unwrap_or_default();
    vacant.into_iter().take_while(|&vacant| vacant).count()
}

/// Whether there is still nothing in the place of a page that a thread has waited for (UNMAPPED-2); None if that cannot be seen.
pub fn still(mm: &Mm, page: Vpn) -> Option<bool> {
    all(mm, page, 1).map(|vacant| vacant[0])
}

/// In which of so many places from `first` on there is nothing; None if that cannot be seen.
pub fn all(mm: &Mm, first: Vpn, count: usize) -> Option<Vec<bool>> {
    mm.process()?.vacant(first.0, count).ok()
}
