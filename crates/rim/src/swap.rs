//! Whether the memory of this process may be written to a disk, and what keeps it from that: pages that are
//! locked, a cgroup that does not swap, or a machine that has no swap.
//!
//! Owns the order in which these are tried, and what is said of it. Never: a failure that stops the program;
//! a plain user may lock little. Invariant: what is said holds for payloads, not for hibernation, which
//! writes all memory there is. Called by `cheetah donate`, `cheetah doctor` and the daemon of an attachment.
//! Tests: below, and `arena`.

use crate::arena::Arena;
use crate::mapping;
use rustix::mm::MlockAllFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;
use std::path::Path;

/// What holds for the memory that carries payloads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    Locked,
    /// By its cgroup, in which it is alone.
    Unswapped,
    /// Nothing was needed, as far as this machine is now.
    NoSwap,
    /// It may get to these.
    Exposed(Vec<String>),
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kept::Locked => f.write_str("memory: locked, never written to swap"),
            Kept::Unswapped => f.write_str("memory: kept out of swap by its cgroup"),
            Kept::NoSwap => f.write_str("memory: this machine has no swap on a disk"),
            Kept::Exposed(devices) => write!(
                f,
                "memory: MAY BE WRITTEN TO SWAP on {}: let this user lock memory (`ulimit -Hl`, LimitMEMLOCK=), run it in a \
                 cgroup of its own that it may write to, or turn swap off",
                devices.join(", ")
            ),
        }
    }
}

/// Keeps what a donor lends off disks, as well as it may.
#[must_use]
pub fn keep_arena(arena: &Arena) -> Kept {
    // A kernel takes longer to free pages that are locked, and a machine's owner may be waiting for them.
    if swap_devices(Path::new("/")).is_empty() {
        return Kept::NoSwap;
    }
    raise_limit();
    // All else that it has as well, where no later mapping can fail by that.
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    let locked = (may_lock_any() && rustix::mm::mlockall(all).is_ok()) || arena.lock();
    kept(locked)
}

/// What became of the buffers of a client, which are locked as they are taken.
#[must_use]
pub fn of_buffers() -> Kept {
    kept(mapping::all_are_locked())
}

fn kept(locked: bool) -> Kept {
    if locked {
        return Kept::Locked;
    }
    if forbid_swap_in_cgroup(Path::new("/")) {
        return Kept::Unswapped;
    }
    match swap_devices(Path::new("/")) {
        devices if devices.is_empty() => Kept::NoSwap,
        devices => Kept::Exposed(devices),
    }
}

/// As much locked memory as this user may have at all.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Memlock);
    if limit.current != limit.maximum {
        // What is refused leaves the limit as it is.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
}

/// Whether locking has no limit here: a limit below what is still to come would turn later mappings into
/// failures.
#[must_use]
pub fn may_lock_any() -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let capable = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        bits.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0)
    };
    getrlimit(Resource::Memlock).current.is_none() || capable()
}

/// In a cgroup that it shares this would be a decision about others.
fn forbid_swap_in_cgroup(root: &Path) -> bool {
    let memberships = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let Some(path) = memberships.lines().find_map(|line| line.strip_prefix("0::/")) else { return false };
    let own = root.join("sys/fs/cgroup").join(path);
    let members = std::fs::read_to_string(own.join("cgroup.procs")).unwrap_or_default();
    let alone = members.split_whitespace().eq([std::process::id().to_string()]);
    alone && std::fs::write(own.join("memory.swap.max"), "0").is_ok()
}

/// Where this machine swaps to, but for compressed memory, which is no disk unless it has one behind it.
#[must_use]
pub fn swap_devices(root: &Path) -> Vec<String> {
    let swaps = std::fs::read_to_string(root.join("proc/swaps")).unwrap_or_default();
    let device = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let is_disk = |device: &String| {
        let zram = device.strip_prefix("/dev/").filter(|name| name.starts_with("zram"));
        let behind = |name| std::fs::read_to_string(root.join("sys/block").join(name).join("backing_dev"));
        // A kernel without such a file cannot have one.
        zram.is_none_or(|name| behind(name).is_ok_and(|behind| behind.trim() != "none"))
    };
    swaps.lines().skip(1).filter_map(device).filter(is_disk).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = std::env::temp_dir().join(format!("cheetah-swap-{}-{name}", std::process::id()));
            let _ = std::fs::remove_dir_all(&root);
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Root(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const HEAD: &str = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";

    #[test]
    fn swap_is_what_reaches_a_disk() {
        let none = Root::new("none", &[("proc/swaps", HEAD)]);
        assert_eq!(swap_devices(&none.0), [""; 0]);
        assert_eq!(swap_devices(Path::new("/nowhere")), [""; 0]);
        let swaps = format!(
            "{HEAD}/dev/zram0 partition 1 0 100\n/dev/zram1 partition 1 0 99\n/dev/dm-1 partition 8 0 -2\n/swap file 1 0 -3\n"
        );
        let files = [
            ("proc/swaps", swaps.as_str()),
            ("sys/block/zram0/backing_dev", "none\n"),
            ("sys/block/zram1/backing_dev", "/dev/sda3\n"),
        ];
        let some = Root::new("some", &files);
        assert_eq!(swap_devices(&some.0), ["/dev/zram1", "/dev/dm-1", "/swap"]);
        let said = Kept::Exposed(swap_devices(&some.0)).to_string();
        assert!(said.contains("/dev/dm-1, /swap") && said.contains("ulimit"), "{said}");
    }

    #[test]
    fn a_cgroup_is_changed_only_where_nobody_else_is_in_it() {
        let own = std::process::id().to_string();
        let with = |name, members: &str| {
            let files = [
                ("proc/self/cgroup", "0::/user/donor.service\n"),
                ("sys/fs/cgroup/user/donor.service/cgroup.procs", members),
                ("sys/fs/cgroup/user/donor.service/memory.swap.max", "max\n"),
            ];
            let root = Root::new(name, &files);
            let limit = root.0.join("sys/fs/cgroup/user/donor.service/memory.swap.max");
            (forbid_swap_in_cgroup(&root.0), std::fs::read_to_string(limit).unwrap())
        };
        assert_eq!(with("alone", &format!("{own}\n")), (true, "0".to_owned()));
        assert_eq!(with("shared", &format!("{own}\n1\n")), (false, "max\n".to_owned()));
        assert!(!forbid_swap_in_cgroup(Path::new("/nowhere")));
    }
}
