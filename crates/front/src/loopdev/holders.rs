//! Who uses a loop device: mounts, device mappers, swap-like holders and processes that have it open.
//!
//! Owns: looking. Never: ends or unmounts anything. Called by `loopdev::detach` for its error. Tests: below.

use crate::mountinfo::{self, MountEntry};
use std::path::Path;

/// The major number of loop devices.
const LOOP_MAJOR: u32 = 7;
/// Holders named in an error; more would hide what to do.
const NAMED_MAX: usize = 8;

/// Sentences like `mounted at /mnt` or `open in process 12 (fsck)`. Empty: nobody that this process can see.
pub(super) fn of(number: u32) -> Vec<String> {
    let mut holders = mounts(&mountinfo::read().unwrap_or_default(), number);
    let stacked = format!("/sys/block/loop{number}/holders");
    for entry in std::fs::read_dir(stacked).into_iter().flatten().flatten() {
        holders.push(format!("part of /dev/{}", entry.file_name().to_string_lossy()));
    }
    let device = format!("/dev/loop{number}");
    for other in super::standing_on(Path::new(&device)) {
        holders.push(format!("under {}", other.display()));
    }
    holders.extend(openers(number));
    holders.truncate(NAMED_MAX);
    holders
}

pub(super) fn mounts(entries: &[MountEntry], number: u32) -> Vec<String> {
    let device = format!("/dev/loop{number}");
    let partition = format!("/dev/loop{number}p");
    let is_on = |entry: &&MountEntry| {
        let source = entry.source.to_string_lossy();
        // btrfs mounts have a device number of their own; the source names the device.
        (entry.major == LOOP_MAJOR && entry.minor == number)
            || source == device
            || source.strip_prefix(&partition).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()))
    };
    entries.iter().filter(is_on).map(|entry| format!("mounted at {}", entry.point.display())).collect()
}

fn openers(number: u32) -> Vec<String> {
    let device = format!("/dev/loop{number}");
    let own = std::process::id().to_string();
    let mut openers = Vec::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = process.file_name();
        let Some(pid) = name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else { continue };
        if pid == own {
            continue;
        }
        let descriptors = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let has_it_open = |path: &Path| std::fs::read_link(path).is_ok_and(|to| to == Path::new(&device));
        if descriptors.into_iter().any(|descriptor| has_it_open(&descriptor.path())) {
            let command = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            openers.push(format!("open in process {pid} ({})", command.trim()));
        }
    }
    openers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_the_device_and_its_partitions_are_found_and_no_others() {
        let entries = mountinfo::parse(
            b"1 0 7:3 / /a rw - ext4 /dev/loop3 rw\n\
              2 0 0:50 /sub /b rw - btrfs /dev/loop3 rw\n\
              3 0 259:1 / /c rw - vfat /dev/loop3p1 rw\n\
              4 0 7:30 / /d rw - ext4 /dev/loop30 rw\n\
              5 0 0:3 / /e rw - tmpfs loop3 rw\n",
        );
        assert_eq!(mounts(&entries, 3), ["mounted at /a", "mounted at /b", "mounted at /c"]);
        assert_eq!(mounts(&entries, 30), ["mounted at /d"]);
        assert!(mounts(&entries, 4).is_empty());
    }
}
