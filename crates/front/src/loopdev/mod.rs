//! The volume as a block device: a loop device over the FUSE file.
//!
//! Owns: making one with direct I/O, so that nothing is cached twice, checking that it is so, its size when the
//! volume grows, and its end. Never: unmounts what stands on it. Invariant: a device this module made serves whole
//! 512-byte sectors of the file from its start; the bytes behind the last are reported, not hidden.
//! Called by `cheetah attach --front loop` and `detach`; needs root. Parts: `ioctl`, `holders`.
//! Tests: below; over a mounted volume, end to end.

mod holders;
mod ioctl;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const SECTOR_BYTES: u64 = 512;
/// Another process may take the device that the kernel named as free.
const CLAIM_TRIES: u32 = 32;
/// Whatever watches new devices holds them open for a moment.
const DETACH_TRIES: u32 = 40;
const DETACH_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub read_only: bool,
    /// Logical sectors of the device; 512 is what partition tables of disks were written with.
    pub block_size: u32,
    /// Set where the kernel allows; none leaves it.
    pub read_ahead_kb: Option<u32>,
    /// The largest request that the device is asked to build.
    pub max_sectors_kb: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options { read_only: false, block_size: 512, read_ahead_kb: Some(1024), max_sectors_kb: Some(1024) }
    }
}

/// A loop device. Dropping it does not detach it: `detach` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    number: u32,
    file: PathBuf,
    direct_io: bool,
    hidden_tail_bytes: u64,
    notes: Vec<String>,
}

/// Why there is no device, or why it is still there; the text says what to do.
#[derive(Debug)]
pub enum LoopError {
    NoLoop,
    Denied,
    /// The kernel has none free and makes no more.
    NoneFree(io::Error),
    /// The kernel made the device, but its node under /dev is missing.
    NoNode {
        device: PathBuf,
    },
    /// Less than one sector.
    TooSmall {
        bytes: u64,
    },
    File {
        file: PathBuf,
        error: io::Error,
    },
    Configure {
        device: PathBuf,
        error: io::Error,
    },
    Busy {
        device: PathBuf,
        holders: Vec<String>,
    },
    Failed {
        device: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for LoopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLoop => write!(
                f,
                "this machine has no /dev/loop-control: run `modprobe loop` as root, or attach with --front fuse"
            ),
            Self::Denied => {
                write!(f, "only root may make loop devices: attach as root, or attach with --front fuse")
            }
            Self::NoneFree(error) => {
                write!(f, "no loop device is free ({error}): detach one (`losetup -a` lists them)")
            }
            Self::NoNode { device } => write!(
                f,
                "{} does not exist although the kernel has the device: is /dev complete here?",
                device.display()
            ),
            Self::TooSmall { bytes } => {
                write!(f, "a volume of {bytes} bytes has no whole sector: attach it with --front fuse")
            }
            Self::File { file, error } => write!(f, "{}: {error}", file.display()),
            Self::Configure { device, error } => write!(f, "cannot set up {}: {error}", device.display()),
            Self::Busy { device, holders } if holders.is_empty() => {
                write!(
                    f,
                    "{} is in use by what this process cannot see; it goes when that ends",
                    device.display()
                )
            }
            Self::Busy { device, holders } => {
                let who = holders.join(", ");
                write!(f, "{} is in use: {who}; unmount or end that, then detach again", device.display())
            }
            Self::Failed { device, error } => write!(f, "{}: {error}", device.display()),
        }
    }
}

impl std::error::Error for LoopError {}

/// Makes a loop device over `file`.
///
/// # Errors
/// What the machine lacks, and what to do.
pub fn attach(file: &Path, options: &Options) -> Result<LoopDevice, LoopError> {
    let of_file = |error| LoopError::File { file: file.to_path_buf(), error };
    let backing = OpenOptions::new().read(true).write(!options.read_only).open(file).map_err(of_file)?;
    let size = backing.metadata().map_err(of_file)?.len();
    if size < SECTOR_BYTES {
        return Err(LoopError::TooSmall { bytes: size });
    }
    let control = open_control()?;
    for _ in 0..CLAIM_TRIES {
        let number = ioctl::get_free(control.as_fd()).map_err(LoopError::NoneFree)?;
        let device = open_device(number)?;
        match ioctl::configure(device.as_fd(), &config(file, &backing, options)) {
            Ok(()) => return Ok(made(number, &device, file, size, options)),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(LoopError::Configure { device: path_of(number), error }),
        }
    }
    Err(LoopError::NoneFree(io::ErrorKind::ResourceBusy.into()))
}

fn open_control() -> Result<File, LoopError> {
    let opened = OpenOptions::new().read(true).write(true).open("/dev/loop-control");
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => LoopError::Denied,
        _ => LoopError::NoLoop,
    })
}

fn open_device(number: u32) -> Result<File, LoopError> {
    let device = path_of(number);
    OpenOptions::new().read(true).write(true).open(&device).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => LoopError::NoNode { device },
        io::ErrorKind::PermissionDenied => LoopError::Denied,
        _ => LoopError::Failed { device, error },
    })
}

fn config(file: &Path, backing: &File, options: &Options) -> ioctl::LoopConfig {
    let mut info = ioctl::LoopInfo64::empty();
    info.flags = ioctl::LO_FLAGS_DIRECT_IO;
    if options.read_only {
        info.flags |= ioctl::LO_FLAGS_READ_ONLY;
    }
    // Shown by `losetup`; its last byte stays zero.
    let name = file.as_os_str().as_encoded_bytes();
    let len = name.len().min(info.file_name.len() - 1);
    info.file_name[..len].copy_from_slice(&name[..len]);
    let fd = u32::try_from(backing.as_raw_fd()).expect("a descriptor is not negative");
    ioctl::LoopConfig::new(fd, options.block_size, info)
}

fn made(number: u32, device: &File, file: &Path, size: u64, options: &Options) -> LoopDevice {
    let mut notes = Vec::new();
    let direct_io = ioctl::status(device.as_fd())
        .is_ok_and(|info| info.flags & ioctl::LO_FLAGS_DIRECT_IO != 0)
        && setting(number, "loop/dio").is_none_or(|text| text != "0");
    if !direct_io {
        notes.push("direct I/O is off: everything is cached twice, and random reads are slower".to_owned());
    }
    for (name, value) in
        [("read_ahead_kb", options.read_ahead_kb), ("max_sectors_kb", options.max_sectors_kb)]
    {
        if let Some(value) = value
            && let Err(error) = set_queue(number, name, value)
        {
            notes.push(format!("{name} left as it was: {error}"));
        }
    }
    let hidden_tail_bytes = hidden_tail(size, options.block_size);
    if hidden_tail_bytes > 0 {
        notes.push(format!(
            "the device has whole sectors only: it lacks the last {hidden_tail_bytes} of the volume's bytes, and \
             hashes differ; hash {} instead",
            file.display()
        ));
    }
    LoopDevice { number, file: file.to_path_buf(), direct_io, hidden_tail_bytes, notes }
}

/// The bytes behind the last whole sector.
#[must_use]
pub fn hidden_tail(size: u64, block_size: u32) -> u64 {
    size % u64::from(block_size.max(512))
}

/// Not above what the device can take.
fn set_queue(number: u32, name: &str, value: u32) -> io::Result<()> {
    let hardware = setting(number, "queue/max_hw_sectors_kb").and_then(|text| text.parse().ok());
    let value = match (name, hardware) {
        ("max_sectors_kb", Some(most)) => value.min(most),
        _ => value,
    };
    std::fs::write(format!("/sys/block/loop{number}/queue/{name}"), value.to_string())
}

fn setting(number: u32, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/sys/block/loop{number}/{name}")).ok()?;
    Some(text.trim().to_owned())
}

fn path_of(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

fn number_of(device: &Path) -> Option<u32> {
    device.to_str()?.strip_prefix("/dev/loop")?.parse().ok()
}

impl LoopDevice {
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(self.number)
    }

    /// The file it stands on.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    #[must_use]
    pub fn direct_io(&self) -> bool {
        self.direct_io
    }

    /// Bytes at the end of the volume that the device does not show.
    #[must_use]
    pub fn hidden_tail_bytes(&self) -> u64 {
        self.hidden_tail_bytes
    }

    /// Sentences that the user is to be told.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Takes over the size of a file that grew; the new size of the device in bytes.
    ///
    /// # Errors
    /// The device is gone.
    pub fn set_capacity(&mut self) -> Result<u64, LoopError> {
        let failed = |error| LoopError::Failed { device: path_of(self.number), error };
        // The kernel looks at the size it last heard of; asking makes it hear the new one.
        let size = std::fs::metadata(&self.file).map_err(failed)?.len();
        let device = open_device(self.number)?;
        ioctl::set_capacity(device.as_fd()).map_err(failed)?;
        let block = setting(self.number, "queue/logical_block_size").and_then(|text| text.parse().ok());
        self.hidden_tail_bytes = hidden_tail(size, block.unwrap_or(512));
        let sectors = setting(self.number, "size").and_then(|text| text.parse::<u64>().ok());
        Ok(sectors.map_or(size - self.hidden_tail_bytes, |sectors| sectors * SECTOR_BYTES))
    }

    /// # Errors
    /// See [`detach`].
    pub fn detach(&self) -> Result<(), LoopError> {
        if !standing_on(&self.file).contains(&self.path()) {
            return Ok(()); // Somebody has detached it; its number may be another's by now.
        }
        detach(&self.path())
    }
}

/// The devices that stand on `file`, also those of a daemon that is gone. To be asked while the file's mount is
/// still there, dead or alive: of a detached one the kernel no longer tells the path.
#[must_use]
pub fn standing_on(file: &Path) -> Vec<PathBuf> {
    let mut devices = Vec::new();
    for entry in std::fs::read_dir("/sys/block").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")).and_then(|n| n.parse().ok());
        let Some(number) = number else { continue };
        let Some(backing) = setting(number, "loop/backing_file") else { continue };
        if Path::new(&backing) == file {
            devices.push(path_of(number));
        }
    }
    devices
}

/// Ends a loop device. One that is already free is no error.
///
/// # Errors
/// It is in use, and by whom: then it stays, unless what holds it has only just opened it.
pub fn detach(device: &Path) -> Result<(), LoopError> {
    let Some(number) = number_of(device) else {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "not a loop device");
        return Err(LoopError::Failed { device: device.to_path_buf(), error });
    };
    // As soon as it is free its number may be given to another file: only what stands on this one is cleared.
    let backing = setting(number, "loop/backing_file");
    let is_gone = || backing.is_none() || setting(number, "loop/backing_file") != backing;
    for _ in 0..DETACH_TRIES {
        if is_gone() {
            return Ok(());
        }
        // Clearing a device in use marks it to vanish when its last user goes; a refusal should change nothing.
        let users = holders::of(number);
        if !users.is_empty() {
            std::thread::sleep(DETACH_PAUSE);
            continue;
        }
        let opened = open_device(number)?;
        match ioctl::clear(opened.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
            Err(error) if error.raw_os_error() != Some(libc::EBUSY) => {
                return Err(LoopError::Failed { device: device.to_path_buf(), error });
            }
            _ => {}
        }
        drop(opened);
        if is_gone() {
            return Ok(());
        }
        std::thread::sleep(DETACH_PAUSE);
    }
    Err(LoopError::Busy { device: device.to_path_buf(), holders: holders::of(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_behind_the_last_sector_is_counted() {
        assert_eq!(hidden_tail(1024, 512), 0);
        assert_eq!(hidden_tail(1025, 512), 1);
        assert_eq!(hidden_tail(4096 + 511, 512), 511);
        assert_eq!(hidden_tail(4096 + 512, 4096), 512);
    }

    #[test]
    fn only_loop_devices_have_a_number() {
        assert_eq!(number_of(Path::new("/dev/loop12")), Some(12));
        assert_eq!(number_of(Path::new("/dev/loop12p1")), None);
        assert_eq!(number_of(Path::new("/dev/sda")), None);
        assert!(matches!(detach(Path::new("/dev/sda")), Err(LoopError::Failed { .. })));
    }

    #[test]
    fn who_holds_it_is_in_the_error() {
        let busy = LoopError::Busy { device: "/dev/loop3".into(), holders: vec!["mounted at /mnt".into()] };
        assert!(busy.to_string().contains("mounted at /mnt"));
    }
}
