//! Measures the memory of stressors, and the report of their locked memory.

use ebb_e2e::MIB;
use ebb_e2e::launch::Launch;

use crate::figure;
use crate::watch::watched;

fn stressor(words: &str, limit: u64) -> Launch {
    Launch::new("stress-ng").args(words.split_whitespace()).arg("--verify").limit(limit)
}

/// Measures the peak of a program that writes pages of zeros while their area comes under
/// management.
pub fn adopted_while_filling() {
    let launch = stressor("--vm 1 --vm-bytes 64M --vm-method walk-0a --vm-ops 4", 32 * MIB);
    let most = (0..15).map(|_| watched(&launch).peak_bytes).max().unwrap_or(0);
    figure("the most of 15 runs in 32 MiB", most as f64 / MIB as f64, "MiB", "40");
}

/// Measures the locked memory that Ebb reports. A report has all of the 32 MiB, or the part that
/// the last check found.
pub fn locked() {
    let launch = stressor("--mmap 1 --mmap-bytes 32M --mmap-ops 2 --seed 1", 32 * MIB);
    let told = (0..5).map(|_| {
        let outcome = launch.run();
        let text = outcome.stderr.split_once(" MiB are in areas that are locked or not writable");
        let mib = text.and_then(|(before, _)| before.rsplit_once('(')?.1.parse::<f64>().ok());
        mib.unwrap_or(f64::NAN)
    });
    let most = told.fold(f64::NAN, f64::max);
    figure("the most that is told of what is locked, of 5 runs", most, "MiB", "31 to 33");
}

/// Measures the peak while thirty-two processes fill shared memory of half of the machine at once.
/// Ebb counts that memory late.
pub fn shared() {
    let launch = stressor("--mmapfork 1 --mmapfork-ops 1", 128 * MIB).options("--report json");
    let peak = launch.run().figure("peak_resident_bytes");
    figure("the most beyond 128 MiB", peak as f64 / MIB as f64, "MiB", "1536");
}
