//! The volume as a file: `MOUNTPOINT/NAME.raw`, served by FUSE.
//!
//! Owns: the mount, from the checks before it to its end, and telling the kernel when the volume grew.
//! Never: waits for the network on a thread that takes requests. Invariant: once `mount` returned, the file
//! is there; once `unmount` returned, nothing of it is left.
//! Called by `cheetah attach` and `up`. Parts: `point` (mount points and their faults), `device` (the mount
//! itself), `wire` (the kernel's bytes), `session` (requests as they come), `fs` (what each means),
//! `requests` (answers owed), `held` (what is no hole), `users` (who would lose it), `offers` (to the page
//! cache), `tune` (the kernel's read-ahead), `errno`. Tests: in each; through a mounted volume, end to end.
//!
//! The protocol is spoken here and not by a library, because requests are to be received where the volume's
//! other sockets are, on its data thread: the libraries there are have threads of their own that wait for one
//! request each.

mod device;
mod errno;
mod fs;
mod held;
mod offers;
mod point;
mod requests;
mod session;
mod tune;
mod users;
mod wire;

pub use point::{AbandonError, Abandoned, HelperError, MountError, Undetached, abandon};
pub use tune::{Tuning, tune};

use crate::Shared;
use crate::changes::Seen;
use crate::mountinfo::{self, MountEntry};
use cheetah_rim::volume::VolumeHandle;
use device::Device;
use fs::VolumeFs;
use held::Held;
use requests::Requests;
use rustix::mount::UnmountFlags;
use session::Session;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};
use tokio::sync::watch;
use users::{Mount, Opened};

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
    shared: bool,
    /// As the kernel lists it; none once we unmounted it.
    entry: Option<MountEntry>,
    opened: Arc<Opened>,
    growth: Option<JoinHandle<()>>,
    /// And of whose volume.
    offers: Option<(JoinHandle<()>, VolumeHandle)>,
    held: Option<Arc<Held>>,
    ended: watch::Sender<bool>,
    /// Dropped to end the growth thread.
    stop_growth: Option<watch::Sender<()>>,
}

/// Where a mount is that was made.
enum Place {
    OnTop,
    /// Below another, or moved away.
    Elsewhere,
    Gone,
}

/// Why a volume is still mounted.
#[derive(Debug)]
pub enum UnmountError {
    /// A tool has the file open, a loop device stands on it, or a shell's directory is there.
    Busy {
        point: PathBuf,
    },
    /// Somebody would lose what he has of it, here or in another namespace.
    Used {
        file: PathBuf,
        by: Vec<String>,
    },
    /// Something else is mounted over it, or it was moved.
    Covered {
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
            UnmountError::Used { file, by } => {
                write!(
                    f,
                    "{} is in use: {}; end or unmount that, then detach again",
                    file.display(),
                    by.join(", ")
                )
            }
            UnmountError::Covered { point } => write!(
                f,
                "{} is not where it can be unmounted: unmount what covers it, or move it back (`findmnt -t fuse.cheetah` shows \
                 where it is), then detach again",
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
pub fn mount(volume: &Shared, mountpoint: &Path, options: &Options) -> Result<Mounted, MountError> {
    let Shared { handle, changes } = volume;
    let point = point::prepare(mountpoint)?;
    let read_only = options.read_only || handle.read_only();
    let mut file_name = OsString::from(handle.name());
    file_name.push(".raw");
    let source = format!("{SOURCE_PREFIX}{}", handle.name());
    let failed = |point: &Path, error| MountError::Failed { point: point.to_path_buf(), error };
    let device = Arc::new(Device::mount(&point, &source, read_only, fs::terms())?);
    let (ended, stop) = (watch::Sender::new(false), watch::Sender::new(()));
    let stopped = stop.subscribe();
    let Some(entry) = mountinfo::read().ok().and_then(|all| mountinfo::at(&all, &point).cloned()) else {
        let _ = unmount_at(&point, true);
        return Err(failed(&point, io::Error::other("the kernel's list of mounts does not have it")));
    };
    let mut mounted = Mounted {
        file: point.join(&file_name),
        point,
        shared: device.shared(),
        entry: Some(entry),
        opened: Arc::default(),
        growth: None,
        offers: None,
        held: None,
        ended: ended.clone(),
        stop_growth: Some(stop),
    };
    let held = Held::new(handle.clone(), changes.clone());
    held.refresh(Instant::now());
    mounted.held = Some(held.clone());
    let fs = VolumeFs {
        handle: handle.clone(),
        file_name,
        read_only,
        uid: options.uid,
        gid: options.gid,
        mounted_at: SystemTime::now(),
        // Beside a reader there may be a writer on another machine, of whom nothing is heard here; a writer
        // is alone.
        cache: (!handle.read_only()).then(|| Seen::new(changes.clone())),
        changes: changes.clone(),
        held,
        opened: mounted.opened.clone(),
    };
    let requests = Requests::new(handle.clone(), device.clone(), changes.clone());
    // When the volume ends, and with it who answers, nobody holds the device, and the kernel ends what waits.
    let weak = Arc::downgrade(&device);
    let session = Session { fs: Arc::new(fs), device, requests, ended };
    handle.spawn_local(Box::new(move || Box::pin(session.serve())));
    if read_only {
        let thread = offers::start(handle, weak.clone()).map_err(|error| failed(&mounted.point, error))?;
        mounted.offers = Some((thread, handle.clone()));
    }
    let sizes = handle.size_changes();
    let growth = std::thread::Builder::new().name("growth".into());
    let growth = growth.spawn(move || announce(&weak, sizes, stopped));
    mounted.growth = Some(growth.map_err(|error| failed(&mounted.point, error))?);
    Ok(mounted)
}

/// A thread of its own: the kernel may make whoever tells it wait for requests that other threads answer.
fn announce(device: &Weak<Device>, mut sizes: watch::Receiver<u64>, mut stopped: watch::Receiver<()>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    runtime.block_on(async {
        loop {
            tokio::select! {
                _ = stopped.changed() => return,
                changed = sizes.changed() => if changed.is_err() { return },
            }
            // A negative offset invalidates the attributes and leaves the cached bytes, which are still
            // right.
            let Some(device) = device.upgrade() else { return };
            if let Err(error) = device.invalidate(fs::FILE, -1, 0) {
                tracing::warn!(%error, "the kernel was not told of new attributes; it may show the old ones");
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

    /// Whether root may read the file, too: a user's file is shown to its user alone unless `/etc/fuse.conf`
    /// says otherwise.
    #[must_use]
    pub fn shared_with_root(&self) -> bool {
        self.shared
    }

    /// Turns true when the mount is gone, also when somebody else unmounted it.
    #[must_use]
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }

    /// Whether somebody else has the volume for writing, as far as that is heard: what it takes may then
    /// change unheard.
    pub fn set_writer_beside(&self, there: bool) {
        if let Some(held) = &self.held {
            held.set_writer_beside(there);
        }
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
        match self.place() {
            Place::OnTop => {
                self.check_unused(None)?;
                unmount_at(&self.point, false)?;
            }
            Place::Elsewhere => return Err(UnmountError::Covered { point: self.point.clone() }),
            Place::Gone => {}
        }
        self.finish();
        Ok(())
    }

    /// Whether it can be unmounted with `device`, a loop device of its file that is ended first. The kernel
    /// refuses for what is open by way of this mount; a bind of it, or its copy in another namespace, would
    /// be left without a server.
    ///
    /// # Errors
    /// Who uses it.
    pub fn check_unused(&self, device: Option<&Path>) -> Result<(), UnmountError> {
        let Some(entry) = &self.entry else { return Ok(()) };
        match users::of(&Mount { entry, file: &self.file, device }, &self.opened) {
            by if by.is_empty() => Ok(()),
            by => Err(UnmountError::Used { file: self.file.clone(), by }),
        }
    }

    /// What somebody else mounted there since is not ours to unmount.
    fn place(&self) -> Place {
        let Some(ours) = &self.entry else { return Place::Gone };
        // Without a list it is tried.
        let Ok(all) = mountinfo::read() else { return Place::OnTop };
        // The kernel gives its numbers again; together with the volume's name one is ours.
        let is_ours = |entry: &MountEntry| {
            (entry.minor, &entry.source) == (ours.minor, &ours.source) && entry.is_fuse()
        };
        match mountinfo::at(&all, &self.point) {
            Some(entry) if is_ours(entry) => Place::OnTop,
            _ if all.iter().any(is_ours) => Place::Elsewhere,
            _ => Place::Gone,
        }
    }

    fn finish(&mut self) {
        self.entry = None;
        self.stop_growth = None;
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
        if self.entry.is_none() {
            return;
        }
        if let Err(error) = self.unmount() {
            tracing::warn!(%error, "unmounting lazily");
            // Whoever still has the file open is served until the volume is closed.
            let _ = unmount_at(&self.point, true);
            self.finish();
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
        Err(rustix::io::Errno::PERM) => {
            point::fusermount_unmount(point, lazy).map_err(|error| match error.is_busy() {
                true => UnmountError::Busy { point: point.to_path_buf() },
                false => failed(io::Error::other(error)),
            })
        }
        Err(error) => Err(failed(error.into())),
    }
}
