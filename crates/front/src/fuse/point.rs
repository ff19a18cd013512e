//! Mount points: whether a volume can be mounted there, and clearing away what a killed daemon left.
//!
//! Owns: every reason not to mount, with what to do about it. Never: detaches a mount that is alive or not
//! ours. Invariant: nothing here hangs on a server that does not answer; what may hang runs on a thread of
//! its own. Called by `fuse::mount` and by `cheetah detach`. Tests: below.

use super::SOURCE_PREFIX;
use crate::mountinfo::{self, MountEntry};
use rustix::mount::UnmountFlags;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A server that does not answer a `statfs` by then is not asked further.
const PROBE_TIME: Duration = Duration::from_secs(2);

/// Why a volume was not mounted; the text says what to do.
#[derive(Debug)]
pub enum MountError {
    Missing {
        point: PathBuf,
    },
    NotDirectory {
        point: PathBuf,
    },
    NotEmpty {
        point: PathBuf,
    },
    /// Something is mounted there.
    Busy {
        point: PathBuf,
        by: String,
    },
    /// What is mounted there does not answer.
    Hung {
        point: PathBuf,
        by: String,
    },
    /// What is mounted there is dead and could not be cleared away.
    Dead {
        point: PathBuf,
        by: String,
        why: Undetached,
    },
    NoFuse,
    FuseDenied,
    NoFusermount,
    Failed {
        point: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { point } => {
                write!(f, "mount point {0} does not exist: create it with `mkdir {0}`", point.display())
            }
            Self::NotDirectory { point } => {
                write!(f, "mount point {} is not a directory: name an empty one", point.display())
            }
            Self::NotEmpty { point } => write!(
                f,
                "mount point {} is not empty, and its files would be hidden: name an empty directory",
                point.display()
            ),
            Self::Busy { point, by } => write!(
                f,
                "{} is in use: {by} is mounted there; detach it or name another directory",
                point.display()
            ),
            Self::Hung { point, by } => write!(
                f,
                "{by} at {0} does not answer: end its daemon, then `umount -l {0}` as root or `fusermount3 -uz {0}`",
                point.display()
            ),
            Self::Dead { point, by, why } => write!(
                f,
                "{by} at {0} is dead and could not be cleared away ({why}): run `umount -l {0}` as root or \
                 `fusermount3 -uz {0}`",
                point.display()
            ),
            Self::NoFuse => write!(
                f,
                "this machine has no /dev/fuse: run `modprobe fuse` as root (in a container, pass the device in), \
                 or attach with --front export"
            ),
            Self::FuseDenied => write!(
                f,
                "/dev/fuse may not be opened by this user: run `chmod 666 /dev/fuse` as root, attach as root, \
                 or attach with --front export"
            ),
            Self::NoFusermount => write!(
                f,
                "fusermount3 is not installed, without which only root can mount: install the package fuse3, \
                 attach as root, or attach with --front export"
            ),
            Self::Failed { point, error } => write!(f, "cannot mount at {}: {error}", point.display()),
        }
    }
}

impl std::error::Error for MountError {}

/// Checks, clears a dead mount of ours away, and returns the path that the kernel's list will show.
pub(super) fn prepare(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let failed = |error| MountError::Failed { point: mountpoint.to_path_buf(), error };
    let point = resolve(mountpoint).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::Missing { point: mountpoint.to_path_buf() },
        io::ErrorKind::NotADirectory => MountError::NotDirectory { point: mountpoint.to_path_buf() },
        _ => failed(error),
    })?;
    let entries = mountinfo::read().map_err(failed)?;
    if let Some(entry) = mountinfo::at(&entries, &point) {
        clear(&point, entry)?;
    }
    // Only now is it safe to touch.
    match std::fs::metadata(&point) {
        Ok(metadata) if !metadata.is_dir() => return Err(MountError::NotDirectory { point }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(MountError::Missing { point }),
        Err(e) => return Err(failed(e)),
        Ok(_) => {}
    }
    if std::fs::read_dir(&point).map_err(failed)?.next().is_some() {
        return Err(MountError::NotEmpty { point });
    }
    check_fuse()?;
    Ok(point)
}

/// The absolute path without links, without touching what may be mounted at its last component.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    if let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) {
        let point = parent.canonicalize()?.join(name);
        if mountinfo::at(&mountinfo::read()?, &point).is_some() {
            return Ok(point);
        }
    }
    absolute.canonicalize()
}

fn clear(point: &Path, entry: &MountEntry) -> Result<(), MountError> {
    let point = point.to_path_buf();
    let by = format!("{} ({})", entry.source.to_string_lossy(), entry.fs_type);
    if !entry.is_fuse() {
        return Err(MountError::Busy { point, by });
    }
    match probe(&point) {
        Probe::Alive => Err(MountError::Busy { point, by }),
        Probe::Hung => Err(MountError::Hung { point, by }),
        Probe::Dead if !is_ours(entry) => Err(MountError::Dead { point, by, why: Undetached::NotOurs }),
        Probe::Dead => match detach(&point) {
            Ok(()) => {
                tracing::warn!(point = %point.display(), "cleared away the mount of a dead daemon");
                Ok(())
            }
            Err(why) => Err(MountError::Dead { point, by, why }),
        },
    }
}

fn is_ours(entry: &MountEntry) -> bool {
    entry.is_fuse() && entry.source.to_string_lossy().starts_with(SOURCE_PREFIX)
}

#[derive(Debug, PartialEq, Eq)]
enum Probe {
    Alive,
    Dead,
    Hung,
}

/// `statfs` always asks the server; `stat` may be answered from the kernel's cache long after its death.
fn probe(point: &Path) -> Probe {
    let (tell, told) = std::sync::mpsc::channel();
    let asked = point.to_path_buf();
    let spawned = std::thread::Builder::new().name("probe".into()).spawn(move || {
        let _ = tell.send(rustix::fs::statfs(&asked).err());
    });
    if spawned.is_err() {
        return Probe::Hung;
    }
    match told.recv_timeout(PROBE_TIME) {
        Ok(Some(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED)) => Probe::Dead,
        Ok(_) => Probe::Alive,
        Err(_) => Probe::Hung,
    }
}

fn check_fuse() -> Result<(), MountError> {
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Err(MountError::FuseDenied),
        Err(_) => return Err(MountError::NoFuse),
    }
    if !rustix::process::geteuid().is_root() && fusermount().is_none() {
        return Err(MountError::NoFusermount);
    }
    Ok(())
}

pub(super) fn fusermount() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path)
        .chain(["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .collect();
    ["fusermount3", "fusermount"]
        .iter()
        .find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()))
}

/// Why the helper did not unmount.
#[derive(Debug)]
pub enum HelperError {
    Missing,
    /// It could not be run.
    Unrun(io::Error),
    /// In its own words.
    Refused(String),
}

impl HelperError {
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, HelperError::Refused(said) if said.contains("busy"))
    }
}

impl fmt::Display for HelperError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HelperError::Missing => f.write_str("fusermount3 is not installed"),
            HelperError::Unrun(error) => error.fmt(f),
            HelperError::Refused(said) => f.write_str(said),
        }
    }
}

impl std::error::Error for HelperError {}

/// The helper may unmount what its caller mounted.
pub(super) fn fusermount_unmount(point: &Path, lazy: bool) -> Result<(), HelperError> {
    let helper = fusermount().ok_or(HelperError::Missing)?;
    let flags = if lazy { "-uz" } else { "-u" };
    let run = Command::new(helper).arg(flags).arg("--").arg(point).output();
    let output = run.map_err(HelperError::Unrun)?;
    if output.status.success() {
        return Ok(());
    }
    Err(HelperError::Refused(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Why a mount stays where it is.
#[derive(Debug)]
pub enum Undetached {
    NotOurs,
    Kernel(io::Error),
    /// This user may not, and the helper did not.
    Helper(HelperError),
}

impl fmt::Display for Undetached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undetached::NotOurs => f.write_str("it is not a mount of Cheetah"),
            Undetached::Kernel(error) => error.fmt(f),
            Undetached::Helper(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Undetached {}

fn detach(point: &Path) -> Result<(), Undetached> {
    match rustix::mount::unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount_unmount(point, true).map_err(Undetached::Helper),
        Err(error) => Err(Undetached::Kernel(error.into())),
    }
}

/// Why a mount that nobody serves stays.
#[derive(Debug)]
pub enum AbandonError {
    /// What is there cannot be told.
    Unknown {
        point: PathBuf,
        error: io::Error,
    },
    NotOurs {
        point: PathBuf,
        fs_type: String,
    },
    Stuck {
        point: PathBuf,
        why: Undetached,
    },
}

impl fmt::Display for AbandonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AbandonError::Unknown { point, error } => write!(f, "{}: {error}", point.display()),
            AbandonError::NotOurs { point, fs_type } => {
                write!(f, "{fs_type} is mounted at {}, not a volume of ours", point.display())
            }
            AbandonError::Stuck { point, why } => write!(f, "cannot detach {}: {why}", point.display()),
        }
    }
}

impl std::error::Error for AbandonError {}

/// What `abandon` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// Requests that waited for the dead daemon were ended, and tools that hung got an error.
    pub aborted: bool,
    /// It was mounted and is no longer.
    pub detached: bool,
}

/// Ends a mount whose daemon was killed or hangs: what waits on it gets an error (root only), and it
/// disappears.
///
/// # Errors
/// What is mounted there is not ours, or it could not be detached.
pub fn abandon(mountpoint: &Path) -> Result<Abandoned, AbandonError> {
    let say = |error| AbandonError::Unknown { point: mountpoint.to_path_buf(), error };
    let point = match resolve(mountpoint) {
        Ok(point) => point,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Ok(Abandoned { aborted: false, detached: false });
        }
        Err(e) => return Err(say(e)),
    };
    let entries = mountinfo::read().map_err(say)?;
    let Some(entry) = mountinfo::at(&entries, &point) else {
        return Ok(Abandoned { aborted: false, detached: false });
    };
    if !is_ours(entry) {
        return Err(AbandonError::NotOurs { fs_type: entry.fs_type.clone(), point });
    }
    let control = format!("/sys/fs/fuse/connections/{}/abort", entry.minor);
    let aborted = std::fs::write(control, "1").is_ok();
    detach(&point).map_err(|why| AbandonError::Stuck { point, why })?;
    Ok(Abandoned { aborted, detached: true })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("cheetah-front-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn faults_of_a_mount_point_are_named_with_what_to_do() {
        let folder = scratch("point");
        let missing = prepare(&folder.join("missing")).unwrap_err();
        assert!(matches!(missing, MountError::Missing { .. }) && missing.to_string().contains("mkdir"));
        let below_missing = prepare(&folder.join("missing/below")).unwrap_err();
        assert!(matches!(below_missing, MountError::Missing { .. }));
        std::fs::write(folder.join("file"), "x").unwrap();
        assert!(matches!(prepare(&folder.join("file")), Err(MountError::NotDirectory { .. })));
        assert!(matches!(prepare(&folder), Err(MountError::NotEmpty { .. })));
        let busy = prepare(Path::new("/proc")).unwrap_err();
        assert!(matches!(&busy, MountError::Busy { by, .. } if by.contains("proc")), "{busy}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn links_and_dots_lead_to_the_directory() {
        let folder = scratch("links").canonicalize().unwrap();
        std::fs::create_dir_all(folder.join("real")).unwrap();
        std::os::unix::fs::symlink(folder.join("real"), folder.join("link")).unwrap();
        assert_eq!(resolve(&folder.join("link")).unwrap(), folder.join("real"));
        assert_eq!(resolve(&folder.join("real/../real/.")).unwrap(), folder.join("real"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_not_ours_is_never_abandoned() {
        assert!(abandon(Path::new("/proc")).is_err());
        let nothing = Abandoned { aborted: false, detached: false };
        assert_eq!(abandon(Path::new("/nonexistent/x")).ok(), Some(nothing));
        let folder = scratch("plain");
        assert_eq!(abandon(&folder).ok(), Some(nothing));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_live_file_system_is_alive() {
        assert_eq!(probe(Path::new("/proc")), Probe::Alive);
    }
}
