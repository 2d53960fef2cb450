//! The types a switch can have: how each is read, shown, and said to be expected.

/// A type a switch can have.
pub trait Value: Sized {
    /// Reads it.
    fn parse(text: &str) -> Option<Self>;
    /// Writes it.
    fn show(&self) -> String;
    /// Says what it may be.
    fn expected() -> String;
    /// What each of its values stands for, where they are words.
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

/// 0..=200 are weights, 201 is "anonymous only" (also written `max`).
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

/// Pages taken off a list at a time: 1 to 32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch(pub u64);

impl Batch {
    /// As many as the kernel takes.
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
