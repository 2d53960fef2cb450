//! Swap for one run: a file or compressed memory (zram).

use std::fs;
use std::path::{Path, PathBuf};

use super::undo::{Undo, quote_path};
use super::{KernelError, command, set};

const CLUSTER: &str = "/proc/sys/vm/page-cluster";
const ZRAM: &str = "/sys/class/zram-control";

/// A swap file. It is on only while a [`Swap`] made from it lives.
///
/// While the file is on, the kernel treats its disk as non-rotating, which is the kernel's best
/// case. The flag must not return before the file is off. Otherwise the kernel's count of rotating
/// swap disks stays wrong, and with it all later swap readahead.
#[derive(Debug)]
pub struct SwapFile {
    path: PathBuf,
    rotational: Option<PathBuf>,
    _undo: Undo,
}

/// Swap that is on. Drop turns it off and restores the settings.
#[derive(Debug)]
pub struct Swap {
    /// For compressed swap, the file in which the kernel shows its contents.
    stat: Option<PathBuf>,
    _undo: Undo,
}

/// Contents of compressed swap.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Compressed {
    /// Size of the pages before compression.
    pub original_bytes: u64,
    /// Memory that the compressed pages take.
    pub used_bytes: u64,
}

impl SwapFile {
    /// Creates the file in `folder`.
    pub fn new(folder: &Path, bytes: u64) -> Result<Self, KernelError> {
        let path = folder.join(format!("ebb-bench-{}.swap", std::process::id()));
        let mut undo = Undo::new()?;
        // After a killed benchmark this shell and the shell of `Swap` run at once. A swap file that
        // is still on cannot be removed.
        let quoted = quote_path(&path);
        undo.later(&format!(
            "n=0; until rm -f {quoted} 2>/dev/null || [ $n = 300 ]; do n=$((n + 1)); sleep 0.2; done"
        ))?;
        let file = path.to_string_lossy();
        command("fallocate", &["-l", &bytes.to_string(), &file])?;
        command("chmod", &["600", &file])?;
        command("mkswap", &[&file])?;
        let rotational = disk_of(folder).map(|disk| disk.join("queue/rotational"));
        Ok(Self { path, rotational, _undo: undo })
    }

    /// Turns the file on, with swap-in of 2 to the power of `page_cluster` pages at a time.
    pub fn on(&self, page_cluster: u32) -> Result<Swap, KernelError> {
        let mut undo = Undo::new()?;
        undo.set(Path::new(CLUSTER), &page_cluster.to_string())?;
        if let Some(rotational) = &self.rotational {
            undo.set(rotational, "0")?;
        }
        turn_on(&self.path, &mut undo)?;
        Ok(Swap { stat: None, _undo: undo })
    }
}

impl Swap {
    /// Creates a compressed device of `bytes` that takes at most `memory_bytes` of memory.
    pub fn zram(
        bytes: u64,
        memory_bytes: Option<u64>,
        page_cluster: u32,
    ) -> Result<Self, KernelError> {
        let mut undo = Undo::new()?;
        let control = Path::new(ZRAM);
        let number = fs::read_to_string(control.join("hot_add")).map_err(KernelError::Zram)?;
        let name = format!("zram{}", number.trim());
        let remove = quote_path(&control.join("hot_remove"));
        undo.later(&format!("echo {} > {remove}", number.trim()))?;
        let settings = Path::new("/sys/block").join(&name);
        undo.later(&format!("echo 1 > {}", quote_path(&settings.join("reset"))))?;
        set(&settings.join("comp_algorithm"), "lz4")?;
        set(&settings.join("disksize"), &bytes.to_string())?;
        if let Some(memory_bytes) = memory_bytes {
            set(&settings.join("mem_limit"), &memory_bytes.to_string())?;
        }
        let device = Path::new("/dev").join(&name);
        command("mkswap", &[&device.to_string_lossy()])?;
        undo.set(Path::new(CLUSTER), &page_cluster.to_string())?;
        turn_on(&device, &mut undo)?;
        Ok(Self { stat: Some(settings.join("mm_stat")), _undo: undo })
    }

    /// Returns the present contents of compressed swap.
    #[must_use]
    pub fn compressed(&self) -> Option<Compressed> {
        parse_stat(&fs::read_to_string(self.stat.as_ref()?).ok()?)
    }
}

/// Returns whether this kernel can create zram devices.
#[must_use]
pub fn zram_is_there() -> bool {
    Path::new(ZRAM).join("hot_add").exists()
}

fn turn_on(path: &Path, undo: &mut Undo) -> Result<(), KernelError> {
    let quoted = quote_path(path);
    // The undo is registered first, so that it covers every moment. It does nothing if the swap
    // never went on.
    undo.later(&format!("if grep -qF {quoted} /proc/swaps; then swapoff {quoted}; fi"))?;
    Ok(command("swapon", &[&path.to_string_lossy()])?)
}

/// Parses `mm_stat`: the first figure is the original size, and the third is the memory used.
fn parse_stat(text: &str) -> Option<Compressed> {
    let mut figures = text.split_whitespace().map(str::parse);
    let original_bytes = figures.next()?.ok()?;
    let used_bytes = figures.nth(1)?.ok()?;
    Some(Compressed { original_bytes, used_bytes })
}

/// Returns the `/sys/block` entry of the disk that holds `folder`, if it is a plain disk.
fn disk_of(folder: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    let disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let found = [disk.clone(), disk.parent()?.to_owned()];
    found.into_iter().find(|disk| disk.join("queue/rotational").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_compressed_swap_are_read_from_mm_stat() {
        let text = "  8192 74 12288 0 16384 0 0 0 0\n";
        let expected = Compressed { original_bytes: 8192, used_bytes: 12288 };
        assert_eq!(parse_stat(text), Some(expected));
        assert_eq!(parse_stat("x"), None);
    }
}
