//! Parses the text form of a list of tiers, separated by commas: `ram[:SIZE]`,
//! `file[:PATH][:SIZE]`, `redis://HOST:PORT[,HOST:PORT...][:SIZE]`. For the last form see
//! `remote::url`.
//!
//! SIZE is in bytes, or with K, M, G or T in powers of 1024. A PATH differs from a SIZE by its `/`.
//! A PATH cannot contain a comma or a colon. The parser refuses such a path, because the part after
//! the comma or colon is no valid tier or size.

use crate::remote::url::{self, RedisSpec, UrlError};
use std::path::PathBuf;

/// One tier, as the user specified it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TierSpec {
    /// Compressed pages in RAM.
    Ram {
        /// Largest number of bytes that the tier may occupy.
        limit: Option<u64>,
    },
    /// Pages in an unlinked file.
    File {
        /// Where to create the file: a folder, or a name that does not exist yet.
        path: Option<PathBuf>,
        /// Largest number of bytes of the file.
        limit: Option<u64>,
    },
    /// Pages in a Redis or Valkey server or cluster.
    Redis(Box<RedisSpec>),
}

/// Error in a list of tiers.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("\"{text}\": at character {}: {fault}", .at + 1)]
pub struct TierSpecError {
    /// The whole text, without passwords.
    pub text: String,
    /// Position of the error, in bytes from the start of the text.
    pub at: usize,
    /// The cause.
    pub fault: TierFault,
}

/// Mistake in one tier of a list. The text of an error says what to type instead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TierFault {
    /// Two tiers are compressed memory.
    #[error("a second ram tier is not possible; give the first one the whole SIZE")]
    SecondRam,
    /// Compressed memory is not the first tier.
    #[error("a ram tier cannot follow another tier; put ram first")]
    LateRam,
    /// There is nothing between two commas.
    #[error("a tier is missing; {FORMS}")]
    Missing,
    /// The word is the name of no tier.
    #[error("\"{0}\" is no tier; {FORMS}")]
    Unknown(String),
    /// Compressed memory has a path.
    #[error("the ram tier has no PATH (\"{0}\"); write ram or ram:SIZE")]
    RamPath(String),
    /// A field follows the size of compressed memory.
    #[error("\"{0}\" after the size; write ram or ram:SIZE")]
    AfterRam(String),
    /// A field follows the size of a file.
    #[error("\"{0}\" after the size; write file[:PATH][:SIZE], PATH without a colon")]
    AfterFile(String),
    /// The field after the path of a file is no size.
    #[error("{0} (a PATH contains no colon)")]
    AfterPath(SizeError),
    /// The field of a file is no size, and no path.
    #[error("{0} (a PATH contains a /, for example ./{1})")]
    NoPath(SizeError, String),
    /// The size is not valid.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The remote tier is not valid.
    #[error(transparent)]
    Remote(#[from] UrlError),
}

/// Why a text is no size of a tier.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SizeError {
    /// The text is empty.
    #[error("a SIZE is missing; {EXAMPLES}")]
    Missing,
    /// The text does not begin with a number.
    #[error("\"{0}\" is no SIZE; {EXAMPLES}")]
    NoNumber(String),
    /// The unit is not valid.
    #[error("{0}; {EXAMPLES}")]
    Unit(#[from] UnitError),
    /// The number of bytes exceeds 64 bits.
    #[error("\"{0}\" is more than 64 bits can count; {EXAMPLES}")]
    TooLarge(String),
    /// The size is 0.
    #[error("a tier of size 0 can hold nothing; leave it out or {EXAMPLES}")]
    Zero,
}

/// Why a text is no unit of size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnitError {
    /// The unit is `MB` or the like.
    #[error("the unit '{0}' is ambiguous (powers of 1000 or of 1024)")]
    Ambiguous(String),
    /// No unit has this name.
    #[error("the unit '{0}' is unknown")]
    Unknown(String),
}

const EXAMPLES: &str = "write bytes or a number with K, M, G or T, for example 512M";
const FORMS: &str = "write ram[:SIZE], file[:PATH][:SIZE] or redis://HOST:PORT[:SIZE], for example ram:256M,file:8G";

/// Parses a list of tiers, for example `ram:256M,file:/var/tmp:8G`.
pub fn parse_tiers(text: &str) -> Result<Vec<TierSpec>, TierSpecError> {
    let mut tiers = Vec::new();
    let mut at = 0;
    for part in split(text) {
        let fail =
            |(offset, fault)| TierSpecError { text: url::redact(text), at: at + offset, fault };
        let tier = parse_tier(part).map_err(fail)?;
        if matches!(tier, TierSpec::Ram { .. }) && !tiers.is_empty() {
            let twice = tiers.iter().any(|tier| matches!(tier, TierSpec::Ram { .. }));
            return Err(fail((0, if twice { TierFault::SecondRam } else { TierFault::LateRam })));
        }
        tiers.push(tier);
        at += part.len() + 1;
    }
    Ok(tiers)
}

/// Splits a list into its tiers. Commas separate the tiers, and also the hosts of one.
fn split(text: &str) -> Vec<&str> {
    let mut parts: Vec<&str> = Vec::new();
    let mut at = 0;
    for part in text.split(',') {
        let end = at + part.len();
        match parts.last_mut() {
            Some(last) if url::is_url(last) && url::is_host(part) => {
                *last = &text[at - 1 - last.len()..end];
            }
            _ => parts.push(part),
        }
        at = end + 1;
    }
    parts
}

/// Parses one tier. An error comes with its offset in the part.
fn parse_tier(part: &str) -> Result<TierSpec, (usize, TierFault)> {
    if url::is_url(part) {
        return url::parse(part).map(|spec| TierSpec::Redis(Box::new(spec)));
    }
    let mut fields = part.split(':');
    let kind = fields.next().unwrap_or_default();
    let mut at = kind.len() + 1;
    match kind {
        "ram" => {
            let limit = match fields.next() {
                None => None,
                Some(size) if size.contains('/') => {
                    return Err((at, TierFault::RamPath(size.into())));
                }
                Some(size) => {
                    let limit = parse_size(size).map_err(|error| (at, error.into()))?;
                    at += size.len() + 1;
                    Some(limit)
                }
            };
            match fields.next() {
                None => Ok(TierSpec::Ram { limit }),
                Some(rest) => Err((at, TierFault::AfterRam(rest.into()))),
            }
        }
        "file" => {
            let (mut path, mut limit) = (None, None);
            for field in fields {
                if field.contains('/') && path.is_none() && limit.is_none() {
                    path = Some(PathBuf::from(field));
                } else if limit.is_none() {
                    // The user may mean a path by a field that is no size.
                    let fault = |error| match path {
                        Some(_) => TierFault::AfterPath(error),
                        None => TierFault::NoPath(error, field.into()),
                    };
                    limit = Some(parse_size(field).map_err(|error| (at, fault(error)))?);
                } else {
                    return Err((at, TierFault::AfterFile(field.into())));
                }
                at += field.len() + 1;
            }
            Ok(TierSpec::File { path, limit })
        }
        "" => Err((0, TierFault::Missing)),
        other => Err((0, TierFault::Unknown(other.into()))),
    }
}

/// Returns the factor of a unit of size, as a power of two. Units are none or `B`, and `K`, `M`,
/// `G`, `T` with or without `iB`, in upper or lower case.
///
/// # Errors
/// `MB` and the like are refused, because they may mean powers of 1000 or of 1024.
pub fn unit_shift(unit: &str) -> Result<u32, UnitError> {
    match unit.to_ascii_uppercase().as_str() {
        "" | "B" => Ok(0),
        "K" | "KIB" => Ok(10),
        "M" | "MIB" => Ok(20),
        "G" | "GIB" => Ok(30),
        "T" | "TIB" => Ok(40),
        "KB" | "MB" | "GB" | "TB" => Err(UnitError::Ambiguous(unit.into())),
        _ => Err(UnitError::Unknown(unit.into())),
    }
}

/// Parses a size: bytes, or with a unit.
pub(crate) fn parse_size(text: &str) -> Result<u64, SizeError> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(match text {
            "" => SizeError::Missing,
            text => SizeError::NoNumber(text.into()),
        });
    }
    let shift = unit_shift(unit)?;
    let size = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    match size {
        None => Err(SizeError::TooLarge(text.into())),
        Some(0) => Err(SizeError::Zero),
        Some(size) => Ok(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: Option<&str>, limit: Option<u64>) -> TierSpec {
        TierSpec::File { path: path.map(PathBuf::from), limit }
    }

    #[test]
    fn good_lists_of_tiers_are_parsed() {
        let table = [
            ("ram", vec![TierSpec::Ram { limit: None }]),
            ("ram:4096", vec![TierSpec::Ram { limit: Some(4096) }]),
            ("ram:2k", vec![TierSpec::Ram { limit: Some(2048) }]),
            ("ram:3MiB", vec![TierSpec::Ram { limit: Some(3 << 20) }]),
            ("file", vec![file(None, None)]),
            ("file:1T", vec![file(None, Some(1 << 40))]),
            ("file:/x/y", vec![file(Some("/x/y"), None)]),
            ("file:./y:5G", vec![file(Some("./y"), Some(5 << 30))]),
            (
                "ram:1G,file:/a:2G,file",
                vec![
                    TierSpec::Ram { limit: Some(1 << 30) },
                    file(Some("/a"), Some(2 << 30)),
                    file(None, None),
                ],
            ),
        ];
        for (text, tiers) in table {
            assert_eq!(parse_tiers(text), Ok(tiers), "{text}");
        }
    }

    fn redis(text: &str) -> RedisSpec {
        match parse_tiers(text).expect(text).pop() {
            Some(TierSpec::Redis(spec)) => *spec,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn servers_and_clusters_are_parsed() {
        let hosts = |text| redis(text).hosts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(hosts("redis://h"), ["h:6379"]);
        assert_eq!(hosts("redis://h:7,[::1]:8,1.2.3.4:9"), ["h:7", "[::1]:8", "1.2.3.4:9"]);
        assert_eq!(hosts("ram:1M,file:/x,redis://a:1,b:2/0?wait=9:8G"), ["a:1", "b:2"]);
        let plain = redis("redis://h");
        assert_eq!((plain.tls, plain.db, plain.limit, plain.wait.as_secs()), (false, 0, None, 30));
        let full = redis("rediss://me:a%40b%2c@h:7/5?wait=9&answer=4&replicas=2&ca=/etc/ca.pem:8G");
        assert!(full.tls && full.ca == Some("/etc/ca.pem".into()));
        assert_eq!([plain.answer, full.answer].map(|answer| answer.as_secs()), [3, 4]);
        assert_eq!((full.db, full.limit, full.wait.as_secs()), (5, Some(8 << 30), 9));
        assert_eq!((full.user.as_deref(), full.replicas), (Some("me"), Some(2)));
        assert_eq!(full.password.as_ref().map(|password| password.expose()), Some("a@b,"));
        assert_eq!(redis("redis://h:1:64M").limit, Some(64 << 20));
        assert_eq!(redis("redis://h:1/:64M").limit, Some(64 << 20));
        assert_eq!(redis("redis://:pw@h").user, None);
        let tiers =
            parse_tiers("ram:1M,redis://a:1,b:2,file:/x:1G,redis://c:3").expect("four tiers");
        assert_eq!(tiers.len(), 4);
        assert_eq!(tiers[2], file(Some("/x"), Some(1 << 30)));
    }

    #[test]
    fn passwords_are_not_repeated() {
        for text in [
            "redis://me:secret@h:x",
            "ram,redis://me:secret@h:1?nothing",
            "redis://me:se/cret@h:1",
            "redis://a:1,rediss://me:secret@h:1/x",
        ] {
            let error = parse_tiers(text).expect_err(text);
            assert!(!error.to_string().contains("cret"), "{error}");
            assert_eq!(error.text.len(), text.len());
        }
        let shown = format!("{:?}", redis("redis://me:secret@h:1"));
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn bad_lists_of_tiers_name_the_mistake_its_position_and_a_correction() {
        let table = [
            ("", 0, "a tier is missing; write ram"),
            ("ram,", 4, "a tier is missing"),
            ("zram", 0, "\"zram\" is no tier; write ram[:SIZE]"),
            ("ram:", 4, "a SIZE is missing"),
            ("ram:/x", 4, "the ram tier has no PATH"),
            ("ram:5X", 4, "the unit 'X' is unknown"),
            ("ram:5MB", 4, "the unit 'MB' is ambiguous"),
            ("ram:5MBB", 4, "the unit 'MBB' is unknown"),
            ("ram:0", 4, "size 0"),
            ("ram:1G:2G", 7, "\"2G\" after the size"),
            ("ram:99999999999999999999", 4, "more than 64 bits"),
            ("ram:99999999999T", 4, "more than 64 bits"),
            ("file:swapfile", 5, "for example ./swapfile"),
            ("file:/a:/b", 8, "a PATH contains no colon"),
            ("file:/a:1G:2G", 11, "\"2G\" after the size"),
            ("file:1G:/a", 8, "\"/a\" after the size"),
            ("file:-1", 5, "\"-1\" is no SIZE"),
            ("ram:1M,ram:1M", 7, "a second ram tier"),
            ("file,ram", 5, "put ram first"),
            ("redis://h,ram", 10, "put ram first"),
            ("redis:h", 0, "as redis://HOST:PORT"),
            ("redis://", 8, "a HOST is missing"),
            ("redis://h:x", 10, "\"x\" is no port"),
            ("redis://h:0", 10, "\"0\" is no port"),
            ("redis://h:8G", 10, "a SIZE after the port"),
            ("redis://h:1:0", 12, "size 0"),
            ("redis://h:1:5X", 12, "the unit 'X' is unknown"),
            ("redis://a:1:1G,b:2", 12, "a SIZE comes last"),
            ("redis://a:1,a:1", 12, "a:1 is named twice"),
            ("redis://[::1", 8, "a ] is missing"),
            ("redis://h:1/x", 12, "\"x\" is no number of a database"),
            ("redis://a:1,b:2/3", 15, "a cluster has only database 0"),
            ("redis://h:1?wait=x", 12, "write seconds"),
            ("redis://h:1?wait=0", 12, "write seconds"),
            ("redis://h:1?answer=0", 12, "as answer=30"),
            ("redis://h:1?tries=3", 12, "\"tries\" is no option"),
            ("redis://h:1?ca=/x", 12, "ca needs TLS"),
            ("redis://u:p@h:1?password-file=/x", 16, "leave out one of the two"),
            ("redis://u:p%4@h:1", 10, "two hexadecimal digits"),
            ("redis://u:p/q@h:1", 11, "/ is %2F"),
        ];
        for (text, at, message) in table {
            let error = parse_tiers(text).expect_err(text);
            assert_eq!(error.at, at, "{text}: {error}");
            assert!(error.fault.to_string().contains(message), "{text}: {error}");
            assert!(error.to_string().contains(&format!("at character {}", at + 1)), "{error}");
        }
    }
}
