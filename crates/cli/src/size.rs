//! Parses sizes in the form of systemd. A size is bytes, a number with K, M, G or T, or a
//! percentage of a given memory. The base is 1024. Suffixes like KiB mean the same, in any case.

/// Parses `text`. `total` is the memory in bytes that percentages refer to.
pub fn parse(text: &str, total: u64) -> Result<u64, String> {
    let wrong = |why: &str| {
        Err(format!("'{text}' is not a size: {why}; write bytes, 512K, 256M, 4G, 1T or 25%"))
    };
    if text.is_empty() {
        return wrong("it is empty");
    }
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit() && c != '.') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let Ok(number) = digits.parse::<f64>() else {
        return wrong("it does not begin with a number");
    };
    let factor = match unit {
        "%" if number <= 100.0 => total as f64 / 100.0,
        "%" => return wrong("it is more than all of the memory"),
        unit => match ebb_swap::unit_shift(unit) {
            Ok(shift) => (1u64 << shift) as f64,
            Err(why) => return wrong(&why.to_string()),
        },
    };
    let bytes = number * factor;
    if bytes >= u64::MAX as f64 { wrong("it is too large") } else { Ok(bytes as u64) }
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
            let error = parse(text, 1 << 30).unwrap_err();
            assert!(error.contains(&format!("'{text}'")) && error.contains("256M"), "{error}");
        }
    }
}
