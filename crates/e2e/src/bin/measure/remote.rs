//! Measures how long programs wait for pages in a server.

use std::time::Instant;

use ebb_e2e::MIB;
use ebb_e2e::launch::Launch;
use ebb_e2e::redis::Redis;

use crate::{figure, number};

/// Fills 10,000 pages with random bytes, waits for a file, and reads the pages.
const WAITS: &str = "
import mmap, os, select, sys
area = mmap.mmap(-1, 10000 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for n in range(10000):
    area[n * 4096:(n + 1) * 4096] = os.urandom(4096)
os.write(1, b'filled\\n')
while not os.path.exists(sys.argv[1]):
    select.select([], [], [], 0.01)
os.write(1, b'%d\\n' % sum(area[n * 4096] for n in range(10000)))
";

/// Measures the time from the request for a page to its arrival.
pub fn reads() {
    let server = Redis::start(&[]);
    let options = format!("--report json --swap {}", server.url());
    let launch = Launch::program("verify", "48 1 5 2 32").limit(24 * MIB).options(&options);
    let outcome = launch.run();
    let tier = outcome.stderr.split_once("\"name\":\"redis\"").map_or("", |(_, tier)| tier);
    for (name, bound) in [("read_mean_ns", "1"), ("read_max_ns", "100")] {
        let ms = number(tier, name).unwrap_or(f64::NAN) / 1e6;
        figure(&format!("a read ({name})"), ms, "ms", bound);
    }
    figure(
        "answers that did not come in time",
        number(tier, "errors").unwrap_or(f64::NAN),
        "",
        "0",
    );
}

/// Measures the end of a run whose server stays away. The option permits a wait of three seconds.
pub fn given_up() {
    let mut server = Redis::start(&[]);
    let folder = tempfile::TempDir::new().expect("a folder");
    let go = folder.path().join("go");
    let launch = Launch::new("/usr/bin/python3").args(["-c", WAITS]).arg(&go).limit(30 * MIB);
    let mut run = launch.options(&format!("--swap {}?wait=3", server.url())).start();
    run.wait_for("filled");
    server.kill();
    let began = Instant::now();
    std::fs::write(&go, "").expect("go");
    run.wait_until("a lost page", |run| run.stderr().contains("is lost (tier redis"));
    figure("until the page is lost", began.elapsed().as_secs_f64(), "s", "2.5 to 8");
    run.finish();
    figure("until the run is over", began.elapsed().as_secs_f64(), "s", "25");
}
