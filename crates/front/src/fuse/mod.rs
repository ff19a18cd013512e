//! The volume as a file: `MOUNTPOINT/NAME.raw`, served by FUSE.
//!
//! Owns: the mount, from the checks before it to its end, and telling the kernel when the volume grew.
//! Never: waits for the network on a thread that takes requests. Invariant: once `mount` returned, the file is
//! there; once `unmount` returned, nothing of it is left.
//! Called by `cheetah attach` and `up`. Parts: `point` (mount points and their faults), `fs` (operations),
//! `requests` (replies owed), `offers` (to the page cache), `tune` (the kernel's read-ahead), `errno`. Tests: in each; through a mounted volume, end to end.

mod errno;
mod fs;
mod offers;
mod point;
mod requests;
mod slab;
mod tune;

pub use point::{Abandoned, MountError, abandon};
pub use tune::{Tuning, tune};

use crate::changes::{Changes, Seen};
use cheetah_rim::volume::VolumeHandle;
use fs::VolumeFs;
use fuser::{BackgroundSession, Config, MountOption, Notifier, Session, SessionACL};
use requests::Requests;
use rustix::mount::UnmountFlags;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::SystemTime;
use tokio::sync::watch;

/// Two threads; more gained nothing, and a descriptor each neither.
const THREADS: usize = 2;
/// In front of the volume's name in the list of mounts; by it we know our own.
const SOURCE_PREFIX: &str = "cheetah:";

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Who owns the file: the user who attaches, also when that goes through sudo.
    pub uid: u32,
    pub gid: u32,
    /// Refuse writes; a volume that was attached read-only refuses them in any case.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        Options { uid, gid, read_only: false }
    }
}

/// A mounted volume. Dropping it unmounts, lazily if something still uses the file.
#[derive(Debug)]
pub struct Mounted {
    file: PathBuf,
    point: PathBuf,
    session: Option<BackgroundSession>,
    growth: Option<JoinHandle<()>>,
    /// And of whose volume.
    offers: Option<(JoinHandle<()>, VolumeHandle)>,
    ended: watch::Sender<bool>,
    /// Dropped to end the growth thread.
    stop_growth: Option<watch::Sender<()>>,
}

/// Why a volume is still mounted.
#[derive(Debug)]
pub enum UnmountError {
    /// A tool has the file open, a loop device stands on it, or a shell's directory is there.
    Busy {
        point: PathBuf,
    },
    Failed {
        point: PathBuf,
        error: io::Error,
    },
}

impl fmt::Display for UnmountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UnmountError::Busy { point } => write!(
                f,
                "{} is in use: end the programs that use it (`fuser -vm {}` lists them), then detach again",
                point.display(),
                point.display()
            ),
            UnmountError::Failed { point, error } => write!(f, "cannot unmount {}: {error}", point.display()),
        }
    }
}

impl std::error::Error for UnmountError {}

/// Mounts the volume at the empty directory `mountpoint`. A dead mount of ours is cleared away first.
///
/// # Errors
/// What is wrong about the mount point or about FUSE here, and what to do.
pub fn mount(handle: &VolumeHandle, mountpoint: &Path, options: &Options) -> Result<Mounted, MountError> {
    let point = point::prepare(mountpoint)?;
    let read_only = options.read_only || handle.read_only();
    let mut file_name = OsString::from(handle.name());
    file_name.push(".raw");
    let ended = watch::Sender::new(false);
    let requests = Requests::new(handle.clone());
    let fs = VolumeFs {
        requests,
        file_name: file_name.clone(),
        read_only,
        uid: options.uid,
        gid: options.gid,
        mounted_at: SystemTime::now(),
        // Beside a reader there may be a writer on another machine, of whom nothing is heard here; a writer is alone.
        cache: (!handle.read_only()).then(|| Seen::new(Changes::of(handle))),
        ended: ended.clone(),
    };
    let session = Session::new(fs, &point, &config(handle.name(), read_only))
        .and_then(Session::spawn)
        .map_err(|error| MountError::of_fuse(&point, error))?;
    let mut mounted = Mounted {
        file: point.join(file_name),
        point,
        session: None,
        growth: None,
        offers: None,
        ended,
        stop_growth: None,
    };
    let notifier = session.notifier();
    mounted.session = Some(session);
    if read_only {
        let thread = offers::start(handle, notifier.clone());
        let thread = thread.map_err(|error| MountError::Failed { point: mounted.point.clone(), error })?;
        mounted.offers = Some((thread, handle.clone()));
    }
    let (stop, stopped) = watch::channel(());
    mounted.stop_growth = Some(stop);
    let sizes = handle.size_changes();
    let growth = std::thread::Builder::new().name("growth".into()).spawn(move || {
        announce_growth(&notifier, sizes, stopped);
    });
    mounted.growth =
        Some(growth.map_err(|error| MountError::Failed { point: mounted.point.clone(), error })?);
    Ok(mounted)
}

fn config(name: &str, read_only: bool) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(format!("{SOURCE_PREFIX}{name}")),
        MountOption::Subtype("cheetah".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
        MountOption::NoAtime,
        if read_only { MountOption::RO } else { MountOption::RW },
    ];
    // Only root may open it to others, and root's tools (a loop device, mount) run as others than who attached;
    // the mode of the file still holds (default_permissions).
    config.acl = if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = false;
    config
}

/// A thread of its own: the kernel may make whoever tells it wait for requests that other threads answer.
fn announce_growth(notifier: &Notifier, mut sizes: watch::Receiver<u64>, mut stopped: watch::Receiver<()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    runtime.block_on(async {
        loop {
            tokio::select! {
                _ = stopped.changed() => return,
                changed = sizes.changed() => if changed.is_err() { return },
            }
            // A negative offset invalidates the attributes and leaves the cached bytes, which are still right.
            if let Err(error) = notifier.inval_inode(fs::FILE, -1, 0) {
                tracing::warn!(%error, "the kernel was not told of the new size; it may show the old one");
            }
        }
    });
}

impl Mounted {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file
    }

    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.point
    }

    /// Turns true when the mount is gone, also when somebody else unmounted it.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Sets read-ahead for the file; only root may.
    #[must_use]
    pub fn tune(&self, read_ahead_kb: u32) -> Tuning {
        tune(&self.point, read_ahead_kb)
    }

    /// Unmounts and waits for the end of the threads.
    ///
    /// # Errors
    /// It is in use: then it stays mounted, and this may be called again.
    pub fn unmount(&mut self) -> Result<(), UnmountError> {
        if self.session.is_some() && !*self.ended.borrow() {
            unmount_at(&self.point, false)?;
        }
        self.finish();
        Ok(())
    }

    fn finish(&mut self) {
        self.stop_growth = None;
        if let Some(session) = self.session.take()
            && let Err(error) = session.umount_and_join()
        {
            tracing::debug!(%error, "the FUSE session ended with an error");
        }
        // A thread that finds the device gone may end before the kernel's DESTROY, which says so otherwise, was read.
        self.ended.send_replace(true);
        if let Some(growth) = self.growth.take() {
            let _ = growth.join();
        }
        if let Some((thread, volume)) = self.offers.take() {
            volume.offer_to(None);
            let _ = thread.join();
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.is_none() {
            return;
        }
        match self.unmount() {
            Ok(()) => {}
            Err(error) => {
                tracing::warn!(%error, "unmounting lazily");
                // The threads go on for whoever still has the file open, until this process ends.
                let _ = unmount_at(&self.point, true);
                self.stop_growth = None;
                std::mem::forget(self.session.take());
            }
        }
    }
}

/// By the system call where we may, else by the helper that is allowed to.
fn unmount_at(point: &Path, lazy: bool) -> Result<(), UnmountError> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let failed = |error: io::Error| UnmountError::Failed { point: point.to_path_buf(), error };
    match rustix::mount::unmount(point, flags | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(UnmountError::Busy { point: point.to_path_buf() }),
        // Not mounted any more.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(rustix::io::Errno::PERM) => point::fusermount_unmount(point, lazy).map_err(|text| {
            if text.contains("busy") {
                UnmountError::Busy { point: point.to_path_buf() }
            } else {
                failed(io::Error::other(text))
            }
        }),
        Err(error) => Err(failed(error.into())),
    }
}
