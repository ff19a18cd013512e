//! The volume as a block device: a loop device over the FUSE file.
//!
//! Owns: making one with direct I/O, so that nothing is cached twice, checking that it is so, its partitions,
//! its size when the volume grows, and its end. Never: unmounts what stands on it. Invariants: a device this
//! module made serves whole sectors of the file from its start, the bytes behind the last are reported, not
//! hidden; its partitions are those of this file; who is refused its end finds it as it was.
//! Called by `cheetah attach --front loop` and `detach`; needs root. Parts: `ioctl`, `holders`, `table` (of
//! partitions). Tests: below; over a mounted volume, end to end.

mod holders;
mod ioctl;
mod table;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
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
    /// Logical sectors of the device. None: as a GPT in the file says, else 512, which most disks have.
    pub block_size: Option<u32>,
    /// Set where the kernel allows; none leaves it.
    pub read_ahead_kb: Option<u32>,
    /// The largest request that the device is asked to build.
    pub max_sectors_kb: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Options { read_only: false, block_size: None, read_ahead_kb: Some(1024), max_sectors_kb: Some(1024) }
    }
}

/// A loop device. Dropping it does not detach it: `detach` does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    number: u32,
    file: PathBuf,
    direct_io: bool,
    sector_bytes: u32,
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
                    "{} is in use by what this process cannot see, such as a mount in another namespace; end that, then \
                     detach again",
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
    let read = |offset: u64, room: &mut [u8]| backing.read_exact_at(room, offset);
    let sector = options.block_size.or_else(|| table::sector(&read, size)).unwrap_or(SECTOR_BYTES as u32);
    if size < u64::from(sector) {
        return Err(LoopError::TooSmall { bytes: size });
    }
    let control = open_control()?;
    let mut number = ioctl::get_free(control.as_fd()).map_err(LoopError::NoneFree)?;
    for _ in 0..CLAIM_TRIES {
        let device = open_device(number)?;
        if !forget_partitions(number, &device) {
            // Somebody holds a partition of what was there before: that is no place for another image.
            number = ioctl::add(control.as_fd()).map_err(LoopError::NoneFree)?;
            continue;
        }
        match ioctl::configure(device.as_fd(), &config(file, &backing, options, sector)) {
            Ok(()) => {
                let notes = show_partitions(number, &device, &table::partitions(&read, size, sector));
                return Ok(made(number, &device, file, size, sector, options, notes));
            }
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                number = ioctl::get_free(control.as_fd()).map_err(LoopError::NoneFree)?;
            }
            Err(error) => return Err(LoopError::Configure { device: path_of(number), error }),
        }
    }
    Err(LoopError::NoneFree(io::ErrorKind::ResourceBusy.into()))
}

/// Partitions stay behind on a device that was ended without them, and would be taken for those of the next
/// image. False: one is in use.
fn forget_partitions(number: u32, device: &File) -> bool {
    let mut old = partitions_of(number).into_iter();
    old.all(|partition| ioctl::delete_partition(device.as_fd(), partition).is_ok())
}

/// Where the kernel found none by itself, as one does that was built without, those of the table are told it.
fn show_partitions(number: u32, device: &File, table: &[table::Partition]) -> Vec<String> {
    let mut notes = Vec::new();
    if partitions_of(number).is_empty() {
        for table::Partition { number: partition, start, len } in table {
            if let Err(error) = ioctl::add_partition(device.as_fd(), *partition, *start, *len) {
                notes.push(format!("partition {partition} has no device: {error}"));
            }
        }
    }
    notes
}

/// The numbers of the partitions that a device has devices of.
fn partitions_of(number: u32) -> Vec<u32> {
    let prefix = format!("loop{number}p");
    let entries = std::fs::read_dir(format!("/sys/block/loop{number}")).into_iter().flatten().flatten();
    let mut found: Vec<u32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok()).collect();
    found.sort_unstable();
    found
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

fn config(file: &Path, backing: &File, options: &Options, sector: u32) -> ioctl::LoopConfig {
    let mut info = ioctl::LoopInfo64::empty();
    info.flags = ioctl::LO_FLAGS_DIRECT_IO | ioctl::LO_FLAGS_PARTSCAN;
    if options.read_only {
        info.flags |= ioctl::LO_FLAGS_READ_ONLY;
    }
    // Shown by `losetup`; its last byte stays zero.
    let name = file.as_os_str().as_encoded_bytes();
    let len = name.len().min(info.file_name.len() - 1);
    info.file_name[..len].copy_from_slice(&name[..len]);
    let fd = u32::try_from(backing.as_raw_fd()).expect("a descriptor is not negative");
    ioctl::LoopConfig::new(fd, sector, info)
}

fn made(
    number: u32,
    device: &File,
    file: &Path,
    size: u64,
    sector_bytes: u32,
    options: &Options,
    mut notes: Vec<String>,
) -> LoopDevice {
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
    let hidden_tail_bytes = hidden_tail(size, sector_bytes);
    if hidden_tail_bytes > 0 {
        notes.push(format!(
            "the device has whole sectors only: it lacks the last {hidden_tail_bytes} of the volume's bytes, and \
             hashes differ; hash {} instead",
            file.display()
        ));
    }
    LoopDevice { number, file: file.to_path_buf(), direct_io, sector_bytes, hidden_tail_bytes, notes }
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

    /// Of its logical sectors.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    /// Of the partitions that it has now.
    #[must_use]
    pub fn partitions(&self) -> Vec<PathBuf> {
        let partition = |partition| PathBuf::from(format!("/dev/loop{}p{partition}", self.number));
        partitions_of(self.number).into_iter().map(partition).collect()
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
        self.hidden_tail_bytes = hidden_tail(size, self.sector_bytes);
        let sectors = setting(self.number, "size").and_then(|text| text.parse::<u64>().ok());
        Ok(sectors.map_or(size - self.hidden_tail_bytes, |sectors| sectors * SECTOR_BYTES))
    }

    /// # Errors
    /// See [`detach`].
    pub fn detach(&self) -> Result<(), LoopError> {
        if !standing_on(&self.file).contains(&self.path()) {
            return Ok(()); // Somebody has detached it; its number may be another's by now.
        }
        let holders = holders::of_file(&self.file, &self.path());
        if !holders.is_empty() {
            return Err(LoopError::Busy { device: self.path(), holders });
        }
        detach(&self.path())
    }

    /// Ends it with its last user, who is served no more.
    pub fn let_go(&self) {
        if standing_on(&self.file).contains(&self.path())
            && let Ok(device) = open_device(self.number)
        {
            let _ = ioctl::clear(device.as_fd());
        }
    }
}

/// The devices that stand on `file`, also those of a daemon that is gone. To be asked while the file's mount
/// is still there, dead or alive: of a detached one the kernel no longer tells the path.
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
    let mut users = Vec::new();
    for _ in 0..DETACH_TRIES {
        if is_gone() {
            return Ok(());
        }
        users = holders::of(number);
        if users.is_empty() && clear_if_unused(number)? {
            return Ok(());
        }
        std::thread::sleep(DETACH_PAUSE);
    }
    Err(LoopError::Busy { device: device.to_path_buf(), holders: users })
}

/// Clearing a device in use marks it to vanish when its last user goes, and a refusal should change nothing:
/// so that is taken back while this is a user itself. There may be users whom nobody can see, in another
/// namespace for one.
fn clear_if_unused(number: u32) -> Result<bool, LoopError> {
    let device = open_device(number)?;
    let failed = |error: io::Error| LoopError::Failed { device: path_of(number), error };
    let is = |error: &io::Error, code| error.raw_os_error() == Some(code);
    // Of a device over a dead daemon's file the kernel does not tell; it shows that file whole, and has the
    // flags that it keeps.
    let before = ioctl::status(device.as_fd()).unwrap_or(ioctl::LoopInfo64::empty());
    match ioctl::clear(device.as_fd()) {
        Err(error) if is(&error, libc::ENXIO) => return Ok(true),
        Err(error) if is(&error, libc::EBUSY) => return Ok(false),
        cleared => cleared.map_err(failed)?,
    }
    match ioctl::keep(device.as_fd(), &before) {
        // Nobody else was a user: it goes when this is closed.
        Err(error) if is(&error, libc::ENXIO) => Ok(true),
        kept => kept.map(|()| false).map_err(failed),
    }
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
