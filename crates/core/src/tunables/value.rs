//! Types of switches: how to parse, print and describe their values.

/// A type that a switch can have.
pub trait Value: Sized {
    /// Parses a value.
    fn parse(text: &str) -> Option<Self>;
    /// Prints the value.
    fn show(&self) -> String;
    /// Describes the allowed values.
    fn expected() -> String;
    /// Returns the help text of each value, for types whose values are words.
    fn meanings() -> &'static [(&'static str, &'static str)] {
        &[]
    }
}

impl Value for bool {
    fn parse(text: &str) -> Option<Self> {
        match text {
            "on" | "true" | "1" | "y" => Some(true),
            "off" | "false" | "0" | "n" => Some(false),
            _ => None,
        }
    }
    fn show(&self) -> String {
        String::from(if *self { "on" } else { "off" })
    }
    fn expected() -> String {
        "on|off".into()
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Value for $number {
            fn parse(text: &str) -> Option<Self> {
                text.parse().ok()
            }
            fn show(&self) -> String {
                self.to_string()
            }
            fn expected() -> String {
                "a number".into()
            }
        }
    )*};
}

numbers!(u32, u64);

/// A swappiness: 0..=200 are weights, 201 is "anonymous only" (also written `max`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Swappiness(pub u32);

impl Value for Swappiness {
    fn parse(text: &str) -> Option<Self> {
        let n = if text == "max" { 201 } else { text.parse().ok()? };
        (n <= 201).then_some(Self(n))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
    fn expected() -> String {
        "0..201|max".into()
    }
}

/// Number of pages taken off a list at a time: 1 to 32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch(pub u64);

impl Batch {
    /// The number that the kernel takes.
    pub const MAX: u64 = 32;
}

impl Value for Batch {
    fn parse(text: &str) -> Option<Self> {
        let n = text.parse().ok()?;
        (1..=Self::MAX).contains(&n).then_some(Self(n))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
    fn expected() -> String {
        format!("1..{}", Self::MAX)
    }
}
