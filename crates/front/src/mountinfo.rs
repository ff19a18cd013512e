//! The kernel's list of mounts, `/proc/self/mountinfo`, read without touching what is mounted.
//!
//! Owns: its format, and the list of processes, which have one each, with their names. Never: a `stat` of a
//! mount point, which a dead or stopped server would fail or hang. Called by `fuse` and `loopdev::holders`.
//! Tests: below.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub id: u64,
    /// The mount that it stands on.
    pub parent: u64,
    /// Of the file system; for FUSE the minor is the number of its connection.
    pub major: u32,
    pub minor: u32,
    /// What of the file system is there.
    pub root: PathBuf,
    pub point: PathBuf,
    pub fs_type: String,
    pub source: OsString,
}

impl MountEntry {
    #[must_use]
    pub fn is_fuse(&self) -> bool {
        self.fs_type == "fuse" || self.fs_type.starts_with("fuse.")
    }
}

/// # Errors
/// There is no `/proc`.
pub fn read() -> io::Result<Vec<MountEntry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// Every process but this one, as its folder of `/proc`.
pub(crate) fn processes() -> Vec<PathBuf> {
    let own = std::process::id().to_string();
    let is_pid = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit()) && name != own;
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_str().is_some_and(is_pid)).map(|entry| entry.path()).collect()
}

/// `process 12 (dd)`, of such a folder.
pub(crate) fn shown(process: &Path) -> String {
    let pid = process.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let command = std::fs::read_to_string(process.join("comm")).unwrap_or_default();
    format!("process {pid} ({})", command.trim())
}

/// Lines of another form are left out: a newer kernel may have more to say.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// What is visible at `point`: the last of several mounts on top of each other.
#[must_use]
pub fn at<'a>(entries: &'a [MountEntry], point: &Path) -> Option<&'a MountEntry> {
    entries.iter().rev().find(|entry| entry.point == point)
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    // id parent major:minor root point options [tags...] - type source super-options
    let mut fields = line.split(|byte| *byte == b' ');
    let number = |field: Option<&[u8]>| std::str::from_utf8(field?).ok()?.parse().ok();
    let (id, parent) = (number(fields.next())?, number(fields.next())?);
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let path = |field| PathBuf::from(OsString::from_vec(unescape(field)));
    let (root, point) = (path(fields.next()?), path(fields.next()?));
    fields.find(|field| *field == b"-")?;
    let fs_type = String::from_utf8_lossy(fields.next()?).into_owned();
    let source = OsString::from_vec(unescape(fields.next()?));
    let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
    Some(MountEntry { id, parent, major, minor, root, point, fs_type, source })
}

/// Space, tab, newline and backslash are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, behind)) = rest.split_first() {
        let octal = behind
            .get(..3)
            .filter(|digits| byte == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        if let Some(digits) = octal {
            let code = digits.iter().fold(0u32, |code, digit| code * 8 + u32::from(digit - b'0'));
            out.push(u8::try_from(code).unwrap_or(b'?'));
            rest = &behind[3..];
        } else {
            out.push(byte);
            rest = behind;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = br"22 27 0:21 / /proc rw,nosuid,nodev,noexec,relatime shared:5 - proc proc rw
31 27 0:44 / /mnt/with\040space\011tab rw,nosuid,nodev,relatime - fuse cheetah:scratch rw,user_id=0
32 27 7:3 /sub /mnt/loop ro master:1 shared:2 - ext4 /dev/loop3 ro
33 31 0:45 / /mnt/loop rw - fuse.sshfs host:/ rw
a line of another kind
40 1 x:y / /bad rw - t s o";

    #[test]
    fn points_types_and_devices_are_read() {
        let entries = parse(TEXT);
        assert_eq!(entries.len(), 4);
        assert_eq!(entries[1].point, Path::new("/mnt/with space\ttab"));
        assert_eq!((entries[1].major, entries[1].minor), (0, 44));
        assert_eq!(entries[1].source, "cheetah:scratch");
        assert!(entries[1].is_fuse() && entries[3].is_fuse() && !entries[2].is_fuse());
        assert_eq!((entries[2].major, entries[2].minor), (7, 3));
        assert_eq!(
            (entries[3].id, entries[3].parent, entries[2].root.as_path()),
            (33, 31, Path::new("/sub"))
        );
    }

    #[test]
    fn the_mount_on_top_is_the_one_seen() {
        let entries = parse(TEXT);
        assert_eq!(at(&entries, Path::new("/mnt/loop")).map(|e| e.fs_type.as_str()), Some("fuse.sshfs"));
        assert_eq!(at(&entries, Path::new("/mnt")), None);
    }

    #[test]
    fn a_backslash_that_starts_no_code_stays() {
        assert_eq!(unescape(br"a\1b\134c\"), br"a\1b\c\");
        assert_eq!(unescape(br"\777"), b"?");
    }

    #[test]
    fn this_process_has_mounts() {
        assert!(read().is_ok_and(|entries| at(&entries, Path::new("/proc")).is_some()));
    }
}
