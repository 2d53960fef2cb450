//! Makes the inputs of the programs. Each benchmark makes them anew, always with the same contents.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::ProgramsError;
use crate::draw::Random;
use crate::kernel::CommandError;

/// Functions and rows of the C file, and lines of the file to be sorted.
const FUNCTIONS: u64 = 800;
const ROWS: u64 = 100_000;
const LINES: u64 = 2_500_000;

/// Writes a file.
pub fn write(folder: &Path, name: &str, text: &str) -> Result<(), ProgramsError> {
    std::fs::write(folder.join(name), text)
        .map_err(|error| ProgramsError::Write(name.into(), error))
}

/// Finds a command, first in the system's own folders, then in PATH.
pub fn find(command: &str) -> Option<PathBuf> {
    let own = [PathBuf::from("/usr/bin"), PathBuf::from("/usr/sbin")];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = own.into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join(command)).find(|file| file.is_file())
}

/// Compiles the Java class.
pub fn java(folder: &Path) -> Result<(), ProgramsError> {
    write(folder, "Churn.java", include_str!("sources/Churn.java"))?;
    let javac = find("javac").ok_or(ProgramsError::NoJavac)?;
    let output = Command::new(javac).arg("Churn.java").current_dir(folder).output();
    let output = output.map_err(|error| CommandError::Start("javac", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(CommandError::Failed("javac", said).into())
}

/// Writes a C file of functions full of branches and with a large table.
pub fn c(folder: &Path) -> Result<(), ProgramsError> {
    write(folder, "large.c", &c_text(FUNCTIONS, ROWS))
}

fn c_text(functions: u64, rows: u64) -> String {
    let mut random = Random(1);
    let mut text = String::from(
        "struct row { int id; const char *name; double value; int more[4]; };\n\
         extern int hear(int, int);\n",
    );
    // Writing to a string cannot fail.
    for function in 0..functions {
        let _ = writeln!(text, "int step{function}(int a, int b) {{");
        for _ in 0..8 {
            let (bit, more, times) =
                (1 << (random.word() % 12), random.word() % 1000, random.word() % 1000);
            let _ =
                writeln!(text, "  if (a & {bit}) a = hear(a + {more}, b); else b ^= a * {times};");
        }
        text.push_str("  return a + b;\n}\n");
    }
    text.push_str("const struct row rows[] = {\n");
    for row in 0..rows {
        let more = [(); 3].map(|()| random.word() >> 34);
        let _ = writeln!(
            text,
            "  {{{row}, \"row {row}\", {}.5, {{{}, {}, {}, {row}}}}},",
            random.word() % 10_000,
            more[0],
            more[1],
            more[2]
        );
    }
    text.push_str("};\n");
    text
}

/// Writes a file of lines that begin with random digits.
pub fn lines(folder: &Path) -> Result<(), ProgramsError> {
    let mut random = Random(1);
    let mut text = String::new();
    for line in 0..LINES {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:016x} line {line}", random.word());
    }
    write(folder, "lines", &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generated_c_text_is_the_same_each_time() {
        let text = c_text(2, 3);
        assert_eq!(text, c_text(2, 3));
        assert_eq!(text.lines().count(), 2 + 2 * 11 + 1 + 3 + 1);
        assert!(text.contains("\"row 2\""));
    }
}
