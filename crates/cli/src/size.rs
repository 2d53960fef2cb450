//! Parses sizes in the form of systemd. A size is bytes, a number with K, M, G or T, or a
//! percentage of a given memory. The base is 1024. Suffixes like KiB mean the same, in any case.

use ebb_swap::UnitError;

/// A text is no size.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("'{text}' is not a size: {fault}; write bytes, 512K, 256M, 4G, 1T or 25%")]
pub struct SizeError {
    text: String,
    fault: Fault,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
enum Fault {
    #[error("it is empty")]
    Empty,
    #[error("it does not begin with a number")]
    NoNumber,
    #[error("it is more than all of the memory")]
    Above100,
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("it is too large")]
    TooLarge,
}

/// Parses `text`. `total` is the memory in bytes that percentages refer to.
pub fn parse(text: &str, total: u64) -> Result<u64, SizeError> {
    bytes(text, total).map_err(|fault| SizeError { text: text.into(), fault })
}

fn bytes(text: &str, total: u64) -> Result<u64, Fault> {
    if text.is_empty() {
        return Err(Fault::Empty);
    }
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit() && c != '.') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let number = digits.parse::<f64>().map_err(|_| Fault::NoNumber)?;
    let factor = match unit {
        "%" if number <= 100.0 => total as f64 / 100.0,
        "%" => return Err(Fault::Above100),
        unit => (1u64 << ebb_swap::unit_shift(unit)?) as f64,
    };
    let bytes = number * factor;
    if bytes >= u64::MAX as f64 { Err(Fault::TooLarge) } else { Ok(bytes as u64) }
}

/// Returns a size in whole MiB as it is typed, rounded up.
pub fn whole(bytes: u64) -> String {
    format!("{}M", bytes.div_ceil(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn every_form_of_a_size_is_parsed() {
        let total = 1000 << 20;
        for (text, bytes) in [
            ("4096", 4096),
            ("512K", 512 << 10),
            ("256M", 256 << 20),
            ("1.5G", 3 << 29),
            ("1T", 1 << 40),
            ("25%", 250 << 20),
            ("0", 0),
            ("256m", 256 << 20),
            ("256MiB", 256 << 20),
            ("1gib", 1 << 30),
        ] {
            assert_eq!(parse(text, total), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn the_error_of_a_wrong_size_names_it_and_shows_a_right_one() {
        for text in ["", "M", "12Q", "-5M", "101%", "1.2.3M", "12 M", "12MB", "99999999999999T"] {
            let error = parse(text, 1 << 30).unwrap_err().to_string();
            assert!(error.contains(&format!("'{text}'")) && error.contains("256M"), "{error}");
        }
    }
}
