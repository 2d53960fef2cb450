//! Requests, answers, and their bytes: [`MAGIC`], the version (4 bytes, little endian), and JSON.

use crate::{Faults, MemoryPressure, Metrics, View};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// First bytes of each message.
pub const MAGIC: [u8; 4] = *b"EBBC";
/// Version of the messages.
pub const CONTROL_VERSION: u32 = 1;
/// Size of the largest request, in bytes.
pub const REQUEST_MAX: usize = 4 << 10;
/// Size of the largest answer, in bytes.
pub const ANSWER_MAX: usize = 64 << 10;

/// A request to the pager of a run. Each names the variant of [`Response`] that answers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Levels and counters: [`Response::Metrics`].
    Metrics,
    /// Time lost waiting for memory: [`Response::Pressure`].
    Pressure,
    /// Times of faults: [`Response::Faults`].
    Faults,
    /// The program and its arguments, with blanks between them: [`Response::Text`].
    Command,
    /// The process number that identifies a run with `--exec`: [`Response::Process`].
    Process,
    /// Whether the process with this number belongs to the run: [`Response::Member`].
    Member(u32),
    /// The figures of `ebb top`: [`Response::View`].
    View {
        /// Number of the process whose areas are wanted; 0 for none.
        areas_of: u32,
    },
    /// The generations in the format of `lru_gen`, or of `lru_gen_full` if `full`:
    /// [`Response::Text`].
    LruGen {
        /// Whether the tiers are wanted, too.
        full: bool,
    },
    /// The parts of the multi-gen LRU that are in use: [`Response::Enabled`].
    Enabled,
    /// Use these parts of the multi-gen LRU, the bits of [`Response::Enabled`]:
    /// [`Response::Done`].
    Enable(u32),
    /// Work for kswapd: [`Response::Done`] when it is carried out.
    Reclaim(Reclaim),
    /// Other limits: [`Response::Done`] when all of them are in effect.
    Limits(Limits),
    /// Give an attached process back: [`Response::Done`] when it has all of its memory.
    Detach,
}

/// Work for kswapd.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reclaim {
    /// Reclaim so many bytes at once.
    Bytes(u64),
    /// Carry out commands in the form of the kernel's `lru_gen`.
    LruGen(String),
}

/// Limits to change; None leaves a limit as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Limit of the run (`memory.max`), in bytes.
    pub max: Option<u64>,
    /// Limit above which the program is throttled (`memory.high`).
    pub high: Option<Bound>,
    /// Limit of compressed memory (`tier.ram`).
    pub ram: Option<Bound>,
    /// Whether to try again later if `max` cannot be reached now.
    pub keep: bool,
}

/// A limit that can be removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Bound {
    /// No limit of its own.
    Max,
    /// So many bytes.
    Bytes(u64),
}

impl Bound {
    /// Returns the bytes; None if there is no limit.
    #[must_use]
    pub const fn bytes(self) -> Option<u64> {
        match self {
            Self::Max => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

macro_rules! responses {
    ($($(#[doc = $doc:literal])+ $name:ident($content:ty),)+) => {
        /// Answer to a request that succeeds. `TryFrom` gives its content.
        #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
        pub enum Response { $($(#[doc = $doc])+ $name($content)),+ }

        $(impl TryFrom<Response> for $content {
            type Error = ControlError;

            fn try_from(response: Response) -> Result<Self, ControlError> {
                match response {
                    Response::$name(content) => Ok(content),
                    _ => Err(ControlError::Unknown),
                }
            }
        })+
    };
}

responses! {
    /// Levels and counters.
    Metrics(Metrics),
    /// Time lost waiting for memory.
    Pressure(MemoryPressure),
    /// Times of faults.
    Faults(Faults),
    /// Text for the user.
    Text(String),
    /// Number of the process that identifies the run; None if that is the supervisor.
    Process(Option<u32>),
    /// Whether the process belongs to the run.
    Member(bool),
    /// The figures of `ebb top`.
    View(Box<View>),
    /// Parts of the multi-gen LRU: 1 for the LRU itself, 2 for walks of page tables, 4 for accessed
    /// bits of tables.
    Enabled(u32),
    /// The change is done.
    Done(()),
}

/// Content of a [`Response`].
pub trait Content: TryFrom<Response, Error = ControlError> {}

impl<T: TryFrom<Response, Error = ControlError>> Content for T {}

/// Reason why a request has no other answer. Its text is for the user.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum ControlError {
    /// The pager cannot read the request, or the client the answer.
    #[error("the run and this ebb do not understand each other")]
    Unknown,
    /// The client is neither the user of the run nor root.
    #[error("only the user of a run and root may ask it")]
    Refused,
    /// The request is not valid, or cannot be carried out for this reason.
    #[error("{0}")]
    NotDone(String),
    /// The run has another version of this protocol.
    #[error("another version of ebb started the run, and this one cannot read its figures")]
    OtherVersion,
    /// The run has ended without an answer.
    #[error("the run has just ended")]
    Ended,
    /// The patience of the client is over.
    #[error("the run does not answer: timed out")]
    Late,
    /// The connection failed with this error.
    #[error("the run does not answer: {0}")]
    NoAnswer(String),
}

impl From<std::io::Error> for ControlError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::TimedOut => Self::Late,
            _ => Self::NoAnswer(error.to_string()),
        }
    }
}

/// Answer to a request.
pub type Answer = Result<Response, ControlError>;

fn to_bytes(message: &impl Serialize) -> Vec<u8> {
    let mut bytes = [MAGIC, CONTROL_VERSION.to_le_bytes()].concat();
    // All keys are strings, and writing to a vector cannot fail.
    let _ = serde_json::to_writer(&mut bytes, message);
    bytes
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Option<Result<T, ControlError>> {
    let rest = bytes.strip_prefix(&MAGIC)?;
    Some(match rest.split_first_chunk() {
        None => Err(ControlError::Unknown),
        Some((version, _)) if *version != CONTROL_VERSION.to_le_bytes() => {
            Err(ControlError::OtherVersion)
        }
        Some((_, json)) => serde_json::from_slice(json).map_err(|_| ControlError::Unknown),
    })
}

impl Request {
    /// Returns the bytes of the message.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        to_bytes(self)
    }

    /// Reads the bytes of a message. Returns None if they are not from a client.
    ///
    /// # Errors
    /// [`ControlError::OtherVersion`], or [`ControlError::Unknown`] for any other message that is
    /// no request.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Result<Self, ControlError>> {
        from_bytes(bytes)
    }
}

/// Returns the bytes of an answer.
#[must_use]
pub fn answer_to_bytes(answer: &Answer) -> Vec<u8> {
    to_bytes(answer)
}

/// Reads the bytes of an answer. No bytes mean that the run has ended.
///
/// # Errors
/// The error that the bytes are, or that they cause.
pub fn answer_from_bytes(bytes: &[u8]) -> Answer {
    if bytes.is_empty() {
        return Err(ControlError::Ended);
    }
    from_bytes::<Answer>(bytes).unwrap_or(Err(ControlError::OtherVersion)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FaultKind, Metric, Row, Unit};

    fn requests() -> Vec<Request> {
        let limits = Limits {
            max: Some(u64::MAX),
            high: Some(Bound::Max),
            ram: Some(Bound::Bytes(1)),
            keep: true,
        };
        vec![
            Request::Metrics,
            Request::Pressure,
            Request::Faults,
            Request::Command,
            Request::Process,
            Request::Member(u32::MAX),
            Request::View { areas_of: 4711 },
            Request::LruGen { full: true },
            Request::Enabled,
            Request::Enable(7),
            Request::Reclaim(Reclaim::Bytes(u64::MAX)),
            Request::Reclaim(Reclaim::LruGen("+ 1 0 5\n\"é\0".into())),
            Request::Limits(limits),
            Request::Limits(Limits::default()),
            Request::Detach,
        ]
    }

    fn answers() -> Vec<Answer> {
        let row = |kind| Row { kind, count: u64::MAX, stages: crate::Stages::default() };
        let kinds = FaultKind::ALL.map(row).into();
        let levels =
            [Unit::Pages, Unit::Bytes, Unit::Microseconds].map(|unit| Metric::gauge("a", 1, unit));
        let metrics = Metrics([&levels[..], &[Metric::counter("b", u64::MAX)]].concat());
        vec![
            Ok(Response::Metrics(metrics)),
            Ok(Response::Pressure(MemoryPressure::default())),
            Ok(Response::Faults(Faults { kinds, ..Faults::default() })),
            Ok(Response::Text("x \u{7f}\n\0é".into())),
            Ok(Response::Process(None)),
            Ok(Response::Process(Some(1))),
            Ok(Response::Member(true)),
            Ok(Response::View(Box::default())),
            Ok(Response::Enabled(7)),
            Ok(Response::Done(())),
            Err(ControlError::Unknown),
            Err(ControlError::Refused),
            Err(ControlError::NotDone("a tier is full".into())),
            Err(ControlError::OtherVersion),
            Err(ControlError::Ended),
            Err(ControlError::Late),
            Err(ControlError::NoAnswer("it broke".into())),
        ]
    }

    #[test]
    fn messages_survive_encoding_and_decoding() {
        for request in requests() {
            assert_eq!(Request::from_bytes(&request.to_bytes()), Some(Ok(request)));
        }
        for answer in answers() {
            assert_eq!(answer_from_bytes(&answer_to_bytes(&answer)), answer);
        }
        // `e2e/programs/harass.c` repeats these bytes.
        assert_eq!(Request::Metrics.to_bytes(), b"EBBC\x01\0\0\0\"Metrics\"");
        let limits = b"EBBC\x01\0\0\0{\"Limits\":{\"max\":1073741824,\"keep\":false}}";
        let max = Some(1 << 30);
        let request = Request::Limits(Limits { max, ..Limits::default() });
        assert_eq!(Request::from_bytes(limits), Some(Ok(request)));
        let refused = answer_to_bytes(&Err(ControlError::Refused));
        assert_eq!(refused, b"EBBC\x01\0\0\0{\"Err\":\"Refused\"}");
    }

    #[test]
    fn every_other_message_is_an_error_or_none_of_a_client() {
        for request in requests() {
            let mut bytes = request.to_bytes();
            for length in 0..bytes.len() {
                let wanted = (length >= MAGIC.len()).then_some(Err(ControlError::Unknown));
                assert_eq!(Request::from_bytes(&bytes[..length]), wanted, "{length} {request:?}");
            }
            bytes.push(b'x');
            assert_eq!(Request::from_bytes(&bytes), Some(Err(ControlError::Unknown)));
            bytes[4] += 1;
            assert_eq!(Request::from_bytes(&bytes), Some(Err(ControlError::OtherVersion)));
            assert_eq!(answer_from_bytes(&bytes), Err(ControlError::OtherVersion));
            bytes[0] = 0;
            assert_eq!(Request::from_bytes(&bytes), None);
            assert_eq!(answer_from_bytes(&bytes), Err(ControlError::OtherVersion));
        }
        assert_eq!(answer_from_bytes(b""), Err(ControlError::Ended));
    }

    #[test]
    fn an_answer_to_another_request_is_an_error() {
        assert_eq!(String::try_from(Response::Text("a".into())), Ok("a".into()));
        assert_eq!(<()>::try_from(Response::Enabled(1)), Err(ControlError::Unknown));
    }
}
