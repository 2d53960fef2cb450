//! Waits for an answer that the kernel cuts short without a cause in the server: a receive with a time limit ends with
//! EINTR when its thread is stopped and goes on (job control, a freezer, a debugger), or has a read of io_uring completed.

use redis::{RedisError, RedisResult};
use std::error::Error;
use std::io;
use std::sync::Arc;

/// Whether this says only that.
///
/// The connection is as good as before: an answer to come is left out by it, in its turn.
pub(super) fn is_interrupted(error: &RedisError) -> bool {
    // The library has what caused an error behind an `Arc`.
    let cause =
        error.source().and_then(|cause| cause.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::Interrupted)
}

/// Does what may as well be done twice until it was not interrupted.
pub(super) fn patiently<T>(mut act: impl FnMut() -> RedisResult<T>) -> RedisResult<T> {
    loop {
        match act() {
            Err(error) if is_interrupted(&error) => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_found_in_what_the_library_makes_of_it() {
        let of = |kind: io::ErrorKind| is_interrupted(&RedisError::from(io::Error::from(kind)));
        assert!(of(io::ErrorKind::Interrupted));
        assert!(!of(io::ErrorKind::WouldBlock) && !of(io::ErrorKind::UnexpectedEof));
        let mut turns = 0;
        let third = patiently(|| {
            turns += 1;
            if turns < 3 {
                Err(io::Error::from(io::ErrorKind::Interrupted).into())
            } else {
                Ok(turns)
            }
        });
        assert_eq!(third.expect("in the end"), 3);
    }
}
