//! Images in formats that QEMU reads and nothing here does: VDI, Parallels' HDD, DMG.
//!
//! Owns: telling them by content, and that the file is as it was. Never: what is in them, which a `qemu-nbd`
//! of our own reads (`nbd::helper`), nor files that an image names: none of these formats is opened with a
//! backing file. Called by `open`. Tests: `lab/tests/sources.rs`.

use crate::nbd::Export;
use crate::raw::RawSource;
use crate::{Options, Source, SourceError, Unreadable};
use std::path::Path;

/// A format, as QEMU calls its driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Driver {
    name: &'static str,
    what: &'static str,
}

/// By their first bytes, at an offset, or by those so many bytes before the end: as in QEMU, block/vdi.c,
/// docs/interop/parallels.rst, block/dmg.c.
pub(crate) fn driver(head: &[u8], tail: &[u8]) -> Option<Driver> {
    let at = |from: usize, bytes: &[u8]| head.get(from..).is_some_and(|head| head.starts_with(bytes));
    let end = tail.len().checked_sub(512).map_or(&[][..], |from| &tail[from..]);
    let vdi = at(0x40, b"\x7f\x10\xda\xbe");
    let parallels = at(0, b"WithoutFreeSpace") || at(0, b"WithouFreSpacExt");
    let dmg = end.starts_with(b"koly\x00\x00\x00\x04");
    let all = [
        (vdi, Driver { name: "vdi", what: "VDI image (VirtualBox)" }),
        (parallels, Driver { name: "parallels", what: "HDD image (Parallels)" }),
        (dmg, Driver { name: "dmg", what: "DMG image (Apple, UDIF)" }),
    ];
    all.into_iter().find_map(|(is_one, driver)| is_one.then_some(driver))
}

#[derive(Debug)]
struct Foreign {
    file: RawSource,
    disk: RawSource,
    what: &'static str,
}

pub(crate) fn open(
    file: RawSource,
    driver: Driver,
    options: &Options,
) -> Result<Box<dyn Source>, SourceError> {
    let path = file.path().to_path_buf();
    if file.is_remote() {
        let why = format!("a {} is read from a file of this machine alone: fetch it first", driver.what);
        return Err(SourceError::Refused { path, why });
    }
    let medium = Export::of_file(&path, driver.name, options)?;
    let disk = RawSource::on(path, medium, *options);
    Ok(Box::new(Foreign { file, disk, what: driver.what }))
}

impl Source for Foreign {
    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn path(&self) -> &Path {
        self.file.path()
    }

    fn describe(&self) -> String {
        format!("{}, read by qemu-nbd", self.what)
    }

    fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError> {
        self.disk.read_exact_at(offset, room)
    }

    fn read_past_errors_at(&self, offset: u64, room: &mut [u8]) -> Result<Vec<Unreadable>, SourceError> {
        self.disk.read_past_errors_at(offset, room)
    }

    fn identity(&self) -> String {
        self.file.identity()
    }

    fn changed(&self) -> Option<String> {
        self.file.changed()
    }

    fn is_checksummed(&self) -> bool {
        false
    }

    fn readers(&self) -> usize {
        self.disk.readers()
    }
}
