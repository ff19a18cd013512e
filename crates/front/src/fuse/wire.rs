//! What the kernel asks of a file system and what it is told, as bytes.
//!
//! Owns: the layouts, those of the kernel's `include/uapi/linux/fuse.h`, in the byte order of this machine.
//! Never: descriptors, or what an answer should be. Invariant: no bytes of any kernel make it panic.
//! Called by `device` and `session` (in), `fs` (out). Tests: below; the kernel itself, in `tests/file.rs`.

use rustix::io::Errno;
use std::time::{Duration, SystemTime};

/// What comes in front of every request, and of every answer.
const IN_HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: usize = 16;
/// The head of a read, and of a write in front of its bytes: the two that are frequent.
pub(super) const HEAD_BYTES: usize = IN_HEADER_BYTES + 40;
/// So much is read of any other request: new attributes, or a name. Names of volumes are shorter.
pub(super) const REQUEST_BYTES: usize = 512;

pub(super) const ROOT: u64 = 1;

/// The newest minor version of which anything is used here (`FOPEN_PARALLEL_DIRECT_WRITES`); the kernel goes
/// by the flags, and by this only for layouts that are older than 7.28.
const VERSION: (u32, u32) = (7, 38);
/// From here on what this program uses has the layouts that it uses (`max_pages`, 2019).
const VERSION_MIN: (u32, u32) = (7, 28);

// Of INIT.
const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
/// Without it the kernel waits for each O_DIRECT request of a loop device or of fio in turn.
const ASYNC_DIO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;
/// With it growth does not throw away what is cached of the file.
const EXPLICIT_INVAL_DATA: u32 = 1 << 25;
const WANTED: u32 = ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | EXPLICIT_INVAL_DATA;

// Of OPEN.
pub(super) const OPEN_KEEP_CACHE: u32 = 1 << 1;
pub(super) const OPEN_NOFLUSH: u32 = 1 << 5;
pub(super) const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

// Of SETATTR.
const SET_MODE: u32 = 1 << 0;
const SET_UID: u32 = 1 << 1;
const SET_GID: u32 = 1 << 2;
const SET_SIZE: u32 = 1 << 3;

const NOTIFY_INVAL_INODE: i32 = 2;
const NOTIFY_STORE: i32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request<'a> {
    /// By which it is answered.
    pub(super) unique: u64,
    pub(super) inode: u64,
    pub(super) op: Op<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op<'a> {
    Init(Init),
    Lookup {
        name: &'a [u8],
    },
    GetAttr,
    /// Modes and owners are not said: none can be set.
    SetAttr {
        size: Option<u64>,
        access: bool,
    },
    Open {
        flags: u32,
    },
    OpenDir,
    ReadDir {
        from: u64,
        room: u32,
    },
    Read {
        offset: u64,
        len: u32,
    },
    /// Its bytes are behind the head.
    Write {
        offset: u64,
        len: u32,
    },
    Sync,
    Allocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    StatFs,
    /// A file or directory that was opened is closed, by the last who had it.
    Release,
    /// A descriptor is closed, or a directory synced. Kernels before 5.16 flush at a close: what was written
    /// is with donors, and what was lost since is for who asks by fsync, not for the first who closes the
    /// file.
    Nothing,
    /// Of the kernel's own memory; nobody waits for an answer.
    Forget,
    /// What would change the directory.
    Rename,
    Destroy,
    Unknown,
    /// Shorter than what it claims to be.
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Init {
    version: (u32, u32),
    readahead_max: u32,
    flags: u32,
}

/// What the file system asks for in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub(super) write_max: u32,
    pub(super) readahead_max: u32,
    pub(super) background_max: u16,
    /// Of this machine's memory: the kernel counts requests in them.
    pub(super) page_bytes: u32,
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes)
}

/// Whether these bytes begin a write, whose own bytes come behind its head.
pub(super) fn is_write(head: &[u8]) -> bool {
    u32_at(head, 4) == Some(16)
}

impl Request<'_> {
    /// Of a write its head, of any other all of it. None: it has not even a number to be answered by.
    pub(super) fn parse(bytes: &[u8]) -> Option<Request<'_>> {
        let (opcode, unique, inode) = (u32_at(bytes, 4)?, u64_at(bytes, 8)?, u64_at(bytes, 16)?);
        let op = parse_op(opcode, bytes.get(IN_HEADER_BYTES..)?).unwrap_or(Op::Malformed);
        Some(Request { unique, inode, op })
    }
}

fn parse_op(opcode: u32, args: &[u8]) -> Option<Op<'_>> {
    Some(match opcode {
        1 => Op::Lookup { name: args.split(|byte| *byte == 0).next()? },
        2 | 42 => Op::Forget,
        3 => Op::GetAttr,
        4 => {
            let valid = u32_at(args, 0)?;
            let size = u64_at(args, 16)?;
            let access = valid & (SET_MODE | SET_UID | SET_GID) != 0;
            Op::SetAttr { size: (valid & SET_SIZE != 0).then_some(size), access }
        }
        // mknod, mkdir, unlink, rmdir, rename, link, symlink, create, rename2, tmpfile
        8..=13 | 6 | 35 | 45 | 51 => Op::Rename,
        14 => Op::Open { flags: u32_at(args, 0)? },
        15 => Op::Read { offset: u64_at(args, 8)?, len: u32_at(args, 16)? },
        16 => Op::Write { offset: u64_at(args, 8)?, len: u32_at(args, 16)? },
        17 => Op::StatFs,
        18 | 29 => Op::Release,
        25 | 30 => Op::Nothing,
        20 => Op::Sync,
        26 => Op::Init(Init {
            version: (u32_at(args, 0)?, u32_at(args, 4)?),
            readahead_max: u32_at(args, 8)?,
            flags: u32_at(args, 12)?,
        }),
        27 => Op::OpenDir,
        28 => Op::ReadDir { from: u64_at(args, 8)?, room: u32_at(args, 16)? },
        38 => Op::Destroy,
        43 => Op::Allocate { offset: u64_at(args, 8)?, len: u64_at(args, 16)?, mode: u32_at(args, 24)? },
        46 => Op::Seek { offset: u64_at(args, 8)?, whence: u32_at(args, 16)? },
        _ => Op::Unknown,
    })
}

/// The body of an answer, field after field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Body(Vec<u8>);

impl std::ops::Deref for Body {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// What `stat` shows of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attr {
    pub(super) inode: u64,
    pub(super) size: u64,
    /// Of `size`, what is no hole.
    pub(super) held: u64,
    /// Type and permissions.
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) block_bytes: u32,
    pub(super) changed: SystemTime,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DirEntry<'a> {
    pub(super) inode: u64,
    /// `S_IFDIR` and the like.
    pub(super) mode: u32,
    pub(super) name: &'a [u8],
}

impl Body {
    fn u16(mut self, value: u16) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Body {
        self.0.extend(value.to_ne_bytes());
        self
    }

    fn attr(self, attr: &Attr) -> Body {
        let since = attr.changed.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanos) = (since.as_secs(), since.subsec_nanos());
        let body = self.u64(attr.inode).u64(attr.size).u64(attr.held.div_ceil(512));
        let body = body.u64(seconds).u64(seconds).u64(seconds).u32(nanos).u32(nanos).u32(nanos);
        let body = body.u32(attr.mode).u32(attr.links).u32(attr.uid).u32(attr.gid);
        body.u32(0).u32(attr.block_bytes).u32(0)
    }

    /// For so long the name may be kept, and the attributes.
    pub(super) fn entry(attr: &Attr, name_ttl: Duration, ttl: Duration) -> Body {
        let body = Body::default().u64(attr.inode).u64(0).u64(name_ttl.as_secs()).u64(ttl.as_secs());
        body.u32(name_ttl.subsec_nanos()).u32(ttl.subsec_nanos()).attr(attr)
    }

    pub(super) fn attributes(attr: &Attr, ttl: Duration) -> Body {
        Body::default().u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).attr(attr)
    }

    pub(super) fn opened(flags: u32) -> Body {
        Body::default().u64(0).u32(flags).u32(0)
    }

    pub(super) fn nothing_written() -> Body {
        Body(written(0).to_vec())
    }

    pub(super) fn found(offset: u64) -> Body {
        Body::default().u64(offset)
    }

    pub(super) fn file_system(blocks: u64, files: u64, block_bytes: u32, name_max: u32) -> Body {
        let body = Body::default().u64(blocks).u64(0).u64(0).u64(files).u64(0);
        let body = body.u32(block_bytes).u32(name_max).u32(block_bytes).u32(0);
        (0..6).fold(body, |body, _| body.u32(0))
    }

    /// The entries from number `from` on, as many as fit into `room` bytes.
    pub(super) fn directory(entries: &[DirEntry<'_>], from: u64, room: u32) -> Body {
        let mut body = Body::default();
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        for (number, entry) in (1u64..).zip(entries).skip(from) {
            if body.len() + 24 + entry.name.len().next_multiple_of(8) > room as usize {
                break;
            }
            let name_len = u32::try_from(entry.name.len()).unwrap_or(u32::MAX);
            body = body.u64(entry.inode).u64(number).u32(name_len).u32(entry.mode >> 12);
            body.0.extend(entry.name);
            body.0.resize(body.0.len().next_multiple_of(8), 0);
        }
        body
    }

    /// # Errors
    /// The kernel is too old.
    pub(super) fn init(init: Init, terms: Terms) -> Result<Body, Errno> {
        if init.version < VERSION_MIN {
            return Err(Errno::PROTO);
        }
        let pages = u16::try_from(terms.write_max.div_ceil(terms.page_bytes)).unwrap_or(u16::MAX);
        let readahead_max = init.readahead_max.min(terms.readahead_max);
        let body = Body::default().u32(VERSION.0).u32(VERSION.1).u32(readahead_max).u32(init.flags & WANTED);
        let body = body.u16(terms.background_max).u16(terms.background_max / 4 * 3).u32(terms.write_max);
        let body = body.u32(1).u16(pages).u16(0);
        Ok((0..8).fold(body, |body, _| body.u32(0)))
    }

    /// Tells the kernel, unasked, that what it has of these bytes is out of date; a negative offset: of the
    /// attributes.
    pub(super) fn stale(inode: u64, offset: i64, len: i64) -> Body {
        Body::default().u64(inode).u64(offset.cast_unsigned()).u64(len.cast_unsigned())
    }

    /// Gives the kernel bytes unasked, which come behind this.
    pub(super) fn gift(inode: u64, offset: u64, len: u32) -> Body {
        Body::default().u64(inode).u64(offset).u32(len).u32(0)
    }
}

/// The body that answers a write; of these there are many, and none is to need memory.
pub(super) fn written(len: usize) -> [u8; 8] {
    let len = u32::try_from(len).expect("a write is far below 4 GiB");
    let mut body = [0; 8];
    body[..4].copy_from_slice(&len.to_ne_bytes());
    body
}

/// What comes in front of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Head {
    Done { unique: u64 },
    Failed { unique: u64, errno: Errno },
    Stale,
    Gift,
}

impl Head {
    pub(super) fn encode(self, body_bytes: usize) -> [u8; OUT_HEADER_BYTES] {
        let (unique, code) = match self {
            Head::Done { unique } => (unique, 0),
            Head::Failed { unique, errno } => (unique, -errno.raw_os_error()),
            Head::Stale => (0, NOTIFY_INVAL_INODE),
            Head::Gift => (0, NOTIFY_STORE),
        };
        let len = u32::try_from(OUT_HEADER_BYTES + body_bytes).expect("no answer is near 4 GiB");
        let mut bytes = [0; OUT_HEADER_BYTES];
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes[4..8].copy_from_slice(&code.to_ne_bytes());
        bytes[8..].copy_from_slice(&unique.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn request(opcode: u32, args: &[u8]) -> Vec<u8> {
        let len = u32::try_from(IN_HEADER_BYTES + args.len()).unwrap();
        let head = Body::default().u32(len).u32(opcode).u64(7).u64(2).u32(0).u32(0).u32(0).u32(0);
        [&head[..], args].concat()
    }

    fn op_of(bytes: &[u8]) -> Op<'_> {
        let request = Request::parse(bytes).unwrap();
        assert_eq!((request.unique, request.inode), (7, 2));
        request.op
    }

    #[test]
    fn requests_mean_what_the_kernels_header_says() {
        let args = Body::default().u64(0).u64(4096).u32(512).u32(0).u64(0).u32(0).u32(0);
        assert_eq!(args.len() + IN_HEADER_BYTES, HEAD_BYTES);
        assert_eq!(op_of(&request(15, &args)), Op::Read { offset: 4096, len: 512 });
        let write = request(16, &args);
        assert_eq!(op_of(&write), Op::Write { offset: 4096, len: 512 });
        assert!(is_write(&write) && !is_write(&request(15, &args)));
        assert_eq!(op_of(&request(1, b"case.raw\0")), Op::Lookup { name: b"case.raw" });
        assert_eq!(op_of(&request(38, &[])), Op::Destroy);
        assert_eq!((op_of(&request(18, &[])), op_of(&request(29, &[]))), (Op::Release, Op::Release));
        assert_eq!(op_of(&request(999, &[])), Op::Unknown);
        let seek = Body::default().u64(0).u64(9).u32(3).u32(0);
        assert_eq!(op_of(&request(46, &seek)), Op::Seek { offset: 9, whence: 3 });
        let punch = Body::default().u64(0).u64(1).u64(2).u32(3).u32(0);
        assert_eq!(op_of(&request(43, &punch)), Op::Allocate { offset: 1, len: 2, mode: 3 });
    }

    #[test]
    fn attributes_are_set_only_where_they_are_said_to_be() {
        let set =
            |valid| request(4, &[&Body::default().u32(valid).u32(0).u64(0).u64(5)[..], &[0; 64]].concat());
        assert_eq!(op_of(&set(SET_SIZE)), Op::SetAttr { size: Some(5), access: false });
        assert_eq!(op_of(&set(SET_GID)), Op::SetAttr { size: None, access: true });
        assert_eq!(op_of(&set(1 << 5)), Op::SetAttr { size: None, access: false });
    }

    #[test]
    fn what_is_cut_short_is_malformed_or_nothing() {
        let args = [0; 88];
        for opcode in 0..60 {
            let whole = request(opcode, &args);
            for len in 0..whole.len() {
                if let Some(request) = Request::parse(&whole[..len]) {
                    assert!(len >= IN_HEADER_BYTES && request.unique == 7);
                }
            }
        }
        assert_eq!(op_of(&request(15, &[0; 16])), Op::Malformed);
        assert_eq!(Request::parse(&[0; 39]), None);
    }

    #[test]
    fn answers_have_the_sizes_of_the_kernels_structures() {
        let changed = SystemTime::UNIX_EPOCH + Duration::new(3, 4);
        let attr = Attr {
            inode: 2,
            size: 513,
            held: 513,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            block_bytes: 4096,
            changed,
        };
        assert_eq!(Body::entry(&attr, Duration::from_secs(1), Duration::ZERO).len(), 128);
        assert_eq!(Body::attributes(&attr, Duration::from_secs(1)).len(), 104);
        assert_eq!(Body::opened(0).len(), 16);
        assert_eq!(Body::file_system(1, 2, 3, 4).len(), 80);
        assert_eq!(u32_at(&written(5), 0), Some(5));
        assert_eq!(Body::stale(1, -1, 0).len(), 24);
        assert_eq!(Body::gift(1, 2, 3).len(), 24);
        assert_eq!(u64_at(&Body::default().attr(&attr), 16), Some(2), "513 bytes are two sectors");
    }

    #[test]
    fn a_directory_is_read_in_as_many_steps_as_there_is_room_for() {
        let entry = |inode, name| DirEntry { inode, mode: 0o100_000, name };
        let entries = [entry(1, &b"."[..]), entry(1, b".."), entry(2, b"123456789")];
        let all = Body::directory(&entries, 0, 4096);
        assert_eq!(all.len(), 32 + 32 + 40);
        assert_eq!(u32_at(&all, 20), Some(8), "DT_REG");
        assert_eq!(u64_at(&all, 8), Some(1), "where to go on");
        assert_eq!(Body::directory(&entries, 0, 103).len(), 64);
        assert_eq!(Body::directory(&entries, 2, 4096)[..], all[64..]);
        assert!(Body::directory(&entries, 3, 4096).is_empty());
        assert!(Body::directory(&entries, u64::MAX, 4096).is_empty());
    }

    #[test]
    fn terms_are_what_both_can_do() {
        let terms =
            Terms { write_max: 1 << 20, readahead_max: 16 << 20, background_max: 32, page_bytes: 4096 };
        let init = Init { version: (7, 40), readahead_max: 128 << 10, flags: ASYNC_DIO | 1 << 31 };
        let body = Body::init(init, terms).unwrap();
        assert_eq!(body.len(), 64);
        assert_eq!((u32_at(&body, 8), u32_at(&body, 12)), (Some(128 << 10), Some(ASYNC_DIO)));
        assert_eq!(body[28..30], 256u16.to_ne_bytes(), "pages");
        assert_eq!(Body::init(Init { version: (7, 27), ..init }, terms), Err(Errno::PROTO));
        assert!(
            Body::init(Init { version: (8, 0), ..init }, terms).is_ok(),
            "it asks again, with our version"
        );
    }

    #[test]
    fn an_answer_says_how_long_it_is_and_to_whom() {
        let failed = Head::Failed { unique: 9, errno: Errno::IO }.encode(0);
        assert_eq!((u32_at(&failed, 0), u64_at(&failed, 8)), (Some(16), Some(9)));
        assert_eq!(u32_at(&failed, 4), Some((-5i32).cast_unsigned()));
        assert_eq!(u32_at(&Head::Done { unique: 9 }.encode(100), 0), Some(116));
    }
}
