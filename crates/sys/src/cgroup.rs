//! Control groups: whether one limits the CPU time of this process.

use crate::proc::read_text;
use std::path::{Path, PathBuf};

/// Whether a thread may use up the CPU time of its control group for ever: one that asks for a page in the middle of a system
/// call asks again and again while a signal is pending for it, and since Linux 6.18 a group that has used up its time stops a
/// thread at the end of its call only.
#[must_use]
pub fn may_be_used_up() -> bool {
    let release = read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
    stops_at_the_end_of_calls(&release) && is_limited()
}

fn stops_at_the_end_of_calls(release: &str) -> bool {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

fn is_limited() -> bool {
    let text = |path: &str| read_text(path).unwrap_or_default();
    let files = limits(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
    files.iter().any(|file| read_text(file).is_ok_and(|limit| is_limit(&limit)))
}

/// cpu.max is "max 100000" without a limit, cpu.cfs_quota_us -1.
fn is_limit(text: &str) -> bool {
    !matches!(text.split_ascii_whitespace().next(), None | Some("max" | "-1"))
}

/// The files that say so, of the groups of a process and of those above them, by its /proc/PID/cgroup and mountinfo.
fn limits(groups: &str, mounts: &str) -> Vec<PathBuf> {
    mounts.lines().filter_map(|mount| limits_in(groups, mount)).flatten().collect()
}

fn limits_in(groups: &str, mount: &str) -> Option<Vec<PathBuf>> {
    let (place, kind) = mount.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (root, at) = (place.next()?, Path::new(place.next()?));
    let mut kind = kind.split(' ');
    let (file, controller) = match (kind.next()?, kind.nth(1)?) {
        ("cgroup2", _) => ("cpu.max", ""),
        ("cgroup", options) if options.split(',').any(|option| option == "cpu") => {
            ("cpu.cfs_quota_us", "cpu")
        }
        _ => return None,
    };
    let group = groups.lines().find_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(group)
    })?;
    let within = group.strip_prefix(root).unwrap_or("").trim_start_matches('/');
    let folder = at.join(within);
    let up = folder.ancestors().take_while(|folder| folder.starts_with(at));
    Some(up.map(|folder| folder.join(file)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(groups: &str, mounts: &str) -> Vec<String> {
        limits(groups, mounts).iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn the_group_and_those_above_it_are_asked() {
        let unified =
            "30 23 0:27 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(
            names("0::/user.slice/one.scope\n", unified),
            [
                "/sys/fs/cgroup/user.slice/one.scope/cpu.max",
                "/sys/fs/cgroup/user.slice/cpu.max",
                "/sys/fs/cgroup/cpu.max"
            ]
        );
        let old = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                   33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
        assert_eq!(
            names("2:cpuset:/b\n1:cpu,cpuacct:/a\n0::/\n", old),
            ["/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us"]
        );
        // A container sees its own group as the root of the mount.
        let own = "9 8 0:27 /docker/12ab /sys/fs/cgroup ro - cgroup2 cgroup rw";
        assert_eq!(names("0::/docker/12ab\n", own), ["/sys/fs/cgroup/cpu.max"]);
        assert_eq!(names("0::/\n", own), ["/sys/fs/cgroup/cpu.max"]);
        assert!(names("", unified).is_empty() && names("0::/a", "").is_empty());
    }

    #[test]
    fn a_limit_is_a_number() {
        assert!(is_limit("20000 100000\n") && is_limit("20000\n"));
        assert!(!is_limit("max 100000\n") && !is_limit("-1\n") && !is_limit(""));
        assert!(stops_at_the_end_of_calls("6.18.44-fc") && stops_at_the_end_of_calls("7.0.0"));
        assert!(!stops_at_the_end_of_calls("6.17.9") && !stops_at_the_end_of_calls(""));
    }
}
