//! A `qemu-nbd` of our own: it reads formats and speaks protocols that nothing else here does, and serves
//! them on a socket that nobody else reaches.
//!
//! Owns: the process and the directory of its socket, and what it says when it ends. Never: reading, which
//! is the `Export`'s, who has it started anew when nothing comes any more: a read of a disk whose server is
//! gone stays pending in it for ever, and it does not heed SIGTERM then. Invariants: it is told to open for
//! reading alone; it is gone, and its directory with it, when this is; and it ends by itself when its last
//! client has gone, so none is left of a process that was killed. Called by `nbd`, `foreign`. Tests: below;
//! `lab/tests/sources.rs`, `lab/tests/by_qemu.rs`.

use cheetah_link::{Access, Link, NoLink};
use cheetah_nbd::uri::Uri;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PROGRAM: &str = "qemu-nbd";
/// Between two looks whether it is ready.
const LOOK: Duration = Duration::from_millis(5);
/// Directories that may be taken already.
const PLACES_MAX: u64 = 1 << 16;
/// What it says is read up to here.
const SAID_BYTES_MAX: u64 = 4096;

/// What it is to serve.
#[derive(Clone, Debug)]
pub(crate) enum Serves {
    /// A file of this machine, by the driver of a format.
    File { driver: &'static str, path: PathBuf },
    /// A disk of a server, as it lies there.
    Address(String),
}

#[derive(Debug)]
pub(crate) struct Helper {
    serves: Serves,
    directory: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Helper {
    /// Nothing runs before `link`.
    pub(crate) fn new(serves: Serves) -> io::Result<Helper> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|own| own.is_dir());
        let own = own.unwrap_or_else(std::env::temp_dir);
        loop {
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let directory = own.join(format!("cheetah-source.{}.{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => return Ok(Helper { serves, directory, child: Mutex::new(None) }),
                // Of a process that was killed, or another user's.
                Err(why) if why.kind() == ErrorKind::AlreadyExists && number < PLACES_MAX => {}
                Err(why) => return Err(why),
            }
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("s")
    }

    fn said(&self) -> PathBuf {
        self.directory.join("said")
    }

    /// Why it has ended.
    fn reason(&self) -> NoLink {
        let mut said = Vec::new();
        let read = File::open(self.said()).and_then(|from| from.take(SAID_BYTES_MAX).read_to_end(&mut said));
        read.map_or_else(|why| NoLink::Final(why.to_string()), |_| reason(&String::from_utf8_lossy(&said)))
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the one that runs, if one does, starts another, and connects to it.
    pub(super) fn link(&self, uri: &Uri, time: Duration) -> Result<Arc<Link>, NoLink> {
        let mut running = self.child();
        end(running.take());
        let _ = std::fs::remove_file(self.socket());
        let said = File::create(self.said()).map_err(|why| NoLink::Final(why.to_string()))?;
        let spawned = self.command().stderr(said).spawn();
        let child = running.insert(spawned.map_err(|why| NoLink::Final(not_here(&why)))?);
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // It listens before it has opened what it serves, and says nothing until then.
            let why = match self.socket().exists() {
                true => match Link::open(uri, Access::Read, left) {
                    Err(NoLink::Again(why)) => why,
                    other => return other,
                },
                false => format!("{PROGRAM} does not listen"),
            };
            match child.try_wait() {
                Ok(Some(_)) => return Err(self.reason()),
                Ok(None) if left > LOOK => std::thread::sleep(LOOK),
                Ok(None) => return Err(NoLink::Again(why)),
                Err(why) => return Err(NoLink::Final(why.to_string())),
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["--read-only", "--shared=0", "--socket"]).arg(self.socket());
        match &self.serves {
            Serves::File { driver, path } => {
                let mut options = OsString::from(format!("driver={driver},file.driver=file,file.filename="));
                options.push(escaped(path));
                command.arg("--image-opts").arg("--").arg(options);
            }
            Serves::Address(address) => {
                command.args(["--format=raw", "--"]).arg(address);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        end(self.child().take());
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// SIGKILL is all that it heeds while a read is pending.
fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn not_here(why: &io::Error) -> String {
    match why.kind() {
        ErrorKind::NotFound => {
            format!("it is read by {PROGRAM}, which is not here: install it (Debian: qemu-utils)")
        }
        _ => format!("{PROGRAM} cannot be started: {why}"),
    }
}

fn reason(said: &str) -> NoLink {
    let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it ended without a word");
    let line = line.trim().trim_start_matches(PROGRAM).trim_start_matches(": ");
    let missing = ["No such file or directory", "LIBSSH2_FX_NO_SUCH_FILE", "SFTP server: No such file"];
    if missing.iter().any(|what| line.contains(what)) {
        return NoLink::NotThere;
    }
    let unknown = ["Unknown protocol", "Unknown driver", "not supported by this build"];
    match unknown.iter().any(|what| line.contains(what)) {
        true => NoLink::Final(format!(
            "{PROGRAM} says: {line}; its other half is missing (Debian: qemu-block-extra)"
        )),
        false => NoLink::Final(format!("{PROGRAM} says: {line}")),
    }
}

/// Commas end an option, and two are one.
fn escaped(path: &Path) -> OsString {
    let bytes = path.as_os_str().as_bytes();
    let doubled = bytes.iter().flat_map(|byte| std::iter::repeat_n(*byte, 1 + usize::from(*byte == b',')));
    OsStr::to_os_string(&OsString::from_vec(doubled.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_in_a_name_is_no_option() {
        assert_eq!(escaped(Path::new("/a,file.locking=off")), OsString::from("/a,,file.locking=off"));
    }

    #[test]
    fn what_it_says_is_told_from_nothing_being_there() {
        assert!(matches!(
            reason("qemu-nbd: Could not open 'x': No such file or directory"),
            NoLink::NotThere
        ));
        let NoLink::Final(why) = reason("qemu-nbd: iSCSI: Failed to connect to LUN : refused\n") else {
            panic!("it is told")
        };
        assert_eq!(why, "qemu-nbd says: iSCSI: Failed to connect to LUN : refused");
        let NoLink::Final(why) = reason("qemu-nbd: Unknown protocol 'iscsi'") else { panic!("it is told") };
        assert!(why.contains("qemu-block-extra"), "{why}");
    }
}
