//! What this machine remembers of its attachments while they last: one small JSON file each, a log, a socket,
//! a lock.
//!
//! Owns the runtime directory and all that is in it. Never: anything that must outlive a reboot.
//! Invariants: the directory and its files are this user's alone, whatever others prepared in its place, and
//! once it was checked everything goes by its descriptor, so that nobody can put another one there. Who holds
//! the lock of a volume has it attached, or is putting it away, and nobody else touches what is there:
//! numbers and times of processes are others in other namespaces. Tests: below; `lab/tests/exposure.rs`.

use crate::cli::Front;
use crate::control;
use crate::failure::{Exit, Failure};
use cheetah_core::map::LeaseToken;
use cheetah_rim::own_fault::own_fault;
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A log that is larger when a volume is attached begins anew; the one before it is kept.
const LOG_BYTES_MAX: u64 = 1 << 20;
/// The log before.
const OLDER_LOG: &str = "log.1";

/// Where automatic mount points are made.
const MOUNTS: &str = "mnt";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub name: String,
    pub pool: String,
    /// None while it is asked for.
    pub token: Option<LeaseToken>,
    pub front: Front,
    /// As it sees itself.
    pub pid: u32,
    /// Where the volume's file is mounted (fuse, loop).
    pub mountpoint: Option<PathBuf>,
    /// The mount point was made by `attach` and goes with it.
    pub mountpoint_made: bool,
    pub loop_device: Option<PathBuf>,
    /// What `attach` printed; empty while it starts.
    pub place: String,
}

impl Record {
    pub fn is_starting(&self) -> bool {
        self.place.is_empty()
    }
}

/// The runtime directory, checked.
#[derive(Debug)]
pub struct RuntimeDir {
    fd: OwnedFd,
    path: PathBuf,
}

/// `$XDG_RUNTIME_DIR/cheetah`, or a directory of this user's own under /run or /tmp.
pub fn place() -> PathBuf {
    let uid = rustix::process::geteuid();
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|given| !given.is_empty()) {
        Some(directory) => PathBuf::from(directory).join("cheetah"),
        None if uid.is_root() => PathBuf::from("/run/cheetah"),
        None => std::env::temp_dir().join(format!("cheetah-{}", uid.as_raw())),
    }
}

impl RuntimeDir {
    /// Makes it if there is none.
    pub fn open() -> Result<RuntimeDir, Failure> {
        RuntimeDir::at(place())
    }

    /// The same for those who fill volumes, whose names are those of attachments.
    pub fn of_fillers() -> Result<RuntimeDir, Failure> {
        RuntimeDir::open()?;
        RuntimeDir::at(place().join("fill"))
    }

    fn at(path: PathBuf) -> Result<RuntimeDir, Failure> {
        let fd = open_own(&path).map_err(|why| {
            let text = format!(
                "cannot use the runtime directory {}: {why}; remove it if it is yours, or set XDG_RUNTIME_DIR to a \
                 directory of your own",
                path.display()
            );
            Failure::failed(text)
        })?;
        Ok(RuntimeDir { fd, path })
    }

    /// The path of one of its files, for people and for those who have to go by path.
    pub fn path_of(&self, name: &str, kind: &str) -> PathBuf {
        self.path.join(format!("{name}.{kind}"))
    }

    /// Where an export is that is to be reached by this user alone.
    pub fn export(&self, name: &str) -> Result<String, Failure> {
        check(name)?;
        Ok(format!("unix:{}", self.path_of(name, "nbd").display()))
    }

    fn fault(&self, file: &str, error: impl Into<io::Error>) -> Failure {
        Failure::failed(format!(
            "cannot use {}: {}",
            self.path.join(file).display(),
            own_fault(&error.into())
        ))
    }

    fn open_file(&self, file: &str, flags: OFlags) -> rustix::io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::openat(&self.fd, file, flags, Mode::RUSR | Mode::WUSR)?;
        let found = rustix::fs::fstat(&fd)?;
        // The directory may have been open to others once.
        if !is_mine(&found) || FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(Errno::PERM);
        }
        if found.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR)?;
        }
        Ok(File::from(fd))
    }

    /// The daemon's log, behind what earlier attachments met; and whether it was made just now.
    pub fn open_log(&self, name: &str) -> Result<(File, bool), Failure> {
        let (file, older) = (file(name, "log")?, file(name, OLDER_LOG)?);
        let fault = |e: Errno| self.fault(&file, e);
        let flags = OFlags::WRONLY | OFlags::APPEND;
        match self.open_file(&file, flags) {
            Ok(log) if log.metadata().is_ok_and(|found| found.len() <= LOG_BYTES_MAX) => {
                return Ok((log, false));
            }
            Ok(_) => rustix::fs::renameat(&self.fd, &file, &self.fd, &older).map_err(fault)?,
            Err(Errno::NOENT) => {}
            Err(e) => return Err(fault(e)),
        }
        Ok((self.open_file(&file, flags | OFlags::CREATE).map_err(fault)?, true))
    }

    /// The log of an attachment that never was.
    pub fn remove_log(&self, name: &str) {
        if let (Ok(file), Ok(None)) = (file(name, "log"), self.load::<IgnoredAny>(name)) {
            self.unlink(&file);
        }
    }

    pub fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Failure> {
        let file = file(name, "json")?;
        let unreadable = |why: String| {
            let path = self.path.join(&file);
            Failure::failed(format!(
                "the record {} cannot be read ({why}): remove it if nothing is attached",
                path.display()
            ))
        };
        let mut found = match self.open_file(&file, OFlags::RDONLY) {
            Err(Errno::NOENT) => return Ok(None),
            found => found.map_err(|e| unreadable(e.to_string()))?,
        };
        let mut bytes = Vec::new();
        found.read_to_end(&mut bytes).map_err(|e| unreadable(e.to_string()))?;
        serde_json::from_slice(&bytes).map(Some).map_err(|e| unreadable(e.to_string()))
    }

    fn store(&self, name: &str, record: &impl Serialize) -> Result<(), Failure> {
        let (draft, file) = (file(name, "new")?, file(name, "json")?);
        let bytes = serde_json::to_vec_pretty(record).map_err(|e| Failure::failed(e.to_string()))?;
        let written = self
            .open_file(&draft, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)
            .map_err(io::Error::from)
            .and_then(|mut opened| opened.write_all(&bytes))
            .and_then(|()| Ok(rustix::fs::renameat(&self.fd, &draft, &self.fd, &file)?));
        written.map_err(|e| {
            self.unlink(&draft);
            self.fault(&file, e)
        })
    }

    /// All but its log.
    fn remove(&self, name: &str) {
        for kind in ["json", "new", control::KIND, "nbd", "lock"] {
            if let Ok(file) = file(name, kind) {
                self.unlink(&file);
            }
        }
    }

    fn unlink(&self, file: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, file, AtFlags::empty());
    }

    /// A path by the descriptor: it leads to this directory whatever becomes of its name, and is short enough
    /// for a socket.
    fn by_descriptor(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{file}", self.fd.as_raw_fd()))
    }

    /// Asks the daemon of an attachment to end.
    pub fn connect(&self, name: &str) -> Result<UnixStream, Failure> {
        let file = file(name, control::KIND)?;
        UnixStream::connect(self.by_descriptor(&file)).map_err(|e| self.fault(&file, e))
    }

    /// An empty directory to mount the volume of this name at.
    pub fn make_mountpoint(&self, name: &str) -> Result<PathBuf, Failure> {
        check(name)?;
        let point = self.path.join(MOUNTS).join(name);
        let mounts = make_own_at(self.fd.as_fd(), Path::new(MOUNTS));
        let made = mounts.map(|mounts| match rustix::fs::mkdirat(&mounts, name, Mode::RWXU) {
            // Also one where a dead mount is: mounting clears that away.
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(e) => Err(NotOwn::System(e.into())),
        });
        let fault = |why| Failure::failed(format!("cannot make the mount point {}: {why}", point.display()));
        made.map_err(fault)?.map_err(fault)?;
        Ok(point)
    }

    /// A directory for the identities of a pool that ends with this process.
    pub fn make_identities(&self) -> Result<PathBuf, Failure> {
        let name = format!("up-{}", std::process::id());
        let path = self.path.join(&name);
        let fault = |why: NotOwn| Failure::failed(format!("cannot make {}: {why}", path.display()));
        make_own_at(self.fd.as_fd(), Path::new(&name)).map_err(fault)?;
        Ok(path)
    }

    /// Takes the volume's place among the attachments of this user, from before its lease to the end.
    ///
    /// # Errors
    /// Another process has it.
    pub fn claim(self, name: &str) -> Result<Claim, Failure> {
        let taken = format!(
            "volume '{name}' is attached, or being attached, by another process of this user on this machine: \
             `cheetah detach {name}` ends that"
        );
        self.try_claim(name)?.ok_or_else(|| Failure::new(Exit::Refused, taken))
    }

    /// The same; none while another process has it.
    pub fn try_claim(self, name: &str) -> Result<Option<Claim>, Failure> {
        let file = file(name, "lock")?;
        let lock = loop {
            let lock =
                self.open_file(&file, OFlags::RDWR | OFlags::CREATE).map_err(|e| self.fault(&file, e))?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(self.fault(&file, e)),
            }
            // Who had it before may have removed the file between its opening here and its lock.
            let there = rustix::fs::statat(&self.fd, &file, AtFlags::SYMLINK_NOFOLLOW);
            let ours = rustix::fs::fstat(&lock).map_err(|e| self.fault(&file, e))?;
            if there.is_ok_and(|there| (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)) {
                break lock;
            }
        };
        Ok(Some(Claim { directory: self, name: name.to_owned(), clears: true, _lock: lock }))
    }

    /// The claim of the process that has the volume now, to see when it ends; none: it has ended.
    pub fn other_claim(&self, name: &str) -> Result<Option<OtherClaim>, Failure> {
        let file = file(name, "lock")?;
        match self.open_file(&file, OFlags::RDONLY) {
            Ok(lock) => Ok(Some(OtherClaim { lock })),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(self.fault(&file, e)),
        }
    }
}

/// Another process' place in the runtime directory.
pub struct OtherClaim {
    lock: File,
}

impl OtherClaim {
    pub fn has_ended(&self) -> bool {
        let free = rustix::fs::flock(&self.lock, FlockOperation::NonBlockingLockShared).is_ok();
        if free {
            let _ = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
        }
        free
    }
}

/// A volume's place in the runtime directory. Dropping it removes what is there, and then lets others in.
#[derive(Debug)]
pub struct Claim {
    directory: RuntimeDir,
    name: String,
    clears: bool,
    /// Closed behind all others.
    _lock: File,
}

impl Claim {
    /// Where `detach` asks.
    pub fn listen(&self) -> Result<UnixListener, Failure> {
        let file = file(&self.name, control::KIND)?;
        self.directory.unlink(&file);
        let path = self.directory.by_descriptor(&file);
        let listener = UnixListener::bind(path).and_then(|listener| {
            rustix::fs::chmodat(&self.directory.fd, &file, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(|e| self.directory.fault(&file, e))
    }

    pub fn store(&self, record: &impl Serialize) -> Result<(), Failure> {
        self.directory.store(&self.name, record)
    }

    /// Lets others in, and leaves them what is there.
    pub fn leave(mut self) {
        self.clears = false;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.clears {
            self.directory.remove(&self.name);
        }
    }
}

fn check(name: &str) -> Result<(), Failure> {
    cheetah_core::units::check_name(name).map_err(Failure::usage)
}

fn file(name: &str, kind: &str) -> Result<String, Failure> {
    check(name)?;
    Ok(format!("{name}.{kind}"))
}

fn is_mine(found: &Stat) -> bool {
    found.st_uid == rustix::process::geteuid().as_raw()
}

/// Why a directory is not this user's alone.
#[derive(Debug)]
enum NotOwn {
    System(io::Error),
    /// A link, or no directory.
    NotFollowed,
    /// Another user's, by number.
    Other(u32),
}

impl fmt::Display for NotOwn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotOwn::System(error) => f.write_str(&own_fault(error)),
            NotOwn::NotFollowed => f.write_str("it is a link or no directory, and not followed"),
            NotOwn::Other(user) => write!(f, "it belongs to the user with the number {user}"),
        }
    }
}

impl std::error::Error for NotOwn {}

/// A directory of this user's alone, with those above it.
fn open_own(path: &Path) -> Result<OwnedFd, NotOwn> {
    if let Some(above) = path.parent() {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(above);
        made.map_err(NotOwn::System)?;
    }
    make_own_at(CWD, path)
}

fn make_own_at(at: rustix::fd::BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, NotOwn> {
    let said = |e: Errno| NotOwn::System(e.into());
    match rustix::fs::mkdirat(at, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(said(e)),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(at, path, flags, Mode::empty()).map_err(|e| match e {
        Errno::LOOP | Errno::NOTDIR => NotOwn::NotFollowed,
        e => said(e),
    })?;
    let found = rustix::fs::fstat(&fd).map_err(said)?;
    if !is_mine(&found) {
        return Err(NotOwn::Other(found.st_uid));
    }
    if found.st_mode & 0o077 != 0 {
        rustix::fs::fchmod(&fd, Mode::RWXU).map_err(said)?;
    }
    Ok(fd)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("cheetah-runtime-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Folder(path)
        }
        fn directory(&self) -> Result<RuntimeDir, NotOwn> {
            let path = self.0.join("cheetah");
            Ok(RuntimeDir { fd: open_own(&path)?, path })
        }
        fn mode(&self, file: &str) -> u32 {
            std::fs::symlink_metadata(self.0.join("cheetah").join(file)).unwrap().mode() & 0o777
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn record(name: &str) -> Record {
        Record {
            name: name.into(),
            pool: "http://127.0.0.1:1".into(),
            token: Some(LeaseToken(7)),
            front: Front::Export,
            pid: std::process::id(),
            mountpoint: None,
            mountpoint_made: false,
            loop_device: None,
            place: String::new(),
        }
    }

    #[test]
    fn what_others_prepared_is_not_followed() {
        let folder = Folder::new("link");
        let target = folder.0.join("target");
        std::fs::create_dir(&target).unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink(&target, folder.0.join("cheetah")).unwrap();
        assert!(folder.directory().unwrap_err().to_string().contains("link"));
        assert_eq!(std::fs::metadata(&target).unwrap().mode() & 0o777, 0o755, "the target was changed");
        std::fs::remove_file(folder.0.join("cheetah")).unwrap();
        std::fs::write(folder.0.join("cheetah"), "x").unwrap();
        assert!(folder.directory().unwrap_err().to_string().contains("no directory"));
    }

    #[test]
    fn a_directory_and_its_files_are_closed_to_others() {
        let folder = Folder::new("modes");
        std::fs::create_dir(folder.0.join("cheetah")).unwrap();
        std::fs::set_permissions(folder.0.join("cheetah"), std::fs::Permissions::from_mode(0o777)).unwrap();
        std::fs::write(folder.0.join("cheetah/case.log"), "old").unwrap();
        std::fs::set_permissions(folder.0.join("cheetah/case.log"), std::fs::Permissions::from_mode(0o666))
            .unwrap();
        let directory = folder.directory().unwrap();
        assert_eq!(folder.mode("."), 0o700);
        assert!(!directory.open_log("case").unwrap().1);
        assert_eq!(folder.mode("case.log"), 0o600);
        let point = directory.make_mountpoint("case").unwrap();
        assert!(point.is_dir() && directory.make_mountpoint("case").is_ok());
        let claim = directory.claim("case").unwrap();
        let _listener = claim.listen().unwrap();
        claim.store(&record("case")).unwrap();
        assert_eq!((folder.mode("case.json"), folder.mode("case.control")), (0o600, 0o600));
        assert!(folder.directory().unwrap().connect("case").is_ok());
        assert!(folder.directory().unwrap().load::<Record>("case").unwrap().unwrap().is_starting());
        let again = folder.directory().unwrap().claim("case").unwrap_err();
        assert_eq!(again.exit, Exit::Refused);
        assert!(folder.directory().unwrap().try_claim("case").unwrap().is_none());
        let seen = folder.directory().unwrap().other_claim("case").unwrap().unwrap();
        assert!(!seen.has_ended());
        drop(claim);
        assert!(seen.has_ended());
        assert!(folder.directory().unwrap().other_claim("case").unwrap().is_none());
        assert!(folder.directory().unwrap().load::<Record>("case").unwrap().is_none());
        // What one that was killed left is there until somebody has put all of it away.
        let claim = folder.directory().unwrap().claim("case").unwrap();
        claim.store(&record("case")).unwrap();
        claim.leave();
        assert!(folder.directory().unwrap().load::<Record>("case").unwrap().is_some());
        folder.directory().unwrap().claim("case").unwrap();
        assert!(folder.directory().unwrap().load::<Record>("case").unwrap().is_none());
    }

    #[test]
    fn a_log_goes_on_until_it_is_large_and_one_older_is_kept() {
        let folder = Folder::new("log");
        let directory = folder.directory().unwrap();
        let read = |kind: &str| std::fs::read(folder.0.join(format!("cheetah/case.{kind}"))).unwrap();
        let (mut log, is_new) = directory.open_log("case").unwrap();
        assert!(is_new);
        log.write_all(b"first\n").unwrap();
        let (mut log, is_new) = directory.open_log("case").unwrap();
        assert!(!is_new);
        log.write_all(b"second\n").unwrap();
        assert_eq!(read("log"), b"first\nsecond\n");
        log.set_len(LOG_BYTES_MAX + 1).unwrap();
        let (mut log, is_new) = directory.open_log("case").unwrap();
        assert!(is_new && read("log").is_empty() && read(OLDER_LOG).starts_with(b"first\n"));
        log.write_all(b"third\n").unwrap();
        assert_eq!(folder.mode("case.log"), 0o600);
        directory.remove_log("case");
        assert!(folder.directory().unwrap().open_log("case").unwrap().1, "it was removed");
        assert!(read(OLDER_LOG).starts_with(b"first\n"), "what is older stays");
    }

    #[test]
    fn links_in_the_place_of_files_are_not_followed() {
        let folder = Folder::new("files");
        let directory = folder.directory().unwrap();
        let victim = folder.0.join("victim");
        std::fs::write(&victim, "mine").unwrap();
        for kind in ["log", "json", "new", "lock"] {
            symlink(&victim, folder.0.join(format!("cheetah/case.{kind}"))).unwrap();
        }
        assert!(directory.open_log("case").is_err());
        assert!(directory.load::<Record>("case").is_err());
        assert!(directory.store("case", &record("case")).is_err());
        assert!(directory.claim("case").is_err());
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "mine");
    }
}
