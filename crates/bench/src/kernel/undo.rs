//! Undoing what was set, whatever becomes of this process.
//!
//! A shell is told beforehand how each change is undone. It does so, the last change first, when its input
//! ends: because the value was dropped, or because this process ended, killed or not.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

const SHELL: &str = r#"
trap '' HUP INT QUIT TERM
all=
while IFS= read -r line; do
    all="$line
$all"
done
eval "$all"
"#;

/// Commands to be carried out at the end.
#[derive(Debug)]
pub struct Undo {
    shell: Child,
    input: Option<ChildStdin>,
}

impl Undo {
    /// Starts the shell, out of reach of the terminal's keys.
    pub fn new() -> Result<Self, String> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SHELL]).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut shell =
            command.spawn().map_err(|error| format!("cannot start a shell: {error}"))?;
        let input = shell.stdin.take();
        Ok(Self { shell, input })
    }

    /// This line will be carried out at the end, before those told earlier.
    pub fn later(&mut self, line: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the shell that undoes has no input")?;
        writeln!(input, "{line}").map_err(|error| format!("the shell that undoes: {error}"))
    }

    /// Sets a file of the kernel's to `value`; what it held comes back at the end.
    pub fn set(&mut self, path: &Path, value: &str) -> Result<(), String> {
        let before = std::fs::read_to_string(path)
            .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        self.later(&format!("echo {} > {}", quote(before.trim()), quote_path(path)))?;
        super::set(path, value)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.input.take());
        // It says itself what it could not undo.
        let _ = self.shell.wait();
    }
}

/// As one word of the shell's.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// As one word of the shell's.
pub fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_is_undone_first() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("o'ne"), folder.path().join("two"));
        std::fs::write(&one, "before\n").unwrap();
        let mut undo = Undo::new().unwrap();
        undo.later(&format!("cp {} {}", quote_path(&one), quote_path(&two))).unwrap();
        undo.set(&one, "meanwhile").unwrap();
        assert_eq!(std::fs::read_to_string(&one).unwrap(), "meanwhile");
        assert!(!two.exists());
        drop(undo);
        assert_eq!(std::fs::read_to_string(&one).unwrap(), "before\n");
        assert_eq!(std::fs::read_to_string(&two).unwrap(), "before\n");
    }
}
