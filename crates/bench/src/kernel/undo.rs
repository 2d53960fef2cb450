//! Undoes changes however this process ends.
//!
//! A shell receives the command that undoes each change before the change is made. It runs the
//! commands, the last one first, when its input ends. The input ends when the value is dropped or
//! when this process ends, killed or not.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use super::KernelError;

const SHELL: &str = r#"
trap '' HUP INT QUIT TERM
all=
while IFS= read -r line; do
    all="$line
$all"
done
eval "$all"
"#;

/// Commands that a shell runs at the end.
#[derive(Debug)]
pub struct Undo {
    shell: Child,
    input: Option<ChildStdin>,
}

impl Undo {
    /// Starts the shell in a process group of its own, out of reach of the terminal's keys.
    pub fn new() -> Result<Self, KernelError> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SHELL]).stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut shell = command.spawn().map_err(KernelError::Shell)?;
        let input = shell.stdin.take();
        Ok(Self { shell, input })
    }

    /// Registers a command to run at the end, before those registered earlier.
    pub fn later(&mut self, line: &str) -> Result<(), KernelError> {
        let input = self.input.as_mut().ok_or(KernelError::NoInput)?;
        writeln!(input, "{line}").map_err(KernelError::Undo)
    }

    /// Writes `value` to a file of the kernel and registers the old value to be written back.
    pub fn set(&mut self, path: &Path, value: &str) -> Result<(), KernelError> {
        let before =
            std::fs::read_to_string(path).map_err(|error| KernelError::Read(path.into(), error))?;
        self.later(&format!("echo {} > {}", quote(before.trim()), quote_path(path)))?;
        super::set(path, value)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        drop(self.input.take());
        // The shell itself reports failures.
        let _ = self.shell.wait();
    }
}

/// Quotes text as one word of the shell.
pub fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes a path as one word of the shell.
pub fn quote_path(path: &Path) -> String {
    quote(&path.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_change_is_undone_first() {
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
