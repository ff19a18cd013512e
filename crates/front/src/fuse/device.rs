//! `/dev/fuse`: one mounted file system, from the mount on.
//!
//! Owns: the descriptor, mounting (by the system call where we may, else by `fusermount3`), the first
//! exchange with the kernel, and what is written to it. Never: what an answer says. Invariant: when the last
//! holder of it is gone, the kernel ends whatever waits for this file system.
//! Called by `mount`, `session`, `requests`, `offers`. Tests: `tests/file.rs`, through the kernel.

use super::point::{self, MountError};
use super::wire::{self, Body, HEAD_BYTES, Head, Op, REQUEST_BYTES, Request, Terms};
use cheetah_rim::buffer::Buffer;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};
use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::{Command, Stdio};

const PATH: &str = "/dev/fuse";
/// As `mount` shows it beside "fuse".
const SUBTYPE: &str = "cheetah";

/// What the configuration of the mounting helper lets ordinary users ask for.
const OTHERS_OPTION: &str = "user_allow_other";

#[derive(Debug)]
pub(super) struct Device {
    fd: OwnedFd,
    /// Whether others than who mounted it may look at it, as far as its mode lets them: root for one.
    shared: bool,
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl Device {
    /// Mounts at `point` and agrees with the kernel on `terms`. Requests can be received from then on,
    /// without waiting.
    pub(super) fn mount(
        point: &Path,
        source: &str,
        read_only: bool,
        terms: Terms,
    ) -> Result<Device, MountError> {
        let failed = |error| MountError::Failed { point: point.to_path_buf(), error };
        let device = match mount_as_root(point, source, read_only) {
            Err(Errno::PERM) => mount_for_user(point, source, read_only).map_err(failed)?,
            mounted => mounted.map_err(|errno| failed(errno.into()))?,
        };
        let agreed = device.agree(terms).and_then(|()| {
            let flags = rustix::fs::fcntl_getfl(&device)?;
            rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK)
        });
        if let Err(errno) = agreed {
            let _ = super::unmount_at(point, true);
            return Err(failed(errno.into()));
        }
        Ok(device)
    }

    pub(super) fn shared(&self) -> bool {
        self.shared
    }

    fn agree(&self, terms: Terms) -> rustix::io::Result<()> {
        // The kernel gives nothing to who has less room than this.
        let mut bytes = vec![0; 8 << 10];
        loop {
            let len = match rustix::io::read(self, &mut bytes) {
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
                len => len?,
            };
            let Some(Request { unique, op: Op::Init(init), .. }) = Request::parse(&bytes[..len]) else {
                return Err(Errno::PROTO);
            };
            match Body::init(init, terms) {
                Ok(body) => self.write(Head::Done { unique }, &[&body])?,
                Err(errno) => {
                    self.fail(unique, errno);
                    return Err(errno);
                }
            }
            return Ok(());
        }
    }

    /// The next request: of a write the head, and its bytes in `landing`; of any other all of it, up to
    /// `REQUEST_BYTES`. Returns how much of `request` is filled, and of `landing`.
    pub(super) fn receive(
        &self,
        request: &mut [u8; REQUEST_BYTES],
        landing: &mut Buffer,
    ) -> rustix::io::Result<(usize, usize)> {
        let mut parts = [IoSliceMut::new(&mut request[..HEAD_BYTES]), IoSliceMut::new(landing)];
        let len = rustix::io::readv(self, &mut parts)?;
        let behind = len.saturating_sub(HEAD_BYTES);
        if behind == 0 || wire::is_write(request) {
            return Ok((len.min(HEAD_BYTES), behind));
        }
        let behind = behind.min(REQUEST_BYTES - HEAD_BYTES);
        request[HEAD_BYTES..HEAD_BYTES + behind].copy_from_slice(&landing[..behind]);
        Ok((HEAD_BYTES + behind, 0))
    }

    pub(super) fn answer(&self, unique: u64, body: &[u8]) {
        match self.write(Head::Done { unique }, &[body]) {
            Ok(()) => {}
            // Nobody waits for it any more: the request was given up, or the file system unmounted.
            Err(Errno::NOENT | Errno::NODEV) => {}
            Err(errno) => {
                tracing::warn!(%errno, "the kernel did not take an answer");
                self.fail(unique, Errno::IO);
            }
        }
    }

    pub(super) fn fail(&self, unique: u64, errno: Errno) {
        if let Err(errno) = self.write(Head::Failed { unique, errno }, &[])
            && !matches!(errno, Errno::NOENT | Errno::NODEV)
        {
            tracing::warn!(%errno, "the kernel did not take an error");
        }
    }

    /// Tells the kernel that what it has of these bytes is out of date; a negative offset: of the attributes.
    /// It may wait for requests that are answered on other threads.
    pub(super) fn invalidate(&self, inode: u64, offset: i64, len: i64) -> rustix::io::Result<()> {
        match self.write(Head::Stale, &[&Body::stale(inode, offset, len)]) {
            // It has nothing of them.
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    /// Gives bytes to the kernel's page cache. It may wait for requests that are answered on other threads.
    pub(super) fn store(&self, inode: u64, offset: u64, bytes: &[u8]) -> rustix::io::Result<()> {
        let len = u32::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
        self.write(Head::Gift, &[&Body::gift(inode, offset, len), bytes])
    }

    /// The kernel takes an answer whole or not at all.
    fn write(&self, head: Head, body: &[&[u8]]) -> rustix::io::Result<()> {
        let head = head.encode(body.iter().map(|part| part.len()).sum());
        let mut parts = [IoSlice::new(&head), IoSlice::new(&[]), IoSlice::new(&[])];
        for (part, bytes) in parts[1..].iter_mut().zip(body) {
            *part = IoSlice::new(bytes);
        }
        loop {
            match rustix::io::writev(self, &parts) {
                Err(Errno::INTR) => {}
                result => return result.map(|_| ()),
            }
        }
    }
}

/// Root's tools (a loop device, mount) run as others than who attached; the mode of the file still holds.
fn access(shared: bool) -> &'static str {
    if shared { "default_permissions,allow_other" } else { "default_permissions" }
}

fn mount_as_root(point: &Path, source: &str, read_only: bool) -> rustix::io::Result<Device> {
    let fd = rustix::fs::open(PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let shared = rustix::process::geteuid().is_root();
    let (number, access) = (fd.as_raw_fd(), access(shared));
    let options = format!("fd={number},rootmode=40000,user_id={uid},group_id={gid},{access}");
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, read_only);
    let options = CString::new(options).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(source, point, format!("fuse.{SUBTYPE}"), flags, Some(options.as_c_str()))?;
    Ok(Device { fd, shared })
}

/// For root as well where the machine's owner lets users do that.
fn mount_for_user(point: &Path, source: &str, read_only: bool) -> io::Result<Device> {
    match mount_by_helper(point, source, read_only, true) {
        Err(error) if error.to_string().contains(OTHERS_OPTION) => {
            Ok(Device { fd: mount_by_helper(point, source, read_only, false)?, shared: false })
        }
        mounted => Ok(Device { fd: mounted?, shared: true }),
    }
}

/// The helper is root's, mounts what its caller may write to, and hands the descriptor over through a socket,
/// here its standard input.
fn mount_by_helper(point: &Path, source: &str, read_only: bool, shared: bool) -> io::Result<OwnedFd> {
    let helper = point::fusermount().ok_or_else(|| io::Error::other("fusermount3 is not installed"))?;
    let (theirs, ours) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let (mode, access) = (if read_only { "ro" } else { "rw" }, access(shared));
    let options = format!("fsname={source},subtype={SUBTYPE},nodev,nosuid,noexec,noatime,{mode},{access}");
    let mut command = Command::new(helper);
    command.arg("-o").arg(options).arg("--").arg(point).env("_FUSE_COMMFD", "0");
    command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    drop(command);
    let fd = receive_descriptor(&ours);
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut said);
    }
    let status = child.wait()?;
    match fd? {
        Some(fd) => Ok(fd),
        None => Err(io::Error::other(format!("fusermount3 ended with {status}: {}", said.trim()))),
    }
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut received = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(&mut byte)];
    while let Err(errno) = rustix::net::recvmsg(socket, parts, &mut received, RecvFlags::CMSG_CLOEXEC) {
        if errno != Errno::INTR {
            return Err(errno.into());
        }
    }
    let mut descriptors = received.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(descriptors.next().and_then(|mut descriptors| descriptors.next()))
}
