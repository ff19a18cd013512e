//! What a volume is filled from: raw images, also in parts, disks, and images in containers, here or with
//! a server.
//!
//! Owns: `Source`, which all of them are; telling what a file is by its content (`open`); refusing what
//! is not read, with a way out (`container`). Never: writing to a source; it is opened without the right
//! to. A name that stands inside an image is followed only where it is the plain name of a file beside
//! it. Called by `cheetah load`. Files: `raw` and `parts` have bytes as they are; `ewf`, `qcow`, `vmdk`,
//! `vhd`, `vhdx` say where each block of the disk lies, and `blocks` reads by that; `foreign` has others
//! read by QEMU. All stand on a `medium`: `local`, `nbd`, `http` with `tls`, whose connections have the
//! `io_thread`; `mounts` says which disks are in use, `device` what a disk says of itself. They share
//! `cache`, `container`, `error`, `fields`, `files`, `inflate`, `past_errors`. `hostile` flips and cuts
//! samples of all. Tests: in each; `lab/tests/sources.rs` has other programs' images,
//! `lab/tests/remote.rs` other programs' servers.
#![forbid(unsafe_code)]

mod blocks;
mod cache;
mod container;
mod device;
mod error;
mod ewf;
mod fields;
mod files;
mod foreign;
#[cfg(test)]
mod hostile;
mod http;
mod inflate;
mod io_thread;
mod local;
mod medium;
mod mounts;
mod nbd;
mod parts;
mod past_errors;
mod qcow;
mod raw;
mod tls;
mod vhd;
mod vhdx;
mod vmdk;

pub use container::Container;
pub use error::SourceError;
pub use raw::{RawSource, is_address};

use std::fmt::Debug;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

/// A disk that can be read, wherever its bytes lie. Reads may come from several threads at once.
pub trait Source: Debug + Send + Sync {
    /// Of the disk, exact.
    fn size(&self) -> u64;

    /// As it was given.
    fn path(&self) -> &Path;

    /// What it is, in the field's words: `E01 image, 2 segments`.
    fn describe(&self) -> String;

    /// Whether other files may lie beside it.
    fn has_neighbours(&self) -> bool {
        true
    }

    /// Whether the disk is the file itself, and not in it or in several.
    fn is_bare(&self) -> bool {
        false
    }

    /// Fills `room` from `offset` on; the caller stays inside the size.
    ///
    /// # Errors
    /// `Read`, `Short` and `Damaged`, with the place at which it happened.
    fn read_exact_at(&self, offset: u64, room: &mut [u8]) -> Result<(), SourceError>;

    /// As `read_exact_at`, with zeros for what cannot be had, down to the sectors of a medium and the
    /// blocks of a format. Answers what that is, in order. `offset` is a multiple of 4096.
    ///
    /// # Errors
    /// `SourceError::Read` when the source itself is gone, and `Short`.
    fn read_past_errors_at(&self, offset: u64, room: &mut [u8]) -> Result<Vec<Unreadable>, SourceError>;

    /// What tells it from another of its name, on one line.
    fn identity(&self) -> String;

    /// How it is another than when it was opened; `None` when it is not.
    fn changed(&self) -> Option<String>;

    /// Whether a byte that is not what was written is noticed.
    fn is_checksummed(&self) -> bool;

    /// How many reads at once are faster than one: more than one where reading means computing.
    fn readers(&self) -> usize {
        1
    }

    /// What its maker wrote down of the disk.
    fn claims(&self) -> Claims {
        Claims::default()
    }
}

/// Bytes of a source that it cannot give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Offsets of the disk.
    pub range: Range<u64>,
    pub why: String,
}

/// What stands in an image about the disk that it was made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Hexadecimal digits.
    pub md5: Option<String>,
    pub sha1: Option<String>,
    /// What could not be read when the image was made, where zeros stand: offsets of the disk.
    pub unread_then: Vec<Range<u64>>,
}

/// What `open` may do.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Read the file as it stands, whatever it is.
    pub raw: bool,
    /// Read a disk on which a file system is mounted for writing.
    pub mounted: bool,
    /// How long a server may give nothing before a read ends with an error.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options { raw: false, mounted: false, patience: Duration::from_secs(30) }
    }
}

/// A container that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Ewf,
    Qcow,
    Vmdk,
    Vhdx,
    Vhd,
}

impl Format {
    /// The one whose ends these are.
    fn of(head: &[u8], tail: &[u8]) -> Option<Format> {
        let all = [
            (ewf::is_one(head), Format::Ewf),
            (qcow::is_one(head), Format::Qcow),
            (vmdk::is_one(head), Format::Vmdk),
            (vhdx::is_one(head), Format::Vhdx),
            (vhd::is_one(head, tail), Format::Vhd),
        ];
        all.into_iter().find_map(|(is_one, format)| is_one.then_some(format))
    }

    fn open(self, file: RawSource) -> Result<Box<dyn Source>, SourceError> {
        Ok(match self {
            Format::Ewf => Box::new(ewf::open(&file)?),
            Format::Qcow => Box::new(qcow::open(file)?),
            Format::Vmdk => Box::new(vmdk::open(file)?),
            Format::Vhdx => Box::new(vhdx::open(file)?),
            Format::Vhd => Box::new(vhd::open(file)?),
        })
    }
}

/// Opens a file or a disk by what it holds.
///
/// # Errors
/// `Open`, `Refused`, `Missing`, `Damaged`, `Read`.
pub fn open(path: &Path, options: &Options) -> Result<Box<dyn Source>, SourceError> {
    let raw = RawSource::open(path, options)?;
    if options.raw {
        return Ok(Box::new(raw));
    }
    let refused = |container: Container| {
        Err(SourceError::Refused { path: path.to_path_buf(), why: container.to_string() })
    };
    let (head, tail) = container::ends(&raw)?;
    if let Some(format) = Format::of(&head, &tail) {
        return format.open(raw);
    }
    if let Some(driver) = foreign::driver(&head, &tail) {
        return foreign::open(raw, driver, options);
    }
    if let Some(container) = container::recognise(&head, &tail) {
        return refused(container);
    }
    let Some(parts) = parts::open(&raw)? else { return Ok(Box::new(raw)) };
    let (head, tail) = container::ends(&parts)?;
    match container::in_parts(&head, &tail) {
        Some(container) => refused(container),
        None => Ok(Box::new(parts)),
    }
}
