//! The checks of `ebb doctor`. A failed check says what Ebb cannot do, and how to get the feature.

use crate::check::Check;
use crate::folder::Folder;
use ebb_pager::FEATURES;
use ebb_sys::uffd::feature;
use ebb_sys::{cgroup, probe, proc, process};
use rustix::process::Resource;
use std::io;
use std::process::Command;

const DOCKER: &str =
    "in a container: docker run --cap-add SYS_PTRACE --device /dev/userfaultfd ...";

/// Runs all checks.
pub fn all() -> Vec<Check> {
    let mut checks = vec![architecture(), glibc(), agent()];
    checks.extend([userfaultfd(), kernel_faults(), capability(), granted()]);
    checks.extend(features());
    checks.extend([page_scan(), yama(), ring()]);
    checks.extend([descriptors(), address_space(), mappings(), overcommit()]);
    checks.extend([memory_limit(), cpu_limit(), kernel_swap(), huge_pages(), wake_ups()]);
    checks
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Returns the path of this program, quoted for a shell if needed.
fn quoted_own_path() -> String {
    let Ok(path) = std::env::current_exe() else { return "$(which ebb)".into() };
    let path = path.display().to_string();
    let plain = |char: char| char.is_ascii_alphanumeric() || "/._-+".contains(char);
    if path.chars().all(plain) { path } else { format!("'{}'", path.replace('\'', "'\\''")) }
}

fn architecture() -> Check {
    let machine = std::env::consts::ARCH;
    if machine == "x86_64" {
        return Check::found("architecture", true, machine);
    }
    let consequence = "the agent runs on x86-64 only";
    Check::missing("architecture", true, machine, consequence, "").or("use an x86-64 machine")
}

fn glibc() -> Check {
    const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
    let name = "glibc";
    if std::path::Path::new(LOADER).exists() {
        return Check::found(name, true, LOADER);
    }
    let consequence = "the agent works only in programs of glibc and of Go";
    Check::missing(name, true, format!("no {LOADER}"), consequence, "")
        .or("use a glibc distribution (Debian, Fedora, ...), or docker run debian:stable ...")
}

/// Loads the agent into a program, as a run does, and reads the error messages of the loader.
fn agent() -> Check {
    let name = "agent can be loaded";
    let consequence = "no program can load the agent";
    let missing = |detail: String| {
        Check::missing(name, true, detail, consequence, "")
            .or("XDG_RUNTIME_DIR=/a/folder/mounted/without/noexec ebb run ...")
    };
    let folder = match Folder::create(std::process::id()) {
        Ok(folder) => folder,
        Err(error) => return missing(format!("cannot make a folder: {error}")),
    };
    let mut command = Command::new("/bin/true");
    command.env("LD_PRELOAD", folder.agent_to_preload());
    command.env_remove(ebb_agent::protocol::ENV_SOCKET);
    match command.output() {
        Ok(output) if output.status.success() && output.stderr.is_empty() => {
            let agent = folder.agent();
            let place = agent.parent().and_then(|path| path.parent()).unwrap_or(&agent);
            Check::found(name, true, format!("from {}", place.display()))
        }
        Ok(output) => missing(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => missing(format!("/bin/true: {error}")),
    }
}

fn userfaultfd() -> Check {
    let name = "userfaultfd for programs";
    let sysctl = read("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_else(|| "absent".into());
    let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
    let device = match &device {
        Ok(_) => "may be opened".to_owned(),
        Err(error) => error.kind().to_string(),
    };
    let ways = format!(
        "CAP_SYS_PTRACE in programs: {}; vm.unprivileged_userfaultfd={sysctl}; \
         /dev/userfaultfd: {device}",
        if probe::program_may_trace() { "yes" } else { "no" },
    );
    let consequence = "the pager cannot serve page faults";
    match probe::userfaultfd_of_program() {
        Ok(_) => Check::found(name, true, ways),
        Err(error) => {
            let (fix, otherwise) = ways_to_userfaultfd();
            let detail = format!("{error} ({ways})");
            Check::missing(name, true, detail, consequence, fix).or(otherwise)
        }
    }
}

const ACCESS_FOR_ALL: &str = "sudo sysctl -w vm.unprivileged_userfaultfd=1";

/// Returns the ways to let this user create a userfaultfd: for this user alone if possible, else
/// for all users.
fn ways_to_userfaultfd() -> (&'static str, String) {
    const ACCESS: &str = "sudo setfacl -m u:$USER:rw /dev/userfaultfd";
    let device = std::path::Path::new("/dev/userfaultfd").exists();
    let setfacl = ["/usr/bin/setfacl", "/bin/setfacl"].map(std::path::Path::new);
    if device && setfacl.iter().any(|path| path.exists()) {
        (ACCESS, format!("for all users: {ACCESS_FOR_ALL}; or run as root; {DOCKER}"))
    } else {
        (ACCESS_FOR_ALL, format!("run as root; {DOCKER}"))
    }
}

fn kernel_faults() -> Check {
    let consequence = "system calls on missing pages would fail in the program";
    let (fix, otherwise) = ways_to_userfaultfd();
    let result = probe::serve_the_kernel();
    tried("faults inside system calls", result, consequence, fix, true).or(otherwise)
}

fn tried(
    name: &'static str,
    result: io::Result<()>,
    consequence: &str,
    fix: &str,
    required: bool,
) -> Check {
    match result {
        Ok(()) => Check::found(name, required, "tried: works"),
        Err(error) => Check::missing(name, required, error.to_string(), consequence, fix),
    }
}

/// Returns whether CAP_SYS_PTRACE is in this process's permitted set, effective or not.
fn may_trace() -> bool {
    process::capabilities("CapPrm") & (1 << process::CAP_SYS_PTRACE) != 0
}

/// Returns the command that gives this program CAP_SYS_PTRACE, and other ways to get it.
fn ways_to_trace() -> (String, String) {
    (
        format!("sudo setcap cap_sys_ptrace+ep {}", quoted_own_path()),
        format!("run as root; {DOCKER}"),
    )
}

/// Returns why the kernel ignores a capability of this program's file, if it does.
fn ignored_capabilities() -> Option<&'static str> {
    let no_new = read("/proc/self/status")
        .is_some_and(|text| text.lines().any(|line| line == "NoNewPrivs:\t1"));
    let path = std::env::current_exe().ok()?;
    let flags = rustix::fs::statvfs(&path).ok()?.f_flag;
    if no_new {
        Some("not held; this process may not gain rights (no_new_privs)")
    } else if flags.contains(rustix::fs::StatVfsMountFlags::NOSUID) {
        Some("not held; this program lies on a file system mounted nosuid")
    } else {
        None
    }
}

fn capability() -> Check {
    let name = "CAP_SYS_PTRACE";
    if may_trace() {
        return Check::found(name, true, "held");
    }
    let consequence = "the pager cannot follow forks: a child would read zeros";
    let (fix, otherwise) = ways_to_trace();
    match ignored_capabilities() {
        Some(why) => Check::missing(name, true, why, consequence, "").or(format!(
            "first copy ebb to a file system without nosuid, or start it without no_new_privs; then {fix}; \
             or {otherwise}"
        )),
        None => Check::missing(name, true, "not held", consequence, fix).or(otherwise),
    }
}

/// Checks all features of a run in one handshake, as the pager requests them.
fn granted() -> Check {
    let consequence = "the pager cannot serve a program";
    let fix = "";
    tried("handshake of a run", probe::features_granted(FEATURES), consequence, fix, true)
        .or("follow the lines on CAP_SYS_PTRACE and on the features below")
}

fn features() -> Vec<Check> {
    const KERNEL: &str =
        "boot a newer kernel (apt-get install -t bookworm-backports linux-image-amd64)";
    let known = probe::features_known();
    let offered = |name, bit: u64, required, since: &str, consequence: &str| match &known {
        Ok(known) if known & bit != 0 => Check::found(name, required, "offered"),
        Ok(_) => {
            let detail = format!("not offered (Linux {since} has it)");
            Check::missing(name, required, detail, consequence, "").or(KERNEL)
        }
        // This process is in a sandbox, so it cannot see the kernel's features.
        Err(error) => {
            let detail = format!("cannot be queried: {error}");
            Check::missing(name, required, detail, consequence, "").or(DOCKER)
        }
    };
    let kernel_or_sandbox = if known.is_ok() { KERNEL } else { DOCKER };
    let move_pages = tried(
        "UFFDIO_MOVE",
        probe::move_a_page(feature::MOVE),
        "pages cannot leave a program (Linux 6.8 has it)",
        "",
        true,
    )
    .or(kernel_or_sandbox);
    let poison = tried(
        "UFFDIO_POISON",
        probe::poison_a_page(feature::POISON),
        "the pager cannot make an access to a lost page fatal (Linux 6.6 has it)",
        "",
        true,
    )
    .or(kernel_or_sandbox);
    vec![
        move_pages,
        poison,
        offered("PAGEFAULT_FLAG_WP", feature::FLAG_WP, true, "5.7", "the pager misses writes"),
        offered("EVENT_FORK", feature::EVENT_FORK, true, "4.11", "the pager misses forks"),
        offered("EVENT_REMAP", feature::EVENT_REMAP, true, "4.11", "the pager misses mremap"),
        offered("EVENT_REMOVE", feature::EVENT_REMOVE, true, "4.11", "the pager misses discards"),
        offered("EVENT_UNMAP", feature::EVENT_UNMAP, true, "4.11", "the pager misses munmap"),
        offered("THREAD_ID", feature::THREAD_ID, true, "4.14", "the faulting thread is unknown"),
    ]
}

fn page_scan() -> Check {
    tried("PAGEMAP_SCAN", probe::scan_pages(), "the pager cannot find resident pages", "", true)
        .or("boot Linux 6.7 or later")
}

/// Checks that the pager may read other processes. The pager reads standby pages of programs that
/// are not its children.
fn yama() -> Check {
    let name = "reading other processes";
    let scope = read("/proc/sys/kernel/yama/ptrace_scope");
    let scope_text = match &scope {
        Some(scope) => format!("kernel.yama.ptrace_scope={scope}"),
        None => "no Yama".to_owned(),
    };
    let traces = may_trace();
    let allowed = match scope.as_deref() {
        None | Some("0") => true,
        Some("1" | "2") => traces,
        Some(_) => false,
    };
    let (fix, otherwise) = if scope.as_deref() == Some("3") {
        let boot = "boot with kernel.yama.ptrace_scope below 3 (3 cannot be lowered): edit \
                    /etc/sysctl.d/*";
        (String::new(), boot.to_owned())
    } else {
        ways_to_trace()
    };
    let consequence = "the pager cannot read pages on their way to the store";
    let detail = match probe::read_a_child() {
        Ok(()) if allowed => {
            return Check::found(name, true, format!("tried: works ({scope_text})"));
        }
        Ok(()) => scope_text,
        Err(error) => format!("{error} ({scope_text})"),
    };
    Check::missing(name, true, detail, consequence, fix).or(otherwise)
}

fn ring() -> Check {
    let fix = "sudo sysctl -w kernel.io_uring_disabled=0";
    let consequence = "the file tier reads with threads instead";
    tried("io_uring", probe::set_up_ring(), consequence, fix, false)
        .or("in a container: docker run --security-opt seccomp=unconfined ...")
}

fn shown(limit: Option<u64>) -> String {
    limit.map_or_else(|| "unlimited".into(), |limit| limit.to_string())
}

fn descriptors() -> Check {
    // Each process of a tree costs the pager about four descriptors.
    const ENOUGH: u64 = 4096;
    let (soft, hard) = probe::limit(Resource::Nofile);
    let detail = format!("soft {}, hard {}", shown(soft), shown(hard));
    if hard.is_none_or(|hard| hard >= ENOUGH) {
        return Check::found("limit of descriptors", false, detail);
    }
    let consequence = "the pager cannot serve trees of many processes (four descriptors each)";
    let fix = "sudo prlimit --pid $$ --nofile=65536:65536";
    Check::missing("limit of descriptors", false, detail, consequence, fix)
}

fn address_space() -> Check {
    let name = "no limit of address space";
    for (resource, option) in [(Resource::As, "-v"), (Resource::Data, "-d")] {
        let (soft, hard) = probe::limit(resource);
        if soft.is_some() {
            let detail =
                format!("ulimit {option}: soft {}, hard {} bytes", shown(soft), shown(hard));
            let consequence = "the pool (address space as large as --memory-max) counts in it";
            return Check::missing(
                name,
                false,
                detail,
                consequence,
                format!("ulimit {option} unlimited"),
            );
        }
    }
    Check::found(name, false, "ulimit -v, ulimit -d: unlimited")
}

fn mappings() -> Check {
    let name = "number of mappings";
    let count = read("/proc/sys/vm/max_map_count").and_then(|text| text.parse::<u64>().ok());
    match count {
        Some(count) if count < 65530 => Check::missing(
            name,
            false,
            format!("vm.max_map_count={count}"),
            "managed areas merge less, so a program needs more mappings",
            "sudo sysctl -w vm.max_map_count=262144",
        ),
        Some(count) => Check::found(name, false, format!("vm.max_map_count={count}")),
        None => Check::found(name, false, "vm.max_map_count cannot be read"),
    }
}

fn overcommit() -> Check {
    let name = "overcommit";
    let mode = read("/proc/sys/vm/overcommit_memory").unwrap_or_else(|| "?".into());
    if mode == "2" {
        let consequence = "the pool of each process counts as committed memory";
        let fix = "sudo sysctl -w vm.overcommit_memory=0";
        return Check::missing(name, false, "vm.overcommit_memory=2", consequence, fix);
    }
    Check::found(name, false, format!("vm.overcommit_memory={mode}"))
}

fn memory_limit() -> Check {
    let detail = cgroup::memory_limit().map_or_else(
        || "none: percentages are of the machine's memory".to_owned(),
        |limit| {
            let file = limit.file.display();
            format!(
                "{} MiB ({file}): percentages are of that, if it is less than the machine has",
                limit.bytes >> 20
            )
        },
    );
    Check::found("control group's memory limit", false, detail)
}

fn cpu_limit() -> Check {
    let name = "control group's limit of CPU time";
    if !cgroup::may_be_used_up() {
        return Check::found(name, false, "none, or one that throttles threads in system calls");
    }
    let consequence = "a signal for a thread that waits for a page in a system call can use up the CPU time of \
                       the group for ever; the run then hangs";
    Check::missing(name, false, "cpu.max is set, on Linux 6.18 or newer", consequence, "")
        .or("set no limit, or one of more CPUs than the program has threads")
}

fn kernel_swap() -> Check {
    let bytes = proc::meminfo_kb("SwapTotal").unwrap_or(0) * 1024;
    if bytes == 0 {
        return Check::found("no kernel swap", false, "none: Ebb alone decides what is stored");
    }
    let detail = format!("{} MiB of swap are on", bytes >> 20);
    let consequence =
        "harmless, but the kernel may store pages too, which the report does not count";
    Check::missing("no kernel swap", false, detail, consequence, "sudo swapoff -a")
}

fn huge_pages() -> Check {
    let text = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let mode = text.as_deref().and_then(|text| text.split(['[', ']']).nth(1)).unwrap_or("absent");
    Check::found(
        "transparent huge pages",
        false,
        format!("{mode}; Ebb disables them for a program once memory is short"),
    )
}

/// Checks how a virtual machine's idle CPUs wait. This decides the cost of the two wake-ups of each
/// fault.
fn wake_ups() -> Check {
    const POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";
    let name = "idle CPUs wake quickly";
    let driver = read("/sys/devices/system/cpu/cpuidle/current_driver").unwrap_or_default();
    let poll: Option<u64> = read(POLL).and_then(|text| text.parse().ok());
    match poll {
        Some(0) if driver == "haltpoll" => {
            let detail = "a virtual machine whose idle CPUs halt at once (guest_halt_poll_ns is 0)";
            let consequence = "a wake-up from CPU to CPU may take tens of microseconds, and a fault \
                               needs two; Ebb avoids them only for programs with one faulting thread";
            let fix = format!("echo 200000 | sudo tee {POLL}");
            Check::missing(name, false, detail, consequence, &fix)
        }
        Some(ns) if driver == "haltpoll" => {
            Check::found(name, false, format!("they poll for {ns} ns first"))
        }
        _ => Check::found(name, false, "as the hardware does"),
    }
}
