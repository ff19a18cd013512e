//! Who uses a mounted volume: how often it is open, and other places and processes that its end would take it
//! from.
//!
//! Owns: the count of open files and directories, as the kernel tells of each, and looking for their owners.
//! Never: ends or unmounts anything. Invariant: the count alone decides whether it is open, for a mount in
//! another namespace, or a bind of one file, may be seen by nobody here. Called by `fs` (counts) and `mount`
//! (asks before it unmounts). Tests: below; `tests/file.rs`, `lab/tests/devices.rs`.

use crate::loopdev;
use crate::mountinfo::{self, MountEntry};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The kernel tells of the last close a moment after it.
const CLOSE_PATIENCE: Duration = Duration::from_millis(500);
const CLOSE_PAUSE: Duration = Duration::from_millis(5);
/// Users named in an error; more would hide what to do.
const NAMED_MAX: usize = 8;

/// Files and directories that are open, wherever the volume is mounted.
#[derive(Debug, Default)]
pub(super) struct Opened(AtomicU64);

impl Opened {
    pub(super) fn open(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn close(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    }

    /// As many as there are when those that were just closed are told of.
    fn settled(&self, wanted: u64) -> u64 {
        let patience = Instant::now() + CLOSE_PATIENCE;
        loop {
            let count = self.0.load(Ordering::Relaxed);
            if count <= wanted || Instant::now() >= patience {
                return count;
            }
            std::thread::sleep(CLOSE_PAUSE);
        }
    }
}

/// A mount of ours, and what it is to be ended with.
pub(super) struct Mount<'a> {
    pub(super) entry: &'a MountEntry,
    pub(super) file: &'a Path,
    /// The loop device that is ended first: it has the file open once.
    pub(super) device: Option<&'a Path>,
}

/// Sentences like `open in process 12 (dd)`. Empty: nobody uses it.
pub(super) fn of(mount: &Mount<'_>, opened: &Opened) -> Vec<String> {
    let own = u64::from(mount.device.is_some());
    let count = opened.settled(own).saturating_sub(own);
    let namespaces = Namespace::all();
    let mut users = elsewhere(mount.entry, &namespaces);
    users.extend(devices(mount, &namespaces));
    users.extend(processes(mount, &namespaces, count));
    if users.is_empty() && count > 0 {
        let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
        users.push(format!("it is open {times} in what this process cannot see"));
    }
    users.truncate(NAMED_MAX);
    users
}

/// What processes of one kind see mounted.
struct Namespace {
    /// One of those in it; none: this process is.
    of: Option<String>,
    entries: Vec<MountEntry>,
}

impl Namespace {
    fn all() -> Vec<Namespace> {
        let id = |process: &Path| fs::read_link(process.join("ns/mnt")).ok();
        let own = Namespace { of: None, entries: mountinfo::read().unwrap_or_default() };
        let mut seen: BTreeSet<PathBuf> = id(Path::new("/proc/self")).into_iter().collect();
        let mut all = vec![own];
        for process in mountinfo::processes() {
            // Of another user's the namespace may not be told, and its mounts are.
            if id(&process).is_some_and(|id| !seen.insert(id)) {
                continue;
            }
            let Ok(text) = fs::read(process.join("mountinfo")) else { continue };
            all.push(Namespace { of: Some(mountinfo::shown(&process)), entries: mountinfo::parse(&text) });
        }
        all
    }
}

fn same_file_system(one: &MountEntry, other: &MountEntry) -> bool {
    (one.major, one.minor) == (other.major, other.minor)
}

/// Where a mount stands, whatever that is called in its namespace: the file system below it, and the path
/// there.
fn place<'a>(entry: &MountEntry, entries: &'a [MountEntry]) -> Option<(&'a MountEntry, PathBuf)> {
    let below = entries.iter().find(|below| below.id == entry.parent)?;
    let path = entry.point.strip_prefix(&below.point).ok()?;
    Some((below, below.root.join(path)))
}

/// Mounts that somebody made of this one. A namespace that was copied with all its mounts has one at the same
/// place, which nobody asked for; it counts when something is open there.
fn elsewhere(ours: &MountEntry, namespaces: &[Namespace]) -> Vec<String> {
    let own = namespaces.first().and_then(|own| place(ours, &own.entries));
    let mut found = BTreeSet::new();
    for Namespace { of, entries } in namespaces {
        for entry in entries.iter().filter(|entry| same_file_system(entry, ours)) {
            let Some((below, path)) = place(entry, entries) else { continue };
            let is_copy = own.as_ref().is_some_and(|(ours, at)| {
                same_file_system(ours, below) && *at == path && entry.root == Path::new("/")
            });
            if (of.is_none() && entry.id == ours.id) || (of.is_some() && is_copy) {
                continue;
            }
            let whose = of.as_ref().map(|process| format!(", as {process} sees it")).unwrap_or_default();
            found.insert((entry.point.clone(), whose));
        }
    }
    let points: BTreeSet<PathBuf> =
        found.iter().filter(|(_, whose)| whose.is_empty()).map(|(point, _)| point.clone()).collect();
    // Other namespaces have what this one has.
    found.retain(|(point, whose)| whose.is_empty() || !points.contains(point));
    found
        .into_iter()
        .map(|(point, whose)| format!("it is mounted at {} as well{whose}", point.display()))
        .collect()
}

/// Every path by which somebody may name the file.
fn paths(mount: &Mount<'_>, namespaces: &[Namespace]) -> BTreeSet<PathBuf> {
    let entries = namespaces.iter().flat_map(|namespace| &namespace.entries);
    let entries = entries.filter(|entry| same_file_system(entry, mount.entry));
    let name = mount.file.file_name().unwrap_or_default();
    let path = |entry: &MountEntry| match entry.root == Path::new("/") {
        true => entry.point.join(name),
        false => entry.point.clone(),
    };
    entries.map(path).chain([mount.file.to_path_buf()]).collect()
}

fn devices(mount: &Mount<'_>, namespaces: &[Namespace]) -> Vec<String> {
    let stands = |device: PathBuf, file: &Path| format!("{} stands on {}", device.display(), file.display());
    let files = paths(mount, namespaces);
    let mut found = Vec::new();
    for file in &files {
        let others =
            loopdev::standing_on(file).into_iter().filter(|device| Some(device.as_path()) != mount.device);
        found.extend(others.map(|device| stands(device, file)));
    }
    found
}

/// Processes that have it open, or are there.
fn processes(mount: &Mount<'_>, namespaces: &[Namespace], count: u64) -> Vec<String> {
    let points: BTreeSet<&Path> = (namespaces.iter().flat_map(|namespace| &namespace.entries))
        .filter(|entry| same_file_system(entry, mount.entry))
        .map(|entry| entry.point.as_path())
        .collect();
    let name = mount.file.file_name().unwrap_or_default();
    // Only what has a name of ours is looked at: other files may be on servers that hang.
    let is_ours = |link: &Path| {
        let named = fs::read_link(link).is_ok_and(|to| points.contains(&*to) || ends_with(&to, name));
        named && is_on(link, mount.entry)
    };
    let mut found = Vec::new();
    for process in mountinfo::processes() {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        if open.into_iter().any(|descriptor| is_ours(&descriptor.path())) {
            found.push(format!("it is open in {}", mountinfo::shown(&process)));
        } else if ["cwd", "root"].iter().any(|link| is_ours(&process.join(link))) {
            found.push(format!("{} is there", mountinfo::shown(&process)));
        } else if count > 0 && maps(&process, mount.entry) {
            found.push(format!("it is mapped in {}", mountinfo::shown(&process)));
        }
    }
    found
}

/// Of a file that is bound to a path of another name the link has that.
fn ends_with(path: &Path, name: &OsStr) -> bool {
    path.file_name() == Some(name)
}

/// Whether it is in this file system, as far as that is known without asking its server.
fn is_on(link: &Path, entry: &MountEntry) -> bool {
    let found = rustix::fs::statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
    found.is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == (entry.major, entry.minor))
}

/// Whether the process has it in its memory: then it may have closed what it opened.
fn maps(process: &Path, entry: &MountEntry) -> bool {
    let device = format!("{:02x}:{:02x}", entry.major, entry.minor);
    let text = fs::read(process.join("maps")).unwrap_or_default();
    // range mode offset device inode path
    text.split(|byte| *byte == b'\n').any(|line| {
        line.split(|byte| *byte == b' ')
            .nth(3)
            .is_some_and(|field| OsStr::from_bytes(field) == device.as_str())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace(of: Option<&str>, text: &str) -> Namespace {
        Namespace { of: of.map(str::to_owned), entries: mountinfo::parse(text.as_bytes()) }
    }

    const OWN: &str = "1 0 8:1 / / rw shared:1 - ext4 /dev/sda rw\n\
                       9 1 0:44 / /mnt/c rw shared:7 - fuse.cheetah cheetah:c rw\n";

    fn users(more: &str, others: &[(&str, &str)]) -> Vec<String> {
        let own = namespace(None, &format!("{OWN}{more}"));
        let ours = own.entries[1].clone();
        let others = others.iter().map(|(of, text)| namespace(Some(of), text));
        elsewhere(&ours, &[own].into_iter().chain(others).collect::<Vec<_>>())
    }

    #[test]
    fn a_mount_that_was_made_of_it_is_a_use() {
        assert!(users("", &[]).is_empty());
        let bound = "10 1 0:44 / /mnt/b rw shared:7 - fuse.cheetah cheetah:c rw\n\
                     11 1 0:44 /c.raw /mnt/file rw - fuse.cheetah cheetah:c rw\n\
                     12 9 0:44 / /mnt/c rw shared:7 - fuse.cheetah cheetah:c rw\n\
                     13 1 0:45 / /mnt/d rw - fuse.cheetah cheetah:d rw\n";
        let found = users(bound, &[("process 7 (sh)", &format!("{OWN}{bound}"))]);
        assert_eq!(
            found,
            [
                "it is mounted at /mnt/b as well",
                "it is mounted at /mnt/c as well",
                "it is mounted at /mnt/file as well"
            ]
        );
    }

    #[test]
    fn what_came_with_a_copy_of_a_namespace_is_none() {
        let copy = "21 20 8:1 / / rw master:1 - ext4 /dev/sda rw\n\
                    29 21 0:44 / /mnt/c rw master:7 - fuse.cheetah cheetah:c rw\n";
        let host = "30 0 0:50 / / rw - overlay overlay rw\n\
                    31 30 8:1 / /host ro - ext4 /dev/sda rw\n\
                    39 31 0:44 / /host/mnt/c rw - fuse.cheetah cheetah:c rw\n";
        assert!(users("", &[("process 7 (sh)", copy), ("process 8 (exporter)", host)]).is_empty());
        let given = "30 0 0:50 / / rw - overlay overlay rw\n\
                     39 30 0:44 / /evidence rw - fuse.cheetah cheetah:c rw\n";
        assert_eq!(
            users("", &[("process 9 (tsk)", given)]),
            ["it is mounted at /evidence as well, as process 9 (tsk) sees it"]
        );
    }

    #[test]
    fn what_is_open_is_counted() {
        let opened = Opened::default();
        opened.open();
        opened.open();
        opened.close();
        assert_eq!(opened.settled(1), 1);
        opened.close();
        opened.close();
        assert_eq!(opened.settled(0), 0);
    }
}
