//! What control groups allow: the least limit of memory on the way from this process's group to the root
//! of what is mounted here, in both versions of their file system.

use std::path::{Path, PathBuf};

/// A limit of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    pub bytes: u64,
    /// The file that says so.
    pub file: PathBuf,
}

/// The limit that binds this process; None if none does or none can be seen.
pub fn memory_limit() -> Option<Limit> {
    let read = |name: &str| std::fs::read_to_string(Path::new("/proc/self").join(name)).ok();
    let files = limit_files(&read("cgroup")?, &read("mountinfo")?);
    let limit = |file: PathBuf| {
        let bytes = parse_limit(&std::fs::read_to_string(&file).ok()?)?;
        Some(Limit { bytes, file })
    };
    files.into_iter().filter_map(limit).min_by_key(|limit| limit.bytes)
}

/// The text of such a file; what no machine has is no limit (version 1 shows the largest number).
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes: &u64| bytes < 1 << 60)
}

/// The files to look at, from a `/proc/PID/cgroup` and a `/proc/PID/mountinfo`.
fn limit_files(groups: &str, mounts: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let is_second = controllers.is_empty();
        if !is_second && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        let name = if is_second { "memory.max" } else { "memory.limit_in_bytes" };
        for (root, place) in mounts.lines().filter_map(|line| mount(line, is_second)) {
            // Beyond the root of what is mounted nothing can be seen: its own group is the nearest.
            let below = Path::new(group).strip_prefix(&root).unwrap_or(Path::new(""));
            let own = place.join(below);
            let groups = own.ancestors().take_while(|folder| folder.starts_with(&place));
            files.extend(groups.map(|folder| folder.join(name)));
        }
    }
    files
}

/// Root and place of a mounted hierarchy, if this line of a mountinfo is of the one looked for.
fn mount(line: &str, is_second: bool) -> Option<(PathBuf, PathBuf)> {
    let (fields, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let matches = match kind.next()? {
        "cgroup2" => is_second,
        "cgroup" => !is_second && kind.nth(1)?.split(',').any(|option| option == "memory"),
        _ => false,
    };
    let mut fields =
        fields.split(' ').skip(3).map(|field| PathBuf::from(field.replace("\\040", " ")));
    matches.then_some((fields.next()?, fields.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(groups: &str, mounts: &str) -> Vec<String> {
        limit_files(groups, mounts).iter().map(|file| file.display().to_string()).collect()
    }

    #[test]
    fn every_group_on_the_way_up_is_looked_at() {
        let mounts = "24 31 0:22 / /proc rw,nosuid - proc proc rw\n\
            35 25 0:30 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            files("0::/user.slice/a.scope\n", mounts),
            [
                "/sys/fs/cgroup/user.slice/a.scope/memory.max",
                "/sys/fs/cgroup/user.slice/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let groups = "12:cpu,cpuacct:/docker/af\n9:memory:/docker/af\n0::/\n";
        // In a container its own group is the root of what is mounted.
        let mounts = "700 690 0:33 /docker/af /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n\
            701 690 0:34 /docker/af /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        assert_eq!(files(groups, mounts), ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]);
    }

    #[test]
    fn a_group_outside_of_what_is_mounted() {
        let mounts = "35 25 0:30 /../.. /sys/fs/c\\040group rw - cgroup2 none rw\n";
        assert_eq!(files("0::/../x\n", mounts), ["/sys/fs/c group/memory.max"]);
        assert_eq!(files("0::/x\n", ""), [""; 0]);
        assert_eq!(files("nonsense\n", mounts), [""; 0]);
    }

    #[test]
    fn what_is_no_limit() {
        assert_eq!(parse_limit("max\n"), None);
        assert_eq!(parse_limit("9223372036854771712\n"), None);
        assert_eq!(parse_limit("1073741824\n"), Some(1 << 30));
    }
}
