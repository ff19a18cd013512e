//! Which disks are written through a file system that is mounted.
//!
//! Owns: reading /proc/self/mountinfo and, of what stands on a disk (partitions, RAID, LVM, LUKS), /sys.
//! Never: what is done about it. Of a machine where neither can be read nothing is known, and nothing said.
//! Called by `local`. Tests: below, `lab/tests/remote.rs`.

use rustix::fs::{major, minor};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Devices on devices: more are a loop.
const DEVICES_MAX: usize = 4096;

/// What is mounted for writing of a disk or of what stands on it, in words.
pub(crate) fn written_through(device: u64) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let devices = standing_on(format!("{}:{}", major(device), minor(device)));
    let named = |path: &str| {
        let kind = fs::metadata(path).ok().filter(|kind| kind.file_type().is_block_device())?;
        Some(format!("{}:{}", major(kind.rdev()), minor(kind.rdev())))
    };
    mounts.lines().find_map(|line| mounted(line, &devices, &named))
}

/// A disk, its partitions and what holds them, as `MAJOR:MINOR`.
fn standing_on(device: String) -> BTreeSet<String> {
    let (mut found, mut next) = (BTreeSet::new(), vec![device]);
    while let Some(device) = next.pop().filter(|_| found.len() < DEVICES_MAX) {
        let at = Path::new("/sys/dev/block").join(&device);
        if !found.insert(device) {
            continue;
        }
        for directory in [at.clone(), at.join("holders")] {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            // Partitions are directories of their disk, and holders links to devices: both say their number.
            let numbers = entries.filter_map(|entry| fs::read_to_string(entry.path().join("dev")).ok());
            next.extend(numbers.map(|number| number.trim().to_owned()));
        }
    }
    found
}

/// What a line of mountinfo says of these devices, where that is writing.
fn mounted(
    line: &str,
    devices: &BTreeSet<String>,
    named: &impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(2);
    let (device, place) = (mount.next()?, mount.nth(1)?);
    let mut system = system.split(' ').skip(1);
    let (from, options) = (system.next()?, system.next()?);
    // btrfs has numbers of its own, and names its device.
    let is_one = devices.contains(device) || named(from).is_some_and(|device| devices.contains(&device));
    let writes = options.split(',').any(|option| option == "rw");
    (is_one && writes).then(|| format!("{from} is mounted at {place} for writing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_for_writing_is_told() {
        let devices = BTreeSet::from(["7:3".to_owned(), "259:1".to_owned()]);
        let named = |path: &str| (path == "/dev/loop3").then(|| "7:3".to_owned());
        let said = |line: &str| mounted(line, &devices, &named);
        let line = "36 35 7:3 / /mnt/case rw,noatime shared:1 - ext4 /dev/loop3 rw,errors=continue";
        assert_eq!(said(line).as_deref(), Some("/dev/loop3 is mounted at /mnt/case for writing"));
        assert_eq!(said(&line.replace("7:3", "7:4").replace("loop3", "loop4")), None);
        // A mount that is read-only of a file system that is not: others may write it.
        assert!(said(&line.replace("rw,noatime", "ro,noatime")).is_some());
        assert_eq!(said(&line.replace("rw,errors", "ro,errors")), None);
        assert!(said("36 35 259:1 / / rw - xfs /dev/root rw").is_some());
        assert!(said("36 35 0:41 / /b rw - btrfs /dev/loop3 rw,subvol=/").is_some());
        assert_eq!(said("36 35 0:41 / /b rw - tmpfs tmpfs rw"), None);
        assert_eq!(said("36 35 7:3 / /cut off"), None);
    }
}
