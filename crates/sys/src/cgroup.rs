//! Control groups: the limits of this process's group and of its ancestors, in both versions of
//! cgroupfs.

use crate::proc::read_text;
use std::path::{Path, PathBuf};

/// Memory limit of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Largest memory of the group in bytes.
    pub bytes: u64,
    /// File that contains the limit.
    pub file: PathBuf,
}

/// Returns the smallest memory limit that applies to this process. Returns None if no limit is set
/// or visible.
#[must_use]
pub fn memory_limit() -> Option<Limit> {
    let limit = |(file, text): (PathBuf, String)| Some(Limit { bytes: bytes(&text)?, file });
    Resource::Memory.limits().into_iter().filter_map(limit).min_by_key(|limit| limit.bytes)
}

/// Parses a memory limit. A value larger than any machine's memory is no limit (version 1 shows the
/// largest number).
fn bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes: &u64| bytes < 1 << 60)
}

/// Returns whether a thread may exceed the CPU time of its control group without bound. While a
/// signal is pending for it, a thread that faults inside a system call faults again and again.
/// Since Linux 6.18 the kernel throttles a thread only at the end of its system call.
#[must_use]
pub fn may_be_used_up() -> bool {
    let release = read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
    stops_at_the_end_of_calls(&release)
        && Resource::CpuTime.limits().iter().any(|(_, text)| is_quota(text))
}

fn stops_at_the_end_of_calls(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

/// Returns whether this text is a CPU time limit. Without a limit cpu.max is "max 100000" and
/// cpu.cfs_quota_us is -1.
fn is_quota(text: &str) -> bool {
    !matches!(text.split_ascii_whitespace().next(), None | Some("max" | "-1"))
}

/// Resource that a group may limit.
#[derive(Clone, Copy)]
enum Resource {
    Memory,
    CpuTime,
}

impl Resource {
    /// Returns the controller's name and the limit's file name in version 1, and the limit's file
    /// name in version 2.
    const fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Memory => ("memory", "memory.limit_in_bytes", "memory.max"),
            Self::CpuTime => ("cpu", "cpu.cfs_quota_us", "cpu.max"),
        }
    }

    /// Returns the files that limit the resource for this process, with their texts.
    fn limits(self) -> Vec<(PathBuf, String)> {
        let text = |path: &str| read_text(path).unwrap_or_default();
        let files = self.files(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        files
            .into_iter()
            .filter_map(|file| read_text(&file).ok().map(|text| (file, text)))
            .collect()
    }

    /// Returns the candidate files, from the texts of a `/proc/PID/cgroup` and a
    /// `/proc/PID/mountinfo`.
    fn files(self, groups: &str, mounts: &str) -> Vec<PathBuf> {
        mounts.lines().filter_map(|mount| self.files_of_mount(groups, mount)).flatten().collect()
    }

    fn files_of_mount(self, groups: &str, mount: &str) -> Option<Vec<PathBuf>> {
        let (controller, first, second) = self.names();
        let has = |list: &str, name: &str| list.split(',').any(|one| one == name);
        let (place, kind) = mount.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (controller, file) = match (kind.next()?, kind.nth(1)?) {
            ("cgroup2", _) => ("", second),
            ("cgroup", options) if has(options, controller) => (controller, first),
            _ => return None,
        };
        let mut place = place.split(' ').skip(3).map(|path| path.replace("\\040", " "));
        let (root, top) = (place.next()?, PathBuf::from(place.next()?));
        let group = groups.lines().find_map(|line| {
            let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
            has(controllers, controller).then_some(group)
        })?;
        // Nothing beyond the root of the mount is visible. The group at the root is then the
        // nearest one.
        let below = Path::new(group).strip_prefix(&root).unwrap_or(Path::new(""));
        let own = top.join(below);
        let up = own.ancestors().take_while(|folder| folder.starts_with(&top));
        Some(up.map(|folder| folder.join(file)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(resource: Resource, groups: &str, mounts: &str) -> Vec<String> {
        resource.files(groups, mounts).iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn every_group_on_the_way_up_is_looked_at() {
        let mounts = "24 31 0:22 / /proc rw,nosuid - proc proc rw\n\
            35 25 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            files(Resource::Memory, "0::/user.slice/a.scope\n", mounts),
            [
                "/sys/fs/cgroup/user.slice/a.scope/memory.max",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
        let of_time = files(Resource::CpuTime, "0::/user.slice/a.scope\n", mounts);
        assert_eq!(of_time[0], "/sys/fs/cgroup/user.slice/a.scope/cpu.max");
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_each_controller() {
        let groups =
            "12:cpu,cpuacct:/docker/af\n10:cpuset:/b\n9:memory:/docker/af\n0::/docker/af\n";
        // In a container the container's own group is the root of the mount.
        let mounts = "700 690 0:33 /docker/af /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n\
            702 690 0:35 /b /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n\
            701 690 0:34 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(
            files(Resource::Memory, groups, mounts),
            [
                "/sys/fs/cgroup/memory/docker/af/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes"
            ]
        );
        assert_eq!(
            files(Resource::CpuTime, groups, mounts),
            ["/sys/fs/cgroup/cpu/cpu.cfs_quota_us"]
        );
    }

    #[test]
    fn only_the_mount_point_is_read_of_a_cgroup_outside_the_namespace() {
        let mounts = "35 25 0:30 /../.. /sys/fs/c\\040group rw - cgroup2 none rw\n";
        let files = |groups, mounts| files(Resource::Memory, groups, mounts);
        assert_eq!(files("0::/../x\n", mounts), ["/sys/fs/c group/memory.max"]);
        assert_eq!(files("0::/x\n", ""), [""; 0]);
        assert_eq!(files("nonsense\n", mounts), [""; 0]);
    }

    #[test]
    fn limits_of_memory_are_parsed() {
        assert_eq!(bytes("max\n"), None);
        assert_eq!(bytes("9223372036854771712\n"), None);
        assert_eq!(bytes("1073741824\n"), Some(1 << 30));
    }

    #[test]
    fn limits_of_cpu_time_are_recognized() {
        assert!(is_quota("20000 100000\n") && is_quota("20000\n"));
        assert!(!is_quota("max 100000\n") && !is_quota("-1\n") && !is_quota(""));
        assert!(stops_at_the_end_of_calls("6.18.44-fc") && stops_at_the_end_of_calls("7.0.0"));
        assert!(!stops_at_the_end_of_calls("6.17.9") && !stops_at_the_end_of_calls(""));
    }
}
