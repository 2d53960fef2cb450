//! Writes the text of `lru_gen` and `lru_gen_full`, and parses the commands written to them.
//!
//! Formats are the kernel's, byte for byte, so that a reader of one can read the other.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::Relaxed;

use crate::folio::{LruType, MAX_NR_GENS, MAX_NR_TIERS};
use crate::lru::{Ctx, Lruvec, r#gen};

/// The value of `enabled`: a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enabled(pub u32);

impl Enabled {
    /// The multi-gen LRU itself.
    pub const CORE: u32 = 1;
    /// Page tables are walked.
    pub const WALK: u32 = 2;
    /// Tables are skipped by their own accessed bit.
    pub const NON_LEAF: u32 = 4;

    /// Returns the text, like `0x0007`.
    #[must_use]
    pub fn show(self) -> String {
        format!("0x{:04x}\n", self.0)
    }

    /// Parses a number in any base, or `y` or `n`.
    ///
    /// # Errors
    /// [`CommandError::Invalid`] for anything else.
    pub fn parse(text: &str) -> Result<Self, CommandError> {
        let text = text.trim();
        let all = Self::CORE | Self::WALK | Self::NON_LEAF;
        match text.as_bytes().first().map(u8::to_ascii_lowercase) {
            Some(b'y') => Ok(Self(all)),
            Some(b'n') => Ok(Self(0)),
            _ => Ok(Self(number(text)? as u32 & all)),
        }
    }
}

fn number(text: &str) -> Result<u64, CommandError> {
    let (digits, radix) = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&text[2..], 16),
        [b'0', _, ..] => (&text[1..], 8),
        _ => (text, 10),
    };
    u64::from_str_radix(digits, radix).map_err(|_| CommandError::Invalid)
}

/// Returns the lines of one memcg on one node. `path` names the memcg. `None` leaves its line out,
/// which is right for every node but the memcg's first.
#[must_use]
pub fn text(cx: &Ctx, v: &Lruvec, path: Option<&str>, node: u32, full: bool) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    if let Some(path) = path {
        let _ = writeln!(out, "memcg {:5} {path}", v.memcg().0);
    }
    let _ = writeln!(out, " node {node:5}");
    let g = v.generations();
    let max = g.max_seq();
    let first = if full { max.saturating_sub(MAX_NR_GENS - 1) } else { g.evictable_min_seq(100) };
    for seq in first..=max {
        let age = cx.now_ms.saturating_sub(g.born_ms(seq));
        let _ = write!(out, " {seq:10} {age:10}");
        for ty in LruType::ALL {
            let mark = if full && seq < g.min_seq(ty) { 'x' } else { ' ' };
            // Folios on probation are older than any generation.
            let fresh = if seq == g.min_seq(ty) { g.fresh_pages(ty) } else { 0 };
            let _ = write!(out, " {:10}{mark}", g.pages(seq, ty) + fresh);
        }
        out.push('\n');
        if full {
            tier_lines(&mut out, cx, v, seq);
        }
    }
    out
}

fn tier_lines(out: &mut String, cx: &Ctx, v: &Lruvec, seq: u64) {
    let g = v.generations();
    let (max, tiers) = (g.max_seq(), g.tiers());
    let hist = if cx.tun.mglru.stats { (seq % 4) as usize } else { 0 };
    for tier in 0..MAX_NR_TIERS {
        let _ = write!(out, "            {tier:10}");
        for ty in LruType::ALL {
            let t = ty.index();
            let (letters, n) = if seq == max {
                let avg =
                    [&tiers.avg_refaulted, &tiers.avg_total].map(|a| a[t][tier].load(Relaxed));
                (['R', 'T', 'x'], [avg[0], avg[1], 0])
            } else if seq == g.min_seq(ty) || cx.tun.mglru.stats {
                let by = [&tiers.refaulted, &tiers.evicted, &tiers.protected];
                (['r', 'e', 'p'], by.map(|c| c[hist][t][tier].load(Relaxed)))
            } else {
                (['x', 'x', 'x'], [0; 3])
            };
            for (n, letter) in n.iter().zip(letters) {
                let _ = write!(out, " {n:10}{letter}");
            }
        }
        out.push('\n');
    }
    out.push_str("                      ");
    let shown = (seq == max) != cx.tun.mglru.stats;
    let stats = if shown { g.mm.stats(hist) } else { [0; 4] };
    let letters = match (shown, cx.tun.mglru.stats) {
        (false, _) => ['x'; 4],
        (true, false) => ['T', 'Y', 'F', 'A'],
        (true, true) => ['t', 'y', 'f', 'a'],
    };
    for (n, letter) in stats.iter().zip(letters) {
        let _ = write!(out, " {n:10}{letter}");
    }
    out.push('\n');
}

/// Why a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CommandError {
    /// A field is missing or wrong, or names a missing object.
    Invalid,
    /// Another task aged first.
    Exists,
    /// The command was interrupted.
    Interrupted,
}

impl CommandError {
    /// Returns the error number of the kernel.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Interrupted => 4,
            Self::Exists => 17,
            Self::Invalid => 22,
        }
    }
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid argument",
            Self::Exists => "another task has aged first",
            Self::Interrupted => "interrupted",
        })
    }
}

impl std::error::Error for CommandError {}

impl From<r#gen::RunError> for CommandError {
    fn from(e: r#gen::RunError) -> Self {
        match e {
            r#gen::RunError::Invalid => Self::Invalid,
            r#gen::RunError::Raced => Self::Exists,
        }
    }
}

/// The action of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// `+`: ages.
    Age {
        /// Walks every table and ignores the filters.
        force: bool,
    },
    /// `-`: evicts pages.
    Evict {
        /// Largest number of pages to evict.
        pages: u64,
    },
}

/// A parsed command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The action.
    pub action: Action,
    /// Number of the memcg.
    pub memcg: u64,
    /// Number of the node.
    pub node: u32,
    /// Number of the generation.
    pub seq: u64,
    /// 0..=201, or `None` for the swappiness in force.
    pub swappiness: Option<u32>,
}

impl Command {
    /// Parses one command; blanks around it are allowed.
    ///
    /// # Errors
    /// [`CommandError::Invalid`].
    pub fn parse(text: &str) -> Result<Self, CommandError> {
        let text = text.trim();
        let sign = text.chars().next().ok_or(CommandError::Invalid)?;
        let fields: Vec<&str> = text[sign.len_utf8()..].split_ascii_whitespace().collect();
        if !(3..=5).contains(&fields.len()) {
            return Err(CommandError::Invalid);
        }
        let decimal = |s: &str| s.parse::<u64>().map_err(|_| CommandError::Invalid);
        let swappiness = match fields.get(3) {
            None => None,
            Some(&"max") => Some(201),
            Some(s) => Some(decimal(s)?).filter(|&n| n <= 201).map(|n| n as u32),
        };
        if fields.len() > 3 && swappiness.is_none() {
            return Err(CommandError::Invalid);
        }
        let option = fields.get(4).map(|s| decimal(s)).transpose()?;
        let action = match sign {
            '+' => Action::Age { force: option.is_none_or(|n| n != 0) },
            '-' => Action::Evict { pages: option.unwrap_or(u64::MAX) },
            _ => return Err(CommandError::Invalid),
        };
        Ok(Self {
            action,
            memcg: decimal(fields[0])?,
            node: decimal(fields[1])?.try_into().map_err(|_| CommandError::Invalid)?,
            seq: decimal(fields[2])?,
            swappiness,
        })
    }
}

/// Runs every command of `text` (separated by `,`, `;` or newline) until one fails.
///
/// # Errors
/// The error of the first command that fails. The commands before it were carried out.
pub fn run_all(
    text: &str,
    mut run: impl FnMut(Command) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    text.split([',', ';', '\n'])
        .map(str::trim_start)
        .filter(|c| !c.is_empty())
        .try_for_each(|c| run(Command::parse(c)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lru::memory::{Access, Memory};
    use crate::tunables::Tunables;

    fn command(s: &str) -> Result<Command, CommandError> {
        Command::parse(s)
    }

    #[test]
    fn commands_have_three_to_five_fields() {
        let c = command("+ 5 0 7").unwrap();
        assert_eq!((c.memcg, c.node, c.seq, c.swappiness), (5, 0, 7, None));
        assert_eq!(c.action, Action::Age { force: true });
        assert_eq!(command("+ 5 0 7 200 0").unwrap().action, Action::Age { force: false });
        let c = command("-5 0 7 max 100").unwrap();
        assert_eq!((c.swappiness, c.action), (Some(201), Action::Evict { pages: 100 }));
        assert_eq!(command("- 5 0 7 0").unwrap().action, Action::Evict { pages: u64::MAX });
    }

    #[test]
    fn bad_commands_have_the_error_numbers_of_the_kernel() {
        for bad in [
            "",
            "+",
            "+ 5",
            "+ 5 0",
            "* 5 0 7",
            "+ x 0 7",
            "+ 5 x 7",
            "+ 5 0 x",
            "+ 5 0 7 202",
            "+ 5 0 7 maximum",
            "+ 5 0 7 -1",
            "+ 5 0 7 60 x",
            "+ 5 0 7 60 1 1",
            "+ 5 4294967296 7",
        ] {
            assert_eq!(command(bad), Err(CommandError::Invalid), "'{bad}'");
        }
        assert_eq!(CommandError::Invalid.errno(), 22);
        assert_eq!(CommandError::Exists.errno(), 17);
        assert_eq!(CommandError::Interrupted.errno(), 4);
    }

    #[test]
    fn commands_run_until_the_first_fails() {
        let mut ran = Vec::new();
        let result = run_all(" + 1 0 1,- 1 0 2;\n\n + 9 0 3\n+ 1 0 4", |c| {
            ran.push(c.seq);
            if c.memcg == 9 { Err(CommandError::Exists) } else { Ok(()) }
        });
        assert_eq!((result, ran), (Err(CommandError::Exists), vec![1, 2, 3]));
        assert_eq!(run_all(",;\n ", |_| Err(CommandError::Invalid)), Ok(()));
    }

    #[test]
    fn enabled_reads_numbers_of_any_base_and_letters() {
        for (text, value) in
            [("y", 7), ("N\n", 0), ("7", 7), ("0x5", 5), ("010", 0), ("3", 3), ("0", 0)]
        {
            assert_eq!(Enabled::parse(text), Ok(Enabled(value)), "{text}");
        }
        assert_eq!(Enabled::parse("maybe"), Err(CommandError::Invalid));
        assert_eq!(Enabled(7).show(), "0x0007\n");
    }

    fn memory() -> Memory {
        let mut m = Memory::anon(Tunables::preset("k618").unwrap(), 100, 100);
        m.set_now_ms(1_500);
        for page in 0..100 {
            m.touch(page, Access::AnonWrite);
        }
        m.check_invariants();
        m
    }

    #[test]
    fn lru_gen_golden() {
        assert_eq!(
            memory().lru_gen("/one", false),
            "memcg     1 /one
 node     0
          0       1500          0           0 \n          1       1500          0           0 
          2       1500        100           0 \n          3       1500          0           0 \n"
        );
    }

    #[test]
    fn lru_gen_full_golden() {
        let text = memory().lru_gen("/one", true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2 + 4 * 6);
        let zeros = |l: &[char]| l.iter().map(|c| format!("          0{c}")).collect::<String>();
        let tier = |n: u32, letters: &[char]| format!("            {n:10}{}", zeros(letters));
        assert_eq!(lines[2], "          0       1500          0           0 ");
        assert_eq!(lines[3], tier(0, &['r', 'e', 'p', 'r', 'e', 'p']));
        assert_eq!(lines[7], format!("{}{}", " ".repeat(22), zeros(&['x'; 4])));
        assert_eq!(lines[12], tier(3, &['x'; 6]));
        assert_eq!(lines[21], tier(0, &['R', 'T', 'x', 'R', 'T', 'x']));
        assert_eq!(lines[25], format!("{}{}", " ".repeat(22), zeros(&['T', 'Y', 'F', 'A'])));
    }

    #[test]
    fn a_generation_a_type_no_longer_has_is_marked() {
        let mut m = memory();
        assert_eq!(m.command("+ 1 0 3,- 1 0 1"), Ok(()));
        let text = m.lru_gen("/one", true);
        assert!(text.contains("          1       1500          0x          0x\n"), "{text}");
        assert_eq!(m.command("+ 1 0 9"), Err(CommandError::Invalid), "beyond the youngest");
        assert_eq!(m.command("- 1 0 3"), Err(CommandError::Invalid), "too young");
        assert_eq!(m.command("+ 2 0 4"), Err(CommandError::Invalid), "no such memcg");
        assert_eq!(m.command("+ 1 1 4"), Err(CommandError::Invalid), "no such node");
    }
}
