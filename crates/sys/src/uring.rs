//! Reads through io_uring, with buffers owned by the ring while the kernel may write to them.
//!
//! Invariants:
//! * URING-1: the buffer of a submitted read is in `flights` from before the submission until its
//!   completion has been taken. No other code can reach the buffer in between.
//! * URING-2: at most `capacity` reads are in flight. The completion queue has at least as many
//!   entries, so it cannot overflow.
//! * URING-3: only the holder of `submit` accesses the submission queue, and only the holder of
//!   `complete` the completion queue.
//!
//! Lock order: `submit`, then `flights`; `complete`, then `flights`. No lock is held across a
//! system call.

use crate::anon::AnonBuffer;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ring for reads. `T` is a tag that each completion hands back to the caller.
pub struct Uring<T> {
    ring: IoUring,
    submit: Mutex<()>,
    complete: Mutex<()>,
    flights: Mutex<Flights<T>>,
}

struct Flights<T> {
    slots: Vec<Option<Flight<T>>>,
    free: Vec<u32>,
}

struct Flight<T> {
    buffer: AnonBuffer,
    tag: T,
    /// Keeps the descriptor open until the kernel has finished the read.
    _file: Arc<OwnedFd>,
}

/// Read to start: it fills `range` of `buffer` from `offset` of `file`.
pub struct Read<T> {
    /// File to read.
    pub file: Arc<OwnedFd>,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Buffer, owned by the ring until completion.
    pub buffer: AnonBuffer,
    /// Bytes of the buffer to fill.
    pub range: Range<usize>,
    /// Tag that the completion hands back.
    pub tag: T,
}

/// Completed read.
pub struct Completed<T> {
    /// Buffer given to [`Uring::read`].
    pub buffer: AnonBuffer,
    /// Tag given to [`Uring::read`].
    pub tag: T,
    /// Number of bytes read (0 at the end of the file), or the error.
    pub result: io::Result<usize>,
}

fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Uring<T> {
    /// Creates a ring for `capacity` reads in flight that signals completions on `event` (an
    /// eventfd). Fails if the kernel has no io_uring (ENOSYS) or does not permit it (EPERM).
    pub fn new(capacity: u32, event: BorrowedFd<'_>) -> io::Result<Self> {
        let ring = IoUring::builder().dontfork().build(capacity)?;
        if ring.params().cq_entries() < capacity {
            return Err(io::Error::other("io_uring: completion queue smaller than asked for"));
        }
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        let flights = Flights {
            slots: (0..capacity).map(|_| None).collect(),
            free: (0..capacity).rev().collect(),
        };
        let (submit, complete) = (Mutex::new(()), Mutex::new(()));
        Ok(Self { ring, submit, complete, flights: Mutex::new(flights) })
    }

    /// Starts a read. Hands the read back if `capacity` reads are already in flight.
    ///
    /// # Panics
    /// If the range does not lie within the buffer: a bug of the caller.
    pub fn read(&self, read: Read<T>) -> Result<(), Read<T>> {
        self.queue(read)?;
        self.enter();
        Ok(())
    }

    /// Queues one of several reads, which [`Uring::enter`] starts together. Together such reads
    /// need only one system call, and adjacent reads need only one request of the disk. Hands the
    /// read back if `capacity` reads are already in flight.
    pub fn queue(&self, read: Read<T>) -> Result<(), Read<T>> {
        let Read { file, offset, mut buffer, range, tag } = read;
        assert!(range.start <= range.end && range.end <= buffer.len(), "read past the buffer");
        let length = u32::try_from(range.len()).expect("a read is far below 4 GiB");
        let fd = types::Fd(file.as_raw_fd());
        // SAFETY: the assertion has checked that the range lies within the buffer's mapping.
        let target = unsafe { buffer.as_mut_ptr().add(range.start) };
        let entry = opcode::Read::new(fd, target, length).offset(offset).build();
        {
            let _submit = lock(&self.submit);
            let mut flights = lock(&self.flights);
            let Some(index) = flights.free.pop() else {
                return Err(Read { file, offset, buffer, range, tag });
            };
            // SAFETY: URING-3: this function holds `submit`, so no other SubmissionQueue exists.
            let mut queue = unsafe { self.ring.submission_shared() };
            let entry = entry.user_data(u64::from(index));
            flights.slots[index as usize] = Some(Flight { buffer, tag, _file: file.clone() });
            // SAFETY: URING-1: buffer and descriptor stay in `flights` until the completion is
            // taken.
            if unsafe { queue.push(&entry) }.is_err() {
                // The queue is full of reads of other threads, which are being submitted right now.
                let flight = flights.slots[index as usize].take().expect("stored just above");
                flights.free.push(index);
                return Err(Read { file, offset, buffer: flight.buffer, range, tag: flight.tag });
            }
        }
        Ok(())
    }

    /// Submits queued reads to the kernel, and tries again while the kernel asks for that.
    pub fn enter(&self) {
        let mut pause_us = 1;
        while let Err(error) = self.ring.submitter().submit() {
            // EINTR, or EAGAIN and EBUSY while the kernel is short of memory. Any other error means
            // that the ring itself is broken, which its creation has ruled out.
            let again = [rustix::io::Errno::AGAIN, rustix::io::Errno::BUSY];
            let known = error.kind() == io::ErrorKind::Interrupted
                || again.iter().any(|e| error.raw_os_error() == Some(e.raw_os_error()));
            assert!(known, "io_uring_enter failed: {error}");
            std::thread::sleep(Duration::from_micros(pause_us));
            pause_us = (pause_us * 2).min(1000);
        }
    }

    /// Takes one completion if there is one, without a system call.
    pub fn complete(&self) -> Option<Completed<T>> {
        let entry = {
            let _complete = lock(&self.complete);
            // SAFETY: URING-3: this function holds `complete`, so no other CompletionQueue exists.
            unsafe { self.ring.completion_shared() }.next()
        }?;
        let index = entry.user_data() as usize;
        let mut flights = lock(&self.flights);
        let flight = flights.slots[index].take().expect("URING-1: a completion has a flight");
        flights.free.push(index as u32);
        let result = usize::try_from(entry.result())
            .map_err(|_| io::Error::from_raw_os_error(-entry.result()));
        Some(Completed { buffer: flight.buffer, tag: flight.tag, result })
    }

    /// Returns the number of started reads whose completion has not been taken.
    pub fn in_flight(&self) -> usize {
        let flights = lock(&self.flights);
        flights.slots.len() - flights.free.len()
    }
}

impl<T> Drop for Uring<T> {
    /// Waits for all reads, because the kernel may still write to buffers in flight.
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if self.complete().is_none() {
                let _ = self.ring.submitter().submit_and_wait(1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use std::os::fd::AsFd;

    /// Creates a ring. Skips the test in a sandbox that refuses io_uring; the store then reads in
    /// another way.
    fn ring(capacity: u32) -> Uring<u32> {
        let event = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
        let refused = |error| ebb_testing::skip(&format!("io_uring is refused here: {error}"));
        Uring::new(capacity, event.as_fd()).unwrap_or_else(refused)
    }

    fn file() -> Arc<OwnedFd> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&(0..=255).collect::<Vec<u8>>()).expect("write");
        Arc::new(file.into())
    }

    fn read(file: &Arc<OwnedFd>, offset: u64, tag: u32) -> Read<u32> {
        let buffer = AnonBuffer::new(4096).expect("map");
        Read { file: file.clone(), offset, buffer, range: 8..24, tag }
    }

    #[test]
    fn a_read_fills_its_range_and_brings_back_its_tag() {
        let (ring, file) = (ring(4), file());
        assert!(ring.read(read(&file, 100, 7)).is_ok());
        let done = ebb_testing::eventually_some("the read", || ring.complete());
        assert_eq!((done.tag, done.result.expect("read")), (7, 16));
        assert_eq!(done.buffer[7], 0);
        assert_eq!(done.buffer[8..24], (100..116).collect::<Vec<u8>>());
        assert_eq!(ring.in_flight(), 0);
    }

    #[test]
    fn a_full_ring_hands_the_read_back() {
        let (ring, file) = (ring(2), file());
        assert!(ring.read(read(&file, 0, 0)).is_ok());
        assert!(ring.read(read(&file, 0, 1)).is_ok());
        let back = ring.read(read(&file, 0, 2)).expect_err("full");
        assert_eq!(back.tag, 2);
    }

    #[test]
    fn dropping_a_ring_waits_for_its_reads() {
        let (ring, file) = (ring(2), file());
        assert!(ring.read(read(&file, 0, 0)).is_ok());
        drop(ring);
        assert_eq!(Arc::strong_count(&file), 1);
    }
}
