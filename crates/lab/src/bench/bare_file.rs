//! A bare file to compare with: a file system in user space whose reads and writes raw TCP servers answer,
//! and that does no more.
//!
//! Owns: one file, the requests on their way for it, and its mount. Never: redundancy, checksums, a cache of
//! its own, an error of a server (it ends the file), reads and large writes together (both ends would wait),
//! read-ahead of its own. Requests that come together are sent together, and large writes as pages, as
//! Cheetah does.
//! Invariant: a server answers in the order in which it was asked (`ping`).
//! The layouts are those of the kernel's `include/uapi/linux/fuse.h` on a little-endian machine, and the
//! terms those of Cheetah's own file.
//! Called by: `front`, `lan`, as a worker. Tests: below.

use std::collections::VecDeque;
use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use cheetah_rim::buffer::Buffer;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::RecvFlags;
use serde_json::json;

use crate::bench::bare::{self, Lender};
use crate::bench::ping::{self, Exchange, QUESTION_BYTES, REPLY_BYTES};
use crate::bench::worker::{Worker, orders};
use crate::lan::{Lan, Node};
use crate::scratch::Scratch;

const NAME: &str = "bare.raw";
const ROOT: u64 = 1;
const FILE: u64 = 2;
const HEAD_BYTES: usize = 40;
/// In front of the bytes of a write.
const WRITE_HEAD_BYTES: usize = HEAD_BYTES + 40;
/// The largest request.
const LARGE_BYTES: usize = 1 << 20;
/// More than what is missing of one reply, for several small ones.
const AHEAD_BYTES: usize = 64 << 10;
const READ_AHEAD_KB: u32 = 1024;
/// Requests that are under way: as many as the kernel begins by itself, and a tool's.
const BUFFERS: usize = 48;
/// ASYNC_READ, BIG_WRITES, ASYNC_DIO, MAX_PAGES, EXPLICIT_INVAL_DATA.
const INIT_FLAGS: u32 = 1 | 1 << 5 | 1 << 15 | 1 << 22 | 1 << 25;
/// NOFLUSH, PARALLEL_DIRECT_WRITES.
const OPEN_FLAGS: u32 = 1 << 5 | 1 << 6;
/// Seconds that the kernel keeps name and attributes.
const TTL: u64 = 3600;

/// A mounted file, its servers and who serves it.
#[derive(Debug)]
pub struct BareFile {
    pub path: PathBuf,
    pub worker: Worker,
    _servers: Vec<Worker>,
    _scratch: Scratch,
}

impl BareFile {
    pub const NAME: &'static str = "a bare file over raw TCP to four";

    /// One of so many MiB over servers at these addresses, on this machine or on the client's host of a lab.
    #[track_caller]
    pub fn start(mib: u64, servers: Vec<Worker>, addresses: &[String], lan: Option<&Lan>) -> Self {
        let scratch = Scratch::new();
        let point = scratch.directory("mnt");
        let (place, size) = (point.display().to_string(), mib.to_string());
        let words: Vec<&str> =
            ["bare-file", &place, &size].into_iter().chain(addresses.iter().map(String::as_str)).collect();
        let worker = match lan {
            None => Worker::start(&words),
            Some(lan) => Worker::start_on(lan, Node::Client, &words),
        };
        Self { path: point.join(NAME), worker, _servers: servers, _scratch: scratch }
    }
}

/// A worker that serves such a file, until no orders come any more.
pub fn serve(point: &str, mib: u64, addresses: &[&str]) {
    let device = mount(Path::new(point)).unwrap_or_else(|error| panic!("cannot mount at {point}: {error}"));
    let mut bare = Bare::new(device, mib << 20, addresses);
    // What goes wrong is said at once: whoever uses the file only hears that it is gone.
    let serving = std::thread::spawn(move || bare.run().expect("the file and its servers"));
    read_ahead(Path::new(point)).unwrap_or_else(|error| panic!("read-ahead of {point}: {error}"));
    orders(&json!({}), |_| Ok(json!({})));
    let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    serving.join().expect("the thread that serves the file");
}

fn mount(point: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
    let options = CString::new(options).expect("no zeros in it");
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOATIME;
    rustix::mount::mount("bare", point, "fuse.bare", flags, Some(options.as_c_str()))?;
    Ok(device)
}

fn read_ahead(point: &Path) -> io::Result<()> {
    let device = std::fs::metadata(point)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), READ_AHEAD_KB.to_string())
}

/// A server, and the requests that it owes an answer.
struct Far {
    stream: TcpStream,
    owed: VecDeque<Owed>,
    /// The last so many of them were not sent yet.
    new: usize,
    room: Vec<u8>,
    filled: usize,
}

#[derive(Debug)]
struct Owed {
    unique: u64,
    len: u32,
    is_write: bool,
    /// What is written, and behind it the question: they are lent to the socket, and stay until it was
    /// answered.
    buffer: Buffer,
}

impl Owed {
    fn exchange(&self) -> Exchange {
        let len = self.len as usize;
        let (sent, body) = if self.is_write { (len, 0) } else { (0, len) };
        Exchange { sent, returned: REPLY_BYTES + body }
    }

    /// What is sent of it.
    fn pieces(&self) -> [&[u8]; 2] {
        [&self.buffer[LARGE_BYTES..][..QUESTION_BYTES], &self.buffer[..self.exchange().sent]]
    }
}

impl Far {
    fn connect(address: &str) -> Self {
        let room = vec![0; LARGE_BYTES + REPLY_BYTES + AHEAD_BYTES];
        Self { stream: ping::connect(address), owed: VecDeque::new(), new: 0, room, filled: 0 }
    }

    fn send(&mut self, lender: &Lender) -> io::Result<()> {
        let new = self.owed.range(self.owed.len() - self.new..);
        lender.send(new.flat_map(Owed::pieces), &self.stream)?;
        self.new = 0;
        Ok(())
    }

    /// Takes what came, and gives it to the kernel; buffers come back.
    fn receive(&mut self, device: &OwnedFd, free: &mut Vec<Buffer>) -> io::Result<()> {
        let reply_bytes = |owed: &Owed| owed.exchange().returned;
        let missing = self.owed.front().map_or(0, |owed| reply_bytes(owed).saturating_sub(self.filled));
        let end = self.room.len().min(self.filled + missing.max(AHEAD_BYTES));
        match rustix::net::recv(&self.stream, &mut self.room[self.filled..end], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((got, _)) => self.filled += got,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        let mut from = 0;
        while let Some(to) = self.owed.front().map(|owed| from + reply_bytes(owed))
            && to <= self.filled
            && let Some(owed) = self.owed.pop_front()
        {
            let written = u64::from(owed.len).to_ne_bytes();
            let body = if owed.is_write { &written[..] } else { &self.room[from + REPLY_BYTES..to] };
            answer(device, owed.unique, 0, body)?;
            free.push(owed.buffer);
            from = to;
        }
        self.room.copy_within(from..self.filled, 0);
        self.filled -= from;
        Ok(())
    }
}

fn answer(device: &OwnedFd, unique: u64, errno: i32, body: &[u8]) -> io::Result<()> {
    let mut head = [0; 16];
    let len = u32::try_from(head.len() + body.len()).expect("a request is small");
    head[..4].copy_from_slice(&len.to_ne_bytes());
    head[4..8].copy_from_slice(&(-errno).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    match rustix::io::writev(device, &[IoSlice::new(&head), IoSlice::new(body)]) {
        // Nobody waits for it any more.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

struct Bare {
    device: OwnedFd,
    size: u64,
    far: Vec<Far>,
    lender: Lender,
    /// The head of the request that was received last.
    request: [u8; WRITE_HEAD_BYTES],
    /// Buffers that no request has: what follows the head comes into the last.
    free: Vec<Buffer>,
}

impl Bare {
    fn new(device: OwnedFd, size: u64, addresses: &[&str]) -> Self {
        let far = addresses.iter().map(|address| Far::connect(address)).collect();
        let buffer = || Buffer::standing(LARGE_BYTES + QUESTION_BYTES).expect("memory");
        let free = std::iter::repeat_with(buffer).take(BUFFERS).collect();
        let lender = Lender::new().expect("a pipe");
        Self { device, size, far, lender, request: [0; WRITE_HEAD_BYTES], free }
    }

    /// Until the file is unmounted.
    fn run(&mut self) -> io::Result<()> {
        loop {
            let more = if self.free.is_empty() { PollFlags::empty() } else { PollFlags::IN };
            let device = PollFd::from_borrowed_fd(self.device.as_fd(), more);
            let far = self.far.iter();
            let far = far.map(|far| PollFd::from_borrowed_fd(far.stream.as_fd(), PollFlags::IN));
            let came = bare::wait(std::iter::once(device).chain(far), None)?;
            if came[0] && !self.take_requests()? {
                return Ok(());
            }
            for (far, came) in self.far.iter_mut().zip(&came[1..]) {
                far.send(&self.lender)?;
                if *came {
                    far.receive(&self.device, &mut self.free)?;
                }
            }
        }
    }

    /// False when the file is unmounted.
    fn take_requests(&mut self) -> io::Result<bool> {
        while let Some(buffer) = self.free.last_mut() {
            let head = IoSliceMut::new(&mut self.request);
            let body = IoSliceMut::new(&mut buffer[..LARGE_BYTES]);
            match rustix::io::readv(&self.device, &mut [head, body]) {
                Ok(len) => self.take(len)?,
                Err(Errno::AGAIN) => break,
                Err(Errno::NOENT | Errno::INTR) => {}
                Err(Errno::NODEV) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.request[at..at + 4].try_into().expect("four bytes"))
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.request[at..at + 8].try_into().expect("eight bytes"))
    }

    fn take(&mut self, len: usize) -> io::Result<()> {
        let (opcode, unique, inode) = (self.u32_at(4), self.u64_at(8), self.u64_at(16));
        let body = match opcode {
            // Lookup.
            1 if self.request[HEAD_BYTES..len.min(WRITE_HEAD_BYTES)].starts_with(NAME.as_bytes()) => {
                Body::of(&[FILE, 0, TTL, TTL, 0]).attributes(FILE, self.size)
            }
            1 => return answer(&self.device, unique, Errno::NOENT.raw_os_error(), &[]),
            // Forget, interrupt, forget many.
            2 | 36 | 42 => return Ok(()),
            // Attributes, and their setting.
            3 | 4 => Body::of(&[TTL, 0]).attributes(inode, self.size),
            // Of the file, and of the directory.
            14 | 27 => Body::of(&[0, OPEN_FLAGS.into()]),
            15 | 16 => {
                self.ask(unique, opcode == 16);
                return Ok(());
            }
            17 => Body::of(&[self.size >> 12, 0, 0, 2, 0, 255 << 32 | 4096, 4096, 0, 0, 0]),
            // Release, fsync, flush, release of the directory.
            18 | 20 | 25 | 29 => Body::of(&[]),
            // Init: version 7.38, read-ahead, flags; 32 in the background and 24 when that is much; 256
            // pages.
            26 => {
                let (versions, flags) = (38 << 32 | 7, u64::from(INIT_FLAGS) << 32 | 16 << 20);
                let limits = (LARGE_BYTES as u64) << 32 | 24 << 16 | 32;
                Body::of(&[versions, flags, limits, 256 << 32 | 1, 0, 0, 0, 0])
            }
            _ => return answer(&self.device, unique, Errno::NOSYS.raw_os_error(), &[]),
        };
        answer(&self.device, unique, 0, &body.0)
    }

    /// A server is to be asked for what a request reads, or given what one writes.
    fn ask(&mut self, unique: u64, is_write: bool) {
        let (offset, len) = (self.u64_at(HEAD_BYTES + 8), self.u32_at(HEAD_BYTES + 16));
        let buffer = self.free.pop().expect("the one that it came into");
        let mut owed = Owed { unique, len, is_write, buffer };
        let question = owed.exchange().head();
        owed.buffer[LARGE_BYTES..].copy_from_slice(&question);
        let count = self.far.len() as u64;
        let far = &mut self.far[(offset / LARGE_BYTES as u64 % count) as usize];
        far.owed.push_back(owed);
        far.new += 1;
    }
}

/// What an answer says.
struct Body(Vec<u8>);

impl Body {
    fn of(words: &[u64]) -> Self {
        Self(words.iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    fn attributes(mut self, inode: u64, size: u64) -> Self {
        let size = if inode == ROOT { 0 } else { size };
        let mode: u64 = if inode == ROOT { 0o040_500 } else { 0o100_600 };
        // Number, size, blocks; three times in seconds and in nanoseconds; mode, links; owner, group; device,
        // block.
        let words = [inode, size, size >> 9, 0, 0, 0, 0, mode << 32, 1, 0, 4096];
        self.0.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn what_is_read_and_written_goes_through_the_servers() {
        let scratch = Scratch::new();
        let point = scratch.directory("mnt");
        let device = mount(&point).expect("a mount");
        let servers = [bare::test_server(), bare::test_server()];
        let mut bare = Bare::new(device, 8 << 20, &servers.each_ref().map(String::as_str));
        let serving = std::thread::spawn(move || bare.run());
        let path = point.join(NAME);
        let file = std::fs::File::options().read(true).write(true).open(&path).expect("the file");
        assert_eq!(file.metadata().expect("attributes").len(), 8 << 20);
        // Its servers keep nothing of where it was: every byte is a seven.
        file.write_all_at(&vec![7; 3 << 20], 1 << 20).expect("a write");
        let mut bytes = vec![0; 5 << 20];
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("an empty page cache");
        file.read_exact_at(&mut bytes, 2 << 20).expect("a read");
        assert!(bytes.iter().all(|byte| *byte == 7));
        drop(file);
        rustix::mount::unmount(&point, UnmountFlags::DETACH).expect("an unmount");
        serving.join().expect("the thread").expect("no error");
    }
}
