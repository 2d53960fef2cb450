//! The protocol between agent and pager: a hello over a socket, then batches and calls in shared
//! memory.
//!
//! Life of a batch: the pager fills `entries`, sets `count`, sets `state` to [`POSTED`] and sends
//! one byte. The agent's thread swaps [`POSTED`] for [`RUNNING`], executes the entries in order and
//! writes every result. It then sets [`DONE`] and wakes the futex on `state`. The pager may swap
//! [`POSTED`] back for [`IDLE`], which means that the agent never started and did nothing. While
//! the state is [`RUNNING`] the pager can only wait.
//!
//! Life of a call: a thread of the program takes a call slot ([`CALL_FREE`] to [`CALL_TAKEN`]) and
//! fills it in. It then sets [`CALL_MADE`] and rings the doorbell with the slot's number. The pager
//! sets [`CALL_ANSWERED`], with the answer in the same word, and wakes the futex. The thread does
//! not wait for ever, and frees the slot with or without an answer. A killed thread does not free
//! its slot, so another thread may take the slot after [`CALL_AGE_MAX_S`]. The word counts the
//! takings of its slot ([`State`]). A late answer or a late release therefore changes nothing.
//!
//! A forked child inherits the mapping of its parent's shared memory. It makes calls through that
//! mapping until it has shared memory of its own. The child rings a doorbell in its own address
//! space, so the pager knows which process calls.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Magic number: first word of a hello and of the shared memory.
pub const MAGIC: u32 = 0x3142_4245;
/// Version of everything in this file.
pub const VERSION: u32 = 9;

/// Environment variable: path of the pager's socket.
pub const ENV_SOCKET: &str = "EBB_SOCKET";
/// Suffix of the file beside the socket that exists while the run is far from its limit. A process
/// then need not wait for its agent ([`crate`], AGENT-5).
pub const FAR_SUFFIX: &str = ".far";
/// Environment variable: bytes of address space for the pool.
pub const ENV_POOL: &str = "EBB_POOL_BYTES";

/// Most operations in one batch.
pub const BATCH_MAX: usize = 64;
/// Bytes of the discard area, through which pages leave the pool.
pub const DISCARD_AREA_BYTES: u64 = BATCH_MAX as u64 * 4096;
/// Number of slots in the table of pinned pages.
pub const PINNED_MAX: usize = 7157;
/// Value of a slot of the pinned table whose page is gone (a tombstone).
pub const PINNED_TOMBSTONE: u64 = 1;

/// State of a batch: there is none.
pub const IDLE: u32 = 0;
/// State of a batch: it waits for the agent.
pub const POSTED: u32 = 1;
/// State of a batch: the agent's thread executes it.
pub const RUNNING: u32 = 2;
/// State of a batch: the agent's thread has written every result.
pub const DONE: u32 = 3;

/// Operation: move `len` bytes from `b` to `a` (`UFFDIO_MOVE`).
pub const OP_MOVE: u32 = 1;
/// Operation: drop `len` bytes of pages at `a` (`madvise(MADV_DONTNEED)`).
pub const OP_DROP: u32 = 2;
/// Operation: unshare `len` bytes of pages at `a`, so that this process owns them alone
/// (`madvise(MADV_POPULATE_WRITE)`).
pub const OP_UNSHARE: u32 = 3;
/// Operation: make `len` bytes of the pool at `a` readable and writable, and executable if `b` is 1
/// (`mprotect`). The kernel moves pages only between areas with the same rights.
pub const OP_SET_RIGHTS: u32 = 4;

/// Number of doorbells: pages at the end of the pool that hold nothing. A thread rings a doorbell
/// by discarding its page. The discard returns once the pager has read the event.
pub const DOORBELLS: usize = 64;
/// Stage of a call: the slot is free.
pub const CALL_FREE: u32 = 0;
/// Stage of a call: the thread has made the call.
pub const CALL_MADE: u32 = 1;
/// Stage of a call: the pager has done what the call asks and has answered.
pub const CALL_ANSWERED: u32 = 2;
/// Stage of a call: a thread has taken the slot and fills it in.
pub const CALL_TAKEN: u32 = 3;
/// Seconds after which a slot that is still taken is assumed to belong to a dead thread. Longer
/// than any call waits.
pub const CALL_AGE_MAX_S: u32 = 30;

/// State word of a call slot. It holds the stage of the call ([`CALL_FREE`] to [`CALL_TAKEN`]), the
/// answer, and a count of the slot's takings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(pub u32);

impl State {
    const STAGE: u32 = 0x3;
    const ANSWER: u32 = 0xfff;
    const ANSWER_AT: u32 = 2;
    const TAKING: u32 = 1 << 14;

    /// Returns the stage of the call.
    #[must_use]
    pub const fn stage(self) -> u32 {
        self.0 & Self::STAGE
    }

    /// Returns the answer of an answered call: 0, or an errno.
    #[must_use]
    pub const fn answer(self) -> u32 {
        self.0 >> Self::ANSWER_AT & Self::ANSWER
    }

    /// Returns the word after a new taking of the slot.
    #[must_use]
    pub const fn taken(self) -> Self {
        Self(self.0.wrapping_add(Self::TAKING)).at(CALL_TAKEN)
    }

    /// Returns the word with this stage, for the taking that `self` belongs to.
    #[must_use]
    pub const fn at(self, stage: u32) -> Self {
        Self((self.0 & !(Self::TAKING - 1)) | stage)
    }

    /// Returns the word with this answer, for the taking that `self` belongs to.
    #[must_use]
    pub const fn answered(self, answer: u32) -> Self {
        Self(self.at(CALL_ANSWERED).0 | (answer & Self::ANSWER) << Self::ANSWER_AT)
    }
}

/// Call: the pager is to manage the new area of `b` bytes at `a`.
pub const ASK_MANAGE: u32 = 0;
/// Call: a forked child is to have an agent. Thread `a` (its number in the child's own namespace)
/// has made a pair of sockets and says hello at one end. The other end is descriptor `b` of the
/// thread's own descriptor table.
pub const ASK_JOIN: u32 = 1;
/// Call: a forked child will have no agent, because of errno `a`.
pub const ASK_ALONE: u32 = 2;
/// Call: the agent's thread is to end for a moment, because the kernel wants a process of one
/// thread. The answer is `EBUSY` if the process has other threads.
pub const ASK_STEP_ASIDE: u32 = 3;

/// Slot for a call: a request of a program's thread to the pager that cannot wait.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// State word, a [`State`].
    pub state: AtomicU32,
    /// Request: [`ASK_MANAGE`] to [`ASK_STEP_ASIDE`].
    pub what: AtomicU32,
    /// Time at which a thread took the slot, in seconds since the machine was started.
    pub since_s: AtomicU32,
    /// First argument; `what` determines the meaning.
    pub a: AtomicU64,
    /// Second argument; `what` determines the meaning.
    pub b: AtomicU64,
}

/// Owner of the mapping lock: none.
pub const MAPPING_FREE: u32 = 0;
/// Owner of the mapping lock: a thread of the program, in an `mremap`.
pub const MAPPING_PROGRAM: u32 = 1;
/// Owner of the mapping lock: the pager, which registers areas.
pub const MAPPING_PAGER: u32 = 2;
/// Flag beside the owner: the pager found the lock taken by a thread of the program, and is next.
pub const MAPPING_WANTED: u32 = 4;

/// Result of the injected agent when it has joined. Other results are an errno, or 0.
pub const JOINED: usize = 0x1000;

/// Byte on the line: a batch is posted.
pub const TELL_BATCH: u8 = 1;
/// Byte on the line, followed by an exit code: end the agent's thread, because the program has no
/// thread left.
pub const TELL_LEAVE: u8 = 2;
/// Byte on the line: disable huge pages from now on. The pager is about to manage memory page by
/// page.
pub const TELL_SMALL: u8 = 3;

/// Byte on the line: the pager has brought every page of the process back and moves none any more.
/// The agent's thread ends, and the process goes on without it.
pub const TELL_DETACH: u8 = 4;
/// Byte on the line: end the agent's thread. The program has taken its descriptors, and starts
/// another thread with them.
pub const TELL_STEP_ASIDE: u8 = 5;

/// One operation and its result (0, or a negated errno).
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    /// [`OP_MOVE`], [`OP_DROP`], [`OP_UNSHARE`] or [`OP_SET_RIGHTS`].
    pub op: AtomicU32,
    /// Result, written by the agent: 0, or a negated errno.
    pub result: AtomicI32,
    /// Address of the pages; for a move, the destination.
    pub a: AtomicU64,
    /// Source address of a move.
    pub b: AtomicU64,
    /// Length in bytes, a whole number of pages.
    pub len: AtomicU64,
}

/// Memory shared by agent and pager, from the start of the mapping.
#[repr(C)]
#[derive(Debug)]
pub struct Shared {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// State of the batch, [`IDLE`] to [`DONE`]. The pager waits on this futex for the end of the
    /// batch.
    pub state: AtomicU32,
    /// Number of operations in the batch, [`BATCH_MAX`] at most.
    pub count: AtomicU32,
    /// 1 once the agent's thread is ready for batches.
    pub ready: AtomicU32,
    /// Thread id of the agent's thread; 0 while that has stepped aside. The process's first thread
    /// may end before it.
    pub thread: AtomicU32,
    /// 1 as soon as areas come under management.
    pub managing: AtomicU32,
    /// Lock for changing areas: an owner ([`MAPPING_FREE`], [`MAPPING_PROGRAM`] or
    /// [`MAPPING_PAGER`]), and the flag [`MAPPING_WANTED`].
    pub mapping: AtomicU32,
    /// 1 if the table of pinned pages has overflowed. From then on all pages must stay in memory.
    pub pins_full: AtomicU32,
    /// 1 once the run is over and its processes are killed. A thread that would fork ends its
    /// process instead.
    pub ending: AtomicU32,
    /// 1 once the kernel is to make no huge pages for this process.
    pub small: AtomicU32,
    /// Start of the discard area, through which pages leave the pool; 0 if there is none.
    pub discard_area: AtomicU64,
    /// Number of times that a hook delayed a thread of the program with work of the agent.
    pub lost_calls: AtomicU64,
    /// Total duration of these delays, in ticks of the processor's time-stamp counter.
    pub lost_ticks: AtomicU64,
    /// Operations of the batch; the first `count` entries are valid.
    pub entries: [Entry; BATCH_MAX],
    /// Call slots, one for each doorbell.
    pub calls: [Call; DOORBELLS],
    /// Pinned pages by page number: an open-addressing hash table, 0 = empty. The kernel writes to
    /// these pages when a thread ends, and delivers no userfaultfd fault at that moment.
    pub pinned: [AtomicU64; PINNED_MAX],
    /// Address and length in bytes of the agent's stack.
    pub stack: [AtomicU64; 2],
    /// 1 while the run is far from its limit: a forked child need not wait for its agent.
    pub far: AtomicU32,
}

impl Shared {
    /// Pins page `vpn`: enters it in the table of pages that must stay. If the table is full, all
    /// pages are kept in memory.
    pub fn keep(&self, vpn: u64) {
        let home = pinned_home(vpn);
        for step in 0..PINNED_MAX {
            let place = &self.pinned[(home + step) % PINNED_MAX];
            let there = place.load(Acquire);
            if there == vpn {
                return;
            }
            let free = there == 0 || there == PINNED_TOMBSTONE;
            if free && place.compare_exchange(there, vpn, Release, Relaxed).is_ok() {
                return;
            }
        }
        self.pins_full.store(1, Release);
    }
}

// The kernel treats the shared memory as a file, so it must fit under `ulimit -f 64`.
const _: () = assert!(size_of::<Shared>() <= 60 << 10);

// `ours.h` and `impostor.py` in `e2e/programs`, by which tests forge calls and hellos, repeat these
// numbers (`VERSION`, `AT_CALLS`).
const _: () = assert!(VERSION == 9 && core::mem::offset_of!(Shared, calls) == 2112);

/// Returns the index at which the search for page `vpn` in the pinned table begins.
#[must_use]
pub const fn pinned_home(vpn: u64) -> usize {
    (vpn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51) as usize % PINNED_MAX
}

/// Kind of hello: the process is a new program.
pub const HELLO_START: u32 = 0;
/// Kind of hello: the process was forked from one that has an agent.
pub const HELLO_FORKED: u32 = 1;

/// Hello message. A new program sends its userfaultfd with it.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Hello {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Kind of sender: [`HELLO_START`] or [`HELLO_FORKED`].
    pub kind: u32,
    /// 1 if the agent in the process has no hooks before the C library's functions, else 0.
    pub bare: u32,
    /// Address of the pool; 0 where there is none.
    pub pool_start: u64,
    /// Bytes of the pool.
    pub pool_len: u64,
}

/// Answer to a hello. The pager sends descriptors with it: the shared memory, then (for
/// [`HELLO_FORKED`]) the process's userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Answer {
    /// [`MAGIC`].
    pub magic: u32,
    /// 1 if the hello is refused, else 0.
    pub refused: u32,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

impl Hello {
    /// Returns the bytes of the message.
    #[must_use]
    pub fn to_bytes(self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        let words = [self.magic, self.version, self.kind, self.bare];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..24].copy_from_slice(&self.pool_start.to_ne_bytes());
        bytes[24..].copy_from_slice(&self.pool_len.to_ne_bytes());
        bytes
    }

    /// Returns whether these bytes are a command of an older Ebb, which spoke this protocol. Each
    /// version has magic and kind in the same places, and no agent says hello with these kinds.
    #[must_use]
    pub fn is_old_command(bytes: &[u8]) -> bool {
        word(bytes, 0) == Some(MAGIC) && matches!(word(bytes, 8), Some(2..=4))
    }

    /// Reads a hello from the bytes of a message. Returns None if magic, version or length is
    /// wrong.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at| word(bytes, at);
        let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let hello = Self {
            magic: word(0)?,
            version: word(4)?,
            kind: word(8)?,
            bare: word(12)?,
            pool_start: long(16)?,
            pool_len: long(24)?,
        };
        (hello.magic == MAGIC && hello.version == VERSION && bytes.len() == size_of::<Self>())
            .then_some(hello)
    }
}

impl Answer {
    /// Returns the bytes of the message.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&self.magic.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.refused.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_of_another_version_or_length_is_refused() {
        let mut bytes = [0u8; size_of::<Hello>()];
        assert!(Hello::from_bytes(&bytes).is_none());
        bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[16..24].copy_from_slice(&0x1000u64.to_ne_bytes());
        assert_eq!(Hello::from_bytes(&bytes).unwrap().pool_start, 0x1000);
        assert!(Hello::from_bytes(&bytes[..24]).is_none());
        bytes[4] = 99;
        assert!(Hello::from_bytes(&bytes).is_none());
    }

    #[test]
    fn a_hello_survives_encoding_and_decoding() {
        let (kind, pool_len) = (HELLO_FORKED, 9);
        let sent = Hello { magic: MAGIC, version: VERSION, kind, bare: 3, pool_start: 5, pool_len };
        let got = Hello::from_bytes(&sent.to_bytes()).unwrap();
        assert_eq!((got.kind, got.bare, got.pool_start, got.pool_len), (kind, 3, 5, 9));
    }

    #[test]
    fn each_use_of_a_call_slot_has_another_state_word() {
        let first = State(0).taken();
        let made = first.at(CALL_MADE);
        let answered = made.answered(110);
        assert_eq!((answered.stage(), answered.answer()), (CALL_ANSWERED, 110));
        let free = answered.at(CALL_FREE);
        assert_eq!((free.stage(), free.answer()), (CALL_FREE, 0));
        assert_ne!(free.taken(), first);
        assert_eq!(State(u32::MAX).taken().stage(), CALL_TAKEN);
    }

    #[test]
    fn the_first_index_of_a_pinned_page_lies_inside_the_table() {
        for vpn in [0, 1, 0x7_ffff_ffff, u64::MAX] {
            assert!(pinned_home(vpn) < PINNED_MAX);
        }
    }
}
