//! Measures how long a run waits under its limit.

use ebb_e2e::launch::Launch;
use ebb_e2e::{MIB, build};

use crate::figure;
use crate::watch::timed;

/// Fills 96 MiB once and uses 8 MiB all the time, for 20 seconds.
const COLD: &str = "
import mmap, time
areas = [mmap.mmap(-1, mib << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for mib in (96, 8)]
for area in areas:
    for at in range(0, len(area), 4096):
        area[at:at + 8] = at.to_bytes(8, 'little')
end = time.time() + 20
while time.time() < end:
    for at in range(0, len(areas[1]), 4096):
        areas[1][at] = 1
";

/// Measures the time lost to waiting while Ebb lowers the limit to a pressure target of 5 %. The
/// limit must not fall so far that threads wait for pages in use.
pub fn pressure() {
    let launch = Launch::new("/usr/bin/python3").args(["-c", COLD]).limit(1024 * MIB);
    let outcome = launch.options("--pressure-target 5% --report json").run();
    let [wall, lost] = ["wall_time_us", "total_us"].map(|name| outcome.figure(name) as f64);
    figure("lost to waiting at a target of 5 %", lost * 100.0 / wall, "%", "25");
}

/// Measures a program and its pager in the idle class. Both get about a three-hundredth of a busy
/// CPU.
pub fn idle() {
    let launch = Launch::new("chrt").args(["-i", "0"]).arg(build::ebb());
    let launch = launch.args(["run", "--memory-max", "16M", "--report-file", "/dev/null", "--"]);
    let (wall_s, _) = timed(&launch.arg(build::program("verify")).args(["20", "1"]));
    figure("20 MiB in 16 in the idle class", wall_s, "s", "5");
}

/// Measures the size that the report names as enough. The program accesses 96 MiB in turn. In that
/// much memory it would not thrash.
pub fn enough() {
    let launch = Launch::program("touch", "96 13").limit(16 * MIB);
    let options = "--swap file --report json --inject slow-read=1ms@n1";
    let enough = launch.options(options).run().figure("enough_bytes") as f64 / MIB as f64;
    figure("would be enough", enough, "MiB", "96 to 128");
}

/// Measures processes that try to make the pager wait for ever: see harass.c.
pub fn harassed() {
    for what in ["full", "drained", "others", "forged"] {
        let (wall_s, _) = timed(&Launch::program("harass", what).limit(24 * MIB));
        figure(&format!("harass {what}"), wall_s, "s", "10");
    }
}
