//! Shows every unusual result of userfaultfd when a page cannot be put in place. The pager's
//! handling of these results (`not_placed`, `fresh`) relies on them.

use ebb_sys::pagemap::Pagemap;
use ebb_sys::probe;
use ebb_sys::uffd::{Event, Mode, PlaceError, Uffd, feature};
use ebb_testing::{eventually, eventually_some, skip};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;

/// Maps and registers pages of fresh memory, which stay mapped at the end of the test.
fn registered(uffd: &Uffd, pages: u64) -> u64 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let len = pages * PAGE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len as usize, access, kind, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    uffd.register(at as u64, len, Mode::Managed).expect("fresh memory can be registered");
    at as u64
}

fn byte(address: u64) -> u8 {
    // SAFETY: the caller has put a page there.
    unsafe { (address as *const u8).read_volatile() }
}

fn uffd(features: u64) -> Uffd {
    let features = features | feature::FLAG_WP;
    let (Ok(uffd), Ok(known)) =
        (Uffd::create(false).or_else(|_| Uffd::create(true)), probe::features_known())
    else {
        skip("userfaultfd is refused here");
    };
    if features & !known != 0 {
        skip(&format!("this kernel lacks features {:#x}", features & !known));
    }
    match uffd.handshake(features) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            skip("only root may follow forks")
        }
        granted => granted.expect("the features are there"),
    };
    uffd
}

fn events_of(uffd: &Uffd) -> Vec<Event> {
    let mut events = Vec::new();
    eventually("a message", || {
        uffd.read(|event| events.push(event)).expect("messages can be read");
        !events.is_empty()
    });
    events
}

#[test]
fn a_copy_that_meets_a_page_says_how_far_it_came() {
    let uffd = uffd(0);
    let at = registered(&uffd, 4);
    uffd.copy(at + 2 * PAGE, &[7; PAGE as usize]).expect("the page was missing");
    let partial = uffd.copy(at, &[9; 4 * PAGE as usize]);
    assert_eq!(partial, Err((2 * PAGE, PlaceError::Changing)), "EAGAIN, and two pages are there");
    assert_eq!([0, 1, 2].map(|page| byte(at + page * PAGE)), [9, 9, 7], "what was there stays");
    let occupied = uffd.copy(at + 2 * PAGE, &[9; PAGE as usize]);
    assert_eq!(occupied, Err((0, PlaceError::Exists)), "EEXIST");
    assert_eq!(byte(at + 2 * PAGE), 7);
}

#[test]
fn a_copy_into_a_hole_places_nothing() {
    let uffd = uffd(0);
    let at = registered(&uffd, 4);
    // SAFETY: the last two pages are not in use.
    unsafe { libc::munmap((at + 2 * PAGE) as *mut libc::c_void, 2 * PAGE as usize) };
    let across = uffd.copy(at, &[9; 4 * PAGE as usize]);
    assert_eq!(across, Err((0, PlaceError::Gone)), "it reaches over the end");
    uffd.copy(at, &[9; 2 * PAGE as usize]).expect("the rest is registered still");
}

#[test]
fn while_a_discard_is_unread_nothing_is_placed_and_the_discard_waits() {
    let uffd = uffd(feature::EVENT_REMOVE);
    let at = registered(&uffd, 2);
    uffd.copy(at, &[5; PAGE as usize]).expect("the page was missing");
    let discard = std::thread::spawn(move || {
        // SAFETY: the memory is the test's own.
        unsafe { libc::madvise(at as *mut libc::c_void, PAGE as usize, libc::MADV_DONTNEED) }
    });
    // Until the discard has begun, the copy succeeds or finds the page already there.
    let refused = eventually_some("the discard to begin", || {
        let placed = uffd.copy(at + PAGE, &[6; PAGE as usize]);
        (!matches!(placed, Ok(_) | Err((0, PlaceError::Exists)))).then_some(placed)
    });
    assert_eq!(refused, Err((0, PlaceError::Changing)), "EAGAIN");
    assert!(!discard.is_finished(), "it waits for its message to be read");
    let events = events_of(&uffd);
    let [Event::Remove { start, end }] = events[..] else { panic!("{events:?}") };
    assert_eq!((start, end), (at, at + PAGE));
    assert_eq!(discard.join().expect("the thread ends well"), 0);
    uffd.copy(at, &[8; PAGE as usize]).expect("it was discarded, and nothing changes now");
    assert_eq!(byte(at), 8);
}

#[test]
fn an_address_space_that_has_ended_says_so() {
    let uffd = uffd(feature::EVENT_FORK);
    let at = registered(&uffd, 1);
    let forking = std::thread::spawn(|| {
        // SAFETY: the child only exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: exits at once, without using any memory of the parent's.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the status outlives the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    });
    let mut events = events_of(&uffd);
    let Some(Event::Fork(child)) = events.pop() else { panic!("no fork message") };
    forking.join().expect("the thread ends well");
    assert_eq!(child.copy(at, &[1; PAGE as usize]), Err((0, PlaceError::Dead)), "ESRCH");
    assert!(!child.is_alive(at) && uffd.is_alive(at));
}

/// Shows that the page map, and not the result, tells where a page is after a failed move. On Linux
/// 6.18 a move that meets a change of the page-table entry answers EEXIST though it has moved the
/// page. If the pager trusted the result, it would drop the page's new location and lose the page.
#[test]
fn a_move_that_answers_eexist_may_have_moved_the_page() {
    const MOVES: u32 = 20_000;
    let uffd = uffd(feature::MOVE);
    let at = registered(&uffd, 2);
    let (home, place) = (at, at + PAGE);
    let pagemap = Pagemap::open(std::process::id()).expect("our own page map");
    let is_at = |address: u64| pagemap.is_present(address / PAGE).expect("our own page map");
    let ended = AtomicBool::new(false);
    let mut moved_all_the_same = 0;
    std::thread::scope(|scope| {
        // Changes the page-table entry all the time, as writes after a fork do.
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                let _ = uffd.protect(home, PAGE);
                let _ = uffd.unprotect(home, PAGE);
            }
        });
        for round in 0..MOVES {
            let content = [1 + (round % 250) as u8; PAGE as usize];
            uffd.copy(home, &content).expect("nothing is there");
            // SAFETY: both pages are the test's own.
            let result = unsafe { uffd.move_here(place, home, PAGE) };
            assert!(is_at(home) != is_at(place), "round {round}: lost, or there twice: {result:?}");
            match result {
                Ok(()) => assert!(is_at(place), "round {round}"),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                    moved_all_the_same += u32::from(is_at(place));
                }
                Err(error) => assert!(is_at(home), "round {round}: {error}"),
            }
            assert_eq!(byte(if is_at(home) { home } else { place }), content[0], "round {round}");
            // SAFETY: both pages are the test's own.
            unsafe {
                libc::madvise(at as *mut libc::c_void, 2 * PAGE as usize, libc::MADV_DONTNEED)
            };
        }
        ended.store(true, Relaxed);
    });
    println!("{moved_all_the_same} of {MOVES} moves said EEXIST and had moved the page");
}

/// COPY replaces a guard without an error, and the kernel sends no event when a guard is installed.
/// Only the page map shows the guard. The marker of write protection looks much the same, but its
/// page is unmapped.
#[test]
fn the_page_map_distinguishes_vacant_pages_from_guard_regions() {
    const GUARD_INSTALL: i32 = 102;
    let uffd = uffd(feature::WP_UNPOPULATED);
    let at = registered(&uffd, 4);
    let pagemap = Pagemap::open(std::process::id()).expect("a process may read its own");
    let unmapped = || pagemap.unmapped(at / PAGE, 4).expect("the area is there");
    uffd.copy(at, &[1; PAGE as usize]).expect("the page was missing");
    uffd.protect(at + 2 * PAGE, PAGE).expect("what is not there can be protected");
    assert_eq!(unmapped(), [false, true, true, true]);
    let guard = (at + PAGE) as *mut libc::c_void;
    // SAFETY: the memory is the test's own.
    if unsafe { libc::madvise(guard, PAGE as usize, GUARD_INSTALL) } != 0 {
        skip("before Linux 6.13 there are no guards");
    }
    assert_eq!(unmapped(), [false, false, true, true]);
    uffd.copy(at + PAGE, &[2; PAGE as usize]).expect("the kernel takes the guard for nothing");
    assert_eq!(byte(at + PAGE), 2, "the guard is lost");
    assert!(
        pagemap.unmapped(u64::MAX / PAGE - 1, 2).is_ok_and(|unmapped| unmapped == [false, false])
    );
}

#[test]
fn huge_pages_are_not_registered() {
    let uffd = uffd(0);
    let (len, access) = (2 << 20, libc::PROT_READ | libc::PROT_WRITE);
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice, without a page.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, -1, 0) };
    if at == libc::MAP_FAILED {
        skip("this kernel has no huge pages");
    }
    let refused = uffd.register(at as u64, len as u64, Mode::Managed);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EINVAL));
    let placed = uffd.copy(at as u64, &[0; PAGE as usize]);
    assert_eq!(placed, Err((0, PlaceError::Gone)), "nothing of it is registered");
    // SAFETY: the mapping made above.
    unsafe { libc::munmap(at, len) };
}
