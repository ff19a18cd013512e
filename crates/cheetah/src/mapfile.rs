//! What a load read and what it could not, as a map in the form of GNU ddrescue.
//!
//! Owns: the file of `--map`, which is written when a load ends, however it ends. Never: a file that is no
//! such map, whatever it was given for. Written by ddrescue's manual, "Mapfile structure". Called by `load`.
//! Tests: below, `lab/tests/remote.rs`.

use crate::failure::Failure;
use cheetah_core::content::ByteRange;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Every version of ddrescue begins with one of these.
const HEADS: [&str; 2] = ["# Mapfile.", "# Rescue Logfile."];

/// Before anything is read: whether the file may be written.
pub fn check(path: &Path) -> Result<(), Failure> {
    let refused = |why: &str| {
        let path = path.display();
        Err(Failure::usage(format!("{path} {why}, and is not overwritten: name another file with --map")))
    };
    let kind = match fs::metadata(path) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
        Err(why) => return Err(Failure::failed(format!("cannot write {}: {why}", path.display()))),
        Ok(kind) => kind,
    };
    if !kind.is_file() {
        return refused("is no file");
    }
    let mut head = Vec::new();
    let opened = File::open(path).and_then(|file| file.take(64).read_to_end(&mut head));
    opened.map_err(|why| Failure::failed(format!("cannot read {}: {why}", path.display())))?;
    let is_map = HEADS.iter().any(|start| head.starts_with(start.as_bytes()));
    if is_map || head.is_empty() { Ok(()) } else { refused("is no map of ddrescue") }
}

/// Writes the map of a disk of `size` bytes of which the first `done` were tried.
pub fn write(path: &Path, size: u64, done: u64, unreadable: &[ByteRange]) -> Result<(), Failure> {
    check(path)?;
    fs::write(path, text(size, done, unreadable))
        .map_err(|why| Failure::failed(format!("cannot write the map {}: {why}", path.display())))
}

fn text(size: u64, done: u64, unreadable: &[ByteRange]) -> String {
    let mut text = format!("# Mapfile. Created by cheetah {}\n", env!("CARGO_PKG_VERSION"));
    let status = if done < size { '?' } else { '+' };
    text += "# current_pos  current_status  current_pass\n";
    let _ = writeln!(text, "0x{done:08X}     {status}               1");
    text += "#      pos        size  status\n";
    let mut at = 0;
    let mut part = |to: u64, status: char| {
        let to = to.min(size);
        if to > at {
            let _ = writeln!(text, "0x{at:08X}  0x{:08X}  {status}", to - at);
            at = to;
        }
    };
    for range in unreadable {
        // What is behind `done` may have been read, and is not in the volume.
        part(range.offset.min(done), '+');
        part(range.end().min(done), '-');
    }
    part(done, '+');
    part(size, '?');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(size: u64, done: u64, unreadable: &[ByteRange]) -> String {
        let text = text(size, done, unreadable);
        let parts = text.lines().skip(4).map(|line| line.replace("0x", "").replace("  ", " "));
        parts.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn all_of_the_disk_is_in_the_map() {
        let bad = [ByteRange { offset: 0x200, len: 0x200 }, ByteRange { offset: 0xe00, len: 0x200 }];
        assert_eq!(parts(0x1000, 0x1000, &[]), "00000000 00001000 +");
        assert_eq!(
            parts(0x1000, 0x1000, &bad),
            "00000000 00000200 +, 00000200 00000200 -, 00000400 00000A00 +, 00000E00 00000200 -"
        );
        assert_eq!(
            parts(0x1000, 0x800, &bad),
            "00000000 00000200 +, 00000200 00000200 -, 00000400 00000400 +, 00000800 00000800 ?"
        );
        assert_eq!(parts(0x1000, 0, &bad), "00000000 00001000 ?");
    }

    #[test]
    fn nothing_but_a_map_is_overwritten() {
        let path = std::env::temp_dir().join(format!("cheetah-map-{}", std::process::id()));
        assert!(check(&path).is_ok(), "there is none yet");
        fs::write(&path, b"evidence").expect("written");
        let failure = write(&path, 10, 10, &[]).expect_err("it is something else");
        assert!(failure.text().contains("is no map of ddrescue"), "{}", failure.text());
        assert_eq!(fs::read(&path).expect("there"), b"evidence");
        fs::remove_file(&path).expect("it was made");
        for _ in 0..2 {
            write(&path, 10, 10, &[]).expect("a map");
        }
        fs::remove_file(&path).expect("it was made");
        assert!(check(&std::env::temp_dir()).is_err() && check(Path::new("/dev/null")).is_err());
    }
}
