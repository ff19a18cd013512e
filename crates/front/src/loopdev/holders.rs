//! Who uses a loop device or a partition of it: mounts, swap, device mappers, other loop devices, and
//! processes that have it open.
//!
//! Owns: looking. Never: ends or unmounts anything. Called by `loopdev::detach` for its error. Tests: below.

use crate::mountinfo::{self, MountEntry};
use std::path::{Path, PathBuf};

/// Holders named in an error; more would hide what to do.
const NAMED_MAX: usize = 8;

/// A device or a partition: its name under /dev, and its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    name: String,
    number: (u32, u32),
}

/// The device and its partitions, as the kernel has them now.
fn nodes(number: u32) -> Vec<Node> {
    let whole = format!("loop{number}");
    let folder = PathBuf::from("/sys/block").join(&whole);
    let node = |name: String, folder: &Path| {
        let text = std::fs::read_to_string(folder.join("dev")).ok()?;
        let (major, minor) = text.trim().split_once(':')?;
        Some(Node { name, number: (major.parse().ok()?, minor.parse().ok()?) })
    };
    let partitions = super::partitions_of(number).into_iter();
    let partitions = partitions.map(|partition| format!("{whole}p{partition}"));
    let partitions: Vec<Node> =
        partitions.filter_map(|name| node(name.clone(), &folder.join(&name))).collect();
    node(whole, &folder).into_iter().chain(partitions).collect()
}

/// Sentences like `mounted at /mnt` or `open in process 12 (fsck)`. Empty: nobody that this process can see.
pub(super) fn of(number: u32) -> Vec<String> {
    let nodes = nodes(number);
    let mut holders = mounts(&mountinfo::read().unwrap_or_default(), &nodes);
    holders.extend(swaps(&std::fs::read_to_string("/proc/swaps").unwrap_or_default(), &nodes));
    for (node, folder) in nodes.iter().zip(folders(number, &nodes)) {
        for entry in std::fs::read_dir(folder.join("holders")).into_iter().flatten().flatten() {
            let holder = entry.file_name();
            holders.push(format!("/dev/{} is part of /dev/{}", node.name, holder.to_string_lossy()));
        }
        for other in super::standing_on(Path::new(&format!("/dev/{}", node.name))) {
            holders.push(format!("/dev/{} is under {}", node.name, other.display()));
        }
    }
    holders.extend(openers(&nodes));
    holders.truncate(NAMED_MAX);
    holders
}

fn folders(number: u32, nodes: &[Node]) -> impl Iterator<Item = PathBuf> {
    let whole = PathBuf::from(format!("/sys/block/loop{number}"));
    nodes
        .iter()
        .enumerate()
        .map(move |(at, node)| if at == 0 { whole.clone() } else { whole.join(&node.name) })
}

fn mounts(entries: &[MountEntry], nodes: &[Node]) -> Vec<String> {
    let of = |entry: &MountEntry| {
        // btrfs mounts have a device number of their own; the source names the device.
        let is = |node: &&Node| {
            (entry.major, entry.minor) == node.number
                || entry.source.to_str().and_then(|source| source.strip_prefix("/dev/")) == Some(&*node.name)
        };
        let node = nodes.iter().find(is)?;
        Some(format!("/dev/{} is mounted at {}", node.name, entry.point.display()))
    };
    entries.iter().filter_map(of).collect()
}

fn swaps(text: &str, nodes: &[Node]) -> Vec<String> {
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let used: Vec<String> = text.lines().filter_map(first).collect();
    let names = nodes.iter().map(|node| format!("/dev/{}", node.name));
    names.filter(|name| used.contains(name)).map(|name| format!("{name} is swapped to")).collect()
}

fn openers(nodes: &[Node]) -> Vec<String> {
    let devices: Vec<PathBuf> =
        nodes.iter().map(|node| PathBuf::from(format!("/dev/{}", node.name))).collect();
    users(&["fd"], |to| devices.iter().find(|device| *device == to).cloned())
}

/// Who uses the file below the device, or the directory that it is in, beside `device`: that would be in the
/// way of what comes after the device's end, and a refusal then would come too late to change nothing.
pub(super) fn of_file(file: &Path, device: &Path) -> Vec<String> {
    let below = file.parent().unwrap_or(file);
    let others = super::standing_on(file).into_iter().filter(|other| other != device);
    let mut holders: Vec<String> =
        others.map(|other| format!("{} is under {}", file.display(), other.display())).collect();
    holders.extend(users(&["fd", "cwd", "root"], |to| to.starts_with(below).then(|| to.to_path_buf())));
    holders.truncate(NAMED_MAX);
    holders
}

/// Processes that have one of these open, or are there: one sentence for each.
fn users(links: &[&str], wanted: impl Fn(&Path) -> Option<PathBuf>) -> Vec<String> {
    let mut users = Vec::new();
    for process in mountinfo::processes() {
        // Read, not followed: what they lead to may hang.
        let of = |link: &&str| match *link {
            "fd" => std::fs::read_dir(process.join("fd"))
                .into_iter()
                .flatten()
                .flatten()
                .find_map(|descriptor| wanted(&std::fs::read_link(descriptor.path()).ok()?)),
            link => wanted(&std::fs::read_link(process.join(link)).ok()?),
        };
        if let Some(path) = links.iter().find_map(of) {
            users.push(format!("{} is open in {}", path.display(), mountinfo::shown(&process)));
        }
    }
    users
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, number: (u32, u32)) -> Node {
        Node { name: name.into(), number }
    }

    #[test]
    fn mounts_of_the_device_and_its_partitions_are_found_and_no_others() {
        let entries = mountinfo::parse(
            b"1 0 7:48 / /a rw - ext4 /dev/loop3 rw\n\
              2 0 0:50 /sub /b rw - btrfs /dev/loop3 rw\n\
              3 0 259:1 / /c rw - vfat /dev/loop3p1 rw\n\
              4 0 7:30 / /d rw - ext4 /dev/loop30 rw\n\
              5 0 259:2 / /e rw - ext4 /dev/by/another/name rw\n\
              6 0 0:3 / /f rw - tmpfs loop3 rw\n",
        );
        // The kernel's parameter max_part spreads the numbers of devices.
        let nodes = [node("loop3", (7, 48)), node("loop3p1", (259, 1)), node("loop3p2", (259, 2))];
        assert_eq!(
            mounts(&entries, &nodes),
            [
                "/dev/loop3 is mounted at /a",
                "/dev/loop3 is mounted at /b",
                "/dev/loop3p1 is mounted at /c",
                "/dev/loop3p2 is mounted at /e"
            ]
        );
        assert_eq!(mounts(&entries, &[node("loop30", (7, 30))]), ["/dev/loop30 is mounted at /d"]);
        assert!(mounts(&entries, &[node("loop4", (7, 4))]).is_empty());
    }

    #[test]
    fn swap_on_a_partition_is_found() {
        let text = "Filename Type Size Used Priority\n/dev/loop3p2 partition 1024 0 -2\n";
        let nodes = [node("loop3", (7, 3)), node("loop3p2", (259, 2))];
        assert_eq!(swaps(text, &nodes), ["/dev/loop3p2 is swapped to"]);
        assert!(swaps(text, &nodes[..1]).is_empty());
    }
}
