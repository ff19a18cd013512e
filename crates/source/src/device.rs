//! What a disk says of itself: make, model and serial number, as the kernel heard them from it.
//!
//! Owns where that is read. Never: the disk itself, which is not asked again. Invariant: what is not
//! known is left out, and what is said stays the same for as long as the disk is the same. Called by
//! `local`. Tests: below.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// A disk's word for itself is no longer than this.
const TEXT_CHARS_MAX: usize = 96;

/// Like `ATA Samsung SSD 870, serial S5Y1NG0R`, of the disk that a block device is or is a part of.
/// Empty: nothing is known.
pub fn told(device: u64) -> String {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    told_in(Path::new("/sys/dev/block").join(format!("{major}:{minor}")))
}

fn told_in(node: PathBuf) -> String {
    // A partition lies in the folder of its disk.
    let node = fs::canonicalize(&node).unwrap_or(node);
    let disk = match (node.join("partition").exists(), node.parent()) {
        (true, Some(disk)) => disk.to_path_buf(),
        _ => node,
    };
    let text = |name: &str| {
        let text = fs::read(disk.join("device").join(name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let shown = text.chars().filter(|c| !c.is_control()).take(TEXT_CHARS_MAX).collect::<String>();
        Some(shown.trim().to_owned()).filter(|text| !text.is_empty())
    };
    // SCSI has the number in a page of its own, behind four bytes.
    let page = || {
        let page = fs::read(disk.join("device/vpd_pg80")).ok()?;
        let number = String::from_utf8_lossy(page.get(4..)?).into_owned();
        let number = number.chars().filter(|c| !c.is_control()).take(TEXT_CHARS_MAX).collect::<String>();
        Some(number.trim().to_owned()).filter(|number| !number.is_empty())
    };
    let mut told = [text("vendor"), text("model")].into_iter().flatten().collect::<Vec<_>>().join(" ");
    if let Some(serial) = text("serial").or_else(page) {
        let comma = if told.is_empty() { "" } else { ", " };
        let _ = write!(told, "{comma}serial {serial}");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_says_what_its_disk_does() {
        let root = std::env::temp_dir().join(format!("cheetah-device-{}", std::process::id()));
        let (disk, part) = (root.join("sda"), root.join("sda/sda1"));
        fs::create_dir_all(disk.join("device")).expect("a folder");
        fs::create_dir_all(&part).expect("a folder");
        fs::write(part.join("partition"), "1\n").expect("written");
        assert_eq!(told_in(disk.clone()), "");
        for (name, text) in
            [("vendor", &b"ATA     \n"[..]), ("model", b"Disk 9\n"), ("vpd_pg80", b"\0\x80\0\x04  S7")]
        {
            fs::write(disk.join("device").join(name), text).expect("written");
        }
        for node in [&disk, &part] {
            assert_eq!(told_in(node.clone()), "ATA Disk 9, serial S7");
        }
        fs::write(disk.join("device/serial"), "N1\n").expect("written");
        assert_eq!(told_in(part), "ATA Disk 9, serial N1");
        fs::remove_dir_all(&root).expect("removed");
    }
}
