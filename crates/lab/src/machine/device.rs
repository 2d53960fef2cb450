//! Storage devices: the time that a transfer takes while others are under way.
//!
//! A device has `depth` queue slots. A request waits for a free slot, then takes its latency. After
//! that its data passes over one bus at the device's bandwidth. Requests are served in the order in
//! which they are submitted. A request that continues where the last one ended takes the sequential
//! latency, because the head of a disk is there already.
//!
//! PCIe carries reads and writes at the same time, so the two have queue slots and a bus of their
//! own there. On other devices they share. In a drive of the kind `flash`, reads and writes share
//! the dies. A write is done when the drive's memory has it. A die is busy programming it after
//! that, and a read of that die waits.
//!
//! A synchronous device (compressed memory, persistent memory) works on the processor of the thread
//! that asks. Nothing waits, and the time is that thread's own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};

use schemars::JsonSchema;
use serde::Deserialize;

use crate::value::ValueError;

/// Bytes in a page.
const PAGE: u64 = 4096;

/// A kind of device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Compressed memory: 10 us a page on the processor.
    Zram,
    /// Persistent memory or a RAM disk: 1 us a page on the processor.
    Ramdisk,
    /// A flash drive on PCIe whose reads and writes do not delay each other.
    Nvme,
    /// A flash drive on PCIe with its dies, on which reads wait for writes.
    Flash,
    /// A flash drive on SATA.
    Ssd,
    /// A rotating disk.
    Disk,
}

/// Figures of a device. Absent ones come from the preset.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Preset from which absent figures come.
    pub kind: Preset,
    /// Latency of a read, in microseconds.
    pub read_us: Option<f64>,
    /// Latency of a write, in microseconds.
    pub write_us: Option<f64>,
    /// Latency of a request that continues the last one, in microseconds.
    pub sequential_us: Option<f64>,
    /// Bandwidth of reads, in megabytes a second; 0: no limit.
    pub read_mb_s: Option<f64>,
    /// Bandwidth of writes, in megabytes a second; 0: no limit.
    pub write_mb_s: Option<f64>,
    /// Largest number of requests in flight.
    pub depth: Option<usize>,
    /// Capacity in pages; 0: no limit.
    pub pages: Option<u64>,
    /// Pages of data in one page of memory, for compressed memory.
    pub ratio: Option<f64>,
    /// Pages that a flash drive programs for each page written: a full drive moves other pages to
    /// make room.
    pub amplification: Option<f64>,
    /// For swap on flash: swap uses the dies of `machine.disk`.
    #[serde(default)]
    pub on_disk: bool,
}

/// The dies of a flash drive.
///
/// The figures are those of a Samsung PM983 of 1.92 TB, by its data sheet (Rev. 1.0, 2018). It does
/// 540,000 random reads a second, 85 us each when alone. It does 2.0 GB/s of writes in order, 50 us
/// each. 32 dies of 512 Gbit are its 1.92 TB and its reserve. So a die reads for 55 us, because
/// with 256 requests in flight not all dies have one all the time. A die programs 62 MB/s: 10 pages
/// in 660 us. Both are about what operations of its generation take.
///
/// A drive that was empty before has no old pages to move to make room for new ones. A drive that
/// is written all over does 50,000 random writes a second by the same data sheet. That is a tenth
/// of the rate of its dies (`amplification`). The model leaves out that a drive suspends a program
/// operation for a read.
#[derive(Clone, Debug)]
struct Flash {
    /// Time at which each die is free, in nanoseconds.
    dies: [u64; 32],
    /// Die of the next program operation.
    next: usize,
    /// Thousandths of pages in the drive's memory that do not fill a program operation yet.
    gathered: u64,
    /// Thousandths of a page programmed for each page written.
    amplification: u64,
}

impl Flash {
    /// Nanoseconds to read a page of flash, which has four pages of memory.
    const READ_NS: u64 = 55_000;
    const READ_PAGES: u64 = 4;
    const PROGRAM_NS: u64 = 660_000;
    const PROGRAM_PAGES: u64 = 10;
    /// Capacity of the drive's memory at the rate of its dies, in nanoseconds: 16 MB.
    const BEHIND_NS: u64 = 8_000_000;

    fn new(amplification: f64) -> Self {
        let amplification = (amplification.max(1.0) * 1000.0) as u64;
        Self { dies: [0; 32], next: 0, gathered: 0, amplification }
    }

    /// Reads `pages` from `place`, beginning at `start`. Returns when all dies are done.
    fn read(&mut self, start: u64, place: u64, pages: u64) -> u64 {
        let mut end = start;
        for chunk in place / Self::READ_PAGES..=(place + pages - 1) / Self::READ_PAGES {
            let die = &mut self.dies[(chunk % 32) as usize];
            *die = start.max(*die) + Self::READ_NS;
            end = end.max(*die);
        }
        end
    }

    /// Programs the pages that came in by `now`. Returns when there is room for more.
    fn write(&mut self, now: u64, pages: u64) -> u64 {
        self.gathered += pages * self.amplification;
        let mut room = now;
        while self.gathered >= Self::PROGRAM_PAGES * 1000 {
            self.gathered -= Self::PROGRAM_PAGES * 1000;
            let die = &mut self.dies[self.next];
            self.next = (self.next + 1) % 32;
            *die = now.max(*die) + Self::PROGRAM_NS;
            room = room.max(die.saturating_sub(Self::BEHIND_NS));
        }
        room
    }
}

impl DeviceSpec {
    /// Checks the values. `disk` is the drive on which the device may lie.
    ///
    /// # Errors
    /// A figure of flash alone is set for another kind of drive, or where it would be ignored.
    pub fn check(&self, disk: Option<&Self>) -> Result<(), ValueError> {
        let flash = |d: &Self| d.kind == Preset::Flash;
        match self.amplification {
            Some(_) if !flash(self) => {
                return Err(ValueError::Rule(
                    "amplification",
                    "expected with kind = \"flash\" only",
                ));
            }
            Some(a) if a.is_nan() || a < 1.0 => {
                return Err(ValueError::Number("amplification", a, "1 or more"));
            }
            Some(_) if self.on_disk => {
                let rule = "leave it out; with on_disk the disk has it";
                return Err(ValueError::Rule("amplification", rule));
            }
            _ => {}
        }
        if self.on_disk && !(flash(self) && disk.is_some_and(flash)) {
            let rule = "expected for machine.swap, with swap and disk of kind = \"flash\"";
            return Err(ValueError::Rule("on_disk", rule));
        }
        Ok(())
    }

    /// Creates a device whose figures all come from the preset.
    #[must_use]
    pub fn preset(kind: Preset) -> Self {
        Self {
            kind,
            read_us: None,
            write_us: None,
            sequential_us: None,
            read_mb_s: None,
            write_mb_s: None,
            depth: None,
            pages: None,
            ratio: None,
            amplification: None,
            on_disk: false,
        }
    }
}

/// State of a device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Nanoseconds of latency of a read, of a write, and of a request that continues the last one.
    latency_ns: [u64; 3],
    /// Nanoseconds on the bus for a page read or written.
    page_ns: [f64; 2],
    sync: bool,
    /// Most pages that the device stores.
    pub pages_max: u64,
    /// Pages of data in a page of memory; 0 for a device that takes no memory.
    pub ratio: f64,
    /// Times at which the queue slots are free: for reads, and for writes where these do not share.
    places: [BinaryHeap<Reverse<u64>>; 2],
    bus_free_ns: [u64; 2],
    duplex: bool,
    flash: Option<Arc<Mutex<Flash>>>,
    last_end: u64,
    /// Number of pages read and written.
    pub moved: [u64; 2],
    /// Number of requests to read and to write.
    pub requests: [u64; 2],
    /// Nanoseconds that requests spent in the device.
    pub busy_ns: u64,
}

impl Device {
    /// Creates a device by its figures.
    #[must_use]
    pub fn new(spec: &DeviceSpec) -> Self {
        // Latencies of read, write and sequential in us; bandwidths in MB/s; queue slots.
        let (lat, mb_s, depth) = match spec.kind {
            Preset::Zram => ([10.0, 10.0, 10.0], [0.0, 0.0], 1),
            Preset::Ramdisk => ([1.0, 1.0, 1.0], [0.0, 0.0], 1),
            Preset::Nvme => ([80.0, 20.0, 80.0], [3000.0, 1500.0], 64),
            Preset::Flash => ([85.0, 50.0, 85.0], [3200.0, 2000.0], 256),
            Preset::Ssd => ([100.0, 60.0, 100.0], [500.0, 450.0], 32),
            Preset::Disk => ([8000.0, 8000.0, 100.0], [150.0, 150.0], 1),
        };
        let ns = |us: f64| (us * 1000.0) as u64;
        let page = |mb_s: f64| if mb_s > 0.0 { PAGE as f64 * 1000.0 / mb_s } else { 0.0 };
        let ratio = if spec.kind == Preset::Zram { 3.0 } else { 0.0 };
        Self {
            latency_ns: [
                ns(spec.read_us.unwrap_or(lat[0])),
                ns(spec.write_us.unwrap_or(lat[1])),
                ns(spec.sequential_us.or(spec.read_us).unwrap_or(lat[2])),
            ],
            page_ns: [
                page(spec.read_mb_s.unwrap_or(mb_s[0])),
                page(spec.write_mb_s.unwrap_or(mb_s[1])),
            ],
            sync: matches!(spec.kind, Preset::Zram | Preset::Ramdisk),
            pages_max: spec.pages.filter(|&p| p > 0).unwrap_or(u64::MAX),
            ratio: spec.ratio.unwrap_or(ratio),
            places: std::array::from_fn(|_| {
                (0..spec.depth.unwrap_or(depth).max(1)).map(|_| Reverse(0)).collect()
            }),
            bus_free_ns: [0; 2],
            duplex: matches!(spec.kind, Preset::Nvme | Preset::Flash),
            flash: (spec.kind == Preset::Flash)
                .then(|| Arc::new(Mutex::new(Flash::new(spec.amplification.unwrap_or(1.0))))),
            last_end: u64::MAX,
            moved: [0; 2],
            requests: [0; 2],
            busy_ns: 0,
        }
    }

    /// Puts this device on the drive of `other`, if both are flash. The reads of each then wait for
    /// the writes of the other.
    pub fn lie_on(&mut self, other: &Self) {
        if self.flash.is_some() && other.flash.is_some() {
            self.flash.clone_from(&other.flash);
        }
    }

    /// Returns whether the device works on the processor of the thread that asks.
    #[must_use]
    pub fn is_sync(&self) -> bool {
        self.sync
    }

    /// Moves `pages` from or to `place`, submitted at `now`. Returns when the transfer is done.
    pub fn submit(&mut self, now: u64, write: bool, place: u64, pages: u64) -> u64 {
        let way = usize::from(write);
        self.moved[way] += pages;
        self.requests[way] += 1;
        let bus = (self.page_ns[way] * pages as f64) as u64;
        if self.sync {
            let takes = self.latency_ns[way] * pages + bus;
            self.busy_ns += takes;
            return now + takes;
        }
        let follows = place == self.last_end;
        self.last_end = place + pages;
        let latency = if follows {
            self.latency_ns[2].min(self.latency_ns[way])
        } else {
            self.latency_ns[way]
        };
        // The request takes the queue slot that is free first.
        let lane = if self.duplex { way } else { 0 };
        let (places, bus_free_ns) = (&mut self.places[lane], &mut self.bus_free_ns[lane]);
        let start = places.pop().map_or(now, |Reverse(free)| free.max(now));
        // If a scenario sets shorter latencies, the dies are faster too.
        let flash = self.flash.as_ref();
        let mut flash = flash.map(|f| f.lock().unwrap_or_else(PoisonError::into_inner));
        let ready = match &mut flash {
            Some(flash) if latency > Flash::READ_NS && !write => {
                flash.read(start, place, pages) + latency - Flash::READ_NS
            }
            Some(flash) if latency > 0 && write => flash.write(start, pages).max(start + latency),
            _ => start + latency,
        };
        let done = if flash.is_some() {
            // A request that waits for a die does not delay data that others have ready.
            *bus_free_ns = start.max(*bus_free_ns) + bus;
            (ready + bus).max(*bus_free_ns)
        } else {
            let done = ready.max(*bus_free_ns) + bus;
            *bus_free_ns = if self.page_ns[way] == 0.0 { 0 } else { done };
            done
        };
        places.push(Reverse(done));
        self.busy_ns += done - start;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nvme() -> Device {
        Device::new(&DeviceSpec::preset(Preset::Nvme))
    }

    #[test]
    fn one_request_takes_its_latency_and_its_transfer() {
        let mut d = nvme();
        assert_eq!(d.submit(1000, false, 0, 1), 1000 + 80_000 + 1365);
    }

    #[test]
    fn many_requests_are_bound_by_bandwidth() {
        let mut d = nvme();
        let last = (0..10_000).map(|i| d.submit(0, false, i * 7, 1)).max().unwrap_or(0);
        let mb_s = 10_000.0 * 4096.0 * 1000.0 / last as f64;
        assert!((2000.0..3001.0).contains(&mb_s), "{mb_s}");
    }

    #[test]
    fn a_short_device_queue_makes_requests_wait() {
        let mut spec = DeviceSpec::preset(Preset::Ssd);
        spec.depth = Some(1);
        let mut d = Device::new(&spec);
        let a = d.submit(0, false, 0, 1);
        let b = d.submit(0, false, 50, 1);
        assert!(b >= 2 * a - 10, "{a} {b}");
    }

    #[test]
    fn a_disk_is_fast_where_its_head_is() {
        let mut d = Device::new(&DeviceSpec::preset(Preset::Disk));
        let far = d.submit(0, false, 1000, 8);
        let near = d.submit(far, false, 1008, 8) - far;
        assert!(near * 10 < far, "{near} {far}");
    }

    #[test]
    fn on_pcie_a_burst_of_writes_does_not_hold_up_a_read() {
        let mut d = nvme();
        let burst = (0..1000).map(|i| d.submit(i * 500, true, i * 7, 1)).max().unwrap_or(0);
        assert!(burst > 1_000_000);
        assert_eq!(d.submit(10_000, false, 1 << 20, 1), 10_000 + 80_000 + 1365);
        let mut shared = Device::new(&DeviceSpec::preset(Preset::Ssd));
        let burst = (0..1000).map(|i| shared.submit(0, true, i * 7, 1)).max().unwrap_or(0);
        assert!(shared.submit(10_000, false, 1 << 20, 1) > burst);
    }

    fn flash() -> Device {
        Device::new(&DeviceSpec::preset(Preset::Flash))
    }

    /// Returns the pages a second of random requests, with `depth` of them at a time. `writes` of
    /// ten requests write.
    fn rate(depth: usize, writes: u64, pages: u64) -> f64 {
        let (mut d, mut random) = (flash(), ebb_mm::random::Random(7));
        let mut free = vec![0; depth];
        let n = 100_000;
        for i in 0..n {
            let (at, &now) = free.iter().enumerate().min_by_key(|&(_, t)| *t).unwrap();
            let place = u64::from(random.below(1 << 28));
            free[at] = d.submit(now, i % 10 < writes, place, pages);
        }
        (n * pages) as f64 * 1e9 / free.into_iter().min().unwrap() as f64
    }

    #[test]
    fn a_flash_drive_has_the_rates_of_its_data_sheet() {
        let reads = rate(256, 0, 1);
        assert!((500_000.0..560_000.0).contains(&reads), "{reads}");
        let alone = rate(1, 0, 1);
        assert!((11_000.0..12_000.0).contains(&alone), "{alone}");
        let written = rate(16, 10, 32) * 4096.0 / 1e6;
        assert!((1800.0..2001.0).contains(&written), "{written} MB/s");
        let (mixed, reads) = (rate(32, 3, 1), rate(32, 0, 1));
        assert!(mixed < 0.9 * reads, "{mixed} {reads}: the reads wait for dies");
    }

    #[test]
    fn a_read_waits_for_the_die_that_programs_and_no_other() {
        let mut d = flash();
        let written = d.submit(0, true, 0, 10);
        assert!(written < 100_000, "{written}: its memory takes it");
        // The first die is busy, the second is not.
        assert_eq!(d.submit(0, false, 0, 1), 660_000 + 85_000 + 1280);
        assert_eq!(flash().submit(0, false, 4, 1), 85_000 + 1280);
    }

    #[test]
    fn a_read_of_a_busy_die_does_not_hold_up_those_of_others() {
        let mut d = flash();
        d.submit(0, true, 0, 10);
        assert!(d.submit(0, false, 0, 1) > 660_000);
        assert!(d.submit(0, false, 4, 1) < 90_000);
    }

    #[test]
    fn a_full_flash_drive_moves_pages_to_write_one() {
        let mut spec = DeviceSpec::preset(Preset::Flash);
        spec.amplification = Some(5.0);
        let mut d = Device::new(&spec);
        // Two pages written come to ten pages programmed.
        d.submit(0, true, 0, 2);
        assert_eq!(d.submit(0, false, 0, 1), 660_000 + 85_000 + 1280);
    }

    #[test]
    fn settings_of_flash_drives_are_refused_where_they_would_be_ignored() {
        let spec = |kind, amplification, on_disk| DeviceSpec {
            amplification,
            on_disk,
            ..DeviceSpec::preset(kind)
        };
        let disk = spec(Preset::Flash, Some(2.2), false);
        assert_eq!(disk.check(None), Ok(()));
        assert_eq!(spec(Preset::Flash, None, true).check(Some(&disk)), Ok(()));
        for (wrong, disk, says) in [
            (spec(Preset::Nvme, Some(2.0), false), None, "amplification: expected with"),
            (spec(Preset::Flash, Some(0.5), false), None, "amplification = 0.5: expected 1"),
            (spec(Preset::Flash, Some(2.0), true), Some(&disk), "amplification: leave it out"),
            (spec(Preset::Nvme, None, true), Some(&disk), "on_disk: expected"),
            (spec(Preset::Flash, None, true), None, "on_disk: expected"),
        ] {
            let error = wrong.check(disk).unwrap_err().to_string();
            assert!(error.starts_with(says), "{error}");
        }
    }

    #[test]
    fn swap_writes_hold_up_reads_of_the_same_drive() {
        let (mut disk, mut swap, mut other) = (flash(), flash(), flash());
        swap.lie_on(&disk);
        other.submit(0, true, 0, 10);
        assert_eq!(disk.submit(0, false, 128, 1), 85_000 + 1280);
        swap.submit(0, true, 0, 10);
        assert!(disk.submit(0, false, 128, 1) > 660_000);
    }

    #[test]
    fn zero_latency_is_no_time() {
        let mut spec = DeviceSpec::preset(Preset::Nvme);
        (spec.read_us, spec.write_us) = (Some(0.0), Some(0.0));
        (spec.read_mb_s, spec.write_mb_s) = (Some(0.0), Some(0.0));
        let mut d = Device::new(&spec);
        assert_eq!((0..100).map(|i| d.submit(5, i % 2 == 0, i, 3)).max(), Some(5));
    }
}
