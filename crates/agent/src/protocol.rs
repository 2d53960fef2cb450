//! What agent and pager say to each other: a greeting over a socket, then batches in shared memory.
//!
//! Life of a batch: the pager fills `entries`, sets `count`, `state` = [`POSTED`], sends one byte;
//! the agent swaps POSTED for [`RUNNING`], executes in order, writes every result, sets [`DONE`] and
//! wakes the futex on `state`. The pager may swap POSTED back for [`IDLE`] (the agent never started:
//! nothing was done); from RUNNING it can only wait.
//!
//! Life of a call: a thread of the program takes a place ([`CALL_FREE`] to [`CALL_TAKEN`]), fills it in, sets
//! [`CALL_MADE`] and rings the bell of that number; the pager sets [`CALL_ANSWERED`], with its answer in the
//! same word, and wakes the futex. The thread gives the place back, answered or not: it does not wait for ever.
//! A thread that was killed does not, and after [`CALL_AGE_MAX_S`] its place is another's. Each taking has a
//! number of its own in the word ([`State`]), so that a late answer, or a late giving back, changes nothing.
//!
//! A forked child has its parent's memory, this one included, until it has some of its own. It calls through
//! that; the bell it rings is in an address space of its own, so the pager knows who calls.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// First word of a greeting and of the shared memory.
pub const MAGIC: u32 = 0x3142_4245;
/// Version of everything in this file.
pub const VERSION: u32 = 6;

/// Environment variable: path of the pager's socket.
pub const ENV_SOCKET: &str = "EBB_SOCKET";
/// Environment variable: bytes of address space for the pool.
pub const ENV_POOL: &str = "EBB_POOL_BYTES";

/// Most operations in one batch.
pub const BATCH_MAX: usize = 64;
/// Bytes of the area through which pages of the pool leave.
pub const BIN_BYTES: u64 = BATCH_MAX as u64 * 4096;
/// Places in the table of pinned pages.
pub const PINNED_MAX: usize = 7158;
/// A place of the pinned table whose page is gone.
pub const PINNED_GRAVE: u64 = 1;

/// No batch.
pub const IDLE: u32 = 0;
/// A batch waits for the agent.
pub const POSTED: u32 = 1;
/// The agent is at it.
pub const RUNNING: u32 = 2;
/// Every result is written.
pub const DONE: u32 = 3;

/// Move `len` bytes from `b` to `a` (UFFDIO_MOVE).
pub const OP_MOVE: u32 = 1;
/// Drop the pages of `a`, `len` bytes (`madvise(DONTNEED)`).
pub const OP_DROP: u32 = 2;
/// Make the pages of `a`, `len` bytes, this process's own (`madvise(POPULATE_WRITE)`).
pub const OP_UNSHARE: u32 = 3;

/// Pages at the end of the pool that hold nothing: to discard one rings the bell of that number, and
/// returns once the pager has heard it.
pub const BELLS: usize = 64;
/// The place of a call is free.
pub const CALL_FREE: u32 = 0;
/// The call is made.
pub const CALL_MADE: u32 = 1;
/// The pager has done what it asks.
pub const CALL_ANSWERED: u32 = 2;
/// A thread has taken the place and fills it in.
pub const CALL_TAKEN: u32 = 3;
/// Seconds after which a place that was not given back is a dead thread's. Longer than any call waits.
pub const CALL_AGE_MAX_S: u32 = 30;

/// The word of a place: how far its call is (one of the above), the answer, and which taking of the place it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State(pub u32);

impl State {
    const STAGE: u32 = 0x3;
    const ANSWER: u32 = 0xfff;
    const ANSWER_AT: u32 = 2;
    const TAKING: u32 = 1 << 14;

    /// How far the call is.
    #[must_use]
    pub const fn stage(self) -> u32 {
        self.0 & Self::STAGE
    }

    /// 0, or an errno, once it is answered.
    #[must_use]
    pub const fn answer(self) -> u32 {
        self.0 >> Self::ANSWER_AT & Self::ANSWER
    }

    /// The place is taken anew.
    #[must_use]
    pub const fn taken(self) -> Self {
        Self(self.0.wrapping_add(Self::TAKING)).at(CALL_TAKEN)
    }

    /// The same taking at this stage.
    #[must_use]
    pub const fn at(self, stage: u32) -> Self {
        Self((self.0 & !(Self::TAKING - 1)) | stage)
    }

    /// The same taking, answered.
    #[must_use]
    pub const fn answered(self, answer: u32) -> Self {
        Self(self.at(CALL_ANSWERED).0 | (answer & Self::ANSWER) << Self::ANSWER_AT)
    }
}

/// A new area, `a`, of `b` bytes, is to be managed.
pub const ASK_MANAGE: u32 = 0;
/// A forked child is to have an agent: its thread `a` (as it sees itself) has, as descriptor `b` of a table of
/// its own, one end of a connection, and greets at the other.
pub const ASK_JOIN: u32 = 1;
/// A forked child will have no agent; `a` says why: an errno.
pub const ASK_ALONE: u32 = 2;

/// What a thread of the program wants of the pager at once.
#[repr(C)]
#[derive(Debug)]
pub struct Call {
    /// A [`State`].
    pub state: AtomicU32,
    /// What is asked.
    pub what: AtomicU32,
    /// When the place was taken, in seconds since the machine was started.
    pub since_s: AtomicU32,
    /// First argument, as `what` has it.
    pub a: AtomicU64,
    /// Second argument, as `what` has it.
    pub b: AtomicU64,
}

/// Nobody.
pub const MAPPING_FREE: u32 = 0;
/// A thread of the program, in an mremap.
pub const MAPPING_PROGRAM: u32 = 1;
/// The pager, registering areas.
pub const MAPPING_PAGER: u32 = 2;
/// Beside these: the pager came while a thread of the program had it, and is next.
pub const MAPPING_WANTED: u32 = 4;

/// What the agent's way into a program without hooks gives when it has joined; else an errno, or 0.
pub const JOINED: usize = 0x1000;

/// Byte on the line: there is a batch.
pub const TELL_BATCH: u8 = 1;
/// Byte on the line, followed by an exit code: end this thread, the program has none left.
pub const TELL_LEAVE: u8 = 2;
/// Byte on the line: memory is about to come under management, page by page; the kernel is to make no huge pages from
/// now on.
pub const TELL_SMALL: u8 = 3;

/// Byte on the line: every page of the process is in its place again, and nobody will ask for one any more. The thread
/// ends; the process goes on without.
pub const TELL_DETACH: u8 = 4;

/// One operation and its result (0, or a negated errno).
#[repr(C)]
#[derive(Debug)]
pub struct Entry {
    /// [`OP_MOVE`], [`OP_DROP`] or [`OP_UNSHARE`].
    pub op: AtomicU32,
    /// 0, or a negated errno; written by the agent.
    pub result: AtomicI32,
    /// Address of the pages; of a move, where they go.
    pub a: AtomicU64,
    /// Of a move, where they come from.
    pub b: AtomicU64,
    /// Length in bytes, whole pages.
    pub len: AtomicU64,
}

/// The shared memory, from its start.
#[repr(C)]
#[derive(Debug)]
pub struct Shared {
    /// [`MAGIC`].
    pub magic: AtomicU32,
    /// How far the batch is, [`IDLE`] to [`DONE`], and the futex on which its end is awaited.
    pub state: AtomicU32,
    /// Operations of the batch, [`BATCH_MAX`] at most.
    pub count: AtomicU32,
    /// 1 once the agent's thread is ready for batches.
    pub ready: AtomicU32,
    /// Number of the agent's thread: it lives as long as the address space, the process's first
    /// thread need not.
    pub thread: AtomicU32,
    /// 1 once areas come under management.
    pub managing: AtomicU32,
    /// Who may change areas: see [`MAPPING_FREE`].
    pub mapping: AtomicU32,
    /// 1 once there was no place left for a page that must stay: then all of them must.
    pub pins_full: AtomicU32,
    /// 1 once the run is over and its processes are killed: who would fork ends instead.
    pub ending: AtomicU32,
    /// 1 once the kernel is to make no huge pages.
    pub small: AtomicU32,
    /// Start of the area through which pages of the pool leave; 0 if there is none.
    pub bin: AtomicU64,
    /// Times that threads of the program were in a hook for something that they had not asked for.
    pub lost_calls: AtomicU64,
    /// How long that was, in ticks of the processor's counter.
    pub lost_ticks: AtomicU64,
    /// The batch: the first `count` of them.
    pub entries: [Entry; BATCH_MAX],
    /// One for each bell.
    pub calls: [Call; BELLS],
    /// Pages that must stay, by page number: an open-addressing table, 0 = empty. They hold what the
    /// kernel writes when a thread ends, and a fault at that moment is not delivered to anyone.
    pub pinned: [AtomicU64; PINNED_MAX],
    /// Where the agent's thread lives, and how many bytes that is.
    pub berth: [AtomicU64; 2],
}

impl Shared {
    /// Takes note of a page that must stay. Where there is no place left all pages are kept from leaving.
    pub fn keep(&self, vpn: u64) {
        let home = pinned_home(vpn);
        for step in 0..PINNED_MAX {
            let place = &self.pinned[(home + step) % PINNED_MAX];
            let there = place.load(Acquire);
            if there == vpn {
                return;
            }
            let free = there == 0 || there == PINNED_GRAVE;
            if free && place.compare_exchange(there, vpn, Release, Relaxed).is_ok() {
                return;
            }
        }
        self.pins_full.store(1, Release);
    }
}

// It is a file to the kernel, and must be possible under `ulimit -f 64`.
const _: () = assert!(size_of::<Shared>() <= 60 << 10);

// `e2e/programs/ours.h`, where tests forge calls and greetings, has these, too (`VERSION`, `AT_CALLS`).
const _: () = assert!(VERSION == 6 && core::mem::offset_of!(Shared, calls) == 2112);

/// Where the search for a page in the pinned table begins.
#[must_use]
pub const fn pinned_home(vpn: u64) -> usize {
    (vpn.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 51) as usize % PINNED_MAX
}

/// The process is a new program.
pub const GREET_START: u32 = 0;
/// The process was forked from one that has an agent.
pub const GREET_FORKED: u32 = 1;
/// No process of the tree: it wants the figures of the run, as text, and leaves.
pub const GREET_STAT: u32 = 2;
/// The same for the generations; what it asks for follows the greeting, as text.
pub const GREET_LRU_GEN: u32 = 3;
/// The same: it wants the run to have more or less; what follows the greeting, as text.
pub const GREET_SET: u32 = 4;

/// The greeting. With that of a new program comes its userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Greeting {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`VERSION`].
    pub version: u32,
    /// Who greets: [`GREET_START`] to [`GREET_SET`].
    pub kind: u32,
    /// 1: nothing in it stands before the C library's functions. Else 0.
    pub bare: u32,
    /// Address of the pool; 0 where there is none.
    pub pool_start: u64,
    /// Bytes of the pool.
    pub pool_len: u64,
}

/// The answer: 0, or 1 if it is refused. Descriptors with it: the shared memory, then (for [`GREET_FORKED`])
/// the process's userfaultfd.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct Answer {
    /// [`MAGIC`].
    pub magic: u32,
    /// 1 if the greeting is refused, else 0.
    pub refused: u32,
}

impl Greeting {
    /// The bytes of the message.
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

    /// Reads one from a message.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let greeting = Self {
            magic: word(0)?,
            version: word(4)?,
            kind: word(8)?,
            bare: word(12)?,
            pool_start: long(16)?,
            pool_len: long(24)?,
        };
        (greeting.magic == MAGIC && greeting.version == VERSION && bytes.len() == size_of::<Self>())
            .then_some(greeting)
    }
}

impl Answer {
    /// The bytes of the message.
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
    fn a_greeting_of_another_version_or_length_is_refused() {
        let mut bytes = [0u8; size_of::<Greeting>()];
        assert!(Greeting::from_bytes(&bytes).is_none());
        bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[16..24].copy_from_slice(&0x1000u64.to_ne_bytes());
        assert_eq!(Greeting::from_bytes(&bytes).unwrap().pool_start, 0x1000);
        assert!(Greeting::from_bytes(&bytes[..24]).is_none());
        bytes[4] = 99;
        assert!(Greeting::from_bytes(&bytes).is_none());
    }

    #[test]
    fn a_greeting_comes_back_as_it_was_sent() {
        let (kind, pool_len) = (GREET_STAT, 9);
        let sent =
            Greeting { magic: MAGIC, version: VERSION, kind, bare: 3, pool_start: 5, pool_len };
        let got = Greeting::from_bytes(&sent.to_bytes()).unwrap();
        assert_eq!((got.kind, got.bare, got.pool_start, got.pool_len), (kind, 3, 5, 9));
    }

    #[test]
    fn a_taking_of_a_place_is_told_from_the_next() {
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
    fn a_home_lies_inside_the_table() {
        for vpn in [0, 1, 0x7_ffff_ffff, u64::MAX] {
            assert!(pinned_home(vpn) < PINNED_MAX);
        }
    }
}
